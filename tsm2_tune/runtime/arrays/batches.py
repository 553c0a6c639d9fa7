"""Batches: the dimensions of arrays before the last two, which broadcast as in numpy.matmul, as one dimension."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Extents = tuple[int, ...]


def common_extents(a: Extents, b: Extents) -> Extents:
    """Return the extents to which those of a and b broadcast. Raise ValueError if they do not."""
    try:
        return np.broadcast_shapes(a, b) if a and b and a != b else a or b
    except ValueError:
        raise ValueError(f"a and b: their leading dimensions {a} and {b} do not broadcast") from None


def broadcast_strides(extents: Extents, strides: Extents, common: Extents) -> Extents:
    """Return the strides of an array that is broadcast to the extents `common`: 0 where it is repeated."""
    lacking = len(common) - len(extents)
    own = (0 if extent == 1 else stride for extent, stride in zip(extents, strides, strict=True))
    return (0,) * lacking + tuple(own)


def one_stride(extents: Extents, strides: Sequence[Extents]) -> tuple[int, ...] | None:
    """Return the stride of each array if the dimensions are one dimension of the arrays; None if they are not."""
    count, merged = 1, (0,) * len(strides)
    for extent, outer in zip(extents[::-1], list(zip(*strides, strict=True))[::-1], strict=True):
        if extent == 1:
            continue
        if count > 1 and any(one != count * inner for one, inner in zip(outer, merged, strict=True)):
            return None
        merged = merged if count > 1 else outer
        count *= extent
    return merged


def span_bytes(extents: Extents, strides: Extents, element_bytes: int) -> int:
    """Return the number of bytes from the first to the last element; 0 without elements. No stride is negative."""
    if 0 in extents:
        return 0
    return sum((extent - 1) * stride for extent, stride in zip(extents, strides, strict=True)) + element_bytes


def has_nested_strides(extents: Extents, strides: Extents, element_bytes: int) -> bool:
    """Return whether each stride reaches over all elements along the smaller ones, so that none overlap."""
    reach = element_bytes
    for stride, extent in sorted(zip(strides, extents, strict=True)):
        if extent > 1 and stride < reach:
            return False
        reach += (extent - 1) * stride
    return True


def packed_strides(extents: Extents, step: int) -> Extents:
    """Return the strides of dimensions that are one dimension with this stride."""
    return tuple(step * math.prod(extents[at + 1 :]) for at in range(len(extents)))


def new_permuted(
    extents: Extents,
    strides: Extents,
    new_row_major: Callable[[Extents], Any],
    permuted: Callable[[Any, Extents], Any],
) -> Any:
    """Return a new array with these strides, which are those of a packed array with permuted dimensions."""
    falling = sorted(range(len(strides)), key=lambda one: (-strides[one], -extents[one]))
    made = new_row_major(tuple(extents[one] for one in falling))
    dimensions = tuple(map(falling.index, range(len(falling))))
    return made if made is None or dimensions == tuple(range(len(falling))) else permuted(made, dimensions)


def split_array(
    name: str, shape: Extents, strides: Any, size: int, vector: str, dimensions: int | None
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, int], tuple[int, int], bool]:
    """Return extents, strides in bytes, of the batch and of a matrix, and whether that is a vector.

    `strides` is None for a row-major array without padding. The other arguments are those of `Matrix.of`.
    """
    if len(shape) == 2 and not dimensions and (strides is None or len(strides) == 2):  # what follows takes long
        rows, columns = shape
        return (), (), (rows, columns), strides or (columns * size, size), False
    if dimensions is None:
        dimensions = max(len(shape) - 2, 0)
    is_vector = vector != "" and len(shape) == dimensions + 1
    if len(shape) != dimensions + 2 - is_vector or (strides is not None and len(strides) != len(shape)):
        what = "a matrix or a vector" if vector else "a matrix"
        what = f"{what} for each of a batch's {dimensions} dimensions" if dimensions else what
        raise ValueError(f"{name}: expected {what}, got the shape {tuple(shape)}")
    strides = packed_strides(tuple(shape), size) if strides is None else strides
    products, steps = tuple(shape[:dimensions]), tuple(strides[:dimensions])
    for extent, step in zip(products, steps, strict=True):
        if extent > 1 and (step < 0 or step % size):
            raise ValueError(
                f"{name}: its matrices are {step} bytes apart, which is negative or no multiple of {size}: pass a"
                " contiguous copy"
            )
    of_matrix, of_strides = tuple(shape[dimensions:]), tuple(strides[dimensions:])
    if is_vector:
        return products, steps, *_as_matrix(of_matrix, of_strides, vector), True
    return products, steps, (of_matrix[0], of_matrix[1]), (of_strides[0], of_strides[1]), False


def _as_matrix(
    shape: tuple[int, ...], strides: tuple[int, ...], vector: str
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the 2-d shape and strides of a vector, read as a "row" or a "column"."""
    (elements,), (step,) = shape, strides
    return ((1, elements), (step * elements, step)) if vector == "row" else ((elements, 1), (step, step * elements))
