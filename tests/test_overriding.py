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
from tests.library_arrays import batch, values_at

A, B, C = 0x1000, 0x4000, 0x8000  # of batches


@pytest.fixture
def table(torch: Any) -> Any:
    """PyTorch's table of what computes an operator."""
    return torch.table


@pytest.fixture
def installed(overridable: ModuleType) -> Iterator[Any]:
    with overridable.installed():
        yield overridable


# Products that are taken


def test_a_product_is_computed_by_a_kernel_in_a_new_row_major_tensor(
    overridable: ModuleType, torch: Any, table: Any
) -> None:
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


def test_the_result_is_where_it_is_asked_for(installed: ModuleType, table: Any) -> None:
    (a, b), out, c = factors(), row_major(6, 2, 0x3000), row_major(6, 2, 0x4000)
    assert table.call("mm.out", a, b, out=out) is out
    assert table.call("addmm_", c, a, b, beta=0.5, alpha=-2) is c
    assert values_at(installed, 3, 8, 9) == [-2.0, 0.5, 0x4000]
    assert table.call("addmm.out", c, a, b, out=out) is out
    assert values_at(installed, 3, 8, 9) == [1.0, 1.0, 0x3000]
    assert out.copied is c
    assert not hasattr(c, "copied")


def test_what_is_added_is_copied_into_a_new_result(installed: Any, torch: Any, table: Any) -> None:
    (a, b), c, row = factors(), row_major(6, 2, 0x4000), row_major(1, 2, 0x5000)
    assert table.call("addmm", row, a, b) == OWN  # because the product is small
    installed.LONG = 0
    for added in (c, row):
        assert table.call("addmm", added, a, b, alpha=3).copied is added
        assert values_at(installed, 3, 8) == [3.0, 1.0]
    assert not hasattr(table.call("addmm", c, a, b, beta=0), "copied")
    wide = row_major(6, 2, 0x1000), row_major(2, 90, 0x2000)  # the result is large beside them
    assert table.call("addmm", row_major(1, 90, 0x5000), *wide) == OWN
    assert table.call("addmm", row_major(6, 90, 0x5000), *wide) is torch.made[-1]


# Products that are left to PyTorch


def test_products_of_tf32_are_pytorchs(installed: ModuleType, torch: Any, table: Any) -> None:
    for precision, dtype, is_own in (
        ("none", "float32", False), ("tf32", "float32", True), ("tf32", "float64", False), ("ieee", "float32", False),
    ):  # fmt: skip
        torch.precision = precision
        assert (table.call("mm", *factors(dtype=f"torch.{dtype}")) == OWN) == is_own


def test_where_the_vendor_is_expected_to_be_faster_it_is_pytorchs(installed: Any, table: Any) -> None:
    installed.chosen_or_vendor = choose = Mock(return_value=installed.Vendor("it is faster"))
    for _ in range(3):
        assert table.call("mm", *factors()) == OWN
    ((product, fallback),) = (call.args for call in choose.mock_calls)  # once
    assert (product.shape, fallback) == ((6, 2, 90), "vendor")


def test_the_vendors_product_is_pytorchs(installed: ModuleType, torch: Any, table: Any) -> None:
    """gemm falls back to that product, and times it."""
    torch.mm = lambda a, b: table.call("mm", a, b)
    assert installed.vendors_product(*factors(), None, 1, 0, (False, False)) == OWN
    assert table.call("mm", *factors()) != OWN


def test_what_cannot_be_loaded_is_pytorchs_and_told_once(installed: Any, table: Any) -> None:
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


# Operands, results and summands that no kernel takes


def elsewhere(given: Tensor) -> Tensor:
    """The tensor on another device."""
    given.get_device = lambda: 1
    return given


def negative(rows: int, columns: int, at: int) -> Tensor:
    return row_major(rows, columns, at, is_neg=lambda: True)


def unusual_factors() -> dict[str, tuple[Any, ...]]:
    """Operands of mm."""
    a, b = factors()
    return {
        "a of a subclass": (row_major(6, 90, 0x1000, kind=Masked), b),
        "b of a subclass": (a, row_major(90, 2, 0x2000, kind=Masked)),
        "a negative": (negative(6, 90, 0x1000), b),
        "b negative": (a, negative(90, 2, 0x2000)),
        "of two types": (a, row_major(90, 2, 0x2000, dtype="torch.float64")),
        "on two devices": (a, elsewhere(row_major(90, 2, 0x2000))),
        "of no kernel's type": factors(dtype="torch.float16"),
        "no matrix in memory": (batch((6, 90), 0x1000, (2 * 90, 2)), b),
        "of no fit": (a, a),
        "without elements": (row_major(0, 90, 0), b),
        "a of one dimension": (batch((90,), 0x1000), b),
        "b of one dimension": (a, batch((90,), 0x2000)),
        "without memory": (row_major(6, 90, 0), b),
        "a between elements": (row_major(6, 90, 0x1002), b),
        "b between elements": (a, row_major(90, 2, 0x2002)),
    }


