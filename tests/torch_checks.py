"""Checks of PyTorch's products by an exported module, on a GPU or on one that is pretended.

Each gets the module, with a kernel for each storage order of HANDMADE_OPS, and PyTorch's name of the device.
"""

from __future__ import annotations

import itertools
import math
import sys
import unittest
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from tests.fabricated import handmade, trial, tuning_run
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.trial import Trial, TuningRun

HANDMADE_OPS = {
    **dict.fromkeys(("f32", "f64", "bf16", "f16"), ("nn", "nt", "tn", "tt")),
    **dict.fromkeys(("c64", "c128"), tuple(map("".join, itertools.product("ntjc", repeat=2)))),
}
TYPES = ("float32", "float64", "bfloat16", "float16", "complex64", "complex128")
NEAR = {"bfloat16": 2e-2, "float16": 2e-3, "float32": 1e-4, "complex64": 1e-4}
NEAREST = 1e-9
SAMPLED = ("mm", "addmm", "matmul", "bmm", "baddbmm", "nn.functional.linear", "einsum")
SHAPES = ((70, 4, 900), (5, 3, 7), (1, 6, 33), (6, 1, 33), (40, 9, 1), (4, 4, 300))
COUNT = 5  # products of a batch
K_OF_LINEAR = 900  # so many for each result that a row to be added is little
FACTORS = ((1, 1), (0, 0.5), (-2, 3))


def trials_of_all(name: str, capability: str, sms: int) -> list[tuple[TuningRun, Trial]]:
    """A plain kernel for each type and storage order, as if it had been tuned on the GPU of this name."""
    run = tuning_run(name, compute_capability=capability, sms=sms)
    problems = [
        Problem(64, 8, 64, dtype, op, batch=batch)
        for dtype, ops in HANDMADE_OPS.items() for op in ops for batch in (1, 9)
    ]  # fmt: skip
    return [(run, trial(problem=one, source=handmade(one))) for one in problems]


# Results


@contextmanager
def counted(best: ModuleType) -> Iterator[list[Any]]:
    """The plans that are started meanwhile."""
    started, start = [], best.Plan.start

    def counting(plan: Any, *arguments: Any) -> None:
        started.append(plan)
        start(plan, *arguments)

    with patch.object(best.Plan, "start", counting):
        yield started


def same(found: Any, expected: Any, what: object = "") -> None:
    """Raise AssertionError if the type or the layout differ, or numbers by more than rounding."""
    assert (found.dtype, found.shape, found.stride()) == (expected.dtype, expected.shape, expected.stride()), what
    assert (found.requires_grad, type(found)) == (expected.requires_grad, type(expected)), what
    about(found, expected, what)


def about(found: Any, expected: Any, what: object = "") -> None:
    """Raise AssertionError if numbers differ by more than rounding, beside the largest of them."""
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


def outcome(call: Callable[[], Any]) -> Any:
    """The result, or the type and text of the exception."""
    try:
        return call()
    except Exception as error:  # whichever it is
        return type(error), str(error)


# PyTorch's own samples


def _known_operators() -> dict[str, Any]:
    sys.modules.setdefault("expecttest", SimpleNamespace(TestCase=unittest.TestCase))  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that packages for other tests are not there
        from torch.testing._internal.common_methods_invocations import op_db
    return {op.name: op for op in op_db if op.name in SAMPLED and not op.variant_test_name}


def samples(best: ModuleType, device: str) -> None:
    """The samples of PyTorch's own tests have the same results and gradients, and its errors are its own."""
    import torch

    known = _known_operators()
    assert set(known) == set(SAMPLED)
    for name, op in known.items():
        by_kernel = 0
        dtypes = {getattr(torch, one) for one in TYPES} & set(op.supported_dtypes(device))
        for dtype in dtypes:
            for sample in op.sample_inputs(device, dtype, requires_grad=True):
                expected = _with_gradients(op.op, sample)
                with best.installed(), counted(best) as started:
                    found = _with_gradients(op.op, sample)
                by_kernel += len(started)
                for one, other in zip(found, expected, strict=True):
                    same(one, other, (name, dtype, sample))
        assert by_kernel > 5, name
        for wrong in op.error_inputs(device) if op.error_inputs_func else ():
            given = wrong.sample_input
            call = partial(op.op, given.input, *given.args, **given.kwargs)
            with best.installed():
                refused = outcome(call)
            assert isinstance(refused, tuple), wrong
            assert refused == outcome(call)


