"""Choose a tuned kernel (a `Winner`) and its launch for a product. `core/choose.c` does the same in C."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tsm2_tune.runtime.arrays.matrices import Product, dtype_name
from tsm2_tune.runtime.choice.interpolation import Routines
from tsm2_tune.runtime.choice.predict import DOUBT, HOST_DOUBT, Kernels, Measured
from tsm2_tune.runtime.choice.winners import Leading, Match, Winner, work_of
from tsm2_tune.runtime.choice.work import Card, Work, WorkTable
from tsm2_tune.runtime.elements import ACROSS, CONJUGATED, GRAM, LARGEST_EXTENT, NAMES, ORDERS, SAME, log
from tsm2_tune.runtime.launcher import compiled_match
from tsm2_tune.runtime.module_data import CARDS, WINNERS

WORTH_TIMING = 2.0  # launches are timed if predicted to take at most this many times the least predicted time
MOST_CONTENDERS, LAUNCHES_OF_A_KERNEL = 20, 2  # most launches to time: in all, and of one kernel
CONJUGATING = {plain: letter for letter, plain in CONJUGATED.items()}
Orders = tuple[tuple[str, ...], ...]  # storage orders of a, b and, if given, out: ("n",), ("t",) or both
Shape = tuple[int, int, int]  # m, n, k


def match(m: int, n: int, k: int, dtype: Any, device: str | None = None, op: str = "nn") -> Match:
    """Return the kernel for C = A B on the GPU with this name, or on the CPU if `device` is None.

    C is m x n, A is m x k, B is k x n. `op` has one letter for A and one for B: n means column-major, t row-major, j
    column-major and conjugated, c row-major and conjugated; x for B means that B is A transposed. A third letter, t,
    means that C is row-major; "gram" means any op with x. `dtype` is a NumPy dtype, or a name in DTYPES or MATHS.
    Kernels tuned on this GPU are preferred to those tuned on other GPUs. For a tuned shape the result is the kernel
    that was fastest there. For another shape it is the kernel with the least predicted time; if times cannot be
    predicted, the kernel of the nearest tuned shape, by the Euclidean distance of the logarithms of m, n and k. Raise
    LookupError if no kernel has this element type and op.
    """
    m, n, k = (_extent(name, extent) for name, extent in (("m", m), ("n", n), ("k", k)))
    for name, word in (("device", device), ("op", op)):
        if not isinstance(word, str) and (word, name) != (None, "device"):
            raise TypeError(f"{name}: expected a text, got {type(word).__name__}")
    if (op == GRAM or op[1:2] == SAME) and m != n:
        raise ValueError(f"shape {m}x{n}x{k} with op {op}: a matrix times itself has m = n")
    tuned = _tuned(dtype_name(dtype), on_host=device is None)
    winners = tuple(w for w in tuned if w.op == op or (op == GRAM and w.is_gram))
    if not winners:
        raise LookupError(
            f"no kernel of op {op} is in this module, only of {_ops(tuned)}: tune with --op {op}, without --layout"
        )
    return _best(winners, (m, n, k), device)


def choose(product: Product, device: str | None) -> Match:
    """Return the kernel for the product on the GPU with this name, or on the CPU if `device` is None.

    Raise ValueError if no kernel has the product's storage orders, LookupError if none has its element type.
    """
    orders = tuple(tuple(x.ld) for x in product.given)
    leading = tuple(tuple(x.ld.values()) for x in product.given)
    return choose_by_layout(product.name, product.shape, orders, leading, product.conjugates, product.is_gram, device)


def contenders(product: Product, device: str) -> list[Match]:
    """Return the launches that are worth timing for the product, which must have an `out`.

    The first launch is the one that `choose` returns. The launches after it are sorted by predicted time, which is at
    most WORTH_TIMING times the least predicted time. There are at most MOST_CONTENDERS launches in all.
    """
    first = choose(product, device)
    orders = tuple(tuple(x.ld) for x in product.given)
    lds, of_across = _leading(orders, tuple(tuple(x.ld.values()) for x in product.given))
    as_is, across = _candidates(product.name, orders, product.conjugates, product.is_gram, on_host=False)
    m, n, k = product.shape
    found = [*_ways(as_is, (m, n, k), device, lds), *_ways(across, (n, m, k), device, of_across, swapped=True)]
    known = {(first.winner, first.launch, first.swapped)}
    others = [one for one in found if (one.winner, one.launch, one.swapped) not in known]
    others.sort(key=lambda one: one.expected_us or math.inf)
    least_us = min((one.expected_us for one in [first, *found] if one.expected_us is not None), default=0.0)
    near = [one for one in others if one.expected_us is not None and one.expected_us <= WORTH_TIMING * least_us]
    return [first, *near[: MOST_CONTENDERS - 1]]


def _ways(
    winners: tuple[Winner, ...], shape: Shape, device: str, lds: Leading, *, swapped: bool = False
) -> list[Match]:
    """Return launches of these kernels with their predicted times; [] if times cannot be predicted.

    With `swapped`, the kernels compute the transposed product, and `shape` is the shape of the transposed product.
    """
    contest = _contest(winners, device, None) if winners else None
    if contest is None or contest.kernels is None:
        return []
    other = None if contest.device == device else device
    away = np.sqrt(((contest.logs - _logs(shape)) ** 2).sum(axis=1)).tolist()
    ways = contest.kernels.ways(_work(contest, shape, lds), LAUNCHES_OF_A_KERNEL)
    across = shape if swapped else None
    return [Match(contest.winners[at], launch, away[at], other, across, us) for at, launch, us in ways]


def check_place(product: Product) -> None:
    """Raise TypeError if the arrays are on the CPU and all kernels are for GPUs, RuntimeError for the opposite."""
    if all(w.on_host != product.on_host for w in WINNERS):
        if product.on_host:
            raise TypeError("a: this module's kernels were tuned on GPUs only: pass device arrays")
        raise RuntimeError(
            "a: this module's kernels were tuned on a host only: pass NumPy arrays, or tune on the GPU"
        )


@lru_cache(maxsize=4096)
def choose_by_layout(name: str, shape: Shape, *rest: Any) -> Match:
    """Return the chosen kernel and log it. Results are cached, so that each choice is logged once."""
    found = _chosen_match(name, shape, *rest)
    log.debug("%s %s: %s", "x".join(map(str, shape)), name, found)
    return found


def _chosen_match(
    name: str,
    shape: tuple[int, int, int],
    orders: Orders,
    leading: tuple[tuple[int, ...], ...],
    conjugates: tuple[bool, bool],
    is_gram: bool,
    device: str | None,
) -> Match:
    """Return the kernel for matrices in these storage orders. It may compute the transposed product.

    The transposed product C^T = B^T A^T uses the same memory. A kernel for the transposed product is used if no
    kernel computes C = A B itself. It is also used if C is wider than tall and it is predicted to be faster (on the
    CPU: its tuned shape is nearer), since kernels are designed for a tall C. `leading` has a tuple for each matrix: a
    leading dimension for each of the matrix's storage orders. The compiled launcher, which makes the same choice in
    C, is tried first.
    """
    given = [dict(zip(order, ld, strict=True)) for order, ld in zip(orders, leading, strict=True)]
    compiled = compiled_match(name, shape, given, conjugates, is_gram, device)
    if compiled is not None:
        return compiled
    as_is, across = _candidates(name, orders, conjugates, is_gram, device is None)
    lds, of_across = _leading(orders, leading)
    (m, n, k), make_out = shape, len(orders) == 2
    found = _best(as_is, shape, device, lds, make_out=make_out) if as_is else None
    on_host = device is None  # there is no prediction for hosts
    is_known = on_host or (found is not None and found.expected_us is not None)
    if found is not None and not (across and m < n and found.distance > 0 and is_known):
        return found
    other = _best(across, (n, m, k), device, of_across, make_out=make_out, swapped=True)
    if found is None:
        return other
    is_better = other.distance < found.distance if on_host else _is_faster(other, found)
    return other if is_better else found


def _leading(orders: Orders, leading: tuple[tuple[int, ...], ...]) -> tuple[Leading, Leading]:
    """Return the leading dimensions of the product's matrices, and those of the transposed product's matrices.

    Each result has a dict of storage order -> leading dimension for each matrix.
    """
    lds = tuple(dict(zip(order, ld, strict=True)) for order, ld in zip(orders, leading, strict=True))
    mirrored = (lds[1], lds[0], *lds[2:])
    return lds, tuple({ACROSS[order]: ld for order, ld in of.items()} for of in mirrored)


def _is_faster(one: Match, other: Match) -> bool:
    """Return whether `one` is predicted to be faster than `other`.

    Return False if the time of `one` or `other` is unknown. Also return False if `one` was tuned on another GPU and
    `other` was not.
    """
    if one.expected_us is None or other.expected_us is None:
        return False
    return one.expected_us < other.expected_us and (one.other_device is None or other.other_device is not None)


@lru_cache(maxsize=4096)
def _candidates(
    name: str, orders: Orders, conjugates: tuple[bool, bool], is_gram: bool, on_host: bool
) -> tuple[tuple[Winner, ...], tuple[Winner, ...]]:
    """Return the kernels for these storage orders, and the kernels that can compute the transposed product.

    Raise ValueError if there are no kernels of either kind.
    """
    tuned = _tuned(name, on_host=on_host)
    as_is = _fitting(tuned, orders, conjugates, is_gram=is_gram)
    mirrored = tuple(tuple(ACROSS[order] for order in has) for has in (orders[1], orders[0], *orders[2:]))
    across = _fitting(tuned, mirrored, conjugates[::-1], is_gram=False)
    if not as_is and not across:
        raise ValueError(_no_kernel(name, orders, conjugates, is_gram, tuned))
    return as_is, across


def _fitting(
    tuned: list[Winner], orders: Orders, conjugates: tuple[bool, bool], *, is_gram: bool
) -> tuple[Winner, ...]:
    """Return those of the `tuned` kernels that have these storage orders and this conjugation of a and b.

    Kernels for the product of a matrix and its own transpose are included only if `is_gram`.
    """
    fits = (all(order in has for order, has in zip(w.orders, orders, strict=False)) for w in tuned)
    winners = [w for w, fit in zip(tuned, fits, strict=True) if fit and w.conjugates == conjugates]
    return tuple(w for w in winners if is_gram or not w.is_gram)


def _no_kernel(name: str, orders: Orders, conjugates: tuple[bool, bool], is_gram: bool, tuned: list[Winner]) -> str:
    letters = [has[0] for has in orders]
    op = "".join(CONJUGATING[x] if conj else x for x, conj in zip(letters, conjugates, strict=False))
    op = op[:1] + SAME if is_gram else op
    op += "t" if letters[2:] == ["t"] or (letters == ["t", "t"] and not is_gram) else ""  # as in other ops
    given = {name: " or ".join(ORDERS[order] for order in has) for name, has in zip(NAMES, orders, strict=False)}
    return (
        f"{_in_words(given, conjugates)}: this module has no {name} kernel for that, only for {_ops(tuned)};"
        f" tune with --op {op}, without --layout, and export again, or pass copies in the order of one of these"
    )


def _tuned(name: str, *, on_host: bool) -> list[Winner]:
    """Return all kernels for this element type: those tuned on the CPU if `on_host`, else those tuned on any GPU.

    Raise LookupError if there are no such kernels.
    """
    winners = [w for w in WINNERS if w.dtype == name and w.on_host == on_host]
    if not winners:
        place = "a host" if on_host else "a GPU"
        raise LookupError(f"no {name} kernel tuned on {place} is in this module: tune and export one")
    return winners


def _best(
    winners: tuple[Winner, ...],
    shape: Shape,
    device: str | None,
    lds: Leading | None = None,
    *,
    make_out: bool = False,
    swapped: bool = False,
) -> Match:
    """Return the best of these kernels for the shape, with its launch and predicted time.

    Kernels tuned on `device` are preferred. If `out` is new (`make_out`), kernels that write a column-major `out` are
    preferred among these. Of the kernels that remain, the one tuned for this shape is returned, or else the one with
    the least predicted time. If times cannot be predicted, the one with the nearest tuned shape is returned.
    `swapped` says that `winners` and `shape` are for the transposed product.
    """
    wanted = None
    if make_out and min(shape[:2]) > 1:
        wanted = "t" if swapped else "n"  # storage order of the kernel's C that makes `out` column-major
    found = _contest(winners, device, wanted)
    other = None if device in (None, found.device) else device
    across = shape if swapped else None
    own = found.by_shape.get(shape)
    if own is not None:
        us = None if own.on_host else own.median_us
        vendor_us = own.vendor_us if own.vendor_right and not own.on_host else None
        return Match(own, own.launch, 0.0, other, across, us, vendor_us)
    away = found.logs - _logs(shape)
    distances = np.sqrt((away * away).sum(axis=1))
    at = int(distances.argmin())
    nearest = found.winners[at]
    if found.kernels is None:
        return Match(nearest, nearest.launch, float(distances[at]), other, across)
    work = _work(found, shape, lds)
    at, launch, us = found.kernels.best(work, HOST_DOUBT if nearest.on_host else DOUBT)
    expected: tuple[float | None, float | None] = (None, None)
    if not nearest.on_host:
        same = work_of(nearest, shape, CARDS[found.device], lds, of_vendor=True)
        expected = (us, None if found.routines is None else found.routines.us(same))
    return Match(found.winners[at], launch, float(distances[at]), other, across, *expected)


@dataclass(frozen=True)
class Contest:
    """Kernels of one device for the same storage orders, with predictors of their times, to select one by shape."""

    device: str
    winners: list[Winner]  # kernels that compute half of a symmetric result first, then by time
    logs: np.ndarray[Any, Any]  # logarithms of m, n and k of each winner's tuned shape, a row each
    by_shape: dict[Shape, Winner]
    kinds: list[Winner]  # one winner for each value of `kind_of_work`
    kind_of: np.ndarray[Any, Any]  # each winner's index in `kinds`
    kernels: Kernels | None  # predicts the winners' times, in their order; None if one cannot be predicted
    routines: Routines | None  # predicts cuBLAS's times; None if it was not measured with a right result


@lru_cache(maxsize=4096)
def _contest(winners: tuple[Winner, ...], device: str | None, wanted: str | None) -> Contest:
    """Return the candidates of a choice: the winners that were tuned on the device.

    If no winner was tuned on the device, they are those that were tuned on the first winner's device. If `wanted` is
    a storage order, drop winners whose C has another order and is not symmetric, unless that would drop all.
    """
    name = next((w.device for w in winners if w.device == device), winners[0].device)
    chosen = [w for w in winners if w.device == name]
    chosen = [w for w in chosen if wanted in (None, w.orders[2]) or w.is_gram] or chosen
    chosen.sort(key=lambda w: (not w.is_gram, w.median_us))
    logs = np.array([_logs((w.m, w.n, w.k)) for w in chosen])
    by_shape = {(w.m, w.n, w.k): w for w in reversed(chosen)}
    divisions, kernels = [w.division for w in chosen if w.division is not None], None
    if name in CARDS and len(divisions) == len(chosen):
        measured = [measured_of(w, CARDS[name]) for w in chosen]
        works = [of[0].work for of in measured]
        kernels = Kernels(divisions, [w.launch for w in chosen], works, measured, CARDS[name])
    kinds = {w.kind_of_work: w for w in chosen}
    kind_of = np.array([list(kinds).index(w.kind_of_work) for w in chosen])
    return Contest(name, chosen, logs, by_shape, list(kinds.values()), kind_of, kernels, _routines(chosen))


def measured_of(winner: Winner, card: Card) -> list[Measured]:
    """Return the kernel's measured times: first at its tuned shape, then at other shapes."""
    own = (winner.m, winner.n, winner.k, winner.launch.rows_per_block, winner.launch.splits, winner.median_us)
    everywhere = (own, *winner.elsewhere)
    return [Measured(work_of(winner, (m, n, k), card), rows, splits, us) for m, n, k, rows, splits, us in everywhere]


