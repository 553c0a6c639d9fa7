"""More checks as those of tests/torch_checks.py: operators, other overrides, compiled programs, threads."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.fabricated import imported_from
from tests.threads_on_gpu import in_threads
from tests.torch_checks import COUNT, about, block, counted, kept, outcome, restored, same

M, N, K = 70, 20, 90


def drawn(device: str, dtype: str = "float64", *products: int, **changes: Any) -> tuple[Any, Any, Any]:
    """Numbers about 0 as a, b and c, with what `changes` says of each."""
    import torch

    kind = getattr(torch, dtype)
    shapes = ((M, K), (K, N), (M, N))
    return tuple(torch.randn(*products, *shape, dtype=kind, device=device, **changes) for shape in shapes)


# Operators


def operators(best: ModuleType, device: str) -> None:
    """They compute by a kernel where `choice` says so, and PyTorch computes what is left; errors are its own."""
    import torch

    own = best.torch
    a, b, c = drawn(device, "float32")
    for x, y in ((a, b), (kept(a.mT).mT, b), (a[::2, ::3], b[:30]), (a[:, :0], b[:0])):
        z = c[: x.shape[0]]
        with counted(best) as started:
            same(own.mm(x, y), x @ y)
            for row in (z, z[0]):
                same(own.addmm(row, x, y, beta=2, alpha=0.5), torch.addmm(row, x, y, beta=2, alpha=0.5))
        chosen = best.choice(x, y, z) if x.stride() != (2 * K, 3) else None  # strides with gaps
        is_small = best.FEW * z.numel() <= x.numel() + y.numel()
        assert len(started) == (2 + is_small) * isinstance(chosen, best.Match), (x.shape, x.stride(), str(chosen))
    for wrong in ((a, a), (a, b.double()), (a[None], b[None])):
        refused = outcome(partial(own.mm, *wrong))
        assert (refused[0], refused) == (RuntimeError, outcome(partial(torch.mm, *wrong)))
    same(own.mm(a.cpu(), b.cpu()), a.cpu() @ b.cpu())
    assert own.mm(a.to("meta"), b.to("meta")).shape == (M, N)
    assert type(own.mm(torch.nn.Parameter(a), b)) is torch.Tensor
    a, b, c = drawn(device, "float32", COUNT)
    with counted(best) as started:
        same(own.bmm(a, b), torch.bmm(a, b))
        for added in (c, c[:1, :1]):
            same(own.baddbmm(added, a, b, beta=2), torch.baddbmm(added, a, b, beta=2))
    assert len(started) == 3


def gradients(best: ModuleType, device: str) -> None:
    """First and second ones are right, in each storage order; of PyTorch's own products and of batches, too."""
    import torch

    own, check, again = best.torch, torch.autograd.gradcheck, torch.autograd.gradgradcheck

    def leaf(*shape: int, dtype: Any, order: str = "C") -> Any:
        return kept(block(*shape, dtype=dtype, device=device, order=order)).requires_grad_()

    with best.installed(), counted(best) as started:
        for dtype in (torch.float64, torch.complex128):
            factors = {"alpha": 0.5 - 1j, "beta": 2j} if dtype.is_complex else {"alpha": 0.5, "beta": -2}
            for products, orders in [((), x) for x in ("CC", "CF", "FC", "FF")] + [
                ((3,), x) for x in ("CC", "FF", "CF")
            ]:
                shapes = ((*products, 4, 3), (*products, 3, 2))
                a, b = (leaf(*shape, dtype=dtype, order=order) for shape, order in zip(shapes, orders, strict=True))
                c, row = leaf(*products, 4, 2, dtype=dtype), leaf(1, 1, 2, dtype=dtype)
                row = row if products else row.detach()[0, 0].requires_grad_()
                multiply, add = ("bmm", "baddbmm") if products else ("mm", "addmm")
                for of in (own, torch):
                    assert check(getattr(of, multiply), (a, b))
                    assert again(getattr(of, multiply), (a, b))
                    for added in (c, row):
                        assert check(partial(getattr(of, add), **factors), (added, a, b))
                    for added in (c, *(() if products else (row,))):
                        assert again(partial(getattr(of, add), **factors), (added, a, b))
                given = torch.autograd.grad(getattr(own, multiply)(a, b), (a, b), torch.ones_like(c))
                assert [x.stride() for x in given] == [a.stride(), b.stride()]
    assert len(started) > 1000
    with counted(best) as started:
        assert not own.bmm(a.detach(), b).detach().requires_grad
        with torch.no_grad():
            assert not own.bmm(a, b).requires_grad
    assert len(started) == 2
    weight = leaf(3, 2, dtype=torch.float64)
    a = leaf(3, 4, 3, dtype=torch.float64)
    with counted(best) as started:
        of_weight, of_torchs = (
            torch.autograd.grad(f(a, weight.expand(3, 3, 2)).abs().sum(), weight)[0] for f in (own.bmm, torch.bmm)
        )
    about(of_weight, of_torchs)
    assert len(started) == 3  # with the gradient of each product


