"""The exported module: how it matches a product to a kernel, what it refuses, and what runs on the host."""

from __future__ import annotations

import ast
import math
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.fabricated import (
    GPU,
    configuration,
    device_array,
    exported,
    handmade,
    host_run,
    imported,
    trial,
    tuning_run,
    winners,
)
from tests.modules import A, B
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.tuner.export.module import packed

HOST = host_run()

# The module's choice


@pytest.fixture(scope="module")
def gpu_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    k40 = tuning_run("Tesla K40c", compute_capability="3.5")
    shapes = [Problem(20480, n, 20480, "f32") for n in (4, 16)] + [Problem(10**7, 8, 8, "f32")]
    found = winners(
        tmp_path_factory.mktemp("winners"),
        *((tuning_run(), trial(problem=shape)) for shape in shapes),
        (k40, trial(problem=Problem(20480, 8, 20480, "f32"))),
        (k40, trial(problem=Problem(20480, 8, 20480, "f64"))),
        (HOST, trial(problem=Problem(20480, 8, 20480, "f64"))),
    )
    return exported("module", found)


@pytest.fixture
def gpu_module(gpu_text: str, tmp_path: Path) -> ModuleType:
    return imported(gpu_text, tmp_path)


def test_the_exact_shape_comes_first(gpu_module: ModuleType) -> None:
    match = gpu_module.match(20480, 16, 20480, "f32", GPU)
    assert str(match) == f"{match.winner.config}: tuned for this shape; with the L2 clean 500.0 us measured"
    assert (match.distance, match.winner.n) == (0, 16)


