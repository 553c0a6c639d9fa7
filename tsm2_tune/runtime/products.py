"""What a program calls: gemm, choice, plan and load."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import numpy as np

from tsm2_tune.runtime.choosing import check_place, choose
from tsm2_tune.runtime.compiled import compiled_cupy_starter, compiled_torch_starter, teach
from tsm2_tune.runtime.driver import (
    await_stream,
    context_id,
    current_context,
    device_of,
    home,
    primary_context,
    stream_handle,
)
from tsm2_tune.runtime.elements import INDEX_WIDTHS, UNITS
from tsm2_tune.runtime.fast import (
    cupy_key,
    plans,
    remember,
    starters,
    torch_key,
)
from tsm2_tune.runtime.host import multiply_on_host
from tsm2_tune.runtime.libraries import (
    at_stream,
    cupy_stream,
    current_stream,
    is_cupys,
    is_torchs,
    new_array,
    torch_stream,
    vendors_product,
)
from tsm2_tune.runtime.loading import function_of
from tsm2_tune.runtime.matrices import Product, index_bits, too_large
from tsm2_tune.runtime.pack import WINNERS
from tsm2_tune.runtime.plans import Bound, Plan, element_strides, made_order
from tsm2_tune.runtime.pycuda_arrays import new_gpu_array
from tsm2_tune.runtime.winners import Match, Vendor


def gemm(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    alpha: complex | None = None,
    beta: complex | None = None,
    conj_a: bool = False,
    conj_b: bool = False,
    math: str | None = None,
    stream: Any = None,
    fallback: str = "vendor",
) -> Any:
    """out = alpha a b + beta out; returns `out`. Without alpha and beta these are 1 and 0.

    With math="minplus" sums stand for products, and the least of them for their sum: out[i, j] = min(alpha + min over
    l of (a[i, l] + b[l, j]), beta + out[i, j]), alpha 0 and beta infinity unless given. With beta=0 what `out` holds
    stays where it is less. A sum that is NaN counts for nothing.

    a is m x k, b is k x n, out is m x n: all of one element type, all on one device, each column-major or
    row-major, with any leading dimension; a vector is both. An a of one dimension is a row, a b of one a column, and
    `out` is a vector then. With conj_a or conj_b the complex conjugate of a or b is multiplied, by a kernel that was
    tuned for that; real numbers are their own, and a tensor of PyTorch whose conjugate bit is set is the conjugate of
    its memory. Products of 16-bit numbers are added up in float32, which alpha and beta are of too. `math`, as MATHS
    has it, takes a kernel that multiplies so; no other call does.

    Of the kernels that were tuned for these storage orders the shape's own winner runs; where the shape was not
    tuned, the one that is expected to take least, started as suits the shape. Where a and b are one matrix, the same
    elements in memory, as in gemm(x.T, x), a kernel that computes half of the symmetric or Hermitian result may run.
    Where there is none, one for the transposed product runs, b transposed times a transposed,
    which lies in the same memory. Where there is none either, PyTorch and CuPy compute the product of their arrays;
    of others, and with fallback="error", that is an error. Where an extent is 0 the arrays' own library computes it.

    Without `out` a new array of the library of `a` is made, by its allocator: column-major where
    a kernel for a and b computes that, else row-major. At beta = 0, of minplus infinity, what `out` held is not read.

    `out` shares no memory with a and b. What is more than its memory is refused: masked arrays, tensors of PyTorch's
    subclasses, sparse, nested and quantised ones, those to be negated, those that require a gradient unless
    torch.no_grad() is set, and an `out` that is to be conjugated.

    On a GPU the product is only started. `stream` is a stream of PyCUDA, CuPy, PyTorch or Numba, or a handle. None is
    the current stream of the library that `out` is of, without `out` of a's: what `with torch.cuda.stream(s)` or
    CuPy's `with s` has set; other libraries have the default stream alone. An array that states another stream of its
    own (CuPy's do), or, without `stream`, is of a library that is at another one, is waited for.

    On the host any thread may call it, and a call returns when its product is computed. Where a kernel faults there,
    that call alone raises tsm2_tune's KernelFault, and what its `out` holds is undefined; its InputError and
    ToolMissing say that the cache of compiled kernels, or a compiler, cannot be used.

    A kernel that splits k needs device memory of its own. Each stream has some, of PyTorch's or CuPy's allocator for
    their arrays, which is kept and grows with the products; growing waits for the stream. A product may be captured
    in a CUDA graph once its kernel is loaded, which `load` does for all; the graph has memory of its own.

    TypeError and ValueError name the argument that does not fit, or the storage orders that no kernel here is for;
    LookupError says that none is for the element type; MemoryError that the device has no room for what a kernel
    needs; RuntimeError tells what CUDA refused.
    """
    asked = None
    if conj_a or conj_b or math is not None or fallback != "vendor":
        asked = (bool(conj_a), bool(conj_b), math, fallback)
    starter = starters.get(type(a))
    if starter is not None:
        try:
            done = starter(a, b, out, alpha, beta, asked, stream)
        except (AttributeError, TypeError):
            done = None  # what is no array, or no stream, is told below
        if done is not None:
            return done
    product = Product.of(a, b, out, conjugates=(conj_a, conj_b), math=math)
    _check_factors(product, alpha, beta)
    found = _chosen_or_vendor(product, fallback)
    if isinstance(found, Vendor):
        done = _by_vendor(product, found, alpha, beta, stream)
        _remember(a, b, out, tuple(x.span_bytes for x in product.given), asked)
        return done
    if product.on_host:
        if stream is not None:
            raise TypeError("stream: NumPy arrays have none")
        return multiply_on_host(product, found, *_factors(product, alpha, beta))
    product, plan, handle = _ready(product, found, stream)
    _await_all(product, stream, handle)
    at_a, at_b, at_out = (x.address for x in product.given)
    plan.start(at_a, at_b, at_out, alpha, beta, handle, product.a.array)
    assert product.out is not None
    _remember(a, b, out, plan, asked)
    return product.out.array


def choice(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    conj_a: bool = False,
    conj_b: bool = False,
    math: str | None = None,
    fallback: str = "vendor",
) -> Match | Vendor:
    """The winner that gemm uses for these arguments, or the vendor. It raises what gemm raises for them."""
    return _chosen_or_vendor(Product.of(a, b, out, conjugates=(conj_a, conj_b), math=math), fallback)


def plan(
    a: Any,
    b: Any,
    out: Any,
    *,
    alpha: complex | None = None,
    beta: complex | None = None,
    conj_a: bool = False,
    conj_b: bool = False,
    math: str | None = None,
    stream: Any = None,
) -> Bound:
    """gemm of these device arrays, all decided that can be before: calling the plan starts it.

    That takes the least time. The arrays stay where they are, and alive with the plan; they are read when it is
    called.
    It goes to `stream`, or, without one, to the stream that is current at the call; other streams are not waited for.
    It raises what gemm raises with fallback="error".
    """
    product = Product.of(a, b, out, conjugates=(conj_a, conj_b), math=math)
    if product.on_host or product.out is None:
        raise TypeError("a plan needs an out, and a, b and out in a GPU's memory: without these call gemm")
    _check_factors(product, alpha, beta)
    found = _chosen_or_vendor(product, "error")
    assert isinstance(found, Match)
    product, made, handle = _ready(product, found, stream)
    ordinal = made.ordinal
    where: Callable[[], int]
    if stream is not None or not (is_torchs(out) or is_cupys(out)):
        where = lambda: handle  # noqa: E731
    else:
        of = torch_stream(sys.modules["torch"]) if is_torchs(out) else cupy_stream(sys.modules["cupy"])
        where = partial(of, ordinal)
    at_a, at_b, at_out = (x.address for x in product.given)
    return Bound(made, (a, b, out), (at_a, at_b, at_out), alpha, beta, where)


def load(device: int = 0) -> None:
    """Load every kernel that products on the GPU of this number get, as a capture into a CUDA graph needs them.

    These are what was tuned for it, and for an element type and op of which nothing was, other GPUs'. RuntimeError
    where one of its own does not load; another GPU's that does not is left to the product that asks for it.
    """
    if all(winner.on_host for winner in WINNERS):
        return  # nothing here is for a GPU
    name, arch = device_of(device)
    context = primary_context(device)
    number = context_id(context)
    tuned = {(w.dtype, w.op) for w in WINNERS if w.device == name}
    for winner in WINNERS:
        is_own = winner.device == name
        if is_own or not (winner.on_host or (winner.dtype, winner.op) in tuned):
            with nullcontext() if is_own else suppress(RuntimeError):
                for bits in INDEX_WIDTHS:
                    function_of(context, number, winner, bits, arch)


def _check_factors(product: Product, alpha: Any, beta: Any) -> None:
    """TypeError or ValueError for a factor that is no number of the product's, or a beta without `out`."""
    for name, factor in (("alpha", alpha), ("beta", beta)):
        real = factor is None or isinstance(factor, (int, float, np.integer, np.floating))
        if not real and not (product.is_complex and isinstance(factor, (complex, np.complexfloating))):
            kind = "number" if product.is_complex else "real number"
            raise TypeError(f"{name}: expected a {kind}, got {type(factor).__name__}")
        if factor is not None and too_large(factor, product.sum_dtype):
            raise ValueError(f"{name}: too large for {product.sum_dtype}")
    if product.out is None and _factors(product, alpha, beta)[1] != _factors(product, None, None)[1]:
        raise ValueError(f"beta = {beta}: give the matrix that it scales as out")


def _factors(product: Product, alpha: Any, beta: Any) -> tuple[Any, Any]:
    """Alpha and beta, those of the product alone where none is given."""
    one, zero = UNITS.get(product.math or "", (1, 0))
    return one if alpha is None else alpha, zero if beta is None else beta


def _chosen_or_vendor(product: Product, fallback: str) -> Match | Vendor:
    """The winner for the product, or why the vendor computes it."""
    if fallback not in ("vendor", "error"):
        raise ValueError(f"fallback: expected 'vendor' or 'error', got {fallback!r}")
    if 0 in product.shape:
        return Vendor("an extent is 0")
    check_place(product)
    has_one = is_torchs(product.a.array) or is_cupys(product.a.array)
    falls_back = fallback == "vendor" and product.math is None and has_one
    try:
        found = choose(product, None if product.on_host else device_of(home(product.a)[1])[0])
    except (LookupError, ValueError) as error:
        if not falls_back:
            raise
        return Vendor(str(error))
    return Vendor(str(found)) if falls_back and found.loses else found


def _by_vendor(product: Product, found: Vendor, alpha: Any, beta: Any, stream: Any) -> Any:
    """The product by the arrays' own library. ValueError where that multiplies none."""
    a, b = product.a.array, product.b.array
    asked = product.conjugates[0] != product.a.is_conjugate, product.conjugates[1] != product.b.is_conjugate
    out = None if product.out is None else product.out.array
    factors = _factors(product, alpha, beta)
    if product.math is not None or not (product.on_host or is_torchs(a) or is_cupys(a)):
        raise ValueError(f"no kernel computes this: {found.reason}")
    if product.on_host:
        return vendors_product(a, b, out, *factors, asked)
    handle = _stream_of(product, stream)
    _await_all(product, stream, handle)
    with at_stream(a, handle):
        return vendors_product(a, b, out, *factors, asked)


def _stream_of(product: Product, stream: Any) -> int:
    """The stream that the product goes to."""
    if stream is None:
        stream = current_stream((product.out or product.a).array)
    return stream_handle(stream)


def _ready(product: Product, found: Match, stream: Any) -> tuple[Product, Plan, int]:
    """The product with an `out`, its plan, and the stream that it goes to."""
    context, ordinal = home(product.a)
    for other in product.given[1:]:
        if home(other) != (context, ordinal):
            raise ValueError(
                f"{other.name} and a are not of one CUDA context: put them on one device, and in"
                " PyCUDA use pycuda.autoprimaryctx with arrays of other libraries"
            )
    handle = _stream_of(product, stream)
    if product.out is None:
        order = made_order(found)
        strides = element_strides(product.out_shape, order)
        with at_stream(product.a.array, handle):
            array = new_array(product.a.array, product.out_shape, strides, order)
        if array is None:
            array = new_gpu_array(context, ordinal, product, order)
        product = product.with_out(array)
    orders = found.winner.orders
    oriented = product.transposed() if found.swapped else product
    leading = tuple([x.ld[order] for x, order in zip(oriented.given, orders, strict=True)])
    number = context_id(context)
    key = (number, id(found.winner), oriented.shape, leading, product.out_shape, found.swapped)
    plan = plans.get(key)
    if plan is None:
        bits = index_bits(oriented, orders)
        function = function_of(context, number, found.winner, bits, device_of(ordinal)[1])
        units = _factors(product, None, None)
        where = {"context": context, "context_number": number, "ordinal": ordinal}
        plan = Plan(product, found, oriented.shape, leading, **where, function=function, units=units)
        remember(key, plan)
    return product, plan, handle


def _await_all(product: Product, stream: Any, handle: int) -> None:
    """Wait for the streams that the arrays were last used on, where these are others."""
    others = {matrix.stream for matrix in product.given if matrix.stream is not None}
    one_of_each = {type(matrix.array): matrix.array for matrix in product.given}
    if stream is None and len(one_of_each) > 1:  # the stream of a library alone, on one device, is the handle
        at_work = {current_stream(array) for array in one_of_each.values()}
        others |= {other for other in at_work if other is not None}
    if any(other != handle for other in others):
        with current_context(home(product.a)[0]):
            for other in others:
                await_stream(other, handle)


def _remember(a: Any, b: Any, out: Any, plan: Plan | tuple[int, ...], asked: Any) -> None:
    """Let the next product like this one take the short way, where its arrays are of one library."""
    kind, arrays = type(a), (a, b) if out is None else (a, b, out)
    if all(map(is_torchs, arrays)):
        starters[kind] = starters.get(kind) or compiled_torch_starter(sys.modules["torch"], kind)
        remember(torch_key(a, b, out, asked), plan)
    elif all(map(is_cupys, arrays)) and hasattr(a, "_c_contiguous"):  # which the key has
        starters[kind] = starters.get(kind) or compiled_cupy_starter(sys.modules["cupy"], kind)
        remember(cupy_key(a, b, out, asked), plan)
    else:
        return
    if isinstance(plan, Plan):
        teach(a, b, out, plan, asked)