def transforms(best: ModuleType, device: str) -> None:
    """The transforms of torch.func treat our operators like PyTorch's, and opcheck accepts them."""
    import torch
    from torch.autograd import forward_ad

    vmap, own = torch.func.vmap, best.torch
    a, b, c = drawn(device, "float32", COUNT)
    many = [x.expand(3, *x.shape).clone() for x in (a, b, c)]
    between = a.movedim(0, 1).contiguous(), b.movedim(0, 2).contiguous()  # the batch is between the extents
    cases: list[tuple[str, Any, tuple[Any, ...], int]] = [
        ("mm", (0, 0), (a, b), 1),
        ("mm", (0, None), (a, b[0]), 1),
        ("mm", (None, 0), (a[0], b), 1),
        ("mm", (1, 2), between, 0),
        ("addmm", (0, 0, 0), (c, a, b), 1),
        ("addmm", (None, 0, None), (c[0, 0], a, b[0]), 1),
        ("addmm", (0, None, None), (c, a[0], b[0]), 1),
        ("addmm", (0, None, None), (c[:, 0], a[0], b[0]), 1),
        ("addmm", (0, 0, 0), (c[:, 0, 0], a, b), 1),
        ("bmm", (0, 0), (many[0], many[1]), 1),
        ("bmm", (0, None), (many[0], b), 1),  # b is copied for each
        ("baddbmm", (0, 0, 0), (many[2], many[0], many[1]), 1),
        ("baddbmm", (0, None, None), (c[:3, :1], a, b), 1),
    ]
    for name, in_dims, given, by_kernel in cases:
        factors = {"beta": 2, "alpha": 0.5} if "add" in name else {}
        ours, theirs = (vmap(partial(getattr(of, name), **factors), in_dims) for of in (own, torch))
        with counted(best) as started:
            (same if name == "mm" else about)(ours(*given), theirs(*given), name)
        assert len(started) == by_kernel, (name, in_dims)
    about(*(vmap(vmap(f), (0, None))(many[0], b) for f in (own.mm, torch.mm)))
    wanted = a.clone().requires_grad_()
    about(*(torch.autograd.grad(vmap(f)(wanted, b).square().sum(), wanted)[0] for f in (own.mm, torch.mm)))
    a, b, c = drawn(device)
    of: Callable[[Any], Any]
    for of in (
        lambda f: torch.func.grad(lambda x: f(x, b).square().sum()),
        lambda f: torch.func.hessian(lambda x: f(x, b[:, :1]).square().sum()),
    ):
        torch.testing.assert_close(of(own.mm)(a[:3]), of(torch.mm)(a[:3]))
    torch.testing.assert_close(torch.func.jvp(own.mm, (a, b), (a, b))[1], 2 * a @ b)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(own.mm(forward_ad.make_dual(a, a), b)).tangent
        torch.testing.assert_close(tangent, a @ b)
    for dtype in ("float32", "complex64", "bfloat16"):
        a, b, c = (x.requires_grad_() for x in drawn(device, dtype))
        near = {"rtol": 1e-2, "atol": 1e-2} if dtype == "bfloat16" else {}
        torch.library.opcheck(own.mm.default, (a, b), **near)
        torch.library.opcheck(own.addmm.default, (c, a, b), {"beta": 2, "alpha": 0.5}, **near)
        torch.library.opcheck(own.addmm.default, (c[0].detach().requires_grad_(), a, b.detach()), **near)
    a, b, c = (x.requires_grad_() for x in drawn(device, "float64", 3))
    torch.library.opcheck(own.bmm.default, (a, b))
    torch.library.opcheck(own.baddbmm.default, (c, a, b), {"beta": -2, "alpha": 0.5})