def _with_gradients(call: Callable[..., Any], sample: Any) -> list[Any]:
    """The result, and its gradients by the operands."""
    import torch

    result = call(sample.input, *sample.args, **sample.kwargs)
    leaves = [x for x in _tensors((sample.input, sample.args)) if x.requires_grad]
    if not leaves or not result.requires_grad:
        return [result]
    seed = torch.arange(result.numel(), device=result.device).reshape(result.shape).remainder(5) - 2
    given = torch.autograd.grad(result, leaves, seed.to(result.dtype), allow_unused=True)
    return [result, *(one for one in given if one is not None)]


def _tensors(found: Any) -> list[Any]:
    import torch

    if isinstance(found, torch.Tensor):
        return [found]
    return [x for one in found for x in _tensors(one)] if isinstance(found, tuple | list) else []


# Layouts of matrices


def block(*shape: int, dtype: Any, device: str, order: str = "C", pad: int = 0, conj: bool = False) -> Any:
    """Numbers about 0 in a part of larger matrices; column-major with F; with S one matrix for the whole batch."""
    import torch

    *products, rows, columns = shape
    height, width = (columns, rows) if order == "F" else (rows, columns)
    of = *(1 if order == "S" else one for one in products), height + pad, width + pad
    whole = torch.randn(of, device=device, dtype=torch.complex128 if dtype.is_complex else None)
    part = whole.to(dtype)[..., :height, :width]
    part = part.mT if order == "F" else part.expand(*products, -1, -1)
    return part.conj() if conj else part


def operands(device: str) -> Iterator[tuple[Any, Any]]:
    """Yield matrices and batches of all types and orders, with gaps and without."""
    import torch

    shapes, pads = (SHAPES, (0, 3)) if device == "cuda" else (SHAPES[:3], (3,))  # all take long on the host
    cases: list[Any] = [((), one, "CF", pads) for one in shapes]
    cases.append(((COUNT,), (7, 4, 33), "CFS", (0, 3)))
    for name, (count, (m, n, k), orders, of_pads) in itertools.product(TYPES, cases):
        dtype = getattr(torch, name)
        bits = (False, True) if dtype.is_complex else (False,)
        for order_a, order_b, pad, conj_a, conj_b in itertools.product(orders, orders, of_pads, bits, bits):
            like: dict[str, Any] = {"dtype": dtype, "device": device, "pad": pad}
            yield (
                block(*count, m, k, order=order_a, conj=conj_a, **like),
                block(*count, k, n, order=order_b, conj=conj_b, **like),
            )


def _added_in_place(name: str, out: Any, c: Any, a: Any, b: Any) -> Any:
    return getattr(out.copy_(c), name)(a, b, beta=0.5, alpha=2)


def layouts(best: ModuleType, device: str) -> None:
    """Results are the same in each layout, and a kernel computes them where `choice` says so."""
    import torch

    for a, b in operands(device):
        shape, dtype, is_batch = (*a.shape[:-1], b.shape[-1]), a.dtype, a.dim() == 3
        what = shape, a.stride(), b.stride(), dtype, a.is_conj(), b.is_conj()
        multiply, add, in_place = (
            (torch.bmm, torch.baddbmm, "baddbmm_") if is_batch else (torch.mm, torch.addmm, "addmm_")
        )
        like: dict[str, Any] = {"dtype": dtype, "device": device}
        c, row = block(*shape, **like), block(1, shape[-1], **like)[0]
        other = partial(torch.matmul, a, b) if is_batch else partial(torch.bmm, a[None], b[None])
        calls: list[tuple[Callable[[], Any], Any]] = [(partial(multiply, a, b), c), (other, c)]
        m, n, k = (*shape[-2:], a.shape[-1])
        is_small = is_batch or best.FEW * m * n <= (m + n) * k
        for (beta, alpha), added in itertools.product(FACTORS, (c, row) if is_small else (c,)):
            calls.append((partial(add, added, a, b, beta=beta, alpha=alpha), c))
        for order, pad in itertools.product("CF", (0, 2)):
            out = block(*shape, order=order, pad=pad, **like)
            calls.append((partial(multiply, a, b, out=out), out))
            calls.append((partial(add, c, a, b, beta=2, alpha=-1, out=out), out))
            calls.append((partial(_added_in_place, in_place, out, c, a, b), out))
        for call, out in calls:
            expected = kept(call())
            is_kernels = is_batch or isinstance(best.choice(a, b, out), best.Match)
            with best.installed(), counted(best) as started:
                for _ in range(2):
                    same(call(), expected, what)
            assert len(started) == 2 * is_kernels, what


