"""Matrices that are large in both directions: our kernels, cuBLAS, cuBLASLt, and one configuration for all shapes.

    python -m benchmarks.general --output general.json
    python -m benchmarks.general --quick

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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import click

from benchmarks.cells import Cell
from benchmarks.contest import Contest
from benchmarks.general_tables import GLOBAL_SIZE, STENCIL, tables
from benchmarks.gpu import gpu
from benchmarks.result_file import ResultFile, require_new, run_facts
from benchmarks.turns import COMPILE_SECONDS, TIMED, compiled_support
from benchmarks.versus_cublas import refuse_less_precision
from benchmarks.winner import Skipped, Winner
from tsm2_tune.commands.errors import Command
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.problem import FMA_DTYPES, Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.space.seeds import first_choices
from tsm2_tune.generator.space.space import search_space
from tsm2_tune.tuner.compile.compiler import compile_text
from tsm2_tune.tuner.compile.pool import cores
from tsm2_tune.tuner.device.cuda import CudaDevice
from tsm2_tune.tuner.device.interface import LaunchFailed
from tsm2_tune.tuner.device.support_kernels import Support
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.measure.timing import Effort, measure_interleaved
from tsm2_tune.tuner.packs.candidate_times import candidate_times_us
from tsm2_tune.tuner.results.trial import Binary, Cache, CompileFailure, Verdict
from tsm2_tune.tuner.search.phase_timer import PhaseTimer
from tsm2_tune.tuner.verify.bound_kernel import BoundKernel, Entry
from tsm2_tune.tuner.verify.operands import Operands
from tsm2_tune.tuner.verify.verdict import prepare

STAGED = ("staged_dmma", "staged_f32_dmma", "staged_complex_dmma")
PAPER_SIZES = {"f32": 10_000, "f64": 8_000, "c64": 8_000, "c128": 6_000}
PAPER_OPS = ("nn", "nt", "tn", "tt")
SIZES = (GLOBAL_SIZE, 256, 512, 768, *range(1024, GLOBAL_SIZE, 512), 5120, 6144)  # GLOBAL_SIZE must be first
SHORT_KS, WIDTHS = (32, 64), (1024, 2048, 4096, 8192)
QUICK_SIZES = (GLOBAL_SIZE, 512, 2048)
STENCIL_SIZES = {"f32": 4096, "f64": 2048, "c64": 4096, "c128": 2048}
VARIANTS_SIZE = 2048
VARIANTS, TIME_LIMIT = 24, 3600.0  # defaults: variants per type and storage order; seconds
TRIAL = Effort(spread=0.005, min_samples=3, max_samples=9, limit_seconds=0.15, warm_up_seconds=0.005)
FINAL = Effort(spread=0.002, min_samples=7, max_samples=31, limit_seconds=0.3, warm_up_seconds=0.01)


def problems(*, quick: bool) -> Iterator[tuple[str, Problem]]:
    """Yield the table and the problem of each cell. The cells that determine the global configurations come first."""
    sizes = QUICK_SIZES if quick else SIZES
    for dtype in FMA_DTYPES:
        yield "sizes", Problem(GLOBAL_SIZE, GLOBAL_SIZE, GLOBAL_SIZE, dtype)
    if not quick:
        for dtype, op in product(FMA_DTYPES, PAPER_OPS):
            size = PAPER_SIZES[dtype]
            yield "paper", Problem(size, size, size, dtype, op)
    for dtype, width, k in product(FMA_DTYPES, WIDTHS[-1:] if quick else WIDTHS, SHORT_KS):
        yield "short k", Problem(width, width, k, dtype)
    for size, dtype in product(sizes[1:], FMA_DTYPES):
        yield "sizes", Problem(size, size, size, dtype)
    for dtype, op in product(FMA_DTYPES, PAPER_OPS[:1] if quick else PAPER_OPS):
        size = STENCIL_SIZES[dtype]
        yield STENCIL, Problem(size, size, size, dtype, op)


def tried_first(table: str, problem: Problem, limits: DeviceLimits) -> tuple[KernelConfig, ...]:
    """Return first choices, best first: of the family `gemm` for the stencil's table, else of the staged families."""
    families = (FAMILIES[name] for name in (("gemm",) if table == STENCIL else STAGED))
    return first_choices(families, problem, limits, candidate_times_us)


class Stopwatch:
    """A timer of configurations on a device. It compiles them in parallel."""

    def __init__(self, device: CudaDevice, target: Target, support_path: str) -> None:
        self._device, self._target, self._support_path = device, target, support_path
        self._supports: dict[str, Support] = {}
        self._pool = ThreadPoolExecutor(cores())
        self._compiling: dict[tuple[str, str, int], Future[Binary | CompileFailure]] = {}

    def compile_ahead(self, problem: Problem, configs: Sequence[KernelConfig]) -> None:
        """Start to compile each configuration in parallel."""
        for config in configs:
            self._binary(problem, config)

    def _binary(self, problem: Problem, config: KernelConfig) -> Future[Binary | CompileFailure]:
        key = (config.text, f"{problem.dtype_name} {problem.op}", problem.index_bits)
        if key not in self._compiling:
            source = render(problem, config)
            self._compiling[key] = self._pool.submit(
                compile_text,
                source.text,
                kernel=source.kernel,
                defines=source.defines,
                toolchain=self._target.toolchain,
                limit_seconds=COMPILE_SECONDS,
            )
        return self._compiling[key]

    def times_us(self, problem: Problem, configs: Sequence[KernelConfig]) -> dict[KernelConfig, float]:
        """Return median microseconds, in turns with a clean L2, of the configurations that compile and launch."""
        dtype = problem.dtype_name
        if dtype not in self._supports:
            self._supports[dtype] = Support(self._device, self._support_path, dtype)
        operands = Operands(self._device, self._supports[dtype], problem, index_bits=problem.index_bits)
        prepare(operands, TIMED, seed=2)
        launches: dict[KernelConfig, Callable[[], None]] = {}
        with ExitStack() as stack:
            stack.callback(operands.free)
            for config in configs:
                source, binary = render(problem, config), self._binary(problem, config).result()
                if isinstance(binary, Binary):
                    loaded = BoundKernel(self._device, operands, Entry(binary.path, source.kernel, source.launch))
                    stack.callback(loaded.free)
                    launch = partial(loaded.start, operands.arguments(1.0, 0.0))
                    with suppress(LaunchFailed):
                        launch()
                        launches[config] = launch
            found = measure_interleaved(self._device, tuple(launches.values()), TRIAL)[Cache.CLEAN]
            return {config: measured.median_us for config, measured in zip(launches, found, strict=True)}