def vendor_of(winner: Winner) -> list[tuple[Shape, float]]:
    """Return cuBLAS's times at the winner's tuned shape and at shapes nearby. Omit the times of wrong results."""
    nearby = [((m, n, k), us) for m, n, k, us in winner.vendor_elsewhere]
    if winner.vendor_us is None or not winner.vendor_right:
        return nearby
    return [((winner.m, winner.n, winner.k), winner.vendor_us), *nearby]


def _routines(winners: list[Winner]) -> Routines | None:
    """Return a predictor of cuBLAS's times from the times of cuBLAS that are stored with these winners.

    Return None if no such times are stored.
    """
    times = [(w, shape, us) for w in winners if w.device in CARDS for shape, us in vendor_of(w)]
    if not times:
        return None
    works = [work_of(w, shape, CARDS[w.device], of_vendor=True) for w, shape, _ in times]
    return Routines(works, [us for *_, us in times])


def _work(contest: Contest, shape: Shape, lds: Leading | None) -> Work | WorkTable:
    """Return the memory and arithmetic work of the product with each of the contest's kernels."""
    works = [work_of(w, shape, CARDS[contest.device], lds) for w in contest.kinds]
    if len(works) == 1:
        return works[0]
    return WorkTable.of_shape(works, contest.kind_of)


def _logs(shape: Shape) -> np.ndarray[Any, Any]:
    return np.array([math.log(extent) for extent in shape])


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
    words = {op: {x: ORDERS[o] for x, o in zip(NAMES, of, strict=True)} for op, of in orders.items()}
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
