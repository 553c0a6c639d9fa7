"""The public functions: gemm, choice, plan and load."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

from tsm2_tune.runtime.choosing import check_place, choose
from tsm2_tune.runtime.compiled import compiled_cupy_starter, compiled_torch_starter, teach
from tsm2_tune.runtime.deciding import by_timing, has_factors
from tsm2_tune.runtime.driver import (
    context_id,
    device_of,
    home,
    primary_context,
)
from tsm2_tune.runtime.elements import INDEX_WIDTHS
from tsm2_tune.runtime.fast import (
    cupy_key,
    keep_plan,
    starters,
    torch_key,
)
from tsm2_tune.runtime.holding import hold_until_done
from tsm2_tune.runtime.host import multiply_on_host
from tsm2_tune.runtime.libraries import (
    at_stream,
    cupy_stream,
    is_cupys,
    is_torchs,
    torch_stream,
    vendors_product,
)
from tsm2_tune.runtime.loading import function_of, why_not_compiled
from tsm2_tune.runtime.matrices import Product
from tsm2_tune.runtime.measuring import fastest_way, vendors_of
from tsm2_tune.runtime.pack import WINNERS
from tsm2_tune.runtime.plans import Bound, BoundVendor, Plan
from tsm2_tune.runtime.scaling import NO_OPERANDS, reads_operands, scaled
from tsm2_tune.runtime.starting import await_all, checked_factors, factors_of, ready, stream_of
from tsm2_tune.runtime.winners import Match, Vendor

NUMBERS = (int, float, complex)


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
    measure: bool = False,
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

    With `measure` the first product of a kind is timed as `plan` does that, with PyTorch's or CuPy's own product as
    that is set to multiply then; what takes least computes it, and all others that differ from it in addresses and
    factors alone. Another process may find something else the fastest, whose sums are rounded otherwise, unless
    `remember` names the same file in both; without `measure` results are the same bits in every process. Where
    nothing can be timed, for want of memory or of a way to keep what `out` holds, what is expected to take least
    computes the product.

    At alpha = 0 `out` becomes beta out, and what a and b hold is not read, as in BLAS. Arrays that are not of PyTorch
    or CuPy need an `out` then, and a beta of 0 or 1. Factors are numbers, or arrays of NumPy and tensors on the CPU
    of no dimension; one in a GPU's memory is refused, since reading it waits for the GPU.

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
    if conj_a or conj_b or math is not None or fallback != "vendor" or measure:
        asked = (bool(conj_a), bool(conj_b), math, fallback, bool(measure))
    starter = starters.get(type(a))
    if starter is not None and (type(alpha) not in NUMBERS or reads_operands(alpha, math)):
        try:
            done = starter(a, b, out, alpha, beta, asked, stream)
        except (AttributeError, TypeError):
            done = None  # errors for wrong arrays or streams follow below
        if done is not None:
            return done
    product = Product.of(a, b, out, conjugates=(conj_a, conj_b), math=math)
    alpha, beta = checked_factors(product, alpha, beta)
    if not (product.on_host or 0 in product.shape or reads_operands(alpha, math)):
        handle = stream_of(product, stream)
        await_all(product, stream, handle)
        return scaled(product, beta, handle)
    found = chosen_or_vendor(product, fallback)
    is_timed = measure and not product.on_host
    if is_timed:
        product, found = _measured(product, found, fallback, alpha, beta, stream)
    # What a factor decides the short way does not see: CuPy multiplies by it in operations of their own.
    is_kept = not (is_timed and is_cupys(a) and has_factors(product, alpha, beta))
    if isinstance(found, Vendor):
        done = _by_vendor(product, found, alpha, beta, stream)
        # A new `out` for timing lies as a kernel's, and not as the library would make it.
        if is_kept and not (is_timed and out is None):
            _remember(a, b, out, tuple(x.span_bytes for x in product.given), asked)
        return done
    if product.on_host:
        if stream is not None:
            raise TypeError("stream: NumPy arrays have none")
        return multiply_on_host(product, found, *factors_of(product, alpha, beta))
    product, plan, handle = ready(product, found, stream)
    await_all(product, stream, handle)
    at_a, at_b, at_out = (x.address for x in product.given)
    plan.start(at_a, at_b, at_out, alpha, beta, handle, product.a.array)
    hold_until_done(product, plan.context, handle)
    assert product.out is not None
    if is_kept:
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
    """Return the winner that gemm uses for these arguments, or the vendor. It raises what gemm raises for them."""
    return chosen_or_vendor(Product.of(a, b, out, conjugates=(conj_a, conj_b), math=math), fallback)


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
    measure: bool = False,
) -> Bound | BoundVendor:
    """gemm of these device arrays, all decided that can be before: calling the plan starts it.

    That takes the least time. The arrays stay where they are, and alive with the plan; they are read when it is
    called.
    It goes to `stream`, or, without one, to the stream that is current at the call; other streams are not waited for.
    It raises what gemm raises with fallback="error".

    With `measure` the kernel and its launch are not those that are expected to take least, but those that do: up to
    twenty that come near and have a binary for this GPU are timed on these arrays first, on the stream, and PyTorch's
    or CuPy's own product of its matrices (of CuPy's without alpha and beta), as that is set to multiply. This becomes
    the plan where it takes less, also to be called; CuPy lets no product of its own be captured in a graph. The
    plan's `match` says the times. They are taken with the L2 full of lines to be written, in memory of twice its
    size, and last some tens of milliseconds, or as long as a hundred products; the workspace of all that are timed
    stays. What `out` holds is undefined then, unless beta keeps it: it is copied and put back, in arrays of PyTorch
    and CuPy alone. Another process may find another kernel the fastest, whose sums are rounded otherwise.
    """
    product = Product.of(a, b, out, conjugates=(conj_a, conj_b), math=math)
    if product.on_host or product.out is None:
        raise TypeError("a plan needs an out, and a, b and out in a GPU's memory: without these call gemm")
    alpha, beta = checked_factors(product, alpha, beta)
    found = chosen_or_vendor(product, "error")
    if isinstance(found, Vendor):
        raise ValueError(f"a plan needs a kernel, and here {found.reason}: call gemm")
    product, made, handle = ready(product, found, stream)
    ordinal = made.ordinal
    where: Callable[[], int]
    if stream is not None or not (is_torchs(out) or is_cupys(out)):

        def where(_stream: Any = stream) -> int:  # keeps the stream alive as long as the plan
            return handle
    else:
        of = torch_stream(sys.modules["torch"]) if is_torchs(out) else cupy_stream(sys.modules["cupy"])
        where = partial(of, ordinal)
    if not reads_operands(alpha, math):
        return BoundVendor(Vendor(NO_OPERANDS), (a, b, out), where, lambda: scaled(product, beta, where()))
    if measure:
        multiply = vendors_of(product, alpha, beta)
        fastest = fastest_way(product, found, alpha, beta, stream, multiply)
        if isinstance(fastest, Vendor):
            assert multiply is not None
            return BoundVendor(fastest, (a, b, out), where, multiply)
        _, made, _ = ready(product, found := fastest, stream)
    at_a, at_b, at_out = (x.address for x in product.given)
    return Bound(made, found, (a, b, out), (at_a, at_b, at_out), alpha, beta, where)


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


def chosen_or_vendor(product: Product, fallback: str) -> Match | Vendor:
    """Return the winner for the product, or why the vendor computes it."""
    if fallback not in ("vendor", "error"):
        raise ValueError(f"fallback: expected 'vendor' or 'error', got {fallback!r}")
    if 0 in product.shape:
        return Vendor("an extent is 0")
    check_place(product)
    has_one = any(all(is_its(x.array) for x in product.given) for is_its in (is_torchs, is_cupys))
    falls_back = fallback == "vendor" and product.math is None and has_one
    try:
        found = choose(product, None if product.on_host else device_of(home(product.a)[1])[0])
    except (LookupError, ValueError) as error:
        if not falls_back:
            raise
        return Vendor(str(error))
    if not falls_back:
        return found
    return Vendor(found.why_it_loses) if found.loses else _compiled_or_vendor(product, found)


def _compiled_or_vendor(product: Product, found: Match) -> Match | Vendor:
    """The winner; the vendor where it is another GPU's, and no compiler here makes a binary of it for this one."""
    if found.other_device is None:
        return found
    # What compiles with indices of one width does with those of another.
    why = why_not_compiled(found.winner, INDEX_WIDTHS[0], device_of(home(product.a)[1])[1])
    return found if why is None else Vendor(why)


