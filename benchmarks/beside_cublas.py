"""Time every kernel version beside cuBLAS: V0 to V3 of TSM2, both optimizations of ISM2, and TSMM.

    python -m benchmarks.beside_cublas --output beside-cublas.json

Each version is tuned alone for `--seconds` per problem. Then the fastest kernel of each version and cuBLAS are
verified and timed in turns in one process, so that clock drift affects all equally.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from benchmarks.contest import EXACT, Contest, Launch, opened, times
from benchmarks.gpu import gpu
from benchmarks.result_file import ResultFile, require_new
from benchmarks.tables import Row, fastest_in_bold, markdown
from tsm2_tune.commands.errors import Command
from tsm2_tune.commands.options import Seconds
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.shapes import parse_shapes
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.generator.space.order import first_and_rest
from tsm2_tune.generator.space.space import search_space
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.measure.timing import Effort
from tsm2_tune.tuner.packs.candidate_times import candidate_times_us
from tsm2_tune.tuner.results.trial import Cache, Outcome
from tsm2_tune.tuner.search.candidates import Search
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.strategies.model import Model
from tsm2_tune.tuner.verify.verdict import prepare

SHAPES = "20480x2/4/8/16xm,1e7xkx8/16"
EFFORT = Effort(spread=0.002, min_samples=21, max_samples=51, limit_seconds=2.0)

VERSIONS: dict[str, tuple[str, object]] = {  # version -> the tunable and its value that tell it; None: any value
    **{f"V{number}": ("version", f"v{number}") for number in range(4)},
    "ISM2 1": ("optimisation", 1),
    "ISM2 2": ("optimisation", 2),
    "TSMM": ("vector_bytes", None),
}


def tuned(problem: Problem, target: Target, seconds: float) -> dict[str, KernelConfig]:
    """Return the fastest configuration of each version whose results were correct."""
    # V0 reloads A for each column of C: the guideline on reuse would drop it.
    space = search_space(problem, target.limits, guidelines={**asdict(Guidelines()), "min_reuse": 1})
    winners = {}
    with Tuner(target, Options(budget_seconds=seconds, cache=Cache.CLEAN)) as tuner:
        for version, (name, value) in VERSIONS.items():
            found = ((one, one.config.tunables.get(name)) for one in space.kept)
            kept = tuple(one for one, own in found if own is not None and value in (None, own))
            medians: list[tuple[float, KernelConfig]] = []
            candidates = first_and_rest(replace(space, kept=kept), tuner.options.seed, candidate_times_us)
            for trial in tuner.tune(Search(Model(*candidates), budget_seconds=seconds)):
                if trial.outcome is Outcome.OK and trial.measurement is not None:
                    medians.append((trial.measurement.median_us, trial.config))
            if medians:
                winners[version] = min(medians)[1]
    return winners


def beside_cublas(contest: Contest, problem: Problem, winners: Mapping[str, KernelConfig]) -> list[Row]:
    """Return one row for each version and one for cuBLAS, timed in turns."""
    with ExitStack() as stack:
        operands = contest.operands(problem, stack)
        prepare(operands, EXACT, seed=1)
        launches: dict[str, Launch] = {
            name: partial(contest.loaded(operands, config, stack).start, operands.arguments(1.0, 0.0))
            for name, config in winners.items()
        }
        if contest.libraries is not None:
            launches["cuBLAS"] = contest.libraries[0].launch(operands)
        right = {name: contest.verdict(operands, launch).correct for name, launch in launches.items()}
        found = contest.in_turns(operands, launches)
    floor_us = contest.ceilings.floor_us(problem)
    return [
        {
            "m": problem.m,
            "n": problem.n,
            "k": problem.k,
            "dtype": problem.dtype_name,
            "version": name,
            "configuration": winners[name].text if name in winners else None,
            "us": measured.median_us,
            "low_us": measured.low_us,
            "high_us": measured.high_us,
            "samples_us": measured.samples_us,
            **times("dirty", found[Cache.DIRTY][name]),
            "sm_clock_mhz": measured.sm_clock_mhz,
            "verified": right[name],
            "floor_us": floor_us,
            "percent_of_floor": 100 * floor_us / measured.median_us,
        }
        for name, measured in found[Cache.CLEAN].items()
    ]


def table(found: dict[str, Any]) -> str:
    """Return a Markdown table with one line per problem.

    Its columns are the microseconds of each version and of cuBLAS, the speedup of the fastest version, and its
    percentage of the floor.
    """
    heads = ("m x n x k", "dtype", *(f"{version} us" for version in VERSIONS), "cuBLAS us", "speed-up", "% of floor")
    lines = list[Sequence[str]]()
    problems: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in found["rows"]:
        problems.setdefault((row["m"], row["n"], row["k"], row["dtype"]), {})[row["version"]] = row
    for (m, n, k, dtype), rows in problems.items():
        fastest = min((rows[version] for version in VERSIONS if version in rows), key=lambda row: row["us"])
        all_us, cublas = [rows[version]["us"] for version in VERSIONS], rows["cuBLAS"]["us"]
        times = fastest_in_bold([f"{us:.0f}" for us in all_us], all_us)
        share = f"{fastest['percent_of_floor']:.0f}"
        cells = [f"{m} x {n} x {k}", dtype, *times, f"{cublas:.0f}", f"{cublas / fastest['us']:.2f}", share]
        lines.append(cells)
    return markdown(heads, lines, texts=heads[:1])


@click.command(cls=Command)
@click.option("--device", "spec", default="0", show_default=True)
@click.option("--shapes", default=SHAPES, show_default=True)
@click.option("--dtype", "dtypes", default="f32,f64", show_default=True)
@click.option("--seconds", type=Seconds(min=0, min_open=True), default=8.0, show_default=True, help="Of each search.")
@click.option("--output", required=True, type=click.Path(dir_okay=False, path_type=Path))
def main(spec: str, shapes: str, dtypes: str, seconds: float, output: Path) -> None:
    """Tune every version of each problem, time all versions beside cuBLAS, and print the table."""
    every = [(one, name.strip()) for one in parse_shapes(shapes) for name in dtypes.split(",")]
    problems = [Problem(one.m, one.n, one.k, name, batch=one.batch) for one, name in every]
    require_new(output)
    target = gpu(spec)
    winners = {problem: tuned(problem, target, seconds) for problem in problems}
    with opened(target, EFFORT) as contest:
        command = f"python -m benchmarks.beside_cublas --shapes {shapes} --dtype {dtypes} --seconds {seconds:g}"
        result = ResultFile(output, contest.facts(command))
        for problem in problems:
            result.rows += beside_cublas(contest, problem, winners[problem])
            result.write()
    click.echo(table(result.content))
    if wrong := [row["configuration"] for row in result.rows if not row["verified"]]:
        raise SystemExit(f"wrong results: {', '.join(map(str, wrong))}")


if __name__ == "__main__":
    main()
