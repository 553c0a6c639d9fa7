"""PyTorch's products by an exported module, with the real PyTorch, on a GPU that is pretended."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.fabricated import GPU, exported, imported, winners
from tests.pretended_gpu import pretend
from tests.torch_checks import CHECKS, is_untouched, trials_of_all
from tests.torch_programs import PROGRAMS

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.fixture(scope="module")
def real_module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    folder = tmp_path_factory.mktemp("module")
    return imported(exported("module", winners(folder, *trials_of_all(GPU, "9.0", 132))), folder)


@pytest.fixture
def best(real_module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pretend(real_module, monkeypatch)
    torch.set_num_threads(1)  # enough for this size: other tests share the machine
    return real_module


@pytest.mark.filterwarnings("ignore")  # warnings of Inductor
@pytest.mark.parametrize("check", CHECKS | PROGRAMS)
def test_products_are_pytorchs(best: ModuleType, check: str) -> None:
    is_untouched((CHECKS | PROGRAMS)[check], best, "cpu")