def test_what_is_listed_is_public(gpu_module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cupy", "jax", "torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert dir(gpu_module) == sorted(gpu_module.__all__)
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert dir(gpu_module) == sorted([*gpu_module.__all__, "torch"])


@pytest.mark.parametrize(
    ("shape", "nearest"),
    [
        ((20480, 9, 20480), (20480, 16, 20480)),  # log(16/9) < log(9/4)
        ((20480, 7, 20480), (20480, 4, 20480)),
        ((10**6, 8, 16), (10**7, 8, 8)),
        ((1, 1, 1), (20480, 4, 20480)),
    ],
)
def test_then_the_nearest_by_log_ratios(
    gpu_module: ModuleType, shape: tuple[int, int, int], nearest: tuple[int, int, int]
) -> None:
    match = gpu_module.match(*shape, np.float32, GPU)
    assert (match.winner.m, match.winner.n, match.winner.k) == nearest
    assert match.distance == pytest.approx(np.linalg.norm(np.log(np.divide(shape, nearest))))
    shape_of = "x".join(map(str, nearest))
    assert str(match).endswith(f": tuned for {shape_of}, at distance {match.distance:.1f}")


def test_another_gpus_winner_only_where_there_is_none(gpu_module: ModuleType) -> None:
    assert gpu_module.match(20480, 8, 20480, "f32", GPU).winner.device == GPU
    match = gpu_module.match(20480, 8, 20480, "f64", GPU)
    assert match.winner.device == "Tesla K40c"
    assert f", tuned on Tesla K40c: no winner of {GPU} fits; tune on that GPU for its own kernels: tuned for" in str(
        match
    )


def test_a_host_and_a_gpu_never_stand_in_for_each_other(gpu_module: ModuleType) -> None:
    assert gpu_module.match(1, 1, 1, "f64").winner.device == "Some CPU"
    with pytest.raises(LookupError, match="no f32 kernel tuned on a host"):
        gpu_module.match(1, 1, 1, "f32")


def test_match_refuses_what_is_no_shape_or_dtype(gpu_module: ModuleType) -> None:
    for extent in (0, -1, 2**63, 10**400):
        with pytest.raises(ValueError, match=r"^m: expected at least 1 and at most 9223372036854775807$"):
            gpu_module.match(extent, 1, 1, "f32", GPU)
    for extent in (math.nan, math.inf, 8.0, "8", None, [8]):
        with pytest.raises(TypeError, match=f"^k: expected a whole number, got {type(extent).__name__}$"):
            gpu_module.match(1, 1, extent, "f32", GPU)
    for named in ({"op": None}, {"op": 1}, {"device": 0}):
        (name,) = named
        with pytest.raises(TypeError, match=f"^{name}: expected a text, got "):
            gpu_module.match(1, 1, 1, "f32", **named)
    with pytest.raises(TypeError, match=r"^dtype: expected a type, got None$"):
        gpu_module.match(1, 1, 1, None, GPU)
    assert gpu_module.match(np.int64(20480), 16, 20480, "f32", GPU).distance == 0
    with pytest.raises(TypeError, match="expected one of float32, float64"):
        gpu_module.match(1, 1, 1, np.int32, GPU)
    with pytest.raises(
        ValueError,
        match=r"this module has no f32 kernel for that, only for op nn \(a, b and out column-major\); tune",
    ):
        gpu_module.match(1, 1, 1, "f32", GPU, op="tn")
    with pytest.raises(
        ValueError, match=r"^op: expected gram, or two letters of n, t, j, c \(for b also x\), got 'q'$"
    ):
        gpu_module.match(1, 1, 1, "f32", GPU, op="q")


# The module's arguments


@pytest.mark.parametrize(
    ("shape", "strides", "ld"),
    [
        ((6, 3), (4, 24), {"n": 6}),
        ((6, 3), (4, 40), {"n": 10}),  # a block of a larger matrix
        ((6, 3), (12, 4), {"t": 3}),
        ((6, 3), None, {"t": 3}),  # the interface's word for row-major
        ((6, 3), (20, 4), {"t": 5}),
        ((1, 3), (400, 4), {"n": 1, "t": 3}),  # one row: its own stride says nothing
        ((1, 3), (4, 28), {"n": 7}),  # a row of a column-major matrix
        ((6, 1), (4, 4), {"n": 6, "t": 1}),  # one column likewise
        ((6, 1), (28, 4), {"t": 7}),
        ((1, 1), (0, 0), {"n": 1, "t": 1}),
    ],
)
def test_strides_say_the_storage_order(
    gpu_module: ModuleType, shape: tuple[int, int], strides: tuple[int, int] | None, ld: dict[str, int]
) -> None:
    assert gpu_module.Matrix.of("a", device_array(shape, strides)).ld == ld


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"strides": (8, 48)},
            ValueError,
            r"a: expected a 6x3 matrix whose columns or rows are contiguous, with strides \(4, at least 24\)"
            r" or \(at least 12, 4\) bytes, got \(8, 48\): pass a contiguous copy",
        ),
        ({"strides": (4, 20)}, ValueError, "contiguous"),  # columns overlap
        ({"strides": (8, 4)}, ValueError, "contiguous"),  # rows overlap
        ({"strides": (4, 0)}, ValueError, "contiguous"),
        ({"strides": (4, -24)}, ValueError, "contiguous"),
        ({"strides": (4, 26)}, ValueError, "contiguous"),
        ({"strides": (14, 4)}, ValueError, "contiguous"),
        ({"shape": (6,)}, ValueError, r"a: expected a matrix.*\(6,\)"),
        ({"shape": (0, 3)}, ValueError, "an extent is 0"),
        ({"typestr": "<i4"}, TypeError, "a: expected one of float32, float64, .*float16, got int32"),
        ({"typestr": ">f4"}, TypeError, "expected one of float32, float64"),
        ({"data": (0x1001, False)}, ValueError, "not a multiple of 4"),
        ({"mask": object()}, TypeError, "masked"),
    ],
)
def test_what_is_no_operand(
    gpu_module: ModuleType, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        gpu_module.gemm(device_array(**({"shape": (6, 3)} | changes)), device_array((3, 2)))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((A, device_array((4, 2))), ValueError, "b: expected 3 rows, as a has columns, got 4x2"),
        ((A, B, device_array((6, 3))), ValueError, "out: expected 6x2, got 6x3"),
        ((A, B, device_array((6, 2), data=(0x3000, True))), ValueError, "out: it is read-only"),
        ((A, B, device_array((6, 2), at=0x1008)), ValueError, "out: it shares memory with a"),
        ((A, B, device_array((6, 2), (8, 4), at=0x1FD4)), ValueError, "out: it shares memory with b"),
        ((A, device_array((3, 2), (8, 24), typestr="<f8")), TypeError, "b: expected float32 as a, got float64"),
        ((A, np.zeros((3, 2), np.float32, order="F")), TypeError, "a and b: one is a NumPy array"),
        (([[1.0]], B), TypeError, "a: expected a device array.*got list"),
    ],
)
def test_what_is_no_product(
    gpu_module: ModuleType, arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        gpu_module.gemm(*arguments)


def test_beta_needs_a_matrix_to_scale(gpu_module: ModuleType) -> None:
    with pytest.raises(ValueError, match="beta = 2: pass the matrix that it scales as out"):
        gpu_module.gemm(A, B, beta=2)


def test_arrays_must_be_where_kernels_were_tuned(tmp_path: Path) -> None:
    a = np.zeros((2, 2), np.float32, order="F")
    with pytest.raises(TypeError, match="tuned on GPUs only: pass device arrays"):
        imported(exported("module", winners(tmp_path, (tuning_run(), trial()))), tmp_path).gemm(a, a)
    (tmp_path / "results.db").unlink()
    with pytest.raises(RuntimeError, match="tuned on a host only: pass NumPy arrays"):
        imported(exported("module", winners(tmp_path, (HOST, trial()))), tmp_path).gemm(A, B)


# The module on the host


@pytest.fixture
def host_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, list[dict[str, Any]]]:
    """A module of host winners, whose kernels NumPy computes here, and the calls that it makes."""
    calls: list[dict[str, Any]] = []

    def run_on_host(text: str, kernel: str, defines: tuple[str, ...], arguments: list[Any], **launch: Any) -> None:
        m, n, k, alpha, a, lda, b, ldb, beta, c, ldc = arguments
        assert (m, n, k) == (*c.shape, a.shape[1])
        c[...] = alpha * (a @ b) + (beta * c if beta else 0)
        calls.append({"text": text, "kernel": kernel, "defines": defines, "leading": (lda, ldb, ldc), **launch})

    monkeypatch.setitem(sys.modules, "tsm2_tune.tuner.device.emulator", SimpleNamespace(run_on_host=run_on_host))
    shapes = (Problem(512, 8, 256, "f32"), Problem(512, 8, 256, "f64"))
    found = winners(tmp_path, *((HOST, trial(problem=shape)) for shape in shapes))
    return imported(exported("module", found), tmp_path), calls


