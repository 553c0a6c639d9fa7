"""Operands, results and factors of PyTorch's operators: those that no kernel takes are left to PyTorch."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from tests.fabricated import device_array
from tests.fake_dispatcher import OWN
from tests.fake_tensors import Masked, Tensor, factors, row_major
from tests.modules import launched_values


def cube(rows: int, columns: int, at: int, *, count: int = 1) -> Tensor:
    """A batch of row-major matrices."""
    strides = (4 * rows * columns, 4 * columns, 4)
    return Tensor(device_array((count, rows, columns), strides, at=at), dtype="torch.float32")


def vector(rows: int, at: int) -> Tensor:
    return Tensor(device_array((rows,), (4,), at=at), dtype="torch.float32")


def elsewhere(given: Tensor) -> Tensor:
    """The tensor on another device."""
    given.get_device = lambda: 1
    return given


def negative(rows: int, columns: int, at: int) -> Tensor:
    return row_major(rows, columns, at, is_neg=lambda: True)


def unusual_factors() -> dict[str, tuple[Any, ...]]:
    """Operands of mm."""
    a, b = factors()
    strided = Tensor(device_array((6, 90), (8 * 90, 8)), dtype="torch.float32")
    return {
        "a of a subclass": (row_major(6, 90, 0x1000, kind=Masked), b),
        "b of a subclass": (a, row_major(90, 2, 0x2000, kind=Masked)),
        "a negative": (negative(6, 90, 0x1000), b),
        "b negative": (a, negative(90, 2, 0x2000)),
        "of two types": (a, row_major(90, 2, 0x2000, dtype="torch.float64")),
        "on two devices": (a, elsewhere(row_major(90, 2, 0x2000))),
        "of no kernel's type": (
            row_major(6, 90, 0x1000, dtype="torch.float16"),
            row_major(90, 2, 0x2000, dtype="torch.float16"),
        ),
        "no matrix in memory": (strided, b),
        "of no fit": (a, a),
        "without elements": (row_major(0, 90, 0), b),
        "a of one dimension": (vector(90, 0x1000), b),
        "b of one dimension": (a, vector(90, 0x2000)),
        "without memory": (row_major(6, 90, 0), b),
        "a between elements": (row_major(6, 90, 0x1002), b),
        "b between elements": (a, row_major(90, 2, 0x2002)),
    }


@pytest.mark.parametrize("name", unusual_factors())
def test_what_is_unusual_is_pytorchs_and_decides_for_nothing_else(
    overridable: ModuleType, torch: Any, name: str
) -> None:
    with overridable.installed():
        for launches in (0, 1):
            for _ in range(2):
                assert torch.table.call("mm", *unusual_factors()[name]) == OWN
            assert len(overridable.driver.launches) == launches
            assert torch.table.call("mm", *factors()) != OWN


def unusual_results() -> dict[str, Tensor]:
    return {
        "in a's memory": row_major(6, 2, 0x1008),
        "conjugated": row_major(6, 2, 0x3000, is_conj=lambda: True),
        "negative": negative(6, 2, 0x3000),
        "of another type": row_major(6, 2, 0x3000, dtype="torch.float64"),
        "on another device": elsewhere(row_major(6, 2, 0x3000)),
        "of another shape": row_major(6, 3, 0x3000),
        "a batch": cube(6, 2, 0x3000),
        "of a subclass": row_major(6, 2, 0x3000, kind=Masked),
        "without memory": row_major(6, 2, 0),
        "between elements": row_major(6, 2, 0x3002),
    }


@pytest.mark.parametrize("name", unusual_results())
def test_an_unusual_result_is_pytorchs(overridable: ModuleType, torch: Any, name: str) -> None:
    with overridable.installed():
        assert torch.table.call("mm.out", *factors(), out=row_major(6, 2, 0x3000)) != OWN
        for _ in range(2):
            assert torch.table.call("mm.out", *factors(), out=unusual_results()[name]) == OWN
        assert torch.table.call("mm.out", *factors(), out=row_major(6, 2, 0x3000)) != OWN
    assert len(overridable.driver.launches) == 2


def unusual_summands() -> dict[str, Tensor]:
    """Return unusual summands of addmm."""
    return {
        "of a subclass": row_major(6, 2, 0x4000, kind=Masked),
        "of another type": row_major(6, 2, 0x4000, dtype="torch.float64"),
        "on another device": elsewhere(row_major(6, 2, 0x4000)),
        "negative": negative(6, 2, 0x4000),
        "of another shape": row_major(3, 2, 0x4000),
        "a batch": cube(6, 2, 0x4000),
        "in the result's memory": row_major(6, 2, 0x3000),
    }


@pytest.mark.parametrize("name", unusual_summands())
def test_an_unusual_summand_is_pytorchs(overridable: Any, torch: Any, name: str) -> None:
    (a, b), out = factors(), row_major(6, 2, 0x3000)
    overridable.LONG = 0  # by which products of this size are too small to add a row to
    with overridable.installed():
        assert torch.table.call("addmm.out", unusual_summands()[name], a, b, out=out) == OWN
        assert not hasattr(out, "copied")
        assert torch.table.call("addmm.out", row_major(6, 2, 0x4000), a, b, out=out) is out


@pytest.mark.parametrize("which", ["alpha", "beta"])
def test_a_factor_of_no_number_is_pytorchs(overridable: ModuleType, torch: Any, which: str) -> None:
    c = row_major(6, 2, 0x4000)
    with overridable.installed():
        for factor in (True, 1e300, 1j):
            assert torch.table.call("addmm", c, *factors(), **{which: factor}) == OWN


@pytest.mark.parametrize("counts", [(2, 2, 2), (1, 2, 1), (1, 1, 2)])
def test_batches_are_pytorchs(overridable: ModuleType, torch: Any, counts: tuple[int, int, int]) -> None:
    a, b, out = (
        cube(*shape, at, count=count)
        for shape, at, count in zip(((6, 90), (90, 2), (6, 2)), (0x1000, 0x8000, 0x3000), counts, strict=True)
    )
    with overridable.installed():
        assert torch.table.call("bmm.out", a, b, out=out) == OWN
        if counts != (1, 1, 2):
            assert torch.table.call("bmm", a, b) == OWN


def test_a_batch_of_one_product_is_a_kernels(overridable: ModuleType, torch: Any) -> None:
    a, b, out = cube(6, 90, 0x1000), cube(90, 2, 0x8000), cube(6, 2, 0x3000)
    with overridable.installed():
        assert torch.table.call("bmm.out", a, b, out=out) is out
        assert torch.table.call("bmm", a, b).shape == (1, 6, 2)
    assert [launched_values(overridable)[at] for at in (4, 6)] == [0x1000, 0x8000]
    assert len(overridable.driver.launches) == 2
