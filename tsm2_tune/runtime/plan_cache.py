"""The cache of launch plans, which lets repeated calls of gemm skip the checks and the choice of a kernel.

A key contains everything that determines the launch, such as shapes, strides and element type. A function of type
Starter looks up the plan for its arguments, launches it and returns `out`. It returns None if the call needs gemm's
full checks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tsm2_tune.runtime.arrays.libraries import is_cupys, torch_stream, vendors_product
from tsm2_tune.runtime.arrays.protocols import CupyArray, Tensor
from tsm2_tune.runtime.cuda.driver import stream_handle
from tsm2_tune.runtime.launch_plan import Plan

Starter = Callable[..., Any]
PLAIN = (type(None), int, float)  # types of alpha and beta that need no check
NO_CONJUGATES = (False, False)
MOST_PLANS = 4096  # most entries in both caches together

plans: dict[Any, Plan] = {}
vendors: dict[Any, tuple[int, ...]] = {}  # products that the arrays' library computes: bytes spanned by a, b and out
starters: dict[type, Starter] = {}  # type of `a` -> function that launches cached products


def keep_plan(key: Any, plan: Plan | tuple[int, ...]) -> None:
    """Cache a plan under this key. If the plan is a tuple, the arrays' library computes the product.

    The tuple has the number of bytes from the first to the last element of a, of b and of out. For calls of PyTorch's
    operators the tuple is empty.
    """
    if len(plans) + len(vendors) >= MOST_PLANS:
        plans.clear()
        vendors.clear()
    if isinstance(plan, Plan):
        plans[key] = plan
    else:
        vendors[key] = plan


def overlaps(a: int, b: int, out: int, spans: tuple[int, ...]) -> bool:
    """Return whether the memory range of `out` overlaps that of a or b.

    a, b and out are addresses. `spans` are the numbers of bytes from the first to the last element of each.
    """
    of_a, of_b, of_out = spans
    return (a < out + of_out and out < a + of_a) or (b < out + of_out and out < b + of_b)


def by_vendor(a: Any, b: Any, out: Any, alpha: Any, beta: Any, asked: Any) -> Any:
    """Compute the product with the arrays' own library, on its current stream, and return `out`.

    Return None if the call needs gemm's full checks. `asked` has gemm's conj_a, conj_b, math, fallback and measure,
    or is None if all have their defaults.
    """
    if type(alpha) not in PLAIN or type(beta) not in PLAIN or (out is None and beta is not None):
        return None
    if asked and asked[4] and not (alpha is None and beta is None) and is_cupys(a):
        return None  # CuPy's product was timed without alpha and beta
    return vendors_product(
        a, b, out, 1 if alpha is None else alpha, 0 if beta is None else beta, asked[:2] if asked else NO_CONJUGATES
    )


# PyTorch


def torch_key(a: Tensor, b: Tensor, out: Tensor | None, asked: Any) -> Any:
    """Return the key in the plan cache for these tensors, which have one element type and device.

    `asked` has gemm's conj_a, conj_b, math, fallback and measure, or None if all have their defaults.
    """
    shape, strides = (None, None) if out is None else (out.shape, out.stride())
    bits = tuple(x.is_conj() for x in (a, b)) if a.dtype.is_complex else None
    same = a.data_ptr() == b.data_ptr()
    return a.shape, b.shape, shape, a.stride(), b.stride(), strides, a.dtype, a.get_device(), bits, same, asked


def torch_kinds(torch: Any) -> tuple[type, type]:
    """Return the tensor types that kernels accept: torch.Tensor and Parameter, but no other subclass."""
    return torch.Tensor, torch.nn.Parameter


def torch_current_device(torch: Any) -> Callable[[], int]:
    """Return the fastest of PyTorch's functions that return the ordinal of the current device."""
    found: Callable[[], int] = (
        getattr(getattr(torch, "_C", None), "_cuda_getDevice", None) or torch.cuda.current_device
    )
    return found


