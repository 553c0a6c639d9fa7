"""Check an exported module on a GPU with the arrays of one library, in a process of its own.

python -m tests.exported_on_gpu MODULE.py pycuda|torch|cupy

Every op for which the module has a kernel in f32 is checked with matrices in its storage orders.
"""

from __future__ import annotations

import faulthandler
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.call_log import logged
from tests.fabricated import imported_from
from tests.threads_on_gpu import PATIENCE_SECONDS, in_threads

M, N, K = 4099, 5, 517
RNG = np.random.default_rng(1)
A = RNG.random((M, K)).astype(np.float32)
B = RNG.random((K, N)).astype(np.float32)
EXPECTED = A.astype(np.float64) @ B

Orders = list[Any]  # NumPy's names of the orders of a, b and out: F column-major, C row-major
ROUNDS = 20  # rounds of concurrent products


def check(found: Any, expected: Any = EXPECTED) -> None:
    np.testing.assert_allclose(found, expected, rtol=K * 2.0**-24)


def on_host(x: Any) -> Any:
    return x.get() if hasattr(x, "get") else x.cpu().numpy()


def pycuda(best: ModuleType, op: str, orders: Orders) -> None:
    import pycuda.autoinit  # noqa: F401
    import pycuda.driver as drv
    from pycuda import gpuarray

    a, b = (gpuarray.to_gpu(np.asarray(x, order=order)) for x, order in zip((A, B), orders, strict=False))
    c = gpuarray.zeros((M, N), np.float32, order=orders[2])
    print(op, best.choice(a, b, c))
    assert best.choice(a, b, c).winner.op == op
    best.gemm(a, b, out=c)
    check(c.get())
    stream = drv.Stream()
    best.gemm(a, b, out=c, alpha=2, beta=1, stream=stream)
    stream.synchronize()
    check(c.get(), 3 * EXPECTED)
    in_threads([lambda: best.gemm(a, b, out=c)])
    drv.Context.synchronize()
    check(c.get())
    made = best.gemm(a, b)
    check(made.get())
    assert made.flags.f_contiguous if best.choice(a, b).winner.orders[2] == "n" else made.flags.c_contiguous
    best.plan(a, b, c, alpha=2)()
    check(c.get(), 2 * EXPECTED)
    start = best.plan(a, b, c, alpha=3, measure=True)
    start()
    check(c.get(), 3 * EXPECTED)
    print(start.match)
    assert start.match.is_timed
    a.fill(np.nan)
    for beta, expected in ((0, 0), (1, 4)):
        c.fill(4 if beta else np.nan)
        best.gemm(a, b, out=c, alpha=0, beta=beta)
        best.plan(a, b, c, alpha=0, beta=beta)()
        assert (c.get() == expected).all()


def torch(best: ModuleType, op: str, orders: Orders) -> None:
    import torch

    def placed(matrix: np.ndarray[Any, Any], order: str) -> Any:
        """The matrix as a block of a larger one."""
        rows, columns = matrix.shape
        whole = torch.zeros((rows + 3, columns + 2) if order == "C" else (columns + 2, rows + 3), device="cuda")
        block = (whole if order == "C" else whole.T)[3:, 2:]
        return block.copy_(torch.tensor(matrix))

    a, b, c = (placed(x, order) for x, order in zip((A, B, np.zeros((M, N), np.float32)), orders, strict=True))
    assert best.choice(a, b, c).winner.op == op
    best.gemm(a[:70], b, out=c[:70])  # small first: a workspace must grow
    best.gemm(a, b, out=c)
    torch.cuda.synchronize()
    check(c.cpu().numpy())
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    best.gemm(a, b, out=c, alpha=2, beta=1, stream=stream)
    stream.synchronize()
    check(c.cpu().numpy(), 3 * EXPECTED)
    made = best.gemm(a, b)
    assert type(made) is torch.Tensor
    torch.cuda.synchronize()
    check(made.cpu().numpy())
    check((b.T @ a.T).T.cpu().numpy())
    check(best.gemm(a, b[:, 0]).cpu().numpy(), EXPECTED[:, 0])
    start = best.plan(a, b, c, alpha=2)
    c.zero_()
    assert start() is c
    check(c.cpu().numpy(), 2 * EXPECTED)
    by_timing(best, a, b, c)
    first_calls(best, a, b, c)
    of_nothing(best, a, b, c)
    best.gemm(a[5:], b, out=c[5:])
    torch.cuda.synchronize()
    check(c[5:].cpu().numpy(), EXPECTED[5:])
    in_current_streams(best, a, b, c)
    if best.launcher() is not None and hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        assert torch.Tensor in best.launchers
    for turn in range(4):
        check(best.gemm(a, b, out=c.fill_(1), alpha=turn, beta=2).cpu().numpy(), turn * EXPECTED + 2)
        check(best.gemm(a, b, alpha=turn).cpu().numpy(), turn * EXPECTED)
    check((a.double() @ b.double()).cpu().numpy())  # PyTorch goes on working
    host_factor = torch.tensor(2.0)
    check(best.gemm(a, b, alpha=host_factor).cpu().numpy(), 2 * EXPECTED)
    with pytest.raises(TypeError, match="alpha: it is in a device's memory"):
        best.gemm(a, b, alpha=host_factor.cuda())
    without_operands(best, a, b, c)


