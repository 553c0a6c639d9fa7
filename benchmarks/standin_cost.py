"""Measure the host's cost of a cuBLAS call through the library that `tsm2-tune run` puts in front of cuBLAS.

    python -m benchmarks.standin_cost --library libtsm2.so --output benchmarks/results/h100-standin-cost.json

One process times the same calls in turns: by name, which go through that library, and by the addresses of cuBLAS's
own functions. For a product without a kernel, the difference is the cost of forwarding the call.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click

from benchmarks.call_cost import Calls, microseconds
from benchmarks.real_cublas import loaded
from benchmarks.result_file import program_facts, write_json
from tsm2_tune.commands.errors import Command
from tsm2_tune.errors import InputError
from tsm2_tune.interpose.build import standin_path
from tsm2_tune.interpose.preload import Standing

COMPUTE_32F, WORKSPACE_BYTES = 68, 32 << 20
PRODUCTS = {  # m, n and k of f32 products without transposes, as passed to cuBLAS
    "a square product, left to cuBLAS": (256, 256, 256),
    "a wide product, left or taken as the pack says": (8, 100_000, 16),
    "a product of many columns, left or taken as the pack says": (16, 50_000, 40),
}
WITHIN = "TSM2_BENCH_STANDIN"  # environment variable that marks the timed process


def descriptors(lt: ctypes.CDLL, m: int, n: int, k: int) -> tuple[ctypes.c_void_p, list[ctypes.c_void_p]]:
    """Return cuBLASLt's descriptors of a plain f32 product: the operation, A, B and C."""
    operation, layouts = ctypes.c_void_p(), [ctypes.c_void_p() for _ in "abc"]
    status = lt.cublasLtMatmulDescCreate(ctypes.byref(operation), ctypes.c_int(COMPUTE_32F), ctypes.c_int(0))
    for made, (rows, columns) in zip(layouts, ((m, k), (k, n), (m, n)), strict=True):
        extents = [ctypes.c_int64(number) for number in (rows, columns, rows)]
        status |= lt.cublasLtMatrixLayoutCreate(ctypes.byref(made), ctypes.c_int(0), *extents)
    if status:
        raise InputError("cuBLASLt makes no descriptors")
    return operation, layouts


def call_times(by_name: Any, own: Any, arguments: list[Any]) -> dict[str, Any]:
    """Return the microseconds of a call by name and by address, measured in turns. Raise InputError if one fails."""
    import cupy as cp

    for function in (by_name, own):
        if status := function(*arguments):
            raise InputError(f"a call failed with status {status}")
    calls: Calls = {"by name": partial(by_name, *arguments), "cuBLAS's own": partial(own, *arguments)}
    return microseconds(calls, cp.cuda.Device().synchronize)


def timed() -> dict[str, Any]:
    """Return the microseconds of a call for each product, by name and by address, in this process."""
    import cupy as cp

    (by_name, real), (lt, real_lt) = loaded(), loaded("libcublasLt")
    handle, one, zero = ctypes.c_void_p(), ctypes.c_float(1), ctypes.c_float(0)
    if by_name.cublasCreate_v2(ctypes.byref(handle)) != 0:
        raise InputError("cuBLAS makes no handle")
    workspace, none = cp.empty(WORKSPACE_BYTES, cp.uint8), ctypes.c_void_p()
    found: dict[str, Any] = {}
    for what, (m, n, k) in PRODUCTS.items():
        a, b, c = (cp.ones(rows * columns, cp.float32) for rows, columns in ((m, k), (k, n), (m, n)))
        extents = [ctypes.c_int(number) for number in (0, 0, m, n, k)]
        factors = [ctypes.cast(ctypes.byref(factor), ctypes.c_void_p) for factor in (one, zero)]
        matrices = [ctypes.c_void_p(x.data.ptr) for x in (a, b, c)]
        arguments = [handle, *extents, factors[0], matrices[0], ctypes.c_int(m), matrices[1], ctypes.c_int(k),
                     factors[1], matrices[2], ctypes.c_int(m)]  # fmt: skip
        product = {"m": m, "n": n, "k": k}
        found[what] = product | call_times(by_name.cublasSgemm_v2, real.cublasSgemm_v2, arguments)
        operation, layouts = descriptors(lt, m, n, k)
        arguments = [handle, operation, factors[0], matrices[0], layouts[0], matrices[1], layouts[1], factors[1],
                     matrices[2], layouts[2], matrices[2], layouts[2], none, ctypes.c_void_p(workspace.data.ptr),
                     ctypes.c_size_t(WORKSPACE_BYTES), none]  # fmt: skip
        found[f"{what}, by cuBLASLt"] = product | call_times(lt.cublasLtMatmul, real_lt.cublasLtMatmul, arguments)
    properties = cp.cuda.runtime.getDeviceProperties(0)
    about = {
        "device": properties["name"].decode(),
        "driver": cp.cuda.runtime.driverGetVersion(),
        "cupy": cp.__version__,
    }
    return {**about, "calls": found}


@click.command(cls=Command)
@click.option(
    "--library", required=True, metavar="PATH", help="The exported C library that the stand-in takes kernels from."
)
@click.option("--output", required=True, metavar="FILE", help="The file to write, JSON.")
def main(library: str, output: str) -> None:
    """Time cuBLAS calls with the library in front of cuBLAS."""
    if not Path(library).is_file():
        raise InputError(f"no library {library}: tsm2-tune export --format library makes one")
    environment = Standing(standin_path(), Path(library)).environment(None) | {WITHIN: "1"}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.standin_cost"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode:
        raise InputError(f"the calls were not timed: {done.stderr.strip()[-500:] or 'the process ended'}")
    found = {"date": datetime.now(UTC).date().isoformat(), **program_facts(), **json.loads(done.stdout)}
    write_json(Path(output), found)
    for what, one in found["calls"].items():
        ours, own = one["by name"]["median_us"], one["cuBLAS's own"]["median_us"]
        click.echo(f"{what}: {ours:.2f} us by name, {own:.2f} cuBLAS's own, {ours - own:+.2f}")


if __name__ == "__main__":
    if os.environ.get(WITHIN):
        print(json.dumps(timed()))
    else:
        main()
