"""Update the digests of included trials whose kernels changed in source but not in machine code.

    python -m benchmarks.rekey --before COMMIT

A trial in `tsm2_tune/pretuned/` is valid only as long as its digest matches its kernel's source. After a change of
templates or headers, this command renders each trial's kernel with COMMIT and with this version, and compiles both
for an H200; it needs nvcc and no GPU. If instructions, registers, spills, shared memory and launch are equal, the
trial gets the digest of the new source. Configurations are written in this version's notation. Other trials stay
unchanged and are printed with the reason, and the exit status is 1.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.gate import HOPPER, Subject, compiled, difference, source_of
from tsm2_tune import pretuned
from tsm2_tune.commands.errors import Command
from tsm2_tune.errors import InputError
from tsm2_tune.generator.families import parse_config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.compile.nvcc import cuda_toolchain
from tsm2_tune.tuner.compile.pool import cores
from tsm2_tune.tuner.results.merge.serializer import LINES

ROOT = Path(__file__).parents[1]
MEMBERS = ("trial", *LINES["trial"])
PROBLEM, CONFIG, SOURCE = (MEMBERS.index(name) for name in ("problem", "config", "source"))
# Python program run with another version: for each input line, it prints a kernel's source, or null.
RENDERING = """
import dataclasses, json, sys
from tsm2_tune.generator.families import parse_config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
for line in sys.stdin:
    spelt, problem = json.loads(line)
    config = parse_config(spelt)
    print(json.dumps(config and dataclasses.asdict(render(Problem.parse(problem), config))))
"""


@dataclass(frozen=True, slots=True)
class Rekeyed:
    """A trial's new digest, or the reason to keep the old digest."""

    digest: str | None
    reason: str = ""


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Yield a folder with the files of the commit. Raise InputError for an unknown commit."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "before"
        added = subprocess.run(
            ["git", "worktree", "add", "--detach", str(tree), commit], cwd=ROOT, capture_output=True, text=True
        )
        if added.returncode:
            raise InputError(f"git has no {commit}: {added.stderr.strip()}")
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)


def rendered_in(tree: Path, subjects: list[Subject]) -> dict[Subject, KernelSource | None]:
    """Return each kernel's source, rendered by the version in a folder. None if that version lacks the kernel."""
    lines = "".join(f"{json.dumps(one)}\n" for one in subjects)
    said = subprocess.run(
        [sys.executable, "-c", RENDERING], cwd=tree, env={"PYTHONPATH": str(tree)}, input=lines, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    found = map(json.loads, said.stdout.splitlines())
    return {subject: one and source_of(one) for subject, one in zip(subjects, found, strict=True)}


def rendered_now(subject: Subject) -> KernelSource | None:
    spelt, problem = subject
    config = parse_config(spelt)
    return None if config is None else render(Problem.parse(problem), config)


def rekeyed(known: str, before: KernelSource | None, now: KernelSource | None, toolchain: Toolchain) -> Rekeyed:
    """Return the new digest of a trial with this digest, from its kernel's source before and after."""
    if now is None:
        return Rekeyed(None, "this version makes no such kernel")
    if now.digest.startswith(known):
        return Rekeyed(known)
    if before is None or not before.digest.startswith(known):
        return Rekeyed(None, "what was measured is not what that commit makes")
    if before.launch != now.launch or before.defines != now.defines:
        return Rekeyed(None, "it is started in another way")
    was, becomes = compiled(before, toolchain), compiled(now, toolchain)
    if was != becomes:
        return Rekeyed(None, difference(was, becomes))
    return Rekeyed(now.digest[: len(known)])


def all_rekeyed(
    trials: Mapping[Subject, str], before: Mapping[Subject, KernelSource | None]
) -> dict[Subject, Rekeyed]:
    """Return the new digest of each trial.

    `trials` contains the old digests, and `before` the sources that COMMIT rendered.
    """
    toolchain = cuda_toolchain(HOPPER)

    def of(subject: Subject) -> Rekeyed:
        return rekeyed(trials[subject], before[subject], rendered_now(subject), toolchain)

    with ThreadPoolExecutor(cores()) as compilers:
        return dict(zip(trials, compilers.map(of, trials), strict=True))


def trials_in(text: str) -> dict[Subject, str]:
    """Return {(configuration, problem): digest} of the trials in a file."""
    lines = [json.loads(line) for line in text.splitlines()[1:]]
    return {(line[CONFIG], line[PROBLEM]): line[SOURCE] for line in lines if line[0] == "trial"}


def with_digests(text: str, becomes: Mapping[Subject, Rekeyed]) -> str:
    """Return the file's text with new digests of the trials that have one."""

    def changed(line: str) -> str:
        members = json.loads(line)
        if members[0] != "trial":
            return line
        config = parse_config(members[CONFIG])
        found = becomes[members[CONFIG], members[PROBLEM]].digest or members[SOURCE]
        spelt = members[CONFIG] if config is None else config.text
        line = line.replace(f'"{members[CONFIG]}"', f'"{spelt}"', 1)
        return line.replace(f'"{members[SOURCE]}"', f'"{found}"', 1)

    head, *lines = text.splitlines()
    return "".join(f"{line}\n" for line in (head, *map(changed, lines)))


@click.command(cls=Command)
@click.option("--before", required=True, metavar="COMMIT", help="Whose kernels the trials are of.")
@click.pass_context
def main(ctx: click.Context, before: str) -> None:
    """Write the new digests to the files of trials that the package includes."""
    paths = sorted(Path(str(pretuned.FOLDER)).glob(f"*{pretuned.SUFFIX}"))
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    left = 0
    with checked_out(before) as tree:
        subjects = sorted({subject for text in texts.values() for subject in trials_in(text)})
        old = rendered_in(tree, subjects)
    for path, text in texts.items():
        trials = trials_in(text)
        becomes = all_rekeyed(trials, old)
        path.write_text(with_digests(text, becomes), encoding="utf-8")
        for (spelt, problem), one in becomes.items():
            if one.digest is None:
                click.echo(f"{path.stem}: {spelt} {problem}: {one.reason}")
        kinds = Counter("left" if one.digest is None else one.digest == trials[key] for key, one in becomes.items())
        click.echo(f"{path.stem}: {kinds[False]} trials rekeyed, {kinds[True]} as they were, {kinds['left']} left")
        left += kinds["left"]
    ctx.exit(left > 0)


if __name__ == "__main__":
    main()
