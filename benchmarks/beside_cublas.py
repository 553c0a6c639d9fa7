"""Time every kernel version beside cuBLAS: V0 to V3 of TSM2, both optimizations of ISM2, and TSMM.

    python -m benchmarks.beside_cublas --output beside-cublas.json

Each version is tuned alone for `--seconds` per problem. Then the fastest kernel of each version and cuBLAS are
verified and timed in turns in one process, so that clock drift affects all equally: first with a clean L2 cache, then
with a dirty one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from benchmarks.gpu import gpu
from benchmarks.result_file import require_new, run_facts
from tsm2_tune.commands.errors import Command
from tsm2_tune.commands.options import Seconds
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render, support_source
from tsm2_tune.generator.shapes import parse_shapes
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.generator.space.order import first_and_rest
from tsm2_tune.generator.space.space import search_space
from tsm2_tune.tuner.compile.compiler import compile_text
from tsm2_tune.tuner.device.cuda import CudaDevice
from tsm2_tune.tuner.device.support_kernels import Support
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.measure.timing import Effort, measure_interleaved
from tsm2_tune.tuner.measure.vendor.cublas import Cublas
from tsm2_tune.tuner.packs.candidate_times import candidate_times_us
from tsm2_tune.tuner.results.trial import IN_FINALS, Binary, Cache, Outcome
from tsm2_tune.tuner.search.candidates import Search
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.strategies.model import Model
from tsm2_tune.tuner.verify.bound_kernel import BoundKernel, Entry
from tsm2_tune.tuner.verify.operands import Operands
from tsm2_tune.tuner.verify.verdict import verify

SHAPES = "20480x2/4/8/16xm,1e7xkx8/16"
EFFORT = Effort(spread=0.002, min_samples=21, max_samples=51, limit_seconds=2.0)

VERSIONS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "V0": lambda tunables: tunables.get("version") == "v0",
    "V1": lambda tunables: tunables.get("version") == "v1",
    "V2": lambda tunables: tunables.get("version") == "v2",
    "V3": lambda tunables: tunables.get("version") == "v3",
    "ISM2 1": lambda tunables: tunables.get("optimisation") == 1,
    "ISM2 2": lambda tunables: tunables.get("optimisation") == 2,
    "TSMM": lambda tunables: "vector_bytes" in tunables,
}


def tuned(problem: Problem, target: Target, seconds: float) -> dict[str, KernelConfig]:
    """Return the fastest configuration of each version whose results were correct."""
    # V0 reloads A for each column of C: the guideline on reuse would drop it.
    space = search_space(problem, target.limits, guidelines=Guidelines(min_reuse=1))
    winners = {}
    with Tuner(target, Options(budget_seconds=seconds, cache=Cache.CLEAN)) as tuner:
        for version, belongs in VERSIONS.items():
            kept = tuple(candidate for candidate in space.kept if belongs(candidate.config.tunables))
            medians: list[tuple[float, KernelConfig]] = []
            candidates = first_and_rest(replace(space, kept=kept), tuner.options.seed, candidate_times_us)
            for trial in tuner.tune(Search(Model(*candidates), budget_seconds=seconds)):
                if trial.outcome is Outcome.OK and trial.measurement is not None:
                    medians.append((trial.measurement.median_us, trial.config))
            if medians:
                winners[version] = min(medians)[1]
    return winners


def beside_cublas(
    device: CudaDevice,
    cublas: Cublas,
    support_path: str,
    target: Target,
    problem: Problem,
    winners: dict[str, KernelConfig],
) -> list[dict[str, Any]]:
    """Return one row for each version and one for cuBLAS, timed in turns."""
    support = Support(device, support_path, problem.dtype_name)
    operands = Operands(device, support, problem, index_bits=problem.index_bits)
    launches: list[Callable[[], None]] = []
    verified: list[bool | None] = []
    for winner in winners.values():
        source = render(problem, winner)
        binary = compile_text(
            source.text, kernel=source.kernel, defines=source.defines, toolchain=target.toolchain, limit_seconds=120
        )
        assert isinstance(binary, Binary)
        loaded = BoundKernel(device, operands, Entry(binary.path, source.kernel, source.launch))
        verified.append(verify(device, operands, loaded, seed=1).correct)
        launches.append(partial(loaded.start, operands.arguments(1.0, 0.0)))
    launches.append(partial(cublas.gemm, operands))
    verified.append(None)
    found = measure_interleaved(device, launches, EFFORT, IN_FINALS)
    operands.free()
    support.free()
    rows = []
    for name, config, measured, dirty, right in zip(
        [*winners, "cuBLAS"],
        [*winners.values(), None],
        found[Cache.CLEAN],
        found[Cache.DIRTY],
        verified,
        strict=True,
    ):
        rows.append(
            {
                "m": problem.m,
                "n": problem.n,
                "k": problem.k,
                "dtype": problem.dtype_name,
                "version": name,
                "configuration": config.text if config else None,
                "us": measured.median_us,
                "low_us": measured.low_us,
                "high_us": measured.high_us,
                "samples_us": measured.samples_us,
                "dirty_us": dirty.median_us,
                "dirty_samples_us": dirty.samples_us,
                "sm_clock_mhz": measured.sm_clock_mhz,
                "tflops": problem.flops / measured.median_us * 1e-6,
                "tbytes_per_s": problem.least_bytes / measured.median_us * 1e-6,
                "verified": right,
            }
        )
    return rows


@click.command(cls=Command)
@click.option("--device", "spec", default="0", show_default=True)
@click.option("--shapes", default=SHAPES, show_default=True)
@click.option("--dtype", "dtypes", default="f32,f64", show_default=True)
@click.option(
    "--seconds",
    type=Seconds(min=0, min_open=True),
    default=8.0,
    show_default=True,
    help="Of tuning, for each version of each problem.",
)
@click.option("--output", required=True, type=click.Path(dir_okay=False, path_type=Path))
def main(spec: str, shapes: str, dtypes: str, seconds: float, output: Path) -> None:
    """Tune every version, and time all versions beside cuBLAS."""
    every = [(one, name.strip()) for one in parse_shapes(shapes) for name in dtypes.split(",")]
    problems = [Problem(one.m, one.n, one.k, name, batch=one.batch) for one, name in every]
    require_new(output, "name another --output")
    target = gpu(spec)
    winners = {problem: tuned(problem, target, seconds) for problem in problems}

    support = compile_text(support_source(), kernel="", defines=(), toolchain=target.toolchain, limit_seconds=120)
    assert isinstance(support, Binary)
    device = CudaDevice(int(spec), support.path)
    cublas = Cublas()
    ceilings = device.ceilings()
    rows = []
    for problem in problems:
        for row in beside_cublas(device, cublas, support.path, target, problem, winners[problem]):
            floor_us = ceilings.floor_us(problem)
            rows.append({**row, "floor_us": floor_us, "percent_of_floor": 100 * floor_us / row["us"]})
            click.echo(
                f"{problem.text:24} {row['version']:7} {row['us']:9.1f} us {row['tflops']:6.2f} TFLOP/s "
                f"{100 * floor_us / row['us']:5.1f} % of the floor  {row['configuration'] or ''}"
            )
    options = f"--shapes {shapes} --dtype {dtypes} --seconds {seconds:g}"
    facts = run_facts(f"python -m benchmarks.beside_cublas {options}", target, ceilings)
    facts["cublas"] = cublas.version
    output.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")
    device.close()
    if not all(row["verified"] in (True, None) and math.isfinite(row["us"]) for row in rows):
        raise SystemExit("a winner gave a wrong result")


if __name__ == "__main__":
    main()
