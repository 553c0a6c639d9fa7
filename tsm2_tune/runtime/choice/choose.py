"""Choose a tuned kernel (a `Winner`) and its launch for a product. The core decides (core.py)."""

from __future__ import annotations

import logging
import operator
import struct
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

from tsm2_tune.runtime.arrays.matrices import Product
from tsm2_tune.runtime.choice.core import (
    CHOICE,
    NO_KERNEL,
    PRODUCT,
    TUNED,
    TYPES_IN_C,
    Core,
    CoreChoice,
    module_core,
)
from tsm2_tune.runtime.choice.launch import ONE_EACH, SUMS_ALIGNMENT
from tsm2_tune.runtime.choice.winners import Match, Winner
from tsm2_tune.runtime.elements import (
    ACROSS,
    CONJUGATED,
    DTYPES,
    GRAM,
    INDEX_WIDTHS,
    LARGEST_EXTENT,
    MATHS,
    NAMES,
    ORDERS,
    SAME,
    SUMS,
    dtype_name,
    log,
)
from tsm2_tune.runtime.module_data import WINNERS

CONJUGATING = {plain: letter for letter, plain in CONJUGATED.items()}
Shape = tuple[int, int, int]  # m, n, k
Leading = tuple[tuple[int, int], ...]  # of a, b and, if given, out: as column-major and as row-major; 0: it is not
Strides = tuple[int, int, int]  # from a product's a, b and out to the next product's, in elements


class Layout(NamedTuple):
    """The properties of a product that determine the choice. `record` is the same as a packed struct core_product."""

    name: str  # element type, a name in DTYPES or MATHS
    shape: Shape
    leading: Leading
    conjugates: tuple[bool, bool] = (False, False)
    is_gram: bool = False  # whether b is the transpose of a, in the same memory
    batch: int = 1  # number of products
    strides: Strides = (0, 0, 0)  # 0 for an a or b that all products share, and for a single product

    @classmethod
    def of_record(cls, record: bytes) -> Layout:
        m, n, k, *lds, of_a, of_b, of_out, batch, number, conj_a, conj_b, is_gram, makes_c, _ = PRODUCT.unpack(record)
        leading = tuple(zip(lds[::2], lds[1::2], strict=True))[: 2 if makes_c else 3]
        conjugates, strides = (bool(conj_a), bool(conj_b)), (of_a, of_b, of_out)
        return cls(TYPES_IN_C[number], (m, n, k), leading, conjugates, bool(is_gram), batch, strides)

    @classmethod
    def of_op(cls, name: str, shape: Shape, op: str, batch: int = 1) -> Layout:
        """Return the layout of contiguous matrices in the storage orders of the op, or of any op that is GRAM."""
        m, n, k = shape
        strides = (0, 0, 0) if batch == 1 else (m * k, k * n, m * n)
        if op == GRAM:
            return cls(name, shape, ((m, k), (k, n), (m, n)), is_gram=True, batch=batch, strides=strides)
        a, b = (CONJUGATED.get(letter, letter) for letter in op[:2])
        orders = (a, ACROSS[a] if b == SAME else b, op[2:] or "n")
        extents = ((m, k), (k, n), (m, n))
        leading = tuple(
            (rows, 0) if order == "n" else (0, columns)
            for (rows, columns), order in zip(extents, orders, strict=True)
        )
        conjugates = (op[0] in CONJUGATED, op[1] in CONJUGATED)
        if b == SAME:
            conjugates = (conjugates[0], False)
        return cls(name, shape, leading, conjugates, b == SAME, batch, strides)

    @property
    def op(self) -> str:
        """The op with these storage orders: the inverse of `of_op`. "nt" counts as column-major."""
        letters = [orders[0] for orders in self.orders]
        a, b = (
            CONJUGATING[letter] if conjugated else letter
            for letter, conjugated in zip(letters, self.conjugates, strict=False)
        )
        is_row_major = letters[2:] == ["t"] or (letters == ["t", "t"] and not self.is_gram)  # of out, as in other ops
        return a + (SAME if self.is_gram else b) + ("t" if is_row_major else "")

    @property
    def record(self) -> bytes:
        return core_record(*self)

    @property
    def text(self) -> str:
        """The shape and the type, such as 20480x16x20480 f32, or of a batch 500000*8x8x8 f32."""
        return f"{self.batch}*" * (self.batch > 1) + "x".join(map(str, self.shape)) + f" {self.name}"

    @property
    def orders(self) -> tuple[str, ...]:
        """The storage orders that each matrix has: "n", "t" or "nt"."""
        return tuple("".join(order for order, ld in zip("nt", lds, strict=True) if ld) for lds in self.leading)


