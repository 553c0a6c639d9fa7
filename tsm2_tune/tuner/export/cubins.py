"""The cubins of an export: they have the machine code that was verified in full."""

from __future__ import annotations

import tarfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from itertools import groupby

from tsm2_tune.errors import InputError
from tsm2_tune.generator.families import parse_config
from tsm2_tune.generator.source import INDEX_BITS, KernelSource, index_defines
from tsm2_tune.pretuned import FOLDER
from tsm2_tune.tuner.compile.compiler import Toolchain, compile_text
from tsm2_tune.tuner.compile.elf_digest import code_of
from tsm2_tune.tuner.compile.nvcc import architecture_flag, cuda_toolchain
from tsm2_tune.tuner.compile.pool import cores
from tsm2_tune.tuner.device.lock import device_lock
from tsm2_tune.tuner.device.target import find_target, spec_of
from tsm2_tune.tuner.export.gathered import Kernel
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Binary, Outcome
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.session import judged

Tell = Callable[[str], None]
Cubins = dict[tuple[str, int, str], bytes]  # (kernel's digest, index width, architecture) -> cubin
Codes = dict[tuple[str, int], str]  # (kernel's digest, index width) -> digest of the machine code
COMPILE_LIMIT_SECONDS = 600.0
ARCHIVE = (
    "cubins.tar.xz"  # in the package: each file in it is a cubin, and its name is the digest of its machine code
)
NEWS_SECONDS = 3.0


def compiled_cubins(kernels: Sequence[Kernel], tell: Tell, codes: Codes | None = None) -> tuple[Cubins, list[str]]:
    """Return the cubin of each GPU kernel for each index width, and messages that say why a cubin is missing.

    A cubin is read from this package if the package contains it and the digest of its machine code is in `codes`. All
    other cubins are read from the cache or compiled. `tell` is called with sentences about the progress. Raise
    ToolMissing if a cubin must be compiled and the compiler is missing.
    """
    of_gpus = [one for one in kernels if one.row.compute_capability]
    wanted = dict.fromkeys((one.row.source_digest, one.row.compute_capability) for one in of_gpus)
    sources = {one.row.source_digest: one.source for one in of_gpus}
    every = [(digest, text, bits) for digest, text in wanted for bits in INDEX_BITS]
    here = brought((codes or {}).values())
    known = {job: here[code] for job in every if (code := (codes or {}).get((job[0], job[2]), "")) in here}
    jobs = [job for job in every if job not in known]
    toolchains = {text: cuda_toolchain(capability(text)) for text in dict.fromkeys(text for _, text, _ in jobs)}

    def compiled(job: tuple[str, str, int]) -> bytes | str:
        digest, of, bits = job
        return cubin(sources[digest], toolchains[of], bits)

    with ThreadPoolExecutor(cores()) as pool:
        found = list(_with_progress(pool.map(compiled, jobs), len(jobs), tell))
    made = known | dict(zip(jobs, found, strict=True))
    cubins = {
        (digest, bits, architecture_flag(capability(text))): binary
        for digest, text, bits in every
        if isinstance(binary := made[digest, text, bits], bytes)
    }
    return cubins, sorted({why for why in found if isinstance(why, str)})


def brought(codes: Collection[str]) -> dict[str, bytes]:
    """Return {digest: cubin} of those kernels in `codes`, digests of machine code, that the package includes."""
    wanted, found = set(codes), dict[str, bytes]()
    archive = FOLDER / ARCHIVE
    if not wanted or not archive.is_file():
        return found
    with archive.open("rb") as stream, tarfile.open(fileobj=stream, mode="r|xz") as files:
        for member in files:
            content = files.extractfile(member) if member.name in wanted else None
            if content is not None:
                found[member.name] = content.read()
    return found


def _with_progress(results: Iterator[bytes | str], count: int, tell: Tell) -> Iterator[bytes | str]:
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
        return found.code
    return f"{toolchain.compiler} does not compile {source.kernel}: {found.detail}"


