"""The cache of launch plans, which lets repeated calls of gemm skip the checks and the choice of a kernel.

A key contains everything that determines the launch, such as shapes, strides and element type. A function of type
LookUp finds the plan for its arrays. A function of type Starter launches this plan and returns `out`. It returns None
if the call needs gemm's full checks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from tsm2_tune.runtime.arrays.libraries import cupy_stream, is_cupys, torch_stream, vendors_product
from tsm2_tune.runtime.arrays.pycuda_arrays import owned_memory
from tsm2_tune.runtime.cuda.driver import stream_handle
from tsm2_tune.runtime.launch_plan import LARGEST, Plan

Spans = tuple[int, ...]  # numbers of bytes from the first to the last element of a, b and out
Found = tuple[Any, int, int, int, int]  # a cached plan or None; addresses of a, b and out; ordinal of the GPU
# The arguments of a LookUp are a, b, out and `asked`: (conj_a, conj_b, math, fallback, measure), or None if all are
# defaults. With CuPy and PyCUDA a fifth argument is a plan to cache.
LookUp = Callable[..., Found]
Starter = Callable[..., Any]
NOTHING: Found = (None, 0, 0, 0, 0)
NO_GUARD = (None, None, 0)
NO_CONJUGATES = (False, False)
MOST_PLANS = 4096  # most entries in the cache

# Key -> plan. If the value is a tuple, the arrays' library computes the product. The tuple is empty in the entries of
# PyTorch's operators. For `torch_look_up` there are other keys: the value is a guard, a plan and the GPU's ordinal.
plans: dict[Any, Any] = {}
starters: dict[type, Starter] = {}  # type of `a` -> function that launches cached products


def keep_plan(key: Any, plan: Any) -> None:
    if len(plans) >= MOST_PLANS:
        plans.clear()
    plans[key] = plan


def overlaps(a: int, b: int, out: int, spans: Spans) -> bool:
    """Return whether `out` overlaps a or b. These are addresses, and `spans` the bytes from first to last element."""
    of_a, of_b, of_out = spans
    return (a < out + of_out and out < a + of_a) or (b < out + of_out and out < b + of_b)


def _needs_no_check(factor: Any) -> bool:
    return factor is None or (type(factor) in (int, float) and -LARGEST["f"] <= factor <= LARGEST["f"])


def by_vendor(a: Any, b: Any, out: Any, alpha: Any, beta: Any, asked: Any) -> Any:
    """Compute the product with the arrays' own library on its current stream; return None if it needs full checks."""
    if not (_needs_no_check(alpha) and _needs_no_check(beta)) or (out is None and beta is not None):
        return None
    if asked and asked[4] and not (alpha is None and beta is None) and is_cupys(a):
        return None  # CuPy's product was timed without alpha and beta
    return vendors_product(
        a, b, out, 1 if alpha is None else alpha, 0 if beta is None else beta, asked[:2] if asked else NO_CONJUGATES
    )


def starter_of(
    look_up: LookUp,
    new_out: Callable[[Plan, Any, int], tuple[Any, int]],
    stream_of: Callable[[int], int],
    *,
    any_stream: bool = True,
) -> Starter:
    """Return a function that launches a product if its plan is cached, and else returns None.

    `new_out(plan, a, ordinal)` returns a new array and its address, or (None, 0) if gemm must allocate it. If
    `any_stream` is false, calls that name a stream need gemm's full checks.
    """

    def start(a: Any, b: Any, out: Any, alpha: Any, beta: Any, asked: Any, stream: Any) -> Any:
        plan, pa, pb, at, on = look_up(a, b, out, asked)
        if type(plan) is not Plan:
            if plan is None or stream is not None or (out is not None and overlaps(pa, pb, at, plan)):
                return None
            return by_vendor(a, b, out, alpha, beta, asked)
        if (alpha is not None or beta is not None) and not (plan.takes(alpha) and plan.takes(beta)):
            return None
        if stream is None:
            handle = stream_of(on)
        elif any_stream and out is not None:
            handle = stream_handle(stream)
        else:
            return None
        if out is None:
            if beta is not None or (pa | pb) & plan.alignment_mask:
                return None
            out, at = new_out(plan, a, on)
            if out is None:
                return None
            operands = handle, pa, pb, at
        elif (operands := (handle, pa, pb, at)) != plan.checked_operands:
            if (pa | pb | at) & plan.alignment_mask or overlaps(pa, pb, at, plan.spans):
                return None
            plan.checked_operands = operands
        plan.start(operands, alpha, beta, a)
        return out

    return start


# PyTorch


def torch_key(a: Any, b: Any, out: Any, asked: Any) -> Any:
    """Return the key in the plan cache for these tensors, which have one element type and device."""
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


def torch_guard(torch: Any) -> Callable[..., Any]:
    """Return a function that makes a guard for some tensors.

    The guard tells whether other tensors have the same properties. The function returns None if PyTorch has no
    TensorGuards. They compare all properties of tensors in less time than it takes to read them.
    """
    extension = getattr(getattr(torch, "_C", None), "_dynamo", None)
    guards: Any = getattr(getattr(extension, "guards", None), "TensorGuards", None)

    def guard(*tensors: Any) -> Any:
        sizes, strides = [list(x.shape) for x in tensors], [list(x.stride()) for x in tensors]
        try:
            check = guards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
            return check if check(*tensors) else None
        except (AssertionError, RuntimeError, TypeError):  # None, or a class with other arguments
            return None

    return guard


