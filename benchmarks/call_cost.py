"""Measure the host's cost of one call: microseconds to launch a small product from Python.

    python -m benchmarks.call_cost --output benchmarks/results/h100-call-cost.json

The bench tunes a module, exports it without and with its compiled launcher, and imports both. Then one process times
their calls and those of PyTorch and CuPy in turns, on the same arrays, which are row-major as these libraries create
them. The kernels take less time than a call, so the calls never wait for the GPU.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from benchmarks.call_tables import BY_LAUNCHER, LEFT, NEW, OUT, OWN, PLAN, SPLIT, table
from benchmarks.gpu import gpu
from tsm2_tune import __version__
from tsm2_tune.commands.errors import Command
from tsm2_tune.errors import InputError

M, N, K = 1024, 8, 256
SIDE, LONG = 8, 8192  # extents of X^T Y, whose kernel uses split-k
ROUNDS, CALLS, THREADS = 30, 200, 8
FRESH = 200  # number of shapes that are called for the first time
OF_PACK = 4096  # m and k of a product for which the module of many kernels has one

FACTORS = "gemm(a, b, out=c, alpha=2.0, beta=1.0)"
Call = Callable[[], object]
Calls = dict[str, Call]


def made_modules(folder: Path, device: str) -> tuple[Path, Path]:
    """Tune and export a module without and one with the compiled launcher, and return their paths.

    Both have a kernel for the small product, and one that uses split-k.
    """
    database, module, compiled = (folder / name for name in ("results.db", "best_kernels.py", "launched_kernels.py"))
    for problem in (f"{M}x{N}x{K}:f32:ttt", f"{SIDE}x{SIDE}x{LONG}:f32:ntt"):
        _run(["--device", device, "--shapes", problem, "--budget", "4", "--db", str(database)])
    _run(["export", "--db", str(database), "--format", "module", "--output", str(module)])
    _run(["export", "--db", str(database), "--format", "module", "--launcher", "--output", str(compiled)])
    return module, compiled


def _run(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "tsm2_tune", *arguments], check=False, stdout=subprocess.DEVNULL)
    if done.returncode:  # the command printed the reason
        sys.exit(done.returncode)


def imported(path: Path) -> ModuleType:
    """Return the exported module at the path. Raise InputError if the file is no such module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is no Python file: name a module that tsm2-tune export has written")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the file is code and can raise any exception
        raise InputError(f"{path} cannot be imported ({error}): export it again") from None
    if not hasattr(module, "WINNERS"):
        raise InputError(f"{path} is no exported module: name one that tsm2-tune export has written")
    return module


def import_ms(path: Path) -> float:
    """Return the milliseconds of importing the module in a new process with NumPy loaded."""
    program = (
        "import time, numpy, sys; sys.path.insert(0, sys.argv[1]); start = time.perf_counter(); import best_kernels;"
        " print(1e3 * (time.perf_counter() - start))"
    )
    command = [sys.executable, "-c", program, str(path.parent)]
    return min(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(3))


def of_torch(best: ModuleType, compiled: ModuleType) -> tuple[Calls, Call]:
    """Return named calls on PyTorch tensors, and a function that synchronizes with the GPU."""
    import torch

    a, b = torch.randn(M, K, device="cuda"), torch.randn(K, N, device="cuda")
    c, wide = torch.empty(M, N, device="cuda"), [torch.ones(x.shape, device="cuda").double() for x in (a, b, a @ b)]
    x, y = (torch.randn(LONG, SIDE, device="cuda") for _ in range(2))
    x, z = x.t(), torch.empty(SIDE, SIDE, device="cuda")
    expected = (a.double() @ b.double()).float()
    for module in (best, compiled):
        for _ in range(2):
            assert torch.allclose(module.gemm(a, b, out=c.zero_()), expected, atol=1e-3)
            assert torch.allclose(module.gemm(a, b), expected, atol=1e-3)
        assert torch.allclose(module.gemm(x, y, out=z), x @ y, atol=0.1)
        assert module.choice(x, y, z).launch.has_workspace
        assert isinstance(module.choice(*wide), module.Vendor)
        assert torch.equal(module.gemm(*wide[:2], out=wide[2]), wide[0] @ wide[1])
    planned = best.plan(a, b, c)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.mm(a, b, out=c)
    calls = {
        OWN["torch"]: lambda: torch.mm(a, b, out=c),
        "torch.mm(a, b)": lambda: torch.mm(a, b),
        "graph of torch.mm, replay": graph.replay,
        OUT: lambda: best.gemm(a, b, out=c),
        NEW: lambda: best.gemm(a, b),
        FACTORS: lambda: best.gemm(a, b, out=c, alpha=2.0, beta=1.0),
        SPLIT: lambda: best.gemm(x, y, out=z),
        LEFT: lambda: best.gemm(*wide[:2], out=wide[2]),
        PLAN: planned,
    }
    if torch.Tensor in compiled.launchers:  # else the launcher does not support this version of PyTorch
        calls |= {
            BY_LAUNCHER + OUT: lambda: compiled.gemm(a, b, out=c),
            BY_LAUNCHER + NEW: lambda: compiled.gemm(a, b),
            BY_LAUNCHER + FACTORS: lambda: compiled.gemm(a, b, out=c, alpha=2.0, beta=1.0),
            BY_LAUNCHER + SPLIT: lambda: compiled.gemm(x, y, out=z),
        }
    return calls, torch.cuda.synchronize


