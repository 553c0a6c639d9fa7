"""The public functions: gemm, choice, plan and load."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

from tsm2_tune.runtime.arrays.libraries import (
    at_stream,
    cupy_stream,
    is_cupys,
    is_torchs,
    torch_stream,
    vendors_product,
)
from tsm2_tune.runtime.arrays.matrices import Product
from tsm2_tune.runtime.autotune.cache import by_timing, has_factors
from tsm2_tune.runtime.autotune.timing import fastest_way, vendors_of
from tsm2_tune.runtime.choice.choose import check_place, choose
from tsm2_tune.runtime.choice.winners import Match, Vendor
from tsm2_tune.runtime.cuda.cubins import function_of, why_not_compiled
from tsm2_tune.runtime.cuda.driver import (
    context_id,
    device_of,
    home,
    primary_context,
)
from tsm2_tune.runtime.elements import INDEX_WIDTHS, log
from tsm2_tune.runtime.host import multiply_on_host
from tsm2_tune.runtime.launch_plan import Bound, BoundVendor, Plan
from tsm2_tune.runtime.launcher import compiled_cupy_starter, compiled_torch_starter, teach
from tsm2_tune.runtime.module_data import WINNERS
from tsm2_tune.runtime.plan_cache import (
    cupy_look_up,
    keep_plan,
    pycuda_look_up,
    pycuda_starter,
    starters,
    torch_key,
)
from tsm2_tune.runtime.prepare import (
    await_all,
    checked_factors,
    effective_factors,
    hold_until_done,
    prepare_launch,
    stream_of,
)
from tsm2_tune.runtime.zero_alpha import NO_OPERANDS, reads_operands, scaled

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
    """Compute out = alpha a b + beta out and return `out`. alpha is 1 and beta is 0 by default.

    With math="minplus" the matrix product uses + in place of multiplication and min in place of addition: out[i, j] =
    min(alpha + min over l of (a[i, l] + b[l, j]), beta + out[i, j]). Here alpha is 0 and beta is infinite by default.
    With beta = 0 each element of `out` becomes the smaller one of its old value and the new minimum. A sum that is
    NaN is ignored.

    a is m x k, b is k x n, out is m x n. Arrays with more dimensions are batches of matrices: their dimensions before
    the last two broadcast, as in numpy.matmul, and all products are computed by one launch. All have the same element
    type and are on the same device. Each is column-major or row-major, with any leading dimension; a vector counts as
    both. A 1-d a is a row, a 1-d b is a column, and `out` is then a vector, or a batch of vectors. With conj_a or
    conj_b, the complex conjugate of a or b is multiplied; the kernel conjugates the elements. A PyTorch tensor with
    its conjugate bit set is read as the conjugate of its memory. Products of 16-bit numbers are summed in float32,
    which is also the type of alpha and beta. `math`, one of MATHS, selects kernels with that arithmetic; calls
    without `math` never use these kernels.

    The kernel is one that was tuned for these storage orders. If the shape was tuned, the fastest kernel for that
    shape runs. Otherwise the kernel with the least predicted time runs, with a grid that suits the shape. If a and b
    are one matrix in memory, as in gemm(x.T, x), a kernel that computes half of the symmetric or Hermitian result may
    run. A kernel for the transposed product, b transposed times a transposed, may run on the same memory: if no
    kernel has these storage orders, or if C has more columns than rows and that kernel is predicted to be faster.

    PyTorch or CuPy computes the product of its arrays if no kernel has these storage orders, or if the predicted gain
    over cuBLAS is too small. Arrays of other libraries, `math` and fallback="error" exclude this: then a kernel runs
    in spite of a small gain, and the call raises if there is none. If an extent is 0, the arrays' own library
    computes the product.

    A batch is computed by a kernel that was tuned for batches. If one matrix a or b is multiplied by all matrices of
    the other operand, and these make up one long matrix with a leading dimension, as contiguous ones do, the batch is
    one product and may be computed as such. If several dimensions of a batch cannot be one dimension with a stride of
    each array, there is no kernel. If there are no products, `out` does not change.

    With measure=True the first product with these shapes and layouts times the best kernels and PyTorch's or CuPy's
    own product with its current settings, as `plan` does. The fastest of them computes this product and all later
    products that differ only in addresses, alpha and beta. Another process may choose another kernel, which rounds
    differently, unless both processes call `remember` with the same file. With measure=False results have the same
    bits in every process. If nothing can be timed, because memory is short or the contents of `out` cannot be saved,
    the choice with the least predicted time computes the product.

    If alpha is 0, `out` becomes beta out, and a and b are not read, as in BLAS. Arrays of libraries other than
    PyTorch and CuPy then need an `out`, and a beta of 0 or 1. alpha and beta are numbers, 0-d NumPy arrays or 0-d CPU
    tensors. An alpha or beta in GPU memory raises TypeError, because reading it would wait for the GPU.

    Without `out` the allocator of a's library returns a new array: column-major if a kernel for a and b writes
    column-major results, else row-major. If beta is 0, or infinite for minplus, `out` is not read.

    `out` must not share memory with a or b, nor its matrices with each other. Arrays whose elements cannot be read
    directly from memory raise TypeError: masked arrays; PyTorch tensors of a subclass, sparse, nested, quantised,
    with the negative bit, or requiring a gradient unless torch.no_grad() is set; and an `out` with the conjugate bit.

    On a GPU the call only launches the product. `stream` is a stream of PyCUDA, CuPy, PyTorch or Numba, or a CUstream
    handle. If `stream` is None, the product runs on the current stream of out's library, or of a's library if there
    is no `out`. The current stream is the one set by `with torch.cuda.stream(s)` or CuPy's `with s`. Libraries other
    than PyTorch and CuPy use the default stream. If an array names another stream in its interface, as CuPy's arrays
    do, the product waits for that stream. In addition, if `stream` is None, the product waits for the current streams
    of the other arrays' libraries.

    NumPy arrays are multiplied on the CPU, in any thread; the call returns when the product is computed. If a kernel
    faults on the CPU, only that call raises tsm2_tune's KernelFault, and its `out` is undefined. It raises InputError
    or ToolMissing if the cache of compiled kernels, or a compiler, cannot be used.

    A kernel that splits k needs a workspace. Each stream has one workspace. PyTorch or CuPy allocates the workspace
    if the arrays are theirs, and else the CUDA driver. The workspace is kept. If a product needs a larger workspace,
    the call waits for the work in the stream and replaces the workspace. A product can be captured in a CUDA graph if
    its kernel is loaded: `load` loads all kernels. Each graph has its own workspace.

    Raise TypeError or ValueError for an invalid argument, and if no kernel has the storage orders. Raise LookupError
    if no kernel has the element type. Raise MemoryError if the device has too little memory for the workspace. Raise
    RuntimeError if CUDA fails.
    """
    asked = None
    if conj_a or conj_b or math is not None or fallback != "vendor" or measure:
        asked = (bool(conj_a), bool(conj_b), math, fallback, bool(measure))
    starter = starters.get(type(a))
    if starter is not None and (alpha is None or type(alpha) not in NUMBERS or reads_operands(alpha, math)):
        try:
            done = starter(a, b, out, alpha, beta, asked, stream)
        except (AttributeError, TypeError):
            done = None  # the checks below raise the proper error for wrong arrays or streams
        if done is not None:
            return done
    product = Product.of(a, b, out, conjugates=(conj_a, conj_b), math=math)
    alpha, beta = checked_factors(product, alpha, beta)
    if product.batch == 0 and product.out is not None:
        return product.out.array
    if not (product.on_host or 0 in product.shape or reads_operands(alpha, math)):
        handle = stream_of(product, stream)
        await_all(product, stream, handle)
        return scaled(product, beta, handle)
    found = chosen_or_vendor(product, fallback)
    is_timed = measure and not product.on_host
    if is_timed:
        product, found = _measured(product, found, fallback, alpha, beta, stream)
    # Do not cache a choice that depends on alpha or beta, since the cache's key has neither: CuPy's own product
    # multiplies by them in separate kernels, which takes longer.
    is_kept = not (is_timed and is_cupys(a) and has_factors(product, alpha, beta))
    if isinstance(found, Vendor):
        done = _by_vendor(product, found, alpha, beta, stream)
        # Timing allocated `out` in the kernel's storage order, but the library would choose its own: do not cache it.
        if is_kept and not (is_timed and out is None):
            _remember(product.library, a, b, out, tuple(x.span_bytes for x in product.given), asked)
        return done
    if product.on_host:
        if stream is not None:
            raise TypeError("stream: NumPy arrays have none")
        return multiply_on_host(product, found, *effective_factors(product, alpha, beta))
    product, plan, handle = prepare_launch(product, found, stream)
    await_all(product, stream, handle)
    assert product.out is not None
    plan.start((handle, product.a.address, product.b.address, product.out.address), alpha, beta, a)
    hold_until_done(product, plan.context, handle)
    if is_kept:
        _remember(product.library, a, b, out, plan, asked)
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
    """Return the kernel that gemm uses for these arguments, or a Vendor with the reason why it uses no kernel.

    Raise the errors that gemm raises for these arguments.
    """
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
    """Prepare gemm for these device arrays. Return a callable plan: calling it launches the product without checks.

    The plan keeps the arrays alive; the kernel reads them each time the plan is called. The product runs on `stream`,
    or else on the stream that is current when the plan is called; it does not wait for other streams. Raise the
    errors that gemm raises with fallback="error".

    With measure=True the kernel and its grid are chosen by timing instead of by predicted time. Up to twenty launches
    are timed on these arrays, on the stream: those that have a binary for this GPU and nearly the least predicted
    time. PyTorch's or CuPy's own product with its current settings is timed, too (CuPy's only without alpha and
    beta). If the library's product is the fastest, the plan calls it; CuPy's own product cannot be captured in a
    graph. The plan's `match` contains the times. Each time is measured after the L2 was filled with dirty lines,
    which needs a buffer of twice the size of the L2. Timing takes some tens of milliseconds, or longer if a hundred
    products take longer. The workspace of the timed kernels stays allocated. If the product does not read `out`, the
    contents of `out` are undefined afterwards. If beta makes the product read `out`, the contents are saved and
    restored, which works only for arrays of PyTorch and CuPy. Another process may choose another kernel, which rounds
    differently.
    """
    product = Product.of(a, b, out, conjugates=(conj_a, conj_b), math=math)
    check_place(product)
    if product.on_host or product.out is None:
        raise TypeError("a plan needs an out, and a, b and out in a GPU's memory: without these call gemm")
    alpha, beta = checked_factors(product, alpha, beta)
    found = chosen_or_vendor(product, "error")
    if isinstance(found, Vendor):
        raise ValueError(f"a plan needs a kernel, and here {found.reason}: call gemm")
    product, made, handle = prepare_launch(product, found, stream)
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
        _, made, _ = prepare_launch(product, found := fastest, stream, is_kept=False)
    at_a, at_b, at_out = (x.address for x in product.given)
    return Bound(made, found, (a, b, out), (at_a, at_b, at_out), alpha, beta, where)


def load(device: int = 0) -> None:
    """Load every kernel that products on this GPU may use. Capture into a CUDA graph needs loaded kernels.

    The kernels tuned on this GPU model are loaded. For a combination of element type and storage orders without such
    a kernel, the kernels tuned on other GPU models are loaded. Raise RuntimeError if a kernel tuned on this model
    does not load. Errors of the other kernels are ignored here; a product that needs such a kernel raises them.
    """
    if all(winner.on_host for winner in WINNERS):
        return  # this module has no kernel for a GPU
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
    """Return the kernel chosen for the product, or a Vendor with the reason why the arrays' library computes it."""
    if fallback not in ("vendor", "error"):
        raise ValueError(f"fallback: expected 'vendor' or 'error', got {fallback!r}")
    if 0 in product.shape or product.batch == 0:
        return Vendor("an extent is 0")
    check_place(product)
    falls_back = fallback == "vendor" and product.math is None and product.library in ("torch", "cupy")
    reason: str | None = None
    try:
        name, arch = (None, "") if product.on_host else device_of(home(product.a)[1])
        found = choose(product, name)
        if not falls_back:
            return found
        if found.is_vendor_chosen:
            reason = str(found)
        elif found.other_device is not None:
            # A kernel that compiles with 32-bit indices also compiles with 64-bit indices: test one width.
            reason = why_not_compiled(found.winner, INDEX_WIDTHS[0], arch)
        if reason is None:
            return found
    except (LookupError, ValueError) as error:
        if not falls_back:
            raise
        reason = str(error)
    count = f"{product.batch}*" * (product.batch > 1)
    log.debug("%s%s %s: %s", count, "x".join(map(str, product.shape)), product.name, chosen := Vendor(reason))
    return chosen


