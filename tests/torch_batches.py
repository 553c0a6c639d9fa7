"""More checks as those of tests/torch_checks.py: batches of products, by PyTorch's operators and by the module's."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

from tests.torch_checks import FACTORS, NAMES, kept
from tests.torch_results import about, counted, same

SHAPE = 5, 7, 4, 33  # products, m, n, k


def batch(
    count: int,
    rows: int,
    columns: int,
    dtype: Any,
    device: str,
    order: str = "C",
    *,
    pad: int = 0,
    conj: bool = False,
) -> Any:
    """Numbers about 0 in matrices with gaps of `pad` lines and elements; column-major with F, one for all with S."""
    import torch

    height, width = (columns, rows) if order == "F" else (rows, columns)
    of = (1 if order == "S" else count), height + pad, width + pad
    whole = torch.randn(of, device=device, dtype=torch.complex128 if dtype.is_complex else None)
    part = whole.to(dtype)[:, :height, :width]
    part = part.mT if order == "F" else part.expand(count, -1, -1)
    return part.conj() if conj else part


def _operands(device: str) -> Iterator[tuple[Any, Any]]:
    """Yield batches of all types and orders, with gaps and without; in some one matrix is for all products."""
    import torch

    count, m, n, k = SHAPE
    for name, order_a, order_b, pad in itertools.product(NAMES.values(), "CFS", "CFS", (0, 3)):
        dtype, bits = getattr(torch, name), itertools.product((False, True), repeat=2)
        for conj_a, conj_b in bits if dtype.is_complex else ((False, False),):
            yield (
                batch(count, m, k, dtype, device, order_a, pad=pad, conj=conj_a),
                batch(count, k, n, dtype, device, order_b, pad=pad, conj=conj_b),
            )


def _added_in_place(out: Any, c: Any, a: Any, b: Any) -> Any:
    return out.copy_(c).baddbmm_(a, b, beta=0.5, alpha=2)


def batches(best: ModuleType, device: str) -> None:
    """Whichever way batches lie, a kernel computes them, and results are the same."""
    import torch

    count, m, n, _ = SHAPE
    for a, b in _operands(device):
        what = a.stride(), b.stride(), a.dtype, a.is_conj(), b.is_conj()
        c = batch(count, m, n, a.dtype, device)
        calls: list[Callable[[], Any]] = [partial(torch.bmm, a, b), partial(torch.matmul, a, b)]
        for (beta, alpha), added in zip(FACTORS, (c, c[0], c[:1, :1]), strict=True):
            calls.append(partial(torch.baddbmm, added, a, b, beta=beta, alpha=alpha))
        for order, pad in itertools.product("CF", (0, 2)):
            out = batch(count, m, n, a.dtype, device, order, pad=pad)
            calls.append(partial(torch.bmm, a, b, out=out))
            calls.append(partial(torch.baddbmm, c, a, b, beta=2, alpha=-1, out=out))
            calls.append(partial(_added_in_place, out, c, a, b))
        for call in calls:
            expected = kept(call())
            with best.installed(), counted(best) as started:
                for _ in range(2):
                    same(call(), expected, what)
            assert len(started) == 2, what


def batches_left_alone(best: ModuleType, device: str) -> None:
    """Check that PyTorch computes what no kernel does, with its own errors."""
    import torch

    count, m, n, k = SHAPE
    left: list[Callable[..., Any]] = [
        lambda a, b, c: torch.bmm(a[..., ::2], b[:, ::2]),  # strides with gaps
        lambda a, b, c: torch.bmm(a[:0], b[:0]),
        lambda a, b, c: torch.bmm(a[..., :0], b[:, :0]),
        lambda a, b, c: torch.baddbmm(c, a / 0, b, alpha=0),
        lambda a, b, c: torch.bmm(a, b, out=torch.as_strided(a, c.shape, c.stride())),  # over a
        lambda a, b, c: torch.baddbmm(c, a, b, alpha=True),
    ]
    refused: list[Callable[..., Any]] = [
        lambda a, b, c: torch.bmm(a[:1], b),
        lambda a, b, c: torch.bmm(a, b[:2]),
        lambda a, b, c: torch.bmm(a, a),
        lambda a, b, c: torch.bmm(a, b[0]),
        lambda a, b, c: torch.bmm(a, b.double()),
        lambda a, b, c: torch.baddbmm(c[:2], a, b),
        lambda a, b, c: torch.baddbmm(c[None], a, b),
        lambda a, b, c: torch.bmm(a, b, out=c.double()),
    ]

    def outcome(call: Callable[..., Any]) -> Any:
        torch.manual_seed(3)
        shapes = (m, k), (k, n), (m, n)
        given = [batch(count, rows, columns, torch.float32, device) for rows, columns in shapes]
        try:
            return call(*given)
        except Exception as error:  # whichever it is
            return type(error), str(error)

    for call in left + refused:
        expected = outcome(call)
        assert isinstance(expected, tuple) == (call in refused), expected
        with best.installed(), counted(best) as started:
            for _ in range(2):
                found = outcome(call)
                if call in refused:
                    assert found == expected
                else:
                    same(found, expected)
        assert started == []


def operators_of_batches(best: ModuleType, device: str) -> None:
    """The module's operators multiply batches by kernels, and their first and second gradients are right."""
    import torch

    own, check, again = best.torch, torch.autograd.gradcheck, torch.autograd.gradgradcheck
    for dtype in (torch.float64, torch.complex128):
        factors = {"alpha": 0.5 - 1j, "beta": 2j} if dtype.is_complex else {"alpha": 0.5, "beta": -2}
        for orders in ("CC", "FF", "CF"):
            a, b = (
                kept(batch(3, *of, dtype, device, order)).requires_grad_()
                for of, order in zip(((4, 3), (3, 2)), orders, strict=True)
            )
            c, row = (batch(*of, dtype, device).clone().requires_grad_() for of in ((3, 4, 2), (1, 1, 2)))
            with counted(best) as started:
                same(own.bmm(a, b), torch.bmm(a, b))
                for added in (c, row):
                    same(own.baddbmm(added, a, b, **factors), torch.baddbmm(added, a, b, **factors))
                assert len(started) == 3
                assert check(own.bmm, (a, b))
                assert again(own.bmm, (a, b))
                for added in (c, row):
                    assert check(partial(own.baddbmm, **factors), (added, a, b))
                assert again(partial(own.baddbmm, **factors), (c, a, b))
            assert len(started) > 100
            of_factors = torch.autograd.grad(own.bmm(a, b), (a, b), torch.ones_like(c))
            assert [x.stride() for x in of_factors] == [a.stride(), b.stride()]
    torch.library.opcheck(own.bmm.default, (a, b))
    torch.library.opcheck(own.baddbmm.default, (c, a, b), factors)
    weight = batch(1, 3, 2, dtype, device)[0].requires_grad_()
    with counted(best) as started:
        of_weight, of_torchs = (
            torch.autograd.grad(f(a, weight.expand(3, 3, 2)).abs().sum(), weight)[0] for f in (own.bmm, torch.bmm)
        )
    about(of_weight, of_torchs)
    assert len(started) == 3  # with the gradient of each product


