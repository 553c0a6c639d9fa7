"""Arrays of other libraries: what they are besides memory, the stream that their library is at, and new ones.

No library is imported for that: where an array is of one, somebody has.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import numpy as np

from tsm2_tune.runtime.arrays.dlpack import dlpack_interface, speaks_dlpack

TENSOR_TYPES = {  # PyTorch's name of a type, and its typestr
    "torch.float32": "<f4",
    "torch.float64": "<f8",
    "torch.complex64": "<c8",
    "torch.complex128": "<c16",
    "torch.float16": "<f2",
    "torch.bfloat16": "<i2",
}


def _is_of(kind: type, library: str, name: str) -> bool:
    """Return whether it is this type of a library, or derived from it."""
    return issubclass(kind, getattr(sys.modules.get(library), name, ()))


NAMES_OF_ARRAYS = {"torch": "Tensor", "cupy": "ndarray", "jax": "Array"}  # by library
_libraries: dict[type, str] = {}  # by type of array


def _library(array: Any) -> str:
    """Return the library that the array is of; "" of another one."""
    kind = type(array)
    found = _libraries.get(kind)
    if found is None:
        found = next((library for library, name in NAMES_OF_ARRAYS.items() if _is_of(kind, library, name)), "")
        _libraries[kind] = found
    return found


def is_torchs(array: Any) -> bool:
    """Return whether it is a tensor of PyTorch."""
    return (_libraries.get(type(array)) or _library(array)) == "torch"


def is_cupys(array: Any) -> bool:
    """Return whether it is an array of CuPy."""
    return (_libraries.get(type(array)) or _library(array)) == "cupy"


def is_jaxs(array: Any) -> bool:
    """Return whether it is an array of JAX."""
    return (_libraries.get(type(array)) or _library(array)) == "jax"


def _is_subclass(tensor: Any) -> bool:
    torch = sys.modules["torch"]
    return type(tensor) not in (torch.Tensor, torch.nn.Parameter)


def _gives_gradients() -> bool:
    """Return whether PyTorch records what is computed, so that its own mm(out=) refuses what requires a gradient."""
    return bool(sys.modules["torch"].is_grad_enabled())


# What a tensor of PyTorch may be that its memory does not say, and what makes it plain.
TENSORS: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("is of a subclass, which may mean more than its memory", "as_subclass(torch.Tensor)", _is_subclass),
    ("is nested", "to_padded_tensor(0)", lambda t: t.is_nested),
    ("is sparse", "to_dense()", lambda t: t.layout is not sys.modules["torch"].strided),
    ("is quantised", "dequantize()", lambda t: t.is_quantized),
    ("requires a gradient, which kernels do not give", "detach()", lambda t: t.requires_grad and _gives_gradients()),
    ("is to be negated, as its negative bit says", "resolve_neg()", lambda t: t.is_neg()),
)


def _is_plain_tensor(tensor: Any) -> bool:
    """Return whether none of TENSORS is so, as of most; where it is not, one of them may be."""
    torch = sys.modules["torch"]
    return type(tensor) is torch.Tensor and tensor.layout is torch.strided and not (
        tensor.is_nested or tensor.is_quantized or tensor.requires_grad or tensor.is_neg()
    )  # fmt: skip


def check_plain(name: str, array: Any) -> None:
    """Raise TypeError for an array that its memory does not say all of, but for a tensor's conjugate bit."""
    if is_torchs(array):
        if _is_plain_tensor(array):
            return
        for what, remedy, is_so in TENSORS:
            if is_so(array):
                raise TypeError(f"{name}: it {what}: pass {name}.{remedy}")
    elif isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{name}: masked arrays are not supported")


def is_conjugate(array: Any) -> bool:
    """Return whether what the array stands for is the conjugate of what is in its memory, as of PyTorch's x.mH."""
    return is_torchs(array) and bool(array.is_conj())


