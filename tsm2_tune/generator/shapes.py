"""Parser of shapes: one text may give many (m, n, k, batch)."""

from __future__ import annotations

import re
from itertools import product
from typing import NamedTuple

from tsm2_tune.errors import InputError
from tsm2_tune.generator.problem import INT32_MAX


class Shape(NamedTuple):
    """The extents of a product, and the number of products of a batch."""

    m: int
    n: int
    k: int
    batch: int = 1


LARGEST_DIMENSION = INT32_MAX
MOST_SHAPES = 10_000
MOST_CHARACTERS = 40  # the most characters of one number

SHAPE_SYNTAX = """\
MxNxK items separated by commas: C is M x N and the inner dimension is K.
A dimension is a number (20480, 1e7), several (2/4/8), a range with a step (10240:30720:5120, both ends
included) or a factor (2:64:*2), or the letter of another dimension (20480x16xm, 1e7xkx8/16).
BATCH*MxNxK is a batch: BATCH products of this shape in one launch (500000*8x8x8, 100/1000*256x16x256).
A problem as it is printed (100000x8x16:f32:tnt) has its own type and op, and ignores --dtype and --op.
@FILE reads items from a file, one or more a line, # starts a comment."""


def parse_shapes(text: str) -> tuple[Shape, ...]:
    """Return the shapes that the text names, each once, in order. Raise InputError for an invalid text.

    SHAPE_SYNTAX describes the syntax, but this function does not accept @FILE and problems.
    """
    shapes: dict[Shape, None] = {}
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items:
        raise InputError(f"no shape in {text!r}: expected MxNxK, such as 20480x16x20480")
    for item in items:
        for shape in _parse_item(item):
            shapes[shape] = None
            if len(shapes) > MOST_SHAPES:
                raise InputError(f"{item!r} makes more than {MOST_SHAPES} shapes: name fewer at a time")
    return tuple(shapes)


def _parse_item(item: str) -> list[Shape]:
    """Return the shapes that one item names, such as 20480x2/4xm. Raise InputError for an invalid item."""
    of_batch = re.fullmatch(r"([^x*:]*)\*(.*)", item.lower())  # in a range, * is before a factor
    batches = _parse_dimension(of_batch[1], item) if of_batch else [1]
    dimensions = (of_batch[2] if of_batch else item.lower()).split("x")
    if len(dimensions) != 3 or not all(dimensions):
        raise InputError(f"shape {item!r}: expected MxNxK, such as 20480x16x20480")
    values: dict[str, list[int] | str] = {}
    for name, text in zip("mnk", dimensions, strict=True):
        if text in ("m", "n", "k"):
            if text == name:
                raise InputError(f"shape {item!r}: {name} cannot refer to itself")
            values[name] = text
        else:
            values[name] = _parse_dimension(text, item)
    free = {name: value for name, value in values.items() if isinstance(value, list)}
    if any(isinstance(value, str) and value not in free for value in values.values()):
        raise InputError(f"shape {item!r}: a letter must refer to a dimension that is given as numbers")
    count = len(batches)
    for value in free.values():
        count *= len(value)
    if count > MOST_SHAPES:
        raise InputError(f"{item!r} makes more than {MOST_SHAPES} shapes: name fewer at a time")
    shapes = []
    for chosen in product(*free.values()):
        known = dict(zip(free, chosen, strict=True))
        m, n, k = (known[name] if name in known else known[str(values[name])] for name in "mnk")
        shapes += [Shape(m, n, k, batch) for batch in batches]
    return shapes


def _parse_dimension(text: str, item: str) -> list[int]:
    """Return the numbers in a dimension, such as 20480, 2/4/8 or 2:64:*2. Raise InputError for another text."""
    values: list[int] = []
    for part in text.split("/"):
        match = re.fullmatch(r"([^:]+):([^:]+):(\*?)([^:*]+)", part)
        if match is None:
            values.append(_parse_number(part, item))
            continue
        low, high = _parse_number(match[1], item), _parse_number(match[2], item)
        step = _parse_number(match[4], item)
        if low > high or (match[3] and step < 2):
            raise InputError(f"shape {item!r}: the range {part!r} is empty or endless")
        if not match[3] and (high - low) // step >= MOST_SHAPES:
            raise InputError(f"{item!r} makes more than {MOST_SHAPES} shapes: name fewer at a time")
        while low <= high:
            values.append(low)
            low = low * step if match[3] else low + step
        if len(values) > MOST_SHAPES:
            raise InputError(f"{item!r} makes more than {MOST_SHAPES} shapes: name fewer at a time")
    return values


def _parse_number(text: str, item: str) -> int:
    """Parse a dimension of at least 1, such as 20480, 1e7 or 1.5e6. Raise InputError for another text."""
    if len(text) > MOST_CHARACTERS:
        raise InputError(
            f"shape {item[:MOST_CHARACTERS]!r}...: a number of {len(text)} characters is too long;"
            f" a dimension must be at least 1, at most {LARGEST_DIMENSION}"
        )
    if not re.fullmatch(r"-?\d+(\.\d+)?(e\+?\d{1,2})?", text, re.ASCII):
        hint = (
            "a range is FROM:TO:STEP or FROM:TO:*FACTOR" if ":" in text else "expected MxNxK, such as 20480x16x20480"
        )
        raise InputError(f"shape {item!r}: {text!r} is no whole number; {hint}")
    value = float(text) if re.search(r"[.e]", text) else int(text)
    if value != int(value):
        raise InputError(f"shape {item!r}: {text!r} is no whole number")
    if not 1 <= value <= LARGEST_DIMENSION:
        raise InputError(f"shape {item!r}: a dimension must be at least 1, at most {LARGEST_DIMENSION}, not {text}")
    return int(value)
