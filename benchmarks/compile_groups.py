"""Measure the compile time saved by several kernels per file, and how many tried kernels have the same code.

    python -m benchmarks.compile_groups --output benchmarks/results/compile-groups.json

For each problem, it compiles the texts that a search on an H200 would try first, one per file and in groups. In a
group each kernel has its own namespace. It needs nvcc, but no GPU.
"""

from __future__ import annotations

import json
import resource
import subprocess
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import click
from elftools.elf.elffile import ELFFile

from tsm2_tune.commands.errors import Command
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.generator.space.space import search_space
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.compile.nvcc import cuda_toolchain
from tsm2_tune.tuner.search.strategies import by_model

PROBLEMS = "4096x8x4096:f32,10000000x8x8:f32,8x8x10000000:f64:tn,16x16x1000000:f32:tn"
HOPPER = (9, 0)
LIMIT_SECONDS = 600.0
SIZES = (2, 4, 8)


def compiled(text: str, defines: Sequence[str], toolchain: Toolchain) -> tuple[float, dict[str, bytes]]:
    """Compile a text. Return the processor seconds, and {ELF section name: machine code}."""
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder, "kernel.cu"), Path(folder, "kernel.cubin")
        source.write_text(text)
        given = [*(f"-D{one}" for one in defines), *(f"-I{one}" for one in toolchain.includes)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [toolchain.compiler, *toolchain.flags, *given, "-o", str(output), str(source)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if ended.returncode != 0:
            raise click.ClickException(ended.stderr)
        with output.open("rb") as file:
            code = {one.name: one.data() for one in ELFFile(file).iter_sections() if one.name.startswith(".text.")}
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, code


def together(sources: Sequence[KernelSource]) -> str:
    """Return one text that contains several kernels, each with its own name."""
    texts = []
    for number, one in enumerate(sources):
        renamed = f"#define {one.kernel} {one.kernel}_{number}\n{one.text}\n#undef {one.kernel}\n"
        texts.append(f"namespace text_{number} {{\n{renamed}}}\n")
    return "".join(texts)


def row(problem: Problem, texts: int, candidates: int, toolchain: Toolchain) -> dict[str, Any]:
    """Return the measured row of one problem."""
    tried = islice(iter(by_model(search_space(problem, PROFILES["h200"]), 0).ask, None), candidates)
    sources = [render(problem, one.config) for one in tried]
    by_text = {one.digest: one for one in sources}
    alone = {digest: compiled(one.text, one.defines, toolchain) for digest, one in by_text.items()}
    codes = {digest: next(iter(code.values())) for digest, (_, code) in alone.items()}
    first = list(by_text.values())[:texts]
    seconds = sum(alone[one.digest][0] for one in first)
    groups = {}
    for size in SIZES:
        spent, same = 0.0, 0
        for group in (first[at : at + size] for at in range(0, len(first), size)):
            took, found = compiled(together(group), group[0].defines, toolchain)
            spent += took
            same += sum(
                found[f".text.{one.kernel}_{number}"] == codes[one.digest] for number, one in enumerate(group)
            )
        groups[str(size)] = {"over_alone": spent / seconds, "same_machine_code": same}
    return {
        "problem": problem.text,
        "texts": len(first),
        "processor_seconds_alone": seconds,
        "groups": groups,
        "candidates": len(sources),
        "texts_of_candidates": len(by_text),
        "distinct_kernels": len({(codes[one.digest], one.launch) for one in sources}),
    }


@click.command(cls=Command)
@click.option("--problems", default=PROBLEMS, show_default=True, help="Separated by commas.")
@click.option("--texts", type=click.IntRange(1), default=16, show_default=True, help="To compile in groups.")
@click.option("--candidates", type=click.IntRange(1), default=60, show_default=True, help="To compare.")
@click.option("--output", required=True, type=click.Path(dir_okay=False, path_type=Path))
def main(problems: str, texts: int, candidates: int, output: Path) -> None:
    """Compile kernels alone and in groups."""
    toolchain, rows = cuda_toolchain(HOPPER), []
    for text in problems.split(","):
        rows.append(row(Problem.parse(text), texts, candidates, toolchain))
        click.echo(json.dumps(rows[-1]))
    facts = {
        "command": "python -m benchmarks.compile_groups",
        "date": datetime.now(UTC).date().isoformat(),
        "toolkit": toolchain.version,
    }
    output.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
