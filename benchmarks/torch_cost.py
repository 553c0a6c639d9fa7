"""Measure the host's cost of PyTorch's own calls with an exported module's overrides, and of the module's operators.

    python -m benchmarks.torch_cost --output benchmarks/results/h100-torch-cost.json

One process times each call without and with the overrides, in turns. The kernels take less time than a call, so the
calls never wait for the GPU.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import timeit
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from benchmarks.call_cost import K, M, N, imported, made_modules
from tsm2_tune import __version__
from tsm2_tune.commands.errors import Command

ROUNDS, CALLS = 30, 200
WAYS = ("without", "installed")


def calls_of(best: ModuleType) -> dict[str, Callable[[], Any]]:
    """Return calls of products with a kernel, and of products that PyTorch computes."""
    import torch

    a, b = torch.randn(M, K, device="cuda"), torch.randn(K, N, device="cuda")
    out, row = torch.empty(M, N, device="cuda"), torch.randn(N, device="cuda")
    gaps = a[::2, ::2], b[: K // 2]
    weight = b.clone().requires_grad_()
    pair = a.expand(2, -1, -1), b.expand(2, -1, -1)
    return {
        "torch.mm(a, b)": lambda: torch.mm(a, b),
        "torch.mm(a, b, out=c)": lambda: torch.mm(a, b, out=out),
        "torch.mm(a, weight), which is recorded": lambda: torch.mm(a, weight),
        "torch.addmm(c, a, b)": lambda: torch.addmm(out, a, b),
        "c.addmm_(a, b)": lambda: out.addmm_(a, b, beta=0),
        "torch.mm(a, b), which is left": lambda: torch.mm(*gaps),
        "torch.addmm(row, a, b), which is left": lambda: torch.addmm(row, a, b),
        "torch.bmm of two products, which are left": lambda: torch.bmm(*pair),
        "best_kernels.gemm(a, b, out=c)": lambda: best.gemm(a, b, out=out),
        "best_kernels.torch.mm(a, b)": lambda: best.torch.mm(a, b),
        "best_kernels.torch.mm(a, weight), which is recorded": lambda: best.torch.mm(a, weight),
        "best_kernels.torch.addmm(c, a, b)": lambda: best.torch.addmm(out, a, b),
    }


def timed(best: ModuleType) -> dict[str, dict[str, float]]:
    """Return each call's median microseconds without and with the overrides, from alternating rounds."""
    import torch

    found = {}
    for name, call in calls_of(best).items():
        us: dict[str, list[float]] = {way: [] for way in WAYS}
        for way in WAYS * (ROUNDS + 1):
            with best.installed() if way == "installed" else nullcontext():
                call()
                torch.cuda.synchronize()
                us[way].append(1e6 * timeit.timeit(call, number=CALLS) / CALLS)
        found[name] = {way: statistics.median(us[way][1:]) for way in WAYS}
    return found


@click.command(cls=Command)
@click.option("--output", required=True, metavar="FILE", help="The file to write, JSON.")
@click.option("--device", default="0", show_default=True, metavar="DEVICE", help="A CUDA ordinal.")
def main(output: str, device: str) -> None:
    """Tune a product, and time the calls."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        module, _ = made_modules(Path(folder), device)
        found = timed(imported(module))
    about = {"tsm2_tune": __version__, "date": datetime.now(UTC).isoformat(timespec="seconds")}
    about |= {"device": torch.cuda.get_device_name(int(device)), "torch": torch.__version__}
    told = {**about, "m": M, "n": N, "k": K, "dtype": "f32", "us": found}
    Path(output).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    for name, us in found.items():
        click.echo(f"{name}: {us['without']:.1f} us, {us['installed']:.1f} with the overrides")


if __name__ == "__main__":
    main()