# Compiled programs


def compiled(best: ModuleType, device: str) -> None:
    """A program that torch.compile makes one graph of, by our operators or by PyTorch's, has the same results."""
    import torch

    def of_matrices(of: Any, a: Any, b: Any, c: Any) -> Any:
        return of.addmm(c, of.mm(a, b), b.mT @ b, beta=0.5).mul(0.01).tanh()

    def of_batches(of: Any, a: Any, b: Any, c: Any) -> Any:
        return of.baddbmm(c, a, b, beta=0.5).tanh() + of.bmm(a, b)

    for program, products, least in ((of_matrices, (), (5, 5)), (of_batches, (COUNT,), (6, 4))):
        given = tuple(x.requires_grad_() for x in drawn(device, "float32", *products))

        def result(call: Callable[..., Any], given: Any = given) -> list[Any]:
            found = call(*given)
            return [found, *torch.autograd.grad(found.square().sum(), given)]

        expected = result(partial(program, torch))
        with counted(best) as started:
            about(result(partial(program, best.torch)), expected)
        assert len(started) >= least[0]
        for of, is_installed in ((best.torch, False), (torch, True)):
            torch.compiler.reset()
            with best.installed() if is_installed else nullcontext(), counted(best) as started:
                about(result(torch.compile(lambda *given: program(of, *given), fullgraph=True)), expected)  # noqa: B023
            assert len(started) >= least[is_installed]
    torch.compiler.reset()
    a, b, _ = drawn(device, "float32")
    twice = torch.compile(lambda x, y: best.torch.mm(x, y) + 1, fullgraph=True, dynamic=True)
    for x in (a, torch.randn(2 * M, K, device=device)):
        about(twice(x, b), x @ b + 1)
    torch.compiler.reset()


def tried_by_inductor(best: ModuleType, device: str) -> None:
    """Inductor times our product among its ways, and takes ours if it has no other."""
    import torch
    from torch._inductor import config

    a, b, _ = drawn(device, "float32")
    expected = (a @ b).relu()
    ways = {"external_matmul": [best.torch.external_matmul], "max_autotune_gemm": True, "force_disable_caches": True}
    for backends in ("ATEN", "CPP" if device == "cuda" else "CUTLASS"):  # the latter of which are none there
        torch.compiler.reset()
        with config.patch(max_autotune_gemm_backends=backends, **ways), counted(best) as started:
            program = torch.compile(lambda x, y: (x @ y).relu(), fullgraph=True)
            about(program(a, b), expected)
            timed = len(started)
            program(a, b)
        print(f"{backends}: {timed} calls of ours for timing, {len(started) - timed} in the program")
        assert timed > 0
    assert len(started) - timed == 1
    torch.compiler.reset()


# Other overrides, and other modules


