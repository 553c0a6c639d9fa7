"""Checks of PyTorch's products by an exported module, on a GPU or on one that is pretended.

Each gets the module, whose kernels are of HANDMADE_OPS and so for whatever lies as matrices do, and PyTorch's name of
the device.
"""

from __future__ import annotations

import itertools
import math
import sys
import unittest
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from tests.fabricated import handmade, trial, tuning_run
from tests.torch_results import counted, same
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.trial import Trial, TuningRun

REAL, COMPLEX = ("f32", "f64", "bf16", "f16"), ("c64", "c128")
HANDMADE_OPS = {
    **dict.fromkeys(REAL, ("nn", "nt", "tn", "tt")),
    **dict.fromkeys(COMPLEX, tuple("".join(pair) for pair in itertools.product("ntjc", repeat=2))),
}
NAMES = {
    "f32": "float32", "f64": "float64", "bf16": "bfloat16", "f16": "float16", "c64": "complex64", "c128": "complex128"
}  # fmt: skip
SAMPLED = ("mm", "addmm", "matmul", "bmm", "baddbmm", "nn.functional.linear", "einsum")
SHAPES = ((70, 4, 900), (5, 3, 7), (1, 6, 33), (6, 1, 33), (40, 9, 1), (4, 4, 300))
BATCH = 9  # products
K_OF_LINEAR = 900  # so many for each result that a row to be added is little
FACTORS = ((1, 1), (0, 0.5), (-2, 3))


def trials_of_all(name: str, capability: str, sms: int) -> list[tuple[TuningRun, Trial]]:
    """A plain kernel for each type and way that matrices may lie, as if it had been tuned on the GPU of this name."""
    run = tuning_run(name, compute_capability=capability, sms=sms)
    problems = [
        Problem(64, 8, 64, dtype, op, batch=batch)
        for dtype, ops in HANDMADE_OPS.items() for op in ops for batch in (1, BATCH)
    ]  # fmt: skip
    return [(run, trial(problem=one, source=handmade(one))) for one in problems]


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
        for dtype in (getattr(torch, one) for one in NAMES.values()):
            if dtype not in op.supported_dtypes(device):
                continue
            for sample in op.sample_inputs(device, dtype, requires_grad=True):
                expected = _with_gradients(op.op, sample)
                with best.installed(), counted(best) as started:
                    found = _with_gradients(op.op, sample)
                by_kernel += len(started)
                for one, other in zip(found, expected, strict=True):
                    same(one, other, (name, dtype, sample))
        print(f"{name}: {by_kernel} products by kernels")
        assert by_kernel > 5, name
        for wrong in op.error_inputs(device) if op.error_inputs_func else ():
            with best.installed():
                refused = _error(op.op, wrong.sample_input)
            assert refused == _error(op.op, wrong.sample_input)
            assert isinstance(refused, tuple), wrong


def _with_gradients(call: Callable[..., Any], sample: Any) -> list[Any]:
    """The result, and the gradients of what it is of."""
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


def _error(call: Callable[..., Any], sample: Any) -> tuple[type, str] | None:
    try:
        call(sample.input, *sample.args, **sample.kwargs)
    except Exception as error:  # whichever it is
        return type(error), str(error)
    return None


# Storage of matrices


def block(rows: int, columns: int, dtype: Any, device: str, order: str, *, pad: int = 0, conj: bool = False) -> Any:
    """Numbers about 0, in a part of a larger matrix; in column-major order with F."""
    import torch

    height, width = (columns, rows) if order == "F" else (rows, columns)
    whole = torch.randn(
        height + pad, width + pad, device=device, dtype=torch.complex128 if dtype.is_complex else None
    )
    part = whole.to(dtype)[:height, :width]
    part = part.mT if order == "F" else part
    return part.conj() if conj else part


def operands(device: str) -> Iterator[tuple[Any, Any]]:
    """Yield operands of all types and orders, with gaps and without."""
    import torch

    shapes = SHAPES if device == "cuda" else SHAPES[:3]  # which takes long
    for name, (m, n, k) in itertools.product(NAMES.values(), shapes):
        dtype = getattr(torch, name)
        bits = (False, True) if dtype.is_complex else (False,)
        for order_a, order_b, pad in itertools.product("CF", "CF", (0, 3) if device == "cuda" else (3,)):
            for conj_a, conj_b in itertools.product(bits, repeat=2):
                yield (
                    block(m, k, dtype, device, order_a, pad=pad, conj=conj_a),
                    block(k, n, dtype, device, order_b, pad=pad, conj=conj_b),
                )


