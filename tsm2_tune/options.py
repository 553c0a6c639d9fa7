"""What the texts spell that the command and the library are given: problems, families, thresholds, outcomes."""

from __future__ import annotations

import codecs
import os
import re
import select
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from numbers import Integral
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias

from tsm2_tune.errors import InputError, nearest_name, shown
from tsm2_tune.generator.former_names import FORMER_NAMES
from tsm2_tune.generator.guidelines import NO_GUIDELINES, Guidelines, Thresholds, parse_thresholds, spelt
from tsm2_tune.generator.plain import plain_text, real, whole
from tsm2_tune.generator.problem import (
    DTYPES,
    ELEMENT_TYPES,
    MATHS,
    OP_LETTERS,
    SAME,
    SPELT_OTHERWISE,
    Problem,
    dtype_named,
    unknown_dtype,
)
from tsm2_tune.generator.shapes import parse_shapes
from tsm2_tune.tuner.trial import Cache, Outcome

if TYPE_CHECKING:  # a command line is parsed without it
    import numpy as np

DEFAULT_DATABASE = "results.db"
LADDER_DATABASE = "ladder.db"  # apart, so that no teaching kernel is exported as the best one of a shape
LARGE = 8192  # extents of a product that is not skinny
LARGE_SQUARE = f"{LARGE}x{LARGE}x{LARGE}"
MOST_SHAPES_BYTES = 16_000_000  # of a shapes file, in which MOST_PROBLEMS find room with what is said of them
MOST_SHAPES_SECONDS = 60.0  # in which a shapes file is read, as a pipe's writer may be slow
STANDARD_INPUT = ("-", "/dev/stdin")
DEFAULT_BUDGET_SECONDS = 120.0
MOST_BUDGET_SECONDS = 1e9  # 30 years
DEFAULT_COMPILE_LIMIT_SECONDS = 120.0
DEFAULT_RUN_LIMIT_SECONDS = 60.0
MOST_LIMIT_SECONDS = 86400.0  # a day
LAYOUTS = ("column", "row")
STRATEGIES = ("model", "exhaustive", "random", "optuna:tpe", "optuna:nsgaii")
EXCHANGE = ("t4", "kernel-tuner-cache")  # formats of other autotuners
FORMATS = ("module", "csv", "json", "markdown", "latex", "trials", *EXCHANGE, "library")  # of exports
FORMAT_OF_ENDING = {
    ".py": "module", ".so": "library", ".csv": "csv", ".json": "json", ".md": "markdown", ".tex": "latex",
    ".jsonl": "trials",
}  # fmt: skip
OPPOSITE = str.maketrans("ntcj", "tnjc")
GRAM = "gram"
MOST_SEED = 2**31 - 1
MOST_PROBLEMS = 100_000
MOST_WITHIN = 10.0  # of the best time, that may be lost
MOST_GAIN = 1.0  # of the best time, that a search must be expected to gain
FAILED = "failed"
STORED_OUTCOMES = tuple(one for one in Outcome if one is not Outcome.INTERRUPTED)
FAILURES = tuple(one for one in STORED_OUTCOMES if one not in (Outcome.OK, Outcome.BEHIND))
REACH = 1.06  # times as long as the fastest so far: a trial whose first launches take longer ends there
_PERCENT = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,6})?) ?%", re.ASCII)
_LINE_END = re.compile(r"\r\n|\r|\n")
_SPACED = re.compile(r" *([xX]) *")
_PROBLEM = re.compile(r"\d{1,10}x\d{1,10}x\d{1,10}:(?:[a-z]\w*|3xtf32)(?::\w+)?", re.ASCII | re.IGNORECASE)
OP_SPELLING = (
    "A letter for A and one for B, as in BLAS: n as it is, t transposed, and of complex numbers c conjugate"
    " transposed, j conjugated. A third letter, t, if C is row-major. x for B's letter if B is the matrix of A,"
    f" as in BLAS's syrk and herk: {GRAM} is tx, X^T X, and of complex numbers cx, X^H X."
)

Texts = str | Iterable[str]  # a text with commas, or the texts between them
ElementType: TypeAlias = "str | type[np.generic] | np.dtype[Any]"
ElementTypes: TypeAlias = "ElementType | Iterable[ElementType]"
Products = str | Problem | Iterable[str | Problem]