def kept(tensor: Any) -> Any:
    """A copy in the same layout."""
    import torch

    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def nothing_to_scale(best: ModuleType, device: str) -> None:
    """With beta = 0 what is added is not read; with an extent of 0 nothing is multiplied."""
    import torch

    a, b = torch.randn(9, 40, device=device), torch.randn(40, 6, device=device)
    nan = torch.full((9, 6), math.nan, device=device)
    with best.installed(), counted(best) as started:
        for out in (None, torch.empty_like(nan), nan):
            same(torch.addmm(nan, a, b, beta=0, out=out), a @ b)
        assert len(started) == 6
    empty = [(a[:0], b), (a, b[:, :0]), (a[:, :0], b[:0])]
    expected = [(x @ y, torch.addmm(nan[0, 0], x, y)) for x, y in empty]
    with best.installed(), counted(best) as started:
        for (x, y), (product, sum_) in zip(empty, expected, strict=True):
            same(x @ y, product)
            same(torch.addmm(nan[0, 0], x, y), sum_)
    assert started == []


# Products that are left to PyTorch

Call = Callable[[Any, Any, Any], Any]  # of a, b and a result, all of float32


def _unusual(torch: Any) -> tuple[tuple[Call, ...], tuple[Call, ...], tuple[Call, ...]]:
    """Products that PyTorch computes, those that it refuses, and those that it computes on some GPUs only."""
    named = type("Named", (torch.Tensor,), {})
    left: tuple[Call, ...] = (
        lambda a, b, c: a.as_subclass(named) @ b,
        lambda a, b, c: torch.mm(a, b, out=torch.as_strided(a, c.shape, c.stride())),  # over a
        lambda a, b, c: a[::2, ::2] @ b[::2, ::2],
        lambda a, b, c: a[:1].expand(a.shape) @ b,
        lambda a, b, c: torch.mm(a, b, out=torch.empty(0, device=a.device)),
        lambda a, b, c: torch.addmm(c, a / 0, b, alpha=0),
        lambda a, b, c: torch.addmm(c[0], a[:, :3], b[:3]),  # a row to a large result
        lambda a, b, c: torch.bmm(a[None], b[None], out=c.clone()),
        lambda a, b, c: torch.bmm(a[None], b[None], out=torch.stack((c, c))),
        lambda a, b, c: torch.addmm(c, a, b, alpha=True),
        lambda a, b, c: torch.bmm(torch.stack((a, a))[..., ::2], torch.stack((b, b))[:, ::2]),  # strides with gaps
        lambda a, b, c: torch.bmm(a[None][:0], b[None][:0]),
        lambda a, b, c: torch.bmm(a[None, :, :0], b[None, :0]),
        lambda a, b, c: torch.baddbmm(c[None], a[None] / 0, b[None], alpha=0),
        lambda a, b, c: torch.baddbmm(c[None], a[None], b[None], alpha=True),
    )
    refused: tuple[Call, ...] = (
        lambda a, b, c: torch.addmm(c, a, b, out=torch.as_strided(c, c.shape, (1, c.shape[0]))),  # a part of itself
        lambda a, b, c: a @ a,
        lambda a, b, c: a @ b.double(),
        lambda a, b, c: torch.addmm(c.double(), a, b),
        lambda a, b, c: torch.mm(a, b, out=c.double()),
        lambda a, b, c: torch.addmm(c[:2], a, b),
        lambda a, b, c: torch.mm(a[None], b[None]),
        lambda a, b, c: torch.bmm(a[:1], b),
        lambda a, b, c: torch.bmm(a[0, 0], b[None]),
        lambda a, b, c: torch.mm(a, b, out=c.requires_grad_()),
        lambda a, b, c: a @ (b.cpu() if b.is_cuda else b.int()),
        lambda a, b, c: torch.bmm(a[None], torch.stack((b, b))),
        lambda a, b, c: torch.bmm(a[None], b[None].double()),
        lambda a, b, c: torch.baddbmm(torch.stack((c, c)), a[None], b[None]),
        lambda a, b, c: torch.baddbmm(c[None, None], a[None], b[None]),
        lambda a, b, c: torch.bmm(a[None], b[None], out=c[None].double()),
    )
    either: tuple[Call, ...] = (
        lambda a, b, c: torch.addmm(c[:2], a, b, beta=0),
        lambda a, b, c: torch.addmm(c.double(), a, b, beta=0),
    )
    return left, refused, either


