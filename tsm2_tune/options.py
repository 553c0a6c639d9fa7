"""The options that several commands share, and how their texts become records."""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from tsm2_tune.errors import InputError
from tsm2_tune.generator.families import FAMILIES, family_named
from tsm2_tune.generator.problem import DTYPES, ELEMENT_TYPES, MATHS, OP_LETTERS, SAME, Problem, dtype_named
from tsm2_tune.generator.profiles import PROFILES
from tsm2_tune.generator.rules import Guidelines, Thresholds, parse_thresholds
from tsm2_tune.generator.shapes import SPELLING, parse_shapes
from tsm2_tune.tuner.trial import Cache

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_DATABASE = "results.db"
LADDER_DATABASE = "ladder.db"  # apart, so that no teaching kernel is exported as the best one of a shape
LARGE = 8192  # extents of a product that is not skinny
LARGE_SQUARE = f"{LARGE}x{LARGE}x{LARGE}"
MOST_SHAPES_BYTES = 16_000_000  # of a shapes file, in which MOST_PROBLEMS find room with what is said of them
DEFAULT_BUDGET_SECONDS = 120.0
MOST_BUDGET_SECONDS = 1e9  # 30 years
MOST_LIMIT_SECONDS = 86400.0  # a day
LAYOUTS = ("column", "row")
OPPOSITE = str.maketrans("ntcj", "tnjc")
GRAM = "gram"
MOST_PROBLEMS = 100_000
MOST_PERCENT = 1000.0
_PERCENT = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,6})?) ?%", re.ASCII)
_PROBLEM = re.compile(r"\d{1,10}x\d{1,10}x\d{1,10}:(?:[a-z]\w*|3xtf32)(?::\w+)?", re.ASCII)
# What others call the types.
SPELT_OTHERWISE = {
    **dict.fromkeys(("float32", "float", "single", "fp32", "s", "r_32f"), "f32"),
    **dict.fromkeys(("float64", "double", "fp64", "d", "r_64f"), "f64"),
    **dict.fromkeys(("complex64", "cfloat", "cf32", "c", "c_32f"), "c64"),
    **dict.fromkeys(("complex128", "cdouble", "cf64", "z", "c_64f"), "c128"),
    **dict.fromkeys(("float16", "half", "fp16", "h", "r_16f"), "f16"),
    **dict.fromkeys(("bfloat16", "r_16bf"), "bf16"),
}
OP_SPELLING = (
    "A letter for A and one for B: n column-major, t row-major, which is transposed to BLAS, and with complex numbers"
    " c conjugate transposed, j conjugated; then a third, t, where C is row-major. x for B where that is A's own"
    f" matrix, as in BLAS's syrk and herk: {GRAM} is tx, X^T X, and with complex numbers cx, X^H X."
)


class Seconds(click.FloatRange):
    """A time in seconds: a number in the range, which "nan" is not."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value} is no time: expected a number of seconds.", param, ctx)
        return seconds


class Percent(click.ParamType):  # type: ignore[type-arg]
    """A share, spelt in percent: 3%, 0.5%."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = _PERCENT.fullmatch(value) if isinstance(value, str) else None
        if found is None or float(found[1]) > MOST_PERCENT:
            self.fail(f"{value!r} is no share: expected percent up to {MOST_PERCENT:g}%, such as 3%.", param, ctx)
        return float(found[1]) / 100


def is_given(ctx: click.Context, name: str) -> bool:
    """Whether the command line has the option whose parameter is called so."""
    return ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def family_names(text: str | None) -> tuple[str, ...]:
    """The families that the option names; none where it is not given. InputError for an unknown one."""
    return () if text is None else tuple(family_named(name.strip()).name for name in text.split(","))


def problems_of(shapes: str, dtypes: str, ops: str, layout: str, math: str = MATHS[0]) -> tuple[Problem, ...]:
    """The problems that the options spell: every shape in every dtype and op, and problems as they are printed."""
    names = tuple(dict.fromkeys(dtype_with(math, name.strip()) for name in dtypes.split(",")))
    spelt = tuple(dict.fromkeys(op.strip() for op in ops.split(",")))
    found = dict[Problem, None]()
    for item in items_of(shapes):
        problem = spelt_problem(item)
        found.update(
            dict.fromkeys(
                Problem(m, n, k, name, op_in(layout, op_of(op, name)))
                for m, n, k in parse_shapes(item)
                for name in names
                for op in spelt
            )
            if problem is None
            else {problem: None}
        )
        if len(found) > MOST_PROBLEMS:
            raise InputError(f"{shapes!r} makes more than {MOST_PROBLEMS} problems: name fewer at a time")
    return tuple(found)


def items_of(shapes: str) -> tuple[str, ...]:
    """The items of --shapes, those of files too. InputError where there is none."""
    items = (item.strip() for item in shapes.split(","))
    whole = ",".join(_items_of_file(item[1:]) if item.startswith("@") else item for item in items)
    found = tuple(item.strip() for item in whole.split(",") if item.strip())
    if not found:
        raise InputError(f"no shape in {shapes!r}: expected MxNxK, such as 20480x16x20480")
    return found


