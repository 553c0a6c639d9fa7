"""Functions that depend on an array's library: checks, current streams, new arrays, the library's own product.

These functions do not import a library such as PyTorch. A program that passes an array of a library has imported the
library, so the functions find the library in sys.modules.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import numpy as np

from tsm2_tune.runtime.arrays.batches import common_extents, new_permuted
from tsm2_tune.runtime.arrays.dlpack import dlpack_interface, speaks_dlpack
from tsm2_tune.runtime.elements import DTYPES

TENSOR_TYPES = {  # PyTorch's dtype -> key in DTYPES, and a NumPy dtype of its size
    **{f"torch.{dtype}": (name, dtype) for name, dtype in DTYPES.items()},
    "torch.bfloat16": ("bf16", np.dtype(np.int16)),
}


def _is_of(kind: type, library: str, name: str) -> bool:
    """Return whether the type is a subclass of `library.name`; False if that library is not imported."""
    return issubclass(kind, getattr(sys.modules.get(library), name, ()))


# module of a library -> name of its array type
NAMES_OF_ARRAYS = {"torch": "Tensor", "cupy": "ndarray", "jax": "Array", "pycuda.gpuarray": "GPUArray"}
NUMBA = ("numba.cuda.cudadrv.devicearray", "DeviceNDArray")
_libraries: dict[type, str] = {}  # type of array -> result of `library_of`


def library_of(array: object) -> str:
    """Return the name of the array's library, a key of NAMES_OF_ARRAYS; "" for any other library."""
    kind = type(array)
    found = _libraries.get(kind)
    if found is None:
        found = next((library for library, name in NAMES_OF_ARRAYS.items() if _is_of(kind, library, name)), "")
        _libraries[kind] = found
    return found


def is_torchs(array: object) -> bool:
    """Return whether the array is a PyTorch tensor."""
    return library_of(array) == "torch"


def is_cupys(array: object) -> bool:
    """Return whether the array is a CuPy array."""
    return library_of(array) == "cupy"


def is_jaxs(array: object) -> bool:
    """Return whether the array is a JAX array."""
    return library_of(array) == "jax"


# Properties of a tensor whose elements cannot be read directly from memory: error message, remedy, check.
TENSORS: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    (
        "is of a subclass of Tensor, which may not define its values by its memory",
        "as_subclass(torch.Tensor)",
        lambda t: type(t) not in (sys.modules["torch"].Tensor, sys.modules["torch"].nn.Parameter),
    ),
    ("is nested", "to_padded_tensor(0)", lambda t: t.is_nested),
    ("is sparse", "to_dense()", lambda t: t.layout is not sys.modules["torch"].strided),
    ("is quantised", "dequantize()", lambda t: t.is_quantized),
    (  # torch.mm(out=) refuses such tensors while gradients are recorded, too
        "requires a gradient, which kernels do not compute",
        "detach()",
        lambda t: t.requires_grad and sys.modules["torch"].is_grad_enabled(),
    ),
    ("has its negative bit set", "resolve_neg()", lambda t: t.is_neg()),
)


def check_tensor(name: str, tensor: Any) -> None:
    """Raise TypeError if the tensor's elements cannot be read directly from memory, as those of a sparse tensor."""
    for what, remedy, is_so in TENSORS:
        if is_so(tensor):
            raise TypeError(f"{name}: it {what}: pass {name}.{remedy}")


def device_interface(name: str, array: Any) -> Any:
    """Return a dict like `__cuda_array_interface__` that describes the array; None if it has no device memory."""
    try:
        if is_torchs(array) and array.requires_grad:  # allowed if gradients are not recorded: see TENSORS
            array = array.detach()
        if speaks_dlpack(array):
            return dlpack_interface(array)
        return getattr(array, "__cuda_array_interface__", None)
    except Exception as error:  # each library raises its own type
        raise TypeError(f"{name}: a {type(array).__name__} whose memory address cannot be read: {error}") from error


def tensor_memory(tensor: Any) -> Any:
    """Return (value in TENSOR_TYPES, shape in elements, strides in bytes, address) of a tensor on a GPU.

    Return None if device_interface must describe the tensor, which takes longer.
    """
    of_type = _tensor_type(tensor.dtype)
    if of_type is None or not getattr(tensor, "is_cuda", False):
        return None
    size = of_type[1].itemsize
    return of_type, tensor.shape, [size * step for step in tensor.stride()], tensor.data_ptr()


