"""Export winners as a C library: a shared object with their cubins, a header, and a Fortran module."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from importlib import resources
from pathlib import Path

from tsm2_tune import __version__
from tsm2_tune.errors import InputError, ToolMissing
from tsm2_tune.generator.problem import ELEMENT_TYPES, Problem
from tsm2_tune.generator.render import OF_LITERALS, filled
from tsm2_tune.generator.source import INDEX_BITS, KernelSource
from tsm2_tune.runtime.choice.choose import measured_of, vendor_of
from tsm2_tune.runtime.choice.interpolation import Interpolated, Routines
from tsm2_tune.runtime.choice.predict import Division, Kernels
from tsm2_tune.runtime.choice.winners import Winner, work_of
from tsm2_tune.runtime.choice.work import Card
from tsm2_tune.tuner.compile.shared_objects import as_c, c_texts, shared_object
from tsm2_tune.tuner.device.emulator.toolchain import compiler_command
from tsm2_tune.tuner.export.cubin_verification import Unverified, verified_cubins
from tsm2_tune.tuner.export.cubins import key_of
from tsm2_tune.tuner.export.measured_times import Known, known_of
from tsm2_tune.tuner.export.module import Cubins, winner
from tsm2_tune.tuner.export.tables import facts
from tsm2_tune.tuner.results.records import BestRow
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache
from tsm2_tune.tuner.written_files import refuse_database, refuse_unwritable, write_all

SOURCES = resources.files("tsm2_tune.tuner.export") / "c"
BESIDE = {".h": "tsm2.h", ".f90": "tsm2.f90"}  # files written beside the shared object, and their sources
LIBRARY_SUFFIXES = (*BESIDE, ".so")
PACK, BINARIES = "pack.c", "pack.bin"
ALIGNMENT = 64  # bytes, of each cubin
EXACT = "-ffp-contract=off"  # without fused operations, so that the choice equals Python's
FLAGS = (
    "-std=c11", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-fno-lto", "-Wall", "-Wextra",
    EXACT,
)  # fmt: skip
# Without the default libraries: a C++ compiler would link C++'s.
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
    among: Callable[[Sequence[BestRow]], Sequence[BestRow]] = lambda rows: rows,
    unverified: Unverified = Unverified.REFUSED,
    tell: Callable[[str], None] = lambda sentence: None,
) -> None:
    """Write the store's winners as the library `output`, with its header and Fortran module: all files or none.

    `unverified` is the policy for cubins that cannot be verified here. `among` replaces the rows that a library can
    have. `tell` gets what is left out, and why. Raise InputError for an invalid name, or without winners,
    ToolMissing without nvcc or a C++ compiler, StoreError as `export`.
    """
    refuse_output(output)
    path, files = Path(output), _files(output)
    for file in files.values():
        refuse_database(file, store.path)
    rows = [row for row in store.best(device=device, cache=cache) if chosen(row.problem)]
    if rows and not any(row.compute_capability for row in rows):
        raise InputError(
            f"nothing to export: {store.path} has only winners of the host for what was asked, and a library"
            " holds a GPU's kernels: tune on a GPU, or export --format module"
        )
    found = among(_usable(rows, tell))
    if not found:
        raise InputError(
            f"nothing to export: {store.path} has no winner of what was asked for that was tuned on a GPU for one of"
            f" {', '.join(ELEMENT_TYPES)} without --math; tune it first"
        )
    compiler_command()  # before kernels are compiled, which may take long
    winning = store.winning(found)
    sources = {trial_id: record.trial.source for trial_id, record in winning.items()}
    cubins, missing = verified_cubins(store, found, sources, unverified, tell)
    whole, used = _with_binaries(found, sources, cubins, missing, tell)
    shared = library_bytes(whole, used, path.name, known_of(store, winning))
    beside = {files[suffix]: (SOURCES / name).read_bytes() for suffix, name in BESIDE.items()}
    write_all({**beside, files[".so"]: shared})


def refuse_output(output: str) -> None:
    """Raise InputError for an invalid name of a library, or if one of its files could not be written."""
    path = Path(output)
    if path.suffix != ".so" or not path.stem:
        raise InputError(f"cannot write a library to {output}: name a file that ends in .so, such as libtsm2.so")
    for file in _files(output).values():
        refuse_unwritable(file, is_ordinary=True)


def _files(output: str) -> dict[str, Path]:
    """Return the files of a library by their suffixes."""
    return {suffix: Path(output).with_suffix(suffix) for suffix in LIBRARY_SUFFIXES}


def _usable(rows: Sequence[BestRow], tell: Callable[[str], None]) -> list[BestRow]:
    """Return the winners whose type the library has functions for."""
    of_gpus = [row for row in rows if row.compute_capability]
    usable = [row for row in of_gpus if row.dtype in ELEMENT_TYPES]
    for count, what in ((len(rows) - len(of_gpus), "of a host"), (len(of_gpus) - len(usable), "of --math")):
        if count and usable:
            tell(f"left out: {count} winner{'s' if count > 1 else ''} {what}, for which a library has no function")
    return usable


def _with_binaries(
    rows: Sequence[BestRow],
    sources: Mapping[int, KernelSource],
    cubins: Cubins,
    missing: Sequence[str],
    tell: Callable[[str], None],
) -> tuple[Winners, Cubins]:
    """Return the winners with all their cubins, and these. Raise ToolMissing if there are none."""
    for why in missing:
        tell(f"left out: {why.rstrip('.')}")
    whole = [row for row in rows if all(key in cubins for key in _keys(row))]
    if not whole:
        raise ToolMissing("nothing to export: no winner's kernel has a binary: name another nvcc by CUDA_HOME")
    used = {key: cubins[key] for row in whole for key in _keys(row)}
    return [(row, sources[row.trial_id]) for row in whole], used


def _keys(row: BestRow) -> list[tuple[str, int, str]]:
    """Return the keys of a winner's cubins, one for each index width."""
    return [key_of(row, bits) for bits in INDEX_BITS]


