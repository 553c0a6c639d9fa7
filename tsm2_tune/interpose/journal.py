"""Read the journal: the files in which the stand-in records a program's matrix products.

Each process of the program writes one memory-mapped file, whose contents survive a crash of the process.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tsm2_tune.errors import InputError
from tsm2_tune.generator.dtypes import DTYPES, ELEMENT_TYPES
from tsm2_tune.generator.problem import Problem
from tsm2_tune.interpose.preload import LOADED
from tsm2_tune.tuner.results.trial import count_text

MAGIC = b"TSM2JRN1"
ROUTINES = (  # names for the values of standin.h's enum routine
    "gemm",
    "GemmEx",
    "gemmStridedBatched",
    "GemmStridedBatchedEx",
    "gemmBatched",
    "GemmBatchedEx",
    "gemv",
    "syrk",
    "herk",
    "cublasLtMatmul",
)
REASONS = (  # texts for the values of standin.h's enum reason
    "",
    "no library of kernels is loaded",
    "the library has no kernel for it",
    "cuBLAS is expected to be as fast",
    "its matrices are given by pointers in device memory",
    "the program allows cuBLAS a lower precision",
    "alpha and beta are in device memory",
    "the program reserves multiprocessors",
    "alpha or an extent is 0, or C overlaps",
    "the vector is not contiguous",
    "captured, and the kernel is not loaded, or has no workspace",
    "no memory for a workspace",
    "the kernel could not be started",
    "the kernel's result was wrong",
    "more CUDA contexts than are supported",
    "timed, to be compared",
    "its result was compared",
    "it has an epilogue",
    "cuBLASLt computes more than a product in place",
    "the kernel was slower in this program",
)
UNCOUNTED = (  # texts for the values of standin.h's enum uncounted, printed after a number of products
    "more are not counted, because there are too many shapes",
    "more were left to cuBLAS, because no kernel has their element types or compute type",
    "more were left to cuBLAS, because the CUDA driver is missing, or too old for tuned kernels",
)
CALLED_NONE = "the program did not call cuBLAS, or links it statically"
NOT_LOADED = (
    "the library that stands in for cuBLAS was not loaded into the program, which may be linked statically, be for"
    " another architecture, or change its user (set-user-ID)"
)
SLOWER = "the kernel was slower in this program"
TO_COMPARE = ("timed, to be compared", "its result was compared")  # reasons of calls that were made only to compare
TYPES = tuple(ELEMENT_TYPES)  # in the order of the C enum tsm2_type
OPERATIONS = "NTC"  # letters for the values of cublasOperation_t
WRITTEN = 2  # value of a line's state when the line is complete
SAMPLES = 5  # SAMPLES in standin.h
BY_CUBLAS, BY_KERNEL = range(2)  # indices of `sample_ns`, as in standin.h
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
    + [(name, "i8") for name in ("stride_a", "stride_b", "stride_c", "merged_m", "merged_n")]
    + [(name, "f8") for name in ("expected_us", "cublas_expected_us")]
    + [(name, "u8") for name in ("calls", "taken")]
    + [("left", "u8", (len(REASONS),))]
    + [(name, "u8") for name in ("captured", "first_ns", "timed", "gpu_ns")]
    + [("sampled", "u4", (2,)), ("sample_ns", "u4", (2, SAMPLES))]  # first cuBLAS's, then the kernel's
    + [("compared", "u8"), ("worst", "f8")]
)
MOST_LINES = 16384  # most lines in the file of one process
VECTOR_BYTES = 16


@dataclass(frozen=True, slots=True)
class Seen:
    """The calls of a program that have the same cuBLAS routine, types, shape, batch and leading dimensions."""

    routine: str
    dtype: str
    op: str  # cuBLAS's operations on A and B, such as NT
    shape: tuple[int, int, int]  # cuBLAS's arguments m, n and k
    leading: tuple[int, int, int]  # lda, ldb, ldc
    batches: int  # products in each call
    merged: tuple[int, int] | None  # m and n of the one product that a batch makes up; None if it makes up none
    is_gram: bool  # whether B is A transposed, in the same memory
    calls: int
    taken: int  # calls that a tuned kernel computed
    left: tuple[int, ...]  # calls that cuBLAS computed, for each of REASONS
    captured: int  # calls captured into CUDA graphs; how often the graphs ran is not known
    first_us: float  # GPU time of the first call; 0: not timed
    gpu_us: tuple[int, float]  # number of later calls that were timed, and their total GPU time
    cublas_us: tuple[float, ...]  # a few times of cuBLAS, without waiting for earlier work in the stream
    taken_us: tuple[float, ...]  # some times of the tuned kernel, likewise
    compared: int = 0  # calls whose result was compared with that of cuBLAS
    worst: float = 0.0  # largest difference from cuBLAS's result, divided by the error bound

    @property
    def us(self) -> float:
        """The mean GPU time of a call in us, without the first call unless only that was timed; 0 if none was."""
        count, total = self.gpu_us
        return total / count if count else self.first_us

    @property
    def total_us(self) -> float:
        return self.calls * self.us

    @property
    def problem(self) -> Problem | None:
        """The tuning problem for these calls, transposed if C is wider than tall; None if they cannot be tuned."""
        ops = self.op.lower() if self.dtype.startswith("c") else self.op.lower().replace("c", "t")
        is_gram = self.is_gram and ops != "nc"  # "nc" conjugates only B, which no op with x does
        m, n = self.merged or self.shape[:2]
        batch = 1 if self.merged else self.batches
        try:
            plain = Problem(m, n, self.shape[2], self.dtype, ops[0] + "x" if is_gram else ops, batch)
        except InputError:  # an extent or a number of products beyond the limit
            return None
        return plain.transposed if m < n and not is_gram else plain

    @property
    def shape_text(self) -> str:
        """cuBLAS's arguments as text: 6x2x3, or of a batch 500*6x2x3."""
        return f"{self.batches}*" * (self.batches != 1) + "x".join(map(str, self.shape))

    @property
    def has_unaligned_lines(self) -> bool:
        """Whether a leading dimension of A, B or C is not a multiple of 16 bytes."""
        size = DTYPES[self.dtype].element_bytes
        return any(ld * size % VECTOR_BYTES for ld in self.leading)

    @property
    def lost(self) -> int:
        """The number of calls that cuBLAS computed in place of a kernel, and not only to be compared."""
        return sum(count for why, count in zip(REASONS, self.left, strict=True) if why not in TO_COMPARE)

    @property
    def went_back(self) -> bool:
        """Whether cuBLAS computed some calls because the kernel was slower than cuBLAS in this program."""
        return self.left[REASONS.index(SLOWER)] > 0

    @property
    def reason(self) -> str:
        """The most frequent reason for which cuBLAS computed calls; "" if there is none."""
        counts = {why: count for why, count in zip(REASONS, self.left, strict=True) if why not in TO_COMPARE}
        most = max(counts, key=counts.__getitem__)
        return most if counts[most] else ""


