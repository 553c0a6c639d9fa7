"""Change rendered kernels in thousands of small ways, and count what verification says of them."""

from __future__ import annotations

import json
import os
import queue
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
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

REPORTED_EVERY = 50  # mutants


def host_tools(support_code: bytes, toolchain: Toolchain) -> Tools:
    return Tools(support_code, quick_toolchain(toolchain), quick_toolchain(toolchain, "-O2"), watching(toolchain))


def judged(mutants: list[Mutant], benches: list[Bench]) -> Iterator[Result | None]:
    """Yield the result of each mutant, in order; None if nothing can be said of it."""
    free = queue.SimpleQueue[Bench]()
    for bench in benches:
        free.put(bench)

    def judge(mutant: Mutant) -> Result | None:
        bench = free.get()
        try:
            return bench.judge(mutant)
        except (SubjectIsWrong, MachineFailed, TuneError) as why:
            click.echo(f"nothing said of {mutant.key}: {str(why)[:300]}", err=True)
            return None
        finally:
            free.put(bench)

    with ThreadPoolExecutor(len(benches)) as pool:  # each thread waits for a process of its own
        yield from pool.map(judge, mutants)


def score(results: Iterable[Result]) -> float:
    """Killed mutants in a hundred of those that could be."""
    counts = Counter(one.judged for one in results)
    could = counts[Judged.KILLED] + counts[Judged.SURVIVED]
    return 100 * counts[Judged.KILLED] / could if could else 100.0


def table(results: Iterable[Result]) -> str:
    """Return the number of mutants and of each result, by operator."""
    results = list(results)
    rows = [("operator", "mutants", *(one.value for one in Judged), "score", "seconds")]
    for name in (*sorted({one.operator for one in results}), "all"):
        of_name = [one for one in results if name in (one.operator, "all")]
        counts = Counter(one.judged for one in of_name)
        cells = (str(counts[column]) for column in Judged)
        seconds = sum(one.seconds for one in of_name)
        rows.append((name, str(len(of_name)), *cells, f"{score(of_name):.2f} %", f"{seconds:.0f}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


@click.command(cls=Command)
@click.option("--count", default=2500, show_default=True, help="How many mutants to try.")
@click.option("--seed", default=1, show_default=True, help="Which ones.")
@click.option("--workers", default=os.cpu_count() or 1, show_default=True, help="How many at a time.")
@click.option("--families", default="", help="Of these alone, such as gemv,ladder.")
@click.option("--output", type=click.Path(path_type=Path), default=Path("mutants.jsonl"), show_default=True)
@click.option(
    "--long-products",
    default=LONG_PRODUCTS_IN_ALL,
    show_default=True,
    help="Of calls with long extents that a mutant makes which may cut numbers: more find more, and take longer.",
)
def main(count: int, seed: int, workers: int, families: str, output: Path, long_products: float) -> None:
    """Say what became of the mutants; exit code 1 where fewer than 99 in a hundred were found."""
    mutants = chosen(subjects(tuple(filter(None, families.split(",")))), count=count, seed=seed)
    toolchain, results = host_toolchain(), list[Result]()
    baselines = Baselines(host_tools(compiled(support_source(), "", toolchain).code, toolchain))
    benches = [Bench(baselines, long_products) for _ in range(workers)]
    with output.open("w") as lines, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        os.environ["XDG_CACHE_HOME"] = cache  # nobody else can use these binaries
        for done, result in enumerate(judged(mutants, benches), start=1):
            if result is not None:
                results.append(result)
                lines.write(f"{json.dumps(asdict(result))}\n")
                lines.flush()
            if done % REPORTED_EVERY == 0:
                counts = Counter(one.judged for one in results)
                of_each = ", ".join(f"{counts[one]} {one.value}" for one in Judged)
                click.echo(f"{done} of {len(mutants)}: {of_each}", err=True)
    for bench in benches:
        bench.close()
    for one in results:
        if one.judged == Judged.SURVIVED:
            click.echo(f"survived: {one.operator}: {one.config} {one.dtype} {one.op}, line {one.line} ({one.key})")
            click.echo(f"    - {one.before}\n    + {one.after}\n    {one.detail}")
    click.echo(f"{table(results)}\nseed {seed}: {len(results)} of {len(mutants)} mutants judged")
    sys.exit(0 if score(results) >= 99 else 1)


if __name__ == "__main__":
    main()
