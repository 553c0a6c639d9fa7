"""Change rendered kernels in thousands of small ways, and count what verification says of them on the host."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import click

from tests.conftest import compiled
from tests.mutation.report import score, stored, survivors, table
from tests.mutation.sample import Mutant, chosen
from tests.mutation.subjects import subjects
from tests.mutation.trial import Bench, Judged, Result
from tests.quick import quick_toolchain
from tsm2_tune.generator.render import support_source
from tsm2_tune.tuner.compiler import Toolchain
from tsm2_tune.tuner.host.toolchain import host_toolchain
from tsm2_tune.usage import Command

TOGETHER = 8  # mutants of one subject that one worker tries


def named(text: str | None) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def groups(mutants: list[Mutant]) -> list[list[Mutant]]:
    """The mutants by subject, a few at a time."""
    by_subject = defaultdict[str, list[Mutant]](list)
    for mutant in mutants:
        by_subject[mutant.subject.name].append(mutant)
    return [found[at : at + TOGETHER] for found in by_subject.values() for at in range(0, len(found), TOGETHER)]


def optimised(toolchain: Toolchain) -> Toolchain:
    return replace(toolchain, flags=tuple("-O2" if flag == "-O3" else flag for flag in toolchain.flags))


def judged(mutants: list[Mutant], workers: int) -> Iterator[Result]:
    """What becomes of each, in the order in which they end."""
    toolchain = host_toolchain()
    support, quick = compiled(support_source(), "", toolchain).path, quick_toolchain(toolchain)
    done, results = threading.Condition(), list[Result]()

    def run(group: list[Mutant]) -> None:
        bench = Bench(support, quick, optimised(toolchain))
        try:
            for mutant in group:
                result = bench.judge(mutant)
                with done:
                    results.append(result)
                    done.notify()
        finally:
            bench.close()

    with tempfile.TemporaryDirectory() as cache, ThreadPoolExecutor(workers) as pool:
        os.environ["XDG_CACHE_HOME"] = cache  # what is compiled here is of no use to anybody
        futures = [pool.submit(run, group) for group in groups(mutants)]
        for _ in mutants:
            with done:
                while not results:
                    done.wait(1.0)
                    for future in futures:
                        if future.done():
                            future.result()
                result = results.pop()
            yield result


@click.command(cls=Command)
@click.option("--count", default=2500, show_default=True, help="How many mutants to try.")
@click.option("--seed", default=1, show_default=True, help="Which ones.")
@click.option("--workers", default=os.cpu_count() or 1, show_default=True, help="How many at a time.")
@click.option("--families", help="Of these alone, such as gemv,ladder.")
@click.option("--dtypes", help="In these alone, such as f32,c64.")
@click.option("--output", type=click.Path(path_type=Path), default=Path("mutants.jsonl"), show_default=True)
@click.option("--resume", is_flag=True, help="Keep what the output holds, but for survivors: these are tried again.")
def main(
    count: int, seed: int, workers: int, families: str | None, dtypes: str | None, output: Path, resume: bool
) -> None:
    """Say what became of the mutants; exit code 1 where fewer than 99 in a hundred were found."""
    start = time.monotonic()
    mutants = chosen(subjects(named(families), named(dtypes)), count=count, seed=seed)
    before = {key: one for key, one in stored(output).items() if resume and one.judged != Judged.SURVIVED}
    results = [before[one.key] for one in mutants if one.key in before]
    output.write_text("".join(f"{json.dumps(one.json)}\n" for one in results))
    left = [one for one in mutants if one.key not in before]
    click.echo(f"{len(mutants)} mutants, {len(left)} to try, seed {seed}", err=True)
    with output.open("a") as lines:
        for number, result in enumerate(judged(left, workers), start=1):
            results.append(result)
            lines.write(f"{json.dumps(result.json)}\n")
            lines.flush()
            if result.judged == Judged.SURVIVED:
                click.echo(f"{number}: {result.config} {result.dtype}: {result.before} -> {result.after}", err=True)
    click.echo(survivors(results))
    click.echo(table(results, "family"))
    click.echo(table(results))
    click.echo(f"seed {seed}, {workers} workers, {time.monotonic() - start:.0f} s")
    raise SystemExit(0 if score(results) >= 99 else 1)
