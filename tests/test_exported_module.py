"""The exported module: how it matches a product to a kernel, what it refuses, and what runs on the host."""

from __future__ import annotations

import ast
import math
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.fabricated import (
    GPU,
    host_run,
    module_of,
    split_trial,
    trial,
    tuning_run,
)
from tests.modules import A, B, fresh
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.export.module import packed

pytestmark = pytest.mark.slow

HOST = host_run()

# The module's choice


@pytest.fixture(scope="module")
def of_gpus(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    k40 = tuning_run("Tesla K40c", compute_capability="3.5")
    shapes = [Problem(20480, n, 20480, "f32") for n in (4, 16)] + [Problem(10**7, 8, 8, "f32")]
    return module_of(
        tmp_path_factory.mktemp("winners"),
        *((tuning_run(), trial(problem=shape)) for shape in shapes),
        (k40, trial(problem=Problem(20480, 8, 20480, "f32"))),
        (k40, trial(problem=Problem(20480, 8, 20480, "f64"))),
        (HOST, trial(problem=Problem(20480, 8, 20480, "f64"))),
    )


@pytest.fixture
def gpu_module(of_gpus: ModuleType) -> Iterator[ModuleType]:
    with fresh(of_gpus) as module:
        yield module


@pytest.mark.parametrize(("name", "library"), [("cupy", "CuPy"), ("jax", "JAX"), ("torch", "PyTorch")])
def test_a_namespace_needs_its_library(
    gpu_module: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, library: str
) -> None:
    for other in ("cupy", "jax", "torch"):
        monkeypatch.delitem(sys.modules, other, raising=False)
    assert dir(gpu_module) == sorted(gpu_module.__all__)
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert dir(gpu_module) == sorted([*gpu_module.__all__, name])
    monkeypatch.setitem(sys.modules, name, None)
    assert not hasattr(gpu_module, name)
    said = rf"^best_kernels\.{name} cannot be used here: it needs {library}: import of {name}"
    with pytest.raises(AttributeError, match=said):
        getattr(gpu_module, name)
    with pytest.raises(AttributeError, match=r"^module 'best_kernels' has no attribute 'other'$"):
        gpu_module.other  # noqa: B018


def test_the_nearest_by_log_ratios(gpu_module: ModuleType) -> None:
    for shape, nearest in (
        ((20480, 9, 20480), (20480, 16, 20480)),  # log(16/9) < log(9/4)
        ((20480, 7, 20480), (20480, 4, 20480)), ((10**6, 8, 16), (10**7, 8, 8)), ((1, 1, 1), (20480, 4, 20480)),
    ):  # fmt: skip
        match = gpu_module.match(*shape, np.float32, GPU)
        assert (match.winner.m, match.winner.n, match.winner.k) == nearest
        assert match.distance == pytest.approx(np.linalg.norm(np.log(np.divide(shape, nearest))))
        shape_of = "x".join(map(str, nearest))
        assert str(match).endswith(f": tuned for {shape_of}, at distance {match.distance:.1f}")


def test_another_gpus_winner_only_where_there_is_none_and_never_a_hosts(gpu_module: ModuleType) -> None:
    assert gpu_module.match(20480, 8, 20480, "f32", GPU).winner.device == GPU
    match = gpu_module.match(20480, 8, 20480, "f64", GPU)
    assert match.winner.device == "Tesla K40c"
    said = f", tuned on Tesla K40c: no winner of {GPU} fits; tune on that GPU for its own kernels: tuned for"
    assert said in str(match)
    assert gpu_module.match(1, 1, 1, "f64").winner.device == "Some CPU"
    with pytest.raises(LookupError, match="no f32 kernel tuned on a host"):
        gpu_module.match(1, 1, 1, "f32")


def test_match_refuses_what_is_no_shape_or_dtype(gpu_module: ModuleType) -> None:
    for extent in (0, -1, 2**63, 10**400):
        with pytest.raises(ValueError, match=r"^m: expected at least 1 and at most 9223372036854775807$"):
            gpu_module.match(extent, 1, 1, "f32", GPU)
    for wrong in (math.nan, math.inf, 8.0, "8", None, [8]):
        with pytest.raises(TypeError, match=f"^k: expected a whole number, got {type(wrong).__name__}$"):
            gpu_module.match(1, 1, wrong, "f32", GPU)
    for name, wrong in (("op", None), ("op", 1), ("device", 0)):
        with pytest.raises(TypeError, match=f"^{name}: expected a text, got "):
            gpu_module.match(1, 1, 1, "f32", **{name: wrong})
    for dtype, said in ((None, "^dtype: expected a type, got None$"), (np.int32, "expected one of float32, float64")):
        with pytest.raises(TypeError, match=said):
            gpu_module.match(1, 1, 1, dtype, GPU)
    assert gpu_module.match(np.int64(20480), 16, 20480, "f32", GPU).distance == 0
    for op, said in (
        ("tn", r"this module has no f32 kernel for that, only for op nn \(a, b and out column-major\); tune"),
        ("q", r"^op: expected gram, or two letters of n, t, j, c \(for b also x\), got 'q'$"),
    ):
        with pytest.raises(ValueError, match=said):
            gpu_module.match(1, 1, 1, "f32", GPU, op=op)


# The module's arguments


def test_arrays_must_be_where_kernels_were_tuned(tmp_path: Path) -> None:
    a = np.zeros((2, 2), np.float32, order="F")
    of_gpu, of_host = module_of(tmp_path, trial()), of_ops(tmp_path, nn=(2, 2, 2))
    for call in (of_gpu.gemm, of_gpu.choice, partial(of_gpu.plan, out=a.copy(order="F"))):
        with pytest.raises(TypeError, match="tuned on GPUs only: pass device arrays"):
            call(a, a)
    with pytest.raises(RuntimeError, match="tuned on a host only: pass NumPy arrays"):
        of_host.gemm(A, B)
    with pytest.raises(TypeError, match="a plan needs an out, and a, b and out in a GPU's memory"):
        of_host.plan(a, a, a.copy(order="F"))
    said = [" ".join(str(module.__doc__).split()) for module in (of_gpu, of_host)]
    assert ["NumPy arrays are refused: all kernels here" in text for text in said] == [True, False]
    assert ["NumPy arrays need the package tsm2_tune" in text for text in said] == [False, True]


# The module on the host


@pytest.fixture
def host_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, list[list[Any]]]:
    """A module of host winners, whose kernels compute nothing here, and the arguments that they get."""
    calls: list[list[Any]] = []
    fake = SimpleNamespace(run_on_host=lambda *before, **launch: calls.append([*before[-1], launch]))
    monkeypatch.setitem(sys.modules, "tsm2_tune.tuner.device.emulator", fake)
    return module_of(tmp_path, split_trial(Problem(40, 6, 90, "f64")), run=HOST), calls


