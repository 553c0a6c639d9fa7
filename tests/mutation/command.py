"""Change rendered kernels in thousands of small ways, and count what verification says of them on the host."""

from __future__ import annotations

import json
import os
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from tests.conftest import compiled
from tests.mutation.baseline import Baselines, SubjectIsWrong, Tools
from tests.mutation.report import report, score, stored
from tests.mutation.sample import Mutant, chosen
from tests.mutation.subjects import subjects
from tests.mutation.trial import Bench, Judged, MachineFailed, Result
from tests.quick import quick_toolchain
from tsm2_tune.generator.render import support_source
from tsm2_tune.tuner.compiler import Toolchain
from tsm2_tune.tuner.host.toolchain import host_toolchain
from tsm2_tune.usage import Command

REPORT_SECONDS = 5.0  # before the end of the time that was given


@dataclass(frozen=True, slots=True)
class Untold:
    """A mutant of which nothing can be said, and why."""

    mutant: Mutant
    because: str


def named(text: str | None) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def tools(support_path: str, toolchain: Toolchain) -> Tools:
    return Tools(support_path, quick_toolchain(toolchain), quick_toolchain(toolchain, "-O2"))


def judged(mutants: list[Mutant], workers: int, deadline: float) -> Iterator[Result | Untold]:
    """What becomes of each, in the order in which they end; from the deadline on, of no more."""
    toolchain = host_toolchain()
    baselines = Baselines(tools(compiled(support_source(), "", toolchain).path, toolchain))
    left, results = queue.SimpleQueue[Mutant](), queue.SimpleQueue[Result | Untold | BaseException]()
    for mutant in mutants:
        left.put(mutant)

    def run() -> None:
        bench = Bench(baselines)
        try:
            while time.monotonic() < deadline:
                mutant = left.get_nowait()
                try:
                    results.put(bench.judge(mutant))
                except (SubjectIsWrong, MachineFailed) as why:
                    results.put(Untold(mutant, str(why)))
        except queue.Empty:
            bench.close()
        except BaseException as error:
            results.put(error)

    # Threads, as each waits for a process of its own; daemons, as at the deadline nobody waits for them.
    for number in range(workers):
        threading.Thread(target=run, name=f"mutants {number}", daemon=True).start()
    for _ in mutants:
        try:
            result = results.get(timeout=max(deadline - time.monotonic(), 0.01))
        except queue.Empty:
            return
        if isinstance(result, BaseException):
            raise result
        yield result


@click.command(cls=Command)
@click.option("--count", default=2500, show_default=True, help="How many mutants to try.")
@click.option("--seed", default=1, show_default=True, help="Which ones.")
@click.option("--workers", default=os.cpu_count() or 1, show_default=True, help="How many at a time.")
@click.option("--families", help="Of these alone, such as gemv,ladder.")
@click.option("--dtypes", help="In these alone, such as f32,c64.")
@click.option("--seconds", type=float, help="End after so many, with what was done: the first ones are a sample too.")
@click.option("--output", type=click.Path(path_type=Path), default=Path("mutants.jsonl"), show_default=True)
@click.option("--resume", is_flag=True, help="Keep what the output holds, but for survivors: these are tried again.")
def main(
    count: int,
    seed: int,
    workers: int,
    families: str | None,
    dtypes: str | None,
    seconds: float | None,
    output: Path,
    resume: bool,
) -> None:
    """Say what became of the mutants; exit code 1 where fewer than 99 in a hundred were found."""
    start = time.monotonic()
    deadline = start + (seconds - REPORT_SECONDS if seconds else 1e9)
    mutants = chosen(subjects(named(families), named(dtypes)), count=count, seed=seed)
    before = {key: one for key, one in stored(output).items() if resume and one.judged != Judged.SURVIVED}
    results = [before[one.key] for one in mutants if one.key in before]
    output.write_text("".join(f"{json.dumps(one.json)}\n" for one in results))
    left = [one for one in mutants if one.key not in before]
    untold = 0
    click.echo(f"{len(mutants)} mutants, {len(left)} to try, seed {seed}", err=True)
    with output.open("a") as lines, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        os.environ["XDG_CACHE_HOME"] = cache  # what is compiled here is of no use to anybody
        for number, result in enumerate(judged(left, workers, deadline), start=1):
            if isinstance(result, Untold):
                untold += 1
                click.echo(f"{number}: nothing said: {result.because}", err=True)
                continue
            results.append(result)
            lines.write(f"{json.dumps(result.json)}\n")
            lines.flush()
            if result.judged == Judged.SURVIVED:
                click.echo(f"{number}: {result.config} {result.dtype}: {result.before} -> {result.after}", err=True)
        click.echo(report(results))
        click.echo(
            f"seed {seed}: {len(results)} of {len(mutants)} mutants judged, {untold} not to be judged,"
            f" {workers} workers, {time.monotonic() - start:.0f} s"
        )
    sys.stdout.flush()
    os._exit(0 if score(results) >= 99 else 1)  # whatever still runs: it ends with this process
