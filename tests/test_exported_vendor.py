"""Tests of products that an exported module leaves to the arrays' library, and so to the vendor's kernels."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.call_log import logged
from tests.fabricated import GPU, device_array, module_of, tuning_run
from tests.fake_tensors import Tensor, conjugate, f32, matrix
from tests.recording_driver import attach, cubin
from tsm2_tune.generator.problem import Problem


def tensors() -> list[Tensor]:
    return [Tensor(f32(at), dtype="torch.float32", ndim=2) for at in (0x1000, 0x2000, 0x3000)]


def test_what_the_vendor_is_faster_at_is_left_to_it(losing: ModuleType) -> None:
    a, b, out = tensors()
    chosen = losing.choice(a, b, out)
    assert isinstance(chosen, losing.Vendor)
    assert re.search(
        r"tuned for this shape; with the L2 clean 500\.0 us measured, cublasSgemm 400\.0 us$", str(chosen)
    )
    assert losing.choice(a, b, out, fallback="error").winner.x_cublas == 0.8
    assert losing.gemm(a, b, out=out, alpha=2) is out
    losing.Product.of = None  # then by the short way
    assert losing.gemm(a, b, out=out, beta=1) is out
    assert losing.asked == [(a, b, 2, 0), (a, b, 1, 1)]


@pytest.mark.parametrize("is_own", [False, True])
def test_kernel_that_does_not_compile_is_left_to_the_vendor(tmp_path: Path, torch: Any, is_own: bool) -> None:
    """This GPU's own was tuned here: that it does not compile is told."""
    tuned_on = tuning_run() if is_own else tuning_run("NVIDIA B200", compute_capability="10.0")
    module: Any = module_of(tmp_path, Problem(4, 4, 4, "f32"), run=tuned_on)
    compiled, asked = list[str](), list[Any]()

    def compiled_here(text: str, bits: int, arch: str) -> bytes:
        compiled.append(arch)
        raise RuntimeError("NVRTC does not compile it")

    attach(module, compiled_here=compiled_here)
    torch.addmm = lambda c, a, b, *, beta, alpha, out: logged(asked, (a, b), out)
    a, b, out = tensors()
    said = "this module has no binary for sm_90a, and NVRTC does not compile it"
    for _ in range(2):
        with pytest.raises(RuntimeError, match=said):
            module.gemm(a, b, out=out, fallback="error")
        with pytest.raises(RuntimeError, match=said) if is_own else nullcontext():
            assert module.gemm(a, b, out=out) is out
    assert (len(asked), compiled) == (0 if is_own else 2, ["sm_90a"])
    if not is_own:
        for given in ((a, b, out), (a, b)):
            assert said in module.choice(*given).reason
        module.why_not_compiled = lambda *_: None
    for given in ((a, b, out), (a, b)):
        assert isinstance(module.choice(*given), module.Match)


@pytest.mark.parametrize("has_out", [False, True])
def test_a_stream_is_the_vendors_too(losing: Any, torch: Any, has_out: bool) -> None:
    streams = list[int]()
    losing.at_stream = lambda array, handle: logged(streams, handle, nullcontext())
    torch.stream = 77
    torch.matmul = lambda a, b: logged(losing.asked, (a, b), "made")
    a, b, out = tensors()
    for stream in (None, None, 5):
        losing.gemm(a, b, out=out if has_out else None, stream=stream)
    assert len(losing.asked) == 3
    assert streams == [77, 5]  # the second one took the short way, on the stream that is current


@pytest.mark.parametrize("is_right", [0, 1])
def test_the_vendors_times_count_where_its_answer_was_right(tmp_path: Path, torch: Any, is_right: int) -> None:
    beside: dict[str, Any] = {"cublas_us": 400.0, "cublas_right": is_right, "cublas_routine": "cublasSgemm"}
    module = module_of(tmp_path, Problem(4, 4, 4, "f32"), **beside)
    assert module.match(4, 4, 4, "f32", GPU).vendor_us == (400.0 if is_right else None)
    assert module.match(4, 4, 5, "f32", GPU).is_vendor_chosen == bool(is_right)  # no time can be predicted there


def test_without_a_fallback_nothing_is_left_to_the_vendor(losing: ModuleType) -> None:
    driver = attach(losing, cubin_of=cubin)
    a, b, out = tensors()
    for _ in range(2):
        losing.gemm(a, b, out=out)
        losing.gemm(a, b, out=out, fallback="error")
    assert (len(losing.asked), len(driver.launches)) == (2, 2)


def beside_a_long_b(at_out: int) -> tuple[Tensor, ...]:
    """Return column-major a, b and out of 32, 1024 and 512 bytes, b at 0x2000."""
    lies = (((2, 4), (4, 8), 0x1000), ((4, 64), (4, 16), 0x2000), ((2, 64), (4, 8), at_out))
    return tuple(
        Tensor(device_array(shape, strides, at=at), dtype="torch.float32", ndim=2) for shape, strides, at in lies
    )


def test_an_out_in_the_end_of_b_is_refused_on_the_short_way(losing: ModuleType, torch: Any) -> None:
    losing.gemm(*beside_a_long_b(0x3000)[:2], out=beside_a_long_b(0x3000)[2])
    a, b, out = beside_a_long_b(0x2000 + 1016)
    with pytest.raises(ValueError, match="out: it shares memory with b"):
        losing.gemm(a, b, out=out)
    assert len(losing.asked) == 1


def test_a_conjugate_that_is_left_to_the_vendor_is_one_already(module: ModuleType, torch: Any) -> None:
    asked = list[Any]()
    torch.addmm = lambda c, a, b, *, beta, alpha, out: logged(asked, (a, b), out)
    a, b, out = conjugate(matrix(6, 3)), Tensor(matrix(3, 2, at=0x2000)), Tensor(matrix(6, 2, at=0x3000))
    for one in (a, b, out):
        one.ndim = 2
    assert module.gemm(a, b, out=out, alpha=2) is out  # no kernel is for it
    assert asked == [(a, b)]