def spelt_problem(item: str) -> Problem | None:
    """The problem, where the item spells one as it is printed: MxNxK:DTYPE or MxNxK:DTYPE:OP."""
    return Problem.parse(item) if _PROBLEM.fullmatch(item) else None


def dtype_name(name: str) -> str:
    """The name of a Dtype or of elements. InputError, with what may be meant, where it is none."""
    if name not in DTYPES and name not in ELEMENT_TYPES:
        hint = SPELT_OTHERWISE.get(name.lower())
        meant = f"did you mean {hint}?" if hint else f"expected one of {', '.join(ELEMENT_TYPES)}"
        raise InputError(f"unknown dtype {name!r}: {meant}")
    return name


def dtype_with(math: str, name: str) -> str:
    """The name of the Dtype whose products are computed so. InputError where the type has no such products."""
    if name in MATHS:
        raise InputError(f"unknown dtype {name!r}: that is how f32 may be multiplied: --dtype f32 --math {name}")
    if name in DTYPES and name not in ELEMENT_TYPES:
        raise InputError(f"unknown dtype {name!r}: expected one of {', '.join(ELEMENT_TYPES)}")
    dtype_name(name)
    known = {dtype.element_name: dtype.name for dtype in DTYPES.values() if dtype.math == math}
    if name not in known:
        raise InputError(
            f"--math {math} with --dtype {name}: it is for {' and '.join(known)} alone;"
            " name that, or leave --math out"
        )
    return known[name]


def op_of(text: str, dtype_name: str) -> str:
    """The op that `text` spells for elements of this type."""
    if text != GRAM:
        return text
    of_real, of_complex = gram_ops()
    return of_complex if dtype_named(dtype_name).is_complex else of_real


def gram_ops() -> tuple[str, ...]:
    """What GRAM spells for real and for complex elements."""
    return "t" + SAME, "c" + SAME


def op_in(layout: str, op: str) -> str:
    """The op where matrices lie as `layout` says. Row-major ones are transposed to BLAS, and so is C then."""
    if layout == "column":
        return op
    letters = "".join(OP_LETTERS)
    if not re.fullmatch(f"[{letters}][{letters}{SAME}]", op):
        raise InputError(
            f"op {op!r} with --layout row: expected two of the letters {', '.join(OP_LETTERS)}, for A and B,"
            f" or {SAME} for B where that is A's matrix, as the layout says how C lies"
        )
    return op.translate(OPPOSITE) + "t"


def thresholds_of(text: str | None) -> Thresholds:
    """The thresholds that --guidelines moves; none where it is not given."""
    return parse_thresholds(text or "")


def computable(problems: Sequence[Problem], families: Sequence[str]) -> tuple[Problem, ...]:
    """The problems; InputError where no kernel family computes one of them, or none of those named."""
    for problem in problems:
        able = [name for name, family in FAMILIES.items() if family.supports(problem)]
        if not able:
            raise InputError(f"no kernel family computes {problem.text}: choose another --op, --dtype or shape")
        if families and not set(families) & set(able):
            raise InputError(
                f"{problem.text} is computed by {', '.join(able)}, not by {', '.join(families)}:"
                " name another --family, --op, --dtype, --math or shape"
            )
    return tuple(problems)


def _items_of_file(name: str) -> str:
    """The items of a shapes file, separated by commas; InputError where it has none."""
    items = ",".join(line.partition("#")[0] for line in _shapes_file(name).splitlines())
    if not items.strip(", \t"):
        raise InputError(f"shapes file {name!r} holds no shape: expected MxNxK items, such as 20480x16x20480")
    return items


def _shapes_file(name: str) -> str:
    """The text of a shapes file; InputError where it is no regular file, too large, or no text."""
    try:
        if not stat.S_ISREG(os.stat(name).st_mode):  # before opening it: a pipe would wait, a device never end
            raise InputError(f"shapes file {name!r} is no regular file: name a text file that holds MxNxK items")
        with Path(name).open("rb") as file:
            content = file.read(MOST_SHAPES_BYTES + 1)
        if len(content) > MOST_SHAPES_BYTES:
            raise InputError(f"shapes file {name!r} has more than {MOST_SHAPES_BYTES} bytes: name fewer shapes")
        return content.decode()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InputError(f"shapes file {name!r} cannot be read: {reason}") from None


math_option = click.option(
    "--math",
    type=click.Choice(MATHS),
    default=MATHS[0],
    show_default=True,
    help="How elements are multiplied: full, in their own precision; tf32, f32 on tensor cores, 11 bits of each"
    " factor; 3xtf32, on them in three products, nearly as exact as f32; minplus, in f32 and f64, by sums, of which"
    " the least is taken.",
)


layout_option = click.option(
    "--layout",
    type=click.Choice(LAYOUTS),
    default="column",
    show_default=True,
    help="What --op calls n: row takes every matrix as row-major, C too, so that nn is ttt and tn is ntt.",
)


