"""Check that a change of templates keeps kernels' machine code, registers, spills and shared memory.

    python -m benchmarks.gate record --output kernels.jsonl.xz     # with the version before
    python -m benchmarks.gate compare kernels.jsonl.xz            # with the one after: status 1 where any differs
    python -m benchmarks.gate compare kernels.jsonl.xz --family stream_a_fma,staged

The kernels are the winners that the result files of an H200 have, and those of `tests/right_on_host.txt`, in which
every line of every template is in each of its types. They are compiled for an H200, which needs nvcc and no GPU.
Names and comments are not compared, so that they may change; a configuration is looked up as it was spelt then.
benchmarks/results/h200-kernels.jsonl.xz has those of version 0.1.0, by nvcc 13.0.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from elftools.elf.elffile import ELFFile

from tsm2_tune.commands.errors import Command
from tsm2_tune.errors import InputError
from tsm2_tune.generator.config import Launch, family_name_in
from tsm2_tune.generator.families import family_named, parse_config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.tuner.compile.compiler import Toolchain, compile_text
from tsm2_tune.tuner.compile.nvcc import cuda_toolchain
from tsm2_tune.tuner.results.trial import Binary
from tsm2_tune.tuner.search.loop import cores

HOPPER = (9, 0)
LIMIT_SECONDS = 300.0  # limit of a compiler
RESULTS = Path(__file__).parent / "results"
WINNERS = ("h200-versus-cublas.json", "h200-general.json", "h200-minplus.json")
EVERY_LINE = Path(__file__).parents[1] / "tests" / "right_on_host.txt"
REGISTER_COUNT = struct.pack("<BBH", 4, 0x2F, 8)  # entry of .nv.info, before a symbol and the number
Subject = tuple[str, str]  # a configuration and a problem, as they are spelt


@dataclass(frozen=True, slots=True)
class Compiled:
    """The compared properties of a compiled kernel."""

    code: str  # digest of its instructions
    registers: int
    spill_bytes: int
    smem_bytes: int  # that its text asks for
    launched_bytes: int  # shared memory that its launch asks for


@dataclass(frozen=True, slots=True)
class Recorded:
    """A kernel, as a line of the file."""

    configuration: str
    problem: str
    compiled: Compiled
    source: KernelSource  # for a comparison of times, where another one differs

    @classmethod
    def of_line(cls, line: str) -> Recorded:
        """KeyError, TypeError or ValueError for a line that is none."""
        values = json.loads(line)
        source = values["source"]
        made = source | {"launch": Launch(**source["launch"]), "defines": tuple(source["defines"])}
        return cls(values["configuration"], values["problem"], Compiled(**values["compiled"]), KernelSource(**made))


def subjects() -> list[Subject]:
    """The kernels to record: one of each configuration, type and op, as a kernel serves every shape."""
    named = list[tuple[str, Problem]]()
    for name in WINNERS:
        for row in json.loads((RESULTS / name).read_text(encoding="utf-8"))["rows"]:
            named.append((row["configuration"], Problem(row["m"], row["n"], row["k"], row["dtype"], row["op"])))
    for line in EVERY_LINE.read_text(encoding="utf-8").splitlines():
        spelt, problem = line.split()
        named.append((spelt, Problem.parse(problem)))
    every = {(spelt, problem.dtype_name, problem.op): (spelt, problem.text) for spelt, problem in named}
    return list(every.values())


def of_binary(binary: Binary, launched_bytes: int) -> Compiled:
    """Return the properties of the cubin's kernel."""
    with open(binary.path, "rb") as file:
        elf = ELFFile(file)
        sections = {section.name: section for section in elf.iter_sections()}
        (text,) = (one for name, one in sections.items() if name.startswith(".text."))
        own = text.name.removeprefix(".text.")
        shared = sections.get(f".nv.shared.{own}")
        info = sections[".nv.info"].data()
        return Compiled(
            hashlib.sha256(text.data()).hexdigest(),
            max(_registers(info)),
            binary.spill_bytes,
            0 if shared is None else shared.data_size,
            launched_bytes,
        )


