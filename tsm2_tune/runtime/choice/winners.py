"""`Winner`, the fastest kernel for a shape; `Match`, the winner chosen for a product; `Vendor`, if none is chosen.

In names "vendor" means cuBLAS, or the arrays' library that calls it.
"""

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

NO_GAIN = 1.03  # use a kernel only if cuBLAS is predicted to be this many times slower
KNOWN_WITHIN = 6.0  # up to this distance from the winner's shape NO_GAIN suffices
DOUBT_BEYOND = 0.25  # beyond KNOWN_WITHIN, NO_GAIN grows by e to this for each unit of distance

Leading = tuple[dict[str, int], ...]  # for a, b and, if given, out: storage order -> leading dimension


@dataclass(frozen=True, eq=False)  # compared and hashed by identity
class Winner:
    """The fastest verified kernel for a shape and op on a device.

    With --within, the kernel may also be one that is nearly as fast as the fastest. An export may also contain
    kernels for shapes between the tuned ones. Such a kernel was not the fastest anywhere; m, n and k are then a shape
    at which it was measured.
    """

    device: str
    compute_capability: str  # "" for a kernel tuned on the CPU
    driver: str
    toolkit: str
    tuned_at: str  # ISO 8601, UTC
    dtype: str  # a name in DTYPES or MATHS
    op: str  # a letter in ORDERS or CONJUGATED for a, one for b (x: b is a transposed), and t if out is row-major
    m: int
    n: int
    k: int
    config: str
    median_us: float
    gbytes_per_s: float
    percent_of_floor: float
    cache: str  # state of the L2 before each timed launch: clean, dirty or warm
    vendor_us: float | None  # time of cuBLAS's routine, measured in turns with the kernel; None: not timed
    vendor_right: int | None  # 1 if the result of cuBLAS was within the error bound, else 0
    vendor_routine: str | None  # such as cublasSgemm
    vendor_version: int | None  # version of cuBLAS: 130100 is 13.1.0
    x_cublas: float | None  # vendor_us / median_us, below 1 if cuBLAS is faster; None if not timed or not right
    digest: str  # digest of the kernel's code, the key in KERNELS
    kernel: str  # name of the __global__ function
    launch: Launch  # launch parameters at this shape
    division: Division | None = None  # tile sizes; None if the occupancy is not known
    elsewhere: Sequence[Sequence[Any]] = ()  # times at other shapes: m, n, k, rows per block, splits, microseconds
    vendor_elsewhere: Sequence[Sequence[Any]] = ()  # cuBLAS's times, right results only: m, n, k, microseconds

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
        """Whether the kernel computes only products of a matrix and its own transpose.

        Such a kernel computes half of the elements of the symmetric or Hermitian result.
        """
        return self.op[1] == SAME

    @property
    def vector_bytes(self) -> int:
        """The number of bytes of the kernel's widest vector loads."""
        return VECTOR_BYTES if self.division is None else self.division.vector_bytes

    @property
    def kind_of_work(self) -> tuple[object, ...]:
        """The kernel's properties that determine, with shape and leading dimensions, its memory and arithmetic work.

        Kernels with equal tuples have equal `Work` for a product.
        """
        of_c = self.division is not None and self.division.vectors_of_c
        return self.orders, self.is_gram, self.vector_bytes, of_c

    @property
    def conjugates(self) -> tuple[bool, bool]:
        """Two booleans: whether the kernel conjugates a, and whether the kernel conjugates b."""
        return self.op[0] in CONJUGATED, self.op[1] in CONJUGATED


@dataclass(frozen=True)
class Match:
    """The winner chosen for a product, its launch, and the times on which the choice is based."""

    winner: Winner
    launch: Launch
    distance: float  # to the nearest tuned shape: sqrt(log(m/m')^2 + log(n/n')^2 + log(k/k')^2); 0: the same shape
    other_device: str | None  # name of the product's GPU, if the winner was tuned on another GPU
    across: tuple[int, int, int] | None = (
        None  # m, n and k of the transposed product, if the kernel computes that one
    )
    expected_us: float | None = None  # GPU time: measured if the distance is 0, else predicted; None: unknown
    vendor_us: float | None = None  # cuBLAS's time, likewise; None also if its result was wrong
    is_timed: bool = False  # whether `measure` took both times on the product's own arrays

    @property
    def swapped(self) -> bool:
        """Whether the kernel computes the transposed product."""
        return self.across is not None

    def __str__(self) -> str:
        w = self.winner
        how = w.config
        if self.launch.splits > 1:
            how += f" with {self.launch.splits} {'blocks' if self.launch.persistent else 'splits'}"
        if self.across is not None:
            how += f", by op {w.op} as the transposed product {'x'.join(map(str, self.across))}"
        if self.other_device is not None:
            how += (
                f", tuned on {w.device}: no winner of {self.other_device} fits; tune on that GPU for its own kernels"
            )
        return f"{how}: {self.basis}"

    @property
    def basis(self) -> str:
        """The reason for the choice as text: the times, and whether they are measured or predicted."""
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
            shape = f"measured at {w.m}x{w.n}x{w.k}"  # another kernel may be the fastest at that shape
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
        """Whether cuBLAS should compute the product, because it is faster than the kernel.

        If the times are predicted, cuBLAS should also compute the product if it is nearly as fast as the kernel.
        """
        if self.expected_us is None:
            return self.winner.x_cublas is not None and self.winner.x_cublas < 1
        return self.vendor_us is not None and self.vendor_us < self.doubt * self.expected_us

    @property
    def doubt(self) -> float:
        """The factor by which cuBLAS's time must exceed the kernel's for the kernel to be used: 1 for measured times.

        For predicted times the factor grows with the distance from the winner's shape.
        """
        if self.distance == 0 or self.is_timed:
            return 1.0
        return NO_GAIN * math.exp(DOUBT_BEYOND * max(self.distance - KNOWN_WITHIN, 0.0))

    @property
    def why_it_loses(self) -> str:
        """The match as text, with a note if the kernel is predicted to be only slightly faster than cuBLAS."""
        near = self.vendor_us is not None and self.expected_us is not None and self.vendor_us >= self.expected_us
        return f"{self}{', too little more to rely on' if near else ''}"


@dataclass(frozen=True)
class Vendor:
    """The decision that the arrays' own library computes a product, with the reason."""

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
    """Return the memory and arithmetic work of a product with the winner's kernel, or with cuBLAS if `of_vendor`.

    Without `lds` the matrices have no padding. With a kernel, `has_odd_lines` is true if the leading dimension of A
    or B, in bytes, is not a multiple of the width of the kernel's vector loads. If vectors access C in place of B,
    the leading dimension of C counts in place of that of B. With cuBLAS, `has_odd_lines` is true if the leading
    dimension of A or B is not a multiple of 16 bytes.
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
