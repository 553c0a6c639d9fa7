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
    MOST_GAIN,
    MOST_LIMIT_SECONDS,
    MOST_SEED,
    MOST_WITHIN,
    OP_SYNTAX,
    REACH,
    STRATEGIES,
    hint_of,
    outcomes_of,
    share_of,
)
from tsm2_tune.commands import completion
from tsm2_tune.commands.errors import is_shape, option, stray
from tsm2_tune.errors import InputError
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.problem import ELEMENT_TYPES, MATHS
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


def shapes_options(required: bool) -> Callable[[F], F]:
    """Return a decorator that adds --shapes, --dtype, --math, --op and --layout to a command.

    Shapes can also be passed as arguments. If `required`, a command line without shapes is an error.
    """

    def decorate(command: F) -> F:

        @wraps(command)
        def with_shapes(*arguments: Any, shapes: str | None, items: tuple[str, ...], **named: Any) -> Any:
            ctx = click.get_current_context()
            for word in items:
                if not is_shape(word):
                    raise stray(ctx, word)
            every = items if shapes is None else (*items, shapes)
            named["shapes"] = ",".join(every) if every else None
            if required and not every:
                raise click.UsageError("Missing option '--shapes': name some, such as --shapes 20480x16x20480", ctx)
            return command(*arguments, **named)

        function: F = layout_option(with_shapes)  # type: ignore[assignment]
        function = option(
            "--op",
            "ops",
            default="nn",
            show_default=True,
            metavar="OP,...",
            shell_complete=completion.ops,
            help=f"Ops, separated by commas. {OP_SYNTAX}",
        )(function)
        function = math_option(function)
        function = option(
            "--dtype",
            "dtypes",
            default="f32",
            show_default=True,
            metavar="TYPE,...",
            shell_complete=completion.dtypes,
            help=f"Element types, separated by commas: {', '.join(ELEMENT_TYPES)}, or NumPy's names.",
        )(function)
        function = click.argument("items", metavar="[MxNxK]...", nargs=-1)(function)
        return option("--shapes", metavar="MxNxK,...", help=SHAPE_SYNTAX)(function)

    return decorate


def family_options(function: F) -> F:
    """Add --family and --guidelines to a command."""
    function = option(
        "--guidelines",
        metavar="NAME=VALUE,...",
        help="Change thresholds of the guideline rules. A lower threshold keeps more configurations. Thresholds not"
        " named keep the family's value. `none` disables all guidelines; `none,min-reuse=4` all but min-reuse."
        f" [default: {Guidelines().text}; stricter for gemm; `space` prints them]",
    )(function)
    return option(
        "--family",
        "families",
        metavar="NAME,...",
        shell_complete=completion.families,
        help="Only these kernel families; `space --families` lists them.",
    )(function)


def database_option_of(default: str, more: str = "") -> Callable[[F], F]:
    """Return a decorator that adds --db with this default to a command. `more` ends the option's help."""
    return option(
        "--db",
        "database",
        default=default,
        show_default=True,
        type=click.Path(dir_okay=False),
        help=f"The tuning database: a file, or postgresql+psycopg://user@host/name{more}.",
    )


database_option = database_option_of(DEFAULT_DATABASE)
# For commands that only read.
results_option = database_option_of(
    DEFAULT_DATABASE, "; or a file of trials: pretuned:h100, pretuned:h200, or a file that ends in .jsonl"
)


def named_database(function: F) -> F:
    """Add --db to a command. The database can also be an argument: `confirm h100.db`."""
    return _named(database_option, function)


def named_results(function: F) -> F:
    """Add --db to a command that only reads. The database can also be an argument: `best h100.db`."""
    return _named(results_option, function)


def _named(database: Callable[[F], F], function: F) -> F:
    """Add the option `database` to a command, and the argument that can stand for it."""

    @wraps(function)
    def with_database(*arguments: Any, database: str, place: str | None, **named: Any) -> Any:
        if place is not None and is_shape(place):
            raise stray(click.get_current_context(), place)
        if place is not None and is_given(click.get_current_context(), "database"):
            raise click.UsageError(
                f"the database is named twice, {shown_name(place)} and --db {shown_name(database)}"
            )
        return function(*arguments, database=database if place is None else place, **named)

    return click.argument("place", metavar="[DB]", required=False, type=click.Path(dir_okay=False))(
        database(with_database)  # type: ignore[arg-type]
    )


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
cluster_option = option(
    "--cluster",
    metavar="ADDRESS",
    help="Address of a Dask scheduler, such as tcp://host:8786. Each of its workers tunes on the first GPU that it"
    " sees, or on its CPU if it sees none or with --device cpu.",
)
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
vendor_option = option(
    "--no-vendor", is_flag=True, help="Do not time cuBLAS and cuBLASLt beside the fastest kernels."
)
full_trials_option = option(
    "--full-trials",
    is_flag=True,
    help=f"On a GPU: verify and time every configuration in full. Without it, a trial ends as {Outcome.BEHIND.value}"
    f" if each of its first launches takes over {100 * REACH - 100:.0f} % longer than the fastest correct kernel.",
)
pairs_option = option(
    "--pairs/--no-pairs",
    default=True,
    show_default=True,
    help="After the search, time each winner, and kernels for shapes between the tuned ones, at the other tuned"
    " shapes. This takes time beyond --budget and --max-trials.",
)
strategy_option = option(
    "--strategy",
    type=Choice(STRATEGIES),
    default="model",
    show_default=True,
    help="The order in which configurations are tried. model: what was fast for similar shapes first, then by"
    " expected time. exhaustive: the order of `space --list`. random: any. optuna: as its sampler suggests.",
)
gain_option = option(
    "--gain",
    type=Percent(MOST_GAIN),
    metavar="PERCENT",
    help="End a problem's search when the expected gain of continuing falls below this, such as 0.5%. Without it, the"
    " search continues until the budget is spent.",
)
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


