"""More checks as those of tests/torch_checks.py: operators, other overrides, compiled programs, threads."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.threads_on_gpu import in_threads
from tests.torch_checks import block, kept, restored
from tests.torch_results import about, counted, same

M, N, K = 70, 20, 90


def drawn(device: str, dtype: str = "float64", **changes: Any) -> tuple[Any, Any, Any]:
    """a, b and c, and what `changes` says of each."""
    import torch

    kind = getattr(torch, dtype)
    shapes = ((M, K), (K, N), (M, N))
    return tuple(torch.randn(shape, dtype=kind, device=device, **changes) for shape in shapes)


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
        expected_count = (2 + is_small) * isinstance(chosen, best.Match)
        assert len(started) == expected_count, (x.shape, x.stride(), [plan.shape for plan in started], str(chosen))
    for wrong in ((a, a), (a, b.double()), (a[None], b[None])):
        with pytest.raises(RuntimeError) as expected:
            torch.mm(*wrong)
        with pytest.raises(RuntimeError) as found:
            own.mm(*wrong)
        assert str(found.value) == str(expected.value)
    same(own.mm(a.cpu(), b.cpu()), a.cpu() @ b.cpu())
    assert own.mm(a.to("meta"), b.to("meta")).shape == (M, N)
    assert type(own.mm(torch.nn.Parameter(a), b)) is torch.Tensor


def gradients(best: ModuleType, device: str) -> None:
    """First and second ones are right, in whichever order operands lie; of PyTorch's own products, too."""
    import torch

    own, check, again = best.torch, torch.autograd.gradcheck, torch.autograd.gradgradcheck

    def leaf(rows: int, columns: int, order: str, dtype: Any) -> Any:
        return block(rows, columns, dtype, device, order).clone().requires_grad_()

    with best.installed(), counted(best) as started:
        for dtype in (torch.float64, torch.complex128):
            factors = {"alpha": 0.5 - 1j, "beta": 2j} if dtype.is_complex else {"alpha": 0.5, "beta": -2}
            for order_a, order_b in ("CC", "CF", "FC", "FF"):
                a, b, c = (leaf(*one, dtype) for one in ((4, 3, order_a), (3, 2, order_b), (4, 2, "C")))
                row = leaf(1, 2, "C", dtype).detach()[0].requires_grad_()
                for of in (own.mm, torch.mm):
                    assert check(of, (a, b))
                    assert again(of, (a, b))
                for of in (partial(own.addmm, **factors), partial(torch.addmm, **factors)):
                    for added in (c, row):
                        assert check(of, (added, a, b))
                        assert again(of, (added, a, b))
    assert len(started) > 1000
    a, b = leaf(9, 6, "F", torch.float64), leaf(6, 4, "C", torch.float64)
    own.mm(a, b).square().sum().backward()
    assert (a.grad.stride(), b.grad.stride()) == (a.stride(), b.stride())
    with counted(best) as started:
        assert not own.mm(a.detach(), b).detach().requires_grad
        with torch.no_grad():
            assert not own.mm(a, b).requires_grad
    assert len(started) == 2


def transforms(best: ModuleType, device: str) -> None:
    """Check that torch.func's transforms treat our operators like PyTorch's, and that opcheck accepts them."""
    import torch
    from torch.autograd import forward_ad

    own = best.torch
    a, b, c = drawn(device)
    many, more, row = torch.randn(3, M, K, dtype=a.dtype, device=device), b.expand(3, K, N).clone(), c[0]
    vmap = torch.func.vmap
    for dims, x, y in (
        ((0, 0), many, more),
        ((0, None), many, b),
        ((None, 0), a, more),
        ((2, 1), many.permute(1, 2, 0), more.permute(1, 0, 2)),
    ):
        same(vmap(own.mm, dims)(x, y), vmap(torch.mm, dims)(x, y))
    sums = partial(partial, beta=2, alpha=0.5)
    given: tuple[Any, ...]
    for in_dims, given in (
        ((None, 0, None), (row, many, b)),
        ((0, None, None), (c.expand(3, M, N).clone(), a, b)),
        ((0, None, None), (row.expand(3, N).clone(), a, b)),
        ((0, 0, 0), (torch.randn(3, dtype=a.dtype, device=device), many, more)),
    ):
        torch.testing.assert_close(vmap(sums(own.addmm), in_dims)(*given), vmap(sums(torch.addmm), in_dims)(*given))
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


# Compiled programs


