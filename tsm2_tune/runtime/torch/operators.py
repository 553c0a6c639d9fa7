"""The namespace `torch` of an exported module: PyTorch operators mm and addmm that use tuned kernels.

Like PyTorch's own operators they support gradients of every order, fake tensors and vmap.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tsm2_tune.runtime.module_data import IDENTITY
from tsm2_tune.runtime.torch.dispatch import KEY_OF_GPUS, Taker, torch_taker

SCHEMAS = (
    "mm(Tensor a, Tensor b) -> Tensor",
    "addmm(Tensor c, Tensor a, Tensor b, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
)


def torch_operators(torch: Any) -> SimpleNamespace:
    """Register the operators with PyTorch, and return them in a namespace: mm, addmm and external_matmul.

    `external_matmul` is a function to add to the list `external_matmul` in Inductor's configuration. The namespace in
    PyTorch's registry contains the digest of this file, so different exported files have different operators. If the
    same file is loaded twice, both modules share the operators.
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
    return SimpleNamespace(mm=found.mm, addmm=found.addmm, external_matmul=found.external_matmul)


def _define(torch: Any, space: str, take: Taker) -> None:
    """Register mm and addmm with PyTorch in the namespace `space`. `take` computes their products with kernels."""
    library = torch.library.Library(space, "FRAGMENT")
    for schema in SCHEMAS:
        library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _libraries_of_operators.append(library)
    aten, own = torch.ops.aten, getattr(torch.ops, space)

    def by_kernel_mm(a: Any, b: Any) -> Any:
        found = take(2, a, b, None, None, None, None)
        return aten.mm(a, b) if found is None else found

    def by_kernel_addmm(c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
        found = take(2, a, b, None, c, alpha, beta)
        return aten.addmm(c, a, b, beta=beta, alpha=alpha) if found is None else found

    for name, by_kernel, each in (("mm", by_kernel_mm, _each_mm), ("addmm", by_kernel_addmm, _each_addmm)):
        of_aten = getattr(aten, name).default
        library.impl(name, by_kernel, KEY_OF_GPUS)
        library.impl(name, of_aten, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{space}::{name}", of_aten, lib=library)
        torch.library.register_vmap(f"{space}::{name}", each(torch), lib=library)
    library.impl("mm", _recorded_mm(torch, own.mm.default), "Autograd", with_keyset=True)
    library.impl("addmm", _recorded_addmm(torch, own.addmm.default, own.mm), "Autograd", with_keyset=True)


_libraries_of_operators: list[Any] = []  # references: PyTorch removes the operators of a deleted Library


# Gradients. They are computed with the same operators, so kernels may compute them, too


def _recorded_mm(torch: Any, own: Any) -> Any:
    """Return the implementation of mm for PyTorch's Autograd dispatch key."""

    class Mm(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, keys: Any, a: Any, b: Any) -> Any:
            _keep(ctx, a, b, ctx.needs_input_grad[1:])
            with torch._C._AutoDispatchBelowAutograd():
                return own.redispatch(keys, a, b)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return None, *_of_factors(ctx, own, gradient, 1, ctx.needs_input_grad[1:])

    def recorded(keys: Any, a: Any, b: Any) -> Any:
        if _is_transformed(torch):
            return torch.mm(a, b)
        keys &= torch._C._after_autograd_keyset
        if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
            return Mm.apply(keys, a, b)
        return own.redispatch(keys, a, b)

    return recorded


def _recorded_addmm(torch: Any, own: Any, mm: Any) -> Any:
    """Return the implementation of addmm for PyTorch's Autograd dispatch key."""

    class Addmm(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, keys: Any, c: Any, a: Any, b: Any, beta: Any, alpha: Any) -> Any:
            ctx.shape, ctx.beta, ctx.alpha = c.shape, beta, alpha
            _keep(ctx, a, b, ctx.needs_input_grad[2:4])
            with torch._C._AutoDispatchBelowAutograd():
                return own.redispatch(keys, c, a, b, beta=beta, alpha=alpha)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            of_c = _times(gradient, ctx.beta).sum_to_size(ctx.shape) if ctx.needs_input_grad[1] else None
            return None, of_c, *_of_factors(ctx, mm, gradient, ctx.alpha, ctx.needs_input_grad[2:4]), None, None

    def recorded(keys: Any, c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
        if _is_transformed(torch):
            return torch.addmm(c, a, b, beta=beta, alpha=alpha)
        keys &= torch._C._after_autograd_keyset
        if torch.is_grad_enabled() and (c.requires_grad or a.requires_grad or b.requires_grad):
            return Addmm.apply(keys, c, a, b, beta, alpha)
        return own.redispatch(keys, c, a, b, beta=beta, alpha=alpha)

    return recorded


def _is_transformed(torch: Any) -> bool:
    """Return whether functorch or forward-mode AD is active. If so, PyTorch's own products are used."""
    return bool(torch._C._are_functorch_transforms_active()) or torch.autograd.forward_ad._current_level >= 0


def _keep(ctx: Any, a: Any, b: Any, wanted: Any) -> None:
    """Save in `ctx` the operands that backward needs, and whether each of a and b is column-major.

    `wanted` has two booleans: whether the gradient of a, and of b, is needed. The gradient of a needs b, and that of
    b needs a.
    """
    ctx.save_for_backward(a if wanted[1] else None, b if wanted[0] else None)
    ctx.are_columns = [x.stride() == (1, x.shape[0]) for x in (a, b)]


def _of_factors(ctx: Any, mm: Any, gradient: Any, alpha: Any, wanted: Any) -> tuple[Any, Any]:
    """Return the gradients of a and b. A gradient that is not wanted is None.

    Each gradient has the storage order of its operand, so that accumulating gradients needs no copy.
    """
    (a, b), of_a, of_b = ctx.saved_tensors, None, None
    if wanted[0]:
        of_a = mm(b.conj(), gradient.mT).mT if ctx.are_columns[0] else mm(gradient, b.mH)
        of_a = _times(of_a, alpha)
    if wanted[1]:
        of_b = mm(gradient.mT, a.conj()).mT if ctx.are_columns[1] else mm(a.mH, gradient)
        of_b = _times(of_b, alpha)
    return of_a, of_b


def _times(tensor: Any, factor: Any) -> Any:
    """Return the tensor times the factor's complex conjugate."""
    return tensor if factor == 1 else tensor * (factor.conjugate() if isinstance(factor, complex) else factor)


# Batches


def _each_mm(torch: Any) -> Any:
    """Return the vmap rule of mm, which computes the batch with torch.matmul."""

    def each(info: Any, in_dims: Any, a: Any, b: Any) -> tuple[Any, int]:
        return torch.matmul(_first(a, in_dims[0]), _first(b, in_dims[1])), 0

    return each


def _each_addmm(torch: Any) -> Any:
    """Return the vmap rule of addmm, which computes the batch with torch.matmul."""

    def each(info: Any, in_dims: Any, c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> tuple[Any, int]:
        product = torch.matmul(_first(a, in_dims[1]), _first(b, in_dims[2]))
        if product.dim() == 2:  # only c has a batch dimension
            product = product.expand(info.batch_size, *product.shape)
        product = product if alpha == 1 else alpha * product
        if beta == 0:
            return product, 0
        c = _first(c, in_dims[0])
        if in_dims[0] is not None:  # batch dimension first, c's other dimensions last
            c = c.reshape(c.shape[0], *[1] * (3 - c.dim()), *c.shape[1:])
        return product + (c if beta == 1 else beta * c), 0

    return each


def _first(tensor: Any, dimension: int | None) -> Any:
    """Return the tensor with its batch dimension moved to the front. None means that it has no batch dimension."""
    return tensor if dimension is None else tensor.movedim(dimension, 0)
