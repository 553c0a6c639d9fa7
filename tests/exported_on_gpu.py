"""Check an exported module on a GPU with the arrays of one library, in a process of its own.

python tests/exported_on_gpu.py MODULE.py pycuda|torch|cupy
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from types import ModuleType
from typing import Any

import numpy as np

RNG = np.random.default_rng(1)
A = np.asfortranarray(RNG.random((4099, 517)), np.float32)
B = np.asfortranarray(RNG.random((517, 5)), np.float32)
EXPECTED = A.astype(np.float64) @ B


def imported(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("best_kernels", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["best_kernels"] = module
    spec.loader.exec_module(module)
    return module


def check(found: Any, expected: Any = EXPECTED) -> None:
    np.testing.assert_allclose(found, expected, rtol=517 * 2.0**-24)


def pycuda(best: ModuleType) -> None:
    import pycuda.autoinit  # noqa: F401
    import pycuda.driver as drv
    from pycuda import gpuarray

    a, b = gpuarray.to_gpu(A), gpuarray.to_gpu(B)
    print(best.choice(a, b))
    c = best.gemm(a, b)
    check(c.get())
    stream = drv.Stream()
    best.gemm(a, b, out=c, alpha=2, beta=1, stream=stream)
    stream.synchronize()
    check(c.get(), 3 * EXPECTED)
    thread = threading.Thread(target=lambda: best.gemm(a, b, out=c))
    thread.start()
    thread.join()
    drv.Context.synchronize()
    check(c.get())


def torch(best: ModuleType) -> None:
    import torch

    a = torch.tensor(A.T.copy(), device="cuda").T
    b = torch.tensor(B.T.copy(), device="cuda").T
    c = torch.empty((5, 4099), device="cuda").T
    best.gemm(a, b, out=c)
    torch.cuda.synchronize()
    check(c.cpu().numpy())
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    best.gemm(a, b, out=c, alpha=2, beta=1, stream=stream)
    stream.synchronize()
    check(c.cpu().numpy(), 3 * EXPECTED)
    made = best.gemm(a, b)
    torch.cuda.synchronize()
    check(made.get())
    best.gemm(a[5:], b, out=c[5:])
    torch.cuda.synchronize()
    check(c[5:].cpu().numpy(), EXPECTED[5:])
    check((a.double() @ b.double()).cpu().numpy())  # PyTorch goes on working


def cupy(best: ModuleType) -> None:
    import cupy

    a, b = cupy.asfortranarray(cupy.asarray(A)), cupy.asfortranarray(cupy.asarray(B))
    c = cupy.empty((4099, 5), np.float32, order="F")
    best.gemm(a, b, out=c)
    check(c.get())
    with cupy.cuda.Stream(non_blocking=True) as stream:
        best.gemm(a, b, out=c, alpha=2, beta=1, stream=stream)
        stream.synchronize()
        check(c.get(), 3 * EXPECTED)
    made = best.gemm(a, b)
    cupy.cuda.Device().synchronize()
    check(made.get())
    pool = cupy.cuda.MemoryAsyncPool()  # memory that no context owns
    cupy.cuda.set_allocator(pool.malloc)
    pooled = cupy.asfortranarray(cupy.asarray(A))
    best.gemm(pooled, b, out=c)
    check(c.get())


if __name__ == "__main__":
    _, path, library = sys.argv
    {"pycuda": pycuda, "torch": torch, "cupy": cupy}[library](imported(path))
