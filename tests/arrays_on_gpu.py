"""Check an exported module with arrays of JAX and CuPy, and with those that DLPack hands over, on a GPU.

    python -m tests.arrays_on_gpu products gradients    # of JAX's; and so the other names of CHECKS
    python -m tests.arrays_on_gpu cost                  # what calls cost the host, in microseconds

The module has real kernels of row-major results, and is made for the GPU that is here.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from tests.exported_on_gpu import PATIENCE_SECONDS, in_threads
from tests.fabricated import imported, trial, tuning_run
from tests.right_on_host import subject
from tsm2_tune.generator.render import render
from tsm2_tune.runtime.driver import ask_driver, device_of
from tsm2_tune.tuner.export import export
from tsm2_tune.tuner.store import Store

TUNED = (
    ("tsmr_rows-t256-b16-l32-r4-c8-v1-s2-k8-p160-m2", "20480x8x20480:f32:ttt"),
    ("staged-t128-w128-m16-n16-d128-s2-l0-k264-b3-r8-c8-p2", "16x16x1000000:f32:ntt"),
    ("tsmr_rows-t128-b16-l8-r2-c4-v2-s2-k2-p10-m3", "20480x8x1024:f32:tnt"),
    ("gram-t128-w128-m16-d128-s2-l0-k264-b1-c8-p2", "16x16x1000000:f32:nxt"),
    ("tsmm_rows-t128-b16-l4-v1-w1-c16-p8-r2-m4-j1", "1000000x16x256:f64:ttt"),
    ("staged-t128-w128-m16-n16-d128-s2-l0-k264-b3-r8-c8-p2", "16x16x1000000:f64:ntt"),
    ("tsmr_zmma-t64-m1-c8-p16-s2-k3-r1-b1", "129x7x67:c64:ttt"),
    ("tsmr_half-t256-m2-c8-p128-s2-k3-r1-b2", "10240x4x10240:bf16:ttt"),
)
SHAPES = ((2049, 8, 3001), (100_000, 8, 16), (7, 5, 33), (1, 6, 700), (300, 1, 700), (16, 16, 50_001))
LAST, FIRST = (((1,), (0,)), ((), ())), (((0,), (0,)), ((), ()))
ROUNDS, CALLS = 7, 1000  # of `cost`


def made_module(folder: Path, *, launcher: bool = False) -> ModuleType:
    """Of TUNED, with binaries."""
    numbers = []
    name, _ = device_of(0)
    for attribute in (75, 76, 16):  # of the compute capability, and MULTIPROCESSOR_COUNT
        value = ctypes.c_int()
        ask_driver("cuDeviceGetAttribute", ctypes.byref(value), attribute, ctypes.c_int(0))
        numbers.append(value.value)
    run = tuning_run(name, compute_capability=f"{numbers[0]}.{numbers[1]}", sms=numbers[2])
    with Store.open(folder / "results.db", create=True) as store:
        for spelt, text in TUNED:
            config, problem = (found := subject(spelt, text)).config, found.problem
            tried = trial(50.0, config, problem=problem, source=render(problem, config))
            store.add_trial(run, replace(tried, resources=replace(tried.resources, blocks_per_sm=2)))
        return imported(export(store, "module", binaries=True, launcher=launcher), folder)


def drawn(*shape: int, dtype: str = "float32", seed: int = 1) -> Any:
    """Random numbers about 0, of NumPy; for bfloat16 such as that has."""
    parts = np.random.default_rng((seed, *shape)).random((2, *shape)) - 0.5
    if dtype == "bfloat16":
        return (np.round(parts[0] * 128) / 128).astype(np.float32)
    return (parts[0] + 1j * parts[1] if dtype[0] == "c" else parts[0]).astype(dtype)


def right(found: Any, a: Any, b: Any, dtype: str = "float32", terms: int | None = None) -> None:
    """AssertionError where it is not a b, within the bound of sums in any order."""
    wide = [np.asarray(x).astype(np.complex128 if dtype[0] == "c" else np.float64) for x in (a, b)]
    eps = np.finfo(np.float32 if dtype == "bfloat16" else dtype).eps
    exact, sums = wide[0] @ wide[1], np.abs(wide[0]) @ np.abs(wide[1])
    bound = ((terms or wide[0].shape[-1]) + 4) * eps * sums + (2.0**-8 * np.abs(exact) if dtype == "bfloat16" else 0)
    error = np.abs(np.asarray(found).astype(exact.dtype) - exact)
    assert error.shape == exact.shape
    assert (error <= bound).all(), f"{dtype} {exact.shape}: {np.nanmax(error)}"


@contextmanager
def counted(best: ModuleType, name: str) -> Iterator[list[Any]]:
    """The plans that are started so meanwhile."""
    starts, start = [], getattr(best.Plan, name)

    def counting(plan: Any, *arguments: Any) -> None:
        starts.append(plan)
        start(plan, *arguments)

    setattr(best.Plan, name, counting)
    try:
        yield starts
    finally:
        setattr(best.Plan, name, start)


def imported_jax() -> Any:
    """JAX, which takes memory as it needs it, and has types of 64 bits."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    jax.config.update("jax_enable_x64", True)
    assert jax.default_backend() == "gpu", jax.default_backend()
    return jax


