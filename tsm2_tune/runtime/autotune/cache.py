"""The in-memory cache of kernels chosen by timing.

Products that differ only in addresses, alpha and beta share a choice.
"""

from __future__ import annotations

import threading
from typing import Any

from tsm2_tune.runtime.arrays.libraries import is_cupys, is_torchs
from tsm2_tune.runtime.arrays.matrices import Product
from tsm2_tune.runtime.autotune.choice_file import keep_choice, recalled
from tsm2_tune.runtime.autotune.timing import fastest_way, vendors_of
from tsm2_tune.runtime.choice.winners import Match, Vendor
from tsm2_tune.runtime.cuda.driver import context_id, device_of, home
from tsm2_tune.runtime.elements import log
from tsm2_tune.runtime.prepare import effective_factors

MOST_DECIDED = 1 << 16  # most entries of the cache
decided: dict[Any, Match | Vendor] = {}
_deciding = threading.RLock()  # one thread times at a time; the other threads wait


def has_factors(product: Product, alpha: Any, beta: Any) -> bool:
    """Return whether alpha or beta differs from its neutral value, so that it changes the result."""
    return effective_factors(product, alpha, beta) != effective_factors(product, None, None)


def by_timing(
    product: Product, expected: Match | Vendor, kernel: Match, fallback: str, alpha: Any, beta: Any, stream: Any
) -> Match | Vendor:
    """Time the launches with the least predicted times, and the library's own product. Return the fastest choice.

    The choice is cached: products that differ only in addresses, alpha and beta are not timed again. In three cases
    the result is not chosen by timing, but is `expected`, the choice by predicted time. These are: `expected` is the
    library's product, which cannot be timed here; memory is short; or `out` must be restored after timing, and a, b
    or `out` belongs to a library other than PyTorch and CuPy.
    """
    keeps = beta is not None and beta != effective_factors(product, None, None)[1]
    multiply = vendors_of(product, alpha, beta) if fallback == "vendor" else None
    others = keeps and not all(is_torchs(x.array) or is_cupys(x.array) for x in product.given)
    if others or (multiply is None and isinstance(expected, Vendor)):
        return expected
    kind = _kind(product, fallback, is_vendor_timed=multiply is not None)
    found = decided.get(kind)
    if found is not None:
        return found
    with _deciding:
        found = decided.get(kind)  # another thread may have timed it while this one waited
        if found is None:
            device = device_of(home(product.a)[1])[0]
            found = recalled(product, kind, device, may_be_vendor=multiply is not None)
            if found is None:
                try:
                    found = fastest_way(product, kernel, alpha, beta, stream, multiply)
                except MemoryError:
                    return expected
                keep_choice(product, kind, device, found)
            if len(decided) >= MOST_DECIDED:
                decided.clear()
            decided[kind] = found
            log.debug("%s %s: %s", "x".join(map(str, product.shape)), product.name, found)
    return found


def _kind(product: Product, fallback: str, *, is_vendor_timed: bool) -> Any:
    """Return the key in the cache: CUDA context, types, shapes and strides, but no addresses."""
    layouts = tuple((x.rows, x.columns, x.ld) for x in product.given), product.products, product.strides
    where = context_id(home(product.a)[0])
    return where, product.name, layouts, product.conjugates, product.is_gram, fallback, is_vendor_timed
