"""Batches of device arrays: what a kernel of an exported module is given, and what the arrays' library computes."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.call_log import logged
from tests.fabricated import device_array, module_of, split_trial, trial
from tests.library_arrays import GPUArray, array_of
from tests.modules import recorded
from tests.spelling import spelt
from tsm2_tune.generator.problem import Problem

KINDS = ("interface", "torch", "cupy", "pycuda")
SMALL = "small:threads=64,kilobytes=8,thread=2x2,stages=2,padding=0,direct=0,min_blocks=2,blocks=16,extents=0x0x0"
A, B, OUT = 0x1000, 0x4000, 0x8000


@pytest.fixture(autouse=True)
def libraries(torch: Any, cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycuda.gpuarray", SimpleNamespace(GPUArray=GPUArray))


@pytest.fixture
def sharing(tmp_path: Path) -> ModuleType:
    """A module of a kernel whose 16 blocks share a batch, for row-major matrices, and of one for single products."""
    problem = Problem(4, 3, 5, "f32", "ttt", batch=1000)
    trials = trial(problem=problem, config=spelt(SMALL)), trial(problem=Problem(64, 4, 64, "f32", "ttt"))
    module = recorded(module_of(tmp_path, *trials))
    module.driver.has_batches = True
    return module


@pytest.fixture
def each(tmp_path: Path) -> ModuleType:
    """A module of a kernel that splits k in 3, with tiles of 32 x 4 and one product for each z."""
    problem = Problem(64, 4, 64, "f32", batch=9)
    module = recorded(module_of(tmp_path, split_trial(problem)))
    module.driver.has_batches = module.driver.workspaces = True
    return module


def array(kind: str, shape: tuple[int, ...], strides: tuple[int, ...], at: int) -> Any:
    """Return a float32 array of the library with these strides in elements."""
    described = device_array(shape, tuple(4 * one for one in strides), at=at)
    return array_of(kind, described)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kernel_gets_the_products_and_their_strides(sharing: ModuleType, kind: str) -> None:
    """Also in later calls, which skip the checks, and of a plan."""
    a, b = array(kind, (7, 4, 5), (25, 6, 1), A), array(kind, (7, 5, 3), (0, 3, 1), B)
    out = array(kind, (7, 4, 3), (17, 4, 1), OUT)
    values = [4, 3, 5, 1.0, A, 6, B, 3, 0.0, OUT, 4, 7, 25, 0, 17]
    for _ in range(2):
        assert sharing.gemm(a, b, out=out) is out
    assert sharing.plan(a, b, out)() is out
    sharing.gemm(a, b, out=out, alpha=2, beta=3)
    launches = sharing.driver.launches
    assert [launch["values"] for launch in launches[:3]] == [values] * 3
    assert (launches[3]["values"][3], launches[3]["values"][8]) == (2.0, 3.0)
    assert {tuple(launch["grid"]) for launch in launches} == {(16, 1, 1)}


@pytest.mark.parametrize("kind", KINDS)
def test_each_product_has_a_part_of_the_workspace(each: ModuleType, kind: str) -> None:
    a, b = array(kind, (4, 33, 10), (450, 1, 40), A), array(kind, (4, 10, 5), (60, 1, 11), B)
    out = array(kind, (4, 33, 5), (165, 1, 33), OUT)
    each.gemm(a, b, out=out, stream=77)
    (launch,) = each.driver.launches
    partials, counters = launch["values"][11:13]
    assert launch["values"][:11] == [33, 5, 10, 1.0, A, 40, B, 11, 0.0, OUT, 33]
    assert launch["values"][13:] == [4, 450, 60, 165, 3 * 4 * 32 * 4, 4]
    assert launch["grid"] == [4, 3, 4]
    assert each.driver.zeroed == [(counters, 4 * 4, 77)]
    if kind in ("interface", "pycuda"):
        assert each.driver.memory == {partials: 4 * 4 * 3 * 4 * 32 * 4, counters: 4 * 4 * 4}


@pytest.mark.parametrize("kind", ["torch", "cupy"])
def test_a_new_array_has_the_kernels_order(sharing: ModuleType, kind: str) -> None:
    made = sys.modules[kind].made
    a, b = array(kind, (2, 3, 4, 5), (60, 20, 5, 1), A), array(kind, (2, 3, 5, 3), (45, 15, 3, 1), B)
    for _ in range(2):
        assert sharing.gemm(a, b) is made[-1]
        assert made[-1].shape == (2, 3, 4, 3)
        launch = sharing.driver.launches[-1]["values"]
        assert launch == [4, 3, 5, 1.0, A, 5, B, 3, 0.0, 0x6000, 3, 6, 20, 15, 12]
    strides = made[-1].stride() if kind == "torch" else tuple(one // 4 for one in made[-1].strides)
    assert strides == (36, 12, 3, 1)


@pytest.mark.parametrize("kind", ["torch", "cupy"])
def test_a_new_array_of_columns_has_columns_in_each_product(each: ModuleType, kind: str) -> None:
    a, b = array(kind, (2, 64, 64), (4096, 1, 64), A), array(kind, (2, 64, 4), (256, 1, 64), B)
    for _ in range(2):
        out = each.gemm(a, b)
        strides = out.stride() if kind == "torch" else tuple(one // 4 for one in out.strides)
        assert (out.shape, strides) == ((2, 64, 4), (256, 1, 64))
        assert each.driver.launches[-1]["values"][9:11] == [0x6000, 64]
        assert each.driver.launches[-1]["values"][13:17] == [2, 4096, 256, 256]


def test_a_batch_of_one_matrix_is_one_long_product(sharing: ModuleType, torch: Any) -> None:
    sharing.driver.has_batches = False
    a, b = array("torch", (7, 4, 5), (24, 6, 1), A), array("torch", (5, 3), (3, 1), B)
    for _ in range(2):
        out = sharing.gemm(a, b)
        assert (out.shape, out.stride()) == ((7, 4, 3), (12, 3, 1))
        assert sharing.driver.launches[-1]["values"] == [28, 3, 5, 1.0, A, 6, B, 3, 0.0, 0x6000, 3]


@pytest.mark.parametrize("kind", ["torch", "cupy"])
def test_the_library_computes_what_is_no_batch(sharing: ModuleType, kind: str) -> None:
    """The operands are one dimension each, but b is repeated along one of two dimensions."""
    asked = list[Any]()
    library: Any = sys.modules[kind]
    library.matmul = lambda a, b, out=None: logged(asked, (a, b), out)
    a, b = array(kind, (2, 3, 4, 5), (60, 20, 5, 1), A), array(kind, (3, 5, 3), (15, 3, 1), B)
    out = array(kind, (2, 3, 4, 3), (36, 12, 3, 1), OUT)
    assert "are not one dimension of each array" in sharing.choice(a, b, out).reason
    for _ in range(2):
        assert sharing.gemm(a, b, out=out) is out
    assert asked == [(a, b)] * 2
    with pytest.raises(ValueError, match="are not one dimension of each array"):
        sharing.gemm(a, b, out=out, fallback="error")
    assert not sharing.driver.launches


@pytest.mark.parametrize("kind", ["interface", "pycuda"])
def test_other_arrays_have_no_library(sharing: ModuleType, kind: str) -> None:
    a, b = array(kind, (2, 3, 4, 5), (60, 20, 5, 1), A), array(kind, (3, 5, 3), (15, 3, 1), B)
    with pytest.raises(ValueError, match="are not one dimension of each array"):
        sharing.gemm(a, b, out=array(kind, (2, 3, 4, 3), (36, 12, 3, 1), OUT))


@pytest.mark.parametrize("kind", KINDS)
def test_no_products_start_nothing(sharing: ModuleType, kind: str) -> None:
    out = array(kind, (0, 4, 3), (12, 3, 1), OUT)
    assert sharing.gemm(array(kind, (0, 4, 5), (20, 5, 1), A), array(kind, (0, 5, 3), (15, 3, 1), B), out=out) is out
    assert not sharing.driver.launches


@pytest.mark.parametrize(
    ("strides", "places"),
    [
        ((12, 3, 1), [(OUT, 12, 12, 28)]),  # contiguous: one call
        ((16, 4, 1), [(OUT, 16, 12, 28)]),
        ((17, 4, 1), [(OUT + 68 * at, 16, 12, 4) for at in range(7)]),
    ],
)
def test_zeros_are_written_into_each_matrix(
    sharing: ModuleType, monkeypatch: pytest.MonkeyPatch, strides: tuple[int, ...], places: list[Any]
) -> None:
    found = list[Any]()

    def fill(address: Any, pitch: Any, value: Any, width: Any, height: Any, stream: Any) -> int:
        return logged(found, (address.value, pitch.value, width.value, height.value), 0)

    sharing.driver.cuMemsetD2D8Async = fill
    a, b = array("interface", (7, 4, 5), (20, 5, 1), A), array("interface", (7, 5, 3), (15, 3, 1), B)
    out = array("interface", (7, 4, 3), strides, OUT)
    assert sharing.gemm(a, b, out=out, alpha=0) is out
    assert found == places