def library_bytes(winners: Winners, cubins: Cubins, name: str, known: Known) -> bytes:
    """Return the shared object. Raise ToolMissing if the C++ compiler is missing or fails."""
    return built(pack_text(winners, cubins, known), b"".join(_aligned(cubins)), name)


def _aligned(cubins: Cubins) -> Iterator[bytes]:
    for binary in cubins.values():
        yield binary + bytes(-len(binary) % ALIGNMENT)


def built(pack: str, binaries: bytes, name: str) -> bytes:
    """Build the shared object of this name from the text of its pack. Raise ToolMissing if that fails."""
    texts = c_texts(SOURCES)
    sources = [file for file in sorted((*texts, PACK)) if file.endswith(".c")]
    files = {**texts, PACK: pack.encode(), BINARIES: binaries}
    return shared_object(files, lambda folder, output: _command(folder, sources, output, name), "library")


def _command(folder: Path, sources: Sequence[str], output: Path, name: str) -> list[str]:
    """Return the compiler's command for the shared object of this name."""
    command = [*compiler_command(), *FLAGS, "-I", str(folder)]
    command += ["-Xassembler", "-I", "-Xassembler", str(folder)]  # where .incbin looks
    command += [*LINKING, "-Xlinker", "-soname", "-Xlinker", name, "-o", str(output)]
    return [*command, *as_c(folder / file for file in sources), *LIBRARIES]


# The pack's text


