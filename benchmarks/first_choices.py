"""Search for slow first choices: plan a search for many shapes, then run those that are expected to be slowest.

    python -m benchmarks.first_choices --output first-choices.json --problems worst.txt
    python -m benchmarks.first_choices --run worst.txt --device 0 --output worst.json
    python -m benchmarks.first_choices --beside benchmarks/results/h200-versus-cublas.json

The first command needs no GPU. For each shape, it predicts the time of the configuration that a search would try
first (tsm2_tune/generator/predict/expected_time.py). If that exceeds twice the roofline time plus start-up, it prints
the reason. The second command compiles, verifies and times the first choices for a list of problems. The third
command compares expected with measured times.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import cycle, product
from multiprocessing import get_context
from pathlib import Path

import click

from benchmarks.first_runs import run_problems
from benchmarks.headline import markdown, number
from benchmarks.result_file import program_facts, read, require_new
from benchmarks.unseen_tables import percent, ranked
from benchmarks.versus_cublas import part_of
from benchmarks.winner import room_bytes
from tsm2_tune.commands.errors import Command
from tsm2_tune.errors import InputError
from tsm2_tune.generator.device.architecture import architecture_of
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.device.roofline import data_sheet
from tsm2_tune.generator.families import family_named, parse_config
from tsm2_tune.generator.predict.expected_time import (
    START_US,
    bytes_in_flight_per_sm,
    expected_us,
    gflops,
    moved_us,
    padded_flops,
    sheet,
    sums_us,
)
from tsm2_tune.generator.problem import Problem, dtype_named
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.generator.space.order import expected_times_us, ordered
from tsm2_tune.generator.space.space import search_space
from tsm2_tune.generator.transposed import transposed
from tsm2_tune.tuner.device.target import limits_of
from tsm2_tune.tuner.search.loop import cores
from tsm2_tune.tuner.verify.operands import needed_bytes

TELLING = 1.25  # a factor above this is given as a reason
A_DECADE = 2  # number of extents per factor of 10
LARGEST = 10**8
OPS = ("nn", "ttt", "tn", "ntt")  # for real types; for complex types the transposed operand is also conjugated
CONJUGATED = {"tn": "cn", "ntt": "jtt"}
WITHIN = 2.0  # a first choice is good if its time is at most this factor times the roofline time with start-up
AT_LEAST = 1.25  # above this factor of the least expected time, another candidate should be first


def grid(limits: DeviceLimits, dtype_names: Sequence[str], count: int, seed: int) -> list[Problem]:
    """Return `count` random shapes of a grid that fit in device memory, cycling through types and storage orders.

    Raise InputError if the grid has fewer.
    """
    decades = len(str(LARGEST)) - 1
    extents = [round(10 ** (step / A_DECADE)) for step in range(decades * A_DECADE + 1)]
    shapes = list(product(extents, repeat=3))
    random.Random(seed).shuffle(shapes)
    kinds = cycle(product(dtype_names, OPS))
    found: list[Problem] = []
    for (m, n, k), (dtype_name, op) in zip(shapes, kinds, strict=False):
        op = CONJUGATED.get(op, op) if dtype_named(dtype_name).is_complex else op
        problem = Problem(m, n, k, dtype_name, op)
        if needed_bytes(problem) <= room_bytes(limits):
            found.append(problem)
        if len(found) == count:
            return found
    raise InputError(f"the grid has {len(found)} shapes that fit {limits.name}: ask for no more --shapes")


@dataclass(frozen=True, slots=True)
class First:
    """The first configuration that a search tries for a problem."""

    problem: str
    configuration: str  # "" if the rules drop all
    expected_us: float | None
    floor_us: float  # roofline time from the data sheet
    least_us: float | None  # least expected time of all candidates
    reason: str  # "" if the time is within WITHIN
    is_absurd: bool  # whether another candidate should have been first

    @property
    def times(self) -> float:
        """The expected time divided by the roofline time with start-up; infinite without a configuration."""
        return math.inf if self.expected_us is None else self.expected_us / (self.floor_us + START_US)


def first_choice(problem: Problem, limits: DeviceLimits) -> First:
    """Return the first choice for a problem, by planning a search without running it."""
    space = search_space(problem, limits)
    floor_us = data_sheet(limits).floor_us(problem)
    if not space.kept:
        dropped = ", ".join(f"{count} by {rule.name}" for rule, count in space.dropped if count)
        reason = f"no configuration: dropped {dropped}{_of_the_transposed(problem, limits)}"
        return First(problem.text, "", None, floor_us, None, reason, is_absurd=False)
    first, best = ordered(space, seed=0)[0], space.kept[int(expected_times_us(space.kept).argmin())]
    us, least_us = float(expected_us(first)), float(expected_us(best))
    if us <= WITHIN * (floor_us + START_US):
        return First(problem.text, first.config.text, us, floor_us, least_us, "", is_absurd=False)
    absurd, why = us > AT_LEAST * least_us, ", ".join(reasons(first)) or "nothing in particular"
    if absurd:
        reason = f"{best.config.text} is expected to take {least_us:.1f} us; of the first choice: {why}"
    else:
        reason = f"no candidate is expected to take much less: {why}{_of_the_transposed(problem, limits)}"
    return First(problem.text, first.config.text, us, floor_us, least_us, reason, absurd)


def reasons(candidate: Candidate) -> tuple[str, ...]:
    """Return the reasons why the candidate is expected to be slower than the roofline, most important first."""
    problem, launch, limits = candidate.problem, candidate.launch, candidate.limits
    rates = sheet(limits)
    traffic = candidate.family.traffic(candidate.config, problem)
    moved = (traffic.read_bytes + traffic.written_bytes) / problem.least_bytes
    tile = f"{launch.rows_per_block}x{launch.columns_per_block or problem.n}"
    padded = padded_flops(candidate) / problem.flops
    rate = dict(rates.gflops)[problem.dtype_name] / gflops(candidate, rates)
    blocks = launch.blocks(problem.m, problem.n)
    idle = -(-blocks // limits.sms) * limits.sms / blocks  # most blocks per multiprocessor over their mean
    latency_us = architecture_of(limits.compute_capability).memory_latency_clocks / limits.sm_clock_mhz
    needed = (
        rates.read_gbytes_per_s * 1e3 * latency_us / limits.sms / max(bytes_in_flight_per_sm(candidate, blocks), 1)
    )
    work_us = max(moved_us(candidate, rates), padded_flops(candidate) / gflops(candidate, rates) * 1e-3)
    summed = 1 + sums_us(candidate) / (START_US + work_us)
    found = [
        (moved, f"it moves {moved:.1f} times the least bytes"),
        (padded, f"tiles of {tile} compute {padded:.1f} times the operations for {problem.m}x{problem.n}"),
        (rate, f"tensor cores are {rate:.1f} times as fast as what it computes with"),
        (idle, f"with {blocks} blocks, multiprocessors have {idle:.1f} times the time that they are busy"),
        (needed, f"for the bandwidth {needed:.1f} times the bytes should be on their way"),
        (summed, f"with the sums of splits it takes {summed:.1f} times as long"),
    ]
    return tuple(words for factor, words in sorted(found, reverse=True) if factor >= TELLING)


def _of_the_transposed(problem: Problem, limits: DeviceLimits) -> str:
    """Return a text with the expected time of the transposed product, or "" if C is not wide.

    Kernels are written for a tall C.
    """
    if problem.m >= problem.n:
        return ""
    other = transposed(problem)
    space = search_space(other, limits)
    if not space.kept:
        return ""
    us = float(expected_times_us(space.kept).min())
    return f"; the transposed product {other.text}, in the same memory, is expected to take {us:.1f} us"


def planned(problems: Sequence[Problem], limits: DeviceLimits, processes: int) -> Iterator[First]:
    """Return the first choice for each problem, in the given order."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(first_choice, problems, [limits] * len(problems), chunksize=4)


