"""Parsers and checks for arguments of commands and API functions: types, ops, families, thresholds, outcomes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from numbers import Integral
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias

from tsm2_tune.errors import InputError, nearest_name, shown
from tsm2_tune.generator.dtypes import DTYPE_ALIASES, DTYPES, ELEMENT_TYPES, MATHS, dtype_named, unknown_dtype
from tsm2_tune.generator.problem import OP_LETTERS, SAME, Problem
from tsm2_tune.generator.scalars import plain_text, real, whole
from tsm2_tune.generator.space.guidelines import NO_GUIDELINES, Guidelines, Thresholds, option_name, parse_thresholds
from tsm2_tune.tuner.results.storage.addresses import DEFAULT_DATABASE as DEFAULT_DATABASE
from tsm2_tune.tuner.results.trial import Cache, Outcome

if TYPE_CHECKING:  # a command line is parsed without NumPy
    import numpy as np

LADDER_DATABASE = "ladder.db"  # separate, so that no export contains the kernels that `ladder` tunes for teaching
LARGE = 8192  # m, n and k of a matrix product that is not skinny
LARGE_SQUARE = f"{LARGE}x{LARGE}x{LARGE}"
DEFAULT_BUDGET_SECONDS = 120.0
MOST_BUDGET_SECONDS = 1e9  # 30 years
DEFAULT_COMPILE_LIMIT_SECONDS = 120.0
DEFAULT_RUN_LIMIT_SECONDS = 60.0
MOST_LIMIT_SECONDS = 86400.0  # a day
LAYOUTS = ("column", "row")
ORDERS = {  # strategy -> the order in which it tries configurations
    "model": "what was fast for similar shapes first, then by expected time",
    "exhaustive": "the order of `space --list`",
    "random": "any",
}
STRATEGIES = (*ORDERS, "optuna:tpe", "optuna:nsgaii")
EXCHANGE = ("t4", "kernel-tuner-cache")  # formats of other autotuners
FORMATS = ("module", "csv", "json", "markdown", "latex", "trials", *EXCHANGE, "library")  # of exports
FORMAT_OF_ENDING = {
    ".py": "module", ".so": "library", ".csv": "csv", ".json": "json", ".md": "markdown", ".tex": "latex",
    ".jsonl": "trials",
}  # fmt: skip
OPPOSITE = str.maketrans("ntcj", "tnjc")
GRAM = "gram"
MOST_SEED = 2**31 - 1
MOST_WITHIN = 10.0  # the largest --within, as a share of the best time
MOST_HOURS = 1000.0  # the largest --hours
MOST_GAIN = 1.0  # the largest --gain, as a share of the best time
FAILED = "failed"
STORED_OUTCOMES = tuple(one for one in Outcome if one is not Outcome.INTERRUPTED)
FAILURES = tuple(one for one in STORED_OUTCOMES if one not in (Outcome.OK, Outcome.BEHIND))
REACH = 1.06  # a trial ends early if its first launches take longer than this multiple of the best time so far
_PERCENT = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,6})?) ?%", re.ASCII)
OP_SYNTAX = (
    "Two letters, for A and B, as in BLAS: n means not transposed, t transposed, and for complex types c conjugate"
    " transposed, j conjugated. A third letter t means that C is row-major. An x for B means that B is the same"
    f" matrix as A, as in BLAS's syrk and herk: tx is X^T X, cx is X^H X, and {GRAM} is tx for real types and cx"
    " for complex types."
)

Texts = str | Iterable[str]  # a text with commas, or several texts
ElementType: TypeAlias = "str | type[np.generic] | np.dtype[Any]"
ElementTypes: TypeAlias = "ElementType | Iterable[ElementType]"


def texts(what: str, value: Texts) -> str:
    """Return a text, or several texts joined by commas. Raise InputError, which names `what`, for other values."""
    try:
        return plain_text(what, value) if isinstance(value, str) else ",".join(value)
    except TypeError:
        raise InputError(f"{what} = {shown(value)}: expected a text or several texts") from None


def dtype_texts(value: ElementTypes) -> str:
    """Return the names of element types joined by commas. Raise InputError for a value that is no type."""
    try:
        is_one = isinstance(value, str | type) or hasattr(value, "type")  # NumPy's dtype has the attribute
        several: Iterable[Any] = [value] if is_one else value  # type: ignore[assignment]
        return ",".join(map(_element_name, several))
    except TypeError:
        raise InputError(f"dtype = {shown(value)}: expected a text, a NumPy type, or several of these") from None


def _element_name(one: Any) -> str:
    """Return tsm2-tune's name of a NumPy type. Return any other object unchanged."""
    scalar = getattr(one, "type", one)
    is_numpys = isinstance(scalar, type) and any(base.__module__ == "numpy" for base in scalar.__mro__)
    name: str = canonical_dtype(scalar.__name__) if is_numpys else one  # join raises TypeError if it is no text
    return name


