"""Compare the GPU time of each product from `tsm2-tune record` with that from PyTorch's profiler.

    python -m benchmarks.recorded_worth --output benchmarks/results/h100-recorded-worth.json

Each program runs twice: with the library that `tsm2-tune record` puts in front of cuBLAS, and in torch.profiler.
Products are grouped by shape, regardless of transposed matrices. Products that PyTorch delegates to cuSOLVER appear
only in the recording.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import click

from benchmarks.programs import FOLDER
from tsm2_tune import __version__
from tsm2_tune.commands.errors import Command
from tsm2_tune.errors import InputError
from tsm2_tune.interpose.build import standin_path
from tsm2_tune.interpose.journal import Seen, written_in
from tsm2_tune.interpose.preload import Standing, journal_folder, ran

PROGRAMS = {
    "subspace iteration, 8 vectors of 16,000, f32": ("subspace.py",),
    "K-means, 10,000,000 points of 16 dimensions, 16 centres, f32": ("kmeans.py", "10000000", "16", "16", "100"),
    "torch.svd_lowrank of 20,480 x 20,480, rank 8, f32": ("low_rank.py",),
}
PROFILED = """
import json, runpy, sys
import torch
output, *sys.argv = sys.argv[1:]
kinds = torch.profiler.ProfilerActivity
with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA], record_shapes=True) as profile:
    runpy.run_path(sys.argv[0], run_name="__main__")
    torch.cuda.synchronize()
found = [
    {"routine": one.key, "shapes": one.input_shapes, "calls": one.count, "us": one.self_device_time_total}
    for one in profile.key_averages(group_by_input_shape=True)
    if one.key in ("aten::mm", "aten::addmm", "aten::mv", "aten::bmm") and one.self_device_time_total
]
with open(output, "w") as file:
    json.dump(found, file)
"""
Shape = tuple[int, int, int]


def shape_of(m: int, n: int, k: int) -> Shape:
    """Return a product's shape. It is the same for the product of the transposed matrices."""
    return max(m, n), min(m, n), k


def profiled_shape(one: dict[str, Any]) -> Shape:
    """Return the shape of a product in the profile, from the last two of its two-dimensional inputs."""
    a, b = [shape for shape in one["shapes"] if shape][-2:]
    return shape_of(a[-2], b[-1] if len(b) > 1 else 1, a[-1])


def recorded(program: list[str]) -> list[dict[str, Any]]:
    """Return the products of a program from a recording."""
    with journal_folder() as journal:
        if status := ran(program, Standing(standin_path(), has_times=True), journal):
            raise InputError(f"{' '.join(program)} failed with status {status}")
        return [told(one) for one in written_in(journal).seen]


def told(one: Seen) -> dict[str, Any]:
    times = {"us": one.total_us, "first_us": one.first_us}
    on_stream = median(one.cublas_us) if one.cublas_us else None
    return {
        "routine": f"{one.routine} {one.op}",
        "shape": one.shape,
        "calls": one.calls,
        **times,
        "on_stream_us": on_stream,
    }


def profiled(program: list[str]) -> list[dict[str, Any]]:
    """Return the products of a program from PyTorch's profiler."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "profile.json"
        done = subprocess.run(
            [sys.executable, "-c", PROFILED, str(output), *program[1:]], capture_output=True, text=True
        )
        if done.returncode:
            raise InputError(f"{' '.join(program)} failed: {done.stderr.strip()[-500:]}")
        return list(json.loads(output.read_text(encoding="utf-8")))


def summed(products: Iterable[tuple[Shape, dict[str, Any]]]) -> dict[Shape, tuple[int, float]]:
    """Return the calls and microseconds by shape."""
    found = dict[Shape, tuple[int, float]]()
    for shape, one in products:
        calls, us = found.get(shape, (0, 0.0))
        found[shape] = calls + one["calls"], us + one["us"]
    return found


def compared(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield each shape that both contain, most GPU time first, with its share of their total time."""
    by_us = summed((shape_of(*one["shape"]), one) for one in ours)
    by_profiler = summed((profiled_shape(one), one) for one in theirs)
    both = sorted(by_us.keys() & by_profiler.keys(), key=lambda shape: -by_profiler[shape][1])
    totals = [sum(found[shape][1] for shape in both) for found in (by_us, by_profiler)]
    for shape in both:
        (calls, us), (profiler_calls, profiler_us) = by_us[shape], by_profiler[shape]
        yield {
            "shape": "x".join(map(str, shape)), "calls": calls, "us": us, "share": us / totals[0],
            "profiler_calls": profiler_calls, "profiler_us": profiler_us, "profiler_share": profiler_us / totals[1],
        }  # fmt: skip


@click.command(cls=Command)
@click.option("--output", required=True, metavar="FILE", help="The file to write, JSON.")
def main(output: str) -> None:
    """Compare the recorded GPU times of the programs' products with those of PyTorch's profiler."""
    found = dict[str, Any]()
    for name, words in PROGRAMS.items():
        program = [sys.executable, str(FOLDER / words[0]), *words[1:]]
        ours, theirs = recorded(program), profiled(program)
        products = list(compared(ours, theirs))
        found[name] = {"program": " ".join(words), "recorded": ours, "profiled": theirs, "products": products}
        click.echo(name)
        for one in products:
            click.echo(
                f"  {one['shape']}: {one['calls']} calls, {one['us']:.1f} us, {100 * one['share']:.1f} %; profiler"
                f" {one['profiler_calls']} calls, {one['profiler_us']:.1f} us, {100 * one['profiler_share']:.1f} %"
            )
    device = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True
    ).stdout.strip()
    about = {"device": device, "tsm2_tune": __version__, "date": datetime.now(UTC).isoformat(timespec="seconds")}
    Path(output).write_text(json.dumps({**about, "programs": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