def core_record(
    name: str, shape: Shape, leading: Sequence[tuple[int, int]], conjugates: tuple[bool, bool], is_gram: bool,
    batch: int = 1, strides: Strides = (0, 0, 0), *, leaves_out_shape: bool = False,
) -> bytes:  # fmt: skip
    """Return a packed struct core_product. Its other fields are those of a Layout."""
    (a, b), makes_c = leading[:2], len(leading) == 2
    c = (0, 0) if makes_c else leading[2]
    flags = (*conjugates, is_gram, makes_c, leaves_out_shape)
    try:
        return PRODUCT.pack(*shape, *a, *b, *c, *strides, batch, TYPES_IN_C.index(name), *flags)
    except struct.error:
        raise ValueError(f"an extent or a stride of {'x'.join(map(str, shape))} exceeds 64 bits") from None


def record_of(product: Product) -> bytes:
    """Return the product as a packed struct core_product. Raise ValueError for a batch without single strides."""
    a, b, out = product.a, product.b, product.out
    leading = (a.ld, b.ld) if out is None else (a.ld, b.ld, out.ld)
    if product.strides is None:
        raise ValueError(
            f"the leading dimensions {product.products} are not one dimension of each array, with one stride: pass"
            " contiguous copies"
        )
    return core_record(
        product.name, product.shape, leading, product.conjugates, product.is_gram, product.batch, product.strides
    )


class Chooser:
    """Chooses a winner with the core, whose pack has the winners in this order.

    Without a core it chooses only for the shapes and storage orders for which a winner was tuned.
    """

    def __init__(self, winners: Sequence[Winner], core: Core | None) -> None:
        self.winners, self.core = winners, core

    def match(self, record: bytes, device: str | None) -> Match:
        """Return the kernel for a record's product on the GPU with this name, or on the CPU if `device` is None.

        Raise ValueError if no kernel has the product's storage orders, LookupError if none has its element type.
        """
        if self.core is None:
            return self._tuned_match(Layout.of_record(record), device)
        choice = self.core.choose(record, device)
        if choice.reason == NO_KERNEL:
            raise self._no_kernel(Layout.of_record(record), on_host=device is None)
        return self._match(choice, device)

    def contenders(self, record: bytes, device: str) -> list[Match]:
        """Return the launches that are worth timing, first the one that `match` returns."""
        if self.core is None:
            return [self._tuned_match(Layout.of_record(record), device)]
        return [self._match(choice, device) for choice in self.core.contenders(record, device)]

    def _match(self, choice: CoreChoice, device: str | None) -> Match:
        assert self.core is not None
        (
            reason, kernel, is_vendors, is_transposed, is_of_other_device, _, merged, index_bits, rows_per_block,
            splits, grid_x, grid_y, _, partials_bytes, counters_bytes, of_partials, of_counters, m, n, k,
            lda, ldb, ldc, of_a, of_b, of_c, batch, measured_m, measured_n, measured_k, measured_batch,
            _, distance, _, us, vendor_us,
        ) = CHOICE.unpack(choice)  # fmt: skip
        winner = self.winners[kernel]
        launch = winner.launch.resized(rows_per_block, splits)
        # By position, since Python passes keywords to a class in a dict, which takes longer.
        return Match(
            winner, launch, (m, n, k), (lda, ldb, ldc), index_bits, (grid_x, grid_y),
            (partials_bytes, counters_bytes) if launch.has_workspace else None,
            (measured_m, measured_n, measured_k), distance, reason == TUNED, bool(is_transposed),
            device if is_of_other_device else None, us or None, vendor_us or None, bool(is_vendors),
            False, batch, (of_a, of_b, of_c), (of_partials, of_counters), merged, measured_batch,
            partial(self.core.explanation, choice, device),
        )  # fmt: skip

    def _tuned_match(self, layout: Layout, device: str | None) -> Match:
        """Return the winner of exactly this shape. Raise LookupError if there is none."""
        m, n, _ = shape = layout.shape
        w = next((w for w in self.winners if _is_tuned_for(w, layout, device)), None)
        if w is None:
            raise LookupError(f"no kernel was tuned for {layout.text}, and times cannot be predicted here")
        new_out = (m, 0) if w.orders[2] == "n" else (0, n)
        pairs = zip(w.orders, (*layout.leading, new_out), strict=False)
        lda, ldb, ldc = (lds["nt".index(order)] for order, lds in pairs)
        return Match(
            winner=w,
            launch=w.launch,
            extents=shape,
            leading=(lda, ldb, ldc),
            index_bits=INDEX_WIDTHS[1],
            grid=w.launch.grid(m, n),
            workspace_bytes=_workspace_bytes(w),
            batch=layout.batch,
            strides=layout.strides if len(layout.leading) > 2 else (*layout.strides[:2], m * n * (layout.batch > 1)),
            workspace_strides=_workspace_strides(w),
            measured_batch=layout.batch,
            measured_at=shape,
            distance=0.0,
            is_tuned=True,
            is_vendor_chosen=w.x_cublas is not None and w.x_cublas < 1,
        )

    def _no_kernel(self, layout: Layout, *, on_host: bool) -> LookupError | ValueError:
        """Return the error for a product that no kernel computes."""
        of_type = [w for w in self.winners if w.dtype == layout.name and w.on_host == on_host]
        tuned = [w for w in of_type if (w.batch > 1) == (layout.batch > 1)]
        if not tuned:
            kind = f" of {'batches' if layout.batch > 1 else 'single products'}" if of_type else ""
            place = "a host" if on_host else "a GPU"
            return LookupError(
                f"no {layout.name} kernel{kind} tuned on {place} is in this module: tune and export one"
            )
        if layout.batch > 1 and any(_has_layout(w, layout) for w in tuned):
            return ValueError(
                f"no kernel of this module computes {layout.text}: its products are too many or too large for the"
                " kernels of batches"
            )
        given = {
            name: " or ".join(ORDERS[letter] for letter in letters)
            for name, letters in zip(NAMES, layout.orders, strict=False)
        }
        return ValueError(
            f"{_in_words(given, layout.conjugates)}: this module has no {layout.name} kernel for that, only for"
            f" {_ops(tuned)}; tune with --op {layout.op}, without --layout, and export again, or pass copies in the"
            " order of one of these"
        )


