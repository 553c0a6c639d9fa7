"""PyTorch's own operators, overridden: what they are asked and what a kernel takes of it, without PyTorch."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest

from tests.fabricated import (
    exported,
    host_run,
    imported,
    module_of,
    trial,
    tuning_run,
    winners,
)
from tests.fake_dispatcher import OWN
from tests.fake_tensors import Parameter, factors, row_major
from tests.modules import launched_values

# Products that are taken


def test_a_product_is_computed_by_a_kernel_in_a_new_row_major_tensor(overridable: ModuleType, torch: Any) -> None:
    a, b = factors()
    with overridable.installed():
        for _ in range(2):
            found = torch.table.call("mm", a, b)
            assert found is torch.made[-1]
            assert (found.shape, found.stride()) == ((6, 2), (2, 1))
    launched = launched_values(overridable)
    assert [launched[at] for at in (3, 4, 5, 6, 7, 8, 9)] == [1.0, 0x1000, 90, 0x2000, 2, 0.0, found.data_ptr()]
    assert len(overridable.driver.launches) == 2
    assert torch.table.call("mm", a, b) == OWN


def test_the_result_is_where_it_is_asked_for(overridable: ModuleType, torch: Any) -> None:
    (a, b), out, c = factors(), row_major(6, 2, 0x3000), row_major(6, 2, 0x4000)
    with overridable.installed():
        assert torch.table.call("mm.out", a, b, out=out) is out
        assert torch.table.call("addmm_", c, a, b, beta=0.5, alpha=-2) is c
        assert [launched_values(overridable)[at] for at in (3, 8, 9)] == [-2.0, 0.5, 0x4000]
        assert torch.table.call("addmm.out", c, a, b, out=out) is out
        assert [launched_values(overridable)[at] for at in (3, 8, 9)] == [1.0, 1.0, 0x3000]
    assert out.copied is c
    assert not hasattr(c, "copied")


def test_what_is_added_is_copied_into_a_new_result(overridable: Any, torch: Any) -> None:
    (a, b), c, row = factors(), row_major(6, 2, 0x4000), row_major(1, 2, 0x5000)
    with overridable.installed():
        assert torch.table.call("addmm", row, a, b) == OWN  # because the product is small
        overridable.LONG = 0
        for added in (c, row):
            assert torch.table.call("addmm", added, a, b, alpha=3).copied is added
            assert [launched_values(overridable)[at] for at in (3, 8)] == [3.0, 1.0]
        assert not hasattr(torch.table.call("addmm", c, a, b, beta=0), "copied")
        wide = row_major(6, 2, 0x1000), row_major(2, 90, 0x2000)  # the result is large beside them
        assert torch.table.call("addmm", row_major(1, 90, 0x5000), *wide) == OWN
        assert torch.table.call("addmm", row_major(6, 90, 0x5000), *wide) is torch.made[-1]


def test_a_tensor_that_requires_a_gradient_is_its_memory(overridable: ModuleType, torch: Any) -> None:
    a, _ = factors(requires_grad=True)
    torch.is_grad_enabled = lambda: False
    with overridable.installed():
        assert torch.table.call("mm", a, row_major(90, 2, 0x2000, kind=Parameter)) is torch.made[-1]


# Products that are left to PyTorch (test_overriding_operands.py has their operands)


def test_products_of_tf32_are_pytorchs(overridable: ModuleType, torch: Any) -> None:
    with overridable.installed():
        assert torch.table.call("mm", *factors()) != OWN
        torch.precision = "tf32"
        assert torch.table.call("mm", *factors()) == OWN
        assert torch.table.call("mm", *factors(dtype="torch.float64")) != OWN
        torch.precision = "ieee"
        assert torch.table.call("mm", *factors()) != OWN


def test_where_the_vendor_is_expected_to_be_faster_it_is_pytorchs(overridable: Any, torch: Any) -> None:
    choose = Mock(return_value=overridable.Vendor("it is faster"))
    overridable.chosen_or_vendor = choose
    with overridable.installed():
        for _ in range(3):
            assert torch.table.call("mm", *factors()) == OWN
    ((product, fallback),) = (call.args for call in choose.mock_calls)  # once
    assert (product.shape, fallback) == ((6, 2, 90), "vendor")


def test_the_vendors_product_is_pytorchs(overridable: ModuleType, torch: Any) -> None:
    """gemm falls back to that product, and times it."""
    torch.matmul = lambda a, b: torch.table.call("mm", a, b)
    with overridable.installed():
        assert overridable.vendors_product(*factors(), None, 1, 0, (False, False)) == OWN
        assert torch.table.call("mm", *factors()) != OWN


def test_what_cannot_be_loaded_is_pytorchs_and_told_once(overridable: Any, torch: Any) -> None:
    overridable.cubin_of = Mock(side_effect=RuntimeError("no compiler"))
    with overridable.installed():
        with pytest.warns(RuntimeWarning, match="^left to PyTorch: no compiler"):
            assert torch.table.call("mm", *factors()) == OWN
        assert torch.table.call("mm", *factors()) == OWN


@pytest.mark.parametrize("step", ["prepare_launch", "start"])
def test_without_room_for_a_workspace_it_is_pytorchs_for_now(
    overridable: ModuleType, torch: Any, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    with overridable.installed():
        where = overridable if step == "prepare_launch" else overridable.Plan
        plain = getattr(where, step)
        setattr(where, step, Mock(side_effect=MemoryError))
        assert torch.table.call("mm", *factors()) == OWN
        setattr(where, step, plain)
        assert torch.table.call("mm", *factors()) != OWN


def test_a_kernel_that_is_not_loaded_is_left_out_of_a_capture(overridable: ModuleType, torch: Any) -> None:
    torch.stream = 77
    overridable.driver.capturing = {77}
    with overridable.installed():
        assert torch.table.call("mm", *factors()) == OWN
        overridable.driver.capturing = set()
        assert torch.table.call("mm", *factors()) != OWN
        overridable.driver.capturing = {77}
        assert torch.table.call("mm", *factors()) != OWN
        overridable.plans.clear()
        assert torch.table.call("mm", *factors()) != OWN  # which is loaded


# Other overrides


def twice(before: Any) -> Any:
    return lambda keys, *operands, **named: ["theirs", before.call_boxed(keys, *operands, **named)]


def test_what_is_left_goes_to_an_earlier_override(overridable: ModuleType, torch: Any) -> None:
    library = torch.table.override("mm", twice)
    before = torch.table.state
    with overridable.installed():
        assert torch.table.call("mm", *factors()) is torch.made[-1]
        a, _ = factors()
        assert torch.table.call("mm", a, a) == ["theirs", OWN]
    assert torch.table.state == before
    library._destroy()


def test_removing_an_override_below_a_later_one_is_an_error(overridable: ModuleType, torch: Any) -> None:
    earlier, (a, _) = torch.table.override("mm", twice), factors()
    with overridable.installed():
        later = torch.table.override("mm", twice)
        earlier._destroy()
        before = torch.table.state
        with pytest.raises(RuntimeError, match=r"^invalidated"):
            torch.table.call("mm", a, a)
        assert torch.table.state == before
        later._destroy()
        assert torch.table.call("mm", a, a) == OWN


def test_an_earlier_override_that_goes_is_no_longer_called(overridable: ModuleType, torch: Any) -> None:
    library, (a, _) = torch.table.override("mm", twice), factors()
    with overridable.installed():
        library._destroy()
        assert torch.table.call("mm", a, a) == OWN
        assert torch.table.call("mm", *factors()) is torch.made[-1]
    assert len(torch.table.of["aten::mm"]) == 1


def test_an_error_of_an_earlier_override_is_raised(overridable: ModuleType, torch: Any) -> None:
    failing, (a, _) = Mock(side_effect=RuntimeError("does not fit")), factors()
    torch.table.override("mm", lambda before: failing)
    with overridable.installed(), pytest.raises(RuntimeError, match="does not fit"):
        torch.table.call("mm", a, a)
    assert failing.call_count == 1


def test_a_later_override_may_call_ours_after_its_end(overridable: ModuleType, torch: Any) -> None:
    overridable.install()
    library = torch.table.override("mm", twice)
    assert torch.table.call("mm", *factors()) == ["theirs", torch.made[-1]]
    overridable.uninstall()
    assert torch.table.call("mm", *factors()) == ["theirs", OWN]
    assert len(torch.table.of["aten::addmm"]) == 1
    library._destroy()
    overridable.install()
    assert torch.table.call("mm", *factors()) is torch.made[-1]
    overridable.uninstall()
    assert all(len(kernels) == 1 for kernels in torch.table.of.values())


def test_scopes_end_with_the_last_one(overridable: ModuleType, torch: Any) -> None:
    def is_there() -> bool:
        return bool(torch.table.call("mm", *factors()) != OWN)

    with overridable.installed():
        with overridable.installed():
            overridable.uninstall()
        assert is_there()
        overridable.install()
    assert is_there()
    overridable.uninstall()
    assert not is_there()
    overridable.uninstall()
    assert all(len(kernels) == 1 for kernels in torch.table.of.values())


# Overrides after a reload, and without PyTorch


def test_an_override_ends_after_its_module_was_reloaded(overridable: ModuleType, torch: Any) -> None:
    before = torch.library.get_kernel("aten::mm", "CUDA")
    overridable.install()
    overridable.__spec__.loader.exec_module(overridable)  # type: ignore[union-attr]  # as importlib.reload does
    overridable.uninstall()
    assert repr(torch.library.get_kernel("aten::mm", "CUDA")) == repr(before)


def test_without_pytorch_it_is_said(overridable: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(RuntimeError, match=r"^it needs PyTorch: "):
        overridable.install()


def test_an_old_pytorch_is_told(overridable: ModuleType, torch: Any) -> None:
    del torch.library.get_kernel
    torch.__version__ = "2.8.0"
    with pytest.raises(RuntimeError, match=r"^install: PyTorch 2\.8\.0 is too old: 2\.9 or later is needed"):
        overridable.install()


def test_a_pytorch_without_gpus_is_told(overridable: Any, torch: Any) -> None:
    overridable.KEY_OF_GPUS = "XPU"
    with pytest.raises(RuntimeError, match=r"^install: this PyTorch is built for no GPU: no kernel for XPU"):
        overridable.install()
    overridable.uninstall()


def test_of_a_hosts_kernels_alone_nothing_is_installed(tmp_path: Path, torch: Any) -> None:
    for trials in ([(host_run(), trial())], [(host_run(), trial()), trial()]):
        refused = pytest.raises(RuntimeError, match=r"^install: this module has no kernel for a GPU")
        with refused if len(trials) == 1 else nullcontext(), module_of(tmp_path, *trials).installed():
            assert len(torch.table.of["aten::mm"]) == 2


def test_modules_that_differ_have_names_that_differ(tmp_path: Path) -> None:
    found = winners(tmp_path, (tuning_run(), trial()))
    files = ("one.db", "other.db", "one.db")
    one, other, again = (imported(exported("module", found, file), tmp_path).IDENTITY for file in files)
    assert one == again != other
    assert len(one) == 64
