"""What the stand-in wrote down of a program's products: a file of each process, which stays however that ended."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tsm2_tune.errors import InputError
from tsm2_tune.generator.problem import DTYPES, ELEMENT_TYPES, Problem
from tsm2_tune.generator.transposed import transposed

MAGIC = b"TSM2JRN1"
ROUTINES = (  # of standin.h's enum routine
    "gemm",
    "GemmEx",
    "gemmStridedBatched",
    "GemmStridedBatchedEx",
    "gemv",
    "syrk",
    "herk",
    "cublasLtMatmul",
)
REASONS = (  # of standin.h's enum reason
    "",
    "no pack is there",
    "no kernel is in the pack for it",
    "cuBLAS is expected to be as fast",
    "a batch of products",
    "the program lets cuBLAS round more",
    "alpha and beta are in device memory",
    "the program wants multiprocessors left free",
    "alpha or an extent is 0, or C overlaps",
    "the vector has gaps",
    "captured, and the kernel is not loaded, or has no workspace",
    "no memory for a workspace",
    "the kernel could not be started",
    "the kernel's result was off",
    "more contexts than are kept apart",
    "timed, to be compared",
    "its result was compared",
    "an epilogue is asked for",
    "cuBLASLt is asked for more than a product in place",
)
UNCOUNTED = (  # of standin.h's enum uncounted, behind a number of products
    "more, of more shapes than are told apart, are not counted",
    "more were not understood, as no kernel has their types or their way of summing up: cuBLAS computed them",
    "more were left to cuBLAS unseen, as the CUDA driver is missing, or older than tuned kernels need",
)
TO_COMPARE = ("timed, to be compared", "its result was compared")  # of which the kernel's turn comes later
TYPES = tuple(ELEMENT_TYPES)  # of tsm2_type
OPERATIONS = "NTC"
WRITTEN = 2  # of a line's state
HEAD = np.dtype(
    [
        ("magic", "S8"),
        ("line_bytes", "u4"),
        ("lines", "u4"),
        ("process", "i8"),
        ("program", "S216"),
        ("uncounted", "u8", (len(UNCOUNTED),)),
    ]
)
LINE = np.dtype(
    [(name, "i4") for name in ("state", "routine", "type", "transa", "transb", "device", "is_gram", "decision")]
    + [(name, "i8") for name in ("m", "n", "k", "lda", "ldb", "ldc", "batches")]
    + [(name, "f8") for name in ("expected_us", "cublas_expected_us")]
    + [(name, "u8") for name in ("calls", "taken")]
    + [("left", "u8", (len(REASONS),))]
    + [(name, "u8") for name in ("first_ns", "cublas_timed", "cublas_ns", "taken_timed", "taken_ns", "compared")]
    + [("worst", "f8")]
)
VECTOR_BYTES = 16


@dataclass(frozen=True, slots=True)
class Seen:
    """Products of a program that are alike."""

    routine: str
    dtype: str
    op: str  # cuBLAS's, such as NT
    shape: tuple[int, int, int]  # m, n and k as cuBLAS has them
    leading: tuple[int, int, int]
    batches: int
    is_gram: bool
    calls: int
    taken: int
    left: tuple[int, ...]  # by REASONS
    first_us: float  # GPU time of the first of them; 0: not taken
    cublas_us: tuple[int, float]  # how many of the others were timed, and their total
    taken_us: tuple[int, float]
    compared: int = 0
    worst: float = 0.0  # difference from cuBLAS's result, as a share of the bound

    @property
    def us(self) -> float:
        """What one takes as the program ran, on average; 0: not known."""
        count, total = self.cublas_us[0] + self.taken_us[0], self.cublas_us[1] + self.taken_us[1]
        return total / count if count else self.first_us

    @property
    def total_us(self) -> float:
        """What all of them take at their average."""
        return self.calls * self.us

    @property
    def problem(self) -> Problem | None:
        """What is to be tuned for it: of a tall C, as kernels are for such; None where none can be."""
        ops = self.op.lower() if self.dtype.startswith("c") else self.op.lower().replace("c", "t")
        is_gram = self.is_gram and ops != "nc"  # whose first factor alone would be conjugated: no op has that
        try:
            plain = Problem(*self.shape, self.dtype, ops[0] + "x" if is_gram else ops)
        except InputError:  # an extent of more than is tuned
            return None
        m, n, _ = self.shape
        return transposed(plain) if m < n and not is_gram else plain

    @property
    def has_odd_lines(self) -> bool:
        """Whether lines of a matrix are no whole vectors of 16 bytes."""
        size = DTYPES[self.dtype].element_bytes
        return any(ld * size % VECTOR_BYTES for ld in self.leading)

    @property
    def lost(self) -> int:
        """How many were left to cuBLAS, but for those by which both are compared."""
        return sum(count for why, count in zip(REASONS, self.left, strict=True) if why not in TO_COMPARE)

    @property
    def reason(self) -> str:
        """Why most of those that were left to cuBLAS for good were."""
        counts = {why: count for why, count in zip(REASONS, self.left, strict=True) if why not in TO_COMPARE}
        most = max(counts, key=counts.__getitem__)
        return most if counts[most] else ""


@dataclass(frozen=True, slots=True)
class Written:
    """What the processes of a program wrote down."""

    seen: tuple[Seen, ...] = ()  # most time first
    uncounted: tuple[int, ...] = (0,) * len(UNCOUNTED)  # products that are none of those
    missing: tuple[str, ...] = ()  # what could not be read, in sentences

    @property
    def besides(self) -> tuple[str, ...]:
        """What is to be said besides the products that were seen, in sentences."""
        counts = zip(self.uncounted, UNCOUNTED, strict=True)
        return (*self.missing, *(f"{count_of(count, 'product')} {told}" for count, told in counts if count))

    @property
    def is_empty(self) -> bool:
        """Whether there was no product, nor anything to be said."""
        return not any(one.calls for one in self.seen) and not self.besides


def count_of(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def written_in(folder: Path) -> Written:
    """What the processes of a program wrote into the folder, which the program may have emptied, or filled."""
    found: dict[tuple[object, ...], Seen] = {}
    uncounted, foreign = [0] * len(UNCOUNTED), 0
    try:
        files = sorted(folder.iterdir())
    except OSError:
        return Written(missing=(f"what was written down is gone: something removed {folder}",))
    for file in files:
        content = _content(file)
        if content is None:
            foreign += 1
            continue
        head, lines = content
        uncounted = [int(one) + before for one, before in zip(head["uncounted"], uncounted, strict=True)]
        for one in _seen(lines):
            key = (one.routine, one.dtype, one.op, one.shape, one.leading, one.batches, one.is_gram)
            found[key] = _together(found[key], one) if key in found else one
    seen = tuple(sorted(found.values(), key=lambda one: (-one.total_us, -one.calls, one.shape)))
    told = f"{count_of(foreign, 'file')} in {folder} could not be read as products: left out"
    return Written(seen, tuple(uncounted), (told,) if foreign else ())


def _content(file: Path) -> tuple[Any, Any] | None:
    """The head and the lines of what one process wrote; None of a file that is none of the stand-in's."""
    try:
        if not stat.S_ISREG(file.lstat().st_mode):  # before opening it: a pipe would wait
            return None
        with file.open("rb") as opened:
            begun = opened.read(HEAD.itemsize)
            head = np.frombuffer(begun.ljust(HEAD.itemsize, b"\0"), HEAD)[0]
            is_own = head["magic"] == MAGIC and head["line_bytes"] == LINE.itemsize and len(begun) == HEAD.itemsize
            if begun.strip(b"\0") and not is_own:
                return None
            data = opened.read(
                int(head["lines"]) * LINE.itemsize
            )  # nothing, where a process was ended before its head
    except OSError:
        return None
    return head, np.frombuffer(data, LINE, len(data) // LINE.itemsize)


def _seen(lines: Any) -> Iterator[Seen]:
    """Its products, by its lines."""
    for line in lines[lines["state"] == WRITTEN]:
        if not (0 <= line["routine"] < len(ROUTINES) and 0 <= line["type"] < len(TYPES)):
            continue
        if not (0 <= line["transa"] < len(OPERATIONS) and 0 <= line["transb"] < len(OPERATIONS)):
            continue  # no operation: cuBLAS refused it
        yield Seen(
            ROUTINES[line["routine"]],
            TYPES[line["type"]],
            OPERATIONS[line["transa"]] + OPERATIONS[line["transb"]],
            (int(line["m"]), int(line["n"]), int(line["k"])),
            (int(line["lda"]), int(line["ldb"]), int(line["ldc"])),
            int(line["batches"]),
            bool(line["is_gram"]),
            int(line["calls"]),
            int(line["taken"]),
            tuple(map(int, line["left"])),
            float(line["first_ns"]) / 1e3,
            (int(line["cublas_timed"]), float(line["cublas_ns"]) / 1e3),
            (int(line["taken_timed"]), float(line["taken_ns"]) / 1e3),
            int(line["compared"]),
            float(line["worst"]),
        )


def _together(one: Seen, other: Seen) -> Seen:
    """The same products of two processes or devices."""
    return replace(
        one,
        calls=one.calls + other.calls,
        taken=one.taken + other.taken,
        left=tuple(x + y for x, y in zip(one.left, other.left, strict=True)),
        first_us=one.first_us or other.first_us,
        cublas_us=_sum(one.cublas_us, other.cublas_us),
        taken_us=_sum(one.taken_us, other.taken_us),
        compared=one.compared + other.compared,
        worst=max(one.worst, other.worst),
    )


def _sum(one: tuple[int, float], other: tuple[int, float]) -> tuple[int, float]:
    return one[0] + other[0], one[1] + other[1]


def total_us(seen: Sequence[Seen]) -> float:
    return sum(one.total_us for one in seen)