def torch_starter(torch: Any) -> Starter:
    """Return a function that launches a product of tensors if its plan is cached, and else returns None."""
    kinds = torch_kinds(torch)
    empty_strided, current_device = torch.empty_strided, torch_current_device(torch)
    stream_of = torch_stream(torch)

    def start(a: Any, b: Any, out: Any, alpha: Any, beta: Any, asked: Any, stream: Any) -> Any:
        dtype, on = a.dtype, a.get_device()
        if (
            type(b) not in kinds or b.dtype is not dtype or b.get_device() != on
            or a.requires_grad or b.requires_grad or a.is_neg() or b.is_neg()
        ):  # fmt: skip
            return None
        bits = (a.is_conj(), b.is_conj()) if dtype.is_complex else None
        try:
            pa, pb = a.data_ptr(), b.data_ptr()
        except RuntimeError:  # a tensor without memory of its own, such as a sparse one
            return None
        if not pa or not pb:
            return None
        if out is None:
            key = a.shape, b.shape, None, a.stride(), b.stride(), None, dtype, on, bits, pa == pb, asked
            plan = plans.get(key)
            if plan is None and key in vendors and stream is None:
                return by_vendor(a, b, None, alpha, beta, asked)
            if plan is None or stream is not None or beta is not None or on != current_device():
                return None
            if (pa | pb) & plan.alignment_mask:
                return None
            if alpha is not None and not plan.takes(alpha):
                return None
            out = empty_strided(plan.out_shape, plan.out_strides, dtype=dtype, device=a.device)
            plan.start(pa, pb, out.data_ptr(), alpha, None, stream_of(on), a)
            return out
        if (
            type(out) not in kinds or out.dtype is not dtype or out.get_device() != on
            or out.requires_grad or out.is_neg() or (bits is not None and out.is_conj())
        ):  # fmt: skip
            return None
        try:
            at, strides = out.data_ptr(), out.stride()
        except RuntimeError:
            return None
        if not at:
            return None
        key = a.shape, b.shape, out.shape, a.stride(), b.stride(), strides, dtype, on, bits, pa == pb, asked
        plan = plans.get(key)
        if plan is None:
            spans = vendors.get(key)
            if spans is None or stream is not None or overlaps(pa, pb, at, spans):
                return None
            return by_vendor(a, b, out, alpha, beta, asked)
        of_a, of_b, of_out = plan.spans
        end = at + of_out
        if (pa < end and at < pa + of_a) or (pb < end and at < pb + of_b):  # `overlaps`, inlined
            return None
        if (pa | pb | at) & plan.alignment_mask:
            return None
        if (alpha is not None or beta is not None) and not (plan.takes(alpha) and plan.takes(beta)):
            return None
        plan.start(pa, pb, at, alpha, beta, stream_of(on) if stream is None else stream_handle(stream), a)
        return out

    return start


# CuPy


def cupy_key(a: CupyArray, b: CupyArray, out: CupyArray | None, asked: Any) -> Any:
    """Return the key in the plan cache for these CuPy arrays, which have one element type and device.

    `asked` has gemm's conj_a, conj_b, math, fallback and measure, or None if all have their defaults. The key has no
    strides for a C-contiguous array, because its shape determines them.
    """
    lie_a, lie_b = a._c_contiguous or a.strides, b._c_contiguous or b.strides
    shape, lies = (None, None) if out is None else (out.shape, out._c_contiguous or out.strides)
    return a.shape, b.shape, shape, lie_a, lie_b, lies, a.dtype, a.data.device_id, a.data.ptr == b.data.ptr, asked


def cupy_starter(cupy: Any) -> Starter:
    """Return a function that launches a product of CuPy's arrays if its plan is cached, and else returns None."""
    kind, empty, current_device = cupy.ndarray, cupy.empty, cupy.cuda.runtime.getDevice
    get_current_stream = cupy.cuda.get_current_stream

    def start(a: Any, b: Any, out: Any, alpha: Any, beta: Any, asked: Any, stream: Any) -> Any:
        dtype, at_a = a.dtype, a.data
        if type(b) is not kind or b.dtype is not dtype:
            return None
        at_b = b.data
        pa, pb, on = at_a.ptr, at_b.ptr, at_a.device_id
        if at_b.device_id != on:
            return None
        if out is None:
            if on != current_device():
                return None
            lie_a, lie_b = a._c_contiguous or a.strides, b._c_contiguous or b.strides
            key = a.shape, b.shape, None, lie_a, lie_b, None, dtype, on, pa == pb, asked
            plan = plans.get(key)
            if plan is None and key in vendors and stream is None:
                return by_vendor(a, b, None, alpha, beta, asked)
            if plan is None or stream is not None or beta is not None or (pa | pb) & plan.alignment_mask:
                return None
            if alpha is not None and not plan.takes(alpha):
                return None
            out = empty(plan.out_shape, dtype, order=plan.out_order)
            plan.start(pa, pb, out.data.ptr, alpha, None, get_current_stream(on).ptr, a)
            return out
        at_out = out.data
        if type(out) is not kind or out.dtype is not dtype or at_out.device_id != on:
            return None
        key = (
            a.shape, b.shape, out.shape, a._c_contiguous or a.strides, b._c_contiguous or b.strides,
            out._c_contiguous or out.strides, dtype, on, pa == pb, asked,
        )  # fmt: skip
        plan = plans.get(key)
        if plan is None:
            spans = vendors.get(key)
            if spans is None or stream is not None or on != current_device():
                return None
            if overlaps(pa, pb, at_out.ptr, spans):
                return None
            return by_vendor(a, b, out, alpha, beta, asked)
        if stream is not None:
            return None
        at = at_out.ptr
        of_a, of_b, of_out = plan.spans
        end = at + of_out
        if (pa < end and at < pa + of_a) or (pb < end and at < pb + of_b):  # `overlaps`, inlined
            return None
        if (pa | pb | at) & plan.alignment_mask:
            return None
        if (alpha is not None or beta is not None) and not (plan.takes(alpha) and plan.takes(beta)):
            return None
        plan.start(pa, pb, at, alpha, beta, get_current_stream(on).ptr, a)
        return out

    return start
