"""Overrides of PyTorch's operators by another package beside the module's own, which come and go in any order."""

from __future__ import annotations

from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest

from tests.fake_dispatcher import OWN
from tests.fake_tensors import factors


@pytest.fixture
def table(torch: Any) -> Any:
    """PyTorch's table of what computes an operator."""
    return torch.table


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


def test_an_override_ends_after_its_module_was_reloaded(overridable: ModuleType, table: Any) -> None:
    before = table.state
    overridable.install()
    overridable.__spec__.loader.exec_module(overridable)  # type: ignore[union-attr]  # as importlib.reload does
    overridable.uninstall()
    assert table.state == before