def within_options(function: F) -> F:
    """Add --within and --no-measure to a command."""
    for added in (
        option("--no-measure", is_flag=True, help="With --within: use only times that are stored."),
        option(
            "--within",
            type=Percent(MOST_WITHIN),
            metavar="PERCENT",
            help="Only the fewest kernels that keep each shape within this much of its best time, such as 3%."
            " Missing times are measured if the device is here.",
        ),
    ):
        function = added(function)
    return function


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


def tuning_options(function: F) -> F:
    """Add --budget, --max-trials, --seed, --compile-limit, --run-limit and --cache to a command."""
    for added in (
        cache_option(
            Cache.DIRTY,
            "State of a GPU's L2 before a trial is timed. clean: full of lines that were read. dirty: full of lines"
            " that were written, as in most programs. warm: with the operands that fit. Finals measure clean and"
            " dirty too.",
        ),
        option(
            "--run-limit",
            type=Seconds(min=0, min_open=True, max=MOST_LIMIT_SECONDS),
            default=DEFAULT_RUN_LIMIT_SECONDS,
            show_default=True,
            metavar="TIME",
            help="Time limit of each stage of a trial (verifying, timing): seconds, or with a unit, such as 2m.",
        ),
        option(
            "--compile-limit",
            type=Seconds(min=0, min_open=True, max=MOST_LIMIT_SECONDS),
            default=DEFAULT_COMPILE_LIMIT_SECONDS,
            show_default=True,
            metavar="TIME",
            help="Time limit for compiling one configuration: seconds, or with a unit, such as 2m.",
        ),
        option(
            "--seed",
            type=WholeNumber(0, MOST_SEED),
            default=0,
            show_default=True,
            help="Seed of the input matrices, and of the order of configurations.",
        ),
        option(
            "--max-trials",
            type=WholeNumber(min=1),
            metavar="N",
            help="The most configurations to try for each problem, earlier runs included.",
        ),
        option(
            "--budget",
            type=Seconds(min=0, max=MOST_BUDGET_SECONDS),
            default=DEFAULT_BUDGET_SECONDS,
            show_default=True,
            metavar="TIME",
            help="Search time for each problem, earlier runs included: seconds, 90s, 2m, 1h. 0 is no limit."
            " Finals and full verifications take more.",
        ),
    ):
        function = added(function)
    return function


def selection_options(function: F) -> F:
    """Add options that filter stored results: --device, --shapes, --dtype, --op, --layout and --cache.

    The command receives their values as one dictionary, `which`.
    """

    @wraps(function)
    def with_selection(
        *arguments: Any,
        device: str | None,
        shapes: str | None,
        dtypes: str | None,
        ops: str | None,
        layout: str | None,
        cache: Cache | None,
        **named: Any,
    ) -> Any:
        which = {
            "device": device,
            "products": shapes,
            "dtype": dtypes,
            "op": ops,
            "layout": layout,
            "cache": cache,
        }
        return function(*arguments, which=which, **named)

    for added in (
        cache_option(
            None,
            "Only trials that were searched with the L2 in this state. Without it: each problem's state; of several"
            " dirty, else clean. Finals time other states too, which `best --long` shows.",
        ),
        option(
            "--layout",
            type=Choice(LAYOUTS),
            help="Storage order that --op refers to, as for tuning. Without --op: only products whose C has it.",
        ),
        option("--op", "ops", metavar="OP,...", shell_complete=completion.ops, help=f"Only these ops. {OP_SYNTAX}"),
        option(
            "--dtype",
            "dtypes",
            metavar="TYPE,...",
            shell_complete=completion.dtypes,
            help="Only these element types.",
        ),
        option(
            "--shapes",
            metavar="MxNxK,...",
            help="Only these shapes, written as for tuning, or problems as printed: 16x16x1000:f64:tn.",
        ),
        stored_device_option,
    ):
        with_selection = added(with_selection)
    return with_selection  # type: ignore[return-value]
