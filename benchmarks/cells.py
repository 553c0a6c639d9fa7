"""Cells that are measured against cuBLAS: a cell is a regime, a layout, an element type and a shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tsm2_tune.errors import InputError
from tsm2_tune.generator.dtypes import DTYPES, FMA_DTYPES, PLUS_TIMES, dtype_named
from tsm2_tune.generator.problem import Problem

Shape = tuple[int, int, int]  # m, n, k

Regime = Literal["R", "L", "T", "G", "S"]
Layout = Literal["column", "row"]
ShapeSet = Literal["quick", "headline", "full"]

REGIMES: tuple[Regime, ...] = ("R", "L", "T", "G")  # regime S (m, n and k are large): see `general`
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
SHAPE_SETS: tuple[ShapeSet, ...] = get_args(ShapeSet)

SMALL_EXTENT = 100_000  # for a long dimension up to this, in L and T, a launch takes longer than the work

# All three matrices column-major or all three row-major, in the letters of `Problem.op`. T is the inner product of
# two tall and skinny matrices, X^T Y, and G that of one with itself, X^T X; complex ones are conjugated, X^H Y.
OPS: dict[tuple[Regime, Layout], str] = {
    ("R", "column"): "nn",
    ("R", "row"): "ttt",
    ("L", "column"): "nn",
    ("L", "row"): "ttt",
    ("T", "column"): "tn",
    ("T", "row"): "ntt",
    ("G", "column"): "tx",
    ("G", "row"): "nxt",
}
COMPLEX_OPS: dict[tuple[Regime, Layout], str] = {
    ("T", "column"): "cn",
    ("T", "row"): "jtt",
    ("G", "column"): "cx",
    ("G", "row"): "jxt",
}

R_SKINNY = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
R_SQUARE = (10240, 15360, 20480, 25600, 30720)
R_NARROW = ((15360, 1920), (15360, 3840), (15360, 7680))  # (m, k): the papers' k from m/8 to m/2
LT_LONG = (10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)
LT_SMALL = ((2, 2), (4, 4), (8, 8), (16, 16), (32, 32), (64, 64))
G_LONG, G_SMALL = 10_000_000, (8, 16, 32, 64)
G_DTYPES = FMA_DTYPES  # types of BLAS's syrk and herk
LT_UNEQUAL = ((4, 16), (16, 4), (8, 64), (64, 8))  # (k, n) in L, (m, n) in T


@dataclass(frozen=True, slots=True)
class Cell:
    """A line of a table: a problem with its regime and layout."""

    regime: Regime
    layout: Layout
    problem: Problem

    @property
    def small(self) -> bool:
        """Return whether a launch takes longer than the work, so that replays of a CUDA graph are timed too."""
        long = {"L": self.problem.m, "T": self.problem.k}.get(self.regime)
        return long is not None and long <= SMALL_EXTENT

    @property
    def text(self) -> str:
        """A text such as `R column 20480x16x20480:f32`."""
        return f"{self.regime} {self.layout} {self.problem.shape}:{self.problem.dtype_name}"

    @property
    def record(self) -> dict[str, Any]:
        """The fields that identify the cell in a result file."""
        problem = self.problem
        return {
            "regime": self.regime,
            "layout": self.layout,
            "dtype": problem.dtype_name,
            "op": problem.op,
            "m": problem.m,
            "n": problem.n,
            "k": problem.k,
            "small": self.small,
        }


CELL_KEY = ("regime", "layout", "dtype", "op", "m", "n", "k")  # fields that identify a cell


def cell_key(record: dict[str, Any]) -> tuple[Any, ...]:
    """Return the key that identifies a cell, from its record or its row in a result file."""
    return tuple(record[name] for name in CELL_KEY)


def place(record: dict[str, Any]) -> tuple[int, ...]:
    """Return the sort key of a row: regime, element type, layout, then size."""
    return (
        REGIMES.index(record["regime"]),
        list(DTYPES).index(record["dtype"]),
        LAYOUTS.index(record["layout"]),
        max(record["m"], record["k"]),
        record["m"],
        record["k"],
        record["n"],
    )


def shapes_of(regime: Regime, shape_set: ShapeSet) -> tuple[Shape, ...]:
    """Return (m, n, k) of each product of a regime in a shape set."""
    if regime == "R":
        return _r_shapes(shape_set)
    if regime == "G":
        return () if shape_set == "quick" else tuple((size, size, G_LONG) for size in G_SMALL)
    pairs: list[tuple[int, tuple[int, int]]] = []
    if shape_set == "quick":
        widths = (8, 16, 32) if regime == "L" else (4, 16, 32)
        pairs = [(10_000, (8, 8)), *((10_000_000, (width, width)) for width in widths)]
    elif shape_set == "headline":
        pairs = [(long, pair) for long in (10_000, 100_000) for pair in LT_SMALL[2:4]]
        pairs += [(10_000_000, pair) for pair in LT_SMALL]
    else:
        pairs = [(long, pair) for long in LT_LONG for pair in (*LT_SMALL, *LT_UNEQUAL)]
    if regime == "L":
        return tuple((long, n, k) for long, (k, n) in pairs)
    return tuple((m, n, long) for long, (m, n) in pairs)


def in_set(record: dict[str, Any], shape_set: ShapeSet) -> bool:
    """Return whether the shape of a cell's record or row belongs to the shape set."""
    return (record["m"], record["n"], record["k"]) in shapes_of(record["regime"], shape_set)


def _r_shapes(shape_set: ShapeSet) -> tuple[Shape, ...]:
    if shape_set == "quick":
        return tuple((20480, n, 20480) for n in (2, 8, 16, 32))
    if shape_set == "headline":
        return (
            *((20480, n, 20480) for n in (1, 2, 4, 8, 16, 32, 64)),
            *((10240, n, 10240) for n in (2, 4, 8, 16)),
        )
    return tuple((m, n, k) for m, k in (*((m, m) for m in R_SQUARE), *R_NARROW) for n in R_SKINNY)


def op_of(regime: Regime, layout: Layout, dtype_name: str) -> str:
    """Return the storage orders of A and B, in the letters of `Problem.op`."""
    place = (regime, layout)
    return COMPLEX_OPS.get(place, OPS[place]) if dtype_named(dtype_name).is_complex else OPS[place]


def cells(
    regimes: Sequence[Regime], layouts: Sequence[Layout], dtype_names: Sequence[str], shape_set: ShapeSet
) -> tuple[Cell, ...]:
    """Return every cell of the selection. Raise InputError for an unknown element type.

    Regime G has only BLAS's element types. Semirings other than (+, *) are left out.
    """
    return tuple(
        Cell(regime, layout, Problem(*shape, dtype_name, op_of(regime, layout, dtype_name)))
        for regime in regimes
        for dtype_name in dtype_names
        if dtype_named(dtype_name).semiring is PLUS_TIMES and (regime != "G" or dtype_name in G_DTYPES)
        for layout in layouts
        for shape in shapes_of(regime, shape_set)
    )


def chosen(text: str, options: Sequence[str], what: str) -> tuple[str, ...]:
    """Return the distinct words of a comma-separated text. Raise InputError if one is not among `options`."""
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    for word in words:
        if word not in options:
            raise InputError(f"unknown {what} {word!r}: expected one of {', '.join(options)}")
    if not words:
        raise InputError(f"no {what} in {text!r}: expected one of {', '.join(options)}")
    return words