def test_wide_product_on_the_host_takes_its_tuned_transpose(tmp_path: Path) -> None:
    """By distance, as nothing is expected there: the shape itself before another one of the same storage order."""
    shapes = (Problem(1000, 10, 100, "f32"), Problem(1, 1, 1000, "f32", "ttt"), Problem(900, 10, 100, "f32", "ttt"))
    module = module_of(tmp_path, *(trial(100 + at, problem=one) for at, one in enumerate(shapes)), run=HOST)
    wide, tall = (np.ones(shape, np.float32) for shape in ((10, 100), (100, 1000)))
    chosen = module.choice(wide, tall)
    assert (chosen.winner.op, chosen.distance, chosen.is_transposed) == ("nn", 0, True)
    chosen = module.choice(tall.T.copy(), wide.T.copy())  # a tall one, for which its own order has a winner
    assert (chosen.winner.m, chosen.winner.op, chosen.is_transposed) == (900, "ttt", False)


def test_partials_are_aligned_and_counters_are_zero(host_module: tuple[ModuleType, list[list[Any]]]) -> None:
    module, calls = host_module
    (winner,) = module.WINNERS
    for m, n in ((33, 5), (32, 4), (1, 9)):
        module.gemm(np.zeros((m, 2), order="F"), np.zeros((2, n), order="F"))
        *_, partials, counters, launch = calls[-1]
        elements = winner.launch.partial_elements(m, n)
        assert (partials.size, partials.dtype, partials.ctypes.data % 16) == (elements, np.float64, 0)
        assert (counters.size, counters.dtype, counters.any()) == (winner.launch.counters(m, n), np.uint32, False)
        assert (launch["blocks"], launch["splits"]) == winner.launch.grid(m, n)


