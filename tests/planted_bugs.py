"""Verify kernels with planted bugs: each by what must reject it, or all as the product does.

python -m tests.planted_bugs                 # on the host, as the product does
python -m tests.planted_bugs --device 0      # on a GPU, the bugs that have a class
python -m tests.planted_bugs --correct       # kernels without a bug: half an hour of one core on the host
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import click

from tests.conftest import ONCE, compiled
from tests.mutation.subjects import subjects
from tests.planting import GPU, LAUNCHES, RACES, SHAPE, TRIAL, Bug, bugs
from tests.quick import quick_toolchain
from tsm2_tune.commands.errors import Command
from tsm2_tune.generator.probes import edge_problems
from tsm2_tune.generator.render import render, support_source
from tsm2_tune.generator.source import INDEX_BITS, index_defines
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.target import HOST, find_target
from tsm2_tune.tuner.results.trial import Outcome
from tsm2_tune.tuner.verify.bound_kernel import Entry
from tsm2_tune.tuner.verify.winner_calls import EMULATED, ON_GPU, Coverage, full_verification
from tsm2_tune.tuner.worker.client import Attempt, AttemptResult, Worker
from tsm2_tune.tuner.worker.protocol import FullVerification

# More than a tuner does on the host: all calls, as on a GPU, longer loops, and as many launches as bugs wait for.
ON_HOST = replace(EMULATED, products=1e8, long_products=3e7, repeated_products=1e5, launches=320, every_call=True)
LIMIT_SECONDS = 240.0
ACCEPTED, NOT_TRIED = "accepted", "not tried"


@dataclass(frozen=True, slots=True)
class Bench:
    """Tools that compile and verify on one device."""

    once: Toolchain  # for a kernel that only a trial runs
    toolchain: Toolchain
    worker: Worker
    coverage: Coverage
    watching: Toolchain | None = None


def rejection(bug: Bug, bench: Bench, *, is_whole: bool) -> tuple[str, str] | None:
    """Return whether a trial or the full verification rejects the bug, and what it says; None if neither does.

    Only what must reject the bug is tried, unless the verification is whole.
    """
    for by, result in _verifications(bug, bench, is_whole):
        if result.outcome in (Outcome.WRONG_RESULT, Outcome.CRASHED):
            assert result.measurement is None
            return by, result.detail
        assert result.outcome is Outcome.OK, f"{bug.full_name}: {result.outcome}: {result.detail}"
    return None


def _verifications(bug: Bug, bench: Bench, is_whole: bool) -> Iterator[tuple[str, AttemptResult]]:
    """Verify the kernel step by step. A step is compiled when it is asked for."""
    problem, config, worker = bug.problem, bug.config, bench.worker
    source = render(problem, config)
    text = bug.plant(source.text)

    def entry(bits: int, toolchain: Toolchain) -> Entry:
        binary = compiled(text, source.kernel, toolchain, index_defines(bits))
        return Entry(binary.code, source.kernel, source.launch)

    is_tried = bug.way in (SHAPE, TRIAL)
    if is_whole or is_tried:
        small = () if bug.way == SHAPE else edge_problems(config, problem)
        tried = entry(problem.index_bits, bench.once if is_tried else bench.toolchain)
        yield TRIAL, worker.attempt(Attempt(problem, tried, small, seed=7, effort=ONCE))
    if not is_whole and is_tried:
        return
    for bits in INDEX_BITS if is_whole or bug.way != RACES else ():
        entries = ((bits, entry(bits, bench.toolchain)),)
        request = full_verification(problem, config, entries, bench.coverage, seed=11)
        yield "full", worker.verify_in_full(request if is_whole else stage_of(request, bug.way))
    if bench.watching is not None and (is_whole or bug.way == RACES):
        watched = entry(INDEX_BITS[0], bench.watching)
        request = full_verification(problem, config, (), bench.coverage, seed=11, watched=watched)
        yield "full", worker.verify_in_full(request)


def stage_of(request: FullVerification, stage: str) -> FullVerification:
    """Return the request with the calls of one stage, or the repeated launches, alone."""
    (run,) = request.runs
    calls = tuple(call for call in run.calls if call.stage == stage)
    alone = replace(run, calls=calls) if stage == LAUNCHES else replace(run, calls=calls, repeated=None, launches=0)
    return replace(request, runs=(alone,))


def bench_on(device: str) -> Bench:
    """On the host little is optimised, and what takes long is done less."""
    target = find_target(device)
    toolchain = target.toolchain
    worker = Worker(device, lambda _: compiled(support_source(), "", toolchain).code, limit_seconds=LIMIT_SECONDS)
    if not target.is_host:
        return Bench(toolchain, toolchain, worker, ON_GPU)
    once, quick = quick_toolchain(toolchain, "-O0"), quick_toolchain(toolchain)
    return Bench(once, quick, worker, ON_HOST, target.watching)


def correct_kernels() -> list[Bug]:
    """Return a kernel without a bug of each family, dtype and way through its templates."""
    every = [one for of_place in subjects().values() for one in of_place]
    return [Bug(one.name, one.config, one.problem, "at the start", "", "") for one in every]


@click.command(cls=Command)
@click.option("--device", default="cpu", show_default=True, help="A CUDA ordinal, or cpu.")
@click.option("--only", default="", help="Bugs whose names have this in them.")
@click.option("--correct", is_flag=True, help="Kernels without a bug, of which none may be rejected.")
def main(device: str, only: str, correct: bool) -> None:
    """Say of each kernel by what it was rejected; exit code 1 where a verdict is wrong."""
    # Bugs without a class may keep a kernel from ending, which can hang a GPU.
    tried = [one for one in bugs() if (one.way != GPU if device == HOST else one.kind)]
    chosen = [one for one in (correct_kernels() if correct else tried) if only in one.full_name]
    bench = bench_on(device)
    if correct and device == HOST:
        bench = replace(bench, coverage=EMULATED)
    counts = Counter[tuple[str, str]]()
    for one in chosen:
        try:
            by, detail = rejection(one, bench, is_whole=True) or (ACCEPTED, "")
        except AssertionError as error:
            by, detail = NOT_TRIED, str(error)
        counts["" if correct else one.kind, by] += 1
        click.echo(f"{by:9} {one.full_name}  {detail[:300]}")
    bench.worker.close()
    columns = (TRIAL, "full", ACCEPTED, NOT_TRIED)
    click.echo(f"\n{'class':12}" + "".join(f"{by:>10}" for by in columns))
    for kind in dict.fromkeys(kind for kind, _ in counts):
        click.echo(f"{kind or 'none':12}" + "".join(f"{counts[kind, by]:>10}" for by in columns))
    wanted = (ACCEPTED,) if correct else (TRIAL, "full")
    raise SystemExit(0 if all(by in wanted for _, by in counts) else 1)


if __name__ == "__main__":
    main()
