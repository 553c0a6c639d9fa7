"""Check an exported module with arrays of JAX and CuPy, and with those that DLPack hands over, on a GPU.

    python -m tests.arrays_on_gpu products gradients    # of JAX's; and so the other names of CHECKS
    python -m tests.arrays_on_gpu cost                  # what calls cost the host, in microseconds

The module is that of tests/module_on_gpu.py.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from tests.cupy_on_gpu import cupys, dlpack
from tests.module_on_gpu import counted, drawn, imported_jax, made_module, right
from tests.threads_on_gpu import PATIENCE_SECONDS, in_threads

SHAPES = ((2049, 8, 3001), (100_000, 8, 16), (7, 5, 33), (1, 6, 700), (300, 1, 700), (16, 16, 50_001))
LAST, FIRST = (((1,), (0,)), ((), ())), (((0,), (0,)), ((), ()))
ROUNDS, CALLS = 7, 1000  # repetitions of `cost`


def taken(best: ModuleType, jax: Any, function: Callable[..., Any], *arrays: Any) -> int:
    """Products by kernels in the program that JAX compiles."""
    return int(jax.jit(function).lower(*arrays).as_text().count(f"@{best.target_of_xla()}("))


# JAX


def products(best: ModuleType) -> None:
    """Check that products of every shape, type and storage are right, repeatable, and computed by our kernels."""
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
    assert [plan.match.winner.is_gram for plan in starts] == [True], [str(plan.match) for plan in starts]


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
    derivative: Callable[[Any], Any]
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

    def twelve(x: Any, y: Any) -> Any:
        for _ in range(6):
            y = y + 1e-4 * best.jax.dot_general(x, best.jax.matmul(x, y), FIRST)
        return y

    wanted = y.astype(np.float64)
    for _ in range(6):
        wanted = wanted + 1e-4 * (x.T.astype(np.float64) @ (x @ wanted))
    runs, compiled = 100, jax.jit(twelve)
    with counted(best, "start_within") as starts:
        for _ in range(runs):
            found = compiled(*arrays)
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)
    print(f"captured: {12 * runs} products, {len(starts)} starts by Python")
    assert len(starts) < 12 * runs


# Cost of calls


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
        "cupy.matmul(a, b, out=out)": lambda: cupy.matmul(*of_cupy, out=out),
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
