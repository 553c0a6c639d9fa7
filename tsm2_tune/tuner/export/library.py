"""Winners as a C library: a shared object that holds their binaries, its header, and its interface for Fortran."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path

from tsm2_tune import __version__
from tsm2_tune.errors import InputError, ToolMissing
from tsm2_tune.generator.problem import ELEMENT_TYPES, Problem
from tsm2_tune.generator.render import INDEX_BITS, OF_LITERALS, KernelSource, filled
from tsm2_tune.runtime.winners import Winner
from tsm2_tune.tuner import cache
from tsm2_tune.tuner.cuda import architecture_flag
from tsm2_tune.tuner.export.binaries import capability, compiled_cubins
from tsm2_tune.tuner.export.files import refuse_database, write_all
from tsm2_tune.tuner.export.module import Cubins, winner
from tsm2_tune.tuner.export.tables import facts
from tsm2_tune.tuner.host.toolchain import compiler_command
from tsm2_tune.tuner.interruptions import refuse_full_disk
from tsm2_tune.tuner.processes import workplace
from tsm2_tune.tuner.store import Store
from tsm2_tune.tuner.stored import BestRow
from tsm2_tune.tuner.trial import Cache

SOURCES = resources.files("tsm2_tune.tuner.export") / "c"
BESIDE = {".h": "tsm2.h", ".f90": "tsm2.f90"}  # what is written beside the shared object, and from which file
LIBRARY_SUFFIXES = (*BESIDE, ".so")
PACK, BINARIES = "pack.c", "pack.bin"
ALIGNMENT = 64  # bytes, of each binary
LIMIT_SECONDS = 600.0  # for the C compiler
FLAGS = ("-std=c11", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-fno-lto", "-Wall", "-Wextra")
# What the compiler links by itself depends on the language that it is for: C++'s library is not to be needed.
LINKING = ("-nodefaultlibs", "-s", "-Wl,--as-needed", "-Wl,-z,defs", "-Wl,-z,noexecstack")
LIBRARIES = ("-ldl", "-lm", "-lc", "-lgcc")
LAUNCH = (
    "threads",
    "rows_per_block",
    "smem_bytes",
    "columns_per_block",
    "splits",
    "flat_splits",
    "persistent",
    "has_workspace",
)

Winners = Sequence[tuple[BestRow, KernelSource]]


def export_library(
    store: Store,
    output: str,
    *,
    device: str | None = None,
    chosen: Callable[[Problem], bool] = lambda problem: True,
    cache: Cache | None = None,
    tell: Callable[[str], None] = lambda sentence: None,
) -> None:
    """Write the store's winners as the library `output`, and what is beside it: all of it or nothing.

    What is left out, and why, is told. InputError for a name that a library cannot have, and without winners;
    ToolMissing where nvcc or the C++ compiler is missing; StoreError as `export`.
    """
    path = Path(output)
    if path.suffix != ".so" or not path.stem:
        raise InputError(f"cannot write a library to {output}: name a file that ends in .so, such as libtsm2.so")
    files = {suffix: path.with_suffix(suffix) for suffix in LIBRARY_SUFFIXES}
    for file in files.values():
        refuse_database(file, store.path)
    rows = [row for row in store.best(device=device, cache=cache) if chosen(row.problem)]
    found = _usable(rows, tell)
    if not found:
        raise InputError(
            f"nothing to export: {store.path} has no winner of what was asked for that was tuned on a GPU for one of"
            f" {', '.join(ELEMENT_TYPES)} without --math; tune it first"
        )
    sources = store.sources(found)
    shared = library_bytes(*_with_binaries(found, sources, tell), path.name)
    beside = {files[suffix]: (SOURCES / name).read_bytes() for suffix, name in BESIDE.items()}
    write_all({**beside, files[".so"]: shared})


def _usable(rows: Sequence[BestRow], tell: Callable[[str], None]) -> list[BestRow]:
    """The winners that the library has functions for."""
    of_gpus = [row for row in rows if row.compute_capability]
    usable = [row for row in of_gpus if row.dtype in ELEMENT_TYPES]
    for count, what in ((len(rows) - len(of_gpus), "of a host"), (len(of_gpus) - len(usable), "of --math")):
        if count and usable:
            tell(f"left out: {count} winner{'s' if count > 1 else ''} {what}, for which a library has no function")
    return usable


def _with_binaries(
    rows: Sequence[BestRow], sources: Mapping[int, KernelSource], tell: Callable[[str], None]
) -> tuple[Winners, Cubins]:
    """The winners whose binaries could be compiled, and these. ToolMissing where a compiler is missing."""
    compiler_command()  # before kernels are compiled, which may take long
    cubins, missing = compiled_cubins(rows, sources)
    for why in missing:
        tell(f"left out: {why.rstrip('.')}")
    whole = [row for row in rows if all(key in cubins for key in _keys(row))]
    if not whole:
        raise ToolMissing("nothing to export: nvcc compiled no winner's kernel: name another by CUDA_HOME")
    used = {key: cubins[key] for row in whole for key in _keys(row)}
    return [(row, sources[row.trial_id]) for row in whole], used


def _keys(row: BestRow) -> list[tuple[str, int, str]]:
    """Of a winner's binaries."""
    architecture = architecture_flag(capability(row.compute_capability))
    return [(row.source_digest, bits, architecture) for bits in INDEX_BITS]