def first_calls(best: ModuleType, a: Any, b: Any, c: Any) -> None:
    """Products of shapes that are new each time, which a launcher that knows the winners decides by itself."""
    long, of = list[Any](), best.Product.of
    best.Product.of = lambda *given, **named: logged(long, given[2], of(*given, **named))
    for rows in range(500, 540):
        check(on_host(best.gemm(a[:rows], b, out=c[:rows])), EXPECTED[:rows])
        check(on_host(best.gemm(a[:rows], b[:, 1:])), EXPECTED[:rows, 1:])
        shorter = A[:rows, 3:].astype(np.float64) @ B[3:]
        check(on_host(best.gemm(a[:rows, 3:], b[3:], out=c[:rows], alpha=2)), 2 * shorter)
    best.Product.of = of
    count = sum(out is not None for out in long)
    print(f"{count} of 80 first calls with an out, and {len(long) - count} of 40 without one, by Python")
    is_served = best.launcher() is not None and type(a) in best.launchers
    assert count < 20 if is_served else count > 20


def by_timing(best: ModuleType, a: Any, b: Any, c: Any) -> None:
    """Check that timing keeps what `out` holds if beta needs it, and that plans are right whichever kernel wins."""
    held = c * 1.0
    start = best.plan(a, b, c, alpha=2, beta=1, measure=True)
    assert bool((held == c).all())
    print(start.match)
    assert start() is c
    check(on_host(c), on_host(held).astype(np.float64) + 2 * EXPECTED)
    best.plan(a, b, c, measure=True)()
    check(on_host(c))
    held = c * 1.0
    for _ in range(3):  # the first of which is timed
        assert best.gemm(a, b, out=c, alpha=2, beta=1, measure=True) is c
    check(on_host(c), on_host(held).astype(np.float64) + 6 * EXPECTED)
    for _ in range(2):
        check(on_host(best.gemm(a, b, measure=True)))
    check(on_host(best.gemm(a, b[:, 0], measure=True)), EXPECTED[:, 0])


SLOW_CYCLES = 20_000_000  # of a GPU's clock: ten milliseconds, far longer than a launch takes to come through


def in_current_streams(best: ModuleType, a: Any, b: Any, c: Any) -> None:
    """Products within `with torch.cuda.stream(s)`, after slow work on a, and before what reads the result there."""
    import torch

    def work(number: int) -> None:
        late, out = torch.zeros_like(a), torch.zeros_like(c)
        torch.cuda.synchronize()
        for _ in range(3):
            with torch.cuda.stream(torch.cuda.Stream()):
                torch.cuda._sleep(SLOW_CYCLES)
                late.copy_(a).mul_(number)
                best.gemm(late, b, out=out)
                read = out.clone()
                late.zero_()
                out.zero_()
            torch.cuda.synchronize()
            check(read.cpu().numpy(), number * EXPECTED)

    work(1)
    in_threads([lambda number=number: work(number) for number in (1, 2, 4, 8)])  # type: ignore[misc]


def of_nothing(best: ModuleType, a: Any, b: Any, c: Any) -> None:
    """Products with an extent of 0, and of types that the module has no kernel for: PyTorch's own."""
    import torch

    kept = c.clone()
    best.gemm(a[:, :0], b[:0], out=c, beta=0.5)
    torch.testing.assert_close(c, 0.5 * kept)
    assert best.gemm(a[:0], b).shape == (0, N)
    integers = torch.ones(3, 3, dtype=torch.int32, device="cuda")
    with pytest.raises(TypeError, match="expected one of float32"):
        best.gemm(integers, integers)
    assert not any(w.dtype == "f16" for w in best.WINNERS)
    halves = a.half(), b.half()
    assert isinstance(best.choice(*halves), best.Vendor)
    torch.testing.assert_close(best.gemm(*halves), halves[0] @ halves[1])
    import cupy

    pair = torch.tensor([[1.0, 2.0**-11]], device="cuda").half(), torch.ones(2, 1, device="cuda").half()
    for x, y in (pair, map(cupy.from_dlpack, pair)):  # 3 + 3/2048, which is 3 when rounded before it is tripled
        assert float(best.gemm(x, y, alpha=3.0)[0, 0]) == 3.001953125
        assert float(best.gemm(x, y[:, 0], alpha=3.0)[0]) == 3.001953125
    with pytest.raises(LookupError, match="no f16 kernel tuned on a GPU"):
        best.gemm(*halves, fallback="error")
    best.gemm(a, b, out=c)


