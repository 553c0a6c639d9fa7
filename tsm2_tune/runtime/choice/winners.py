"""`Winner`, a kernel with the shape that it won; `Match`, the winner chosen for a product; `Vendor`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tsm2_tune.runtime.choice.launch import Launch
from tsm2_tune.runtime.choice.predict import Division
from tsm2_tune.runtime.choice.work import VECTOR_BYTES, Card, Work, element_bytes
from tsm2_tune.runtime.elements import ACROSS, CONJUGATED, SAME

NO_GAIN = 1.03  # use a kernel only if the vendor is predicted to be this many times slower
KNOWN_WITHIN = 6.0  # distance from the winner's shape up to which NO_GAIN suffices
DOUBT_BEYOND = 0.25  # beyond it, e to this more for each unit of distance

Leading = tuple[dict[str, int], ...]  # of a, b and, if given, out: storage order -> leading dimension


@dataclass(frozen=True, eq=False)  # compared and cached by identity
class Winner:
    """The fastest verified kernel for a shape and op on a device; with --within, one that is nearly as fast.

    A kernel for shapes between the tuned ones won no shape; it has a shape at which it was measured.
    """

    device: str
    compute_capability: str  # "" for a host
    driver: str
    toolkit: str
    tuned_at: str  # ISO 8601, UTC
    dtype: str  # a name in DTYPES or MATHS
    op: str  # a letter of ORDERS or CONJUGATED for a, one for b (x: a transposed), t if out is row-major
    m: int
    n: int
    k: int
    config: str
    median_us: float
    gbytes_per_s: float
    percent_of_floor: float
    cache: str  # state of the L2 for all its times: clean, dirty or warm
    vendor_us: float | None  # of cuBLAS's own routine, timed in turns with the kernel; None: not timed
    vendor_right: int | None  # 1 if its result was within the error bound, else 0
    vendor_routine: str | None  # such as cublasSgemm
    vendor_version: int | None  # of its library: 130100 is 13.1.0
    x_cublas: float | None  # vendor_us over median_us, below 1 where the vendor is faster; None also if not right
    digest: str  # of its code, its key in KERNELS
    kernel: str  # name of the entry point
    launch: Launch  # at the shape that it won
    division: Division | None = None  # None if the resident blocks per multiprocessor are not known
    elsewhere: Sequence[Sequence[Any]] = ()  # times at other shapes: m, n, k, rows per block, splits, microseconds
    vendor_elsewhere: Sequence[Sequence[Any]] = ()  # right times at nearby shapes: m, n, k, microseconds

    @property
    def on_host(self) -> bool:
        return not self.compute_capability

    @cached_property
    def orders(self) -> tuple[str, str, str]:
        """The storage orders of a, b and out, as letters of ORDERS."""
        a, b = (CONJUGATED.get(letter, letter) for letter in self.op[:2])
        return a, ACROSS[a] if self.is_gram else b, self.op[2:] or "n"

    @property
    def is_gram(self) -> bool:
        """Whether it computes products of a matrix and its own transpose only, half of the elements."""
        return self.op[1] == SAME

    @property
    def vector_bytes(self) -> int:
        """The bytes of the widest vectors in which the kernel reads lines."""
        return VECTOR_BYTES if self.division is None else self.division.vector_bytes

    @property
    def kind_of_work(self) -> tuple[object, ...]:
        """The properties on which the kernel's `Work` depends, besides the matrices."""
        of_c = self.division is not None and self.division.vectors_of_c
        return self.orders, self.is_gram, self.vector_bytes, of_c

    @property
    def conjugates(self) -> tuple[bool, bool]:
        """Whether it multiplies with the complex conjugate of a, and of b."""
        return self.op[0] in CONJUGATED, self.op[1] in CONJUGATED


