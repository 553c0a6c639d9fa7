"""Products that PyTorch's own operators are asked for: which of them a kernel computes, as gemm chooses.

Whatever is unusual, or to be refused, is left to PyTorch, which says what is wrong with it.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from tsm2_tune.runtime.arrays.libraries import torch_stream
from tsm2_tune.runtime.arrays.matrices import Product, index_bits
from tsm2_tune.runtime.choice.winners import Vendor
from tsm2_tune.runtime.cuda.cubins import is_loaded
from tsm2_tune.runtime.cuda.driver import context_id, current_context, home, is_capturing
from tsm2_tune.runtime.gemm import chosen_or_vendor
from tsm2_tune.runtime.launch_plan import Plan
from tsm2_tune.runtime.plan_cache import keep_plan, overlaps, plans, torch_key, torch_kinds, vendors
from tsm2_tune.runtime.prepare import ready, stream_of

KEY_OF_GPUS = "CUDA"  # the dispatch key at which operators compute there
OF_OPERATOR = "operator"  # in a key, for what a call of gemm asks besides
FEW = 16  # a and b together have so many times the elements of a result into which a smaller matrix is spread first,
LONG = 2**23  # and so many at least: to start one kernel more takes as long as a small product

Taker = Callable[..., Any]


def imported_torch() -> Any:
    """PyTorch. Raise RuntimeError if it is not installed."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise RuntimeError(f"it needs PyTorch: {error}") from error


def torch_taker(torch: Any) -> Taker:
    """Return the function that computes products of PyTorch's operators on a GPU whenever gemm would use a kernel."""
    kinds, stream_at, empty, float32 = torch_kinds(torch), torch_stream(torch), torch.empty, torch.float32
    precision = torch_precision(torch)

    def take(dimensions: int, a: Any, b: Any, out: Any, c: Any, alpha: Any, beta: Any) -> Any:
        """alpha a b + beta c in `out`, or a new row-major tensor where that is None; None: it is left to PyTorch.

        c may be `out`; None if there is no beta. All have so many dimensions, c perhaps fewer: 2, or 3 for a batch of
        one product.
        """
        if c is not None and c.dim() == 1 and a.dim() == b.dim() == 2:
            m, k = a.shape
            if not _is_small(m, k, b.shape[1]):
                return None  # a linear layer with a bias, most often: the quickest way out
        key = torch_key(a, b, out, OF_OPERATOR)
        if key in vendors or (alpha is not None and alpha == 0):  # then nobody reads a and b
            return None
        dtype, on = a.dtype, a.get_device()
        if (
            type(a) not in kinds or type(b) not in kinds or b.dtype is not dtype or b.get_device() != on
            or a.is_neg() or b.is_neg() or a.dim() != dimensions or b.dim() != dimensions
            or (dtype is float32 and precision() == "tf32")
        ):  # fmt: skip
            return None
        if out is not None and (
            type(out) not in kinds or out.dtype is not dtype or out.get_device() != on or out.dim() != dimensions
            or out.is_neg() or out.is_conj()
        ):  # fmt: skip
            return None
        plan = plans.get(key) or _first_plan(torch, a, b, out, key)
        if plan is None:
            return None
        pa, pb, at = a.data_ptr(), b.data_ptr(), 0 if out is None else out.data_ptr()
        if not pa or not pb or (pa | pb | at) & plan.alignment_mask or not (plan.takes(alpha) and plan.takes(beta)):
            return None
        if out is not None and (not at or overlaps(pa, pb, at, plan.spans)):
            return None
        if c is not None and c is not out and not (
            type(c) in kinds and c.dtype is dtype and c.get_device() == on and not c.is_neg()
            and _is_spread(c, (*a.shape[:-1], b.shape[-1]), out, plan)
        ):  # fmt: skip
            return None
        if out is None:
            out = empty((*a.shape[:-1], b.shape[-1]), dtype=dtype, device=a.device)
            at = out.data_ptr()
        if c is not None and c is not out and beta != 0:
            out.copy_(c)
        try:
            plan.start(pa, pb, at, alpha, beta, stream_at(on), a)
        except MemoryError:  # of a workspace
            return None
        return out

    return take


def torch_precision(torch: Any) -> Callable[[], str]:
    """In which PyTorch's own products of float32 are computed now: "tf32" where the program allows that."""
    found = getattr(torch._C, "_get_fp32_precision_getter", None)
    if found is None:
        return lambda: "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
    return partial(found, "cuda", "matmul")


def _is_spread(c: Any, shape: tuple[int, ...], out: Any, plan: Plan) -> bool:
    """Return whether copying c into the result, of this shape, costs no more than PyTorch's own way.

    That copies a whole matrix too, but adds a row in its epilogue: such a one is for small results alone.
    """
    if out is not None and out.untyped_storage().data_ptr() == c.untyped_storage().data_ptr():
        return False  # one may be a part of the other
    if tuple(c.shape) == shape:
        return True
    m, n, k = plan.shape
    fits = c.dim() <= len(shape) and all(x in (1, y) for x, y in zip(c.shape[::-1], shape[::-1], strict=False))
    return fits and _is_small(m, k, n)


def _is_small(m: int, k: int, n: int) -> bool:
    """Return whether a result of m x n is so small that spreading a row into it costs little beside the product."""
    return max(FEW * m * n, LONG) <= (m + n) * k


def _first_plan(torch: Any, a: Any, b: Any, out: Any, key: Any) -> Plan | None:
    """Return the plan of such products, or None if PyTorch computes them. Remember None if it cannot change."""
    is_batch = a.dim() == 3
    if is_batch and any(x.shape[0] != 1 for x in (a, b, a if out is None else out)):
        return None
    if any(not x.data_ptr() or x.data_ptr() % x.element_size() for x in (a, b)):
        return None  # says nothing about the same product at other addresses
    of_a, of_b = (x.detach()[0] if is_batch else x.detach() for x in (a, b))
    try:
        Product.of(of_a, of_b, None)
    except (TypeError, ValueError):  # no kernel takes these operands, whatever `out` is
        keep_plan(key, ())
        return None
    try:
        made = torch.empty((of_a.shape[0], of_b.shape[1]), dtype=a.dtype, device=a.device) if out is None else out
        product = Product.of(of_a, of_b, made.detach()[0] if made.dim() == 3 else made.detach())
        found = chosen_or_vendor(product, "vendor")
        if isinstance(found, Vendor):
            keep_plan(key, ())
            return None
        if _would_load(product, found):
            return None
        plan = ready(product, found, None)[1]
    except (TypeError, ValueError, MemoryError):  # another `out`, or more free memory, may succeed: keep no plan
        return None
    except RuntimeError as error:
        keep_plan(key, ())
        warnings.warn(f"left to PyTorch: {error}", RuntimeWarning, stacklevel=2)
        return None
    keep_plan(key, plan)
    return plan


def _would_load(product: Product, found: Any) -> bool:
    """Return whether the kernel is still to be loaded, and the stream is being captured, so that it cannot be now."""
    context, _ = home(product.a)
    oriented = product.transposed() if found.swapped else product
    if is_loaded(context_id(context), found.winner, index_bits(oriented, found.winner.orders)):
        return False
    with current_context(context):
        return is_capturing(stream_of(product, None))
