"""Try the bugs of the table: compile each as the product does, verify it, say by which it was rejected."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import click

from tests.bugs_by_class import CASES
from tests.bugs_in_classes import Case, Found
from tests.conftest import ONCE, compiled
from tests.quick import quick_toolchain
from tsm2_tune.commands.errors import Command
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.probes import edge_problems
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render, support_source
from tsm2_tune.generator.source import INDEX_BITS, KernelSource, index_defines
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.target import HOST, find_target
from tsm2_tune.tuner.results.trial import Outcome
from tsm2_tune.tuner.verify.bound_kernel import Entry
from tsm2_tune.tuner.verify.winner_calls import EMULATED, ON_GPU, Coverage, full_verification
from tsm2_tune.tuner.worker.client import Attempt, Worker

DEPTH = 256  # depth of the problem that a trial times
# More than a tuner does on the host: all calls, as on a GPU, longer loops, and as many launches as bugs wait for.
ON_HOST = replace(EMULATED, products=8e6, long_products=3e7, launches=300, every_call=True)
LIMIT_SECONDS = 240.0
REJECTED = (Outcome.WRONG_RESULT, Outcome.CRASHED)


@dataclass(frozen=True, slots=True)
class Bench:
    """Tools that compile and verify on one device."""

    toolchain: Toolchain
    worker: Worker
    coverage: Coverage
    watching: Toolchain | None = None


@dataclass(frozen=True, slots=True)
class Tried:
    """Result of a bug; `found` is None if it was accepted."""

    found: Found | None
    detail: str


def problem_of(case: Case) -> Problem:
    """Two whole tiles down and one across, or what the bug names."""
    bug = case.bug
    problem = Problem(*(bug.shape or (16, 16 if "x" in bug.op else 1, DEPTH)), bug.dtype, bug.op)
    if bug.shape is not None:
        return problem
    family = family_named(bug.config.family)
    launch = family.launch(bug.config, problem)
    rows, columns = 2 * launch.rows_per_block, launch.columns_per_block or 8
    shapes = [(rows, rows)] if problem.is_gram else [(rows, columns), (rows, 1), (128, 128)]
    fitting = (replace(problem, m=m, n=n) for m, n in shapes)
    return next(one for one in fitting if family.supports(one))


def entry_of(case: Case, source: KernelSource, bits: int, toolchain: Toolchain) -> Entry:
    text = case.bug.plant(source.text)
    binary = compiled(text, source.kernel, toolchain, index_defines(bits))
    return Entry(binary.path, source.kernel, source.launch)


def tried(case: Case, bench: Bench) -> Tried:
    """The bug as a configuration that is tuned and, if it is accepted, as one that may win."""
    config, problem = case.bug.config, problem_of(case)
    source = render(problem, config)
    entry = entry_of(case, source, problem.index_bits, bench.toolchain)
    attempt = Attempt(problem, entry, edge_problems(config, problem), seed=7, effort=ONCE)
    result = bench.worker.attempt(attempt)
    if result.outcome in REJECTED:
        return Tried(Found.TRIAL, result.detail)
    assert result.outcome is Outcome.OK, f"{case.name}: {result.outcome}: {result.detail}"
    entries = tuple((bits, entry_of(case, source, bits, bench.toolchain)) for bits in INDEX_BITS)
    request = full_verification(problem, config, entries, bench.coverage, seed=11)
    result = bench.worker.verify_in_full(request)
    if result.outcome is Outcome.OK and bench.watching is not None:  # last, as it is compiled once more
        watched = entry_of(case, source, INDEX_BITS[0], bench.watching)
        request = full_verification(problem, config, (), bench.coverage, seed=11, watched=watched)
        result = bench.worker.verify_in_full(request)
    if result.outcome in REJECTED:
        return Tried(Found.FULL, result.detail)
    assert result.outcome is Outcome.OK, f"{case.name}: {result.outcome}: {result.detail}"
    return Tried(None, "")


def bench_on(device: str) -> Bench:
    """On the host little is optimised, and what takes long is done less."""
    target = find_target(device)
    support = compiled(support_source(), "", target.toolchain).path
    toolchain = quick_toolchain(target.toolchain) if target.is_host else target.toolchain
    worker = Worker(device, lambda: support, limit_seconds=LIMIT_SECONDS)
    return Bench(toolchain, worker, ON_HOST if target.is_host else ON_GPU, target.watching)


@click.command(cls=Command)
@click.option("--device", default="cpu", show_default=True, help="A CUDA ordinal, or cpu.")
@click.option("--all", "slow_too", is_flag=True, help="Those too that a host takes long for.")
@click.option("--only", default="", help="Bugs whose names have this in them.")
@click.option("--output", type=click.Path(path_type=Path), help="A file for one JSON line a bug.")
def main(device: str, slow_too: bool, only: str, output: Path | None) -> None:
    """Say of each bug by what it was rejected; exit code 1 where one was accepted."""
    is_host = device == HOST
    seen = [one for one in CASES if not is_host or one.is_quick or (slow_too and one.found is not Found.ON_GPU)]
    chosen = [one for one in seen if only in one.name]
    bench = bench_on(device)
    counts = Counter[tuple[str, str]]()
    lines = []
    start = time.monotonic()
    for one in chosen:
        since = time.monotonic()
        try:
            result = tried(one, bench)
            found = "accepted" if result.found is None else result.found.value
            detail = result.detail
        except AssertionError as error:
            found, detail = "not tried", str(error)
        seconds = time.monotonic() - since
        counts[one.kind, found] += 1
        lines.append({"bug": one.name, "found": found, "seconds": round(seconds, 2), "detail": detail[:300]})
        click.echo(f"{found:9} {seconds:6.2f} s  {one.name}  {detail[:110]}")
    bench.worker.close()
    if output is not None:
        output.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    ways = ("trial", "full", "accepted", "not tried")
    click.echo(f"\n{'class':12}" + "".join(f"{way:>10}" for way in ways))
    for kind in dict.fromkeys(one.kind for one in chosen):
        click.echo(f"{kind:12}" + "".join(f"{counts[kind, way]:>10}" for way in ways))
    click.echo(f"{len(chosen)} bugs in {time.monotonic() - start:.0f} s on {device}")
    raise SystemExit(1 if any(counts[kind, way] for kind, way in counts if way in ways[2:]) else 0)
