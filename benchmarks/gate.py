"""Check that a change of templates keeps the kernels' machine code, registers, spills and shared memory.

    python -m benchmarks.gate record --output kernels.jsonl.xz     # before the change
    python -m benchmarks.gate compare kernels.jsonl.xz             # after it; exit status 1 if a kernel has changed
    python -m benchmarks.gate compare kernels.jsonl.xz --family stream_a_fma,staged

The kernels are the fastest ones in the result files of an H200, and those of `tests/right_on_host.txt`, which cover
every line of every template with each element type. They are compiled for an H200: this needs nvcc, but no GPU.
Names and comments in the source are not compared. benchmarks/results/h200-kernels.jsonl.xz contains the kernels of
version 0.1.0, compiled with nvcc 13.0.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from elftools.elf.elffile import ELFFile

from tsm2_tune.commands.errors import Command, Group
from tsm2_tune.errors import InputError
from tsm2_tune.generator.config import Launch, family_name_in
from tsm2_tune.generator.families import family_named, parse_config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.tuner.compile.compiler import Toolchain, compile_text
from tsm2_tune.tuner.compile.nvcc import cuda_toolchain
from tsm2_tune.tuner.compile.pool import cores
from tsm2_tune.tuner.results.trial import Binary

HOPPER = (9, 0)
LIMIT_SECONDS = 300.0  # time limit for compiling one kernel
RESULTS = Path(__file__).parent / "results"
WINNERS = ("h200-versus-cublas.json", "h200-general.json", "h200-minplus.json")
EVERY_LINE = Path(__file__).parents[1] / "tests" / "right_on_host.txt"
REGISTER_COUNT = struct.pack("<BBH", 4, 0x2F, 8)  # head of an entry of .nv.info: then follow a symbol and the number
Subject = tuple[str, str]  # the texts of a configuration and of a problem


@dataclass(frozen=True, slots=True)
class Compiled:
    """The properties of a compiled kernel that are compared."""

    code: str  # SHA-256 digest of the machine code
    registers: int  # per thread
    spill_bytes: int
    smem_bytes: int  # static shared memory per block
    launched_bytes: int  # dynamic shared memory per block, set at launch


@dataclass(frozen=True, slots=True)
class Recorded:
    """A kernel's configuration, problem, source and compiled properties: one line of the file."""

    configuration: str
    problem: str
    compiled: Compiled
    source: KernelSource  # to time the kernel again if a later version compiles to other code

    @classmethod
    def of_line(cls, line: str) -> Recorded:
        """Return the kernel of one line. Raise KeyError, TypeError or ValueError if the line is invalid."""
        values = json.loads(line)
        compiled, source = Compiled(**values["compiled"]), source_of(values["source"])
        return cls(values["configuration"], values["problem"], compiled, source)


def source_of(values: dict[str, Any]) -> KernelSource:
    """Return the kernel source that JSON values describe."""
    fields = values | {"launch": Launch(**values["launch"]), "defines": tuple(values["defines"])}
    return KernelSource(**fields)


def subjects() -> list[Subject]:
    """Return the kernels to record: one for each configuration, element type and op, since shapes share the code."""
    kernels = list[tuple[str, Problem]]()
    for name in WINNERS:
        for row in json.loads((RESULTS / name).read_text(encoding="utf-8"))["rows"]:
            kernels.append((row["configuration"], Problem(row["m"], row["n"], row["k"], row["dtype"], row["op"])))
    for line in EVERY_LINE.read_text(encoding="utf-8").splitlines():
        configuration, problem = line.split()
        kernels.append((configuration, Problem.parse(problem)))
    return list({(text, problem.dtype_name, problem.op): (text, problem.text) for text, problem in kernels}.values())


def of_binary(binary: Binary, launched_bytes: int) -> Compiled:
    """Return the compared properties of a cubin, which contains one kernel. `launched_bytes` is set at launch."""
    with io.BytesIO(binary.code) as file:
        elf = ELFFile(file)
        sections = {section.name: section for section in elf.iter_sections()}
        (text,) = (section for name, section in sections.items() if name.startswith(".text."))
        kernel = text.name.removeprefix(".text.")
        shared = sections.get(f".nv.shared.{kernel}")
        info = sections[".nv.info"].data()
        return Compiled(
            hashlib.sha256(text.data()).hexdigest(),
            max(_registers(info)),
            binary.spill_bytes,
            0 if shared is None else shared.data_size,
            launched_bytes,
        )


