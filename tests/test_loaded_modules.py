"""An exported module works however it is loaded, under any name, and beside its own copies."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fabricated import exported, trial, tuning_run, winners
from tests.modules import OUT, A, B, loaded, recorded
from tests.processes import python


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("module") / "kernels.py"
    path.write_text(exported("module", winners(path.parent, (tuning_run(), trial()))), encoding="utf-8")
    return path


def by_runpy(path: Path) -> Any:
    return SimpleNamespace(**runpy.run_path(str(path)))


def by_exec(path: Path) -> Any:
    names: dict[str, Any] = {"__name__": "somewhere.else"}
    exec(compile(path.read_text(encoding="utf-8"), "kernels", "exec"), names)
    return SimpleNamespace(**names)


@pytest.mark.parametrize("load", [loaded, by_runpy, by_exec])
def test_a_module_need_not_be_listed(load: Callable[[Path], Any], path: Path) -> None:
    module = load(path)
    assert not {"never_listed", "somewhere.else", "<run_path>"} & sys.modules.keys()
    assert module.WINNERS[0].config.startswith("tsm2:")
    with pytest.raises(TypeError, match=r"^a: expected a device array"):
        module.gemm([1], [2])


def test_two_copies_work_beside_each_other(path: Path) -> None:
    copies = [recorded(loaded(path, name)) for name in ("one", "other")]
    for module in copies:
        assert module.gemm(A, B, out=OUT) is OUT
        assert module.choice(A, B, OUT).winner is module.WINNERS[0]
        assert len(module.driver.launches) == 1


def test_an_import_loads_no_module_that_only_few_calls_use(path: Path) -> None:
    late = ("concurrent.futures", "pathlib", "shutil", "statistics", "subprocess", "tempfile")
    code = (
        f"import sys, numpy; [sys.modules.pop(name, None) for name in {late}]; import kernels;"
        f"print([name for name in {late} if name in sys.modules])"
    )
    assert python("-c", code, cwd=path.parent, check=True).stdout == "[]\n"
