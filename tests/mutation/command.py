"""Change rendered kernels in thousands of small ways, and count what verification says of them."""

from __future__ import annotations

import json
import os
import queue
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click

from tests.conftest import compiled
from tests.mutation.baseline import LONG_PRODUCTS_IN_ALL, Baselines, SubjectIsWrong, Tools
from tests.mutation.report import report, score, stored
from tests.mutation.sample import Mutant, chosen
from tests.mutation.subjects import subjects
from tests.mutation.trial import Bench, Judged, MachineFailed, Result
from tests.quick import quick_toolchain
from tsm2_tune.commands.errors import Command
from tsm2_tune.errors import TuneError
from tsm2_tune.generator.render import support_source
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.emulator.toolchain import host_toolchain, watching

REPORT_SECONDS = 5.0  # before the end of the time that was given
PROGRESS_SECONDS = 60.0
MOST_PRINTED = 20  # mutants of which it is said why nothing can be said of them


@dataclass(frozen=True, slots=True)
class Untold:
    """A mutant of which nothing can be said, and why."""

    mutant: Mutant
    because: str


def host_tools(support_path: str, toolchain: Toolchain) -> Tools:
    return Tools(support_path, quick_toolchain(toolchain), quick_toolchain(toolchain, "-O2"), watching(toolchain))


def benches(workers: int, long_products: float = LONG_PRODUCTS_IN_ALL) -> list[Bench]:
    """So many, which share what is known of the texts."""
    toolchain = host_toolchain()
    baselines = Baselines(host_tools(compiled(support_source(), "", toolchain).path, toolchain))
    return [Bench(baselines, long_products) for _ in range(workers)]


def named(text: str | None) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def judged(mutants: list[Mutant], benches: list[Bench], deadline: float) -> Iterator[Result | Untold]:
    """Yield the result of each mutant as soon as it is known; judge no more of them after the deadline."""
    left, results = queue.SimpleQueue[Mutant](), queue.SimpleQueue[Result | Untold | BaseException]()
    for mutant in mutants:
        left.put(mutant)

    def run(bench: Bench) -> None:
        try:
            while time.monotonic() < deadline:
                mutant = left.get_nowait()
                try:
                    results.put(bench.judge(mutant))
                except (SubjectIsWrong, MachineFailed, TuneError) as why:
                    results.put(Untold(mutant, str(why)))
        except queue.Empty:
            bench.close()
        except BaseException as error:
            results.put(error)

    # Threads, as each waits for a process of its own; daemons, as at the deadline nobody waits for them.
    for number, bench in enumerate(benches):
        threading.Thread(target=run, args=(bench,), name=f"mutants {number}", daemon=True).start()
    for _ in mutants:
        try:
            result = results.get(timeout=max(deadline - time.monotonic(), 0.01))
        except queue.Empty:
            return
        if isinstance(result, BaseException):
            raise result
        yield result


def to_try(mutants: list[Mutant], known: dict[str, Result]) -> list[Mutant]:
    """Return the mutants without a result, then those that survived."""
    new = [one for one in mutants if one.key not in known]
    return new + [one for one in mutants if one.key in known and known[one.key].judged == Judged.SURVIVED]


@dataclass
class Progress:
    """A line a minute, of what became of how many."""

    start: float
    total: int
    done: int = 0
    untold: int = 0
    _told: float = field(default_factory=time.monotonic)

    def see(self, results: dict[str, Result], result: Result | Untold) -> None:
        self.done += 1
        if isinstance(result, Untold):
            self.untold += 1
            if self.untold <= MOST_PRINTED:
                click.echo(f"nothing said of {result.mutant.key}: {result.because[:300]}", err=True)
        if time.monotonic() - self._told >= PROGRESS_SECONDS:
            self._told = time.monotonic()
            counts = Counter(one.judged for one in results.values())
            named = ", ".join(f"{counts[one]} {one.value}" for one in Judged)
            click.echo(f"{self._told - self.start:.0f} s: {self.done} of {self.total}; in all {named}", err=True)


@click.command(cls=Command)
@click.option("--count", default=2500, show_default=True, help="How many mutants to try.")
@click.option("--seed", default=1, show_default=True, help="Which ones.")
@click.option("--workers", default=os.cpu_count() or 1, show_default=True, help="How many at a time.")
@click.option("--families", help="Of these alone, such as gemv,ladder.")
@click.option("--dtypes", help="In these alone, such as f32,c64.")
@click.option("--seconds", type=float, help="End after so many, with what was done: the first ones are a sample too.")
@click.option("--output", type=click.Path(path_type=Path), default=Path("mutants.jsonl"), show_default=True)
@click.option(
    "--resume",
    is_flag=True,
    help="Keep what the output holds. Survivors are tried again, last.",
)
@click.option(
    "--long-products",
    default=LONG_PRODUCTS_IN_ALL,
    show_default=True,
    help="Of calls with long extents that a mutant makes which may cut numbers: more find more, and take longer.",
)
def main(
    count: int,
    seed: int,
    workers: int,
    families: str | None,
    dtypes: str | None,
    seconds: float | None,
    output: Path,
    resume: bool,
    long_products: float,
) -> None:
    """Say what became of the mutants; exit code 1 where fewer than 99 in a hundred were found."""
    start = time.monotonic()
    deadline = start + (seconds - REPORT_SECONDS if seconds else 1e9)
    mutants = chosen(subjects(named(families), named(dtypes)), count=count, seed=seed)
    before = stored(output) if resume else {}
    results = {one.key: before[one.key] for one in mutants if one.key in before}
    left = to_try(mutants, results)
    progress = Progress(start, len(left))
    click.echo(f"{len(mutants)} mutants, {len(left)} to try, seed {seed}", err=True)
    lines = output.open("a" if resume else "w")
    with lines, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        os.environ["XDG_CACHE_HOME"] = cache  # nobody else can use these binaries
        for result in judged(left, benches(workers, long_products), deadline):
            if isinstance(result, Result):
                results[result.key] = result
                lines.write(f"{json.dumps(result.json)}\n")
                lines.flush()
            progress.see(results, result)
    click.echo(report(results.values()))
    click.echo(
        f"seed {seed}: {len(results)} of {len(mutants)} mutants judged; {progress.done} tried,"
        f" {progress.untold} not to be judged, {workers} workers, {time.monotonic() - start:.0f} s"
    )
    sys.stdout.flush()
    os._exit(0 if score(results.values()) >= 99 else 1)  # threads that still run end with this process