def device_interface(name: str, array: Any) -> Any:
    """Return the array's description of its device memory; None if it has none. Raise TypeError if it refuses."""
    try:
        if is_torchs(array):
            typestr = _typestr(array.dtype)
            if typestr is not None and getattr(array, "is_cuda", False):
                return _tensor_interface(array, typestr)
            if array.requires_grad:  # and none is given: see TENSORS
                array = array.detach()
            if str(array.dtype) == "torch.bfloat16":
                array = array.view(sys.modules["torch"].int16)  # it describes bfloat16 as another type, or not at all
        if speaks_dlpack(array):
            return dlpack_interface(array)
        return getattr(array, "__cuda_array_interface__", None)
    except Exception as error:  # each library has its own
        raise TypeError(f"{name}: a {type(array).__name__} that does not tell its memory: {error}") from error


@cache
def _typestr(dtype: Any) -> str | None:
    """Return the interface's word for a type of PyTorch's; None for those that no kernel is for."""
    return TENSOR_TYPES.get(str(dtype))


def _tensor_interface(tensor: Any, typestr: str) -> dict[str, Any]:
    """Return what `__cuda_array_interface__` would, in less time, and also for tensors that require a gradient."""
    size = tensor.element_size()
    return {
        "shape": tuple(tensor.shape),
        "strides": tuple([size * elements for elements in tensor.stride()]),
        "typestr": typestr,
        "data": (tensor.data_ptr(), False),
    }


def current_stream(array: Any) -> int | None:
    """The stream that `with torch.cuda.stream(s)` or CuPy's `with s` has set; None for arrays of other libraries."""
    if is_torchs(array):
        return torch_stream(sys.modules["torch"])(array.get_device())
    if is_cupys(array):
        return cupy_stream(sys.modules["cupy"])(array.data.device_id)
    return None


def torch_stream(torch: Any) -> Callable[[int], int]:
    """Return the handle of the current stream of the device of an ordinal."""
    raw = getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None)
    if raw is not None:
        found: Callable[[int], int] = raw
        return found
    return lambda ordinal: int(torch.cuda.current_stream(ordinal).cuda_stream)


def cupy_stream(cupy: Any) -> Callable[[int], int]:
    """Return the handle of the current stream of the device of an ordinal."""
    get_current_stream = cupy.cuda.get_current_stream
    return lambda ordinal: get_current_stream(ordinal).ptr


@contextmanager
def at_stream(array: Any, stream: int) -> Iterator[None]:
    """Let the array's library be at its device and at this stream: what it allocates is ordered by that."""
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


def new_array(array: Any, shape: tuple[int, ...], strides: tuple[int, ...], order: str) -> Any:
    """Return an array of the type and on the device of another, by its library's allocator; None of another library.

    `order` is NumPy's: F column-major, C row-major; `strides`, in elements, say the same. Raise TypeError for JAX's,
    which nothing but JAX may write.
    """
    if is_torchs(array):
        return sys.modules["torch"].empty_strided(shape, strides, dtype=array.dtype, device=array.device)
    if is_cupys(array):
        return sys.modules["cupy"].empty(shape, array.dtype, order=order)
    if _is_of(type(array), "numba.cuda.cudadrv.devicearray", "DeviceNDArray"):
        return sys.modules["numba.cuda"].device_array(shape, array.dtype, order=order)
    if is_jaxs(array):
        raise TypeError("a: JAX's arrays are written by JAX alone: call this module's jax.matmul, or give out")
    if speaks_dlpack(array) and hasattr(array, "__array_namespace__"):
        return _standard_array(array, shape, order)
    return None


def _standard_array(array: Any, shape: tuple[int, ...], order: str) -> Any:
    """Return the same, as the array API standard has it."""
    library, is_across = array.__array_namespace__(), order == "F" and len(shape) == 2
    made = library.empty(shape[::-1] if is_across else shape, dtype=array.dtype, device=array.device)
    return library.permute_dims(made, (1, 0)) if is_across else made


@contextmanager
def preserved(name: str, array: Any) -> Iterator[None]:
    """Put back, when done, what the array holds. Raise TypeError for an array of a library that is not known to copy
    it, MemoryError without room for the copy.
    """
    if not (is_torchs(array) or is_cupys(array)):
        raise TypeError(f"{name}: a {type(array).__name__} cannot be kept as it is: pass arrays of PyTorch or CuPy")
    try:
        held = array.clone() if is_torchs(array) else array.copy()
    except Exception as error:  # each library has its own
        raise MemoryError(f"{name}: what it holds cannot be kept: {error}") from error
    try:
        yield
    finally:
        with sys.modules["torch"].inference_mode() if is_torchs(array) else nullcontext():  # it may be of that mode
            array[...] = held


