"""The namespace `torch` of an exported module: PyTorch operators mm, addmm, bmm and baddbmm that use tuned kernels.

Like PyTorch's own operators they support gradients of every order, fake tensors and vmap.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from tsm2_tune.runtime.arrays.batches import common_extents
from tsm2_tune.runtime.module_data import IDENTITY
from tsm2_tune.runtime.torch.dispatch import KEY_OF_GPUS, Taker, torch_taker

OPERATORS_OF = {
    2: ("mm", "addmm"),
    3: ("bmm", "baddbmm"),
}  # dimensions of a and b -> names of the product and of the sum
SCHEMAS = (
    "(Tensor a, Tensor b) -> Tensor",
    "(Tensor c, Tensor a, Tensor b, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
)


def torch_operators(torch: Any) -> SimpleNamespace:
    """Register the operators with PyTorch, and return them in a namespace, with external_matmul.

    PyTorch's namespace contains the digest of this file: two modules of one file share the operators.
    """
    space = f"tsm2_{IDENTITY[:16]}"
    found = getattr(torch.ops, space)
    if not hasattr(found, "external_matmul"):
        take = torch_taker(torch)
        _define(torch, space, take)

        def external_matmul(a: Any, b: Any, out: Any) -> None:
            """Compute out = a b. Inductor times this function against its other kernels."""
            if take(2, a, b, out, None, None, None) is None:
                torch.mm(a, b, out=out)

        external_matmul.__name__ = external_matmul.__qualname__ = f"{space}_mm"  # its name in Inductor
        found.external_matmul = external_matmul
    operators = {name: getattr(found, name) for names in OPERATORS_OF.values() for name in names}
    return SimpleNamespace(**operators, external_matmul=found.external_matmul)


def _define(torch: Any, space: str, take: Taker) -> None:
    """Register the operators with PyTorch in the namespace `space`. `take` computes their products with kernels."""
    library = torch.library.Library(space, "FRAGMENT")
    for names in OPERATORS_OF.values():
        for name, schema in zip(names, SCHEMAS, strict=True):
            library.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
    _libraries_of_operators.append(library)
    aten, own = torch.ops.aten, getattr(torch.ops, space)
    for dimensions, names in OPERATORS_OF.items():
        for name, is_sum in zip(names, (False, True), strict=True):
            of_aten, of_own = getattr(aten, name), getattr(own, name).default
            each = _each_sum(own, dimensions) if is_sum else _each_product(own)
            library.impl(name, _by_kernel(take, dimensions, of_aten, is_sum), KEY_OF_GPUS)
            library.impl(name, of_aten.default, "CompositeExplicitAutograd")
            torch.library.register_fake(f"{space}::{name}", of_aten.default, lib=library)
            torch.library.register_vmap(f"{space}::{name}", each, lib=library)
            recorded = _recorded(torch, of_own, getattr(torch, name), getattr(own, names[0]), is_sum)
            library.impl(name, recorded, "Autograd", with_keyset=True)


_libraries_of_operators: list[Any] = []  # references: PyTorch removes the operators of a deleted Library


def _summed(of: Any, c: Any, a: Any, b: Any, beta: Any, alpha: Any) -> Any:
    """Call the operator `of`, which computes beta c + alpha a b, or a b if c is None."""
    return of(a, b) if c is None else of(c, a, b, beta=beta, alpha=alpha)


def _by_kernel(take: Taker, dimensions: int, of_aten: Any, is_sum: bool) -> Callable[..., Any]:
    """Return the operator's implementation on GPUs. PyTorch's operator `of_aten` computes what no kernel does."""

    def product(a: Any, b: Any) -> Any:
        found = take(dimensions, a, b, None, None, None, None)
        return of_aten(a, b) if found is None else found

    def sum_(c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
        found = take(dimensions, a, b, None, c, alpha, beta)
        return of_aten(c, a, b, beta=beta, alpha=alpha) if found is None else found

    return sum_ if is_sum else product


# Gradients. They are computed with the same operators, so kernels may compute them, too


def _recorded(torch: Any, own: Any, of_torch: Any, multiply: Any, is_sum: bool) -> Callable[..., Any]:
    """Return the Autograd implementation of the operator `own`.

    `of_torch` is PyTorch's operator. `multiply` computes the products of the gradients.
    """

    class Recorded(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, keys: Any, c: Any, a: Any, b: Any, beta: Any, alpha: Any) -> Any:
            ctx.shape, ctx.beta, ctx.alpha = None if c is None else c.shape, beta, alpha
            _keep(ctx, a, b, ctx.needs_input_grad[2:4])
            with torch._C._AutoDispatchBelowAutograd():
                return _summed(partial(own.redispatch, keys), c, a, b, beta, alpha)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            of_c = _times(gradient, ctx.beta).sum_to_size(ctx.shape) if ctx.needs_input_grad[1] else None
            of_factors = _of_factors(ctx, multiply, gradient, ctx.alpha, ctx.needs_input_grad[2:4])
            return None, of_c, *of_factors, None, None

    def recorded(keys: Any, c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
        if _is_transformed(torch):
            return _summed(of_torch, c, a, b, beta, alpha)
        keys &= torch._C._after_autograd_keyset
        if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (c, a, b)):
            return Recorded.apply(keys, c, a, b, beta, alpha)
        return _summed(partial(own.redispatch, keys), c, a, b, beta, alpha)

    return recorded if is_sum else lambda keys, a, b: recorded(keys, None, a, b)


def _is_transformed(torch: Any) -> bool:
    """Return whether functorch or forward-mode AD is active. If so, PyTorch's own products are used."""
    return bool(torch._C._are_functorch_transforms_active()) or torch.autograd.forward_ad._current_level >= 0


