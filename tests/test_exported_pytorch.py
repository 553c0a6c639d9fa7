"""The real PyTorch with an exported module, on a GPU that is pretended; tests/tensors_on_gpu.py has more tensors."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.fabricated import GPU, module_of
from tests.modules import launched_on
from tests.pretended_gpu import pretend
from tests.torch_checks import CHECKS, is_untouched, trials_of_all
from tests.torch_programs import PROGRAMS

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.fixture
def real(module: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """PyTorch, whose CPU tensors describe their memory as those of a GPU do."""
    described = torch.Tensor.__cuda_array_interface__.fget

    class OnGpu:
        """The tensor, said to be on a GPU."""

        is_cuda = True

        def __init__(self, tensor: Any) -> None:
            self.tensor = tensor

        def __getattr__(self, name: str) -> Any:
            return getattr(self.tensor, name)

    def interface(tensor: Any) -> Any:
        if tensor.device.type == "meta":
            raise AttributeError("no memory")
        monkeypatch.setattr("torch._tensor.has_torch_function_unary", lambda _: False)
        return described(OnGpu(tensor))

    monkeypatch.setattr(torch.Tensor, "__cuda_array_interface__", property(interface))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=77))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 77, raising=False)
    module.home = lambda matrix: (0xC0, 0)
    return torch


def test_other_tensors_of_pytorch(module: ModuleType, real: Any, recwarn: pytest.WarningsRecorder) -> None:
    one = real.ones(3, 3)
    refused = {
        "requires a gradient": one.clone().requires_grad_(),
        "is sparse": one.to_sparse(),
        "is nested": real.nested.nested_tensor([one, one]),
        "is of a subclass": real.nested.nested_tensor([one, one], layout=real.jagged),
        "is quantised": real.quantize_per_tensor(one, 0.1, 0, real.qint8),
        "expected a device array": real.empty(3, 3, device="meta"),
    }
    for message, tensor in refused.items():
        with pytest.raises(TypeError, match=f"^a: .*{message}"):
            module.choice(tensor, one)
    with pytest.raises(ValueError, match="pass a contiguous copy"):
        module.choice(real.ones(3, 1).expand(3, 3), one)
    assert module.choice(real.nn.Parameter(one, requires_grad=False), one).winner.dtype == "f32"
    assert launched_on(module, one, real.ones(3, 3), real.empty(3, 3))[0] == 77


def test_a_cpu_tensor_is_no_operand(module: ModuleType) -> None:
    x = torch.ones(3, 3, dtype=torch.complex64)
    for tensor in (x, x.mH):
        with pytest.raises(TypeError, match=r"^a: expected a device array .* got Tensor"):
            module.gemm(tensor, x)


@pytest.fixture(scope="module")
def real_module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return module_of(tmp_path_factory.mktemp("module"), *trials_of_all(GPU, "9.0", 132))


@pytest.mark.filterwarnings("ignore")  # warnings of Inductor
@pytest.mark.parametrize("check", CHECKS | PROGRAMS)
def test_products_are_pytorchs(real_module: ModuleType, check: str) -> None:
    pretend(real_module)
    torch.set_num_threads(1)  # enough for this size: other tests share the machine
    is_untouched((CHECKS | PROGRAMS)[check], real_module, "cpu")