@dataclass(frozen=True)
class Match:
    """The winner chosen for a product, its launch, and the reason for both."""

    winner: Winner
    launch: Launch
    distance: float  # sqrt of the sum of log(m/m')^2, log(n/n')^2 and log(k/k')^2; 0 is exact
    other_device: str | None  # the GPU asked for, if another GPU's winner serves it
    across: tuple[int, int, int] | None = (
        None  # m, n and k of b transposed times a transposed, where it computes that
    )
    expected_us: float | None = None  # on a GPU: measured for an exact match, else predicted; None: unknown
    vendor_us: float | None = None  # the same of cuBLAS's own routine, if its result was right
    is_timed: bool = False  # both times were taken on the product's arrays, by `measure`

    @property
    def swapped(self) -> bool:
        """Whether it computes the transposed product."""
        return self.across is not None

    def __str__(self) -> str:
        w = self.winner
        how = w.config
        if self.launch.splits > 1:
            how += f" with {self.launch.splits} {'blocks' if self.launch.persistent else 'splits'}"
        if self.across is not None:
            how += f", by op {w.op} as the transposed product {'x'.join(map(str, self.across))}"
        if self.other_device is not None:
            how += f", tuned on {w.device}: no winner of {self.other_device} fits, tune there for its own"
        return f"{how}: {self.basis}"

    @property
    def basis(self) -> str:
        """The reason for the choice, with its times and their origin."""
        w = self.winner
        if self.is_timed:
            vendors = "" if self.vendor_us is None else f", the vendor {self.vendor_us:.1f} us"
            return f"timed on these arrays, with the L2 dirty {self.expected_us:.1f} us{vendors}"
        if self.distance == 0:
            shape, known = "tuned for this shape", "measured"
        else:
            shape = f"tuned for {w.m}x{w.n}x{w.k}"
            known = "predicted"
        if self.expected_us is None:
            return shape if self.distance == 0 else f"{shape}, at distance {self.distance:.1f}"
        if self.distance > 0:
            shape = f"measured at {w.m}x{w.n}x{w.k}"  # where another kernel may have won
        times = [f"with the L2 {w.cache} {self.expected_us:.1f} us {known}"]
        if self.distance > 0:
            count = len(w.elsewhere)
            others = f" and times at {count} other shape{'s' if count > 1 else ''}" if count else ""
            times.append(f"from {w.median_us:.1f} us there{others}")
        if self.vendor_us is not None:
            routine = w.vendor_routine if self.distance == 0 else "cuBLAS's gemm"
            times.append(f"{routine} {self.vendor_us:.1f} us")
        return f"{shape}; {', '.join(times)}"

    @property
    def loses(self) -> bool:
        """Whether the vendor is predicted to be faster, or nearly as fast if the times are predicted."""
        if self.expected_us is None:
            return self.winner.x_cublas is not None and self.winner.x_cublas < 1
        return self.vendor_us is not None and self.vendor_us < self.doubt * self.expected_us

    @property
    def doubt(self) -> float:
        """The factor by which the vendor's time must exceed the kernel's predicted time."""
        if self.distance == 0 or self.is_timed:
            return 1.0
        return NO_GAIN * math.exp(DOUBT_BEYOND * max(self.distance - KNOWN_WITHIN, 0.0))

    @property
    def why_it_loses(self) -> str:
        """The match in words, with a note if the kernel is hardly faster."""
        near = self.vendor_us is not None and self.expected_us is not None and self.vendor_us >= self.expected_us
        return f"{self}{', too little more to rely on' if near else ''}"


@dataclass(frozen=True)
class Vendor:
    """The decision to leave a product to the arrays' own library, with the reason."""

    reason: str

    def __str__(self) -> str:
        return f"the vendor: {self.reason}"


def work_of(
    winner: Winner,
    shape: tuple[int, int, int],
    card: Card,
    lds: Leading | None = None,
    *,
    of_vendor: bool = False,
) -> Work:
    """Return the product's work with the winner's kernel. Without `lds` lines have no padding.

    Lines are odd if they are no multiple of the kernel's vectors; for the vendor, if those of A or B are no multiple
    of 16 bytes.
    """
    (m, n, k), given = shape, dict(enumerate(lds or ()))
    division = None if of_vendor else winner.division
    whole = VECTOR_BYTES if of_vendor else winner.vector_bytes
    extents = ((m, k), (k, n), (m, n))
    counts = (0, 2) if division is not None and division.vectors_of_c else (0, 1)
    size, odd = element_bytes(winner.dtype), False
    for place in counts:
        order = winner.orders[place]
        length, lines = extents[place] if order == "n" else extents[place][::-1]
        ld = given[place][order] if place in given else length
        odd = odd or (lines > 1 and ld * size % whole != 0)
    return Work.of(shape, winner.dtype, card, is_gram=winner.is_gram, has_odd_lines=odd)