def test_a_tampered_module_runs_nothing(
    host_module: tuple[ModuleType, list[list[Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, calls = host_module
    texts = "".join(map(module.text_of, module.WINNERS))
    monkeypatch.setattr(module, "BLOCKS", (ast.literal_eval("\n".join(packed(texts.swapcase().encode()))),))
    with pytest.raises(RuntimeError, match="does not match its digest"):
        module.gemm(np.ones((4, 4), order="F"), np.ones((4, 4), order="F"))
    assert calls == []


def test_out_may_be_between_the_elements_of_an_operand(host_module: tuple[Any, list[list[Any]]]) -> None:
    module, calls = host_module
    whole, b = np.ones((10**4, 8), order="F"), np.asfortranarray(np.eye(8))
    module.gemm(whole[:5000], b, out=whole[5000:])
    with pytest.raises(ValueError, match="out: it shares memory with a"):
        module.gemm(whole[:5000], b, out=whole[4999:9999])
    memory, places = np.zeros(20_000), ((0, 1009), (500, 977))
    a, out = (np.lib.stride_tricks.as_strided(memory[at:], (50, 7), (8, 8 * line)) for at, line in places)
    assert module.gemm(a, np.asfortranarray(np.eye(7)), out=out) is out
    module.MOST_WORK = 1
    with pytest.raises(ValueError, match="out: it may share memory with a, which the kernel still reads"):
        module.gemm(a, np.asfortranarray(np.eye(7)), out=out)
    assert len(calls) == 2


# Storage orders


def of_ops(folder: Path, dtype: str = "f64", /, **problems: tuple[int, int, int]) -> ModuleType:
    """A module of host winners: op -> the shape that it was tuned for."""
    within = Path(tempfile.mkdtemp(dir=folder))
    return module_of(within, *(Problem(*shape, dtype, op) for op, shape in problems.items()), run=host_run())


SHAPE = (8, 4, 300)  # shape of every product below


def matrix(rows: int, columns: int, order: str) -> np.ndarray[Any, Any]:
    """A matrix in NumPy's order F, column-major, or C, row-major."""
    return np.zeros((rows, columns), order=order)  # type: ignore[call-overload, no-any-return]


X, Y, WIDE, VECTOR = matrix(300, 8, "C"), matrix(300, 4, "C"), matrix(8, 300, "F"), matrix(300, 1, "C")
ITSELF, SQUARE = [matrix(300, columns, "F") for columns in (8, 9, 64, 1)], (8, 8, 300)
VECTORS = {"nn": (8, 1, 299), "tt": (8, 1, 8), "ntt": (8, 1, 300)}
CHOSEN: list[tuple[dict[str, tuple[int, int, int]], tuple[Any, ...], str]] = [
    ({"ntt": SHAPE}, (X.T, Y), "ntt"),
    # The order of the new matrix does not depend on its shape.
    ({"nn": SHAPE, "ntt": (1, 1, 1), "nt": (9, 9, 9)}, (X.T, Y), "nt"),
    ({"nt": (1, 1, 1), "ntt": SHAPE}, (X.T, Y), "nt"),
    # A vector fits either order: the nearest is taken.
    (VECTORS, (WIDE, VECTOR), "ntt"), (VECTORS, (WIDE, VECTOR, matrix(8, 4, "F")[:, :1]), "ntt"),
    # The nearest shape comes before half of the products.
    *(({"tx": SQUARE, "tn": (64, 64, 300)}, (x.T, x), op)
      for x, op in zip(ITSELF[:3], ("tx", "tx", "tn"), strict=True)),
    ({"tx": SQUARE}, (ITSELF[3].T, ITSELF[3]), "tx"),
]  # fmt: skip
WITHOUT_A_KERNEL: list[tuple[dict[str, tuple[int, int, int]], tuple[Any, ...], str]] = [
    ({"nn": SHAPE, "ntt": SHAPE}, (matrix(8, 300, "C"), matrix(300, 4, "F")),
     r"^a row-major, b column-major: this module has no f64 kernel for that, only for"
     r" op nn \(a, b and out column-major\) and op ntt \(a column-major, b and out row-major\);"
     r" tune with --op tn, without --layout, and export again, or pass copies in the order of one of these$"),
    ({"nn": SHAPE, "ntt": SHAPE}, (WIDE, matrix(300, 4, "F"), matrix(8, 4, "C")),
     "^a and b column-major, out row-major: .*; tune with --op nnt, without --layout, and"),
    # Elements of the column are no neighbours.
    ({"nn": (8, 1, 300)}, (WIDE, VECTOR, matrix(8, 4, "C")[:, :1]),
     "a column-major, b column-major or row-major, out row-major"),
    ({"tx": SQUARE}, (ITSELF[0].T, ITSELF[0].copy(order="F")),
     r"only for op tx \(a row-major, b and out column-major, b is a transposed\);"),
]  # fmt: skip


def test_the_nearest_kernel_for_the_orders_is_chosen(tmp_path: Path) -> None:
    for kernels, arrays, op in CHOSEN:
        assert of_ops(tmp_path, **kernels).choice(*arrays).winner.op == op
    for kernels, arrays, message in WITHOUT_A_KERNEL:
        module = of_ops(tmp_path, **kernels)
        for function in (module.choice, module.gemm):
            with pytest.raises(ValueError, match=message):
                function(*arrays)
    times = {"nn": 9.0, "tn": 8.0, "nt": 10.0}  # that are as near: the fastest is taken
    trials = (trial(us, problem=Problem(8, 1, 300, "f64", op)) for op, us in times.items())
    module = module_of(tmp_path, *trials, run=host_run())
    assert module.choice(np.zeros((1, 300)), np.zeros((300, 1))).winner.op == "tn"


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_matrix_transposed_times_itself(tmp_path: Path, order: str) -> None:
    gram, general = {"F": ("tx", "tn"), "C": ("nxt", "ntt")}[order]
    module = of_ops(tmp_path, **{gram: (8, 8, 300), general: (8, 8, 300), "nn": (8, 8, 300)})
    x = matrix(300, 8, order)
    for other, op in ((x, gram), (x[:, :], gram), (x.copy(order="K"), general), (x[:, :7], general)):
        assert module.choice(x.T, other).winner.op == op
    wide = matrix(300, 20, order)
    assert module.choice(wide[:, 3:11].T, wide[:, 3:11]).winner.op == gram
    assert module.choice(wide[:, 3:11].T, wide[:, 4:12]).winner.op == general
    room = matrix(300 * 40, 1, "F").reshape(-1)  # two matrices at one address, whose lines are otherwise apart
    steps = ((8, 2400), (8, 3200)) if order == "F" else ((64, 8), (96, 8))
    first, second = (np.lib.stride_tricks.as_strided(room, (300, 8), lines) for lines in steps)
    assert module.choice(first.T, second).winner.op == general
    for name in (gram, "gram"):
        assert module.match(8, 8, 300, "f64", op=name).winner.op == gram
        with pytest.raises(ValueError, match=f"8x7x300 with op {name}: a matrix times itself has m = n"):
            module.match(8, 7, 300, "f64", op=name)


def test_gram_is_also_of_conjugated_matrices_and_general_kernels(tmp_path: Path) -> None:
    for op, dtype in (("tn", "f64"), ("tx", "c64"), ("cx", "c64"), ("jx", "c64")):
        module = of_ops(tmp_path, dtype, **{op: (8, 8, 300)})
        assert module.match(8, 8, 300, dtype, op="gram").winner.op == op