@pytest.mark.parametrize("name", unusual_factors())
def test_what_is_unusual_is_pytorchs_and_decides_for_nothing_else(
    installed: ModuleType, table: Any, name: str
) -> None:
    for launches in (0, 1):
        for _ in range(2):
            assert table.call("mm", *unusual_factors()[name]) == OWN
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
    installed.LONG = 0  # by which products of this size are too small to add a row to
    assert table.call("addmm.out", UNUSUAL_SUMMANDS[name](0x4000), a, b, out=out) == OWN
    assert not hasattr(out, "copied")
    assert table.call("addmm.out", row_major(6, 2, 0x4000), a, b, out=out) is out


@pytest.mark.parametrize("which", ["alpha", "beta"])
@pytest.mark.parametrize("factor", [True, 1e300, 1j])
def test_a_factor_of_no_number_is_pytorchs(installed: Any, table: Any, which: str, factor: Any) -> None:
    assert table.call("addmm", row_major(6, 2, 0x4000), *factors(), **{which: factor}) == OWN


# Batches


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


# Other overrides


def twice(before: Any) -> Any:
    return lambda keys, *operands, **named: ["theirs", before.call_boxed(keys, *operands, **named)]


def test_what_is_left_goes_to_an_earlier_override_until_that_goes(
    overridable: ModuleType, torch: Any, table: Any
) -> None:
    library, (a, _) = table.override("mm", twice), factors()
    before = table.state
    with overridable.installed():
        assert table.call("mm", *factors()) is torch.made[-1]
        assert table.call("mm", a, a) == ["theirs", OWN]
    assert table.state == before
    with overridable.installed():
        library._destroy()
        assert table.call("mm", a, a) == OWN
        assert table.call("mm", *factors()) is torch.made[-1]
    assert len(table.of["aten::mm"]) == 1


def test_removing_an_override_below_a_later_one_is_an_error(overridable: ModuleType, table: Any) -> None:
    earlier, (a, _) = table.override("mm", twice), factors()
    with overridable.installed():
        later = table.override("mm", twice)
        earlier._destroy()
        before = table.state
        with pytest.raises(RuntimeError, match=r"^invalidated"):
            table.call("mm", a, a)
        assert table.state == before
        later._destroy()
        assert table.call("mm", a, a) == OWN


def test_an_error_of_an_earlier_override_is_raised(overridable: ModuleType, table: Any) -> None:
    failing, (a, _) = Mock(side_effect=RuntimeError("does not fit")), factors()
    table.override("mm", lambda before: failing)
    with overridable.installed(), pytest.raises(RuntimeError, match="does not fit"):
        table.call("mm", a, a)
    assert failing.call_count == 1


def test_a_later_override_may_call_ours_after_its_end(overridable: ModuleType, torch: Any, table: Any) -> None:
    overridable.install()
    library = table.override("mm", twice)
    assert table.call("mm", *factors()) == ["theirs", torch.made[-1]]
    overridable.uninstall()
    assert table.call("mm", *factors()) == ["theirs", OWN]
    assert len(table.of["aten::addmm"]) == 1
    library._destroy()
    overridable.install()
    assert table.call("mm", *factors()) is torch.made[-1]
    overridable.uninstall()
    assert all(len(kernels) == 1 for kernels in table.of.values())


def test_scopes_end_with_the_last_one(overridable: ModuleType, table: Any) -> None:
    with overridable.installed():
        with overridable.installed():
            overridable.uninstall()
        assert table.call("mm", *factors()) != OWN
        overridable.install()
    assert table.call("mm", *factors()) != OWN
    for _ in range(2):
        overridable.uninstall()
        assert all(len(kernels) == 1 for kernels in table.of.values())
    assert table.call("mm", *factors()) == OWN


# Overrides after a reload, and what cannot be overridden


def test_an_override_ends_after_its_module_was_reloaded(overridable: ModuleType, torch: Any) -> None:
    before = torch.library.get_kernel("aten::mm", "CUDA")
    overridable.install()
    overridable.__spec__.loader.exec_module(overridable)  # type: ignore[union-attr]  # as importlib.reload does
    overridable.uninstall()
    assert repr(torch.library.get_kernel("aten::mm", "CUDA")) == repr(before)


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


def test_of_a_hosts_kernels_alone_nothing_is_installed(tmp_path: Path, table: Any) -> None:
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