def compiled(best: ModuleType, device: str) -> None:
    """A program that torch.compile makes one graph of, by our operators or by PyTorch's, has the same results."""
    import torch

    a, b, c = (x.requires_grad_() for x in drawn(device, "float32"))

    def by_own(a: Any, b: Any, c: Any) -> Any:
        return best.torch.addmm(c, best.torch.mm(a, b), b.mT @ b, beta=0.5).mul(0.01).tanh()

    def by_torchs(a: Any, b: Any, c: Any) -> Any:
        return torch.addmm(c, torch.mm(a, b), b.mT @ b, beta=0.5).mul(0.01).tanh()

    def result(call: Callable[..., Any], *given: Any) -> list[Any]:
        found = call(*given)
        return [found, *torch.autograd.grad(found.sum(), given)]

    expected = result(by_torchs, a, b, c)
    with counted(best) as started:
        for found in (result(torch.compile(by_own, fullgraph=True), a, b, c), result(by_own, a, b, c)):
            about(found, expected)
    assert len(started) >= 10
    longer = torch.randn(2 * M, K, device=device)
    twice = torch.compile(lambda x, y: best.torch.mm(x, y) + 1, fullgraph=True, dynamic=True)
    for x in (a.detach(), longer):
        about(twice(x, b.detach()), x @ b.detach() + 1)
    torch.compiler.reset()
    with best.installed(), counted(best) as started:
        about(result(torch.compile(by_torchs, fullgraph=True), a, b, c), expected)
    assert len(started) >= 5
    torch.compiler.reset()


def tried_by_inductor(best: ModuleType, device: str) -> None:
    """Check that Inductor times our product among its ways, and takes ours if it has no other."""
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
def theirs(device: str, factor: float, *, passes_on: bool = True) -> Iterator[Any]:
    """Somebody else's override of mm, which multiplies the result by a factor, or by itself does not compute."""
    import torch

    before = torch.library.get_kernel("aten::mm", device.upper())
    library = torch.library.Library("aten", "IMPL")

    def mm(keys: Any, a: Any, b: Any) -> Any:
        return (
            factor * before.call_boxed(keys, a, b)
            if passes_on
            else torch.full((len(a), b.shape[1]), factor, device=device)
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl("mm", mm, device.upper(), with_keyset=True)
    try:
        yield library
    finally:
        library._destroy()


def overrides(best: ModuleType, device: str) -> None:
    """Others come before ours and after it, and go in any order; what ours does not take goes on to them."""
    import torch

    a, b, _ = drawn(device, "float32")
    product, whole = a @ b, torch.ones(3, 4, dtype=torch.int64, device="cpu")
    strided = a[::2, ::2]
    of_strided = strided @ b[:45]
    untouched = restored(device)

    def are(of_kernel: float, of_left: float) -> None:
        about(a @ b, of_kernel * product)
        about(strided @ b[:45], of_left * of_strided)

    assert whole.sum() == 12
    with theirs(device, 2):  # before ours
        are(2, 2)
        with best.installed():
            are(1, 2)
        are(2, 2)
    with best.installed(), theirs(device, 2):  # after ours
        are(2, 2)
    are(1, 1)
    assert restored(device) == untouched
    with theirs(device, 2) as early:  # before ours, and gone before it
        best.install()
        are(1, 2)
        early._destroy()
        are(1, 1)
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            strided @ b
        best.uninstall()
    assert restored(device) == untouched
    best.install()
    with theirs(device, 2):  # after ours, which goes first
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
    """A copy of the module, and the module when it is loaded again, have its operators and overrides of their own."""
    import torch

    a, b, _ = drawn(device, "float32")
    untouched = restored(device)
    assert best.__file__ is not None
    spec = importlib.util.spec_from_file_location("copied_kernels", Path(best.__file__))
    assert spec is not None
    assert spec.loader is not None
    copy = sys.modules["copied_kernels"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    copy.__dict__["KEY_OF_GPUS"] = best.KEY_OF_GPUS
    assert copy.torch.mm is best.torch.mm
    same(copy.torch.mm(a, b), a @ b)
    with best.installed(), copy.installed(), counted(best) as started:
        same(a @ b, (a.double() @ b.double()).float())
    if device == "cuda":  # elsewhere the copy takes nothing
        assert started == []
    assert restored(device) == untouched
    name = type(torch.ops.aten.mm).__name__
    assert type(best.torch.mm).__name__ == name
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
