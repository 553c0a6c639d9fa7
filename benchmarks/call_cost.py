"""Measure the host's cost of one call: microseconds to launch a small product from Python.

    python -m benchmarks.call_cost --output benchmarks/results/h100-call-cost.json

The bench tunes a module, exports it without and with its compiled launcher, and imports both. Then one process times
their calls and those of PyTorch and CuPy in turns, on the same arrays, which are row-major as these libraries create
them. The kernels take less time than a call, so the calls never wait for the GPU.
"""

from __future__ import annotations

import importlib.util
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import timeit
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from benchmarks.gpu import gpu
from benchmarks.result_file import device_facts, write_json
from benchmarks.tables import markdown, number
from tsm2_tune.commands.errors import Command
from tsm2_tune.errors import InputError

OUT, NEW = "gemm(a, b, out=c)", "gemm(a, b)"
SPLIT = "gemm(x, y, out=z), whose kernel splits k"
LEFT = "gemm(a, b, out=c) of another type, left to the library"
PLAN = "plan()"
OWN = {"torch": "torch.mm(a, b, out=c)", "cupy": "cupy.matmul(a, b, out=c)"}
BY_LAUNCHER = "launcher: "
LINES = (  # label of a table row -> name of the call
    ("`gemm(a, b, out=c)`", OUT),
    ("the same, where the kernel splits k", SPLIT),
    ("`gemm(a, b)`", NEW),
    ("`gemm(a, b, out=c)` with the launcher", BY_LAUNCHER + OUT),
    ("the same, where the kernel splits k", BY_LAUNCHER + SPLIT),
    ("`gemm(a, b)` with the launcher", BY_LAUNCHER + NEW),
    ("`plan(a, b, c)()`", PLAN),
    ("`gemm(a, b, out=c)` that the library computes", LEFT),
)