def scratch(array: Any, size_bytes: int) -> tuple[int, Any] | None:
    """Return the address and owner of so much device memory of the array's library; None of another library.

    Raise MemoryError if there is none.
    """
    if size_bytes == 0 or not (is_torchs(array) or is_cupys(array)):
        return None
    try:
        if is_torchs(array):
            torch = sys.modules["torch"]
            owner = torch.empty(size_bytes, dtype=torch.uint8, device=array.device)
            return owner.data_ptr(), owner
        owner = sys.modules["cupy"].cuda.alloc(size_bytes)
        return owner.ptr, owner
    except Exception as error:  # each library has its own
        raise MemoryError(str(error)) from error


def vendors_product(a: Any, b: Any, out: Any, alpha: complex, beta: complex, conjugates: tuple[bool, bool]) -> Any:
    """Return the product by the arrays' own library, whose kernels are the vendor's: out = alpha a b + beta out.

    Elements of 16 bits are rounded once. None if that library multiplies no matrices.
    """
    if alpha == 0:  # BLAS reads neither a nor b then: a NaN there does not reach out
        a, b = a[..., :0], b[:0]
    a, b = (x.conj() if conjugated else x for x, conjugated in zip((a, b), conjugates, strict=True))
    if is_torchs(a):
        return _torchs_product(a, b, out, alpha, beta)
    library = sys.modules["cupy"] if is_cupys(a) else np if isinstance(a, np.ndarray) else None
    if library is None:
        return None
    if alpha == 1 and beta == 0:
        if out is not None and a.ndim == b.ndim == 2:
            return library.matmul(a, b, out=out)
        return _put(library.matmul(a, b), out)
    if a.dtype != np.float16:
        return _put(_combined(library.matmul(a, b), out, alpha, beta), out)
    wide_out = None if out is None else out.astype(np.float32)
    wide = _combined(library.matmul(a.astype(np.float32), b.astype(np.float32)), wide_out, alpha, beta)
    return _put(wide.astype(np.float16), out)


class _Asked(threading.local):
    """Whether this thread is asking PyTorch for its own product."""

    is_own = False  # its own product, whatever overrides that


asked_of_torch = _Asked()


def _torchs_product(a: Any, b: Any, out: Any, alpha: complex, beta: complex) -> Any:
    before, asked_of_torch.is_own = asked_of_torch.is_own, True
    try:
        return _by_torch(a, b, out, alpha, beta)
    finally:
        asked_of_torch.is_own = before


def _by_torch(a: Any, b: Any, out: Any, alpha: complex, beta: complex) -> Any:
    torch, are_matrices = sys.modules["torch"], a.ndim == b.ndim == 2
    if alpha == 1 and beta == 0 and not (are_matrices and out is not None):
        return _put(torch.matmul(a, b), out)
    rows, columns = (a if a.ndim == 2 else a[None, :]), (b if b.ndim == 2 else b[:, None])
    if out is None:
        product = torch.addmm(a.new_zeros(()), rows, columns, beta=0, alpha=alpha)
        return product.reshape((*a.shape[:-1], *b.shape[1:]))
    matrix = out if are_matrices else out.reshape(rows.shape[0], columns.shape[1])  # in the same memory
    torch.addmm(matrix, rows, columns, beta=beta, alpha=alpha, out=matrix)
    return out


def _combined(product: Any, out: Any, alpha: complex, beta: complex) -> Any:
    """alpha product + beta out."""
    if alpha != 1:
        product *= product.dtype.type(alpha)  # else NumPy 1 makes a 64-bit number of a vector's with a vector
    return product if out is None or beta == 0 else product + beta * out


def _put(product: Any, out: Any) -> Any:
    """Return the product, in `out` where there is one."""
    if out is None:
        return product
    out[...] = product
    return out