def pack_text(winners: Winners, cubins: Cubins | None, known: Known) -> str:
    """Return pack.c, with tables of cubins if there are any. Texts from the database become string literals."""
    kernels = {digest: number for number, digest in enumerate(dict.fromkeys(row.source_digest for row, _ in winners))}
    about = dict.fromkeys(f"{row.device}, {row.tuned_at[:10]}: {facts(row)}" for row, _ in winners)
    points: list[list[str]] = []
    packed = [_row(row, source, kernels[row.source_digest], known, points) for row, source in winners]
    return filled(
        "library_pack.c.jinja",
        {
            "version": __version__,
            "rows": packed,
            "cards": [_card(card) for card in known.cards.values()],
            "points": points,
            "cubins": list(_cubin_rows(kernels, cubins or {})),
            "about": [literal(f"{line}\n") for line in (f"tsm2-tune {__version__}", *about)],
            "alignment": ALIGNMENT,
            "file": None if cubins is None else BINARIES,
        },
        OF_LITERALS,
    )


def _card(card: Card) -> list[str]:
    """Return the members of pack.h's `struct card`."""
    gflops = _list(repr(card.gflops.get(dtype, 0.0)) for dtype in ELEMENT_TYPES)
    return [str(card.sms), repr(card.read_gbytes_per_s), repr(card.copy_gbytes_per_s), gflops]


def _expected(w: Winner, known: Known, points: list[list[str]]) -> list[str]:
    """Return the members of pack.h's `struct winner` from `card` on. Add its points to `points`."""
    cards = known.cards
    if w.device not in cards:
        return ["-1", "{0}", "0.0", "0.0", "0.0", "0", "0", "0", "0"]
    card = cards[w.device]
    work = work_of(w, (w.m, w.n, w.k), card)
    first_vendor, vendors = len(points), vendor_of(w)
    if vendors:
        works = [work_of(w, shape, card, of_vendor=True) for shape, _ in vendors]
        points += _points(Routines(works, [us for _, us in vendors]).interpolated)
    first = len(points)
    busy = [0.0, 0.0, 0.0]
    if w.division is not None:
        kernels = Kernels([w.division], [w.launch], [work], [measured_of(w, card)], card)
        points += _points(kernels.interpolated)
        busy = [float(kernels.at_work[0, 0]), float(kernels.busy[0, 0]), kernels.waves_won(0)]
    return [
        str(list(cards).index(w.device)),
        _list(repr(+getattr(w.division, field.name)) for field in fields(Division))
        if w.division
        else "{0}",  # True: 1
        *map(repr, busy),
        str(first_vendor),
        str(len(vendors)),
        str(first),
        str(len(points) - first),
    ]


def _points(interpolated: Interpolated) -> list[list[str]]:
    """Return the members of pack.h's `struct point` for the only kernel."""
    return [list(map(repr, point)) for point in interpolated.points(0)]


def _row(row: BestRow, source: KernelSource, kernel: int, known: Known, points: list[list[str]]) -> list[str]:
    """Return the members of pack.h's `struct winner`."""
    w = winner(row, source, known)
    vendor = [literal(w.vendor_routine or ""), repr(w.vendor_us)] if w.x_cublas is not None else ["NULL", "0.0"]
    return [
        *(literal(text) for text in (w.device, w.op, w.config, w.cache)),
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
        *_expected(w, known, points),
    ]


def _list(members: Iterator[str]) -> str:
    return f"{{{', '.join(members)}}}"


def _cubin_rows(kernels: Mapping[str, int], cubins: Cubins) -> Iterator[list[str]]:
    """Yield the members of pack.h's `struct cubin`."""
    offset = 0
    for ((digest, bits, architecture), binary), aligned in zip(cubins.items(), _aligned(cubins), strict=True):
        sha256 = _list(str(byte) for byte in hashlib.sha256(binary).digest())
        place = (str(kernels[digest]), str(INDEX_BITS.index(bits)), literal(architecture))
        yield [*place, str(offset), str(len(binary)), sha256]
        offset += len(aligned)


def literal(value: str) -> str:
    """Return the text as a C string literal in ASCII, other bytes, quotes and ? (trigraphs) as octal escapes."""
    plain = (chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in value.encode())
    return f'"{"".join(plain)}"'
