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
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from tests.conftest import compiled
from tests.mutation.sample import Mutant, chosen
from tests.mutation.subjects import subjects
from tests.mutation.trial import (
    LONG_PRODUCTS_IN_ALL,
    Baselines,
    Bench,
    Judged,
    MachineFailed,
    Result,
    SubjectIsWrong,
    Tools,
)
from tests.quick import quick_toolchain
from tsm2_tune.commands.errors import Command
from tsm2_tune.errors import TuneError
from tsm2_tune.generator.render import support_source
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.emulator.toolchain import host_toolchain, watching

REPORT_SECONDS = 5.0  # before the end of the time that was given
PROGRESS_SECONDS = 60.0
Untold = tuple[Mutant, str]  # a mutant of which nothing can be said, and why


def host_tools(support_path: str, toolchain: Toolchain) -> Tools:
    return Tools(support_path, quick_toolchain(toolchain), quick_toolchain(toolchain, "-O2"), watching(toolchain))


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
                    results.put((mutant, str(why)))
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


def stored(path: Path) -> dict[str, Result]:
    """Results of an earlier run; a last line that was cut off is left out."""
    found = dict[str, Result]()
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            result = Result(**json.loads(line))
        except ValueError:
            continue
        found[result.key] = result
    return found


def score(results: Iterable[Result]) -> float:
    """Killed mutants in a hundred of those that could be."""
    counts = Counter(one.judged for one in results)
    could = counts[Judged.KILLED] + counts[Judged.SURVIVED]
    return 100 * counts[Judged.KILLED] / could if could else 100.0


def table(results: Iterable[Result], by: str = "operator") -> str:
    """Return the number of mutants and of each result, by operator or by another field of the results."""
    results = list(results)
    rows = [(by, "mutants", *(one.value for one in Judged), "score", "seconds")]
    for name in (*sorted({str(getattr(one, by)) for one in results}), "all"):
        of_name = [one for one in results if name == "all" or str(getattr(one, by)) == name]
        counts = Counter(one.judged for one in of_name)
        cells = (str(counts[column]) for column in Judged)
        rows.append(
            (name, str(len(of_name)), *cells, f"{score(of_name):.2f} %", f"{sum(r.seconds for r in of_name):.0f}")
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def report(results: Iterable[Result]) -> str:
    """The survivors, how the others were told and by which device, and tables by device, dtype, family, operator."""
    results = sorted(results, key=lambda one: (one.operator, one.family))
    survivors = (
        f"{one.operator}: {one.config} {one.dtype} {one.op}, line {one.line} ({one.key}); {one.detail}\n"
        f"    - {one.before}\n    + {one.after}"
        for one in results
        if one.judged == Judged.SURVIVED
    )
    parts = ["\n".join(("survivors:", *survivors))]
    for judged in (Judged.KILLED, Judged.EQUIVALENT):
        of = [one for one in results if one.judged == judged]
        said = Counter(one.detail.partition(":")[0] + f", {one.device}" for one in of)
        parts.append("\n".join((f"{judged}:", *(f"{number:6}  {how}" for how, number in said.most_common()))))
    return "\n\n".join((*parts, *(table(results, by) for by in ("device", "dtype", "family", "operator"))))


@click.command(cls=Command)
@click.option("--count", default=2500, show_default=True, help="How many mutants to try.")
@click.option("--seed", default=1, show_default=True, help="Which ones.")
@click.option("--workers", default=os.cpu_count() or 1, show_default=True, help="How many at a time.")
@click.option("--families", help="Of these alone, such as gemv,ladder.")
@click.option("--dtypes", help="In these alone, such as f32,c64.")
@click.option("--seconds", type=float, help="End after so many, with what was done: the first ones are a sample too.")
@click.option("--output", type=click.Path(path_type=Path), default=Path("mutants.jsonl"), show_default=True)
@click.option("--resume", is_flag=True, help="Keep what the output holds. Survivors are tried again, last.")
@click.option(
    "--long-products",
    default=LONG_PRODUCTS_IN_ALL,
    show_default=True,
    help="Of calls with long extents that a mutant makes which may cut numbers: more find more, and take longer.",
)
def main(
    count: int, seed: int, workers: int, families: str | None, dtypes: str | None, seconds: float | None,
    output: Path, resume: bool, long_products: float,
) -> None:  # fmt: skip
    """Say what became of the mutants; exit code 1 where fewer than 99 in a hundred were found."""
    start = said = time.monotonic()
    deadline = start + (seconds - REPORT_SECONDS if seconds else 1e9)
    mutants = chosen(subjects(named(families), named(dtypes)), count=count, seed=seed)
    before = stored(output) if resume else {}
    results = {one.key: before[one.key] for one in mutants if one.key in before}
    survivors = [one for one in mutants if one.key in results and results[one.key].judged == Judged.SURVIVED]
    left = [one for one in mutants if one.key not in results] + survivors
    toolchain, done, untold = host_toolchain(), 0, 0
    baselines = Baselines(host_tools(compiled(support_source(), "", toolchain).path, toolchain))
    benches = [Bench(baselines, long_products) for _ in range(workers)]
    click.echo(f"{len(mutants)} mutants, {len(left)} to try, seed {seed}", err=True)
    with (
        output.open("a" if resume else "w") as lines,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache,
    ):
        os.environ["XDG_CACHE_HOME"] = cache  # nobody else can use these binaries
        for done, result in enumerate(judged(left, benches, deadline), start=1):
            if isinstance(result, Result):
                results[result.key] = result
                lines.write(f"{json.dumps(result.json)}\n")
                lines.flush()
            else:
                untold += 1
                click.echo(f"nothing said of {result[0].key}: {result[1][:300]}", err=True)
            if time.monotonic() - said >= PROGRESS_SECONDS:
                said, counts = time.monotonic(), Counter(one.judged for one in results.values())
                in_all = ", ".join(f"{counts[one]} {one.value}" for one in Judged)
                click.echo(f"{said - start:.0f} s: {done} of {len(left)}; in all {in_all}", err=True)
    click.echo(report(results.values()))
    click.echo(
        f"seed {seed}: {len(results)} of {len(mutants)} mutants judged; {done} tried,"
        f" {untold} not to be judged, {workers} workers, {time.monotonic() - start:.0f} s"
    )
    sys.stdout.flush()
    os._exit(0 if score(results.values()) >= 99 else 1)  # threads that still run end with this process
