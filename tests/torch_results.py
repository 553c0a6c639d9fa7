"""Results of PyTorch's products: what is the same, and which plans of an exported module they started."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

NEAR = {"bfloat16": 2e-2, "float16": 2e-3, "float32": 1e-4, "complex64": 1e-4}
NEAREST = 1e-9


@contextmanager
def counted(best: ModuleType) -> Iterator[list[Any]]:
    """The plans that are started meanwhile."""
    started, start = [], best.Plan.start

    def counting(plan: Any, *arguments: Any) -> None:
        started.append(plan)
        start(plan, *arguments)

    best.Plan.start = counting
    try:
        yield started
    finally:
        best.Plan.start = start


def same(found: Any, expected: Any, what: object = "") -> None:
    """AssertionError where it differs: in its numbers by more than rounding, in its type, or in how it lies."""
    assert (found.dtype, found.shape, found.stride()) == (expected.dtype, expected.shape, expected.stride()), what
    assert (found.requires_grad, type(found)) == (expected.requires_grad, type(expected)), what
    about(found, expected, what)


def about(found: Any, expected: Any, what: object = "") -> None:
    """AssertionError where numbers differ by more than rounding, beside the largest of them."""
    import torch

    if isinstance(expected, list):
        for one, other in zip(found, expected, strict=True):
            about(one, other, what)
        return
    near = NEAR.get(str(found.dtype).partition(".")[2], NEAREST)
    scale = float(expected.detach().abs().nan_to_num().max()) if expected.numel() else 0.0
    torch.testing.assert_close(
        found.detach().resolve_conj(), expected.detach().resolve_conj(), rtol=near, atol=near * max(scale, 1.0),
        equal_nan=True, msg=lambda text: f"{what}: {text}",
    )  # fmt: skip
