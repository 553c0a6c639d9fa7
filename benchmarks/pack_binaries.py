"""Write the compiled kernels (cubins) of the trials included in the package, and their digests into the trials.

    python -m benchmarks.pack_binaries tsm2_tune/pretuned/*.jsonl

It needs no GPU, but the nvcc that compiled the measured kernels: an nvcc of the same build produces the same machine
code as on the GPU's machine, where each kernel was fully verified. Run it after `python -m benchmarks.pretuned`, with
all files of trials.
"""

from __future__ import annotations

import io
import lzma
import tarfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import click

from tsm2_tune.commands.errors import Command
from tsm2_tune.errors import InputError
from tsm2_tune.generator.families import parse_config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.source import INDEX_BITS, KernelSource
from tsm2_tune.pretuned import FOLDER
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.compile.elf_digest import machine_code_digest
from tsm2_tune.tuner.compile.nvcc import cuda_toolchain
from tsm2_tune.tuner.compile.pool import cores
from tsm2_tune.tuner.export import cubins
from tsm2_tune.tuner.export.cubins import capability, cubin
from tsm2_tune.tuner.results.merge.serializer import text_of
from tsm2_tune.tuner.results.merge.text_parser import parse_content
from tsm2_tune.tuner.results.merge.union import RUN, Part, RunKey, Tried

ARCHIVE = Path(str(FOLDER / cubins.ARCHIVE))
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 0, "lp": 4, "pb": 4}]  # a GPU instruction has 2**4 bytes


def toolchain_of(text: Path, runs: set[RunKey]) -> Toolchain:
    """Return the nvcc with which all trials of the file were measured. Raise InputError for another nvcc."""
    tools = {tuple(run[RUN.index(name)] for name in ("compute_capability", "toolkit", "flags")) for run in runs}
    toolchain = cuda_toolchain(capability(min(tools)[0]))
    for _, version, flags in tools:
        if (version, flags) != (toolchain.version, toolchain.stated_flags):
            raise InputError(f"{text} was measured with {version} {flags}: install that nvcc")
    return toolchain


def source_of(text: Path, problem: Problem, tried: Tried) -> KernelSource:
    """Return the kernel of a trial. Raise InputError if this version renders another kernel."""
    config = parse_config(tried.values["config"])
    source = render(problem, config) if config is not None else None
    if source is None or source.digest != tried.values["source_digest"]:
        raise InputError(f"{text}: this program makes another kernel of {tried.values['config']}: run rekey first")
    return source


def compiled(source: KernelSource, bits: int, *, toolchain: Toolchain) -> bytes:
    """Return the binary for an index width of 32 or 64 bits. Raise InputError if the kernel does not compile."""
    found = cubin(source, toolchain, bits)
    if isinstance(found, str):
        raise InputError(found)
    return found


def filled(text: Path) -> tuple[str, dict[str, bytes]]:
    """Return the file's text with machine code digests added, and {digest: binary}.

    Only kernels that were fully verified get digests.
    """
    told = parse_content(text, text.read_bytes())
    if told.left_out:
        raise InputError(f"{text}: {len(told.left_out)} trials cannot be used: run benchmarks.rekey first")
    every = [(problem, tried) for (_, problem), part in told.parts.items() for tried in part.trials.values()]
    toolchain = toolchain_of(text, {tried.run for _, tried in every})
    verified = [(one, source_of(text, problem, one)) for problem, one in every if one.values["full_verdict"]]
    jobs = {(source.digest, bits): (source, bits) for _, source in verified for bits in INDEX_BITS}
    with ThreadPoolExecutor(cores()) as pool:
        made = dict(zip(jobs, pool.map(lambda job: compiled(*job, toolchain=toolchain), jobs.values()), strict=True))
    codes = {job: machine_code_digest(binary) for job, binary in made.items()}
    written = text_of((problem, with_codes(part, codes)) for (_, problem), part in told.parts.items())
    return written, {codes[job]: binary for job, binary in made.items()}


def with_codes(part: Part, codes: Mapping[tuple[str, int], str]) -> Part:
    """Return the part with the machine code's digests added to the trials that were fully verified."""
    trials = {}
    for key, tried in part.trials.items():
        own = [codes[tried.values["source_digest"], bits] for bits in INDEX_BITS if tried.values["full_verdict"]]
        trials[key] = replace(tried, values={**tried.values, "verified_code": " ".join(own) or None})
    return replace(part, trials=trials)


@click.command(cls=Command)
@click.argument("texts", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
def main(texts: tuple[Path, ...]) -> None:
    """Add digests to the files of trials FILE..., and write the archive of their binaries."""
    every = {text: filled(text) for text in texts}
    binaries = {code: binary for _, made in every.values() for code, binary in made.items()}
    with lzma.open(ARCHIVE, "w", filters=FILTERS) as stream, tarfile.open(fileobj=stream, mode="w") as archive:
        for code in sorted(binaries, key=lambda code: (len(binaries[code]), code)):
            member = tarfile.TarInfo(code)
            member.size = len(binaries[code])
            archive.addfile(member, io.BytesIO(binaries[code]))
    for text, (content, _) in every.items():
        text.write_text(content, encoding="utf-8")
    click.echo(f"wrote {ARCHIVE}: {len(binaries)} binaries, {ARCHIVE.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
