"""Matrices that are large in both directions: our kernels, cuBLAS, cuBLASLt, and one configuration for all shapes.

    python -m benchmarks.general --output general.json

There are four tables of cells: squares as large as those of Kurzak, Tomov and Dongarra, "Autotuning GEMMs for Fermi",
in four storage orders; squares of many sizes, as in its Figure 6; products with a small k; and squares with the
kernels of the family `gemm` alone, which follow that paper ("stencil"). For each cell, the first choices of the
families with staged tiles are timed in turns, with the configuration that was the fastest for the same type at m = n
= k = 4096 (the global one). Then the fastest is verified, and timed in turns with cuBLAS and cuBLASLt in one process,
with a clean and with a dirty L2 cache. Tables show the times with a clean L2. At last, a sample of the stencil's
configurations shows how far the fastest is from the slowest.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import TypeVar

import click

from benchmarks.cells import Cell
from benchmarks.contest import TIMED, Contest, Launch, opened
from benchmarks.general_tables import GLOBAL_SIZE, STENCIL, tables
from benchmarks.gpu import gpu
from benchmarks.pack import compile_all
from benchmarks.result_file import ResultFile, require_new
from benchmarks.versus_cublas import refuse_less_precision
from benchmarks.winner import Skipped, Winner
from tsm2_tune.commands.errors import Command
from tsm2_tune.errors import ToolMissing
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.dtypes import FMA_DTYPES
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.seeds import first_choices
from tsm2_tune.generator.space.space import search_space
from tsm2_tune.tuner.device.interface import LaunchFailed
from tsm2_tune.tuner.measure.timing import Effort, measure_interleaved
from tsm2_tune.tuner.packs.candidate_times import candidate_times_us
from tsm2_tune.tuner.results.trial import Cache, Verdict
from tsm2_tune.tuner.verify.verdict import prepare

STAGED = ("staged_dmma", "staged_f32_dmma", "staged_complex_dmma")
PAPER_SIZES = {"f32": 10_000, "f64": 8_000, "c64": 8_000, "c128": 6_000}
PAPER_OPS = ("nn", "nt", "tn", "tt")
SIZES = (256, 512, 768, *range(1024, GLOBAL_SIZE, 512), 5120, 6144)  # besides GLOBAL_SIZE
SHORT_KS, WIDTHS = (32, 64), (1024, 2048, 4096, 8192)
STENCIL_SIZES = {"f32": 4096, "f64": 2048, "c64": 4096, "c128": 2048}
VARIANTS_SIZE = 2048
VARIANTS = 24  # per type and storage order
T = TypeVar("T")
TRIAL = Effort(spread=0.005, min_samples=3, max_samples=9, limit_seconds=0.15, warm_up_seconds=0.005)
FINAL = Effort(spread=0.002, min_samples=7, max_samples=31, limit_seconds=0.3, warm_up_seconds=0.01)


def problems() -> Iterator[tuple[str, Problem]]:
    """Yield the table and the problem of each cell. The cells that determine the global configurations come first."""
    for dtype in FMA_DTYPES:
        yield "sizes", Problem(GLOBAL_SIZE, GLOBAL_SIZE, GLOBAL_SIZE, dtype)
    for dtype, op in product(FMA_DTYPES, PAPER_OPS):
        size = PAPER_SIZES[dtype]
        yield "paper", Problem(size, size, size, dtype, op)
    for dtype, width, k in product(FMA_DTYPES, WIDTHS, SHORT_KS):
        yield "short k", Problem(width, width, k, dtype)
    for size, dtype in product(SIZES, FMA_DTYPES):
        yield "sizes", Problem(size, size, size, dtype)
    for dtype, op in product(FMA_DTYPES, PAPER_OPS):
        size = STENCIL_SIZES[dtype]
        yield STENCIL, Problem(size, size, size, dtype, op)


def tried_first(table: str, problem: Problem, limits: DeviceLimits) -> tuple[KernelConfig, ...]:
    """Return first choices, best first: of the family `gemm` for the stencil's table, else of the staged families."""
    families = ("gemm",) if table == STENCIL else STAGED
    return first_choices(search_space(problem, limits, families=families), candidate_times_us)


