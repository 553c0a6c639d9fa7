"""PyTorch and CuPy as far as an exported module asks them, on a GPU that is not there."""

from __future__ import annotations

import contextlib
import ctypes
import math
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.fabricated import device_array
from tests.fake_dispatcher import OWN, Dispatcher
from tsm2_tune.runtime.torch.override import OPERATORS

STRIDED = object()  # a layout


class TypeOfTensor(str):
    """Fake of a PyTorch dtype, of which there is one object each."""

    __slots__ = ()

    @property
    def is_complex(self) -> bool:
        return "complex" in self


SIZES = {"float32": 4, "float64": 8, "complex64": 8, "complex128": 16, "bfloat16": 2, "float16": 2}  # bytes
TYPES = {f"torch.{name}": TypeOfTensor(f"torch.{name}") for name in SIZES}
CODES = {"float": 2, "bfloat": 4, "complex": 5}  # DLPack's


class Tensor(SimpleNamespace):
    """Fake of a PyTorch tensor: plain, and on a GPU by default."""

    stride: Callable[[], tuple[int, ...]]
    element_size: Callable[[], int]
    get_device: Callable[[], int]

    def __init__(self, described: Any, **changes: Any) -> None:
        plain = {"is_nested": False, "layout": STRIDED, "is_quantized": False, "requires_grad": False}
        bits = {"is_conj": lambda: False, "is_neg": lambda: False}
        changes["dtype"] = TYPES[changes.get("dtype", "torch.complex64")]
        super().__init__(**{"device": "cuda:0", **plain, **bits, **changes})
        if described is not None:
            self.__cuda_array_interface__ = interface = described.__cuda_array_interface__
            strides = tuple(one // int(interface["typestr"][2:]) for one in interface["strides"])
            self.shape, self.stride, self.ndim = interface["shape"], lambda: strides, len(strides)
            self.data_ptr, self.get_device = lambda: interface["data"][0], lambda: 0
            self.is_cuda, self.element_size = True, lambda: int(interface["typestr"][2:])
            self.numel = lambda: math.prod(interface["shape"])

    def detach(self) -> Tensor:
        return self

    def dim(self) -> int:
        return int(self.ndim)

    def untyped_storage(self) -> SimpleNamespace:
        return SimpleNamespace(data_ptr=self.data_ptr)

    def copy_(self, other: Any) -> None:
        """Say what is copied."""
        self.copied = other


class Parameter(Tensor):
    """A subclass that is nothing more."""


class Masked(Tensor):
    """A subclass that is more."""


# Descriptions for a program in C


class DlTensor(ctypes.Structure):
    """DLPack's description of a tensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


DESCRIBE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DlTensor))


class Exchange(ctypes.Structure):
    """DLPack's table of functions, the one that is used here among them."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("others", ctypes.c_void_p * 3),
        ("describe", DESCRIBE),
        ("current_stream", ctypes.c_void_p),
    )


def _describe(tensor: Any, told: Any) -> int:
    """Fill in the description; -1 for a tensor that has no memory."""
    try:
        shape, strides, address = tensor.shape, tensor.stride(), tensor.data_ptr()
    except AttributeError:
        return -1
    tensor.__dict__["told"] = [(ctypes.c_int64 * len(shape))(*numbers) for numbers in (shape, strides)]
    word, one = tensor.dtype.partition(".")[2], told[0]
    one.data, one.byte_offset = address - 16, 16
    one.device_type, one.device, one.dimensions = 2, tensor.get_device(), len(shape)  # 2: CUDA
    one.code, one.bits, one.lanes = CODES[word.rstrip("0123456789")], 8 * SIZES[word], 1
    one.shape, one.strides = tensor.told
    return 0


describe = DESCRIBE(_describe)


def exchange(major: int = 1) -> Any:
    """The capsule that types of tensors have."""
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    table = Exchange(major=major, minor=3, describe=describe)
    kept.append(table)
    return new(ctypes.addressof(table), b"dlpack_exchange_api", None)


