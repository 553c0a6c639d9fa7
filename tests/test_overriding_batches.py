"""PyTorch's batches, overridden: what a kernel takes of bmm and baddbmm, and what is left, without PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from tests.fabricated import module_of, trial
from tests.fake_dispatcher import OWN
from tests.fake_tensors import Tensor
from tests.library_arrays import SHARED_BATCH, batch, values_at
from tests.modules import launched_values
from tests.recording_driver import attach, cubin
from tests.shared_modules import fresh
from tsm2_tune.generator.problem import Problem

A, B, C, OUT = 0x1000, 0x4000, 0x8000, 0x9000


@pytest.fixture
def table(torch: Any) -> Any:
    """PyTorch's table of what computes an operator."""
    return torch.table


@pytest.fixture(scope="module")
def module_of_batches(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """A module of a kernel for batches of row-major f32 matrices, and of one for single products."""
    of_batches = trial(problem=Problem(4, 3, 5, "f32", "ttt", batch=1000), config=SHARED_BATCH)
    single = trial(problem=Problem(64, 4, 64, "f32", "ttt"))
    return module_of(tmp_path_factory.mktemp("module"), of_batches, single)


@pytest.fixture
def overriding(module_of_batches: ModuleType, torch: Any) -> Iterator[Any]:
    """The module with its overrides installed, before a driver that records launches of batches."""
    with fresh(module_of_batches) as module:
        attach(module, cubin_of=cubin, _overrides=module.Overrides()).has_batches = True
        with module.installed():
            yield module


def operands(**changes: Any) -> tuple[Tensor, Tensor]:
    return batch((7, 4, 5), A, **changes), batch((7, 5, 3), B, **changes)


def test_one_launch_computes_a_batch_in_a_new_row_major_tensor(overriding: Any, table: Any) -> None:
    for _ in range(2):
        found = table.call("bmm", *operands())
        assert (found.shape, found.stride()) == ((7, 4, 3), (12, 3, 1))
        assert launched_values(overriding) == [4, 3, 5, 1.0, A, 5, B, 3, 0.0, found.data_ptr(), 3, 7, 20, 15, 12]
    assert len(overriding.driver.launches) == 2


def test_a_batch_with_gaps_and_transposed_matrices_is_read_where_it_is(overriding: Any, table: Any) -> None:
    """The transposed product has row-major factors: its kernel gets b^T, then a^T, and writes columns."""
    a, b = batch((7, 4, 5), A, (33, 1, 6)), batch((7, 5, 3), B, (17, 1, 5))
    assert table.call("bmm", a, b) == OWN  # no kernel has that storage order of a row-major result
    out = batch((7, 4, 3), OUT, (20, 1, 6))
    assert table.call("bmm.out", a, b, out=out) is out
    assert launched_values(overriding) == [3, 4, 5, 1.0, B, 5, A, 6, 0.0, OUT, 6, 7, 17, 33, 20]


def test_a_sum_is_added_to_in_place_or_to_a_copy_of_c(overriding: Any, table: Any) -> None:
    (a, b), c, out = operands(), batch((7, 4, 3), C), batch((7, 4, 3), OUT)
    assert table.call("baddbmm_", c, a, b, beta=0.5, alpha=-2) is c
    assert values_at(overriding, 3, 8, 9) == [-2.0, 0.5, C]
    assert not hasattr(c, "copied")
    assert table.call("baddbmm.out", c, a, b, out=out) is out
    assert values_at(overriding, 3, 8, 9) == [1.0, 1.0, OUT]
    assert out.copied is c
    for added in (c, batch((4, 3), C), batch((1, 1, 3), C), batch((7, 4, 3), C, (0, 0, 1))):
        assert table.call("baddbmm", added, a, b).copied is added
    assert not hasattr(table.call("baddbmm", c, a, b, beta=0), "copied")


def test_a_matrix_for_all_products_is_read_in_place(overriding: Any, table: Any) -> None:
    """If the other operand's matrices are one long matrix, the batch is one product."""
    of_all = batch((7, 5, 3), B, (0, 3, 1))
    table.call("bmm", batch((7, 4, 5), A, (24, 5, 1)), of_all)
    assert launched_values(overriding)[11:] == [7, 24, 0, 12]
    overriding.driver.has_batches = False
    assert table.call("bmm", batch((7, 4, 5), A), of_all).shape == (7, 4, 3)
    assert launched_values(overriding)[:3] == [28, 3, 5]


LEFT = {
    "a lacks products": (batch((1, 4, 5), A), batch((7, 5, 3), B)),
    "b lacks products": (batch((7, 4, 5), A), batch((2, 5, 3), B)),
    "b is a matrix": (batch((7, 4, 5), A), batch((5, 3), B)),
    "of no fit": (batch((7, 4, 5), A), batch((7, 4, 3), B)),
    "no products": (batch((0, 4, 5), A), batch((0, 5, 3), B)),
    "gaps in rows": (batch((7, 4, 5), A, (40, 10, 2)), batch((7, 5, 3), B)),
    "too large for the kernel": (batch((7, 4, 5000), A), batch((7, 5000, 3), 0x100000)),
    "negative": operands(is_neg=lambda: True),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_no_kernel_computes_is_pytorchs(overriding: Any, torch: Any, table: Any, name: str) -> None:
    for _ in range(2):
        assert table.call("bmm", *LEFT[name]) == OWN
    assert table.call("bmm", *operands()) is torch.made[-1]
    assert len(overriding.driver.launches) == 1


NOT_WRITTEN = {
    "one": batch((7, 4, 3), OUT, (0, 3, 1)),  # all products would be written there
    "overlapping": batch((7, 4, 3), OUT, (6, 3, 1)),
    "too few": batch((1, 4, 3), OUT),
    "matrix": batch((28, 3), OUT),
    "over a": batch((7, 4, 3), A + 4),
}


@pytest.mark.parametrize("name", NOT_WRITTEN)
def test_an_out_that_no_kernel_writes_is_pytorchs(overriding: Any, table: Any, name: str) -> None:
    for _ in range(2):
        assert table.call("bmm.out", *operands(), out=NOT_WRITTEN[name]) == OWN
        assert table.call("baddbmm_", NOT_WRITTEN[name], *operands()) == OWN
    assert overriding.driver.launches == []


def test_batches_whose_a_and_b_are_not_read_are_pytorchs(overriding: Any, torch: Any, table: Any) -> None:
    assert table.call("baddbmm", batch((7, 4, 3), C), *operands(), alpha=0) == OWN
    torch.precision = "tf32"
    assert table.call("bmm", *operands()) == OWN