def canonical_dtype(name: str) -> str:
    """Return tsm2-tune's name of an element type, such as f32 for float32, and an unknown name unchanged."""
    lower = name.strip().lower()
    return DTYPE_ALIASES.get(lower, lower if lower in DTYPES else name.strip())


def file_name(what: str, name: str | PathLike[str]) -> str:
    """Return the name of a file as a str. Raise InputError, which names `what`, unless it is a str or a path."""
    if not isinstance(name, str | PathLike):
        raise InputError(f"{what} = {shown(name)}: expected the name of a file")
    return plain_text(what, os.fsdecode(name))


def device_name(device: object) -> str:
    """Return a device's name or CUDA ordinal as a str. Raise InputError for another type."""
    return plain_text("device", device) if isinstance(device, str) else str(whole("device", device))


def check_callable(what: str, function: object) -> None:
    """Raise InputError, which names `what`, unless `function` is None or callable."""
    if function is not None and not callable(function):
        raise InputError(f"{what} = {shown(function)}: expected a function, or None")


def joined(what: str, names: Texts | None) -> str | None:
    """Return the names joined by commas; None without names. Raise InputError, which names `what`, otherwise."""
    if names is None:
        return None
    return texts(what, names) if isinstance(names, str) else texts(what, names) or None


def family_names(names: Texts | None) -> tuple[str, ...]:
    """Return the names of kernel families as a tuple, empty for None. Raise InputError for an unknown family."""
    names = joined("family", names)
    found = () if names is None else tuple(name.strip() for name in names.split(","))
    for name in found:
        check_family(name)
    return found


def check_family(name: str) -> None:
    """Raise InputError if no kernel family has this name."""
    from tsm2_tune.generator.families import FAMILIES

    check_named("family", name, list(FAMILIES))


def check_named(what: str, name: str, known: Sequence[str]) -> None:
    """Raise InputError, which names `what`, if the name is not among the known names."""
    if not isinstance(name, str) or name not in known:
        raise InputError(f"unknown {what} {shown(name)}: expected one of {', '.join(known)}{hint_of(name, known)}")


def hint_of(name: object, known: Sequence[str]) -> str:
    """Return the end of an error message that suggests a similar known name; "" if there is none."""
    near = nearest_name(name, known)
    return f"; did you mean {near}?" if near else ""


def dtype_name(name: str) -> str:
    """Return tsm2-tune's name of a Dtype, such as f32 for float32. Raise InputError if it is unknown."""
    return dtype_named(canonical_dtype(name)).name


def dtype_with(math: str, name: str) -> str:
    """Return the name of the Dtype with this element type and arithmetic. Raise InputError if there is none."""
    name = canonical_dtype(name)
    if name in MATHS:
        raise InputError(f"unknown dtype {name!r}: it is an arithmetic, not a type; use --dtype f32 --math {name}")
    if name not in ELEMENT_TYPES:
        raise unknown_dtype(name)
    known = {dtype.element_name: dtype.name for dtype in DTYPES.values() if dtype.math == math}
    if name not in known:
        raise InputError(
            f"--math {math} with --dtype {name}: this arithmetic is only for {' and '.join(known)};"
            " change --dtype, or leave --math out"
        )
    return known[name]


def canonical_op(text: str) -> str:
    """Return the op in lower case. Capitals are allowed, as in BLAS."""
    return text.strip().lower()


def op_of(text: str, dtype_name: str) -> str:
    """Return the op. The text "gram" becomes the op of X^T X for real elements, and of X^H X for complex elements."""
    if text != GRAM:
        return text
    of_real, of_complex = gram_ops()
    return of_complex if dtype_named(dtype_name).is_complex else of_real


def gram_ops() -> tuple[str, ...]:
    """Return the two ops that "gram" stands for: X^T X for real elements, and X^H X for complex elements."""
    return "t" + SAME, "c" + SAME