def texts(what: str, value: Texts) -> str:
    """Texts in a row, separated by commas, as a command line has them. InputError for what is none."""
    try:
        return plain_text(what, value) if isinstance(value, str) else ",".join(value)
    except TypeError:
        raise InputError(f"{what} = {shown(value)}: expected a text or several") from None


def dtype_texts(value: ElementTypes) -> str:
    """Names of element types in a row, separated by commas: NumPy's types have ours. InputError for what is none."""
    try:
        is_one = isinstance(value, str | type) or hasattr(value, "type")  # as a dtype of NumPy's has
        several: Iterable[Any] = [value] if is_one else value  # type: ignore[assignment]
        return ",".join(map(_element_name, several))
    except TypeError:
        raise InputError(f"dtype = {shown(value)}: expected a text, a type of NumPy's, or several") from None


def _element_name(one: Any) -> str:
    """The text, or the name of NumPy's type."""
    scalar = getattr(one, "type", one)
    is_numpys = isinstance(scalar, type) and any(base.__module__ == "numpy" for base in scalar.__mro__)
    name: str = dtype_spelt(scalar.__name__) if is_numpys else one  # which join refuses, if it is no text
    return name


def dtype_spelt(name: str) -> str:
    """Our name of an element type, such as f32 for float32, single, fp32 or F32; a name that none has as it is."""
    lower = name.strip().lower()
    return SPELT_OTHERWISE.get(lower, lower if lower in DTYPES else name.strip())


def file_name(what: str, name: str | PathLike[str]) -> str:
    """The name of a file. InputError for what is neither a text nor a path."""
    if not isinstance(name, str | PathLike):
        raise InputError(f"{what} = {shown(name)}: expected the name of a file")
    return plain_text(what, os.fsdecode(name))


def device_name(device: object) -> str:
    """The device as a command line has it: a CUDA ordinal's digits, or a text. InputError for anything else."""
    return plain_text("device", device) if isinstance(device, str) else str(whole("device", device))


def check_callable(what: str, function: object) -> None:
    """InputError for what is neither None nor can be called."""
    if function is not None and not callable(function):
        raise InputError(f"{what} = {shown(function)}: expected a function, or None")


def joined(what: str, names: Texts | None) -> str | None:
    """The names in a row, separated by commas; None where there are none. InputError for what is no text."""
    if names is None:
        return None
    return texts(what, names) if isinstance(names, str) else texts(what, names) or None


def family_names(names: Texts | None) -> tuple[str, ...]:
    """The families that are named; none where none are. InputError for an unknown one."""
    names = joined("family", names)
    found = () if names is None else tuple(name.strip() for name in names.split(","))
    for name in found:
        check_family(name)
    return found


def check_family(name: str) -> None:
    """InputError where no family is called so; of a family of an older version it says what it is called now."""
    from tsm2_tune.generator.families import FAMILIES, family_named

    if name in FORMER_NAMES:
        family_named(name)
    check_named("family", name, list(FAMILIES))


def problems_of(
    products: Products, dtypes: ElementTypes, ops: Texts, layout: str, math: str = MATHS[0]
) -> tuple[Problem, ...]:
    """Problems as they are, and those that texts spell: every shape in every dtype and op, and problems as they are
    printed. InputError for a text that spells none.
    """
    check_named("layout", layout, LAYOUTS)
    check_named("math", math, MATHS)
    names = tuple(dict.fromkeys(dtype_with(math, name) for name in dtype_texts(dtypes).split(",")))
    several = tuple(dict.fromkeys(op_spelt(op) for op in texts("op", ops).split(",")))
    found = dict[Problem, None]()
    for item in items(products):
        problem = spelt_problem(item) if isinstance(item, str) else item
        found.update(
            dict.fromkeys(
                Problem(m, n, k, name, op_in(layout, op_of(op, name)))
                for m, n, k in parse_shapes(str(item))
                for name in names
                for op in several
            )
            if problem is None
            else {problem: None}
        )
        if len(found) > MOST_PROBLEMS:
            raise InputError(f"{str(products)!r} makes more than {MOST_PROBLEMS} problems: name fewer at a time")
    return tuple(found)


