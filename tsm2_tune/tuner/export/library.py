"""Export of the fastest kernels as a C library: a shared object with their cubins, a header, a Fortran module."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path

from tsm2_tune import __version__
from tsm2_tune.errors import InputError, ToolMissing
from tsm2_tune.generator.dtypes import ELEMENT_TYPES
from tsm2_tune.generator.render import OF_LITERALS, filled
from tsm2_tune.generator.source import INDEX_BITS
from tsm2_tune.runtime.choice.winners import Winner
from tsm2_tune.tuner.compile.core_library import core_texts
from tsm2_tune.tuner.compile.shared_objects import c_library, c_texts, compiler_command
from tsm2_tune.tuner.export.cubins import Cubins, Unverified, key_of, verified_cubins
from tsm2_tune.tuner.export.gathered import Kernel, gathered
from tsm2_tune.tuner.export.tables import facts
from tsm2_tune.tuner.packs.core_pack import DeviceRates, code_numbers, core_pack
from tsm2_tune.tuner.packs.gains import with_gain_errors
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import count_text
from tsm2_tune.tuner.written_files import refuse_database, refuse_unwritable, write_all

SOURCES = resources.files("tsm2_tune.tuner.export") / "c"
BESIDE = {".h": "tsm2.h", ".f90": "tsm2.f90"}  # suffix of a file written with the library -> its source
LIBRARY_SUFFIXES = (*BESIDE, ".so")
PACK, CORE, BINARIES = "library_pack.c", "core.bin", "cubins.bin"
ALIGNMENT = 64  # of each cubin, in bytes


def exported_library(
    store: Store, rows: Sequence[BestRow], name: str, unverified: Unverified, tell: Callable[[str], None]
) -> tuple[bytes, list[BestRow]]:
    """Return the C library called `name` with the kernels `rows`, and the rows whose kernels it contains.

    `unverified` is the policy for cubins that cannot be verified on this machine. `tell` is called with a sentence
    about each excluded kernel. Raise ToolMissing if nvcc or the C++ compiler is missing, or if no kernel has all
    cubins, and StoreError if a stored kernel differs from the kernel that this program generates.
    """
    compiler_command()  # raises ToolMissing before the slow compilation
    kernels, rates = gathered(store, rows, store.winning(rows))
    cubins, missing = verified_cubins(store, kernels, unverified, tell)
    for why in missing:
        tell(f"left out: {why.rstrip('.')}")
    whole = [one for one in kernels if all(key_of(one.row, bits) in cubins for bits in INDEX_BITS)]
    if not whole:
        raise ToolMissing("nothing to export: no winner's kernel has a binary: name another nvcc by CUDA_HOME")
    keys = [key_of(one.row, bits) for one in whole for bits in INDEX_BITS]
    return library_bytes(whole, rates, {key: cubins[key] for key in keys}, name), [one.row for one in whole]


def usable(store: Store, rows: Sequence[BestRow], tell: Callable[[str], None]) -> list[BestRow]:
    """Return the GPU winners whose element type a library supports. Call `tell` with the number of others.

    Raise InputError if there is none.
    """
    of_gpus = [row for row in rows if row.compute_capability]
    if rows and not of_gpus:
        raise InputError(
            f"nothing to export: {store.path} has only winners of the host for what was asked, and a library"
            " holds a GPU's kernels: tune on a GPU, export pretuned kernels by --pretuned h100 or h200,"
            " or a module by --format module"
        )
    found = [row for row in of_gpus if row.dtype in ELEMENT_TYPES]
    if not found:
        raise InputError(
            f"nothing to export: {store.path} has no winner of what was asked for that was tuned on a GPU for one of"
            f" {', '.join(ELEMENT_TYPES)} without --math; tune it first"
        )
    for count, what in ((len(rows) - len(of_gpus), "of a host"), (len(of_gpus) - len(found), "of --math")):
        if count:
            tell(f"left out: {count_text(count, 'winner')} {what}, for which a library has no function")
    return found


def refuse_output(output: str, database: str) -> None:
    """Raise InputError if `output` is no valid name of a library, or if one of its files cannot be written.

    None of its files may be the database.
    """
    path = Path(output)
    if path.suffix != ".so" or not path.stem:
        raise InputError(f"cannot write a library to {output}: name a file that ends in .so, such as libtsm2.so")
    for file in library_files(output).values():
        refuse_unwritable(file, is_ordinary=True)
    for file in library_files(output).values():
        refuse_database(file, database)


def library_files(output: str) -> dict[str, Path]:
    """Return suffix -> path for the files of a library: the library, a header and a Fortran module."""
    return {suffix: Path(output).with_suffix(suffix) for suffix in LIBRARY_SUFFIXES}


def write_library(shared: bytes, output: str) -> tuple[Path, ...]:
    """Write the library to the file `output`, and a header and a Fortran module beside it: all files, or none.

    Return the files. Raise InputError if they cannot be written.
    """
    files = library_files(output)
    beside = {files[suffix]: (SOURCES / name).read_bytes() for suffix, name in BESIDE.items()}
    write_all({**beside, files[".so"]: shared})
    return tuple(files.values())


def library_bytes(kernels: Sequence[Kernel], rates: Mapping[str, DeviceRates], cubins: Cubins, name: str) -> bytes:
    """Return the shared object. Raise ToolMissing if the C++ compiler is missing or fails."""
    measured, rows = [one.measured for one in kernels], [one.row for one in kernels]
    about = dict.fromkeys(f"{row.device}, {row.tuned_at[:10]}: {facts(row)}" for row in rows)
    core = core_pack(with_gain_errors(measured, rates), rates)
    text = pack_text([one.winner for one in measured], about, cubins, len(core))
    return built({PACK: text.encode(), CORE: core, BINARIES: b"".join(_aligned(cubins))}, name)


def _aligned(cubins: Cubins) -> Iterator[bytes]:
    for binary in cubins.values():
        yield binary + bytes(-len(binary) % ALIGNMENT)


def built(pack: Mapping[str, bytes], name: str) -> bytes:
    """Build the shared object of this name with the files of its pack. Raise ToolMissing if that fails."""
    files = {**core_texts(), **c_texts(SOURCES), **pack}
    options = ("-Wl,-z,defs", "-Xlinker", "-soname", "-Xlinker", name)
    return c_library(files, "library", options=options, libraries=("-ldl",))


# The text of library_pack.c


def pack_text(winners: Sequence[Winner], about: Iterable[str], cubins: Cubins, core_bytes: int) -> str:
    """Return library_pack.c. Texts from the database become string literals."""
    return filled(
        "library_pack.c.jinja",
        {
            "version": __version__,
            "cubins": list(_cubin_rows(code_numbers(winners), cubins)),
            "about": [literal(f"{line}\n") for line in (f"tsm2-tune {__version__}", *about)],
            "alignment": ALIGNMENT,
            "core_bytes": core_bytes,
            "files": [("pack_core_bytes", CORE), ("pack_cubin_bytes", BINARIES)],
        },
        OF_LITERALS,
    )


def _cubin_rows(codes: Mapping[str, int], cubins: Cubins) -> Iterator[list[str]]:
    """Yield the members of pack.h's `struct cubin`. `codes` has indices of CUDA texts by their digests."""
    offset = 0
    for ((digest, bits, architecture), binary), aligned in zip(cubins.items(), _aligned(cubins), strict=True):
        sha256 = f"{{{', '.join(map(str, hashlib.sha256(binary).digest()))}}}"
        place = (str(codes[digest]), str(INDEX_BITS.index(bits)), literal(architecture))
        yield [*place, str(offset), str(len(binary)), sha256]
        offset += len(aligned)


def literal(value: str) -> str:
    """Return the text as a C string literal in ASCII. Other bytes, quotes, \\ and ? (trigraphs) are octal escapes."""
    plain = (chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in value.encode())
    return f'"{"".join(plain)}"'