@cache
def _tensor_type(dtype: Any) -> tuple[str, np.dtype[Any]] | None:
    """Return the value in TENSOR_TYPES of a PyTorch dtype; None if no kernel has this type."""
    return TENSOR_TYPES.get(str(dtype))


def current_stream(array: Any) -> int | None:
    """Return the handle of PyTorch's or CuPy's current stream on the array's device; None for other libraries."""
    if is_torchs(array):
        return torch_stream(sys.modules["torch"])(array.get_device())
    if is_cupys(array):
        return cupy_stream(sys.modules["cupy"])(array.data.device_id)
    return None


def torch_stream(torch: Any) -> Callable[[int], int]:
    """Return a function from a device's ordinal to the handle of PyTorch's current stream on the device."""
    raw = getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None)
    if raw is not None:
        found: Callable[[int], int] = raw
        return found
    return lambda ordinal: int(torch.cuda.current_stream(ordinal).cuda_stream)


def cupy_stream(cupy: Any) -> Callable[[int], int]:
    """Return a function from a device's ordinal to the handle of CuPy's current stream on the device."""
    get_current_stream = cupy.cuda.get_current_stream
    return lambda ordinal: get_current_stream(ordinal).ptr


@contextmanager
def at_stream(array: Any, stream: int) -> Iterator[None]:
    """Make the array's device and this stream current in PyTorch or CuPy for the body of `with`."""
    if is_torchs(array):
        torch = sys.modules["torch"]
        if current_stream(array) == stream:
            with torch.cuda.device(array.device):
                yield
            return
        own = torch.cuda.ExternalStream(stream, device=array.device)
        with torch.cuda.stream(torch.cuda.default_stream(array.device) if stream == 0 else own):
            yield
    elif is_cupys(array):
        cupy = sys.modules["cupy"]
        with array.device, cupy.cuda.ExternalStream(stream) if stream else cupy.cuda.Stream.null:
            yield
    else:
        yield


