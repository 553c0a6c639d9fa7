"""Thresholds of the guideline rules, and the option --guidelines, which changes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from tsm2_tune.errors import InputError
from tsm2_tune.generator.scalars import plain

NO_GUIDELINES = "none"  # the word in --guidelines that sets all thresholds to 0


@dataclass(frozen=True, slots=True)
@plain
class Guidelines:
    """Thresholds of the guideline rules, which drop configurations that are unlikely to be fast.

    A lower threshold keeps more configurations; 0 keeps all.

    BACUGen's guidelines (section 5.3) for Fermi are 512 threads and 2 blocks per multiprocessor. The defaults here
    are lower, since a memory-bound kernel needs enough bytes in flight (Little's law), not many threads.
    """

    min_threads_per_sm: int = 256  # resident threads per multiprocessor, to hide latency
    min_blocks_per_sm: int = 1  # if 2 or more, a block computes while another waits at a barrier; some winners have 1
    min_reuse: float = 4.0  # FMAs for each element of A loaded into a register, as far as n allows
    min_line_bytes: int = 0  # contiguous bytes that neighbouring threads load

    @property
    def text(self) -> str:
        """The thresholds in the form of --guidelines, such as min-threads-per-sm=256,min-blocks-per-sm=1."""
        values = ((option_name(field.name), getattr(self, field.name)) for field in fields(self))
        return ",".join(
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in values
        )

    def moved(self, thresholds: Thresholds) -> Guidelines:
        """Return a copy with these thresholds replaced."""
        return replace(self, **dict[str, Any](thresholds))


# Field name -> threshold that a user sets. Thresholds that are not set keep the family's value.
Thresholds = Mapping[str, float]


def option_name(name: str) -> str:
    """Return the name of a field in --guidelines, with dashes."""
    return name.replace("_", "-")


def parse_thresholds(text: str) -> dict[str, float]:
    """Parse --guidelines: `name=value,...`, where `none` as the first item sets all thresholds to 0.

    Return field name -> threshold. Names may have dashes or underscores. Raise InputError for an unknown or repeated
    name, and for an invalid value.
    """
    known = {field.name: field.type for field in fields(Guidelines)}
    items = [item for item in map(str.strip, text.split(",")) if item]
    if NO_GUIDELINES in items[1:]:
        raise InputError(f"guidelines {text!r}: {NO_GUIDELINES} removes all thresholds, so it must come first")
    start = dict.fromkeys(known, 0) if NO_GUIDELINES in items else {}
    values: dict[str, float] = {}
    for item in items[1:] if start else items:
        name, _, value = item.partition("=")
        key = name.strip().replace("-", "_")
        if key not in known:
            names = ", ".join(map(option_name, known))
            raise InputError(f"unknown guideline {name.strip()!r}: expected one of {names}, or {NO_GUIDELINES}")
        if key in values:
            raise InputError(f"guideline {name.strip()} is set twice: set it once")
        values[key] = _threshold(name.strip(), value, whole=known[key] == "int")
    return start | values


def _threshold(name: str, value: str, *, whole: bool) -> float:
    """Return `value` as a number of at least 0, an integer if `whole`. Raise InputError for another text."""
    try:
        if not value.isascii() or "_" in value:  # int() and float() accept these
            raise ValueError
        number = int(value) if whole else float(value)
    except ValueError:
        expected = "whole number" if whole else "number"
        raise InputError(f"guideline {name}={value!r}: expected a {expected}") from None
    if not 0 <= number < float("inf"):
        raise InputError(f"guideline {name}={value}: expected a number of at least 0")
    return number