def op_in(layout: str, op: str) -> str:
    """Return the op with each letter replaced by the one for matrices in this layout, "column" or "row".

    Raise InputError if the layout is "row" and the op already has a letter for C, or is invalid.
    """
    if layout == "column":
        return op
    letters = "".join(OP_LETTERS)
    if not re.fullmatch(f"[{letters}][{letters}{SAME}]", op):
        raise InputError(
            f"op {op!r} with --layout row: expected two of the letters {', '.join(OP_LETTERS)}, for A and B,"
            f" or {SAME} for B if it is the same matrix as A; --layout sets the order of C"
        )
    return op.translate(OPPOSITE) + "t"


def thresholds_of(guidelines: str | Thresholds | None) -> Thresholds:
    """Return the thresholds of a text of --guidelines or of a mapping; none for None. Raise InputError if invalid."""
    if isinstance(guidelines, Mapping):
        guidelines = ",".join(f"{name}={_number(name, value)}" for name, value in guidelines.items())
    elif not isinstance(guidelines, str | None):
        raise InputError(f"guidelines = {shown(guidelines)}: expected a text, or a mapping from names to thresholds")
    text = guidelines or ""
    known = [*(option_name(field.name) for field in fields(Guidelines)), NO_GUIDELINES]
    for name in filter(None, (item.partition("=")[0].strip() for item in text.split(","))):
        check_named("guideline", option_name(name), known)
    return parse_thresholds(text)


def _number(name: str, value: object) -> int | float:
    """Return the threshold called `name` as an int or a float. Raise InputError for another type."""
    return whole(name, value) if isinstance(value, Integral) else real(name, value)


def positive(name: str, value: float, most: float, unit: str = "seconds", *, may_be_zero: bool = False) -> float:
    """Return the value of the argument `name`. Raise InputError unless 0 < value <= most, or 0 if `may_be_zero`."""
    expected = f"{unit}, above 0 and at most {most:g}"
    number = real(name, value, expected)
    if not (0 < number <= most or (may_be_zero and number == 0)):
        raise InputError(f"{name} = {shown(value)}: expected {expected}")
    return number


def share_of(text: str, most: float) -> float:
    """Return a percentage such as 3% or 0.5% as a share. Raise InputError if it exceeds `most` or is invalid."""
    found = _PERCENT.fullmatch(text)
    if found is None or float(found[1]) > 100 * most:
        raise InputError(f"{text!r} is no percentage: expected at most {100 * most:g}%, such as 3%")
    return float(found[1]) / 100


def checked_share(what: str, value: float | str | None, most: float) -> float | None:
    """Return a share of at most `most`, given as a number or as "3%"; None for None. Else raise InputError."""
    if isinstance(value, str):
        return share_of(value, most)
    if value is None:
        return None
    try:
        share = real(what, value)
    except InputError:
        share = -1.0
    if share == 0 or (0 < share <= min(most, 1) and not isinstance(value, Integral)):  # int 1 may mean 1 %
        return share
    expected = "a share from 0.0 to 1.0, such as 0.03, or a percentage as text, such as '3%'"
    raise InputError(f"{what} = {shown(value)}: expected {expected}")


def cache_named(name: str | None) -> Cache | None:
    """Return the state of the L2 cache with this name; None for None. Raise InputError for an unknown name."""
    if name is not None:
        check_named("cache", name, [one.value for one in Cache])
    return None if name is None else Cache(name)


def outcomes_of(names: Texts | None, known: Sequence[Outcome]) -> frozenset[Outcome]:
    """Return the named outcomes; "failed" is all failures. Raise InputError for a name that is not among `known`."""
    names = joined("retry", names)
    if names is None:
        return frozenset()
    named = {one.value: frozenset({one}) for one in known} | {FAILED: frozenset(FAILURES)}
    asked = [name.strip() for name in names.split(",")]
    for name in asked:
        check_named("outcome", name, list(named))
    return frozenset().union(*(named[name] for name in asked))


def computable(problems: Sequence[Problem], families: Sequence[str]) -> tuple[Problem, ...]:
    """Return the problems as a tuple. Raise InputError if one is computed by no family, or by none of the named."""
    from tsm2_tune.generator.families import FAMILIES, computed_by_none, families_for  # slow to import

    for problem in problems:
        able = families_for(problem)
        if not able:
            raise InputError(computed_by_none(problem))
        if families and not set(families) & set(able):
            lacking = "; ".join(filter(None, (FAMILIES[name].lacks(problem) for name in families)))
            raise InputError(
                f"{problem.text} is computed by {', '.join(able)}, not by {', '.join(families)}"
                f"{lacking and f' ({lacking})'}: name another --family, --op, --dtype, --math or shape"
            )
    return tuple(problems)