def test_wide_product_on_the_host_takes_its_tuned_transpose(tmp_path: Path) -> None:
    """By distance, as nothing is expected there: the shape itself before another one of the same storage order."""
    shapes = (Problem(1000, 10, 100, "f32"), Problem(1, 1, 1000, "f32", "ttt"), Problem(900, 10, 100, "f32", "ttt"))
    found = winners(tmp_path, *((HOST, trial(100 + at, problem=one)) for at, one in enumerate(shapes)))
    module = imported(exported("module", found), tmp_path)
    wide, tall = (np.ones(shape, np.float32) for shape in ((10, 100), (100, 1000)))
    chosen = module.choice(wide, tall)
    assert (chosen.winner.op, chosen.distance, chosen.is_transposed) == ("nn", 0, True)
    chosen = module.choice(tall.T.copy(), wide.T.copy())  # a tall one, for which its own order has a winner
    assert (chosen.winner.m, chosen.winner.op, chosen.is_transposed) == (900, "ttt", False)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numpy_arrays_run_on_the_host(
    host_module: tuple[ModuleType, list[dict[str, Any]]], dtype: type[np.floating[Any]]
) -> None:
    module, calls = host_module
    random = np.random.default_rng(1)
    a = np.asfortranarray(random.random((300, 20)), dtype)[7:207]  # leading dimension 300
    b = np.asfortranarray(random.random((20, 3)), dtype)
    c = module.gemm(a, b)
    assert c.flags.f_contiguous
    np.testing.assert_allclose(c, a @ b, rtol=1e-5)
    expected = 2 * (a @ b) - c
    assert module.gemm(a, b, out=c, alpha=2, beta=-1) is c
    np.testing.assert_allclose(c, expected, rtol=1e-4)
    np.testing.assert_allclose(module.gemm(a, b, measure=True), a @ b, rtol=1e-5)  # nothing is timed on a host
    assert calls[0]["leading"] == (300, 20, 200)
    assert (calls[0]["kernel"], calls[0]["defines"]) == ("tsm2", ("INDEX_BITS=32",))
    assert (calls[0]["blocks"], calls[0]["threads"], calls[0]["smem_bytes"]) == (2, 128, 1024 * a.itemsize)
    assert ": tuned for 512x8x256, at distance " in str(module.choice(a, b))


@pytest.mark.host
@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
@pytest.mark.parametrize("dtype_name", ["f32", "f64"])
def test_a_real_kernel_runs_on_the_host(tmp_path: Path, dtype_name: str) -> None:
    problem, config = Problem(64, 4, 32, dtype_name), configuration(threads=32, columns=4, prefetch=4)
    found = winners(tmp_path, (HOST, trial(problem=problem, config=config, source=render(problem, config))))
    module = imported(exported("module", found), tmp_path)
    random = np.random.default_rng(1)
    dtype = module.DTYPES[dtype_name]
    whole = np.asfortranarray(random.random((100, 37)), dtype)
    a, b = whole[3:98], np.asfortranarray(random.random((37, 5)), dtype)
    c = module.gemm(a, b)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5)
    module.gemm(a, b, out=c, alpha=0.5, beta=2)
    np.testing.assert_allclose(c, 2.5 * (a @ b), rtol=1e-5)