class Unverified(StrEnum):
    """Policy of an export for cubins that were not verified and cannot be verified on this machine."""

    REFUSED = "refused"
    ALLOWED = "allowed"
    LEFT_OUT = "left out"


def verified_cubins(
    store: Store, kernels: Sequence[Kernel], policy: Unverified, tell: Tell
) -> tuple[Cubins, list[str]]:
    """Return the cubin of each of these kernels for each index width, and messages that say why a cubin is missing.

    A cubin is verified if the digest of its machine code is stored with the verdict of a full verification. Every
    other cubin is verified now if this machine has the device on which its kernel was tuned. `policy` decides about
    cubins that cannot be verified now: raise InputError if it is REFUSED. Raise ToolMissing if a cubin must be
    compiled and the compiler is missing.
    """
    rows = [one.row for one in kernels]
    codes = _codes(store, rows)
    cubins, missing = compiled_cubins(kernels, tell, codes)
    if policy is not Unverified.ALLOWED:
        codes |= _verified_now(store, _unverified(rows, cubins, codes), tell)
    unknown = _unverified(rows, cubins, codes)
    for row in unknown:
        tell(f"not verified with this machine's compiler: {row.config} for {row.problem.text} on {row.device}")
    if unknown and policy is Unverified.REFUSED:
        raise InputError(
            f"{len(unknown)} kernels have binaries that were not verified: export on a machine with"
            f" {unknown[0].device}, where export verifies them; or choose --no-binaries for a module that compiles"
            " at the first call, or --allow-unverified"
        )
    if policy is Unverified.LEFT_OUT:
        dropped = {key_of(row, bits) for row in unknown for bits in INDEX_BITS}
        cubins = {key: binary for key, binary in cubins.items() if key not in dropped}
    return cubins, missing


def _codes(store: Store, rows: Sequence[BestRow]) -> Codes:
    """Return the digests of verified machine code: (kernel's digest, index width) -> digest of the machine code.

    Winners without a stored digest of verified machine code are absent.
    """
    found: Codes = {}
    for row in rows:
        verdict = store.full_verdict(row)
        if verdict is not None and verdict[1] is not None:
            found |= _by_width(row, verdict[1])
    return found


def _by_width(row: BestRow, codes: str) -> Codes:
    return {(row.source_digest, bits): code for bits, code in zip(INDEX_BITS, codes.split(), strict=True)}


def _unverified(rows: Sequence[BestRow], cubins: Cubins, codes: Codes) -> list[BestRow]:
    """Return one winner of each kernel that has an unverified cubin."""
    found = {}
    for row in rows:
        for bits in INDEX_BITS if row.compute_capability else ():
            binary = cubins.get(key_of(row, bits))
            if binary is not None and code_of(binary) != codes.get((row.source_digest, bits), ""):
                found[row.source_digest] = row
    return list(found.values())


def _verified_now(store: Store, rows: Sequence[BestRow], tell: Tell) -> Codes:
    """Verify the kernels in `rows` whose device is in this machine, and store the verdicts.

    Return the digests of the verified machine code: (kernel's digest, index width) -> digest of the machine code.
    Raise InputError if a kernel is wrong.
    """
    found: Codes = {}
    for device, group in groupby(sorted(rows, key=lambda row: row.device), key=lambda row: row.device):
        of_device, spec = list(group), spec_of(device)
        if spec is None:
            continue
        tell(f"verifying {len(of_device)} kernels on {device}, compiled by this machine's compiler")
        target = find_target(spec)
        with device_lock(target), Tuner(target, Options()) as tuner:
            for row in of_device:
                config = parse_config(row.config)
                assert config is not None  # because its kernel was rendered
                result = judged(tuner, store, row.problem, config, row.trial_id, "verification at export")
                if result.outcome is Outcome.OK and result.verified_code is not None:
                    found |= _by_width(row, result.verified_code)
                elif result.outcome not in (Outcome.OK, Outcome.INTERRUPTED):
                    raise InputError(
                        f"{row.config} for {row.problem.text} computes a wrong result if compiled by this"
                        f" machine's compiler, and cannot win any more ({result.detail}): export again"
                    )
    return found