def summary(found: Sequence[First]) -> str:
    """Return a text about the planned choices: shares by expected slowdown, and the slowest."""
    within = sum(not one.reason for one in found) / len(found)
    absurd = [one for one in found if one.is_absurd]
    without = sum(one.expected_us is None for one in found)
    explained = sum(bool(one.reason) for one in found) - len(absurd) - without
    lines = [
        (one.problem, number(one.expected_us), number(one.floor_us), f"{one.times:.1f}", one.reason)
        for one in worst(found, 10)
    ]
    heads = ("problem", "expected us", "roofline us", "times", "reason")
    return (
        f"{len(found)} shapes: the first choice of {percent(within, 1)} is expected within {WITHIN:g} times the"
        f" roofline with start-up; of {explained} none is expected to do much better, and the reason is given;"
        f" of {len(absurd)} another candidate is expected to take less by {AT_LEAST:g} times; {without} have no"
        " configuration.\n\n" + markdown(heads, lines, texts=("problem", "reason"))
    )


def worst(found: Iterable[First], count: int) -> list[First]:
    """Return the problems whose first choice is furthest from the roofline."""
    return sorted((one for one in found if one.expected_us is not None), key=lambda one: -one.times)[:count]


def beside(path: Path, limits: DeviceLimits) -> str:
    """Return the ratios of expected to measured times of a result file's winners."""
    ratios = []
    for row in read(path)["rows"]:
        config = parse_config(row["configuration"])
        if config is not None:
            problem = Problem(row["m"], row["n"], row["k"], row["dtype"], row["op"])
            candidate = Candidate(family_named(config.family), config, problem, limits, Guidelines())
            ratios.append(float(expected_us(candidate)) / row["ours_us"])
    if not ratios:
        raise InputError(f"{path} has no winner that this version knows: name another file")
    shares = (0.0, 0.01, 0.05, 0.5, 0.95, 0.99, 1.0)
    quantiles = ", ".join(f"{100 * share:g} % {number(ranked(ratios, share), 2)}" for share in shares)
    return f"{len(ratios)} winners, expected over measured times by quantile: {quantiles}"