@cache
def chooser() -> Chooser:
    """Return the chooser among this module's winners."""
    return Chooser(WINNERS, module_core())


def match(
    m: int, n: int, k: int, dtype: Any, device: str | None = None, op: str = "nn", batch: int = 1
) -> Match:  # fmt: skip
    """Return the kernel for C = A B on the GPU with this name, or on the CPU if `device` is None.

    C is m x n, A is m x k, B is k x n, all contiguous. `op` has one letter for A and one for B: n means column-major,
    t row-major, j column-major and conjugated, c row-major and conjugated; x for B means that B is A transposed. A
    third letter, t, means that C is row-major; "gram" means any op with x. Each of `batch` products has matrices of
    its own, which follow one another. `dtype` is a NumPy dtype, or a name in DTYPES or MATHS. Kernels tuned on this
    GPU are preferred to those tuned on other GPUs. For a tuned shape the result is the kernel that was fastest there.
    For another shape it is the kernel with the least predicted time, which may compute the transposed product; if the
    rates of the device or the occupancy of a kernel are unknown, the kernel of the nearest tuned shape, by the
    Euclidean distance of the logarithms of m, n, k and batch. If the core does not load, only tuned shapes have a
    kernel. Raise LookupError if no kernel has this element type, ValueError if no kernel has this op.
    """
    m, n, k, batch = (_extent(name, extent) for name, extent in (("m", m), ("n", n), ("k", k), ("batch", batch)))
    for name, word in (("device", device), ("op", op)):
        if not isinstance(word, str) and (word, name) != (None, "device"):
            raise TypeError(f"{name}: expected a text, got {type(word).__name__}")
    letters = (*ORDERS, *CONJUGATED)
    if op != GRAM and not (
        len(op) in (2, 3) and op[0] in letters and op[1] in (*letters, SAME) and op[2:] in ("", "n", "t")
    ):
        raise ValueError(f"op: expected {GRAM}, or two letters of {', '.join(letters)} (for b also x), got {op!r}")
    if (op == GRAM or op[1:2] == SAME) and m != n:
        raise ValueError(f"shape {m}x{n}x{k} with op {op}: a matrix times itself has m = n")
    layout = Layout.of_op(dtype_name(dtype), (m, n, k), op, batch)
    if op == GRAM:  # X^T X or X^H X, as the module's kernels
        kinds = (w.conjugates for w in WINNERS if w.is_gram and (w.dtype, w.on_host) == (layout.name, device is None))
        layout = layout._replace(conjugates=next(kinds, layout.conjugates))
    return chooser().match(layout.record, device)


def choose(product: Product, device: str | None) -> Match:
    """Return the kernel for the product on this GPU; None: on the CPU. Raise ValueError or LookupError if none."""
    return choose_by_record(record_of(product), device)


