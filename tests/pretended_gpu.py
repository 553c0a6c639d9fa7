"""A GPU that is not there, for PyTorch's own tensors: the CPU's, whose products NumPy computes as a kernel would."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from tests.fake_vendor import in_memory, read, write
from tests.recording_driver import RecordingDriver, attach, cubin
from tsm2_tune.tuner.measure.vendor.blas import NO_TRANSPOSE

KINDS = {"f32": "f4", "f64": "f8", "c64": "c8", "c128": "c16", "f16": "f2", "bf16": "u2"}


def pretend(module: ModuleType) -> RecordingDriver:
    """Let the module take PyTorch's tensors of the CPU for those of a GPU, and override what computes them there."""
    driver = attach(
        module,
        KEY_OF_GPUS="CPU",
        home=lambda matrix: (0xC0, 0),
        cubin_of=cubin,
        torch_stream=lambda torch: lambda ordinal: 0,
        current_stream=lambda array: 0,
        tensor_memory=lambda tensor: memory(module, tensor),
    )
    compute(module)
    for table in (module.plans, module.starters):
        table.clear()
    return driver


def compute(module: ModuleType) -> list[int]:
    """Let NumPy compute the module's products. Return the log of their streams."""
    streams = list[int]()

    def start(plan: Any, operands: tuple[int, int, int, int], alpha: Any, beta: Any, array: Any) -> None:
        streams.append(operands[0])
        computed(plan, *operands[1:], alpha, beta)

    module.Plan.start = start
    return streams


def memory(module: ModuleType, tensor: Any) -> Any:
    """Return what the module reads of a tensor on a GPU."""
    of_type = module._tensor_type(tensor.dtype)
    if tensor.device.type != "cpu" or of_type is None:
        return None
    return of_type, tensor.shape, [of_type[1].itemsize * step for step in tensor.stride()], tensor.data_ptr()


def computed(plan: Any, a: int, b: int, out: int, alpha: Any, beta: Any) -> None:
    """Compute what the plan's kernel computes, on matrices at these addresses."""
    at = (b, a, out) if plan.match.is_transposed else (a, b, out)
    count, *strides = (1, 0, 0, 0) if plan.batch is None else plan.batch[:4]
    size = np.dtype(KINDS[plan.match.winner.dtype]).itemsize
    for number in range(count):
        multiply(
            plan, [first + number * size * stride for first, stride in zip(at, strides, strict=True)], alpha, beta
        )


def multiply(plan: Any, at: list[int], alpha: Any, beta: Any) -> None:
    """Compute one product, with the kernel's matrices at these addresses."""
    winner, (m, n, k) = plan.match.winner, plan.shape
    matrices = [
        in_memory(address, *shape[::-1], ld, KINDS[winner.dtype]).T
        if order == "t"
        else in_memory(address, *shape, ld, KINDS[winner.dtype])
        for address, shape, order, ld in zip(at, ((m, k), (k, n), (m, n)), winner.orders, plan.leading, strict=True)
    ]
    first, second = (
        read(x, NO_TRANSPOSE).conj() if conjugated else read(x, NO_TRANSPOSE)
        for x, conjugated in zip(matrices[:2], winner.conjugates, strict=True)
    )
    result = (1 if alpha is None else alpha) * (first @ second)
    if beta:
        result = result + beta * read(matrices[2], NO_TRANSPOSE)
    write(matrices[2], result)
