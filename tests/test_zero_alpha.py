"""At alpha = 0 a product is beta C, as of BLAS: what A and B hold is not read. Factors may be numbers in arrays."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.fabricated import module_of, split_trial
from tests.fake_tensors import Tensor
from tests.modules import OUT, A, B, recorded
from tsm2_tune.generator.problem import Problem
from tsm2_tune.runtime.arrays import libraries


@pytest.fixture
def module(tmp_path: Path) -> ModuleType:
    """A module with a kernel of each kind of product, and a driver that records its calls."""
    problems = Problem(64, 4, 64, "f32"), Problem(64, 4, 64, "minplus_f32")
    module = recorded(module_of(tmp_path, *map(split_trial, problems)))
    module.driver.workspaces = True
    return module


@pytest.fixture
def zeroed(module: ModuleType) -> list[list[int]]:
    """The memory that the driver was asked to fill, and with which value."""
    found = list[list[int]]()

    def fill(*arguments: Any) -> int:
        found.append([one.value for one in arguments])
        return 0

    module.driver.cuMemsetD2D8Async = fill
    return found


@pytest.mark.parametrize("alpha", [0, 0.0, -0.0, np.float32(0), np.zeros(())])
def test_without_a_library_the_driver_writes_zeros(module: ModuleType, zeroed: list[list[int]], alpha: Any) -> None:
    assert module.gemm(A, B, out=OUT, alpha=alpha) is OUT
    module.plan(A, B, OUT, alpha=alpha, stream=7)()
    # Address, bytes between columns, value, bytes of a column, columns, stream.
    assert zeroed == [[0x3000, 32, 0, 24, 2, None], [0x3000, 32, 0, 24, 2, 7]]
    assert module.gemm(A, B, out=OUT, alpha=alpha, beta=1) is OUT
    assert (module.driver.launches, len(zeroed)) == ([], 2)


def test_what_nothing_scales_is_refused(module: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"^alpha = 0 needs a beta of 0 or 1 with arrays that are not all of"):
        module.gemm(A, B, out=OUT, alpha=0, beta=0.5)
    with pytest.raises(ValueError, match=r"^alpha = 0 needs an out with arrays"):
        module.gemm(A, B, alpha=0)


def test_of_minplus_an_alpha_of_0_changes_nothing(module: ModuleType) -> None:
    module.gemm(A, B, out=OUT, alpha=0, math="minplus")
    assert len(module.driver.launches) == 1


@pytest.mark.usefixtures("torch")
def test_the_short_way_does_not_read_them_either(module: Any) -> None:
    scaled = list[Any]()
    module.vendors_product = lambda *arguments: scaled.append(arguments[3:5])
    tensors = [Tensor(one, dtype="torch.float32") for one in (A, B, OUT)]
    for alpha in (None, 2.0, 0.0, 0, 2.0):
        module.gemm(*tensors, alpha=alpha, beta=0.5)
    assert scaled == [(0, 0.5)] * 2
    assert len(module.driver.launches) == 3


@pytest.mark.parametrize("dtype", [np.float32, np.complex128, np.float16])
@pytest.mark.parametrize("beta", [0, 1, 0.5])
def test_a_librarys_own_product_does_not_read_them(dtype: Any, beta: float) -> None:
    a, b, out = np.full((6, 3), np.nan, dtype), np.full((3, 2), np.nan, dtype), np.full((6, 2), 4, dtype)
    out[0, 0] = 4 if beta else np.nan
    assert libraries.vendors_product(a, b, out, 0, beta, (False, False)) is out
    assert (out == 4 * beta).all()
    assert (libraries.vendors_product(a, b, None, 0, 0, (False, False)) == np.zeros((6, 2))).all()


@pytest.mark.host
@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
@pytest.mark.parametrize("beta", [0, 0.5])
def test_on_the_host_a_nan_does_not_reach_out(host_module: ModuleType, beta: float) -> None:
    a, b, out = (
        np.full((6, 3), np.nan, order="F"),
        np.full((3, 2), np.nan, order="F"),
        np.full((6, 2), 4.0, order="F"),
    )
    assert (host_module.gemm(a, b, out=out, alpha=0, beta=beta) == 4 * beta).all()


@pytest.mark.parametrize("factor", [2, np.float64(2), np.float16(2), np.array(2.0), np.array(2), np.array(2, "f4")])
def test_a_number_in_an_array_is_a_factor(module: ModuleType, factor: Any) -> None:
    module.gemm(A, B, out=OUT, alpha=factor, beta=factor)
    module.plan(A, B, OUT, alpha=factor, beta=factor)()
    for launch in module.driver.launches:
        assert (launch["values"][3], launch["values"][8]) == (2.0, 2.0)


@pytest.mark.usefixtures("torch")
def test_a_tensor_on_the_cpu_is_a_factor_and_one_on_a_gpu_is_not(module: ModuleType) -> None:
    def scalar(device: str, *, requires_grad: bool = False) -> Any:
        where = SimpleNamespace(type=device)
        return Tensor(None, ndim=0, device=where, requires_grad=requires_grad, item=lambda: 2.0)

    waits = "it is in a device's memory, and reading it would wait for the device"
    module.gemm(A, B, out=OUT, alpha=scalar("cpu"))
    assert module.driver.launches[-1]["values"][3] == 2.0
    with pytest.raises(TypeError, match=rf"^alpha: {waits}: pass alpha\.item\(\)$"):
        module.gemm(A, B, out=OUT, alpha=scalar("cuda"))
    with pytest.raises(TypeError, match=r"^beta: it requires a gradient, which kernels do not compute"):
        module.gemm(A, B, out=OUT, beta=scalar("cpu", requires_grad=True))
    with pytest.raises(TypeError, match=rf"^alpha: {waits}: pass alpha\.item\(\)$"):
        module.plan(A, B, OUT, alpha=scalar("cuda"))


@pytest.mark.parametrize("factor", [np.ones(1), np.ones((1, 1)), [2.0], "2", np.array("2"), np.array(2j)])
def test_anything_else_is_no_factor(module: ModuleType, factor: Any) -> None:
    with pytest.raises(TypeError, match=r"^beta: expected a real number, got "):
        module.gemm(A, B, out=OUT, beta=factor)


def test_managed_memory_is_of_the_gpu(module: ModuleType) -> None:
    def attribute(value: Any, attribute: int, address: Any) -> int:
        value._obj.value = {8: 1, 9: -2}.get(attribute, 0)
        return 0

    module.driver.cuPointerGetAttribute = attribute
    module.gemm(A, B, out=OUT)
    assert len(module.driver.launches) == 1


def test_memory_of_the_host_is_none(module: ModuleType) -> None:
    module.driver.cuPointerGetAttribute = lambda value, attribute, address: 0 if attribute == 8 else 1
    with pytest.raises(ValueError, match="a: its address 0x1000 is not memory of a CUDA device"):
        module.gemm(A, B, out=OUT)