def batches_of_vmap(best: ModuleType, device: str) -> None:
    """Batches of vmap, nested ones too, are batches of products by kernels, or PyTorch's with the same result."""
    import torch

    vmap, own = torch.func.vmap, best.torch
    count, m, n, k = SHAPE
    a, b, c = (batch(count, *of, torch.float32, device) for of in ((m, k), (k, n), (m, n)))
    many = [x.expand(3, *x.shape).clone() for x in (a, b, c)]
    cases: list[tuple[str, Any, tuple[Any, ...], int]] = [
        ("mm", (0, 0), (a, b), 1),
        ("mm", (0, None), (a, b[0]), 1),
        ("mm", (None, 0), (a[0], b), 1),
        (
            "mm",
            (1, 2),
            (a.movedim(0, 1).contiguous(), b.movedim(0, 2).contiguous()),
            0,
        ),  # the batch is between the extents
        ("addmm", (0, 0, 0), (c, a, b), 1),
        ("addmm", (None, 0, None), (c[0, 0], a, b[0]), 1),
        ("addmm", (0, None, None), (c, a[0], b[0]), 1),
        ("bmm", (0, 0), (many[0], many[1]), 1),
        ("bmm", (0, None), (many[0], b), 1),  # b is copied for each
        ("baddbmm", (0, 0, 0), (many[2], many[0], many[1]), 1),
        ("baddbmm", (0, None, None), (c[:3, :1], a, b), 1),
    ]
    for name, in_dims, given, by_kernel in cases:
        factors = {"beta": 2, "alpha": 0.5} if "add" in name else {}
        ours, theirs = (vmap(partial(getattr(of, name), **factors), in_dims) for of in (own, torch))
        with counted(best) as started:
            about(ours(*given), theirs(*given), name)
        assert len(started) == by_kernel, (name, in_dims)
    twice = [vmap(vmap(f), (0, None)) for f in (own.mm, torch.mm)]
    about(twice[0](many[0], b), twice[1](many[0], b))
    a.requires_grad_()
    about(*(torch.autograd.grad(vmap(f)(a, b).square().sum(), a)[0] for f in (own.mm, torch.mm)))


def compiled_batches(best: ModuleType, device: str) -> None:
    """A program that torch.compile makes one graph of has the same results, by our operators or by PyTorch's."""
    import torch

    count, m, n, k = SHAPE
    a, b, c = (batch(count, *of, torch.float32, device).requires_grad_() for of in ((m, k), (k, n), (m, n)))

    def program(of: Any, a: Any, b: Any, c: Any) -> Any:
        return of.baddbmm(c, a, b, beta=0.5).tanh() + of.bmm(a, b)

    def result(call: Callable[..., Any]) -> list[Any]:
        found = call(a, b, c)
        return [found, *torch.autograd.grad(found.square().sum(), (a, b, c))]

    expected = result(partial(program, torch))
    torch.compiler.reset()
    with counted(best) as started:
        about(result(torch.compile(lambda *given: program(best.torch, *given), fullgraph=True)), expected)
    assert len(started) >= 6
    torch.compiler.reset()
    with best.installed(), counted(best) as started:
        about(result(torch.compile(lambda *given: program(torch, *given), fullgraph=True)), expected)
    assert len(started) >= 4
    torch.compiler.reset()


BATCHES: dict[str, Callable[[ModuleType, str], None]] = {
    one.__name__: one
    for one in (batches, batches_left_alone, operators_of_batches, batches_of_vmap, compiled_batches)
}  # fmt: skip
