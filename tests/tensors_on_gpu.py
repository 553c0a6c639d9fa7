"""Checks of an exported module with what PyTorch's tensors are besides memory; tests/calls_on_gpu.py runs them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.array_libraries import Arrays

M, N, K = 70, 4, 900


def bits(arrays: Arrays, best: ModuleType) -> None:
    """Conjugates are multiplied as such, by a kernel or by PyTorch; what is to be negated is refused."""
    import torch

    def block(rows: int, columns: int, *, across: bool) -> Any:
        whole = torch.randn((columns, rows) if across else (rows, columns), dtype=torch.complex64, device=where)
        return whole.T if across else whole

    where, computed = "cuda", set()
    for across_a, across_b, conj_a, conj_b in product((False, True), repeat=4):
        a, b = block(M, K, across=across_a), block(K, N, across=across_b)
        a, b = a.conj() if conj_a else a, b.conj() if conj_b else b
        exact = (a.to(torch.complex128) @ b.to(torch.complex128)).cpu().numpy()
        out = torch.empty(N, M, dtype=torch.complex64, device=where).T
        computed.add(type(best.choice(a, b, out)))
        for _ in range(2):  # the second time by the short way
            out.fill_(float("nan"))
            best.gemm(a, b, out=out)
            np.testing.assert_allclose(out.cpu().numpy(), exact, rtol=1e-4, atol=1e-3)
            np.testing.assert_allclose(best.gemm(a, b).resolve_conj().cpu().numpy(), exact, rtol=1e-4, atol=1e-3)
            with pytest.raises(TypeError, match=r"^out: its conjugate bit is set"):
                best.gemm(a, b, out=out.conj())
    assert computed == {best.Match, best.Vendor}
    plain, negative = (
        torch.ones(M, K, device=where),
        torch.ones(K, N, dtype=torch.complex64, device=where).conj().imag,
    )
    assert negative.is_neg()
    out = torch.empty(M, N, device=where)
    for _ in range(2):
        with pytest.raises(TypeError, match=r"^b: it has its negative bit set"):
            best.gemm(plain, negative, out=out)
        torch.testing.assert_close(best.gemm(plain, negative.resolve_neg(), out=out), torch.zeros_like(out))
    with pytest.raises(TypeError, match=r"^out: it has its negative bit set"):
        best.gemm(plain, plain.T, out=torch.ones(M, M, dtype=torch.complex64, device=where).conj().imag)


def gradients(arrays: Arrays, best: ModuleType) -> None:
    """With `out`, what torch.mm(out=) refuses is refused, and all else is right; without, what would be recorded."""
    import torch

    modes: tuple[Callable[[], Any], ...] = (torch.enable_grad, torch.no_grad, torch.inference_mode)
    answers = set()
    for mode, *wanted in product(modes, *[(False, True)] * 3):
        a, b, out = (torch.ones(shape, device="cuda") for shape in ((M, K), (K, N), (M, N)))
        best.gemm(a, b, out=out)  # so that the short way is known
        for tensor, wants in zip((a, b, out), wanted, strict=True):
            tensor.requires_grad_(wants)
        with mode():
            refused = is_refused(RuntimeError, torch.mm, a, b, out=out)
            with torch.no_grad():
                out.fill_(float("nan"))
            for _ in range(2):
                assert is_refused(TypeError, best.gemm, a, b, out=out) == refused, (mode, wanted)
            assert bool((out == K).all()) != refused
            records = torch.is_grad_enabled() and any(wanted[:2])
            assert is_refused(TypeError, best.gemm, a, b) == records
        answers.add(refused)
    assert answers == {False, True}


def is_refused(error: type[Exception], call: Callable[..., object], *arguments: Any, **named: Any) -> bool:
    """Return whether the call raises this error."""
    try:
        call(*arguments, **named)
    except error:
        return True
    return False