@dataclass(frozen=True, slots=True)
class Written:
    """The merged contents of the journal files of all processes of a program."""

    seen: tuple[Seen, ...] = ()  # by total time, longest first
    uncounted: tuple[int, ...] = (0,) * len(UNCOUNTED)  # numbers of products without a line, for each of UNCOUNTED
    missing: tuple[str, ...] = ()  # messages about unreadable files
    was_loaded: bool = True  # whether a process loaded the stand-in

    @property
    def none_seen(self) -> str:
        """The message that explains why the journal has no products."""
        return "no product was seen: " + (CALLED_NONE if self.was_loaded else NOT_LOADED)

    @property
    def besides(self) -> tuple[str, ...]:
        """Messages about products that have no line in the journal, and about unreadable files."""
        counts = zip(self.uncounted, UNCOUNTED, strict=True)
        return (*self.missing, *(f"{count_text(count, 'product')} {what}" for count, what in counts if count))

    @property
    def is_empty(self) -> bool:
        """Whether the journal has no products and there are no messages about missing ones."""
        return not any(one.calls for one in self.seen) and not self.besides


def written_in(folder: Path) -> Written:
    """Read and merge the journal files in the folder. Skip invalid files: the program can write to the folder."""
    found: dict[tuple[object, ...], Seen] = {}
    uncounted, foreign = [0] * len(UNCOUNTED), 0
    try:
        files = sorted(folder.iterdir())
    except OSError:
        return Written(missing=(f"the recorded products are lost: another program removed {folder}",))
    was_loaded = any(file.name == LOADED for file in files)
    for file in (one for one in files if one.name != LOADED):
        content = _content(file)
        if content is None:
            foreign += 1
            continue
        head, lines = content
        uncounted = [int(one) + before for one, before in zip(head["uncounted"], uncounted, strict=True)]
        for one in _seen(lines):
            key = (one.routine, one.dtype, one.op, one.shape, one.leading, one.batches, one.merged, one.is_gram)
            found[key] = _together(found[key], one) if key in found else one
    seen = tuple(sorted(found.values(), key=lambda one: (-one.total_us, -one.calls, one.shape)))
    message = f"{count_text(foreign, 'file')} in {folder} could not be read as products: left out"
    return Written(seen, tuple(uncounted), (message,) if foreign else (), was_loaded)


