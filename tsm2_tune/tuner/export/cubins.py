"""Compilation of the fastest kernels to cubins, each for the architecture on which it was tuned."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tsm2_tune.generator.source import INDEX_BITS, KernelSource, index_defines
from tsm2_tune.pretuned.cubins import brought
from tsm2_tune.tuner.compile.compiler import Toolchain, compile_text
from tsm2_tune.tuner.compile.nvcc import architecture_flag, cuda_toolchain
from tsm2_tune.tuner.compile.pool import cores
from tsm2_tune.tuner.export.module import Cubins
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.trial import Binary

Codes = dict[tuple[str, int], str]  # (kernel's digest, index width) -> digest of the machine code
COMPILE_LIMIT_SECONDS = 600.0
NEWS_SECONDS = 3.0


def compiled_cubins(
    rows: Sequence[BestRow],
    sources: Mapping[int, KernelSource],
    tell: Callable[[str], None],
    codes: Codes | None = None,
) -> tuple[Cubins, list[str]]:
    """Return the cubin of each GPU kernel for each index width, and messages that say why a cubin is missing.

    A cubin is read from this package if the package contains it and the digest of its machine code is in `codes`. All
    other cubins are read from the cache or compiled. `tell` is called with sentences about the progress. Raise
    ToolMissing if a cubin must be compiled and the compiler is missing.
    """
    of_gpus = [row for row in rows if row.compute_capability]
    wanted = dict.fromkeys((row.source_digest, row.compute_capability) for row in of_gpus)
    kernels = {row.source_digest: sources[row.trial_id] for row in of_gpus}
    every = [(digest, text, bits) for digest, text in wanted for bits in INDEX_BITS]
    here = brought((codes or {}).values())
    known = {job: here[code] for job in every if (code := (codes or {}).get((job[0], job[2]), "")) in here}
    jobs = [job for job in every if job not in known]
    toolchains = {text: cuda_toolchain(capability(text)) for text in dict.fromkeys(text for _, text, _ in jobs)}

    def compiled(job: tuple[str, str, int]) -> bytes | str:
        digest, of, bits = job
        return cubin(kernels[digest], toolchains[of], bits)

    with ThreadPoolExecutor(cores()) as pool:
        found = list(_with_progress(pool.map(compiled, jobs), len(jobs), tell))
    made = known | dict(zip(jobs, found, strict=True))
    cubins = {
        (digest, bits, architecture_flag(capability(text))): binary
        for digest, text, bits in every
        if isinstance(binary := made[digest, text, bits], bytes)
    }
    return cubins, sorted({why for why in found if isinstance(why, str)})


def _with_progress(results: Iterator[bytes | str], count: int, tell: Callable[[str], None]) -> Iterator[bytes | str]:
    """Yield the results. Every few seconds call `tell` with the number of results and the remaining time."""
    begin = last = time.monotonic()
    for done, result in enumerate(results, 1):
        if time.monotonic() - last >= NEWS_SECONDS and done < count:
            last = time.monotonic()
            remaining_seconds = (last - begin) / done * (count - done)
            tell(f"compiling binaries: {done} of {count}, about {remaining_seconds:.0f} s left")
        yield result


def key_of(row: BestRow, bits: int) -> tuple[str, int, str]:
    """Return the key of Cubins for the row's kernel: (digest, index width, architecture)."""
    return row.source_digest, bits, architecture_flag(capability(row.compute_capability))


def capability(text: str) -> tuple[int, int]:
    """Convert the text of a compute capability to numbers: "9.0" to (9, 0)."""
    major, minor = text.split(".")
    return int(major), int(minor)


def cubin(source: KernelSource, toolchain: Toolchain, bits: int) -> bytes | str:
    """Compile the kernel for an index width. Return the cubin, or an error message if the compilation fails."""
    found = compile_text(
        source.text,
        kernel=source.kernel,
        defines=index_defines(bits),
        toolchain=toolchain,
        limit_seconds=COMPILE_LIMIT_SECONDS,
    )
    if isinstance(found, Binary):
        return Path(found.path).read_bytes()
    return f"{toolchain.compiler} does not compile {source.kernel}: {found.detail}"