def _added_in_place(out: Any, c: Any, a: Any, b: Any) -> Any:
    return out.copy_(c).addmm_(a, b, beta=0.5, alpha=2)


def layouts(best: ModuleType, device: str) -> None:
    """Whichever way matrices lie, results are the same, and a kernel computes them where `choice` says so."""
    import torch

    for a, b in operands(device):
        (m, k), n = a.shape, b.shape[1]
        what, dtype = (m, n, k, a.stride(), b.stride(), a.dtype, a.is_conj(), b.is_conj()), a.dtype
        c, row = block(m, n, dtype, device, "C"), block(1, n, dtype, device, "C")[0]
        calls: list[tuple[Callable[[], Any], Any]] = [
            (partial(torch.mm, a, b), c),
            (partial(torch.bmm, a[None], b[None]), c),
        ]
        for beta, alpha in FACTORS:
            for added in (c, row) if best.FEW * m * n <= (m + n) * k else (c,):
                calls.append((partial(torch.addmm, added, a, b, beta=beta, alpha=alpha), c))
        for order, pad in itertools.product("CF", (0, 2)):
            out = block(m, n, dtype, device, order, pad=pad)
            calls.append((partial(torch.mm, a, b, out=out), out))
            calls.append((partial(torch.addmm, c, a, b, beta=2, alpha=-1, out=out), out))
            calls.append((partial(_added_in_place, out, c, a, b), out))
            calls.append((partial(torch.bmm, a[None], b[None], out=out[None]), out))
        for call, out in calls:
            expected = kept(call())
            is_kernels = isinstance(best.choice(a, b, out), best.Match)
            with best.installed(), counted(best) as started:
                for _ in range(2):
                    same(call(), expected, what)
            assert len(started) == 2 * is_kernels, what


def kept(tensor: Any) -> Any:
    """A copy that lies as it does."""
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


# Other tensors and programs


def _left() -> dict[str, Callable[[Any, Any, Any], Any]]:
    """Products of a, b and a result, of float32, that are PyTorch's own, each with why."""
    import torch

    named = type("Named", (torch.Tensor,), {})

    def negative(x: Any) -> Any:
        return torch.complex(x, -x).conj().imag

    return {
        "is of a subclass": lambda a, b, c: a.as_subclass(named) @ b,
        "writes over a": lambda a, b, c: torch.mm(a, b, out=torch.as_strided(a, c.shape, c.stride())),
        "is no matrix in memory": lambda a, b, c: a[::2, ::2] @ b[::2, ::2],
        "is one row again and again": lambda a, b, c: a[:1].expand(a.shape) @ b,
        "is resized": lambda a, b, c: torch.mm(a, b, out=torch.empty(0, device=a.device)),
        "scales by 0": lambda a, b, c: torch.addmm(c, a / 0, b, alpha=0),
        "adds a row to a large result": lambda a, b, c: torch.addmm(c[0], a[:, :3], b[:3]),
        "is resized to a batch": lambda a, b, c: torch.bmm(a[None], b[None], out=c.clone()),
        "shrinks a batch": lambda a, b, c: torch.bmm(a[None], b[None], out=torch.stack((c, c))),
        "is a flag": lambda a, b, c: torch.addmm(c, a, b, alpha=True),
    }