def _registers(info: bytes) -> Iterator[int]:
    """The numbers of registers that .nv.info tells, of each function."""
    at = info.find(REGISTER_COUNT)
    while at >= 0:
        yield struct.unpack_from("<I", info, at + len(REGISTER_COUNT) + 4)[0]
        at = info.find(REGISTER_COUNT, at + 1)


def recorded(subject: Subject, toolchain: Toolchain) -> Recorded | None:
    """The kernel as this version makes it; None where it makes none. InputError where it does not compile."""
    spelt, problem = subject
    config = parse_config(spelt)
    if config is None:
        return None
    source = render(Problem.parse(problem), config)
    binary = compile_text(
        source.text, kernel=source.kernel, defines=source.defines, toolchain=toolchain, limit_seconds=LIMIT_SECONDS
    )
    if not isinstance(binary, Binary):
        raise InputError(f"{spelt} for {problem} does not compile: {binary.detail}")
    return Recorded(spelt, problem, of_binary(binary, source.launch.smem_bytes), source)


def compiler() -> list[str]:
    """Its version and flags: another one makes other code."""
    toolchain = cuda_toolchain(HOPPER)
    return [toolchain.version, *toolchain.flags]


def all_recorded(of: list[Subject]) -> Iterator[Recorded | None]:
    """Each of these, in their order."""
    toolchain = cuda_toolchain(HOPPER)
    with ThreadPoolExecutor(cores()) as compilers:
        yield from compilers.map(lambda one: recorded(one, toolchain), of)


@click.group(cls=click.Group)
def main() -> None:
    """Compare kernels with those of another version."""


@main.command(cls=Command)
@click.option("--output", required=True, metavar="FILE", help="The file to write, xz of a line of JSON a kernel.")
@click.option("--only", default="", metavar="TEXT", help="Only kernels whose configuration begins so.")
def record(output: str, only: str) -> None:
    """Compile the kernels, and write down what becomes of them."""
    of = [one for one in subjects() if one[0].startswith(only)]
    with lzma.open(output, "wt", encoding="utf-8") as file:
        file.write(json.dumps(compiler()) + "\n")
        for one in filter(None, all_recorded(of)):
            file.write(json.dumps(asdict(one)) + "\n")
    click.echo(f"wrote {output}: {len(of)} kernels")


@main.command(cls=Command)
@click.argument("before", metavar="FILE")
@click.option(
    "--family", default="", metavar="NAMES", help="Only kernels of these families, such as stream_a_fma,staged."
)
@click.pass_context
def compare(ctx: click.Context, before: str, family: str) -> None:
    """Compile the kernels of FILE anew, and tell which are others."""
    with lzma.open(before, "rt", encoding="utf-8") as file:
        by = json.loads(next(file))
        if by != compiler():
            raise InputError(f"{before} was compiled by {' '.join(by)}, here is {' '.join(compiler())}: install that")
        old = [Recorded.of_line(line) for line in file]
    if family:
        for name in family.split(","):
            family_named(name)
        old = [one for one in old if family_name_in(one.configuration) in family.split(",")]
    same = texts = 0
    for was, now in zip(old, all_recorded([(one.configuration, one.problem) for one in old]), strict=True):
        name = f"{was.configuration} {was.problem}"
        if now is None:
            click.echo(f"{name}: gone")
        elif now.compiled == was.compiled:
            same, texts = same + 1, texts + (now.source.text == was.source.text)
        else:
            click.echo(f"{name}: {difference(was.compiled, now.compiled)}")
    click.echo(f"{same} of {len(old)} kernels are the same, {texts} of them by the letter")
    ctx.exit(same < len(old))


def difference(was: Compiled, now: Compiled) -> str:
    """Return the fields in which both differ."""
    names = (name for name in asdict(was) if name != "code" and getattr(was, name) != getattr(now, name))
    told = [f"{name} {getattr(was, name)} -> {getattr(now, name)}" for name in names]
    return ", ".join(told) or "other instructions"


if __name__ == "__main__":
    main()
