"""PyTorch's own operators, overridden: what a kernel takes of them and what is left to PyTorch; without PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest

from tests.fabricated import exported, host_run, imported, module_of, trial, tuning_run, winners
from tests.fake_dispatcher import OWN
from tests.fake_tensors import Masked, Parameter, Tensor, factors, row_major
from tests.library_arrays import SHARED_BATCH, batch, values_at
from tests.modules import fresh, launched_values
from tests.recording_driver import attach, cubin
from tsm2_tune.generator.problem import Problem

A, B, C, OUT = 0x1000, 0x4000, 0x8000, 0x9000  # of batches


@pytest.fixture
def table(torch: Any) -> Any:
    """PyTorch's table of what computes an operator."""
    return torch.table


@pytest.fixture
def installed(overridable: ModuleType) -> Iterator[Any]:
    with overridable.installed():
        yield overridable


@pytest.fixture(scope="module")
def module_of_batches(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    of_batches = trial(problem=Problem(4, 3, 5, "f32", "ttt", batch=1000), config=SHARED_BATCH)
    single = trial(problem=Problem(64, 4, 64, "f32", "ttt"))
    return module_of(tmp_path_factory.mktemp("module"), of_batches, single)


@pytest.fixture
def of_batches(module_of_batches: ModuleType, torch: Any) -> Iterator[Any]:
    """A module of row-major kernels for batches and single products, with its overrides installed."""
    with fresh(module_of_batches) as module:
        attach(module, cubin_of=cubin, _overrides=module.Overrides()).has_batches = True
        with module.installed():
            yield module


# Products that are taken


def test_a_kernel_writes_a_new_row_major_tensor(overridable: ModuleType, torch: Any, table: Any) -> None:
    a, b = factors()
    with overridable.installed():
        for _ in range(2):
            found = table.call("mm", a, b)
            assert found is torch.made[-1]
            assert (found.shape, found.stride()) == ((6, 2), (2, 1))
        assert values_at(overridable, *range(3, 10)) == [1.0, 0x1000, 90, 0x2000, 2, 0.0, found.data_ptr()]
        torch.is_grad_enabled = lambda: False  # a tensor that requires a gradient is its memory
        of_layer = row_major(90, 2, 0x2000, kind=Parameter)
        assert table.call("mm", factors(requires_grad=True)[0], of_layer) is torch.made[-1]
    assert len(overridable.driver.launches) == 3
    assert table.call("mm", a, b) == OWN


def test_a_sum_is_in_out_in_place_or_in_a_copy_of_c(installed: Any, torch: Any, table: Any) -> None:
    (a, b), out = factors(), row_major(6, 2, 0x3000)
    c, row = row_major(6, 2, 0x4000), row_major(1, 2, 0x5000)
    assert table.call("mm.out", a, b, out=out) is out
    assert table.call("addmm_", c, a, b, beta=0.5, alpha=-2) is c
    assert values_at(installed, 3, 8, 9) == [-2.0, 0.5, 0x4000]
    assert table.call("addmm.out", c, a, b, out=out) is out
    assert values_at(installed, 3, 8, 9) == [1.0, 1.0, 0x3000]
    assert (out.copied is c, hasattr(c, "copied")) == (True, False)
    assert table.call("addmm", row, a, b) == OWN  # because the product is small
    installed.LONG = 0
    for added in (c, row):
        assert table.call("addmm", added, a, b, alpha=3).copied is added
        assert values_at(installed, 3, 8) == [3.0, 1.0]
    assert not hasattr(table.call("addmm", c, a, b, beta=0), "copied")
    wide = row_major(6, 2, 0x1000), row_major(2, 90, 0x2000)  # the result is large beside them
    assert table.call("addmm", row_major(1, 90, 0x5000), *wide) == OWN
    assert table.call("addmm", row_major(6, 90, 0x5000), *wide) is torch.made[-1]


def operands(**changes: Any) -> tuple[Tensor, Tensor]:
    return batch((7, 4, 5), A, **changes), batch((7, 5, 3), B, **changes)


def test_one_launch_computes_a_batch_where_it_is(of_batches: Any, table: Any) -> None:
    for _ in range(2):
        found = table.call("bmm", *operands())
        assert (found.shape, found.stride()) == ((7, 4, 3), (12, 3, 1))
        assert launched_values(of_batches) == [4, 3, 5, 1.0, A, 5, B, 3, 0.0, found.data_ptr(), 3, 7, 20, 15, 12]
    assert len(of_batches.driver.launches) == 2
    a, b = batch((7, 4, 5), A, (33, 1, 6)), batch((7, 5, 3), B, (17, 1, 5))  # with gaps, transposed
    assert table.call("bmm", a, b) == OWN  # no kernel has that storage order of a row-major result
    out = batch((7, 4, 3), OUT, (20, 1, 6))
    assert table.call("bmm.out", a, b, out=out) is out  # by its transpose, whose matrices are row-major
    assert launched_values(of_batches) == [3, 4, 5, 1.0, B, 5, A, 6, 0.0, OUT, 6, 7, 17, 33, 20]
    of_all = batch((7, 5, 3), B, (0, 3, 1))
    table.call("bmm", batch((7, 4, 5), A, (24, 5, 1)), of_all)
    assert launched_values(of_batches)[11:] == [7, 24, 0, 12]
    of_batches.driver.has_batches = False
    assert table.call("bmm", batch((7, 4, 5), A), of_all).shape == (7, 4, 3)  # one long product
    assert launched_values(of_batches)[:3] == [28, 3, 5]


def test_a_sum_of_batches_is_in_place_or_in_a_copy_of_c(of_batches: Any, table: Any) -> None:
    (a, b), c, out = operands(), batch((7, 4, 3), C), batch((7, 4, 3), OUT)
    assert table.call("baddbmm_", c, a, b, beta=0.5, alpha=-2) is c
    assert values_at(of_batches, 3, 8, 9) == [-2.0, 0.5, C]
    assert table.call("baddbmm.out", c, a, b, out=out) is out
    assert values_at(of_batches, 3, 8, 9) == [1.0, 1.0, OUT]
    assert (out.copied is c, hasattr(c, "copied")) == (True, False)
    for added in (c, batch((4, 3), C), batch((1, 1, 3), C), batch((7, 4, 3), C, (0, 0, 1))):
        assert table.call("baddbmm", added, a, b).copied is added
    assert not hasattr(table.call("baddbmm", c, a, b, beta=0), "copied")


# Products that are left to PyTorch


def test_products_of_tf32_are_pytorchs(installed: ModuleType, torch: Any, table: Any) -> None:
    for precision, dtype, is_own in (
        ("none", "float32", False), ("tf32", "float32", True), ("tf32", "float64", False), ("ieee", "float32", False),
    ):  # fmt: skip
        torch.precision = precision
        assert (table.call("mm", *factors(dtype=f"torch.{dtype}")) == OWN) == is_own


def test_what_the_vendor_is_faster_at_is_pytorchs(installed: Any, torch: Any, table: Any) -> None:
    """If gemm leaves a product to PyTorch, the override does not take it."""
    torch.mm = lambda a, b: table.call("mm", a, b)
    assert installed.vendors_product(*factors(), None, 1, 0, (False, False)) == OWN
    assert table.call("mm", *factors()) != OWN
    installed.plans.clear()
    installed.chosen_or_vendor = choose = Mock(return_value=installed.Vendor("it is faster"))
    for _ in range(3):
        assert table.call("mm", *factors()) == OWN
    ((product, fallback),) = (call.args for call in choose.mock_calls)  # once
    assert (product.shape, fallback) == ((6, 2, 90), "vendor")


def test_a_kernel_that_does_not_load_is_told_once(installed: Any, table: Any) -> None:
    installed.cubin_of = Mock(side_effect=RuntimeError("no compiler"))
    with pytest.warns(RuntimeWarning, match="^left to PyTorch: no compiler"):
        assert table.call("mm", *factors()) == OWN
    assert table.call("mm", *factors()) == OWN


@pytest.mark.parametrize("step", ["prepare_launch", "start"])
def test_without_room_for_a_workspace_it_is_pytorchs_for_now(installed: ModuleType, table: Any, step: str) -> None:
    where = installed if step == "prepare_launch" else installed.Plan
    plain = getattr(where, step)
    setattr(where, step, Mock(side_effect=MemoryError))
    assert table.call("mm", *factors()) == OWN
    setattr(where, step, plain)
    assert table.call("mm", *factors()) != OWN


def test_a_kernel_that_is_not_loaded_is_left_out_of_a_capture(installed: ModuleType, torch: Any, table: Any) -> None:
    torch.stream = 77
    for captured, is_own in (({77}, True), (set[int](), False), ({77}, False)):
        installed.driver.capturing = captured
        assert (table.call("mm", *factors()) == OWN) == is_own
    installed.plans.clear()
    assert table.call("mm", *factors()) != OWN  # which is loaded


def elsewhere(given: Tensor) -> Tensor:
    """The tensor on another device."""
    given.get_device = lambda: 1
    return given


def negative(rows: int, columns: int, at: int) -> Tensor:
    return row_major(rows, columns, at, is_neg=lambda: True)


def unusual_factors() -> list[tuple[Any, ...]]:
    """Operands of mm."""
    a, b = factors()
    return [
        (row_major(6, 90, 0x1000, kind=Masked), b),
        (a, row_major(90, 2, 0x2000, kind=Masked)),
        (negative(6, 90, 0x1000), b),
        (a, negative(90, 2, 0x2000)),
        (a, row_major(90, 2, 0x2000, dtype="torch.float64")),
        (a, elsewhere(row_major(90, 2, 0x2000))),
        factors(dtype="torch.float16"),  # without a kernel
        (batch((6, 90), 0x1000, (2 * 90, 2)), b),
        (a, a),
        (row_major(0, 90, 0), b),
        (batch((90,), 0x1000), b),
        (a, batch((90,), 0x2000)),
        (row_major(6, 90, 0), b),  # without memory
        (row_major(6, 90, 0x1002), b),  # between elements
        (a, row_major(90, 2, 0x2002)),
    ]


@pytest.mark.parametrize("at", range(len(unusual_factors())))
def test_unusual_factors_are_pytorchs_and_decide_nothing_else(installed: ModuleType, table: Any, at: int) -> None:
    for launches in (0, 1):
        for _ in range(2):
            assert table.call("mm", *unusual_factors()[at]) == OWN
        assert len(installed.driver.launches) == launches
        assert table.call("mm", *factors()) != OWN


UNUSUAL = {  # of 6 x 2, as a result and as a summand
    "negative": lambda at: negative(6, 2, at),
    "of another type": lambda at: row_major(6, 2, at, dtype="torch.float64"),
    "on another device": lambda at: elsewhere(row_major(6, 2, at)),
    "a batch": lambda at: batch((1, 6, 2), at),
    "of a subclass": lambda at: row_major(6, 2, at, kind=Masked),
}
UNUSUAL_RESULTS = UNUSUAL | {
    "in a's memory": lambda at: row_major(6, 2, 0x1008),
    "conjugated": lambda at: row_major(6, 2, at, is_conj=lambda: True),
    "of another shape": lambda at: row_major(6, 3, at),
    "without memory": lambda at: row_major(6, 2, 0),
    "between elements": lambda at: row_major(6, 2, at + 2),
}
UNUSUAL_SUMMANDS = UNUSUAL | {
    "of another shape": lambda at: row_major(3, 2, at),
    "in the result's memory": lambda at: row_major(6, 2, 0x3000),
}


@pytest.mark.parametrize("name", UNUSUAL_RESULTS)
def test_an_unusual_result_is_pytorchs(installed: ModuleType, table: Any, name: str) -> None:
    usual, unusual = row_major(6, 2, 0x3000), UNUSUAL_RESULTS[name](0x3000)
    for out in (usual, unusual, unusual, usual):
        assert (table.call("mm.out", *factors(), out=out) == OWN) == (out is unusual)
    assert len(installed.driver.launches) == 2


@pytest.mark.parametrize("name", UNUSUAL_SUMMANDS)
def test_an_unusual_summand_is_pytorchs(installed: Any, table: Any, name: str) -> None:
    (a, b), out = factors(), row_major(6, 2, 0x3000)
    installed.LONG = 0  # a row is added to products of this size, too
    assert table.call("addmm.out", UNUSUAL_SUMMANDS[name](0x4000), a, b, out=out) == OWN
    assert not hasattr(out, "copied")
    assert table.call("addmm.out", row_major(6, 2, 0x4000), a, b, out=out) is out


@pytest.mark.parametrize("which", ["alpha", "beta"])
@pytest.mark.parametrize("factor", [True, 1e300, 1j])
def test_an_unusual_factor_is_pytorchs(installed: Any, table: Any, which: str, factor: Any) -> None:
    assert table.call("addmm", row_major(6, 2, 0x4000), *factors(), **{which: factor}) == OWN


LEFT = (
    (batch((1, 4, 5), A), batch((7, 5, 3), B)),
    (batch((7, 4, 5), A), batch((2, 5, 3), B)),
    (batch((7, 4, 5), A), batch((5, 3), B)),
    (batch((7, 4, 5), A), batch((7, 4, 3), B)),
    (batch((0, 4, 5), A), batch((0, 5, 3), B)),
    (batch((7, 4, 5), A, (40, 10, 2)), batch((7, 5, 3), B)),
    (batch((7, 4, 5000), A), batch((7, 5000, 3), 0x100000)),  # too large for the kernel
    operands(is_neg=lambda: True),
)
NOT_WRITTEN = (
    batch((7, 4, 3), OUT, (0, 3, 1)),  # all products would be written there
    batch((7, 4, 3), OUT, (6, 3, 1)),
    batch((1, 4, 3), OUT),
    batch((28, 3), OUT),
    batch((7, 4, 3), A + 4),
)


def test_unusual_batches_are_pytorchs(of_batches: Any, torch: Any, table: Any) -> None:
    for _ in range(2):
        for given in LEFT:
            assert table.call("bmm", *given) == OWN
        for out in NOT_WRITTEN:
            assert table.call("bmm.out", *operands(), out=out) == OWN
            assert table.call("baddbmm_", out, *operands()) == OWN
    assert table.call("baddbmm", batch((7, 4, 3), C), *operands(), alpha=0) == OWN  # a and b are not read
    assert of_batches.driver.launches == []
    assert table.call("bmm", *operands()) is torch.made[-1]
    torch.precision = "tf32"
    assert table.call("bmm", *operands()) == OWN


@pytest.mark.parametrize("counts", [(2, 2, 2), (1, 2, 1), (1, 1, 2), (1, 1, 1)])
def test_without_a_kernel_of_batches_one_of_a_single_product_is_a_kernels(
    installed: ModuleType, table: Any, counts: tuple[int, int, int]
) -> None:
    places = ((6, 90), A), ((90, 2), C), ((6, 2), 0x3000)
    a, b, out = (batch((count, *shape), at) for count, (shape, at) in zip(counts, places, strict=True))
    assert table.call("bmm.out", a, b, out=out) == (out if counts == (1, 1, 1) else OWN)
    if counts[:2] != (1, 1):
        assert table.call("bmm", a, b) == OWN
    elif counts[2] == 1:
        assert table.call("bmm", a, b).shape == (1, 6, 2)
        assert values_at(installed, 4, 6) == [A, C]
        assert len(installed.driver.launches) == 2


# What cannot be overridden


@pytest.mark.parametrize(("what", "said"), [
    ("none", "it needs PyTorch: "),
    ("old", r"install: PyTorch 2\.8\.0 is too old: 2\.9 or later is needed"),
    ("without GPUs", "install: this PyTorch is built for no GPU: no kernel for XPU"),
])  # fmt: skip
def test_a_pytorch_that_cannot_be_overridden_is_told(overridable: Any, torch: Any, what: str, said: str) -> None:
    if what == "none":
        sys.modules["torch"] = None  # type: ignore[assignment]
    elif what == "old":
        del torch.library.get_kernel
        torch.__version__ = "2.8.0"
    else:
        overridable.KEY_OF_GPUS = "XPU"
    with pytest.raises(RuntimeError, match=f"^{said}"):
        overridable.install()
    overridable.uninstall()


def test_a_module_without_kernels_for_a_gpu_overrides_nothing(tmp_path: Path, table: Any) -> None:
    for trials in ([(host_run(), trial())], [(host_run(), trial()), trial()]):
        refused = pytest.raises(RuntimeError, match=r"^install: this module has no kernel for a GPU")
        with refused if len(trials) == 1 else nullcontext(), module_of(tmp_path, *trials).installed():
            assert len(table.of["aten::mm"]) == 2


def test_modules_that_differ_have_names_that_differ(tmp_path: Path) -> None:
    found = winners(tmp_path, (tuning_run(), trial()))
    files = ("one.db", "other.db", "one.db")
    one, other, again = (imported(exported("module", found, file), tmp_path).IDENTITY for file in files)
    assert one == again != other
    assert len(one) == 64