def _measured(
    product: Product, expected: Match | Vendor, fallback: str, alpha: Any, beta: Any, stream: Any
) -> tuple[Product, Match | Vendor]:
    """Return the product with an `out`, and the kernel or library that was fastest when timed.

    Return `expected` if no kernel computes the product, or if the library is predicted to be faster, and the kernel
    does not load.
    """
    kernel = expected
    try:
        if isinstance(expected, Vendor):
            kernel = chosen_or_vendor(product, "error")
        if isinstance(kernel, Vendor):
            return product, expected
        product, _, _ = prepare_launch(product, kernel, stream)
    except (LookupError, RuntimeError, ValueError):
        if not isinstance(expected, Vendor):
            raise
        return product, expected
    return product, by_timing(product, expected, kernel, fallback, alpha, beta, stream)


def _by_vendor(product: Product, found: Vendor, alpha: Any, beta: Any, stream: Any) -> Any:
    """Compute the product with the arrays' own library. Raise ValueError if the library cannot compute it."""
    a, b = product.a.array, product.b.array
    asked = product.conjugates[0] != product.a.is_conjugate, product.conjugates[1] != product.b.is_conjugate
    out = None if product.out is None else product.out.array
    factors = effective_factors(product, alpha, beta)
    if product.math is not None or not (product.on_host or is_torchs(a) or is_cupys(a)):
        raise ValueError(f"no kernel computes this: {found.reason}")
    if product.on_host:
        return vendors_product(a, b, out, *factors, asked)
    handle = stream_of(product, stream)
    await_all(product, stream, handle)
    with at_stream(a, handle):
        return vendors_product(a, b, out, *factors, asked)


def _remember(library: str, a: Any, b: Any, out: Any, plan: Plan | tuple[int, ...], asked: Any) -> None:
    """Cache the plan for later calls with equal shapes and layouts, if PyTorch, CuPy or PyCUDA made all arrays."""
    kind = type(a)
    if library == "torch":
        starters[kind] = starters.get(kind) or compiled_torch_starter(sys.modules["torch"], kind)
        keep_plan(torch_key(a, b, out, asked), plan)
    elif library == "cupy" and hasattr(a, "_c_contiguous"):  # used by cupy_look_up
        starters[kind] = starters.get(kind) or compiled_cupy_starter(sys.modules["cupy"], kind)
        cupy_look_up(sys.modules["cupy"])(a, b, out, asked, plan)
    elif library == "pycuda.gpuarray" and out is not None:
        starters[kind] = starters.get(kind) or pycuda_starter(sys.modules["pycuda.gpuarray"])
        pycuda_look_up(sys.modules["pycuda.gpuarray"])(a, b, out, asked, plan)
    else:
        return
    if isinstance(plan, Plan) and len(a.shape) < 3 and len(b.shape) < 3:  # the launcher starts no batches
        teach(a, b, out, plan, asked)
