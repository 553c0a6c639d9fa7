"""Tests of the cells that the bench measures."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.cells import LAYOUTS, REGIMES, SHAPE_SETS, SMALL_EXTENT, cells, chosen, shapes_of
from tsm2_tune.errors import InputError
from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.problem import DTYPES


def test_each_regime_has_its_long_dimension() -> None:
    for m, n, k in shapes_of("R", "full"):
        assert m in (10240, 15360, 20480, 25600, 30720)
        assert m == k or (m == 15360 and k in (1920, 3840, 7680))
        assert n <= 64
    assert all(m >= 10_000 and max(n, k) <= 64 for m, n, k in shapes_of("L", "full"))
    assert all(k >= 10_000 and max(m, n) <= 64 for m, n, k in shapes_of("T", "full"))


@pytest.mark.parametrize("regime", REGIMES)
def test_the_sets_are_nested_and_without_repetition(regime: Any) -> None:
    quick, head, full = (shapes_of(regime, shape_set) for shape_set in SHAPE_SETS)
    for shapes in (quick, head, full):
        assert len(set(shapes)) == len(shapes)
    assert set(head) <= set(full)
    assert set(quick) < set(full)


def test_t_is_the_transpose_of_l() -> None:
    swapped = {(k, n, m) for m, n, k in shapes_of("L", "full")}
    assert swapped == set(shapes_of("T", "full"))


def test_cells_are_the_product_of_the_selection() -> None:
    found = cells(REGIMES, LAYOUTS, ("f32", "f64"), "quick")
    assert len(found) == 2 * 2 * sum(len(shapes_of(regime, "quick")) for regime in REGIMES)
    assert len({cell.text for cell in found}) == len(found)


def test_small_cells_are_those_that_starting_a_kernel_dominates() -> None:
    for cell in cells(REGIMES, LAYOUTS, ("f32",), "full"):
        assert cell.small == (cell.regime != "R" and max(cell.problem.m, cell.problem.k) <= SMALL_EXTENT)


def test_words_are_checked() -> None:
    assert chosen("R, T,R", REGIMES, "regime") == ("R", "T")
    with pytest.raises(InputError, match="unknown regime 'X': expected one of R, L, T, G"):
        chosen("R,X", REGIMES, "regime")
    with pytest.raises(InputError, match="no layout in ' ,'"):
        chosen(" ,", LAYOUTS, "layout")


def test_matrices_times_themselves_have_the_types_that_blas_has() -> None:
    found = cells(("G",), LAYOUTS, tuple(DTYPES), "headline")
    assert {(cell.problem.dtype_name, cell.problem.op) for cell in found} == {
        *((name, op) for name in ("f32", "f64") for op in ("tx", "nxt")),
        *((name, op) for name in ("c64", "c128") for op in ("cx", "jxt")),
    }
    assert {cell.problem.m for cell in found} == {8, 16, 32, 64}
    with pytest.raises(InputError, match="unknown dtype 'f31'"):
        cells(("G",), LAYOUTS, ("f31",), "quick")


@pytest.mark.parametrize("name", DTYPES)
def test_every_cell_of_the_headline_has_a_family_in_every_type(name: str) -> None:
    for cell in cells(REGIMES, LAYOUTS, (name,), "headline"):
        assert any(family.supports(cell.problem) for family in FAMILIES.values()), cell.text