def taken(best: ModuleType, jax: Any, function: Callable[..., Any], *arrays: Any) -> int:
    """Products by kernels in the program that JAX compiles."""
    return int(jax.jit(function).lower(*arrays).as_text().count(f"@{best.target_of_xla()}("))


# JAX


def products(best: ModuleType) -> None:
    """Of every shape, type and way to lie: right, the same bits each time, by the kernels that there are."""
    jax = imported_jax()
    jnp, by_kernels = jax.numpy, {"float32": (1, 1), "float64": (1, 1), "complex64": (1, 0), "bfloat16": (1, 0)}
    for dtype, expected in by_kernels.items():
        for (m, n, k), (dimensions, expects) in (
            (s, w) for s in SHAPES for w in zip((LAST, FIRST), expected, strict=True)
        ):
            a, b = drawn(*((k, m) if dimensions is FIRST else (m, k)), dtype=dtype), drawn(k, n, dtype=dtype, seed=2)
            of_jax = [jnp.asarray(x, dtype) for x in (a, b)]

            def multiply(x: Any, y: Any, dimensions: Any = dimensions) -> Any:
                return best.jax.dot_general(x, y, dimensions)

            # JAX's own product of float32 has the precision of TF32 unless it is asked for more.
            with jax.default_matmul_precision("highest"):
                is_taken = taken(best, jax, multiply, *of_jax)
                if min(m, n) > 1:
                    assert is_taken == expects, (dtype, dimensions, (m, n, k))
                with counted(best, "start_within") as starts:
                    made = [f(*of_jax) for f in (multiply, jax.jit(multiply), multiply)]
                    found = [np.asarray(x.astype(jnp.float32 if dtype == "bfloat16" else dtype)) for x in made]
                own = np.asarray(jax.lax.dot_general(*of_jax, dimensions), found[0].dtype)
            assert (len(starts) > 0) == (is_taken > 0)
            np.testing.assert_allclose(found[0], own, rtol=1e-2, atol=1e-2 * np.abs(own).max())
            if not is_taken:
                continue
            right(found[0], a.T if dimensions is FIRST else a, b, dtype)
            assert all((x.view(np.uint8) == found[0].view(np.uint8)).all() for x in found)
    a, b = jnp.asarray(drawn(40, 6), jnp.float16), jnp.asarray(drawn(6, 3), jnp.float16)
    assert taken(best, jax, best.jax.matmul, a, b) == 0
    np.testing.assert_allclose(best.jax.matmul(a, b), jnp.matmul(a, b), rtol=1e-2, atol=1e-2)
    x = drawn(50_001, 16)
    of_itself = jnp.asarray(x)
    with counted(best, "start_within") as starts:
        right(best.jax.dot_general(of_itself, of_itself, FIRST), x.T, x)
    assert [plan.match.winner.is_gram for plan in starts] == [True]


