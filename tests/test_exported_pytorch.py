"""PyTorch's own tensors, which a GPU is pretended for, as operands of an exported module."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.modules import launched_on


@pytest.fixture
def real(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Any:
    """PyTorch, whose CPU tensors describe their memory as those of a GPU do."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
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
    monkeypatch.setattr(module, "home", lambda matrix: (0xC0, 0))
    return torch


def test_conjugates_of_pytorch(module: ModuleType, real: Any) -> None:
    x, y = real.randn(64, 6, dtype=real.complex64).T.contiguous().T, real.randn(2, 64, dtype=real.complex64).T
    assert module.choice(x.mH, y).winner.op == "cn"
    assert module.choice(x.mT, y).winner.op == "tn"
    assert module.choice(x.mH, y, conj_a=True).winner.op == "tn"
    assert module.choice(x.mH.resolve_conj().T.contiguous().T, y).winner.op == "nn"
    wide = real.randn(64, 3, dtype=real.complex64).T
    assert module.choice(wide.mH, wide).winner.op == "cx"
    with pytest.raises(TypeError, match=r"^out: its conjugate bit is set"):
        module.gemm(x.mH, y, out=real.empty(2, 6, dtype=real.complex64).mH)


def test_imaginary_parts_of_conjugates_of_pytorch(module: ModuleType, real: Any) -> None:
    x = real.randn(6, 1, dtype=real.complex64).conj().imag  # a vector has a leading dimension of 2
    ones = real.ones(1, 1)
    with pytest.raises(TypeError, match=r"^a: it is to be negated.*: pass a\.resolve_neg\(\)$"):
        module.choice(x, ones)
    assert module.choice(x.resolve_neg(), ones).winner.dtype == "f32"


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


def test_the_short_way_of_pytorch(module: ModuleType, real: Any, long_products: list[Any]) -> None:
    def columns(rows: int, columns: int) -> Any:
        return real.randn(columns, rows, dtype=real.complex64).T

    for turn in range(3):
        a, b, out = columns(6, 64), columns(64, 2), columns(6, 2)
        assert module.gemm(a, b, out=out) is out
        launch = module.driver.launches[turn]
        assert launch["stream"] == 77
        assert [launch["values"][at] for at in (0, 1, 2, 4, 6, 9)] == [6, 2, 64, *(x.data_ptr() for x in (a, b, out))]
    assert len(long_products) == 1
    module.gemm(columns(64, 6).mH, b, out=out)  # another product
    module.gemm(columns(64, 6).mT, b, out=out)  # and another
    assert (len(long_products), len(module.driver.launches)) == (3, 5)
    no_memory = real._efficientzerotensor((2, 64), dtype=real.complex64).T
    for wrong in (b.requires_grad_(), real._neg_view(columns(64, 2)), columns(64, 2).to_sparse(), no_memory):
        with pytest.raises(TypeError, match=r"^b: it "):
            module.gemm(a, wrong, out=out)
    with pytest.raises(ValueError, match="shares memory"):
        module.gemm(a, columns(64, 2), out=a[:, :2])


def test_a_cpu_tensor_is_no_operand(module: ModuleType) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = torch.ones(3, 3, dtype=torch.complex64)
    for tensor in (x, x.mH):
        with pytest.raises(TypeError, match=r"^a: expected a device array .* got Tensor"):
            module.gemm(tensor, x)