def items(products: Products) -> Iterator[str | Problem]:
    """Problems, and the items of texts one by one. InputError where there is none, and for anything else."""
    try:
        every = [products] if isinstance(products, str | Problem) else list(products)
    except TypeError:
        raise InputError(f"products = {products!r}: expected texts, such as '20480x16x20480', or Problems") from None
    if not every:
        raise InputError("no product: name one, such as '20480x16x20480'")
    for product in every:
        if isinstance(product, Problem):
            yield product
        elif isinstance(product, str):
            yield from items_of(product)
        else:
            raise InputError(f"product {product!r}: expected a text, such as '20480x16x20480', or a Problem")


def check_named(what: str, name: str, known: Sequence[str]) -> None:
    """InputError where the name is none of those that are known."""
    if not isinstance(name, str) or name not in known:
        raise InputError(f"unknown {what} {shown(name)}: expected one of {', '.join(known)}{hint_of(name, known)}")


def hint_of(name: object, known: Sequence[str]) -> str:
    """The end of a sentence, which says which of the known names may be meant; empty where none is near."""
    near = nearest_name(name, known)
    return f"; did you mean {near}?" if near else ""


def items_of(shapes: str) -> tuple[str, ...]:
    """The items of --shapes, those of files too. InputError where there is none."""
    items = (item.strip() for item in shapes.split(","))
    whole = ",".join(_items_of_file(item[1:]) if item.startswith("@") else item for item in items)
    found = tuple(_SPACED.sub(r"\1", item.strip()) for item in whole.split(",") if item.strip())
    if not found:
        raise InputError(f"no shape in {shapes!r}: expected MxNxK, such as 20480x16x20480")
    return found


def spelt_problem(item: str) -> Problem | None:
    """The problem, where the item spells one as it is printed: MxNxK:DTYPE or MxNxK:DTYPE:OP."""
    if not _PROBLEM.fullmatch(item):
        return None
    shape, dtype, *op = item.split(":")
    return Problem.parse(":".join([shape.lower(), dtype_spelt(dtype), *map(op_spelt, op)]))


def dtype_name(name: str) -> str:
    """The name of a Dtype. InputError, with what may be meant, where it is none."""
    return dtype_named(dtype_spelt(name)).name


def dtype_with(math: str, name: str) -> str:
    """The name of the Dtype whose products are computed so. InputError where the type has no such products."""
    name = dtype_spelt(name)
    if name in MATHS:
        raise InputError(f"unknown dtype {name!r}: that is how f32 may be multiplied: --dtype f32 --math {name}")
    if name not in ELEMENT_TYPES:
        raise unknown_dtype(name)
    known = {dtype.element_name: dtype.name for dtype in DTYPES.values() if dtype.math == math}
    if name not in known:
        raise InputError(
            f"--math {math} with --dtype {name}: it is for {' and '.join(known)} alone;"
            " name that, or leave --math out"
        )
    return known[name]


def op_spelt(text: str) -> str:
    """The op as we spell it: BLAS has capital letters."""
    return text.strip().lower()


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


def thresholds_of(guidelines: str | Thresholds | None) -> Thresholds:
    """The thresholds that are moved, or that the text of --guidelines moves; none without. InputError for others."""
    if isinstance(guidelines, Mapping):
        guidelines = ",".join(f"{name}={_number(name, value)}" for name, value in guidelines.items())
    elif not isinstance(guidelines, str | None):
        raise InputError(f"guidelines = {shown(guidelines)}: expected a text, or thresholds by their names")
    text = guidelines or ""
    known = [*(spelt(field.name) for field in fields(Guidelines)), NO_GUIDELINES]
    for name in filter(None, (item.partition("=")[0].strip() for item in text.split(","))):
        check_named("guideline", spelt(name), known)
    return parse_thresholds(text)


def _number(name: str, value: object) -> int | float:
    """The value of a guideline as one of Python's numbers, whose text is read then."""
    return whole(name, value) if isinstance(value, Integral) else real(name, value)


def share_of(text: str, most: float) -> float:
    """The share that is spelt in percent: 3%, 0.5%. InputError where none is, or more than the most."""
    found = _PERCENT.fullmatch(text)
    if found is None or float(found[1]) > 100 * most:
        raise InputError(f"{text!r} is no share: expected percent up to {100 * most:g}%, such as 3%")
    return float(found[1]) / 100


