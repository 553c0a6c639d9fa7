"""The full verification refuses no right kernel: one of each family, dtype and way through its templates.

    python -m tests.right_in_full --device 0 --part 1/4

On the host that is half an hour of one core, on an H200 some seconds a kernel. Each part is a process of its own:
run as many beside one another as there are cores.
"""

from __future__ import annotations

import time

import click

from benchmarks.versus_cublas import part_of
from tests.conftest import compiled
from tests.mutation.command import named
from tests.mutation.subjects import Subject, subjects
from tsm2_tune.commands.errors import Command
from tsm2_tune.generator.render import support_source
from tsm2_tune.generator.source import INDEX_BITS, index_defines
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.target import find_target
from tsm2_tune.tuner.results.trial import Outcome
from tsm2_tune.tuner.verify.bound_kernel import Entry
from tsm2_tune.tuner.verify.winner_calls import EMULATED, ON_GPU, full_verification
from tsm2_tune.tuner.worker.client import Worker

LIMIT_SECONDS = 300.0


def entry_of(subject: Subject, bits: int, toolchain: Toolchain) -> Entry:
    source = subject.source
    binary = compiled(source.text, source.kernel, toolchain, index_defines(bits))
    return Entry(binary.path, source.kernel, source.launch)


@click.command(cls=Command)
@click.option("--device", default="cpu", show_default=True, help="A CUDA ordinal, or cpu.")
@click.option("--part", default="1/1", show_default=True, help="Such as 2/8: every eighth, from the second on.")
@click.option("--families", help="Of these alone, such as gemv,ladder.")
def main(device: str, part: str, families: str | None) -> None:
    """Say what is refused; exit code 1 where anything is."""
    first, step = part_of(part)
    target = find_target(device)
    support = compiled(support_source(), "", target.toolchain).path
    worker = Worker(device, lambda: support, limit_seconds=LIMIT_SECONDS)
    found = [subject for of_place in subjects(named(families)).values() for subject in of_place][first - 1 :: step]
    refused = 0
    for subject in found:
        entries = tuple((bits, entry_of(subject, bits, target.toolchain)) for bits in INDEX_BITS)
        watched = entry_of(subject, INDEX_BITS[0], target.watching) if target.watching else None
        extent = EMULATED if target.is_host else ON_GPU
        request = full_verification(subject.problem, subject.config, entries, extent, seed=11, watched=watched)
        start = time.monotonic()
        result = worker.verify_in_full(request)
        seconds = time.monotonic() - start
        is_right = result.outcome is Outcome.OK and result.verdict is not None
        refused += not is_right
        said = result.verdict.detail if is_right and result.verdict else f"REFUSED: {result.outcome}: {result.detail}"
        click.echo(f"{subject.name}, {seconds:.1f} s: {said}")
    worker.close()
    click.echo(f"{len(found)} kernels, {refused} refused")
    raise SystemExit(1 if refused else 0)


if __name__ == "__main__":
    main()