M, N, K = 1024, 8, 256
SIDE, LONG = 8, 8192  # extents of X^T Y, whose kernel uses split-k
ROUNDS, CALLS, THREADS = 30, 200, 8
WAYS = ("without", "installed")  # whether the module overrides PyTorch's operators
FRESH = 200  # number of shapes that are called for the first time

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
    try:
        loader = SourceFileLoader(path.stem, str(path))
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader(path.stem, loader))  # type: ignore[arg-type]
        sys.modules[path.stem] = module
        loader.exec_module(module)
        _ = module.WINNERS
    except Exception as error:  # the file is code and can raise any exception
        raise InputError(f"{path} cannot be imported ({error}): name a module that export has written") from None
    return module


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
    calls = {
        OWN["torch"]: lambda: torch.mm(a, b, out=c),
        OUT: lambda: best.gemm(a, b, out=c),
        NEW: lambda: best.gemm(a, b),
        SPLIT: lambda: best.gemm(x, y, out=z),
        LEFT: lambda: best.gemm(*wide[:2], out=wide[2]),
        PLAN: best.plan(a, b, c),
    }
    if torch.Tensor in compiled.launchers:  # else the launcher does not support this version of PyTorch
        calls |= {
            BY_LAUNCHER + OUT: lambda: compiled.gemm(a, b, out=c),
            BY_LAUNCHER + NEW: lambda: compiled.gemm(a, b),
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


def first_calls(best: ModuleType) -> dict[str, float]:
    """Return the median microseconds of the first and of the second call with a new shape and a loaded kernel."""
    import torch

    rows = [M + 8 * turn for turn in range(1, FRESH + 1)]
    arrays = [
        (torch.randn(m, K, device="cuda"), torch.randn(K, N, device="cuda"), torch.empty(m, N, device="cuda"))
        for m in rows
    ]
    times: list[list[float]] = [[], []]
    for one in times:
        for a, b, c in arrays:
            torch.cuda.synchronize()
            start = time.perf_counter()
            best.gemm(a, b, out=c)
            one.append(1e6 * (time.perf_counter() - start))
    return {name: round(statistics.median(one), 2) for name, one in zip(("first", "second"), times, strict=True)}


def with_overrides(best: ModuleType) -> dict[str, dict[str, float]]:
    """Return each call's median microseconds without and with the module's overrides, from alternating rounds."""
    import torch

    a, b = torch.randn(M, K, device="cuda"), torch.randn(K, N, device="cuda")
    out, row, gaps = torch.empty(M, N, device="cuda"), torch.randn(N, device="cuda"), (a[::2, ::2], b[: K // 2])
    calls: Calls = {
        "torch.mm(a, b)": lambda: torch.mm(a, b),
        "torch.mm(a, b), which is left": lambda: torch.mm(*gaps),
        "torch.addmm(row, a, b), which is left": lambda: torch.addmm(row, a, b),
        "best_kernels.torch.mm(a, b)": lambda: best.torch.mm(a, b),
        "best_kernels.gemm(a, b, out=c)": lambda: best.gemm(a, b, out=out),
    }
    found = {}
    for name, call in calls.items():
        us: dict[str, list[float]] = {way: [] for way in WAYS}
        for way in WAYS * (ROUNDS + 1):
            with best.installed() if way == "installed" else nullcontext():
                call()
                torch.cuda.synchronize()
                us[way].append(1e6 * timeit.timeit(call, number=CALLS) / CALLS)
        found[name] = {way: statistics.median(us[way][1:]) for way in WAYS}
    return found


def call_us(found: Mapping[str, Any], library: str, name: str) -> float | None:
    """Return the microseconds of a call from one thread, or None if it was not measured."""
    us: float | None = found[library]["one_thread"].get(name, {}).get("median_us")
    return us


def table(found: Mapping[str, Any]) -> str:
    """Return a Markdown table of calls: microseconds, and their ratio to the library's own call."""
    owns = {library: call_us(found, library, own) or 0.0 for library, own in OWN.items()}
    own_words = "the library's own: `torch.mm(a, b, out=c)`, `cupy.matmul(a, b, out=c)`"
    lines = [(own_words, *(number(us, 1) for us in owns.values()))]
    for words, name in LINES:
        times = {library: call_us(found, library, name) for library in OWN}
        if any(times.values()):
            lines.append(
                (words, *("–" if us is None else f"{us:.1f} ({us / owns[at]:.2f})" for at, us in times.items()))
            )
    return markdown(("one call", "PyTorch tensors", "CuPy arrays"), lines, texts=("one call",))


@click.command(cls=Command)
@click.option("--device", default="0", show_default=True)
@click.option("--output", type=click.Path(path_type=Path), required=True)
def main(device: str, output: Path) -> None:
    """Measure, print the table, and write the file."""
    target = gpu(device)
    with tempfile.TemporaryDirectory() as folder:
        path, path_of_compiled = made_modules(Path(folder), device)
        best, compiled = imported(path), imported(path_of_compiled)
        found: dict[str, Any] = {
            **device_facts("python -m benchmarks.call_cost", target),
            "python": sys.version.split()[0],
            "product": f"{M}x{N}x{K}:f32",
            "kernels": {w.op: w.config for w in best.WINNERS},
        }
        for library, arrays in (("torch", of_torch), ("cupy", of_cupy), ("pycuda", of_pycuda)):
            calls, wait = arrays(best, compiled)
            found[library] = {"one_thread": microseconds(calls, wait)}
            if library != "pycuda":  # a PyCUDA context belongs to one thread
                found[library]["version"] = sys.modules[library].__version__
                found[library]["threads_us"] = in_threads(calls, wait)
        found["first_call_us"], found["overrides_us"] = first_calls(best), with_overrides(best)
        if BY_LAUNCHER + NEW in found["torch"]["one_thread"]:
            found["first_call_with_launcher_us"] = first_calls(compiled)
    click.echo(table(found))
    write_json(output, found)


if __name__ == "__main__":
    main()