def contenders(product: Product, device: str) -> list[Match]:
    """Return the launches worth timing, first the one that `choose` returns. The product must have an `out`."""
    return chooser().contenders(record_of(product), device)


@lru_cache(maxsize=4096)
def choose_by_record(record: bytes, device: str | None) -> Match:
    """Return the chosen kernel and log it. Results are cached, so that each choice is logged once."""
    found = chooser().match(record, device)
    if log.isEnabledFor(logging.DEBUG):
        layout = Layout.of_record(record)
        log.debug("%s: %s", layout.text, found)
    return found


@cache
def values_of_on_host() -> frozenset[bool]:
    """Return the values of `on_host` among this module's kernels."""
    return frozenset(w.on_host for w in WINNERS)


def check_place(product: Product) -> None:
    """Raise TypeError if the arrays are on the CPU and all kernels are for GPUs, RuntimeError for the opposite."""
    if product.on_host not in values_of_on_host():
        if product.on_host:
            raise TypeError(
                "a: this module's kernels were tuned on GPUs only: pass device arrays (tsm2-tune predict shows the"
                " choice for a shape without a GPU)"
            )
        raise RuntimeError(
            "a: this module's kernels were tuned on a host only: pass NumPy arrays, or tune on the GPU"
        )


def _is_tuned_for(w: Winner, layout: Layout, device: str | None) -> bool:
    """Return whether the winner was tuned on this device for exactly this product."""
    is_here = w.on_host if device is None else w.device == device
    is_of_shape = (w.dtype, w.m, w.n, w.k, w.batch) == (layout.name, *layout.shape, layout.batch)
    return is_here and is_of_shape and _has_layout(w, layout)


def _has_layout(w: Winner, layout: Layout) -> bool:
    """Return whether the winner's kernel computes products of these storage orders and conjugates."""
    has_orders = all(order in orders for order, orders in zip(w.orders, layout.orders, strict=False))
    return has_orders and w.conjugates == layout.conjugates and (layout.is_gram or not w.is_gram)


def _workspace_bytes(winner: Winner) -> tuple[int, int] | None:
    """Return the bytes of partial sums and of counters at the winner's own shape; None without a workspace."""
    launch = winner.launch
    if not launch.has_workspace:
        return None
    element = next((element for (_, element), name in MATHS.items() if name == winner.dtype), winner.dtype)
    sums = SUMS.get(element, DTYPES[element])
    partials, counters = _workspace_strides(winner)
    products = winner.batch if launch.batched == ONE_EACH else 1
    return products * partials * sums.itemsize, products * counters * 4


def _workspace_strides(winner: Winner) -> tuple[int, int]:
    """Return the partial sums and the counters of a product at the winner's own shape, aligned as the core does."""
    launch, shape = winner.launch, (winner.m, winner.n)
    alignment = SUMS_ALIGNMENT if launch.batched else 1
    return -(-launch.partial_elements(*shape) // alignment) * alignment, launch.counters(*shape)


def _extent(name: str, extent: Any) -> int:
    """Return the extent as an int. Raise TypeError or ValueError, with its name, if it is not a positive integer."""
    try:
        whole = operator.index(extent)
    except TypeError:
        raise TypeError(f"{name}: expected a whole number, got {type(extent).__name__}") from None
    if not 1 <= whole <= LARGEST_EXTENT:
        raise ValueError(f"{name}: expected at least 1 and at most {LARGEST_EXTENT}")
    return whole


def _ops(winners: list[Winner]) -> str:
    """Return the winners' ops as text, such as: op nn (a, b and out column-major)."""
    orders = {w.op: w.orders for w in winners}
    words = {
        op: {name: ORDERS[letter] for name, letter in zip(NAMES, letters, strict=True)}
        for op, letters in orders.items()
    }
    conjugates = {w.op: w.conjugates for w in winners}
    same = {w.op: ", b is a transposed" if w.is_gram else "" for w in winners}
    return _listed(f"op {op} ({_in_words(words[op], conjugates[op])}{same[op]})" for op in sorted(words))


def _in_words(orders: dict[str, str], conjugates: tuple[bool, bool] = (False, False)) -> str:
    """Return the storage orders of the matrices as text, such as: a row-major, b and out column-major."""
    groups: dict[str, list[str]] = {}
    for name, order in orders.items():
        groups.setdefault(order, []).append(name)
    conjugated = [name for name, is_so in zip(NAMES, conjugates, strict=False) if is_so]
    if conjugated:
        groups["conjugated"] = conjugated
    return ", ".join(f"{_listed(names)} {order}" for order, names in groups.items())


def _listed(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