def _keep(ctx: Any, a: Any, b: Any, wanted: Any) -> None:
    """Save in `ctx` the operands that the wanted gradients of a and b need, and whether each is column-major."""
    ctx.save_for_backward(a if wanted[1] else None, b if wanted[0] else None)
    ctx.are_columns = [x.stride()[-2:] == (1, x.shape[-2]) for x in (a, b)]


def _of_factors(ctx: Any, multiply: Any, gradient: Any, alpha: Any, wanted: Any) -> tuple[Any, Any]:
    """Return the wanted gradients of a and b, in the storage order of each, so that adding them needs no copy."""
    (a, b), of_a, of_b = ctx.saved_tensors, None, None
    if wanted[0]:
        of_a = multiply(b.conj(), gradient.mT).mT if ctx.are_columns[0] else multiply(gradient, b.mH)
        of_a = _times(of_a, alpha)
    if wanted[1]:
        of_b = multiply(gradient.mT, a.conj()).mT if ctx.are_columns[1] else multiply(a.mH, gradient)
        of_b = _times(of_b, alpha)
    return of_a, of_b


def _times(tensor: Any, factor: Any) -> Any:
    return tensor if factor == 1 else tensor * (factor.conjugate() if isinstance(factor, complex) else factor)


# Rules of vmap


def _each_product(own: Any) -> Callable[..., Any]:
    """Return the vmap rule of mm or bmm."""

    def each(info: Any, in_dims: Any, a: Any, b: Any) -> tuple[Any, int]:
        return _broadcast_product(own, _first(a, in_dims[0]), _first(b, in_dims[1])), 0

    return each


def _each_sum(own: Any, dimensions: int) -> Callable[..., Any]:
    """Return the vmap rule of addmm or baddbmm, whose a and b have this number of dimensions."""

    def each(info: Any, in_dims: Any, c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> tuple[Any, int]:
        product = _broadcast_product(own, _first(a, in_dims[1]), _first(b, in_dims[2]))
        if product.dim() == dimensions:  # only c has a batch dimension
            product = product.expand(info.batch_size, *product.shape)
        product = product if alpha == 1 else alpha * product
        if beta == 0:
            return product, 0
        c = _first(c, in_dims[0])
        if in_dims[0] is not None:  # batch dimension first, c's other dimensions last
            c = c.reshape(c.shape[0], *[1] * (dimensions + 1 - c.dim()), *c.shape[1:])
        return product + (c if beta == 1 else beta * c), 0

    return each


def _broadcast_product(own: Any, a: Any, b: Any) -> Any:
    """Return a b, as torch.matmul, by the operators in the namespace `own`. a and b have at least two dimensions."""
    if a.dim() == b.dim() == 2:
        return own.mm(a, b)
    if b.dim() == 2 and a.is_contiguous():  # the rows of all a are one matrix
        return own.mm(a.flatten(0, -2), b).unflatten(0, a.shape[:-1])
    products = common_extents(tuple(a.shape[:-2]), tuple(b.shape[:-2]))
    a, b = (x.expand(*products, *x.shape[-2:]).flatten(0, -3) for x in (a, b))
    return own.bmm(a, b).unflatten(0, products)


def _first(tensor: Any, dimension: int | None) -> Any:
    """Return the tensor with its batch dimension moved to the front. None means that it has no batch dimension."""
    return tensor if dimension is None else tensor.movedim(dimension, 0)