kept: list[Exchange] = []
Tensor.__dlpack_c_exchange_api__ = exchange()  # type: ignore[attr-defined]


def allocated(size_bytes: int) -> int:
    """The address of so much memory."""
    if size_bytes > 1 << 40:
        raise MemoryError("out of memory")
    return 0x10000000 + 0x1000 * size_bytes


class TensorGuards:
    """PyTorch's comparison of tensors with earlier ones."""

    def __init__(self, *tensors: Tensor, dynamic_dims_sizes: Any, dynamic_dims_strides: Any) -> None:
        assert [tuple(x) for x in dynamic_dims_sizes] == [x.shape for x in tensors]
        assert [tuple(x) for x in dynamic_dims_strides] == [x.stride() for x in tensors]
        self.known = [self.described(x) for x in tensors]

    def check(self, *tensors: Tensor) -> bool:
        return [self.described(x) for x in tensors] == self.known

    @staticmethod
    def described(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return None
        bits = x.is_conj(), x.is_neg(), x.requires_grad, x.is_nested, x.is_quantized, x.layout
        return type(x), x.shape, x.stride(), x.dtype, x.get_device(), bits


def fake_torch() -> SimpleNamespace:
    """PyTorch; its current stream is `stream`, and what it makes is in `made`, each at an address of its own.

    Overrides of operators go into `table`, which computes nothing itself.
    """
    fake = SimpleNamespace(Tensor=Tensor, nn=SimpleNamespace(Parameter=Parameter), strided=STRIDED, stream=0)
    fake.inference_mode = contextlib.nullcontext
    fake.is_grad_enabled, fake.made = lambda: True, []
    fake.cuda = SimpleNamespace(current_stream=lambda device: SimpleNamespace(cuda_stream=fake.stream))
    fake.cuda.device, fake.cuda.current_device = lambda device: contextlib.nullcontext(), lambda: 0

    def empty_strided(shape: Any, strides: Any, *, dtype: Any, device: Any) -> Tensor:
        word = dtype.partition(".")[2]
        letter = {"float": "f", "complex": "c", "bfloat": "i"}[word.rstrip("0123456789")]
        size = SIZES[word]
        described = device_array(shape, tuple(size * x for x in strides), at=0x6000, typestr=f"<{letter}{size}")
        fake.made.append(Tensor(described, dtype=dtype, device=device))
        fake.made[-1].get_device = lambda: int(str(device).rpartition(":")[2])
        return fake.made[-1]  # type: ignore[no-any-return]

    def empty(size: Any, *, dtype: Any, device: Any) -> Any:
        if isinstance(size, tuple):
            steps = tuple(math.prod(size[at + 1 :]) for at in range(len(size)))
            return empty_strided(size, steps, dtype=dtype, device=device)
        address = allocated(size)
        return SimpleNamespace(data_ptr=lambda: address)

    fake.empty_strided, fake.empty, fake.uint8 = empty_strided, empty, "torch.uint8"
    fake.float32, fake.precision = TYPES["torch.float32"], "none"
    fake._C = SimpleNamespace(_get_fp32_precision_getter=lambda *_: fake.precision)
    fake._C._dynamo = SimpleNamespace(guards=SimpleNamespace(TensorGuards=TensorGuards))
    fake.cuda.ExternalStream = lambda stream, device: None
    fake.cuda.default_stream, fake.cuda.stream = lambda device: None, lambda stream: contextlib.nullcontext()
    fake.addmm = lambda c, a, b, *, beta, alpha, out: out
    fake.mm = fake.bmm = fake.matmul = lambda a, b, out=None: out
    fake.table = Dispatcher(OPERATORS, lambda *operands, **named: OWN)
    fake.library = SimpleNamespace(get_kernel=fake.table.get_kernel, Library=fake.table.library)
    return fake


# CuPy


class Cupy(SimpleNamespace):
    """An array of CuPy on the device of this number."""

    def __init__(self, described: Any, number: int = 0) -> None:
        interface = described.__cuda_array_interface__
        shape, strides, dtype = interface["shape"], interface["strides"], np.dtype(interface["typestr"])
        extents, steps = [x for x in shape if x > 1], [s for s, x in zip(strides, shape, strict=True) if x > 1]
        row_major = [dtype.itemsize * math.prod(extents[at + 1 :]) for at in range(len(extents))]
        data = SimpleNamespace(ptr=interface["data"][0], device_id=number)
        told = {"shape": shape, "strides": strides, "dtype": dtype, "data": data, "ndim": len(shape)}
        super().__init__(**told, __cuda_array_interface__=interface, number=number, _c_contiguous=steps == row_major)

    def transpose(self, dimensions: tuple[int, ...]) -> Cupy:
        interface = self.__cuda_array_interface__
        shape, strides = (tuple(interface[name][one] for one in dimensions) for name in ("shape", "strides"))
        return Cupy(device_array(shape, strides, at=self.data.ptr, typestr=interface["typestr"]), self.number)

    @property
    def device(self) -> Any:
        return sys.modules["cupy"].device(self.number)


class FakeModule(SimpleNamespace):
    """A library that can be a key, as modules can."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def fake_cupy() -> SimpleNamespace:
    """CuPy; `streams` are current on the devices, and what it makes is in `made`."""
    fake, current = FakeModule(ndarray=Cupy, streams={0: 0, 1: 0}, made=[]), [0]

    @contextlib.contextmanager
    def device(number: int) -> Iterator[None]:
        before, current[0] = current[0], number
        yield
        current[0] = before

    def empty(shape: Any, dtype: Any, *, order: str = "C") -> Cupy:
        like = np.empty(shape, dtype, order)  # type: ignore[call-overload]
        fake.made.append(Cupy(device_array(shape, like.strides, at=0x6000, typestr=like.dtype.str), current[0]))
        return fake.made[-1]  # type: ignore[no-any-return]

    fake.device, fake.empty = device, empty
    fake.cuda = SimpleNamespace(get_current_stream=lambda number: SimpleNamespace(ptr=fake.streams[number]))
    fake.cuda.runtime = SimpleNamespace(getDevice=lambda: current[0])
    fake.cuda.alloc = lambda size_bytes: SimpleNamespace(ptr=allocated(size_bytes))
    fake.cuda.ExternalStream = lambda stream: contextlib.nullcontext()
    fake.cuda.Stream = SimpleNamespace(null=contextlib.nullcontext())
    fake.matmul = lambda a, b, out=None: a if out is None else out
    return fake


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """PyTorch as far as the module asks it."""
    fake = fake_torch()
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """CuPy likewise."""
    fake = fake_cupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return fake


def matrix(rows: int, columns: int, order: str = "F", *, at: int = 0x1000, typestr: str = "<c8") -> SimpleNamespace:
    size = int(typestr[2:])
    strides = (size, size * rows) if order == "F" else (size * columns, size)
    return device_array((rows, columns), strides, at=at, typestr=typestr)


def conjugate(described: Any, **changes: Any) -> Tensor:
    return Tensor(described, is_conj=lambda: True, **changes)


def f32(at: int, **changes: Any) -> SimpleNamespace:
    return device_array((4, 4), at=at, **changes)


def row_major(rows: int, columns: int, at: int, *, kind: type[Tensor] = Tensor, **changes: Any) -> Tensor:
    """A row-major tensor."""
    typestr = {"torch.float64": "<f8", "torch.int32": "<i4"}.get(changes.setdefault("dtype", "torch.float32"), "<f4")
    size = int(typestr[2])
    return kind(device_array((rows, columns), (size * columns, size), at=at, typestr=typestr), **changes)


def factors(**changes: Any) -> tuple[Tensor, Tensor]:
    return row_major(6, 90, 0x1000, **changes), row_major(90, 2, 0x2000, **changes)