def left_alone(best: ModuleType, device: str) -> None:
    """Unusual products are PyTorch's own, and its errors keep their words."""
    import torch

    def found(call: Call) -> Any:
        torch.manual_seed(3)
        a, b = torch.randn(70, 90, device=device), torch.randn(90, 20, device=device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that an out is resized
            return [outcome(partial(call, a, b, c)) for c in torch.ones(2, 70, 20, device=device)][-1]

    for calls, errors in zip(_unusual(torch), ({False}, {True}, {False, True}), strict=True):
        for at, call in enumerate(calls):
            expected = found(call)
            assert isinstance(expected, tuple) in errors, (at, expected)
            with best.installed(), counted(best) as started:
                other = found(call)
            assert started == [], at
            if isinstance(expected, tuple):
                assert other == expected, at
            else:
                same(other, expected, at)


def as_the_program_says(best: ModuleType, device: str) -> None:
    """PyTorch computes products in TF32. Kernels compute the others, with gradients or not, in a mode or not."""
    import torch

    a, b = torch.randn(70, 90, device=device), torch.randn(90, 20, device=device)
    expected = a @ b

    def by_kernel(call: Callable[[], Any] = lambda: a @ b) -> bool:
        with best.installed(), counted(best) as started:
            call()
        return len(started) > 0

    assert by_kernel()
    assert by_kernel(lambda: a.bfloat16() @ b.bfloat16())
    torch.set_float32_matmul_precision("high")
    try:
        assert not by_kernel()
        assert by_kernel(lambda: a.double() @ b.double())
    finally:
        torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        assert not by_kernel()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    if device == "cpu":  # PyTorch may refuse to multiply there when both ways to say it were used
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        assert not by_kernel()
        torch.backends.cuda.matmul.fp32_precision = "ieee"
    linear, weight = torch.nn.Linear(K_OF_LINEAR, 4, device=device), torch.nn.Parameter(b)
    assert by_kernel(lambda: linear(torch.randn(70, K_OF_LINEAR, device=device)))
    with best.installed():
        for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
            with mode(), counted(best) as started:
                same((a @ b).clone(), expected.clone())
            assert len(started) == 1
        with counted(best) as started:
            (a @ weight).square().sum().backward()
        assert (len(started), weight.grad.shape) == (2, b.shape)
        with torch.autocast(device, dtype=torch.bfloat16), counted(best) as started:
            assert (a @ b).dtype == torch.bfloat16
        assert started[0].match.winner.dtype == "bf16"
        each = torch.func.vmap(torch.mm, in_dims=(0, None))(a.expand(3, 70, 90), b)
        same(each, expected.expand(3, 70, 20).clone())


CHECKS: dict[str, Callable[[ModuleType, str], None]] = {
    one.__name__: one for one in (samples, layouts, nothing_to_scale, left_alone, as_the_program_says)
}


def restored(device: str) -> list[str]:
    """Return what PyTorch now calls for each of the operators."""
    import torch

    products, sums = ("mm", "bmm"), ("addmm", "baddbmm")
    names = [*products, *sums, *(f"{name}.out" for name in products + sums), *(f"{name}_" for name in sums)]
    return [repr(torch.library.get_kernel(f"aten::{name}", device.upper())) for name in names]


def is_untouched(check: Callable[[ModuleType, str], None], best: ModuleType, device: str) -> None:
    """The check, in which rows are added to small products too, and after which PyTorch is as it was."""
    before = restored(device)
    with patch.object(best, "LONG", 0):
        check(best, device)
    assert restored(device) == before
    with pytest.raises(AttributeError):
        best.nothing_of_this_name  # noqa: B018