def of_cupy(best: ModuleType, compiled: ModuleType) -> tuple[Calls, Call]:
    """Return named calls on CuPy arrays, and a function that synchronizes with the GPU."""
    import cupy

    a, b = cupy.random.rand(M, K, dtype=cupy.float32), cupy.random.rand(K, N, dtype=cupy.float32)
    c = cupy.empty((M, N), cupy.float32)
    x, y = (cupy.random.rand(LONG, SIDE, dtype=cupy.float32) for _ in range(2))
    x, z = x.T, cupy.empty((SIDE, SIDE), cupy.float32)
    expected = a.astype(cupy.float64) @ b.astype(cupy.float64)
    for module in (best, compiled):
        for _ in range(2):
            c.fill(0)
            assert cupy.allclose(module.gemm(a, b, out=c), expected, atol=1e-3)
            assert cupy.allclose(module.gemm(a, b), expected, atol=1e-3)
            assert cupy.allclose(module.gemm(x, y, out=z), x @ y, rtol=1e-4)
    calls = {
        OWN["cupy"]: lambda: cupy.matmul(a, b, out=c),
        "cupy.matmul(a, b)": lambda: cupy.matmul(a, b),
        OUT: lambda: best.gemm(a, b, out=c),
        NEW: lambda: best.gemm(a, b),
        SPLIT: lambda: best.gemm(x, y, out=z),
        PLAN: best.plan(a, b, c),
        BY_LAUNCHER + OUT: lambda: compiled.gemm(a, b, out=c),
        BY_LAUNCHER + NEW: lambda: compiled.gemm(a, b),
        BY_LAUNCHER + SPLIT: lambda: compiled.gemm(x, y, out=z),
    }
    return calls, cupy.cuda.Device().synchronize


def of_pycuda(best: ModuleType, compiled: ModuleType) -> tuple[Calls, Call]:
    """Return named calls on PyCUDA arrays in the primary context, and a function that synchronizes with the GPU."""
    import numpy as np
    import pycuda.autoprimaryctx  # noqa: F401
    import pycuda.driver as drv
    from pycuda import gpuarray

    a, b = gpuarray.to_gpu(np.ones((M, K), np.float32)), gpuarray.to_gpu(np.ones((K, N), np.float32))
    c = gpuarray.zeros((M, N), np.float32)
    best.gemm(a, b, out=c)
    assert (c.get() == K).all()
    calls = {OUT: lambda: best.gemm(a, b, out=c), PLAN: best.plan(a, b, c)}
    return calls, drv.Context.synchronize


