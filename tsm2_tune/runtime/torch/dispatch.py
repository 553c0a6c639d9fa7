"""Decide whether a kernel computes a call of a PyTorch operator, as gemm would, or PyTorch itself."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from tsm2_tune.runtime.arrays.libraries import torch_stream
from tsm2_tune.runtime.arrays.matrices import Product
from tsm2_tune.runtime.choice.winners import Vendor
from tsm2_tune.runtime.cuda.cubins import is_loaded
from tsm2_tune.runtime.cuda.driver import context_id, current_context, home, is_capturing
from tsm2_tune.runtime.gemm import chosen_or_vendor
from tsm2_tune.runtime.launch_plan import Plan
from tsm2_tune.runtime.plan_cache import keep_plan, overlaps, plans, torch_key, torch_kinds
from tsm2_tune.runtime.prepare import prepare_launch, stream_of

KEY_OF_GPUS = "CUDA"  # PyTorch's dispatch key for GPUs
OF_OPERATOR = "operator"  # element of the plan cache's key that tells operators from calls of gemm
# A result counts as small if a and b together have at least FEW times as many elements, and at least LONG elements.
FEW = 16
LONG = 2**23

Taker = Callable[..., Any]


def imported_torch() -> Any:
    """Import PyTorch and return the module. Raise RuntimeError if it is not installed."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise RuntimeError(f"it needs PyTorch: {error}") from error


def torch_taker(torch: Any) -> Taker:
    """Return a function that computes an operator's product with a kernel, if gemm would use a kernel for it."""
    kinds, stream_at, empty, float32 = torch_kinds(torch), torch_stream(torch), torch.empty, torch.float32
    precision = torch_precision(torch)

    def take(dimensions: int, a: Any, b: Any, out: Any, c: Any, alpha: Any, beta: Any) -> Any:
        """Return alpha a b + beta c in `out`, or in a new row-major tensor; None if PyTorch must compute it.

        `dimensions` is 2, or 3 for a batch. c is None for an operator without beta, may be `out`, or be broadcast.
        """
        if c is not None and c.dim() == 1 and a.dim() == b.dim() == 2:
            m, k = a.shape
            if not _is_small(m, k, b.shape[1]):
                return None  # usually a linear layer with a bias; tested first because it is frequent
        key = torch_key(a, b, out, OF_OPERATOR)
        plan = plans.get(key)
        if isinstance(plan, tuple) or (alpha is not None and alpha == 0):  # with alpha = 0 a and b are not read
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
        plan = plan or _first_plan(torch, a, b, out, key)
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
            plan.start((stream_at(on), pa, pb, at), alpha, beta, a)
        except MemoryError:  # no room for the workspace
            return None
        return out

    return take


def torch_precision(torch: Any) -> Callable[[], str]:
    """Return a function that returns the precision of PyTorch's float32 products: "tf32", or another text."""
    found = getattr(torch._C, "_get_fp32_precision_getter", None)
    if found is None:
        return lambda: "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
    return partial(found, "cuda", "matmul")


def _is_spread(c: Any, shape: tuple[int, ...], out: Any, plan: Plan) -> bool:
    """Return whether c should be copied (broadcast) into the result before the kernel adds the product.

    PyTorch copies a matrix and any c of a batch, too. It adds a row to one product in the epilogue of its kernel, so
    a row or column is copied only into a small result.
    """
    if out is not None and out.untyped_storage().data_ptr() == c.untyped_storage().data_ptr():
        return False  # c and out may overlap
    if tuple(c.shape) == shape:
        return True
    m, n, k = plan.shape
    fits = c.dim() <= len(shape) and all(x in (1, y) for x, y in zip(c.shape[::-1], shape[::-1], strict=False))
    return fits and (len(shape) > 2 or _is_small(m, k, n))


def _is_small(m: int, k: int, n: int) -> bool:
    """Return whether the m x n result is much smaller than the operands, so that writing it twice costs little."""
    return max(FEW * m * n, LONG) <= (m + n) * k


def _first_plan(torch: Any, a: Any, b: Any, out: Any, key: Any) -> Plan | None:
    """Return a launch plan for the product, cached under `key`; None, perhaps cached, if PyTorch must compute it."""
    if a.shape[:-2] != b.shape[:-2]:  # gemm would broadcast
        return None
    if any(not x.data_ptr() or x.data_ptr() % x.element_size() for x in (a, b)):
        return None  # not cached: other addresses may fit
    of_a, of_b = a.detach(), b.detach()
    try:
        Product.of(of_a, of_b, None)
    except (TypeError, ValueError):  # no kernel can read these operands, whatever `out` is
        keep_plan(key, ())
        return None
    try:
        made = torch.empty((*a.shape[:-1], b.shape[-1]), dtype=a.dtype, device=a.device) if out is None else out
        product = Product.of(of_a, of_b, made.detach())
        found = chosen_or_vendor(product, "vendor")
        if isinstance(found, Vendor):
            keep_plan(key, ())
            return None
        if _would_load(product, found):
            return None
        plan = prepare_launch(product, found, None)[1]
    except (TypeError, ValueError, MemoryError):  # may succeed with another `out` or more memory
        return None
    except RuntimeError as error:
        keep_plan(key, ())
        warnings.warn(f"left to PyTorch: {error}", RuntimeWarning, stacklevel=2)
        return None
    keep_plan(key, plan)
    return plan


def _would_load(product: Product, found: Any) -> bool:
    """Return whether a stream is captured and the kernel is not loaded. PyTorch then computes the product."""
    context, _ = home(product.a)
    if is_loaded(context_id(context), found.winner, found.index_bits):
        return False
    with current_context(context):
        return is_capturing(stream_of(product, None))