def checked_share(what: str, value: float | str | None, most: float) -> float | None:
    """A share, up to the most, or a text that `share_of` reads; None of None. InputError for anything else."""
    if isinstance(value, str):
        return share_of(value, most)
    if value is None:
        return None
    try:
        share = real(what, value)
    except InputError:
        share = -1.0
    if share == 0 or (0 < share <= min(most, 1) and not isinstance(value, Integral)):  # 1 may be meant for 1 %
        return share
    expected = "a share from 0.0 to 1.0, such as 0.03, which is 3 %, or a text such as '3%'"
    raise InputError(f"{what} = {shown(value)}: expected {expected}")


def cache_named(name: str | None) -> Cache | None:
    """The state of the L2 that is called so, None of None. InputError for an unknown one."""
    if name is not None:
        check_named("cache", name, [one.value for one in Cache])
    return None if name is None else Cache(name)


def outcomes_of(names: Texts | None, known: Sequence[Outcome]) -> frozenset[Outcome]:
    """The outcomes that are named, of those that are known; none where none are. InputError for another."""
    names = joined("retry", names)
    if names is None:
        return frozenset()
    named = {one.value: frozenset({one}) for one in known} | {FAILED: frozenset(FAILURES)}
    asked = [name.strip() for name in names.split(",")]
    for name in asked:
        check_named("outcome", name, list(named))
    return frozenset().union(*(named[name] for name in asked))


def computable(problems: Sequence[Problem], families: Sequence[str]) -> tuple[Problem, ...]:
    """The problems; InputError where no kernel family computes one of them, or none of those named."""
    from tsm2_tune.generator.families import FAMILIES  # which takes as long to load as all the rest

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
    """Return the items of a shapes file, separated by commas. InputError where it has none."""
    items = ",".join(line.partition("#")[0] for line in _LINE_END.split(_shapes_text(name)))
    if not items.strip(", \t"):
        raise InputError(f"shapes file {name!r} holds no shape: expected MxNxK items, such as 20480x16x20480")
    return items


def _shapes_text(name: str) -> str:
    """Return the text of a shapes file, without marks of byte order. InputError where it is no text."""
    content = _shapes_content(name)
    is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = content.decode("utf-16" if is_utf16 else "utf-8")
    except UnicodeDecodeError:
        raise InputError(f"shapes file {name!r} cannot be read: it is no text") from None
    if "\0" in text:
        raise InputError(f"shapes file {name!r} cannot be read: it holds NUL characters; write it again as UTF-8")
    return text.replace("\ufeff", "")  # joined files have marks in the middle too


def _shapes_content(name: str) -> bytes:
    """Read a regular file, a pipe or standard input. InputError for others, and where it is too large or too slow."""
    try:
        if name in STANDARD_INPUT:
            return _content(0, name)
        found = os.stat(name)
        if not stat.S_ISREG(found.st_mode) and not stat.S_ISFIFO(found.st_mode):  # whose opening may already act
            raise InputError(f"shapes file {name!r} is no regular file: name a text file that holds MxNxK items")
        if stat.S_ISREG(found.st_mode) and not found.st_size:  # or one of the kernel's, which may wait when read
            return b""
        number = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return _content(number, name)
        finally:
            os.close(number)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no file can be called so"
        raise InputError(f"shapes file {name!r} cannot be read: {reason}") from None


def _content(number: int, name: str) -> bytes:
    """Read to the end of an open file. InputError past a number of bytes, and after a time."""
    ends, content, ready = time.monotonic() + MOST_SHAPES_SECONDS, bytearray(), select.poll()
    ready.register(number, select.POLLIN)
    while ready.poll(max(0.0, ends - time.monotonic()) * 1e3):
        part = os.read(number, 2**20)
        content += part
        if not part:
            return bytes(content)
        if len(content) > MOST_SHAPES_BYTES:
            raise InputError(f"shapes file {name!r} has more than {MOST_SHAPES_BYTES} bytes: name fewer shapes")
    raise InputError(
        f"shapes file {name!r} has no end within {MOST_SHAPES_SECONDS:g} s: write it whole, then name it"
    )