def _content(file: Path) -> tuple[Any, Any] | None:
    """Return the header and the lines of one process's journal file; None if it is not a valid journal file."""
    try:
        with open(file, "rb", opener=_opened) as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                return None
            begun = opened.read(HEAD.itemsize)
            head = np.frombuffer(begun.ljust(HEAD.itemsize, b"\0"), HEAD)[0]
            is_own = head["magic"] == MAGIC and head["line_bytes"] == LINE.itemsize and len(begun) == HEAD.itemsize
            if (begun.strip(b"\0") and not is_own) or head["lines"] > MOST_LINES:
                return None
            data = opened.read(int(head["lines"]) * LINE.itemsize)  # empty if the header was not written
    except OSError:
        return None
    return head, np.frombuffer(data, LINE, len(data) // LINE.itemsize)


def _opened(path: str, flags: int) -> int:
    """Open the file without following a link or blocking on a FIFO, and return its descriptor."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


def _seen(lines: Any) -> Iterator[Seen]:
    """Yield a `Seen` for each complete line. Lines with invalid values are skipped."""
    for line in lines[lines["state"] == WRITTEN]:
        if not (0 <= line["routine"] < len(ROUTINES) and 0 <= line["type"] < len(TYPES)):
            continue
        if not (0 <= line["transa"] < len(OPERATIONS) and 0 <= line["transb"] < len(OPERATIONS)):
            continue  # an invalid operation, which cuBLAS refused
        yield Seen(
            ROUTINES[line["routine"]],
            TYPES[line["type"]],
            OPERATIONS[line["transa"]] + OPERATIONS[line["transb"]],
            (int(line["m"]), int(line["n"]), int(line["k"])),
            (int(line["lda"]), int(line["ldb"]), int(line["ldc"])),
            int(line["batches"]),
            _merged(line),
            bool(line["is_gram"]),
            int(line["calls"]),
            int(line["taken"]),
            tuple(map(int, line["left"])),
            int(line["captured"]),
            float(line["first_ns"]) / 1e3,
            (int(line["timed"]), float(line["gpu_ns"]) / 1e3),
            _samples(line, BY_CUBLAS),
            _samples(line, BY_KERNEL),
            int(line["compared"]),
            float(line["worst"]),
        )


def _merged(line: Any) -> tuple[int, int] | None:
    is_one = (line["merged_m"], line["merged_n"]) != (line["m"], line["n"])
    return (int(line["merged_m"]), int(line["merged_n"])) if is_one else None


def _samples(line: Any, way: int) -> tuple[float, ...]:
    return tuple(ns / 1e3 for ns in line["sample_ns"][way][: line["sampled"][way]].tolist())


def _together(one: Seen, other: Seen) -> Seen:
    """Merge the records of equal calls in two processes or on two devices: add the counts, join the samples."""
    return replace(
        one,
        calls=one.calls + other.calls,
        taken=one.taken + other.taken,
        left=tuple(x + y for x, y in zip(one.left, other.left, strict=True)),
        captured=one.captured + other.captured,
        first_us=one.first_us or other.first_us,
        gpu_us=(one.gpu_us[0] + other.gpu_us[0], one.gpu_us[1] + other.gpu_us[1]),
        cublas_us=one.cublas_us + other.cublas_us,
        taken_us=one.taken_us + other.taken_us,
        compared=one.compared + other.compared,
        worst=max(one.worst, other.worst),
    )


def total_us(seen: Sequence[Seen]) -> float:
    return sum(one.total_us for one in seen)