def times_us(contest: Contest, problem: Problem, configs: Sequence[KernelConfig]) -> dict[KernelConfig, float]:
    """Return median microseconds, in turns with a clean L2, of the configurations that compile and launch."""
    launches: dict[KernelConfig, Launch] = {}
    with ExitStack() as stack:
        operands = contest.operands(problem, stack)
        prepare(operands, TIMED, seed=2)
        for config in configs:
            with suppress(LaunchFailed, ToolMissing):
                launch = partial(contest.loaded(operands, config, stack).start, operands.arguments(1.0, 0.0))
                launch()
                launches[config] = launch
        found = measure_interleaved(contest.device, tuple(launches.values()), TRIAL)[Cache.CLEAN]
        return {config: measured.median_us for config, measured in zip(launches, found, strict=True)}


def until(end: float, items: Iterable[T], result: ResultFile) -> Iterator[T]:
    """Yield the items until the time `end`. Note in the result if items are left."""
    for item in items:
        if time.monotonic() >= end:
            result.facts["complete"] = False
            return
        yield item


def measure_cells(contest: Contest, result: ResultFile, end: float) -> None:
    """Measure the cells until the time `end`."""
    limits = contest.target.limits
    todo = [(table, problem, tried_first(table, problem, limits)) for table, problem in problems()]
    compile_all(((problem, config) for _, problem, choices in todo for config in choices), contest.target)
    of_type: dict[str, KernelConfig] = {}
    for table, problem, choices in until(end, todo, result):
        beside = of_type.get(problem.dtype_name) if table != STENCIL else None
        every = dict.fromkeys((*choices, *filter(None, [beside])))
        found = times_us(contest, problem, tuple(every))
        if not found:
            result.skip({"table": table, "problem": problem.text}, "no first choice runs")
            continue
        best = min(found, key=lambda config: found[config])
        of_type.setdefault(problem.dtype_name, best)
        verdict = Verdict(correct=True, worst_ratio=0.0, detail="exact on small integers")
        cell = Cell("S", "column", problem)
        try:
            row = contest.row(cell, Winner(best, verdict, kept=len(choices), outcomes={}))
        except Skipped as reason:
            result.skip(cell.record, str(reason))
            continue
        times = {config.text: us for config, us in found.items()}
        result.add({**row, "table": table, "choices_us": times, "global": of_type[problem.dtype_name].text})
        rate = problem.flops / row["ours_us"] * 1e-6
        libraries = " ".join(f"{name} {row[name]}" for name in ("cublas_us", "cublaslt_us"))
        click.echo(f"{problem.text:32} {row['ours_us']:9.1f} us {rate:6.2f} TFLOP/s {libraries} {best.text}")


def measure_variants(contest: Contest, result: ResultFile, end: float) -> None:
    """Time a sample of the stencil's configurations for each element type and storage order until the time `end`."""
    limits = contest.target.limits
    for dtype, op in until(end, product(FMA_DTYPES, PAPER_OPS), result):
        problem = Problem(VARIANTS_SIZE, VARIANTS_SIZE, VARIANTS_SIZE, dtype, op)
        space = search_space(problem, limits, families=["gemm"])
        kept, first = space.kept, first_choices(space, candidate_times_us)
        places = random.Random(0).sample(range(len(kept)), min(VARIANTS, len(kept)))
        configs = tuple(dict.fromkeys((*first, *(kept[place].config for place in places))))
        compile_all(((problem, config) for config in configs), contest.target)
        times = {config.text: us for config, us in times_us(contest, problem, configs).items()}
        result.facts["variants"].append(
            {
                "dtype": problem.dtype_name,
                "op": problem.op,
                "size": VARIANTS_SIZE,
                "kept": len(kept),
                "times_us": times,
            }
        )
        result.write()


@click.command(cls=Command)
@click.option("--device", "spec", default="0", show_default=True, help="CUDA ordinal.")
@click.option("--time-limit", type=click.FloatRange(0), default=3600.0, show_default=True, help="Seconds.")
@click.option(
    "--output",
    default="general.json",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
)
def main(spec: str, time_limit: float, output: Path) -> None:
    """Time the first choices, then the fastest beside cuBLAS and cuBLASLt, and print the tables."""
    end = time.monotonic() + time_limit
    refuse_less_precision(dict(os.environ))
    require_new(output)
    with opened(gpu(spec), FINAL) as contest:
        facts = contest.facts(f"python -m benchmarks.general --time-limit {time_limit:g}")
        result = ResultFile(output, {**facts, "variants": []})
        measure_cells(contest, result, end)
        measure_variants(contest, result, end)
    result.facts.setdefault("complete", True)
    result.write()
    click.echo("\n\n".join(tables(result.content).values()))
    if wrong := [row["configuration"] for row in result.rows if not row["verified"]]:
        raise SystemExit(f"wrong results of {len(wrong)} winners: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
