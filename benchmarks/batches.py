"""Tune batches, and compare the winners with cuBLAS's strided batched routine, cuBLASLt and the floor.

    python -m benchmarks.batches --output batches.json --seconds 4

Winners and libraries are verified, and timed in turns by the tuner's finals, with a clean L2 and with a dirty one.
PyTorch's `bmm` calls cuBLAS's routine. The floor is the least time that the measured rate of the memory allows.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import click

import tsm2_tune
from benchmarks.gpu import gpu
from benchmarks.result_file import device_facts, read, require_new, write_json
from benchmarks.tables import Row, markdown
from tsm2_tune.commands.errors import Command
from tsm2_tune.commands.options import Seconds
from tsm2_tune.generator.dtypes import dtype_named
from tsm2_tune.generator.problem import INT32_MAX, Problem

# What users of PyTorch wait for.
KNOWN = (
    "100000*3x3x3:f64", "2000000*3x3x3:f32", "500000*8x8x8:f32", "500000*8x8x8:f64", "12*537600x3x3:f32",
    "4096*8x8x1024:f32:tn", "4096*8x8x1024:f64:tn", "100000*16x16x16:f32", "256*20000x8x8:f32", "1024*256x4x256:c64",
    "512*16x16x20000:f32:tn", "8192*10x10x100:f64:tn", "4096*1024x8x64:f32", "64*4096x8x4096:f32",
    "64*4096x8x4096:f64", "128*4096x16x128:bf16", "64*16x128x8192:bf16:tn",
)  # fmt: skip
LARGEST_SMALL, SKINNY = 32, 4
OF_A_RUN = 12  # problems of one run: their kernels are compiled while others are timed
BYTES = 2e8  # of a batch whose count is chosen here: four times the L2 of an H200
STACKS = {  # regime -> m, n, k of a product, and the letters of A and B
    "R": (4096, 16, 256, "nn"),
    "L": (20000, 8, 8, "nn"),
    "T": (16, 16, 10000, "tn"),
    "G": (32, 32, 4096, "tx"),
}
DTYPES = ("f32", "f64", "c64", "c128", "bf16")
ROW_MAJOR = {"nn": "ttt", "tn": "ntt", "tx": "nxt"}
HEADS = ("batches", "type", "count", "speed-up", "least", "over 3 % slower", "% of floor")
SLOWER = 0.97  # a batch with a smaller speedup is slower than by cuBLAS


def problems() -> Iterator[Problem]:
    """Yield the batches: known ones, small products of every extent, stacks of skinny products in both layouts."""
    yield from map(Problem.parse, KNOWN)
    for extent in range(1, LARGEST_SMALL + 1):
        for n in dict.fromkeys((extent, min(extent, SKINNY))):
            yield _batch(extent, n, extent, "f32", "ttt")
        if extent.bit_count() == 1:
            yield _batch(extent, extent, extent, "f64", "ttt")
    for m, n, k, op in STACKS.values():
        for dtype in DTYPES:
            for one in (op, ROW_MAJOR[op]):
                yield _batch(m, n, k, dtype, one)


def _batch(m: int, n: int, k: int, dtype: str, op: str) -> Problem:
    bytes_of_one = (m * k + k * n + m * n) * dtype_named(dtype).element_bytes
    return Problem(m, n, k, dtype, op, min(max(int(BYTES / bytes_of_one), 2), INT32_MAX))


def best_rows(paths: Iterable[Path]) -> dict[Problem, Row]:
    """Return {problem: row}. Of several rows of a problem the one with the largest speed-up counts."""
    found: dict[Problem, Row] = {}
    for path in paths:
        for row in read(path)["rows"]:
            problem = Problem.parse(row["problem"])
            if problem not in found or row["x_cublas"] > found[problem]["x_cublas"]:
                found[problem] = row
    return found


def kind(problem: Problem) -> tuple[bool, str, int, str]:
    """Return whether the batch is a stack, its kind, the largest size of its line in the table, and the type."""
    m, n, k, dtype = problem.m, problem.n, problem.k, problem.dtype_name
    if max(m, n, k) > LARGEST_SMALL:
        regime = "X^T X" if problem.is_gram else "L" if max(n, k) <= LARGEST_SMALL else "T" if k > max(m, n) else "R"
        return True, f"stacks of {regime}", 0, dtype
    size = next(most for most in (8, 16, LARGEST_SMALL) if m <= most)
    return False, f"small, {f'n = {n}, m = k' if n < k else 'm = n = k'}", size, dtype


def table(found: Mapping[Problem, Row]) -> str:
    """Return a Markdown table with a line for each kind and type, and one for all."""
    kinds: dict[tuple[bool, str, int, str], list[Problem]] = {}
    for problem in found:
        kinds.setdefault(kind(problem), []).append(problem)
    lines = []
    for (is_stack, name, _, dtype), problems in sorted(kinds.items()):
        least, most = (of(problem.m for problem in problems) for of in (min, max))
        extents = f"{least} to {most}" if least < most else f"{least}"
        text = name if is_stack else f"{name}: {extents}"
        lines.append(_line(text, dtype, [found[problem] for problem in problems]))
    return markdown(HEADS, [*lines, _line("all", "", list(found.values()))], texts=HEADS[:2])


def _line(batches: str, dtype: str, rows: list[Row]) -> tuple[str, ...]:
    gains = [row["x_cublas"] for row in rows]
    mean, slower = statistics.geometric_mean(gains), sum(gain < SLOWER for gain in gains)
    floor = statistics.mean(row["percent_of_floor"] for row in rows)
    return batches, dtype, str(len(rows)), f"{mean:.2f}", f"{min(gains):.2f}", str(slower), f"{floor:.0f}"


@click.command(cls=Command)
@click.option("--device", "spec", default="0", show_default=True, help="A CUDA ordinal, or several: 0,1.")
@click.option("--seconds", type=Seconds(min=0, min_open=True), default=4.0, show_default=True, help="Of each search.")
@click.option("--most-seconds", type=Seconds(min=0, min_open=True), default=1e6, help="Begin no search after these.")
@click.option("--db", default="batches.db", show_default=True, help="The same database continues an earlier run.")
@click.option("--output", required=True, type=click.Path(dir_okay=False, path_type=Path))
def main(spec: str, seconds: float, most_seconds: float, db: str, output: Path) -> None:
    """Tune each batch, and write the winners' times beside cuBLAS's to a file after every few."""
    target, *_ = map(gpu, spec.split(","))
    require_new(output)
    began, rows, left = time.monotonic(), [], problems()
    while some := list(islice(left, OF_A_RUN)):
        if time.monotonic() - began > most_seconds:
            break
        result = tsm2_tune.tune(some, device=spec, db=db, budget=seconds, pairs=False)
        for problem in (*result.unsolved, *result.unfinished):
            click.echo(f"{problem.text}: no winner", err=True)
        for winner in result.winners:
            rows.append(asdict(winner) | {"problem": winner.problem.text})
            click.echo(winner)
        command = f"python -m benchmarks.batches --device {spec} --seconds {seconds:g}"
        write_json(output, {**device_facts(command, target), "rows": rows})


if __name__ == "__main__":
    main()