@contextmanager
def theirs(device: str) -> Iterator[Any]:
    """Somebody else's override of mm, which doubles the result."""
    import torch

    before = torch.library.get_kernel("aten::mm", device.upper())
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        double = lambda keys, a, b: 2 * before.call_boxed(keys, a, b)  # noqa: E731
        library.impl("mm", double, device.upper(), with_keyset=True)
    try:
        yield library
    finally:
        library._destroy()


def overrides(best: ModuleType, device: str) -> None:
    """Others come before ours and after it, and go in any order; what ours does not take goes on to them."""
    a, b, _ = drawn(device, "float32")
    strided, untouched = a[::2, ::2], restored(device)
    product, of_strided = a @ b, strided @ b[:45]

    def are(of_kernel: float, of_left: float) -> None:
        about(a @ b, of_kernel * product)
        about(strided @ b[:45], of_left * of_strided)

    with theirs(device):  # before ours
        are(2, 2)
        with best.installed():
            are(1, 2)
        are(2, 2)
    with best.installed(), theirs(device):  # after ours
        are(2, 2)
    are(1, 1)
    assert restored(device) == untouched
    with theirs(device) as early:  # before ours, and gone before it
        best.install()
        are(1, 2)
        early._destroy()
        are(1, 1)
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            strided @ b
        best.uninstall()
    assert restored(device) == untouched
    best.install()
    with theirs(device):  # after ours, which goes first
        best.uninstall()
        with counted(best) as started:
            are(2, 2)
        assert started == []
        best.install()
        are(2, 2)
        best.uninstall()
    are(1, 1)
    best.install()
    best.uninstall()
    assert restored(device) == untouched


def scopes(best: ModuleType, device: str) -> None:
    """`installed` within `install`, within itself, and ended by an error, leaves what there was."""
    a, b, _ = drawn(device)
    untouched = restored(device)

    def is_there() -> bool:
        with counted(best) as started:
            a @ b
        return bool(started)

    assert not is_there()
    with best.installed():
        with best.installed():
            assert is_there()
        assert is_there()
    assert not is_there()
    best.install()
    best.install()
    with pytest.raises(KeyError), best.installed():
        raise KeyError
    assert is_there()
    with best.installed():
        best.uninstall()
        assert is_there()
    assert not is_there()
    best.uninstall()
    assert restored(device) == untouched


def two_modules(best: ModuleType, device: str) -> None:
    """A copy of the module has its operators, and overrides of its own."""
    import torch

    a, b, _ = drawn(device, "float32")
    untouched = restored(device)
    copy = imported_from(Path(str(best.__file__)), "copied_kernels")
    copy.__dict__["KEY_OF_GPUS"] = best.KEY_OF_GPUS
    assert copy.torch.mm is best.torch.mm
    same(copy.torch.mm(a, b), a @ b)
    with best.installed(), copy.installed(), counted(best) as started:
        same(a @ b, (a.double() @ b.double()).float())
    if device == "cuda":  # elsewhere the copy takes nothing
        assert started == []
    assert restored(device) == untouched
    assert type(best.torch.mm).__name__ == type(torch.ops.aten.mm).__name__
    del sys.modules["copied_kernels"]


# Threads


def threads(best: ModuleType, device: str) -> None:
    """Eight threads that multiply, and find gradients, at the same time."""
    import torch

    a, b, c = drawn(device, "float32")
    expected, left = a @ b, a[::2, ::2] @ b[:45]

    def work() -> None:
        for _ in range(100):
            about(a @ b, expected)
            about(a[::2, ::2] @ b[:45], left)
            weight = b.clone().requires_grad_()
            (torch.addmm(c, a, weight) - c).square().sum().backward()
            about(weight.grad, 2 * a.mT @ expected)

    with best.installed():
        in_threads([work] * 8)


PROGRAMS: dict[str, Callable[[ModuleType, str], None]] = {
    one.__name__: one
    for one in (
        operators, gradients, transforms, compiled, tried_by_inductor, overrides, scopes, two_modules, threads
    )
}  # fmt: skip
