"""An exported C library on a GPU: right results for every type and operation, on streams, in graphs, in threads."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.calls import FACTORS, TYPES, Call
from tests.fabricated import configuration, handmade, kernel, trial
from tests.library_calls import INVALID_VALUE, NOT_SUPPORTED, SUCCESS, WORKSPACE_TOO_SMALL, Handle, real_library
from tests.on_gpu import ON_GPU, Memory
from tests.threads_on_gpu import in_threads
from tsm2_tune.generator.problem import Problem

pytestmark = [*ON_GPU, pytest.mark.usefixtures("session_cache")]
EXAMPLES = Path(__file__).parent.parent / "examples"
REAL, COMPLEX = ("nn", "tn", "nt"), ("nn", "tn", "nt", "cn", "nc", "cc")
# In f64 all kernels have row-major results; for column-major ones they compute the transposed products.
OPS = {"f32": (*REAL, "tt"), "f64": ("ttt", "ntt", "tnt"), "c64": COMPLEX, "c128": COMPLEX, "bf16": REAL, "f16": REAL}
SHAPES = ((1, 1, 1), (257, 5, 33), (2049, 7, 301), (5, 2050, 40))
PRECISION = {"bf16": 2.0**-8, "f16": 2.0**-11}


@pytest.fixture(scope="module")
def gpu_memory() -> Iterator[Memory]:
    pytest.importorskip("pycuda", reason="PyCUDA is not installed")
    memory = Memory()
    yield memory
    memory.free()
    memory.context.pop()


@pytest.fixture
def memory(gpu_memory: Memory) -> Iterator[Memory]:
    yield gpu_memory
    gpu_memory.free()


@pytest.fixture(scope="module")
def library(gpu_memory: Memory, tmp_path_factory: pytest.TempPathFactory, session_cache: None) -> str:
    """A library with kernels that split k for OPS, and one for f32 that does not, for few columns."""
    problems = [Problem(256, 8, 64, dtype, op) for dtype, ops in OPS.items() for op in ops]
    trials = [trial(problem=problem, source=handmade(problem)) for problem in problems]
    plain = Problem(4096, 2, 4096, "f32")
    trials.append(trial(problem=plain, source=kernel(configuration(128, 2), plain), config=configuration(128, 2)))
    return real_library(tmp_path_factory.mktemp("library"), *((gpu_memory.run, one) for one in trials))


@pytest.fixture
def handle(library: str) -> Iterator[Handle]:
    made = Handle(library)
    assert made.created == SUCCESS
    yield made
    assert made.destroy() == SUCCESS


# Matrices


def numbers(rng: np.random.Generator, shape: tuple[int, int], dtype: str) -> np.ndarray[Any, Any]:
    """Small whole numbers, which every type has, column-major."""
    found = rng.integers(-2, 3, shape).astype(np.float64)
    if dtype.startswith("c"):
        return np.asfortranarray(found + 1j * rng.integers(-2, 3, shape))
    return np.asfortranarray(found)


def encoded(x: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """Return the numbers as elements of the type."""
    if dtype == "bf16":
        return np.asfortranarray((np.asfortranarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16))
    return np.asfortranarray(x, np.float16 if dtype == "f16" else FACTORS[dtype])


def decoded(raw: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    if dtype == "bf16":
        return (raw.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return raw


def of_operation(x: np.ndarray[Any, Any], operation: str) -> np.ndarray[Any, Any]:
    return {"N": x, "T": x.T, "C": x.conj().T}[operation]


class Operands:
    """The matrices of a product, each with 3 rows more than it needs, and its call."""

    def __init__(self, memory: Memory, dtype: str, ops: str, shape: tuple[int, int, int], **factors: complex) -> None:
        m, n, k = shape
        rng = np.random.default_rng(m + n + k)
        shapes = ((m, k) if ops[0] == "N" else (k, m), (k, n) if ops[1] == "N" else (n, k), (m, n))
        self.dtype, self.memory = dtype, memory
        self.whole = [numbers(rng, (rows + 3, columns), dtype) for rows, columns in shapes]
        self.a, self.b, self.c = (x[:-3] for x in self.whole)
        self.addresses = [memory.put(encoded(x, dtype)) for x in self.whole]
        ld = {f"ld{name}": len(x) for name, x in zip("abc", self.whole, strict=True)}
        at = dict(zip("abc", self.addresses, strict=True))
        self.call = Call(dtype, ops, m, n, k, **ld, **at, **factors)  # type: ignore[arg-type]

    @property
    def product(self) -> np.ndarray[Any, Any]:
        """op(A) op(B), exact."""
        found: np.ndarray[Any, Any] = of_operation(self.a, self.call.ops[0]) @ of_operation(self.b, self.call.ops[1])
        return found

    def check(self, expected: np.ndarray[Any, Any] | None = None) -> None:
        """Assert that C is as expected, by default the product, and that the memory after it is untouched."""
        if expected is None:
            expected = self.call.alpha * self.product + self.call.beta * self.c
        like = encoded(self.whole[2], self.dtype)
        self.memory.context.synchronize()
        found = decoded(self.memory.get(self.addresses[2], like), self.dtype)
        np.testing.assert_array_equal(found[-3:], self.whole[2][-3:])
        np.testing.assert_allclose(found[:-3], expected, rtol=PRECISION.get(self.dtype, 1e-6), atol=0)


# Results


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_and_operation_is_right(handle: Handle, memory: Memory, dtype: str) -> None:
    computed = set()
    for ops in (a + b for a in "NTC" for b in "NTC"):
        for shape in SHAPES:
            alpha, beta = (2 - 1j, 1j) if dtype.startswith("c") else (2, 3)
            for factors in ({}, {"alpha": alpha, "beta": beta}):
                operands = Operands(memory, dtype, ops, shape, **factors)
                status = handle.gemm(operands.call)
                if status == NOT_SUPPORTED:
                    assert handle.error.startswith(f"no {dtype} kernel for op")
                    continue
                assert status == SUCCESS, handle.error
                computed.add(ops)
                operands.check()
            memory.free()
    wanted = {op[:2].upper() for op in OPS[dtype]}
    if dtype == "f64":  # as transposed products
        wanted = {"NN", "TN", "NT"}
    assert computed >= wanted


def test_what_c_held_does_not_matter_at_beta_0(handle: Handle, memory: Memory) -> None:
    operands = Operands(memory, "f32", "NN", (257, 5, 33))
    memory.drv.memcpy_htod(operands.addresses[2], np.full_like(encoded(operands.whole[2], "f32"), np.nan))
    assert handle.gemm(operands.call) == SUCCESS
    like = encoded(operands.whole[2], "f32")
    memory.context.synchronize()
    np.testing.assert_array_equal(memory.get(operands.addresses[2], like)[:-3], operands.product)


@pytest.mark.parametrize("beta", [0, 1])
@pytest.mark.parametrize("dtype", TYPES)
def test_what_a_and_b_hold_does_not_matter_at_alpha_0(handle: Handle, memory: Memory, dtype: str, beta: int) -> None:
    operands = Operands(memory, dtype, "NN", (257, 5, 33), alpha=0, beta=beta)
    for address, matrix in zip(operands.addresses[:2], operands.whole[:2], strict=True):
        memory.drv.memcpy_htod(address, encoded(np.full_like(matrix, np.nan), dtype))
    assert handle.gemm(operands.call) == SUCCESS, handle.error
    operands.check()


def test_a_kernel_that_does_not_split_k(handle: Handle, memory: Memory) -> None:
    operands = Operands(memory, "f32", "NN", (4097, 2, 4095), alpha=2, beta=1)
    assert handle.workspace_size(operands.call) == 0
    assert handle.choice(operands.call)[1].startswith(
        "tsm2:version=v3,threads=128,columns=2,prefetch=4: tuned for 4096x2x4096, at distance"
    )
    assert handle.gemm(operands.call) == SUCCESS, handle.error
    operands.check()


@pytest.mark.parametrize("beta", [0, 1])
def test_without_elements_along_k(handle: Handle, memory: Memory, beta: int) -> None:
    for dtype in TYPES:
        operands = Operands(memory, dtype, "TN", (257, 5, 0), beta=beta)
        assert handle.gemm(operands.call) == SUCCESS, handle.error
        operands.check(beta * operands.c)


def test_offsets_past_32_bits(handle: Handle, memory: Memory) -> None:
    m, n, k, ld = 70, 3, 3, 2**30
    size = ((k - 1) * ld + m) * 2
    if memory.drv.mem_get_info()[0] < size + 2**28:
        pytest.skip("the GPU has too little free memory")
    operands = Operands(memory, "f16", "NN", (m, n, k))
    far = memory.room(size)
    for column in range(k):
        memory.drv.memcpy_htod(far + column * ld * 2, encoded(operands.a[:, column].copy(), "f16"))
    assert handle.gemm(replace(operands.call, a=far, lda=ld)) == SUCCESS, handle.error
    operands.check()


# Streams, memory, threads


def test_products_on_a_stream_follow_one_another(handle: Handle, memory: Memory) -> None:
    operands = Operands(memory, "f32", "TN", (257, 5, 330), beta=1)
    streams = [memory.drv.Stream() for _ in range(3)]
    for number in range(30):
        stream = streams[number // 10]  # the workspace goes from one to the next
        handle.set_stream(stream.handle)
        assert handle.stream() == stream.handle
        assert handle.gemm(operands.call) == SUCCESS, handle.error
        if number % 10 == 9:
            stream.synchronize()
    operands.check(30 * operands.product + operands.c)


def test_a_workspace_of_the_callers(handle: Handle, memory: Memory) -> None:
    small = Operands(memory, "c128", "CN", (40, 5, 33), beta=1)
    large = Operands(memory, "c128", "CN", (2049, 50, 33), beta=1)
    size = handle.workspace_size(large.call)
    address = memory.put(np.full(size + 64, 0xFF, np.uint8))
    assert handle.set_workspace(address, size) == SUCCESS
    for _ in range(3):
        for operands in (small, large):
            assert handle.gemm(operands.call) == SUCCESS, handle.error
    for operands in (small, large):
        operands.check(3 * operands.product + operands.c)
    assert memory.get(address + size, np.empty(64, np.uint8)).tolist() == [0xFF] * 64
    assert handle.set_workspace(address, handle.workspace_size(small.call)) == SUCCESS
    assert handle.gemm(small.call) == SUCCESS
    assert handle.gemm(large.call) == WORKSPACE_TOO_SMALL
    assert handle.error == f"this product needs a workspace of {size} bytes"
    assert handle.set_workspace(address + 1, size) == INVALID_VALUE
    assert handle.set_workspace(None, 0) == SUCCESS
    assert handle.gemm(large.call) == SUCCESS
    large.check(4 * large.product + large.c)


def test_a_product_is_captured_into_a_graph(handle: Handle, memory: Memory) -> None:
    driver = ctypes.CDLL("libcuda.so.1")
    operands = Operands(memory, "f32", "NN", (257, 9, 64), beta=1)
    workspace, size = memory.room(1 << 20), 1 << 20
    stream = memory.drv.Stream()
    handle.set_stream(stream.handle)
    assert handle.set_workspace(workspace, size) == SUCCESS
    assert handle.load() == SUCCESS, handle.error
    on, graph, executable = ctypes.c_void_p(stream.handle), ctypes.c_void_p(), ctypes.c_void_p()

    def captured(call: Call) -> int:
        assert driver.cuStreamBeginCapture_v2(on, 2) == 0  # CU_STREAM_CAPTURE_MODE_RELAXED
        status = handle.gemm(call)
        assert driver.cuStreamEndCapture(on, ctypes.byref(graph)) == 0
        return status

    assert captured(operands.call) == SUCCESS, handle.error
    assert driver.cuGraphInstantiateWithFlags(ctypes.byref(executable), graph, ctypes.c_ulonglong(0)) == 0
    for _ in range(3):
        assert driver.cuGraphLaunch(executable, on) == 0
    stream.synchronize()
    operands.check(3 * operands.product + operands.c)
    assert handle.set_workspace(None, 0) == SUCCESS
    assert captured(operands.call) == NOT_SUPPORTED
    assert "a CUDA graph has from the caller" in handle.error
    operands.check(3 * operands.product + operands.c)


def test_threads_with_a_handle_each(library: str, memory: Memory) -> None:
    all_operands = [Operands(memory, "f64", ops, (257, 5, 330), beta=1) for ops in ("NN", "TN", "NT", "NN")]
    handles = [Handle(library) for _ in all_operands]
    streams = [memory.drv.Stream() for _ in all_operands]
    failures: list[str] = []

    def work(number: int) -> None:  # no context is current in these threads
        handle = handles[number]
        for _ in range(100):
            if handle.gemm(all_operands[number].call) != SUCCESS:
                failures.append(handle.error)

    for handle, stream in zip(handles, streams, strict=True):
        handle.set_stream(stream.handle)
    in_threads([partial(work, number) for number in range(len(handles))])
    assert failures == []
    assert [handle.destroy() for handle in handles] == [SUCCESS] * len(handles)
    for operands in all_operands:
        operands.check(100 * operands.product + operands.c)


# The examples


@pytest.mark.parametrize(("compiler", "example"), [("cc", "library.c"), ("gfortran", "library.f90")])
def test_an_example_runs(memory: Memory, tmp_path: Path, compiler: str, example: str) -> None:
    cuda = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    if shutil.which(compiler) is None or not (cuda / "lib64" / "libcudart.so").exists():
        pytest.skip(f"no {compiler}, or no CUDA runtime in {cuda}")
    problem = Problem(100000, 8, 8, "f64")
    real_library(tmp_path, (memory.run, trial(problem=problem, source=handmade(problem))))
    texts = ["libtsm2.f90"] if example.endswith("f90") else []
    command = [compiler, *texts, str(EXAMPLES / example), "-I.", f"-I{cuda}/include", "-L.", f"-L{cuda}/lib64"]
    subprocess.run([*command, "-ltsm2", "-lcudart", "-o", "product"], check=True, cwd=tmp_path)
    folders = (".", f"{cuda}/lib64", os.environ.get("LD_LIBRARY_PATH", ""))
    environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, folders))}
    told = subprocess.run(["./product"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert told.returncode == 0, told.stdout + told.stderr
    assert "tuned for this shape; with the L2 clean 500.0 us measured" in told.stdout
    assert "0 of 800000 elements are wrong" in told.stdout