def new_array(array: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """Return a new uninitialised array of the same library, element type and device; None for an unknown library.

    `strides`, in elements, must be those of a contiguous array with permuted dimensions.
    """
    if is_torchs(array):
        return sys.modules["torch"].empty_strided(shape, strides, dtype=array.dtype, device=array.device)
    if is_cupys(array):
        cupy = sys.modules["cupy"]
        return new_permuted(
            shape, strides, lambda extents: cupy.empty(extents, array.dtype), lambda made, at: made.transpose(at)
        )
    if _is_of(type(array), *NUMBA):
        of_bytes = tuple(np.dtype(array.dtype).itemsize * stride for stride in strides)
        return sys.modules["numba.cuda"].device_array(shape, array.dtype, strides=of_bytes)
    if is_jaxs(array):
        raise TypeError("a: only JAX can write JAX's arrays: call this module's jax.matmul, or pass out")
    if speaks_dlpack(array) and hasattr(array, "__array_namespace__"):  # as in the Python array API standard
        library = array.__array_namespace__()
        return new_permuted(
            shape,
            strides,
            lambda extents: library.empty(extents, dtype=array.dtype, device=array.device),
            library.permute_dims,
        )
    return None


@contextmanager
def preserved(name: str, array: Any) -> Iterator[None]:
    """Restore the array's contents after the body of `with`. Raise MemoryError if the copy does not fit in memory."""
    if not (is_torchs(array) or is_cupys(array)):
        raise TypeError(
            f"{name}: a {type(array).__name__} cannot be saved and restored: pass arrays of PyTorch or CuPy"
        )
    try:
        held = array.clone() if is_torchs(array) else array.copy()
    except Exception as error:  # each library raises its own type
        raise MemoryError(f"{name}: its contents cannot be saved: {error}") from error
    try:
        yield
    finally:
        with (
            sys.modules["torch"].inference_mode() if is_torchs(array) else nullcontext()
        ):  # the array may be an inference tensor
            array[...] = held


def scratch(array: Any, size_bytes: int) -> tuple[int, Any] | None:
    """Return the address and the owner of memory that PyTorch or CuPy allocates; None if the array is not theirs."""
    if size_bytes == 0 or not (is_torchs(array) or is_cupys(array)):
        return None
    try:
        if is_torchs(array):
            torch = sys.modules["torch"]
            owner = torch.empty(size_bytes, dtype=torch.uint8, device=array.device)
            return owner.data_ptr(), owner
        owner = sys.modules["cupy"].cuda.alloc(size_bytes)
        return owner.ptr, owner
    except Exception as error:  # each library raises its own type
        raise MemoryError(str(error)) from error


def vendors_product(a: Any, b: Any, out: Any, alpha: complex, beta: complex, conjugates: tuple[bool, bool]) -> Any:
    """Compute out = alpha a b + beta out with PyTorch, CuPy or NumPy; return None for other libraries.

    If `out` is None, return a new array. 16-bit elements are rounded only once, at the end.
    """
    if alpha == 0:  # as in BLAS, NaNs in a and b must not get into out: multiply with k = 0
        a, b = a[..., :0], b[:0] if b.ndim < 3 else b[..., :0, :]
    if any(conjugates):
        a, b = (x.conj() if conjugated else x for x, conjugated in zip((a, b), conjugates, strict=True))
    if is_torchs(a):
        return _torchs_product(a, b, out, alpha, beta)
    library = sys.modules["cupy"] if is_cupys(a) else np if isinstance(a, np.ndarray) else None
    if library is None:
        return None
    if alpha == 1 and beta == 0:
        if out is not None and a.ndim > 1 and b.ndim > 1:
            return library.matmul(a, b, out=out)
        return _put(library.matmul(a, b), out)
    if a.dtype != np.float16:
        return _put(_combined(library.matmul(a, b), out, alpha, beta), out)
    wide_out = None if out is None else out.astype(np.float32)
    wide = _combined(library.matmul(a.astype(np.float32), b.astype(np.float32)), wide_out, alpha, beta)
    return _put(wide.astype(np.float16), out)


class _OwnProduct(threading.local):
    """A thread-local flag: while it is set, this thread's calls of PyTorch skip the overrides of `install`."""

    is_wanted = False


torchs_own_product = _OwnProduct()


def _torchs_product(a: Any, b: Any, out: Any, alpha: complex, beta: complex) -> Any:
    before, torchs_own_product.is_wanted = torchs_own_product.is_wanted, True
    try:
        return _by_torch(a, b, out, alpha, beta)
    finally:
        torchs_own_product.is_wanted = before


def _by_torch(a: Any, b: Any, out: Any, alpha: complex, beta: complex) -> Any:
    torch, dimensions = sys.modules["torch"], (a.ndim, b.ndim)
    if alpha == 1 and beta == 0:
        is_batch = dimensions == (3, 3) and a.shape[0] == b.shape[0]
        # A call of matmul takes longer than one of mm or bmm.
        multiply = torch.mm if dimensions == (2, 2) else torch.bmm if is_batch else torch.matmul
        has_vector = min(dimensions) == 1 and max(dimensions) < 3
        if out is None or has_vector:
            return _put(multiply(a, b), out)
        multiply(a, b, out=out)
        return out
    if dimensions == (2, 2):
        added = a.new_zeros(()) if out is None else out
        product = torch.addmm(added, a, b, beta=beta, alpha=alpha, out=out)
        return product if out is None else out
    rows, columns = (a if a.ndim > 1 else a[None, :]), (b if b.ndim > 1 else b[:, None])
    products = common_extents(tuple(rows.shape[:-2]), tuple(columns.shape[:-2]))
    count, matrix = math.prod(products), (rows.shape[-2], columns.shape[-1])
    batches = [
        x.expand(*products, *x.shape[-2:]).reshape(count, *x.shape[-2:]) for x in (rows, columns)
    ]  # copied if it is not one dimension
    shape = (*products, *matrix[a.ndim == 1 : 2 - (b.ndim == 1)])
    if out is None:
        return torch.baddbmm(a.new_zeros(()), *batches, beta=beta, alpha=alpha).reshape(shape)
    whole = out.reshape(count, *matrix)  # a copy if several dimensions of the batch are not one
    torch.baddbmm(whole, *batches, beta=beta, alpha=alpha, out=whole)
    return out if whole.data_ptr() == out.data_ptr() else _put(whole.reshape(shape), out)


def _combined(product: Any, out: Any, alpha: complex, beta: complex) -> Any:
    """Return alpha product + beta out; `out` may be None if beta is 0. The product may be overwritten."""
    if alpha != 1:
        product *= product.dtype.type(alpha)  # with a Python number NumPy 1 would widen the result
    return product if out is None or beta == 0 else product + beta * out


def _put(product: Any, out: Any) -> Any:
    """Copy the product into `out` and return `out`; if `out` is None, return the product."""
    if out is None:
        return product
    out[...] = product
    return out
