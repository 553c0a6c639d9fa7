"""`Winner`, the fastest kernel for a shape; `Match`, the winner chosen for a product; `Vendor`, if none is chosen.

In names "vendor" means cuBLAS, or the arrays' library that calls it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from tsm2_tune.runtime.choice.launch import ONE_EACH, Launch
from tsm2_tune.runtime.elements import ACROSS, CONJUGATED, SAME


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
    batch: int  # products; 1 if the kernel computes single products only
    config: str
    median_us: float
    gbytes_per_s: float
    percent_of_floor: float
    cache: str  # state of the L2 before each timed launch: clean, dirty or warm
    vendor_us: float | None  # time of cuBLAS's routine, measured interleaved with the kernel; None: not timed
    vendor_right: int | None  # 1 if the result of cuBLAS was within the error bound, else 0
    vendor_routine: str | None  # such as cublasSgemm
    vendor_version: int | None  # version of cuBLAS: 130100 is 13.1.0
    x_cublas: float | None  # vendor_us / median_us, below 1 if cuBLAS is faster; None if not timed or not right
    digest: str  # digest of the kernel's code, the key in KERNELS
    kernel: str  # name of the __global__ function
    launch: Launch  # launch parameters at this shape

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
    def conjugates(self) -> tuple[bool, bool]:
        """Two booleans: whether the kernel conjugates a, and whether the kernel conjugates b."""
        return self.op[0] in CONJUGATED, self.op[1] in CONJUGATED


MERGED_ROWS, MERGED_COLUMNS = 1, 2  # values of `Match.merged`: core_merged


@dataclass(unsafe_hash=True)  # not frozen: see Matrix. No code changes one
class Match:
    """The winner chosen for a product, its launch, and the times on which the choice is based."""

    winner: Winner
    launch: Launch
    extents: tuple[int, int, int]  # m, n and k as the kernel computes them
    leading: tuple[int, int, int]  # leading dimensions of the kernel's A, B and C
    index_bits: int  # width of the kernel's integer parameters
    grid: tuple[int, int]  # blocks in x and y; (0, 0) if the product has too many tiles
    workspace_bytes: tuple[int, int] | None  # of partial sums and of counters; None if the kernel has no workspace
    measured_at: tuple[int, int, int]  # m, n and k of the nearest shape at which the kernel was measured
    distance: float  # to that shape: of the logarithms of m, n, k and the number of products
    is_tuned: bool = False  # whether the winner was tuned for the product's shape
    is_transposed: bool = False  # whether the kernel computes the transposed product
    other_device: str | None = None  # name of the product's GPU, if the winner was tuned on another GPU
    expected_us: float | None = None  # GPU time: measured if the shape was tuned, else predicted; None: unknown
    vendor_us: float | None = None  # cuBLAS's time, likewise; None also if its result was wrong
    is_vendor_chosen: bool = False  # whether cuBLAS is faster, or the kernel's predicted gain is within its error
    is_timed: bool = False  # whether `measure` took both times on the product's own arrays
    batch: int = 1  # products that the kernel computes
    strides: tuple[int, int, int] = (0, 0, 0)  # between the products' A, B and C as the kernel computes them
    workspace_strides: tuple[int, int] = (0, 0)  # between the products' partial sums, in sums; between their counters
    merged: int = 0  # MERGED_ROWS or MERGED_COLUMNS if the kernel computes a batch as one product
    measured_batch: int = 1  # products of the nearest batch at which the kernel was measured
    explanation: Callable[[], str] | None = field(default=None, compare=False, repr=False)  # makes its text

    @property
    def products_of_grid(self) -> int:
        """The blocks of the grid in z: the products, if each has blocks of its own."""
        return self.batch if self.launch.batched == ONE_EACH else 1

    def __getstate__(self) -> dict[str, Any]:
        text = None if self.explanation is None else partial(str, self.explanation())
        return self.__dict__ | {"explanation": text}

    def __str__(self) -> str:
        text = f"{self.winner.config}: tuned for this shape" if self.explanation is None else self.explanation()
        if not self.is_timed:
            return text
        vendors = "" if self.vendor_us is None else f", the vendor {self.vendor_us:.1f} us"
        kernel, _, _ = text.partition(": ")
        return f"{kernel}: timed on these arrays, with the L2 dirty {self.expected_us:.1f} us{vendors}"

    def timed(self, us: float, vendor_us: float | None) -> Match:
        """Return the match with the times that were measured on the product's own arrays."""
        return replace(self, expected_us=us, vendor_us=vendor_us, is_vendor_chosen=False, is_timed=True)


@dataclass(frozen=True)
class Vendor:
    """The decision that the arrays' own library computes a product, with the reason."""

    reason: str

    def __str__(self) -> str:
        return f"the vendor: {self.reason}"