def _measured(
    product: Product, expected: Match | Vendor, fallback: str, alpha: Any, beta: Any, stream: Any
) -> tuple[Product, Match | Vendor]:
    """Return the product with an `out`, and what takes least, by timing; as it is, and what is expected to, where no
    kernel is for it, or none that loads where the vendor's product is expected to.
    """
    kernel = expected
    try:
        if isinstance(expected, Vendor):
            kernel = chosen_or_vendor(product, "error")
        if isinstance(kernel, Vendor):
            return product, expected
        product, _, _ = ready(product, kernel, stream)
    except (LookupError, RuntimeError, ValueError):
        if not isinstance(expected, Vendor):
            raise
        return product, expected
    return product, by_timing(product, expected, kernel, fallback, alpha, beta, stream)


def _by_vendor(product: Product, found: Vendor, alpha: Any, beta: Any, stream: Any) -> Any:
    """Return the product by the arrays' own library. Raise ValueError if that multiplies none."""
    a, b = product.a.array, product.b.array
    asked = product.conjugates[0] != product.a.is_conjugate, product.conjugates[1] != product.b.is_conjugate
    out = None if product.out is None else product.out.array
    factors = factors_of(product, alpha, beta)
    if product.math is not None or not (product.on_host or is_torchs(a) or is_cupys(a)):
        raise ValueError(f"no kernel computes this: {found.reason}")
    if product.on_host:
        return vendors_product(a, b, out, *factors, asked)
    handle = stream_of(product, stream)
    await_all(product, stream, handle)
    with at_stream(a, handle):
        return vendors_product(a, b, out, *factors, asked)


def _remember(a: Any, b: Any, out: Any, plan: Plan | tuple[int, ...], asked: Any) -> None:
    """Let the next product like this one take the short way, where its arrays are of one library."""
    kind, arrays = type(a), (a, b) if out is None else (a, b, out)
    if all(map(is_torchs, arrays)):
        starters[kind] = starters.get(kind) or compiled_torch_starter(sys.modules["torch"], kind)
        keep_plan(torch_key(a, b, out, asked), plan)
    elif all(map(is_cupys, arrays)) and hasattr(a, "_c_contiguous"):  # the key needs it
        starters[kind] = starters.get(kind) or compiled_cupy_starter(sys.modules["cupy"], kind)
        keep_plan(cupy_key(a, b, out, asked), plan)
    else:
        return
    if isinstance(plan, Plan):
        teach(a, b, out, plan, asked)