def library_bytes(winners: Winners, cubins: Cubins, name: str) -> bytes:
    """The shared object of this name. ToolMissing where the C++ compiler is missing, or does not make it."""
    return built(pack_text(winners, cubins), b"".join(_aligned(cubins)), name)


def _aligned(cubins: Cubins) -> Iterator[bytes]:
    for binary in cubins.values():
        yield binary + bytes(-len(binary) % ALIGNMENT)


def built(pack: str, binaries: bytes, name: str) -> bytes:
    """The shared object of this name, from the text of its pack. ToolMissing where the compiler does not make it."""
    parent = cache.working_parent()
    try:
        with workplace(parent) as work:
            texts = {file.name: file.read_bytes() for file in SOURCES.iterdir() if file.name.endswith((".c", ".h"))}
            for file, content in {**texts, PACK: pack.encode(), BINARIES: binaries}.items():
                (work.folder / file).write_bytes(content)
            sources, output = (
                [file for file in sorted((*texts, PACK)) if file.endswith(".c")],
                work.folder / "library",
            )
            command = _command(work.folder, sources, output, name)
            environment = {"TMPDIR": str(work.folder), "LC_ALL": "C"}
            ended = work.run(command, limit_seconds=LIMIT_SECONDS, environment=environment)
            if not ended.is_well or not output.is_file():
                refuse_full_disk(parent)
                said = ended.messages.replace(str(work.folder), "").strip()[-2000:] or f"it {ended.how}"
                raise ToolMissing(f"{command[0]} does not build the library: {said}")
            return output.read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot build the library in {parent} ({error.strerror}): make it writable, with space left"
        ) from error


def _command(folder: Path, sources: Sequence[str], output: Path, name: str) -> list[str]:
    """That builds the shared object of this name from C texts in the folder."""
    command = [*compiler_command(), *FLAGS, "-I", str(folder)]
    command += ["-Xassembler", "-I", "-Xassembler", str(folder)]  # where .incbin looks
    command += [*LINKING, "-Xlinker", "-soname", "-Xlinker", name, "-o", str(output)]
    for file in sources:
        command += ["-x", "c", str(folder / file)]  # g++ takes -x for the first file behind it alone
    return [*command, "-x", "none", *LIBRARIES]


# The pack's text


def pack_text(winners: Winners, cubins: Cubins) -> str:
    """The tables of pack.h. Whatever is from the database stands in them as string literals."""
    kernels = {digest: number for number, digest in enumerate(dict.fromkeys(row.source_digest for row, _ in winners))}
    about = dict.fromkeys(f"{row.device}, {row.tuned_at[:10]}: {facts(row)}" for row, _ in winners)
    return filled(
        "library_pack.c.jinja",
        {
            "version": __version__,
            "rows": [_row(row, source, kernels[row.source_digest]) for row, source in winners],
            "cubins": list(_cubin_rows(kernels, cubins)),
            "about": [literal(f"{line}\n") for line in (f"tsm2-tune {__version__}", *about)],
            "alignment": ALIGNMENT,
            "file": BINARIES,
        },
        OF_LITERALS,
    )


def _row(row: BestRow, source: KernelSource, kernel: int) -> list[str]:
    """The members of pack.h's `struct winner`."""
    w = Winner(**{**winner(row, source), "launch": source.launch})  # type: ignore[arg-type]
    vendor = [literal(w.vendor_routine or ""), repr(w.vendor_us)] if w.x_cublas is not None else ["NULL", "0.0"]
    return [
        *(literal(text) for text in (w.device, w.op, w.config)),
        f"TSM2_{w.dtype.upper()}",
        _list("ROW_MAJOR" if order == "t" else "COLUMN_MAJOR" for order in w.orders),
        _list(str(int(one)) for one in w.conjugates),
        str(int(w.is_gram)),
        *(str(extent) for extent in (w.m, w.n, w.k)),
        repr(w.median_us),
        *vendor,
        str(kernel),
        literal(w.kernel),
        _list(str(int(getattr(w.launch, name))) for name in LAUNCH),
    ]


def _list(members: Iterator[str]) -> str:
    return f"{{{', '.join(members)}}}"


def _cubin_rows(kernels: Mapping[str, int], cubins: Cubins) -> Iterator[list[str]]:
    """The members of pack.h's `struct cubin`."""
    offset = 0
    for ((digest, bits, architecture), binary), aligned in zip(cubins.items(), _aligned(cubins), strict=True):
        sha256 = _list(str(byte) for byte in hashlib.sha256(binary).digest())
        place = (str(kernels[digest]), str(INDEX_BITS.index(bits)), literal(architecture))
        yield [*place, str(offset), str(len(binary)), sha256]
        offset += len(aligned)


def literal(value: str) -> str:
    """The text as C spells it, in ASCII: other bytes, quotes and ? (trigraphs) stand as octal escapes."""
    plain = (chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in value.encode())
    return f'"{"".join(plain)}"'