@pytest.mark.host
@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
@pytest.mark.parametrize("dtype_name", ["f32", "f64"])
@pytest.mark.parametrize("op", ["nn", "tn", "nt", "ntt", "ttt"])
def test_a_kernel_that_splits_k_gets_a_workspace(tmp_path: Path, op: str, dtype_name: str) -> None:
    problem = Problem(40, 6, 90, dtype_name, op)
    found = winners(tmp_path, (HOST, trial(problem=problem, source=handmade(problem))))
    module = imported(exported("module", found), tmp_path)
    random = np.random.default_rng(1)
    orders = ["F" if letter == "n" else "C" for letter in f"{op}n"[:3]]
    for m, n, k in ((40, 6, 90), (101, 13, 77), (1, 1, 1)):
        a, b, c = (
            np.asarray(random.random((rows + 3, columns + 2)), module.DTYPES[dtype_name], order=order)[3:, 2:]
            for order, (rows, columns) in zip(orders, ((m, k), (k, n), (m, n)), strict=True)
        )
        expected = 2 * (a @ b) - c
        assert module.gemm(a, b, out=c, alpha=2, beta=-1) is c
        np.testing.assert_allclose(c, expected, rtol=1e-4)
        made = module.gemm(a, b)
        np.testing.assert_allclose(made, a @ b, rtol=1e-5)
        assert made.flags[f"{orders[2]}_CONTIGUOUS"]


def test_partials_are_aligned_and_counters_are_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[Any]] = []

    def run_on_host(*before: Any, **launch: Any) -> None:
        calls.append([*before[-1], (launch["blocks"], launch["splits"])])

    monkeypatch.setitem(sys.modules, "tsm2_tune.tuner.device.emulator", SimpleNamespace(run_on_host=run_on_host))
    problem = Problem(40, 6, 90, "f32")
    kernel = handmade(problem, splits=5)
    module = imported(exported("module", winners(tmp_path, (HOST, trial(problem=problem, source=kernel)))), tmp_path)
    for m, n in ((33, 5), (32, 4), (1, 9)):
        module.gemm(np.zeros((m, 2), np.float32, order="F"), np.zeros((2, n), np.float32, order="F"))
        *_, partials, counters, grid = calls[-1]
        elements = kernel.launch.partial_elements(m, n)
        assert (partials.size, partials.dtype, partials.ctypes.data % 16) == (elements, np.float32, 0)
        assert (counters.size, counters.dtype, counters.any()) == (kernel.launch.counters(m, n), np.uint32, False)
        assert grid == kernel.launch.grid(m, n)


def test_a_tampered_module_runs_nothing(host_module: tuple[ModuleType, list[dict[str, Any]]]) -> None:
    module, calls = host_module
    texts = "".join(map(module.text_of, module.WINNERS))
    module.BLOCKS = (ast.literal_eval("\n".join(packed(texts.swapcase().encode()))),)
    a = np.ones((4, 4), order="F")
    with pytest.raises(RuntimeError, match="does not match its digest"):
        module.gemm(a, a)
    assert calls == []


def test_blocks_of_one_matrix_may_be_operands(host_module: tuple[ModuleType, list[dict[str, Any]]]) -> None:
    module, _ = host_module
    whole = np.asfortranarray(np.random.default_rng(1).random((10**4, 8)))
    b = np.asfortranarray(np.eye(8))
    module.gemm(whole[:5000], b, out=whole[5000:])  # their addresses interleave, and do not overlap
    np.testing.assert_allclose(whole[5000:], whole[:5000])
    with pytest.raises(ValueError, match="out: it shares memory with a"):
        module.gemm(whole[:5000], b, out=whole[4999:9999])


def test_memory_that_is_too_entangled_to_tell_apart_is_refused(
    host_module: tuple[ModuleType, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, _ = host_module
    memory = np.zeros(20_000)
    a, out = (
        np.lib.stride_tricks.as_strided(memory[at:], (50, 7), (8, 8 * line)) for at, line in ((0, 1009), (500, 977))
    )
    assert module.gemm(a, np.asfortranarray(np.eye(7)), out=out) is out
    monkeypatch.setattr(module, "MOST_WORK", 1)
    with pytest.raises(ValueError, match="out: it may share memory with a, which the kernel still reads"):
        module.gemm(a, np.asfortranarray(np.eye(7)), out=out)