def gradients(best: ModuleType) -> None:
    """By kernels, under jit and vmap, and those of gradients."""
    jax = imported_jax()
    jnp, matmul = jax.numpy, best.jax.matmul
    a, b, weights = drawn(20_000, 16), drawn(16, 8, seed=2), drawn(20_000, 8, seed=3)
    of_jax = [jnp.asarray(x) for x in (a, b, weights)]

    def loss(a: Any, b: Any, weights: Any) -> Any:
        return (matmul(a, b) * weights).sum()

    gradient = jax.grad(loss, (0, 1))
    assert taken(best, jax, jax.value_and_grad(loss, (0, 1)), *of_jax) == 3
    for f in (gradient, jax.jit(gradient)):
        of_a, of_b = f(*of_jax)
        right(of_a, weights, b.T)
        right(of_b, a.T, weights)
    batch = drawn(4, 5000, 16, seed=4)
    each = jax.vmap(matmul, (0, None))
    assert taken(best, jax, each, jnp.asarray(batch), of_jax[1]) == 1
    right(jax.jit(each)(jnp.asarray(batch), of_jax[1]), batch, b)
    right(matmul(jnp.asarray(batch), of_jax[1]), batch, b)
    exact = [jnp.asarray(np.round(8 * x)) for x in (a[:64], b)]  # whole numbers
    for derivative in (lambda f: jax.jacfwd(f, 1), lambda f: jax.hessian(lambda a, b: (f(a, b) ** 2).sum(), 1)):
        with jax.default_matmul_precision("highest"):
            np.testing.assert_array_equal(derivative(matmul)(*exact), derivative(jnp.matmul)(*exact))


def programs(best: ModuleType) -> None:
    """Many products in a program, in loops, of many arrays, by several threads: each right, and each time."""
    jax = imported_jax()
    jnp, matmul = jax.numpy, best.jax.matmul

    def power(x: Any, y: Any) -> Any:
        for _ in range(4):
            y = matmul(x, best.jax.dot_general(x, y, FIRST)) + 1
            y = y / jnp.abs(y).max()
        return y

    def loop(x: Any, y: Any) -> Any:
        def step(y: Any, _: Any) -> Any:
            y = matmul(x, best.jax.dot_general(x, y, FIRST)) + 1
            return y / jnp.abs(y).max(), y.sum()

        return jax.lax.scan(step, y, None, length=4)[0]

    def expected(x: Any, y: Any) -> Any:
        x, y = x.astype(np.float64), y.astype(np.float64)
        for _ in range(4):
            y = x @ (x.T @ y) + 1
            y = y / np.abs(y).max()
        return y

    given = [(drawn(30_000 + 8 * i, 16, seed=i), drawn(30_000 + 8 * i, 8, seed=50 + i)) for i in range(3)]
    with counted(best, "start_within") as starts:
        for function in map(jax.jit, (power, loop)):
            for x, y in given:
                wanted = expected(x, y)
                arrays = jnp.asarray(x), jnp.asarray(y)
                assert taken(best, jax, function, *arrays) in (2, 8)
                held = []
                for _ in range(20):  # the arrays of later runs are elsewhere
                    held.append(function(arrays[0], arrays[1] + 0))
                for one in held:
                    np.testing.assert_allclose(one, wanted, rtol=1e-3, atol=1e-4)
    print(f"programs: {2 * 3 * 20 * 8} products, {len(starts)} starts by Python: the others were replayed by XLA")
    in_threads([lambda x=x, y=y: _again(jax, power, x, y, expected(x, y)) for x, y in given for _ in range(2)])  # type: ignore[misc]


def _again(jax: Any, power: Callable[..., Any], x: Any, y: Any, wanted: Any) -> None:
    function, arrays = jax.jit(lambda x, y: power(x, y)), [jax.numpy.asarray(one) for one in (x, y)]
    for _ in range(20):
        np.testing.assert_allclose(function(*arrays), wanted, rtol=1e-3, atol=1e-4)