def command_of(*, quick: bool, variants: int, time_limit: float) -> str:
    """Return the command that repeats the run, without the options of the device and the file."""
    parts = ["python -m benchmarks.general"]
    parts += ["--quick"] if quick else []
    parts += [f"--variants {variants}"] if variants != VARIANTS else []
    parts += [f"--time-limit {time_limit:g}"] if time_limit != TIME_LIMIT else []
    return " ".join(parts)


def facts_of(target: Target, contest: Contest, command: str) -> dict[str, Any]:
    """Return the facts of the run: device, driver, compiler, measured peak rates."""
    versions = {"cublas": contest.cublas.version, "cublaslt": contest.cublaslt.version}
    return {**run_facts(command, target, contest.ceilings), **versions, "variants": []}


def measure_cells(
    stopwatch: Stopwatch, contest: Contest, result: ResultFile, limits: DeviceLimits, *, quick: bool, end: float
) -> bool:
    """Measure the cells until the time `end`. Return whether all were measured."""
    todo = [(table, problem, tried_first(table, problem, limits)) for table, problem in problems(quick=quick)]
    for _, problem, choices in todo:
        stopwatch.compile_ahead(problem, choices)
    of_type: dict[str, KernelConfig] = {}
    for table, problem, choices in todo:
        if time.monotonic() > end:
            return False
        beside = of_type.get(problem.dtype_name) if table != STENCIL else None
        every = dict.fromkeys((*choices, *filter(None, [beside])))
        found = stopwatch.times_us(problem, tuple(every))
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
    return True


def measure_variants(
    stopwatch: Stopwatch, result: ResultFile, limits: DeviceLimits, *, count: int, end: float
) -> bool:
    """Time a sample of the stencil's configurations for each element type and storage order.

    Return whether all were timed before `end`.
    """
    sampled = []
    for dtype, op in product(FMA_DTYPES, PAPER_OPS) if count else ():
        problem = Problem(VARIANTS_SIZE, VARIANTS_SIZE, VARIANTS_SIZE, dtype, op)
        kept = search_space(problem, limits, families=["gemm"]).kept
        first = first_choices([FAMILIES["gemm"]], problem, limits, candidate_times_us)
        places = random.Random(0).sample(range(len(kept)), min(count, len(kept)))
        configs = tuple(dict.fromkeys((*first, *(kept[place].config for place in places))))
        stopwatch.compile_ahead(problem, configs)
        sampled.append((problem, len(kept), configs))
    for problem, kept_count, configs in sampled:
        if time.monotonic() > end:
            return False
        times = {config.text: us for config, us in stopwatch.times_us(problem, configs).items()}
        result.facts["variants"].append(
            {
                "dtype": problem.dtype_name,
                "op": problem.op,
                "size": VARIANTS_SIZE,
                "kept": kept_count,
                "times_us": times,
            }
        )
        result.write()
    return True


@click.command(cls=Command)
@click.option("--device", "spec", default="0", show_default=True, help="CUDA ordinal.")
@click.option("--quick", is_flag=True, help="A few sizes, in about twenty seconds.")
@click.option(
    "--variants",
    type=click.IntRange(min=0),
    default=VARIANTS,
    show_default=True,
    help="Of the stencil, of each type in each storage order.",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, max=1e9),
    default=TIME_LIMIT,
    show_default=True,
    help="Seconds after which no other cell is begun.",
)
@click.option(
    "--output",
    default="general.json",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
)
def main(spec: str, quick: bool, variants: int, time_limit: float, output: Path) -> None:
    """Time the first choices, then the fastest beside cuBLAS and cuBLASLt, and print the tables."""
    end = time.monotonic() + time_limit
    refuse_less_precision(dict(os.environ))
    require_new(output, "name another --output")
    target = gpu(spec)
    support = compiled_support(target.toolchain)
    device = CudaDevice(int(target.spec), support)
    contest = Contest(device, target, support, FINAL, PhaseTimer())
    stopwatch = Stopwatch(device, target, support)
    command = command_of(quick=quick, variants=variants, time_limit=time_limit)
    result = ResultFile(output, facts_of(target, contest, command))
    complete = measure_cells(stopwatch, contest, result, target.limits, quick=quick, end=end)
    count = 0 if quick else variants
    complete = measure_variants(stopwatch, result, target.limits, count=count, end=end) and complete
    result.facts["complete"] = complete
    result.write()
    device.close()
    click.echo("\n\n".join(tables({**result.facts, "rows": result.rows}).values()))
    if wrong := [row["configuration"] for row in result.rows if not row["verified"]]:
        raise SystemExit(f"wrong results of {len(wrong)} winners: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
