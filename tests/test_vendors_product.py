"""Products by the arrays' own library: what they are, where they lie, and that 16-bit elements are rounded once."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.call_log import logged
from tsm2_tune.runtime.arrays import libraries
from tsm2_tune.runtime.arrays.libraries import vendors_product

SHAPES = [((5, 7), (7, 3)), ((7,), (7, 3)), ((5, 7), (7,)), ((7,), (7,))]
FACTORS = [(1, 0), (0.5, 0), (1, 1), (-1.5, 0.25)]
PLAIN = (False, False)


def operands(shapes: Any, dtype: Any) -> tuple[Any, Any, Any]:
    random = np.random.default_rng(3)

    def drawn(shape: tuple[int, ...]) -> Any:
        real, imaginary = random.standard_normal((2, *shape))
        return (real + 1j * imaginary if dtype is np.complex64 else real).astype(dtype)

    a, b = map(drawn, shapes)
    return a, b, drawn(np.shape(a @ b))


def exact(a: Any, b: Any, out: Any, alpha: float, beta: float) -> Any:
    wide = np.complex128 if np.iscomplexobj(a) else np.float64
    return alpha * (a.astype(wide) @ b.astype(wide)) + beta * out.astype(wide)


@pytest.mark.parametrize("factors", [*FACTORS, (0, 0), (0, 1), (0, 0.5)])
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.complex64])
def test_the_product_is_in_out_or_a_new_array(shapes: Any, dtype: Any, factors: tuple[float, float]) -> None:
    a, b, out = operands(shapes, dtype)
    alpha, beta = factors
    expected = exact(a, b, out, alpha, beta)
    near: dict[str, Any] = {"rtol": 2e-3 if dtype is np.float16 else 1e-5, "atol": 1e-2 if alpha else 0.0}
    if alpha == 0:  # neither is read
        a, b = np.full_like(a, np.nan), np.full_like(b, np.nan)
    held = np.array(out) if beta else np.full_like(out, np.nan)  # which is not read
    assert vendors_product(a, b, held, alpha, beta, PLAIN) is held
    np.testing.assert_allclose(held, expected, **near)
    if beta == 0:
        made = vendors_product(a, b, None, alpha, 0, PLAIN)
        assert made.dtype == dtype
        np.testing.assert_allclose(made, expected, **near)


@pytest.mark.parametrize(
    ("a", "b", "out", "alpha", "beta", "once", "twice"),
    [  # 1 + 2^-11 is between two numbers of f16, and rounded before it is doubled, 2 + 2^-10 would be 2
        ([[1.0, 2.0**-11]], [[1.0], [1.0]], None, 3, 0, 3 * (1 + 2.0**-11), 3),
        ([[1.0, 2.0**-11]], [[1.0], [1.0]], [[1.0]], 3, -1, 3 * (1 + 2.0**-11) - 1, 2),
        # 3 (1 + 2^-10) is between two numbers of f16, rounded upwards alone, and with -2^-12 downwards
        ([[-(2.0**-12)]], [[1.0]], [[1 + 2.0**-10]], 1, 3, 3 * (1 + 2.0**-10) - 2.0**-12, 3 * (1 + 2.0**-10)),
    ],
)
def test_16_bit_elements_are_rounded_once(
    a: Any, b: Any, out: Any, alpha: float, beta: float, once: float, twice: float
) -> None:
    held = None if out is None else np.array(out, np.float16)
    found = vendors_product(np.array(a, np.float16), np.array(b, np.float16), held, alpha, beta, PLAIN)
    assert found[0, 0] == np.float16(once) != np.float16(twice)


@pytest.mark.parametrize("factors", FACTORS)
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("name", ["bfloat16", "float32", "complex64"])
def test_tensors_are_multiplied_alike(shapes: Any, name: str, factors: tuple[float, float]) -> None:
    torch = pytest.importorskip("torch")
    alpha, beta = factors
    arrays = operands(shapes, np.complex64 if name == "complex64" else np.float32)
    a, b, out = (torch.from_numpy(np.atleast_1d(x)).to(getattr(torch, name)) for x in arrays)
    out = out.reshape(arrays[2].shape)
    wide = [x.to(torch.complex128 if name == "complex64" else torch.float64).numpy() for x in (a, b, out)]
    expected = torch.from_numpy(np.asarray(exact(wide[0], wide[1], wide[2], alpha, beta)))
    strided = torch.empty((2 * max(out.shape, default=1),), dtype=out.dtype)[::2] if out.ndim == 1 else out.clone()
    held = strided.copy_(out)
    assert vendors_product(a, b, held, alpha, beta, PLAIN) is held
    close = {"rtol": 1e-2 if name == "bfloat16" else 1e-5, "atol": 1e-4}
    torch.testing.assert_close(held.to(expected.dtype), expected, **close)
    if beta == 0:
        made = vendors_product(a.requires_grad_(), b, None, alpha, 0, PLAIN)
        torch.testing.assert_close(made.detach().to(expected.dtype), expected, **close)
        assert made.requires_grad


def test_tensors_of_16_bits_are_rounded_once() -> None:
    torch = pytest.importorskip("torch")
    a = torch.tensor([[1.0, 2.0**-8]], dtype=torch.bfloat16)
    for b in (torch.ones((2, 1), dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16)):
        out = torch.ones(a.shape[:1] + b.shape[1:], dtype=torch.bfloat16)
        vendors_product(a, b, out, 3, -1, PLAIN)
        assert out.flatten()[0] == torch.tensor(2 + 3 * 2.0**-8).to(torch.bfloat16) != 2


# Batches


class Tensor(np.ndarray[Any, Any]):
    """An array with the methods of a tensor that batches need."""

    def expand(self, *shape: int) -> Any:
        return np.broadcast_to(self, shape, subok=True)

    def new_zeros(self, shape: tuple[int, ...]) -> Any:
        return np.zeros(shape, self.dtype).view(Tensor)

    def data_ptr(self) -> int:
        return self.ctypes.data


def baddbmm(old: Any, a: Any, b: Any, *, beta: float, alpha: float, out: Any = None) -> Any:
    assert a.ndim == b.ndim == 3
    assert a.shape[0] == b.shape[0]
    product = alpha * (a @ b)
    product = product if beta == 0 else product + beta * old
    if out is None:
        return product
    assert out is old
    out[...] = product
    return out


def bmm(a: Any, b: Any, *, out: Any = None) -> Any:
    return np.matmul(a, b) if out is None else baddbmm(out, a, b, beta=0, alpha=1, out=out)


@pytest.fixture(params=["numpy", "torch"])
def as_library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that makes an array NumPy's or a tensor."""
    if request.param == "numpy":
        return np.array
    torch = SimpleNamespace(Tensor=Tensor, matmul=np.matmul, bmm=bmm, baddbmm=baddbmm)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(libraries, "_libraries", {})
    return lambda array: np.array(array, order="C").view(Tensor)