def _refused() -> dict[str, Callable[[Any, Any, Any], Any]]:
    """The same of what PyTorch refuses."""
    import torch

    return {
        "adds to a part of itself": lambda a, b, c: torch.addmm(
            c, a, b, out=torch.as_strided(c, c.shape, (1, c.shape[0]))
        ),
        "does not fit": lambda a, b, c: a @ a,
        "is of another type": lambda a, b, c: a @ b.double(),
        "is added in another type": lambda a, b, c: torch.addmm(c.double(), a, b),
        "has an out of another type": lambda a, b, c: torch.mm(a, b, out=c.double()),
        "has no such c": lambda a, b, c: torch.addmm(c[:2], a, b),
        "is no matrix": lambda a, b, c: torch.mm(a[None], b[None]),
        "is no batch": lambda a, b, c: torch.bmm(a[:1], b),
        "is a number": lambda a, b, c: torch.bmm(a[0, 0], b[None]),
        "needs a gradient of out": lambda a, b, c: torch.mm(a, b, out=c.requires_grad_()),
        "is elsewhere": lambda a, b, c: a @ (b.cpu() if b.is_cuda else b.int()),
    }


def _either() -> dict[str, Callable[[Any, Any, Any], Any]]:
    """The same of what PyTorch refuses on a CPU, and computes on some GPUs."""
    import torch

    return {
        "has no such c to scale by 0": lambda a, b, c: torch.addmm(c[:2], a, b, beta=0),
        "has a c of another type to scale by 0": lambda a, b, c: torch.addmm(c.double(), a, b, beta=0),
    }


def left_alone(best: ModuleType, device: str) -> None:
    """Check that unusual products are PyTorch's own, and that its errors keep their words."""
    import torch

    def outcome(call: Callable[[Any, Any, Any], Any]) -> Any:
        torch.manual_seed(3)
        given = (
            torch.randn(70, 90, device=device),
            torch.randn(90, 20, device=device),
            torch.ones(70, 20, device=device),
        )
        for _ in range(2):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # that an out is resized
                    found = call(*given)
            except Exception as error:  # whichever it is
                found = type(error), str(error)
        return found

    for calls, errors in ((_left(), {False}), (_refused(), {True}), (_either(), {False, True})):
        for why, call in calls.items():
            expected = outcome(call)
            is_error = isinstance(expected, tuple)
            assert is_error in errors, (why, expected)
            with best.installed(), counted(best) as started:
                found = outcome(call)
            assert started == [], why
            if is_error:
                assert found == expected, why
            else:
                same(found, expected, why)


def as_the_program_says(best: ModuleType, device: str) -> None:
    """TF32 is cuBLAS's; with gradients or not, in a mode or not, kernels compute the rest."""
    import torch

    a, b = torch.randn(70, 90, device=device), torch.randn(90, 20, device=device)
    expected = a @ b

    def by_kernel(call: Callable[[], Any]) -> bool:
        with best.installed(), counted(best) as started:
            call()
        return len(started) > 0

    assert by_kernel(lambda: a @ b)
    assert by_kernel(lambda: a.bfloat16() @ b.bfloat16())
    torch.set_float32_matmul_precision("high")
    try:
        assert not by_kernel(lambda: a @ b)
        assert by_kernel(lambda: a.double() @ b.double())
    finally:
        torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        assert not by_kernel(lambda: a @ b)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    if device == "cpu":  # PyTorch may refuse to multiply there when both ways to say it were used
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        assert not by_kernel(lambda: a @ b)
        torch.backends.cuda.matmul.fp32_precision = "ieee"
    with best.installed():
        for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
            with mode(), counted(best) as started:
                same((a @ b).clone(), expected.clone())
            assert len(started) == 1
        weight = torch.nn.Parameter(b)
        with counted(best) as started:
            (a @ weight).square().sum().backward()
            assert (len(started), weight.grad.shape) == (2, b.shape)
        linear = torch.nn.Linear(K_OF_LINEAR, 4, device=device)
        with counted(best) as started:
            linear(torch.randn(70, K_OF_LINEAR, device=device))
        assert len(started) == 1
        with torch.autocast(device, dtype=torch.bfloat16), counted(best) as started:
            assert (a @ b).dtype == torch.bfloat16
            assert started[0].match.winner.dtype == "bf16"
        with counted(best) as started:
            same(
                torch.func.vmap(torch.mm, in_dims=(0, None))(a.expand(3, 70, 90), b),
                expected.expand(3, 70, 20).clone(),
            )
        torch.use_deterministic_algorithms(True)
        try:
            with counted(best) as started:
                same(a @ b, expected)
            assert len(started) == 1
        finally:
            torch.use_deterministic_algorithms(False)


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
