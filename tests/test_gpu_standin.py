"""The stand-in for cuBLAS on a GPU: what it takes and what it leaves is what cuBLAS computes."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fabricated import handmade, trial
from tests.library_calls import real_library
from tests.on_gpu import ON_GPU, Memory
from tests.processes import python
from tsm2_tune.generator.problem import Problem
from tsm2_tune.interpose.build import standin_path
from tsm2_tune.interpose.journal import REASONS, Seen, written_in
from tsm2_tune.interpose.preload import Standing

pytestmark = [*ON_GPU, pytest.mark.usefixtures("session_cache")]
REAL, COMPLEX = ("nn", "tn", "nt", "tt"), ("nn", "tn", "nt", "cn", "nc", "cc")
OPS = {"f32": REAL, "f64": REAL[:3], "c64": COMPLEX, "c128": COMPLEX, "bf16": REAL[:3], "f16": REAL[:3]}
COUNT = int(os.environ.get("TSM2_STANDIN_CALLS", "1500"))
MOST_OF_A_PROCESS = 10_000  # the journal tells 16,384 shapes apart


@pytest.fixture(scope="module")
def gpu_memory() -> Iterator[Memory]:
    pytest.importorskip("pycuda", reason="PyCUDA is not installed")
    pytest.importorskip("cupy", reason="CuPy is not installed")
    memory = Memory()
    yield memory
    memory.context.pop()


@pytest.fixture(scope="module")
def library(gpu_memory: Memory, tmp_path_factory: pytest.TempPathFactory, session_cache: None) -> Path:
    problems = [Problem(256, 8, 64, dtype, op) for dtype, ops in OPS.items() for op in ops]
    trials = [trial(problem=problem, source=handmade(problem)) for problem in problems]
    return Path(real_library(tmp_path_factory.mktemp("library"), *((gpu_memory.run, one) for one in trials)))


def random_products(
    module: str, library: Path, folder: Path, seed: int, threads: int
) -> tuple[Counter[str], list[Seen]]:
    """Run random products in several processes; return their counts and the journals of the stand-in."""
    processes = -(-COUNT // MOST_OF_A_PROCESS)
    found, seen = Counter[str](), list[Seen]()
    for number in range(processes):
        journal = folder / str(number)
        journal.mkdir()
        told = Standing(standin_path(), library).environment(journal)
        count, first = COUNT // processes // threads, seed + number * threads
        done = python("-m", module, count, first, threads, env=told, timeout=1200)
        assert (done.returncode, done.stderr[-3000:]) == (0, "")
        found.update(json.loads(done.stdout))
        real_library = written_in(journal)
        assert not real_library.uncounted[0], real_library.besides
        seen += real_library.seen
    taken = sum(one.taken for one in seen)
    print(f"{sum(one.calls for one in seen)} seen, {taken} taken", dict(found))
    assert taken > COUNT // 5
    if threads == 1:
        assert found["taken"] == taken
    return found, seen


@pytest.mark.parametrize("threads", [1, 8])
def test_random_products_are_what_cublas_computes(library: Path, tmp_path: Path, threads: int) -> None:
    found, _ = random_products("tests.standin_on_gpu", library, tmp_path, 1, threads)
    if threads == 1:
        assert all(any(name in key and count for key, count in found.items()) for name in ("gemv", "syrk", "herk"))


@pytest.mark.parametrize("threads", [1, 8])
def test_random_products_are_what_cublaslt_computes(library: Path, tmp_path: Path, threads: int) -> None:
    found, seen = random_products("tests.lt_on_gpu", library, tmp_path, 3, threads)
    assert {one.routine for one in seen} == {"cublasLtMatmul"}  # and none of cuBLAS's own
    assert {one.dtype for one in seen if one.taken} == set(OPS)
    if threads == 1:
        assert all(found[f"taken {orders}"] for orders in ("ccc", "rcc", "crc", "rrc", "rrr"))


IN_PYTORCH = """
import torch
torch.backends.cuda.preferred_blas_library("cublaslt")
a, b = (torch.randint(-2, 3, shape, device="cuda").float() for shape in ((300, 64), (64, 8)))
row, whole = (torch.randint(-2, 3, shape, device="cuda").float() for shape in ((8,), (300, 8)))
expected = (a.double() @ b.double()).float()
assert torch.equal(a @ b, expected)
assert torch.equal(torch.addmm(whole, a, b, beta=2), expected + 2 * whole)
assert torch.equal(torch.addmm(row, a, b), expected + row)
"""


def test_pytorchs_products_by_cublaslt_are_taken_but_for_those_with_a_bias(library: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    told = Standing(standin_path(), library).environment(tmp_path)
    done = python("-c", IN_PYTORCH, env=told, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    (one,) = [one for one in written_in(tmp_path).seen if one.routine == "cublasLtMatmul" and one.dtype == "f32"]
    assert (one.shape, one.calls, one.taken) == ((8, 300, 64), 3, 2)
    assert one.left[REASONS.index("it has an epilogue")] == 1


@pytest.mark.parametrize(
    ("module", "routines"),
    [("standin_on_gpu", {"gemm", "GemmEx", "gemv", "syrk", "herk"}), ("lt_on_gpu", {"cublasLtMatmul"})],
)
def test_results_are_within_the_bound_of_cublass(
    library: Path, tmp_path: Path, module: str, routines: set[str]
) -> None:
    told = Standing(standin_path(), library, compared=3).environment(tmp_path)
    done = python("-m", f"tests.{module}", COUNT // 3, "2", "1", env=told, timeout=1200)
    assert (done.returncode, done.stderr) == (0, "")
    compared = [one for one in written_in(tmp_path).seen if one.compared]
    assert {one.dtype for one in compared} == set(OPS)
    assert {one.routine for one in compared} >= routines
    assert max(one.worst for one in compared) <= 1


CAPTURED = """
import ctypes
import cupy as cp
from benchmarks.real_cublas import loaded
from tests.cublas_program import call
from tests.standin_calls import gemm
cublas, _ = loaded()
handle, kept = ctypes.c_void_p(), []
assert cublas.cublasCreate_v2(ctypes.byref(handle)) == 0
one, other = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
a, b, c, d = (cp.ones(size, cp.float32) for size in (256 * 64, 64 * 8, 256 * 8, 1000))
cublas.cublasSetStream_v2(handle, ctypes.c_void_p(one.ptr))
def multiply(rows):
    at = {"A": a.data.ptr, "B": b.data.ptr, "C": c.data.ptr}
    routine, values = gemm("cublasSgemm_v2", rows, 8, 64, lda=256, ldc=256, **at)
    assert call(cublas, handle, routine, values, kept, {}) == 0
for turn in range(8):
    multiply(256)
with other:
    d *= 2  # which loads its kernel
one.synchronize()
cp.cuda.Device().synchronize()
with other:
    other.begin_capture(cp.cuda.runtime.streamCaptureModeGlobal)
    d *= 2
    for turn in range(8):
        multiply(256)
        multiply(255)  # its comparison copies and waits
    graph = other.end_capture()
    graph.launch()
other.synchronize()
one.synchronize()
assert float(d[0]) == 4 and float(c[0]) == 64
"""


def test_measuring_ends_no_capture_on_another_stream(library: Path, tmp_path: Path) -> None:
    told = Standing(standin_path(), library, has_times=True, compared=2).environment(tmp_path)
    done = python("-c", CAPTURED, env=told, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    seen = {one.shape[0]: one for one in written_in(tmp_path).seen}
    assert (seen[255].compared, seen[256].compared) == (2, 2)
    assert seen[256].taken > 4