BATCHES = [
    ((6, 5, 7), (6, 7, 3)), ((2, 3, 5, 7), (3, 7, 3)), ((6, 5, 7), (7, 3)), ((5, 7), (6, 7, 3)), ((6, 5, 7), (7,)),
    ((7,), (6, 7, 3)), ((0, 5, 7), (7, 3)),
]  # fmt: skip


@pytest.mark.parametrize("factors", [*FACTORS, (0, 2), (0, 0)])
@pytest.mark.parametrize("shapes", BATCHES)
def test_batches_are_as_numpys(as_library: Any, shapes: Any, factors: tuple[float, float]) -> None:
    a, b, out = operands(shapes, np.float32)
    alpha, beta = factors
    expected = exact(a, b, out, alpha, beta)
    if alpha == 0:  # neither is read
        a[...] = b[...] = np.nan
    a, b, held = map(as_library, (a, b, out))
    assert vendors_product(a, b, held, alpha, beta, PLAIN) is held
    np.testing.assert_allclose(held, expected, rtol=1e-4, atol=1e-4)
    if beta == 0:
        made = vendors_product(a, b, None, alpha, 0, PLAIN)
        assert made.shape == expected.shape
        np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dimensions", [(0, 1, 2, 3), (1, 0, 2, 3)])
def test_a_batch_with_factors_is_written_where_out_is(
    as_library: Any, monkeypatch: pytest.MonkeyPatch, dimensions: tuple[int, ...]
) -> None:
    """It is copied into an out of which two dimensions are not one, and into no other."""
    a, b, out = (as_library(x) for x in operands(BATCHES[1], np.float32))
    held, expected = as_library(out.transpose(dimensions)).transpose(dimensions), exact(a, b, out, 2, 3)
    written = list[bool]()

    def add(old: Any, *factors: Any, **named: Any) -> Any:
        return logged(written, np.shares_memory(old, held), baddbmm(old, *factors, **named))

    if isinstance(out, Tensor):
        monkeypatch.setattr(sys.modules["torch"], "baddbmm", add)
    assert vendors_product(a, b, held, 2, 3, PLAIN) is held
    np.testing.assert_allclose(held, expected, rtol=1e-4, atol=1e-4)
    assert written == [dimensions[0] == 0] * isinstance(out, Tensor)