def without_operands(best: ModuleType, a: Any, b: Any, c: Any) -> None:
    """At alpha = 0 the product is beta c whatever a holds, and at beta = 0 whatever c does. All are lost."""
    a[...] = float("nan")
    for alpha, beta in ((0, None), (np.zeros(()), 0.5), (-0.0, 0), (0.0, 1)):
        for start in (best.gemm, lambda a, b, out, **factors: best.plan(a, b, out, **factors)()):
            c[...] = 4.0 if beta else float("nan")
            assert start(a, b, out=c, alpha=alpha, beta=beta) is c
            assert bool((c == 4.0 * (beta or 0)).all()), (alpha, beta)
    assert bool((best.gemm(a, b, alpha=0) == 0).all())


def cupy(best: ModuleType, op: str, orders: Orders) -> None:
    import cupy

    a, b = (cupy.array(x, order=order) for x, order in zip((A, B), orders, strict=False))
    c = cupy.empty((M, N), np.float32, order=orders[2])
    assert best.choice(a, b, c).winner.op == op
    best.gemm(a, b, out=c)
    check(c.get())
    for _ in range(ROUNDS):  # streams that come and go
        with cupy.cuda.Stream(non_blocking=True) as stream:
            best.gemm(a, b, out=c, stream=stream)
            best.gemm(a, b, out=c, alpha=2, beta=1, stream=stream)
            stream.synchronize()
            check(c.get(), 3 * EXPECTED)
    in_threads([lambda number=number: in_cupys_streams(best, a, b, c, number) for number in (1, 2, 4)])  # type: ignore[misc]
    in_threads([lambda: in_own_stream_of_cupys_threads(best, a, b, c)])
    check(c.get())
    made = best.gemm(a, b)
    assert type(made) is cupy.ndarray
    cupy.cuda.Device().synchronize()
    check(made.get())
    start = best.plan(a, b, c, alpha=2)
    start()
    check(c.get(), 2 * EXPECTED)
    by_timing(best, a, b, c)
    first_calls(best, a, b, c)
    pool = cupy.cuda.MemoryAsyncPool()  # memory that no context owns
    with cupy.cuda.using_allocator(pool.malloc):
        pooled = cupy.array(A, order=orders[0])
    best.gemm(pooled, b, out=c)
    check(c.get())
    with cupy.cuda.using_allocator(cupy.cuda.malloc_managed):
        managed = [
            cupy.array(x, order=order) for x, order in zip((A, B, np.zeros((M, N), "f4")), orders, strict=True)
        ]
    best.gemm(managed[0], b, out=managed[2])
    check(managed[2].get())
    check(best.gemm(*managed[:2]).get())
    check(best.gemm(a, b, alpha=np.array(2.0)).get(), 2 * EXPECTED)
    with pytest.raises(TypeError, match="alpha: it is in a device's memory"):
        best.gemm(a, b, alpha=cupy.array(2.0))
    without_operands(best, a, b, c)


def in_own_stream_of_cupys_threads(best: ModuleType, a: Any, b: Any, c: Any) -> None:
    """A product in the thread's own default stream, which ends with the thread and so is waited for before."""
    import cupy

    best.gemm(a, b, out=c, stream=cupy.cuda.Stream.ptds)
    cupy.cuda.Stream.ptds.synchronize()


def in_cupys_streams(best: ModuleType, a: Any, b: Any, c: Any, number: int) -> None:
    """A product within `with stream`, after slow work on a, and before what reads the result there."""
    import cupy

    slow = cupy.RawKernel(
        'extern "C" __global__ void slow(long long cycles)'
        " { for (long long from = clock64(); clock64() - from < cycles;); }",
        "slow",
    )
    late, out = cupy.zeros_like(a), cupy.zeros_like(c)
    cupy.cuda.Device().synchronize()
    for _ in range(3):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            slow((1,), (1,), (np.int64(SLOW_CYCLES),))
            cupy.multiply(a, np.float32(number), out=late)
            best.gemm(late, b, out=out)
            read = out.copy(order="K")
            late.fill(0)
            out.fill(0)
            stream.synchronize()
        check(read.get(), number * EXPECTED)


if __name__ == "__main__":
    _, path, library = sys.argv
    faulthandler.dump_traceback_later(PATIENCE_SECONDS, repeat=True)
    best = imported_from(Path(path))
    kernels = {w.op: w.orders for w in best.WINNERS if w.dtype == "f32" and not w.on_host}
    assert kernels
    for op, orders in kernels.items():
        named = ["F" if order == "n" else "C" for order in orders]
        {"pycuda": pycuda, "torch": torch, "cupy": cupy}[library](best, op, named)