def captured(best: ModuleType) -> None:
    """XLA puts the calls into CUDA graphs, where Python starts a kernel only while one is captured."""
    os.environ["XLA_FLAGS"] = "--xla_gpu_enable_command_buffer=FUSION,CUSTOM_CALL --xla_gpu_graph_min_graph_size=1"
    jax = imported_jax()
    x, y = drawn(30_000, 16), drawn(16, 8)
    arrays = [jax.numpy.asarray(one) for one in (x, y)]

    @jax.jit
    def twelve(x: Any, y: Any) -> Any:
        for _ in range(6):
            y = y + 1e-4 * best.jax.dot_general(x, best.jax.matmul(x, y), FIRST)
        return y

    wanted = y.astype(np.float64)
    for _ in range(6):
        wanted = wanted + 1e-4 * (x.T.astype(np.float64) @ (x @ wanted))
    runs = 100
    with counted(best, "start_within") as starts:
        for _ in range(runs):
            found = twelve(*arrays)
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)
    print(f"captured: {12 * runs} products, {len(starts)} starts by Python")
    assert len(starts) < 12 * runs


# CuPy


def cupys(best: ModuleType) -> None:
    """cupy.matmul's results, where they lie and its errors, for random arrays; kernels compute what they can."""
    import cupy

    random = np.random.default_rng(21)
    draws = 400
    with counted(best, "start") as starts:
        for _ in range(draws):
            a, b, out = _random_arrays(cupy, random)
            for arguments in ((a, b), (a, b, out)):
                _same_as_cupys(cupy, best, *arguments)
    print(f"cupys: {len(starts)} starts of kernels in {4 * draws} calls")
    assert draws // 4 < len(starts)
    stream = cupy.cuda.Stream(non_blocking=True)
    a, b = (cupy.asarray(drawn(*shape)) for shape in ((2049, 3001), (3001, 8)))
    cupy.cuda.Device().synchronize()
    with stream:
        found = [best.cupy.matmul(a, b) for _ in range(50)]
        stream.synchronize()
    right(found[0].get(), a.get(), b.get())
    assert all((one == found[0]).all() for one in found)


def _random_arrays(cupy: Any, random: np.random.Generator) -> tuple[Any, Any, Any]:
    """Arrays of whole numbers, whose products are exact; most fit together, and most are a kernel's."""
    m, n, k = (int(random.integers(1, high)) for high in (300, 9, 80))
    dtypes = ("float32", "float32", "float32", "float64", "complex64", "float16", "int32")
    dtype = str(random.choice(dtypes))

    def array(shape: tuple[int, ...], of: str) -> Any:
        numbers = random.integers(-3, 4, shape).astype(of)
        numbers = numbers + (1j * random.integers(-3, 4, shape)).astype(of) if of[0] == "c" else numbers
        whole = cupy.asarray(numbers, order=str(random.choice(["C", "F"])))
        way = random.random()
        if way < 0.15 and numbers.ndim == 2:  # a part of a larger one, which is a matrix, or none
            larger = cupy.zeros((2 * shape[0], 2 * shape[1]), of)
            part = larger[: shape[0], : shape[1]] if way < 0.1 else larger[::2, ::2]
            part[...] = whole
            return part
        return whole

    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((m, k), (k, n)), ((m, k), (k, n)), ((m, k), (k, n)), ((k,), (k, n)), ((m, k), (k,)), ((k,), (k,)),
        ((3, m, k), (k, n)), ((3, m, k), (3, k, n)), ((2, 3, m, k), (k,)), ((m, k), (k + 1, n)), ((m, 0), (0, n)),
    ]  # fmt: skip
    of_a, of_b = shapes[int(random.integers(len(shapes)))]
    other = "float64" if random.random() < 0.1 else dtype
    a, b = array(of_a, dtype), array(of_b, other)
    try:
        shape = np.empty(of_a) @ np.empty(of_b)
    except ValueError:
        return a, b, array((m, n), dtype)
    wrong = (*np.shape(shape)[:-1], 2) if random.random() < 0.05 and np.shape(shape) else np.shape(shape)
    return a, b, array(tuple(wrong), dtype)