def microseconds(calls: Calls, wait: Call) -> dict[str, dict[str, float]]:
    """Return the median and the lower quartile of each call's microseconds, over rounds in which calls alternate."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(20):
            call()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            wait()
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            found[name].append(1e6 * (time.perf_counter() - start) / CALLS)
    wait()
    return {
        name: {"median_us": round(statistics.median(times), 2), "quarter_us": round(sorted(times)[ROUNDS // 4], 2)}
        for name, times in found.items()
    }


def in_threads(calls: Calls, wait: Call) -> dict[str, float]:
    """Return the microseconds per call when THREADS threads call at once: total time divided by all calls."""
    found = {}
    for name, call in calls.items():
        barrier = threading.Barrier(THREADS + 1)

        def work(call: Call = call, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            for _ in range(CALLS):
                call()

        times = []
        for _ in range(5):
            threads = [threading.Thread(target=work) for _ in range(THREADS)]
            for thread in threads:
                thread.start()
            wait()
            barrier.wait()
            start = time.perf_counter()
            for thread in threads:
                thread.join()
            times.append(1e6 * (time.perf_counter() - start) / (CALLS * THREADS))
        found[name] = round(statistics.median(times), 2)
    wait()
    return found


def first_calls(best: ModuleType, m: int = M, k: int = K) -> dict[str, float]:
    """Return the median microseconds of the first and of the second call with a new shape and a loaded kernel."""
    import torch

    shapes = [(m + 8 * turn, N, k) for turn in range(1, FRESH + 1)]
    arrays = [
        (torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda"), torch.empty(m, n, device="cuda"))
        for m, n, k in shapes
    ]
    times: list[list[float]] = [[], []]
    for one in times:
        for a, b, c in arrays:
            torch.cuda.synchronize()
            start = time.perf_counter()
            best.gemm(a, b, out=c)
            one.append(1e6 * (time.perf_counter() - start))
    return {name: round(statistics.median(one), 2) for name, one in zip(("first", "second"), times, strict=True)}


def of_pack(path: Path) -> dict[str, Any]:
    """Return the results of `first_calls` for a module of many kernels, without and with its launcher."""
    found: dict[str, Any] = {"bytes": path.stat().st_size, "product": f"{OF_PACK}x{N}x{OF_PACK}:f32"}
    for name in ("first_call_us", "first_call_with_launcher_us"):
        module = imported(path)
        found["kernels"] = len({winner.digest for winner in module.WINNERS})
        if name == "first_call_us":
            vars(module)["LAUNCHER"] = None
        elif module.launcher() is None:
            raise InputError(f"{path} holds no launcher that loads here: export it with --launcher")
        found[name] = first_calls(module, OF_PACK, OF_PACK)
    return found


def parts() -> dict[str, float]:
    """Return the microseconds of single steps of a call, such as reading a tensor's attributes."""
    import ctypes

    import torch

    a = torch.randn(M, K, device="cuda")
    driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    at = ctypes.byref(context)
    raw = torch._C._cuda_getCurrentRawStream
    one: Calls = {
        "shape, strides, type, device, address and bits of a tensor": lambda: (
            a.shape, a.stride(), a.dtype, a.get_device(), a.is_conj(), a.is_neg(), a.requires_grad, a.data_ptr(),
        ),
        "current stream": lambda: raw(0),
        "cuCtxGetCurrent by ctypes": lambda: driver.cuCtxGetCurrent(at),
        "an empty call": lambda: None,
    }  # fmt: skip
    return {name: times["median_us"] for name, times in microseconds(one, lambda: None).items()}


@click.command(cls=Command)
@click.option("--device", default="0", show_default=True)
@click.option(
    "--pack",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="An exported module with the launcher: first calls are measured of its kernels too, among which it chooses.",
)
@click.option("--output", type=click.Path(path_type=Path), required=True)
def main(device: str, pack: Path | None, output: Path) -> None:
    """Measure, print the table, and write the file."""
    target = gpu(device)
    with tempfile.TemporaryDirectory() as folder:
        path, path_of_compiled = made_modules(Path(folder), device)
        best, compiled = imported(path), imported(path_of_compiled)
        found: dict[str, Any] = {
            "device": target.identity.name,
            "driver": target.identity.driver,
            "toolkit": target.identity.toolkit,
            "tsm2_tune": __version__,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "python": sys.version.split()[0],
            "product": f"{M}x{N}x{K}:f32",
            "kernels": {w.op: w.config for w in best.WINNERS},
            "module_bytes": path.stat().st_size,
            "module_bytes_with_launcher": path_of_compiled.stat().st_size,
            "import_ms": round(import_ms(path), 1),
        }
        for library, arrays in (("torch", of_torch), ("cupy", of_cupy), ("pycuda", of_pycuda)):
            calls, wait = arrays(best, compiled)
            found[library] = {"one_thread": microseconds(calls, wait)}
            if library != "pycuda":  # a PyCUDA context belongs to one thread
                found[library]["version"] = sys.modules[library].__version__
                found[library]["threads_us"] = in_threads(calls, wait)
        found["first_call_us"] = first_calls(best)
        if BY_LAUNCHER + NEW in found["torch"]["one_thread"]:
            found["first_call_with_launcher_us"] = first_calls(compiled)
        if pack is not None:
            found["first_calls_of_a_pack"] = of_pack(pack)
        found["parts_us"] = parts()
    click.echo(table(found))
    output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
