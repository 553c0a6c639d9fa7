"""Parser of products: problems and shapes, in texts and in files of them."""

from __future__ import annotations

import codecs
import os
import re
import select
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from tsm2_tune.api.parse import (
    LAYOUTS,
    ElementTypes,
    Texts,
    canonical_dtype,
    canonical_op,
    check_named,
    dtype_texts,
    dtype_with,
    op_in,
    op_of,
    texts,
)
from tsm2_tune.errors import InputError
from tsm2_tune.generator.dtypes import MATHS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.shapes import Shape, parse_shapes

MOST_PROBLEMS = 100_000
MOST_SHAPES_SECONDS = 60.0  # until the end of a shapes file that is a pipe
MOST_SHAPES_BYTES = 16_000_000  # of a shapes file; enough for MOST_PROBLEMS with comments
STANDARD_INPUT = ("-", "/dev/stdin")
_LINE_END = re.compile(r"\r\n|\r|\n")
_SPACED = re.compile(r" *([xX*]) *")
_PROBLEM = re.compile(
    r"(?:\d{1,10}\*)?\d{1,10}x\d{1,10}x\d{1,10}:(?:[a-z]\w*|3xtf32)(?::\w+)?", re.ASCII | re.IGNORECASE
)

Products = str | Problem | Iterable[str | Problem]
T = TypeVar("T")
Parsed = Problem | tuple[Shape, ...]


def problems_of(
    products: Products, dtypes: ElementTypes, ops: Texts, layout: str, math: str = MATHS[0]
) -> tuple[Problem, ...]:
    """Return the problems that the arguments of `problems` name, each once. Raise InputError for an invalid one."""
    check_named("layout", layout, LAYOUTS)
    check_named("math", math, MATHS)
    names = tuple(dict.fromkeys(dtype_with(math, name) for name in dtype_texts(dtypes).split(",")))
    several = tuple(dict.fromkeys(canonical_op(op) for op in texts("op", ops).split(",")))
    kinds = [(name, op_in(layout, op_of(op, name))) for name in names for op in several]
    for kind in kinds:
        Problem(1, 1, 1, *kind)  # raises InputError for an invalid op, of which no item is to blame

    def problems_in(item: Parsed) -> list[Problem]:
        if isinstance(item, Problem):
            return [item]
        return [Problem(one.m, one.n, one.k, *kind, one.batch) for one in item for kind in kinds]

    found = dict[Problem, None]()
    for item in parsed(products, problems_in):
        found.update(dict.fromkeys(item))
        if len(found) > MOST_PROBLEMS:
            raise InputError(f"{str(products)!r} makes more than {MOST_PROBLEMS} problems: name fewer at a time")
    return tuple(found)


def parsed(products: Products, convert: Callable[[Parsed], T]) -> Iterator[T]:
    """Convert each Problem, and the problem or the shapes of each comma-separated item of each text.

    An item @FILE stands for the items in FILE. Raise InputError if `products` is empty, if it contains anything but
    texts and Problems, if an item is invalid or `convert` refuses it, or if a file cannot be read.
    """
    try:
        every = [products] if isinstance(products, str | Problem) else list(products)
    except TypeError:
        raise InputError(f"products = {products!r}: expected texts, such as '20480x16x20480', or Problems") from None
    if not every:
        raise InputError("no product: name one, such as '20480x16x20480'")
    for product in every:
        if isinstance(product, Problem):
            yield convert(product)
        elif isinstance(product, str):
            yield from _parsed_text(product, convert)
        else:
            raise InputError(f"product {product!r}: expected a text, such as '20480x16x20480', or a Problem")


def _parsed_text(text: str, convert: Callable[[Parsed], T]) -> Iterator[T]:
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items:
        raise InputError(f"no shape in {text!r}: expected MxNxK, such as 20480x16x20480")
    for item in items:
        if item.startswith("@"):
            yield from _parsed_file(item[1:], convert)
        else:
            yield convert(_parsed_item(item))


def _parsed_file(name: str, convert: Callable[[Parsed], T]) -> Iterator[T]:
    """Convert what the items of a shapes file stand for. Raise InputError with the line of an invalid item."""
    is_empty = True
    for number, line in enumerate(_LINE_END.split(_shapes_text(name)), 1):
        for item in filter(str.strip, line.partition("#")[0].split(",")):
            try:
                found = convert(_parsed_item(item.strip()))
            except InputError as error:
                raise InputError(f"shapes file {name!r}, line {number}: {error}") from None
            yield found
            is_empty = False
    if is_empty:
        raise InputError(f"shapes file {name!r} holds no shape: expected MxNxK items, such as 20480x16x20480")


def _parsed_item(item: str) -> Parsed:
    """Return the problem if the item has the form [BATCH*]MxNxK:DTYPE[:OP], else its shapes."""
    item = _SPACED.sub(r"\1", item)
    if not _PROBLEM.fullmatch(item):
        return parse_shapes(item)
    shape, dtype, *op = item.split(":")
    return Problem.parse(":".join([shape.lower(), canonical_dtype(dtype), *map(canonical_op, op)]))


def _shapes_text(name: str) -> str:
    """Return the text of a shapes file in UTF-8 or UTF-16, without byte order marks. Else raise InputError."""
    content = _shapes_content(name)
    is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = content.decode("utf-16" if is_utf16 else "utf-8")
    except UnicodeDecodeError:
        raise InputError(f"shapes file {name!r} cannot be read: it is not text in UTF-8 or UTF-16") from None
    if "\0" in text:
        raise InputError(f"shapes file {name!r} cannot be read: it contains NUL characters; save it as UTF-8")
    return text.replace("\ufeff", "")  # concatenated files have marks in the middle too


def _shapes_content(name: str) -> bytes:
    """Return the bytes of a regular file, a pipe or standard input. Raise InputError for another kind of file."""
    try:
        if name in STANDARD_INPUT:
            return _content(0, name)
        found = os.stat(name)
        if not stat.S_ISREG(found.st_mode) and not stat.S_ISFIFO(found.st_mode):  # opening a device may have effects
            raise InputError(f"shapes file {name!r} is not a regular file: name a text file of MxNxK items")
        if stat.S_ISREG(found.st_mode) and not found.st_size:  # includes files in /proc, which may block
            return b""
        number = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return _content(number, name)
        finally:
            os.close(number)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no file can have this name"
        raise InputError(f"shapes file {name!r} cannot be read: {reason}") from None


def _content(number: int, name: str) -> bytes:
    """Return the bytes of an open file. Raise InputError beyond MOST_SHAPES_BYTES or MOST_SHAPES_SECONDS."""
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
        f"shapes file {name!r} did not end within {MOST_SHAPES_SECONDS:g} s: write the whole file first, then name it"
    )
