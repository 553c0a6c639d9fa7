"""The exported module: how it matches a product to a kernel, what it refuses, and what runs on the host."""

from __future__ import annotations

import ast
import math
import sys
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.fabricated import (
    GPU,
    device_array,
    exported,
    host_run,
    imported,
    module_of,
    split_trial,
    trial,
    tuning_run,
    winners,
)
from tests.modules import A, B
from tsm2_tune.generator.problem import Problem
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


def test_what_is_listed_is_public(gpu_module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cupy", "jax", "torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert dir(gpu_module) == sorted(gpu_module.__all__)
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert dir(gpu_module) == sorted([*gpu_module.__all__, "torch"])


@pytest.mark.parametrize(("name", "library"), [("cupy", "CuPy"), ("jax", "JAX"), ("torch", "PyTorch")])
def test_without_its_library_there_is_no_such_name(
    gpu_module: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, library: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    assert not hasattr(gpu_module, name)
    said = rf"^best_kernels\.{name} cannot be used here: it needs {library}: import of {name}"
    with pytest.raises(AttributeError, match=said):
        getattr(gpu_module, name)
    with pytest.raises(AttributeError, match=r"^module 'best_kernels' has no attribute 'other'$"):
        gpu_module.other  # noqa: B018


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
    for wrong in (math.nan, math.inf, 8.0, "8", None, [8]):
        with pytest.raises(TypeError, match=f"^k: expected a whole number, got {type(wrong).__name__}$"):
            gpu_module.match(1, 1, wrong, "f32", GPU)
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


def test_arrays_must_be_where_kernels_were_tuned(tmp_path: Path) -> None:
    a = np.zeros((2, 2), np.float32, order="F")
    of_gpu = module_of(tmp_path, trial())
    for call in (of_gpu.gemm, of_gpu.choice, partial(of_gpu.plan, out=a.copy(order="F"))):
        with pytest.raises(TypeError, match="tuned on GPUs only: pass device arrays"):
            call(a, a)
    (tmp_path / "results.db").unlink()
    of_host = module_of(tmp_path, trial(), run=HOST)
    with pytest.raises(RuntimeError, match="tuned on a host only: pass NumPy arrays"):
        of_host.gemm(A, B)
    with pytest.raises(TypeError, match="a plan needs an out, and a, b and out in a GPU's memory"):
        of_host.plan(a, a, a.copy(order="F"))
    said = [" ".join(str(module.__doc__).split()) for module in (of_gpu, of_host)]
    assert ["NumPy arrays are refused: all kernels here" in text for text in said] == [
        True,
        False,
    ]
    assert ["NumPy arrays need the package tsm2_tune" in text for text in said] == [False, True]
    assert ["\n`launcher()` is" in str(module.__doc__) for module in (of_gpu, of_host)] == [True, True]


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


def test_blocks_of_one_matrix_may_be_operands(host_module: tuple[ModuleType, list[list[Any]]]) -> None:
    """Their addresses interleave."""
    module, calls = host_module
    whole, b = np.ones((10**4, 8), order="F"), np.asfortranarray(np.eye(8))
    module.gemm(whole[:5000], b, out=whole[5000:])
    with pytest.raises(ValueError, match="out: it shares memory with a"):
        module.gemm(whole[:5000], b, out=whole[4999:9999])
    assert len(calls) == 1


def test_the_last_row_of_a_wide_out_is_not_of_b(gpu_module: ModuleType) -> None:
    a, b = device_array((2, 3)), device_array((3, 6), at=0x2000)
    out = device_array((2, 6), (24, 4), at=0x2000 - 44)  # the last one of its twelve elements is b's first
    with pytest.raises(ValueError, match="out: it shares memory with b"):
        gpu_module.gemm(a, b, out=out)


def test_memory_that_is_too_entangled_to_tell_apart_is_refused(
    host_module: tuple[ModuleType, list[list[Any]]],
) -> None:
    module: Any = host_module[0]
    memory = np.zeros(20_000)
    a, out = (
        np.lib.stride_tricks.as_strided(memory[at:], (50, 7), (8, 8 * line)) for at, line in ((0, 1009), (500, 977))
    )
    assert module.gemm(a, np.asfortranarray(np.eye(7)), out=out) is out
    module.MOST_WORK = 1
    with pytest.raises(ValueError, match="out: it may share memory with a, which the kernel still reads"):
        module.gemm(a, np.asfortranarray(np.eye(7)), out=out)
