"""Options that several commands share."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, TypeVar

import click

from tsm2_tune.api.parse import (
    DEFAULT_BUDGET_SECONDS,
    DEFAULT_COMPILE_LIMIT_SECONDS,
    DEFAULT_DATABASE,
    DEFAULT_RUN_LIMIT_SECONDS,
    FAILED,
    FAILURES,
    LAYOUTS,
    MOST_BUDGET_SECONDS,
    MOST_LIMIT_SECONDS,
    MOST_SEED,
    OP_SYNTAX,
    family_names,
    hint_of,
    outcomes_of,
    share_of,
    thresholds_of,
)
from tsm2_tune.api.products import problems_of
from tsm2_tune.commands import completion
from tsm2_tune.commands.errors import is_shape, option, stray
from tsm2_tune.errors import InputError
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.dtypes import ELEMENT_TYPES, MATHS
from tsm2_tune.generator.shapes import SHAPE_SYNTAX
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.tuner.results.storage.addresses import shown_name
from tsm2_tune.tuner.results.trial import Cache, Outcome

F = TypeVar("F", bound=Callable[..., Any])
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}  # first letter of a unit -> seconds
_TIME = re.compile(
    r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf) *(|s|sec|seconds|m|min|minutes|h|hours)",
    re.IGNORECASE | re.ASCII,
)


class WholeNumber(click.IntRange):
    """The click type of an integer in a range. Unlike int(), it refuses `1_000` and digits of other scripts."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and not re.fullmatch("[+-]?[0-9]+", value.strip()):
            self.fail(f"{value!r} is not a valid {self.name}: expected digits from 0 to 9.", param, ctx)
        return super().convert(value, param, ctx)


class Seconds(click.FloatRange):
    """The click type of a duration in a range. It converts `90`, `90s`, `2m` or `1h` to seconds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        unit = 1
        if isinstance(value, str):
            found = _TIME.fullmatch(value.strip())
            if found is None:
                self.fail(f"{value!r} is not a time: expected a number of seconds, or 90s, 2m or 1h.", param, ctx)
            value, unit = found[1], UNITS[found[2].lower()[:1]]
        return super().convert(float(value) * unit, param, ctx)


class Percent(click.ParamType):  # type: ignore[type-arg]
    """The click type of a percentage such as `3%`, at most the fraction `most` (1.0 is 100 %). The value is text."""

    name = "percent"

    def __init__(self, most: float) -> None:
        self.most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            share_of(value, self.most)
        except InputError as error:
            self.fail(f"{error}.", param, ctx)
        return str(value)


class Choice(click.Choice):  # type: ignore[type-arg]
    """The click type of a value from a list of names. Its error message suggests a similar name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            self.fail(error.message.rstrip(".") + hint_of(value, self.choices), param, ctx)