def shapes_options(required: bool) -> Callable[[F], F]:
    """--shapes, --dtype, --math, --op and --layout, together."""

    def decorate(function: F) -> F:
        """The command with these options."""
        function = layout_option(function)
        function = click.option(
            "--op",
            "ops",
            default="nn",
            show_default=True,
            metavar="OP,...",
            help=f"How the matrices lie, separated by commas. {OP_SPELLING}",
        )(function)
        function = math_option(function)
        function = click.option(
            "--dtype",
            "dtypes",
            default="f32",
            show_default=True,
            help=f"Element types, separated by commas: {', '.join(ELEMENT_TYPES)}.",
        )(function)
        return click.option("--shapes", required=required, metavar="MxNxK,...", help=SPELLING)(function)

    return decorate


def family_options(function: F) -> F:
    """--family and --guidelines, together."""
    function = click.option(
        "--guidelines",
        metavar="NAME=VALUE,...",
        help="Move thresholds of the guideline rules: a lower one keeps more configurations, a higher one fewer, and"
        " those that are not named stay each family's own. none takes all of them away, none,min-reuse=4 all but"
        " that."
        f" [default: {Guidelines().text}; of gemm those that leave hundreds of configurations; `space` prints them]",
    )(function)
    unasked = ", ".join(name for name, family in FAMILIES.items() if family.only_by_name)
    return click.option(
        "--family",
        "families",
        metavar="NAME,...",
        help=f"Only these kernel families: {', '.join(FAMILIES)}. Without it all of them but {unasked}.",
    )(function)


def database_option_of(default: str) -> Callable[[F], F]:
    """--db, with this file where it is not given."""
    return click.option(
        "--db",
        "database",
        default=default,
        show_default=True,
        type=click.Path(dir_okay=False),
        help="The tuning database.",
    )


database_option = database_option_of(DEFAULT_DATABASE)
device_option = click.option(
    "--device", "spec", help="CUDA ordinal, or cpu. [default: GPU 0 if there is one, else cpu]"
)
planning_device_option = click.option(
    "--device",
    "spec",
    help=f"CUDA ordinal, cpu, or a card: {', '.join(PROFILES)}. [default: GPU 0, else cpu]",
)
wait_option = click.option(
    "--wait", is_flag=True, help="Where another run uses the device, wait until that has ended."
)
vendor_option = click.option(
    "--no-vendor", is_flag=True, help="Measure no cuBLAS and cuBLASLt beside the fastest kernels."
)
pairs_option = click.option(
    "--pairs/--no-pairs",
    default=True,
    show_default=True,
    help="Whether each winner's kernel, and kernels for shapes between, are measured at the other tuned shapes too,"
    " beyond --budget and --max-trials.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def cache_option(default: Cache | None, about: str) -> Callable[[F], F]:
    """--cache, a state of the L2, which is this one where it is not given."""
    return click.option(
        "--cache",
        type=click.Choice([one.value for one in Cache]),
        default=None if default is None else default.value,
        show_default=default is not None,
        callback=lambda ctx, param, value: None if value is None else Cache(value),
        help=about,
    )


def within_options(function: F) -> F:
    """--within and --no-measure."""
    for option in (
        click.option("--no-measure", is_flag=True, help="With --within: choose by what was measured before."),
        click.option(
            "--within",
            type=Percent(),
            metavar="PERCENT",
            help="Only the fewest kernels that keep each shape within so much of its best time, such as 3%. What has"
            " to be known for that is measured where the device is here.",
        ),
    ):
        function = option(function)
    return function


def tuning_options(function: F) -> F:
    """The fields of tune.Options under their names: how much to try, how patiently, and in which state of the L2."""
    for option in (
        cache_option(
            Cache.DIRTY,
            "What is in a GPU's L2 before a trial is timed: clean, what was read before; dirty, what was written, as"
            " in most programs; warm, the operands that fit. Finals measure clean and dirty too.",
        ),
        click.option(
            "--run-limit",
            "run_limit_seconds",
            type=Seconds(min=0, min_open=True, max=MOST_LIMIT_SECONDS),
            default=60.0,
            show_default=True,
            metavar="SECONDS",
            help="For each stage of a trial: verifying, timing.",
        ),
        click.option(
            "--compile-limit",
            "compile_limit_seconds",
            type=Seconds(min=0, min_open=True, max=MOST_LIMIT_SECONDS),
            default=120.0,
            show_default=True,
            metavar="SECONDS",
            help="For compiling one configuration.",
        ),
        click.option(
            "--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Of inputs and order."
        ),
        click.option(
            "--max-trials",
            type=click.IntRange(min=1),
            metavar="N",
            help="Configurations for each problem, those of earlier runs included.",
        ),
        click.option(
            "--budget",
            "budget_seconds",
            type=Seconds(min=0, max=MOST_BUDGET_SECONDS),
            default=DEFAULT_BUDGET_SECONDS,
            show_default=True,
            metavar="SECONDS",
            callback=lambda ctx, param, seconds: seconds or None,
            help="Time for each problem, that of earlier runs included; 0 is no limit.",
        ),
    ):
        function = option(function)
    return function