def torch_look_up(torch: Any) -> LookUp:
    """Return the LookUp for tensors. It first compares them with those of the last product of as many elements."""
    kinds, guard = {*torch_kinds(torch)}, torch_guard(torch)

    def look_up(a: Any, b: Any, out: Any, asked: Any) -> Found:
        try:
            pa, pb, at = a.data_ptr(), b.data_ptr(), 0 if out is None else out.data_ptr()
        except RuntimeError:  # a tensor without memory of its own, such as a sparse one
            return NOTHING
        if not (pa and pb and (at or out is None)):
            return NOTHING
        sizes = a.numel(), b.numel(), out is None, pa == pb, asked
        check, plan, on = plans.get(sizes, NO_GUARD)
        if check is not None and (check(a, b) if out is None else check(a, b, out)):
            return plan, pa, pb, at, on
        tensors = (a, b) if out is None else (a, b, out)
        if not kinds.issuperset(map(type, tensors)) or (plan := plans.get(torch_key(a, b, out, asked))) is None:
            return NOTHING
        dtype, on = a.dtype, a.get_device()
        for x in tensors:
            if (
                x.dtype is not dtype or x.get_device() != on
                or x.requires_grad or x.is_neg() or (x is out and dtype.is_complex and x.is_conj())
            ):  # fmt: skip
                return NOTHING
        if (check := guard(*tensors)) is not None:
            keep_plan(sizes, (check, plan, on))
        return plan, pa, pb, at, on

    return look_up


def torch_starter(torch: Any) -> Starter:
    """Return a function that launches a product of tensors if its plan is cached, and else returns None."""
    empty_strided, current_device = torch.empty_strided, torch_current_device(torch)

    def new_out(plan: Plan, a: Any, on: int) -> tuple[Any, int]:
        if on != current_device():
            return None, 0
        out = empty_strided(plan.out_shape, plan.out_strides, dtype=a.dtype, device=a.device)
        return out, out.data_ptr()

    return starter_of(torch_look_up(torch), new_out, torch_stream(torch))


# CuPy


@cache
def cupy_look_up(cupy: Any) -> LookUp:
    """Return the LookUp for CuPy's arrays, one for all. It first compares the key with that of the last product."""
    kind, current_device = cupy.ndarray, cupy.cuda.runtime.getDevice
    last: tuple[Any, Any] = (None, None)  # key and plan; comparing two keys takes half the time of hashing one

    def look_up(a: Any, b: Any, out: Any, asked: Any, new: Any = None) -> Found:
        nonlocal last
        dtype, at_a, at_b = a.dtype, a.data, b.data
        on, pa, pb = at_a.device_id, at_a.ptr, at_b.ptr
        if type(b) is not kind or b.dtype is not dtype or at_b.device_id != on:
            return NOTHING
        at, shape, strides = 0, None, None
        if out is not None:
            at_out = out.data
            at, shape, strides = at_out.ptr, out.shape, out._c_contiguous or out.strides
            if type(out) is not kind or out.dtype is not dtype or at_out.device_id != on:
                return NOTHING
        key = (
            a.shape, b.shape, shape, a._c_contiguous or a.strides, b._c_contiguous or b.strides, strides,
            dtype, on, pa == pb, asked,
        )  # fmt: skip
        if new is not None:
            keep_plan(key, new)
        last_key, plan = last
        if new is not None or key != last_key:
            plan = plans.get(key)
            last = key, plan
        if type(plan) is tuple and on != current_device():
            return NOTHING
        return plan, pa, pb, at, on

    return look_up


def cupy_starter(cupy: Any) -> Starter:
    """Return a function that launches a product of CuPy's arrays if its plan is cached, and else returns None."""
    empty, current_device = cupy.empty, cupy.cuda.runtime.getDevice

    def new_out(plan: Plan, a: Any, on: int) -> tuple[Any, int]:
        if on != current_device() or not plan.out_order:
            return None, 0
        out = empty(plan.out_shape, a.dtype, order=plan.out_order)
        return out, out.data.ptr

    return starter_of(cupy_look_up(cupy), new_out, cupy_stream(cupy), any_stream=False)


# PyCUDA


def pycuda_look_up(gpuarray: Any) -> LookUp:
    """Return the LookUp for PyCUDA's arrays."""
    kind = gpuarray.GPUArray

    def look_up(a: Any, b: Any, out: Any, asked: Any, new: Any = None) -> Found:
        dtype = a.dtype
        if type(b) is not kind or type(out) is not kind or b.dtype is not dtype or out.dtype is not dtype:
            return NOTHING
        (pa, context), (pb, of_b), (at, of_out) = map(owned_memory, (a.gpudata, b.gpudata, out.gpudata))
        if context is None or not context == of_b == of_out:
            return NOTHING
        key = context, a.shape, b.shape, out.shape, a.strides, b.strides, out.strides, dtype, pa == pb, asked
        if new is not None:
            keep_plan(key, new)
        return plans.get(key), pa, pb, at, 0

    return look_up


def pycuda_starter(gpuarray: Any) -> Starter:
    """Return a function that launches a product of PyCUDA's arrays if its plan is cached, and else returns None."""
    return starter_of(pycuda_look_up(gpuarray), lambda plan, a, on: (None, 0), lambda ordinal: 0)
