"""The short way through gemm, for products that were started before: a key that says all that decides the launch.

A key holds what describes the arrays, as their library has it. Each function below starts the product and returns its
`out`, or None where the arrays need a closer look.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tsm2_tune.runtime.driver import stream_handle
from tsm2_tune.runtime.plans import Plan

Starter = Callable[..., Any]
MOST_PLANS = 4096  # that are kept

plans: dict[Any, Plan] = {}
starters: dict[type, Starter] = {}  # by the type of a


def remember(key: Any, plan: Plan) -> None:
    """Keep the plan for products of this key."""
    if len(plans) >= MOST_PLANS:
        plans.clear()
    plans[key] = plan


def overlap(a: int, b: int, out: int, spans: tuple[int, ...]) -> bool:
    """Whether the addresses from out's first to its last one reach into a's or b's."""
    of_a, of_b, of_out = spans
    return (a < out + of_out and out < a + of_a) or (b < out + of_out and out < b + of_b)


# PyTorch


def torch_key(a: Any, b: Any, out: Any, asked: tuple[Any, ...]) -> Any:
    """What decides the launch for these tensors; `asked` is the rest of the call."""
    of_a = (a.shape, a.stride(), a.dtype, a.get_device(), a.is_conj())
    of_b = (b.shape, b.stride(), b.dtype, b.get_device(), b.is_conj())
    of_out = None if out is None else (out.shape, out.stride(), out.dtype, out.get_device(), out.is_conj())
    return of_a, of_b, of_out, a.data_ptr() == b.data_ptr(), asked


def torch_starter(torch: Any) -> Starter:
    """How products of tensors are started."""
    kinds = (torch.Tensor, torch.nn.Parameter)
    empty_strided = torch.empty_strided
    stream_of = torch_stream(torch)

    def start(a: Any, b: Any, out: Any, alpha: Any, beta: Any, asked: tuple[Any, ...], stream: Any) -> Any:
        if type(b) not in kinds or a.requires_grad or b.requires_grad or a.is_neg() or b.is_neg():
            return None
        pa, pb = a.data_ptr(), b.data_ptr()
        on = a.get_device()
        of_a = (a.shape, a.stride(), a.dtype, on, a.is_conj())
        of_b = (b.shape, b.stride(), b.dtype, b.get_device(), b.is_conj())
        if out is None:
            plan = plans.get((of_a, of_b, None, pa == pb, asked))
            if plan is None or stream is not None or beta is not None or on != torch.cuda.current_device():
                return None
            if alpha is not None and not plan.takes(alpha):
                return None
            out = empty_strided(plan.out_shape, plan.out_strides, dtype=a.dtype, device=a.device)
            plan.start(pa, pb, out.data_ptr(), alpha, None, stream_of(on), a)
            return out
        if type(out) not in kinds or out.requires_grad or out.is_neg():
            return None
        of_out = (out.shape, out.stride(), out.dtype, out.get_device(), out.is_conj())
        plan = plans.get((of_a, of_b, of_out, pa == pb, asked))
        if plan is None:
            return None
        at = out.data_ptr()
        if overlap(pa, pb, at, plan.spans):
            return None
        if (alpha is not None or beta is not None) and not (plan.takes(alpha) and plan.takes(beta)):
            return None
        plan.start(pa, pb, at, alpha, beta, stream_of(on) if stream is None else stream_handle(stream), a)
        return out

    return start


def torch_stream(torch: Any) -> Callable[[int], int]:
    """The handle of the current stream of the device of an ordinal."""
    raw = getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None)
    if raw is not None:
        found: Callable[[int], int] = raw
        return found
    return lambda ordinal: int(torch.cuda.current_stream(ordinal).cuda_stream)


# CuPy


def cupy_key(a: Any, b: Any, out: Any, asked: tuple[Any, ...]) -> Any:
    """What decides the launch for these arrays; `asked` is the rest of the call."""
    of_a = (a.shape, a.strides, a.dtype, a.data.device_id)
    of_b = (b.shape, b.strides, b.dtype, b.data.device_id)
    of_out = None if out is None else (out.shape, out.strides, out.dtype, out.data.device_id)
    return of_a, of_b, of_out, a.data.ptr == b.data.ptr, asked


def cupy_starter(cupy: Any) -> Starter:
    """How products of CuPy's arrays are started, on the current device."""
    kind, empty, current_device = cupy.ndarray, cupy.empty, cupy.cuda.runtime.getDevice
    get_current_stream = cupy.cuda.get_current_stream

    def start(a: Any, b: Any, out: Any, alpha: Any, beta: Any, asked: tuple[Any, ...], stream: Any) -> Any:
        if type(b) is not kind:
            return None
        at_a, at_b = a.data, b.data
        pa, pb, on = at_a.ptr, at_b.ptr, at_a.device_id
        if on != current_device():
            return None
        of_a, of_b = (a.shape, a.strides, a.dtype, on), (b.shape, b.strides, b.dtype, at_b.device_id)
        if out is None:
            plan = plans.get((of_a, of_b, None, pa == pb, asked))
            if plan is None or stream is not None or beta is not None:
                return None
            if alpha is not None and not plan.takes(alpha):
                return None
            out = empty(plan.out_shape, a.dtype, order=plan.out_order)
            plan.start(pa, pb, out.data.ptr, alpha, None, get_current_stream().ptr, a)
            return out
        if type(out) is not kind:
            return None
        at_out = out.data
        pc = at_out.ptr
        plan = plans.get((of_a, of_b, (out.shape, out.strides, out.dtype, at_out.device_id), pa == pb, asked))
        if plan is None or stream is not None or overlap(pa, pb, pc, plan.spans):
            return None
        if (alpha is not None or beta is not None) and not (plan.takes(alpha) and plan.takes(beta)):
            return None
        plan.start(pa, pb, pc, alpha, beta, get_current_stream().ptr, a)
        return out

    return start