def _same_as_cupys(cupy: Any, best: ModuleType, a: Any, b: Any, out: Any = None) -> None:
    """Twice, the second time by the short way."""
    held = None if out is None else out.copy()
    theirs = _answer(cupy.matmul, a, b, held)
    for _ in range(2):
        if out is not None and not isinstance(theirs, Exception):
            out.fill(7)
        ours = _answer(best.cupy.matmul, a, b, out)
        if isinstance(theirs, Exception) or isinstance(ours, Exception):
            assert (type(ours), str(ours)) == (type(theirs), str(theirs)), (ours, theirs)
            continue
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        assert (ours is out) if out is not None else ours.flags.c_contiguous == theirs.flags.c_contiguous
        np.testing.assert_array_equal(ours.get(), theirs.get())


def _answer(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        return error


# DLPack


class Only:
    """An array of which DLPack alone is known."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **asked: Any) -> Any:
        return self.array.__dlpack__(**asked)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def dlpack(best: ModuleType) -> None:
    """JAX's arrays, and CuPy's and PyTorch's by DLPack alone, into arrays of each; ordered by streams alone."""
    jax = imported_jax()
    import cupy
    import torch

    jnp = jax.numpy
    a, b = drawn(2049, 3001), drawn(3001, 8, seed=2)
    makers: dict[str, Callable[[Any], Any]] = {
        "jax": jnp.asarray,
        "cupy": lambda x: Only(cupy.asarray(x)),
        "torch": lambda x: Only(torch.from_numpy(x).cuda()),
    }
    outs: dict[str, Callable[[], Any]] = {
        "cupy": lambda: cupy.full((2049, 8), np.nan, np.float32),
        "torch": lambda: torch.full((2049, 8), float("nan"), device="cuda"),
    }
    for maker in makers.values():
        of_a, of_b = maker(a), maker(b)
        for name, empty in outs.items():
            for is_only in (False, True):
                out = empty()
                cupy.cuda.Device().synchronize()
                given = Only(out) if is_only else out
                is_told = not is_only or _says_writable(best, given)
                if not is_told:
                    print(f"dlpack: {name} does not say that it may be written")
                    continue
                assert best.gemm(of_a, of_b, out=given) is given
                cupy.cuda.Device().synchronize()
                right(out.cpu() if name == "torch" else out.get(), a, b)
    _ordered(best, jax, torch)
    _held(best, jax, torch)
    _refused(best, jnp, torch)


def _says_writable(best: ModuleType, array: Any) -> bool:
    return not best.Matrix.of("out", array).read_only


def _ordered(best: ModuleType, jax: Any, torch: Any) -> None:
    """What JAX still computes is waited for, on a stream that waits for nothing else."""
    jnp, stream = jax.numpy, torch.cuda.Stream()
    long = jax.jit(lambda x: jax.lax.fori_loop(0, 2000, lambda i, y: jnp.sin(y) + i * 0, x) * 0 + 1)
    x, y = jnp.zeros((40_000, 64)), jnp.ones((64, 8), jnp.float32)
    long(x.astype(jnp.float32)).block_until_ready()
    for _ in range(5):
        made = long(x.astype(jnp.float32))
        with torch.cuda.stream(stream):
            out = torch.full((40_000, 8), float("nan"), device="cuda")
            best.gemm(made, y, out=out)
            stream.synchronize()
            assert bool((out == 64).all())


def _held(best: ModuleType, jax: Any, torch: Any) -> None:
    """What nobody has any more, and JAX would use the memory of, is there until its product is done."""
    jnp, stream = jax.numpy, torch.cuda.Stream()
    y, shape = jnp.ones((64, 8), jnp.float32), (40_000, 64)
    for turn in range(5):
        made = (jnp.ones(shape, jnp.float32) + turn).block_until_ready()
        with torch.cuda.stream(stream):
            out = torch.full((shape[0], 8), float("nan"), device="cuda")
            torch.cuda._sleep(200_000_000)  # cycles, about 0.1 s
            best.gemm(made, y, out=out)
            del made
            others = [jnp.full(shape, 100 + other, jnp.float32) for other in range(20)]
            jax.block_until_ready(others)
            stream.synchronize()
            assert bool((out == 64 * (1 + turn)).all()), turn


def _refused(best: ModuleType, jnp: Any, torch: Any) -> None:
    a, b, out = jnp.ones((64, 8), jnp.float32), jnp.ones((8, 8), jnp.float32), jnp.zeros((64, 8), jnp.float32)
    refused = _answer(lambda: best.gemm(a, b, out=out))
    assert isinstance(refused, ValueError), refused
    assert str(refused) == "out: it is read-only, or does not say otherwise"
    refused = _answer(lambda: best.gemm(a, b))
    assert isinstance(refused, TypeError), refused
    assert "jax.matmul" in str(refused)
    half = [x.astype(jnp.bfloat16) for x in (a, b)]
    into = torch.zeros((64, 8), dtype=torch.bfloat16, device="cuda")
    best.gemm(*half, out=into)
    assert bool((into == 8).all())


# What calls cost


def cost(best: ModuleType) -> None:
    """Print what the host takes to start a small product, in microseconds, the median of rounds in turns."""
    jax = imported_jax()
    import cupy

    a, b = drawn(1024, 256), drawn(256, 8)
    jnp = jax.numpy
    of_jax, of_cupy = [jnp.asarray(x) for x in (a, b)], [cupy.asarray(x) for x in (a, b)]
    tall = jnp.asarray(drawn(8192, 8))
    out = cupy.empty((1024, 8), np.float32)
    ours, theirs = jax.jit(best.jax.matmul), jax.jit(jnp.matmul)
    across = jax.jit(lambda x, y: best.jax.dot_general(x, y, FIRST))
    own = jax.jit(lambda x, y: jax.lax.dot_general(x, y, FIRST))
    ways: dict[str, Callable[[], Any]] = {
        "jit(jnp.matmul)(a, b)": lambda: theirs(*of_jax),
        "jit(best_kernels.jax.matmul)(a, b)": lambda: ours(*of_jax),
        "jnp.matmul(a, b)": lambda: jnp.matmul(*of_jax),
        "best_kernels.jax.matmul(a, b)": lambda: best.jax.matmul(*of_jax),
        "jit(lax.dot_general)(x, x), X^T X": lambda: own(tall, tall),
        "jit(best_kernels.jax.dot_general)(x, x), splits k": lambda: across(tall, tall),
        "cupy.matmul(a, b)": lambda: cupy.matmul(*of_cupy),
        "best_kernels.cupy.matmul(a, b)": lambda: best.cupy.matmul(*of_cupy),
        "cupy.matmul(a, b, out)": lambda: cupy.matmul(*of_cupy, out),
        "best_kernels.cupy.matmul(a, b, out)": lambda: best.cupy.matmul(*of_cupy, out),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            for _ in range(20):
                last = way()
            began = time.perf_counter()
            for _ in range(CALLS):
                last = way()
            times[name].append(1e6 * (time.perf_counter() - began) / CALLS)
            jax.block_until_ready(last) if "jax" in name or "jit" in name or "jnp" in name else None
            cupy.cuda.Device().synchronize()
    for name, of in times.items():
        print(f"{name:52} {float(np.median(of)):7.1f} us")


CHECKS = (products, gradients, programs, captured, cupys, dlpack, cost)


def main() -> None:
    """Say on standard error where the threads are, every minute; exit code 0 where all is right."""
    faulthandler.dump_traceback_later(PATIENCE_SECONDS, repeat=True)
    known = {check.__name__: check for check in CHECKS}
    with tempfile.TemporaryDirectory() as folder:
        best = made_module(Path(folder))
        for name in sys.argv[1:]:
            known[name](best)
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