def _registers(info: bytes) -> Iterator[int]:
    """Yield the number of registers of each function, from the content of the ELF section .nv.info."""
    at = info.find(REGISTER_COUNT)
    while at >= 0:
        yield struct.unpack_from("<I", info, at + len(REGISTER_COUNT) + 4)[0]
        at = info.find(REGISTER_COUNT, at + 1)


def recorded(subject: Subject, toolchain: Toolchain) -> Recorded | None:
    """Compile a kernel with this version's templates, and return its properties.

    Return None if this version has no such configuration. Raise InputError if the kernel does not compile.
    """
    configuration, problem = subject
    config = parse_config(configuration)
    if config is None:
        return None
    source = render(Problem.parse(problem), config)
    return Recorded(configuration, problem, compiled(source, toolchain), source)


def compiled(source: KernelSource, toolchain: Toolchain) -> Compiled:
    """Return the compared properties of a kernel. Raise InputError if it does not compile."""
    binary = compile_text(
        source.text, kernel=source.kernel, defines=source.defines, toolchain=toolchain, limit_seconds=LIMIT_SECONDS
    )
    if not isinstance(binary, Binary):
        raise InputError(f"{source.kernel} does not compile: {binary.detail}")
    return of_binary(binary, source.launch.smem_bytes)


def compiler() -> list[str]:
    """Return nvcc's version and flags. Machine code can only be compared if they are equal."""
    toolchain = cuda_toolchain(HOPPER)
    return [toolchain.version, *toolchain.flags]


def all_recorded(kernels: list[Subject]) -> Iterator[Recorded | None]:
    """Compile the kernels in parallel, and yield each one's properties in the given order; None as in `recorded`."""
    toolchain = cuda_toolchain(HOPPER)
    with ThreadPoolExecutor(cores()) as compilers:
        yield from compilers.map(lambda kernel: recorded(kernel, toolchain), kernels)


@click.group(cls=Group)
def main() -> None:
    """Compare the machine code of kernels with that of an earlier version."""


@main.command(cls=Command)
@click.option("--output", required=True, metavar="FILE", help="The file to write: JSON lines, compressed by xz.")
@click.option("--only", default="", metavar="TEXT", help="Only kernels whose configuration begins with this text.")
def record(output: str, only: str) -> None:
    """Compile the kernels, and write their properties to a file."""
    kernels = [(configuration, problem) for configuration, problem in subjects() if configuration.startswith(only)]
    with lzma.open(output, "wt", encoding="utf-8") as file:
        file.write(json.dumps(compiler()) + "\n")
        for kernel in filter(None, all_recorded(kernels)):
            file.write(json.dumps(asdict(kernel)) + "\n")
    click.echo(f"wrote {output}: {len(kernels)} kernels")


@main.command(cls=Command)
@click.argument("before", metavar="FILE")
@click.option(
    "--family", default="", metavar="NAMES", help="Only kernels of these families, such as stream_a_fma,staged."
)
@click.pass_context
def compare(ctx: click.Context, before: str, family: str) -> None:
    """Compile the kernels of FILE with this version, and print which have changed.

    The exit status is 1 if a kernel has changed or this version lacks it.
    """
    with lzma.open(before, "rt", encoding="utf-8") as file:
        tools = json.loads(next(file))
        if tools != compiler():
            here = " ".join(compiler())
            raise InputError(f"{before} was compiled by {' '.join(tools)}, here is {here}: install that")
        old = [Recorded.of_line(line) for line in file]
    if family:
        for name in family.split(","):
            family_named(name)
        old = [kernel for kernel in old if family_name_in(kernel.configuration) in family.split(",")]
    same = texts = 0
    new = all_recorded([(kernel.configuration, kernel.problem) for kernel in old])
    for earlier, now in zip(old, new, strict=True):
        name = f"{earlier.configuration} {earlier.problem}"
        if now is None:
            click.echo(f"{name}: gone")
        elif now.compiled == earlier.compiled:
            same, texts = same + 1, texts + (now.source.text == earlier.source.text)
        else:
            click.echo(f"{name}: {difference(earlier.compiled, now.compiled)}")
    click.echo(f"{same} of {len(old)} kernels are the same, {texts} of them by the letter")
    ctx.exit(same < len(old))


def difference(earlier: Compiled, now: Compiled) -> str:
    """Return a text that lists the changed properties, or "other instructions" if only the code has changed."""
    old, new = asdict(earlier), asdict(now)
    changes = [f"{name} {old[name]} -> {new[name]}" for name in old if name != "code" and old[name] != new[name]]
    return ", ".join(changes) or "other instructions"


if __name__ == "__main__":
    main()
