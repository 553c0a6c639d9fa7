"""Checks of an exported module with CuPy's arrays, and with those that DLPack hands over; tests/arrays_on_gpu.py runs
them.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from tests.module_on_gpu import counted, drawn, imported_jax, right

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
    theirs = _answer(cupy.matmul, a, b, out=held)
    for _ in range(2):
        if out is not None and not isinstance(theirs, Exception):
            out.fill(7)
        ours = _answer(best.cupy.matmul, a, b, out=out)
        if isinstance(theirs, Exception) or isinstance(ours, Exception):
            assert (type(ours), str(ours)) == (type(theirs), str(theirs)), (ours, theirs)
            continue
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        assert (ours is out) if out is not None else ours.flags.c_contiguous == theirs.flags.c_contiguous
        np.testing.assert_array_equal(ours.get(), theirs.get())


def _answer(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    try:
        return function(*arguments, **named)
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
    """Check that a product waits for arrays that JAX still computes, on a stream that waits for nothing else."""
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
    """Check that a deleted array of JAX, whose memory JAX would use again, is kept until its product is done."""
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