def is_given(ctx: click.Context, name: str) -> bool:
    """Return whether the command line contains the parameter; False if it has its default."""
    return ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def added(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return a decorator that adds the options to a command, in the order in which --help lists them."""

    def decorate(command: F) -> F:
        for one in reversed(options):
            command = one(command)
        return command

    return decorate


math_option = option(
    "--math",
    type=Choice(MATHS),
    default=MATHS[0],
    show_default=True,
    help="How elements are multiplied. full: in their own precision. tf32: f32 on tensor cores, 11 bits of each"
    " factor. 3xtf32: f32 in three tensor-core products, nearly as exact. minplus: f32 or f64 in the semiring"
    " (min, +), as for shortest paths.",
)


layout_option = option(
    "--layout",
    type=Choice(LAYOUTS),
    default="column",
    show_default=True,
    help="Storage order of A, B and C that --op refers to. With row, nn is stored as op ttt, and tn as ntt.",
)


def shapes_options(default: str | None = None) -> Callable[[F], F]:
    """Return a decorator that adds --shapes, --dtype, --math, --op and --layout to a command.

    Shapes can also be passed as arguments. The command receives `problems`. A command line without shapes has those
    in `default`; None makes it an error.
    """

    def decorate(command: F) -> F:
        @wraps(command)
        def with_problems(
            *arguments: Any, shapes: str | None, items: tuple[str, ...], dtypes: str, ops: str, layout: str,
            math: str, **named: Any,
        ) -> Any:  # fmt: skip
            ctx = click.get_current_context()
            for word in items:
                if not is_shape(word):
                    raise stray(ctx, word)
            every = ",".join(filter(None, (*items, shapes))) or default
            if not every:
                raise click.UsageError("Missing option '--shapes': name some, such as --shapes 20480x16x20480", ctx)
            return command(*arguments, problems=problems_of(every, dtypes, ops, layout, math), **named)

        decorated: Any = added(
            option("--shapes", metavar="MxNxK,...", help=SHAPE_SYNTAX),
            click.argument("items", metavar="[MxNxK]...", nargs=-1),
            option(
                "--dtype",
                "dtypes",
                default="f32",
                show_default=True,
                metavar="TYPE,...",
                shell_complete=completion.dtypes,
                help=f"Element types, separated by commas: {', '.join(ELEMENT_TYPES)}, or NumPy's names.",
            ),
            math_option,
            option(
                "--op",
                "ops",
                default="nn",
                show_default=True,
                metavar="OP,...",
                shell_complete=completion.ops,
                help=f"Ops, separated by commas. {OP_SYNTAX}",
            ),
            layout_option,
        )(with_problems)
        return decorated  # type: ignore[no-any-return]

    return decorate


family_options = added(
    option(
        "--family",
        metavar="NAME,...",
        shell_complete=completion.families,
        callback=lambda ctx, param, text: family_names(text),
        help="Only these kernel families; `space --families` lists them.",
    ),
    option(
        "--guidelines",
        metavar="NAME=VALUE,...",
        callback=lambda ctx, param, text: thresholds_of(text),
        help="Change thresholds of the guideline rules. A lower threshold keeps more configurations. Thresholds"
        " not named keep the family's value. `none` disables all guidelines; `none,min-reuse=4` all but min-reuse."
        f" [default: {Guidelines().text}; stricter for gemm; `space` prints them]",
    ),
)


def database_option(
    default: str = DEFAULT_DATABASE, *, reads: bool = False, positional: bool = False
) -> Callable[[F], F]:
    """Return a decorator that adds --db with this default to a command.

    If the command only reads, --db accepts also a file of trials. If `positional`, the database can also be an
    argument: `best h100.db`.
    """
    trials = "; or a file of trials: pretuned:h100, pretuned:h200, or a file that ends in .jsonl" if reads else ""
    with_option: Callable[[F], F] = option(
        "--db",
        "database",
        default=default,
        show_default=True,
        type=click.Path(dir_okay=False),
        help=f"The tuning database: a file, or postgresql+psycopg://user@host/name{trials}.",
    )

    def decorate(command: F) -> F:
        @wraps(command)
        def with_place(*arguments: Any, database: str, place: str | None, **named: Any) -> Any:
            if place is not None and is_shape(place):
                raise stray(click.get_current_context(), place)
            if place is not None and is_given(click.get_current_context(), "database"):
                raise click.UsageError(
                    f"the database is named twice, {shown_name(place)} and --db {shown_name(database)}"
                )
            return command(*arguments, database=database if place is None else place, **named)

        argument = click.argument("place", metavar="[DB]", required=False, type=click.Path(dir_okay=False))
        return argument(with_option(with_place))  # type: ignore[return-value]

    return decorate if positional else with_option


def _device_option(others: str, default: str, *, is_several: bool = False) -> Callable[[F], F]:
    """Return the option --device. `others` says what it takes besides a GPU's number."""
    about = f"A GPU's number (CUDA ordinal){others}. [default: {default}]"
    if is_several:
        complete = completion.several_devices
        return option("--device", "spec", shell_complete=complete, metavar="DEVICE,...", help=about)
    return option("--device", "spec", shell_complete=completion.devices_here, help=about)


_EMULATED, _SEVERAL = ", or cpu, which emulates kernels", "or several GPUs that share the work: 0,1 or all"
device_option = _device_option(_EMULATED, "GPU 0 if there is one, else cpu")
devices_option = _device_option(f", cpu, {_SEVERAL}", "GPU 0 if there is one, else cpu", is_several=True)
gpu_option = _device_option(_EMULATED, "GPU 0")
gpus_option = _device_option(f", {_SEVERAL}", "GPU 0", is_several=True)
stored_device_option = option(
    "--device",
    shell_complete=completion.devices_here,
    help="Only this device: a GPU's number, cpu, or a part of its name, such as h100.",
)
planning_device_option = option(
    "--device",
    "spec",
    shell_complete=completion.devices_and_cards,
    help=f"A GPU's number (CUDA ordinal), cpu, or a card: {', '.join(PROFILES)}. [default: GPU 0, else cpu]",
)
wait_option = option("--wait", is_flag=True, help="If another run uses the device, wait until it ends.")
output_option = partial(option, "--output", "-o", metavar="FILE")
json_option = option("--json", "as_json", is_flag=True, help="Print JSON.")


def cache_option(default: Cache | None, about: str) -> Callable[[F], F]:
    """Return a decorator that adds --cache to a command: what a GPU's L2 cache contains before timing."""
    return option(
        "--cache",
        type=Choice([one.value for one in Cache]),
        default=None if default is None else default.value,
        show_default=default is not None,
        callback=lambda ctx, param, value: None if value is None else Cache(value),
        help=about,
    )


def outcomes_option(name: str, variable: str, known: Sequence[Outcome], about: str) -> Callable[[F], F]:
    """Return a decorator that adds an option. Its value is a comma-separated list of trials' outcomes."""
    return option(
        name,
        variable,
        metavar="OUTCOME,...",
        callback=lambda ctx, param, text: outcomes_of(text, known),
        help=f"{about} {', '.join(known)}; {FAILED} stands for all failures.",
    )


retry_option = outcomes_option("--retry", "retry", FAILURES, "Retry configurations whose trials ended as")


_limit_option = partial(
    option,
    type=Seconds(min=0, min_open=True, max=MOST_LIMIT_SECONDS),
    show_default=True,
    metavar="TIME",
)


_UNITS = "seconds, or with a unit, such as 2m."
tuning_options = added(
    option(
        "--budget",
        type=Seconds(min=0, max=MOST_BUDGET_SECONDS),
        default=DEFAULT_BUDGET_SECONDS,
        show_default=True,
        metavar="TIME",
        help="Search time for each problem, earlier runs included: seconds, 90s, 2m, 1h. 0 is no limit."
        " Finals and full verifications take more.",
    ),
    option(
        "--max-trials",
        type=WholeNumber(min=1),
        metavar="N",
        help="The most configurations to try for each problem, earlier runs included.",
    ),
    option(
        "--seed",
        type=WholeNumber(0, MOST_SEED),
        default=0,
        show_default=True,
        help="Seed of the input matrices, and of the order of configurations.",
    ),
    _limit_option(
        "--compile-limit",
        default=DEFAULT_COMPILE_LIMIT_SECONDS,
        help=f"Time limit for compiling one configuration: {_UNITS}",
    ),
    _limit_option(
        "--run-limit",
        default=DEFAULT_RUN_LIMIT_SECONDS,
        help=f"Time limit of each stage of a trial (verifying, timing): {_UNITS}",
    ),
    cache_option(
        Cache.DIRTY,
        "State of a GPU's L2 before a trial is timed. clean: full of lines that were read. dirty: full of lines"
        " that were written, as in most programs. warm: with the operands that fit. Finals measure clean and"
        " dirty too.",
    ),
)


SELECTING = ("device", "products", "dtype", "op", "layout", "cache")  # arguments of `best`


def selection_options(function: F) -> F:
    """Add options that filter stored results. The command receives them as `which`, arguments of `best`."""

    @wraps(function)
    def with_selection(*arguments: Any, **named: Any) -> Any:
        return function(*arguments, which={name: named.pop(name) for name in SELECTING}, **named)

    decorated: Any = added(
        stored_device_option,
        option(
            "--shapes",
            "products",
            metavar="MxNxK,...",
            help="Only these shapes, written as for tuning, or problems as printed: 16x16x1000:f64:tn.",
        ),
        option("--dtype", metavar="TYPE,...", shell_complete=completion.dtypes, help="Only these element types."),
        option("--op", metavar="OP,...", shell_complete=completion.ops, help=f"Only these ops. {OP_SYNTAX}"),
        option(
            "--layout",
            type=Choice(LAYOUTS),
            help="Storage order that --op refers to, as for tuning. Without --op: only products whose C has it.",
        ),
        cache_option(
            None,
            "Only trials that were searched with the L2 in this state. Without it: each problem's state; of several"
            " dirty, else clean. Finals time other states too, which `best --long` shows.",
        ),
    )(with_selection)
    return decorated  # type: ignore[no-any-return]