@click.command(cls=Command)
@click.option(
    "--device", "spec", default="h200", show_default=True, help="A bundled card to plan for, or the ordinal."
)
@click.option("--shapes", "count", type=click.IntRange(1, 100_000), default=2000, show_default=True)
@click.option("--dtype", default="f32,f64,c64,bf16", show_default=True, help="In turn, one a shape.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of which shapes of the grid are taken.")
@click.option("--worst", "most", type=click.IntRange(1, 1000), default=60, show_default=True, help="In --problems.")
@click.option("--processes", type=click.IntRange(1, 256), default=None, help="That plan.  [default: one a core]")
@click.option("--problems", default=None, type=click.Path(dir_okay=False, path_type=Path), help="List of the worst.")
@click.option(
    "--run",
    "to_run",
    default=None,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Run the first choices for the problems of such a list on --device.",
)
@click.option("--part", default="1/1", show_default=True, help="Of --run: such as 2/4, the second of four runs.")
@click.option("--resume", is_flag=True, help="Of --run: keep the rows that --output has, and run the others.")
@click.option("--time-limit", type=click.FloatRange(0, min_open=True), default=None, help="Of --run: seconds.")
@click.option(
    "--output", default="first-choices.json", show_default=True, type=click.Path(dir_okay=False, path_type=Path)
)
@click.option(
    "--beside",
    "measured",
    default=None,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Say how expected times are to those of a file of versus_cublas, and plan nothing.",
)
def main(
    spec: str,
    count: int,
    dtype: str,
    seed: int,
    most: int,
    processes: int | None,
    problems: Path | None,
    to_run: Path | None,
    part: str,
    resume: bool,
    time_limit: float | None,
    output: Path,
    measured: Path | None,
) -> None:
    """Plan first choices for a grid of shapes, or run first choices from a list of problems."""
    if to_run is not None:
        run_problems(to_run, spec, part_of(part), output, resume=resume, time_limit=time_limit)
        return
    limits = limits_of(spec)
    if measured is not None:
        click.echo(beside(measured, limits))
        return
    names = tuple(dtype_named(name.strip()).name for name in dtype.split(","))
    require_new(output, "name another --output")
    found = list(planned(grid(limits, names, count, seed), limits, processes or cores()))
    facts = {
        "command": "python -m benchmarks.first_choices"
        f" --device {spec} --shapes {count} --dtype {dtype} --seed {seed}",
        "date": datetime.now(UTC).date().isoformat(),
        "device": limits.name,
        "start_us": START_US,
        "within": WITHIN,
        **program_facts(),
    }
    output.write_text(json.dumps({**facts, "rows": [asdict(one) for one in found]}, indent=1) + "\n")
    if problems is not None:
        problems.write_text("".join(f"{one.problem}\n" for one in worst(found, most)))
    click.echo(summary(found))


if __name__ == "__main__":
    main()
