"""An exported module's products of arrays that DLPack describes: fabricated ones, on a GPU that is pretended."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.cupy_on_host import Cupy, Ndarray
from tests.fabricated import module_of
from tests.fake_tensors import DlTensor
from tests.modules import fresh
from tests.pretended_gpu import compute
from tests.recording_driver import recording
from tsm2_tune.generator.problem import Problem

pytestmark = pytest.mark.slow

# Arrays of a library that describes them by DLPack alone, as if the host's memory were a GPU's

CUDA, CPU, MANAGED = 2, 1, 13
READ_ONLY, COPIED = 1, 2  # flags
CODES = {"f": 2, "c": 5, "i": 0, "V": 4}  # V: bfloat16
DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
DESTRUCTOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    _fields_ = (("tensor", DlTensor), ("owner", ctypes.c_void_p), ("deleter", DELETER))


class Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("owner", ctypes.c_void_p), ("deleter", DELETER),
        ("flags", ctypes.c_uint64), ("tensor", DlTensor),
    )  # fmt: skip


class Exported:
    """An array over `held`, of this version of DLPack; `streams` are those that were to wait, `given_back` counts."""

    def __init__(
        self, held: Any, *, version: tuple[int, int] | None = (1, 0), read_only: bool = False, **told: Any
    ) -> None:
        self.held, self.version, self.read_only, self.told = held, version, read_only, told
        self.device, self.streams, self.given_back = "cuda:0", list[int](), 0
        self.dtype = held.dtype

    @property
    def flags(self) -> int:
        return int(self.told.get("flags", READ_ONLY if self.read_only else 0))

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.told.get("device_type", CUDA), 0

    def __dlpack__(self, **asked: Any) -> Any:
        if self.version is None and "max_version" in asked:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        if asked["stream"] in self.told.get("refuses", ()):
            raise BufferError(f"no stream {asked['stream']}")
        self.streams.append(asked["stream"])
        managed = Managed() if self.version is None else Versioned(*self.version, flags=self.flags)
        self._describe(managed.tensor)
        name = b"dltensor" if self.version is None else b"dltensor_versioned"
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        self.kept = managed, name, DESTRUCTOR(self._give_back)
        return new(ctypes.addressof(managed), name, ctypes.cast(self.kept[2], ctypes.c_void_p))

    def _describe(self, tensor: Any) -> None:
        held, size = self.held, self.held.itemsize
        offset = self.told.get("byte_offset", 0)
        tensor.data, tensor.byte_offset = held.ctypes.data - offset, offset
        tensor.device_type, tensor.dimensions, tensor.lanes = self.told.get("device_type", CUDA), held.ndim, 1
        tensor.code, tensor.bits = CODES[held.dtype.kind], 8 * size
        tensor.lanes = self.told.get("lanes", 1)
        self.extents = (ctypes.c_int64 * held.ndim)(*held.shape)
        self.steps = (ctypes.c_int64 * held.ndim)(*[step // size for step in held.strides])
        tensor.shape = self.extents
        if not self.told.get("is_dense"):
            tensor.strides = self.steps

    def _give_back(self, capsule: int | None) -> None:
        self.given_back += 1


class Standard(Exported):
    """The same of a library that follows the array API standard, and makes such arrays itself."""

    def __array_namespace__(self) -> Any:
        def empty(shape: Any, *, dtype: Any, device: Any) -> Standard:
            assert device == self.device
            return Standard(np.full(shape, np.nan, dtype), read_only=self.read_only)

        def permute_dims(array: Standard, axes: tuple[int, ...]) -> Standard:
            return Standard(array.held.transpose(axes), read_only=array.read_only)

        return SimpleNamespace(empty=empty, permute_dims=permute_dims)


# Products

RANDOM = np.random.default_rng(12)
LEGACY = 1  # in DLPack


@pytest.fixture(scope="module")
def of_two_types(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    kinds = ("f32", "nn"), ("f32", "ttt"), ("bf16", "nn")
    return module_of(tmp_path_factory.mktemp("module"), *(Problem(64, 4, 64, dtype, op) for dtype, op in kinds))


@pytest.fixture
def module(of_two_types: ModuleType) -> Iterator[ModuleType]:
    """A module with kernels in f32 and bf16; `streams` are where its products went."""
    with fresh(of_two_types) as module:
        recording(module, streams=compute(module))
        yield module


def numbers(rows: int, columns: int, order: str = "C") -> Any:
    return np.asarray(RANDOM.integers(-4, 5, (rows, columns)), np.float32, order=order)  # type: ignore[call-overload]


def operands(of_b: dict[str, Any] | None = None, of_out: dict[str, Any] | None = None) -> list[Any]:
    """Return a, b and out, of which DLPack tells this."""
    told: list[dict[str, Any]] = [{}, of_b or {}, of_out or {}]
    return [Exported(numbers(*of), **one) for of, one in zip(((30, 20), (20, 3), (30, 3)), told, strict=True)]


@pytest.mark.parametrize(
    "told", [{"version": None}, {"version": (1, 0)}, {"version": (1, 3)}, {"device_type": MANAGED}, {"flags": COPIED}]
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_what_dlpack_describes_is_multiplied(module: ModuleType, told: dict[str, Any], order: str) -> None:
    a, b = (Exported(numbers(*shape, order), **told) for shape in ((30, 20), (20, 3)))
    written = {name: value for name, value in told.items() if name != "version"}
    out = Exported(np.full((30, 3), np.nan, np.float32, order=order), **written)  # type: ignore[call-overload]
    assert module.gemm(a, b, out=out) is out
    np.testing.assert_array_equal(out.held, a.held @ b.held)


def test_offsets_missing_strides_and_bfloat16_are_read(module: ModuleType) -> None:
    a, b = Exported(numbers(30, 20), is_dense=True, byte_offset=64), Exported(numbers(40, 3)[::2])
    out = Exported(numbers(30, 3))
    module.gemm(a, b, out=out)
    np.testing.assert_array_equal(out.held, a.held @ b.held)
    held = [np.full(shape, 0x3F80, np.uint16) for shape in ((30, 20), (20, 3), (30, 3))]  # 1.0
    a, b, out = (Exported(np.asfortranarray(x).view("V2")) for x in held)
    module.gemm(a, b, out=out)
    assert (out.held.view(np.uint16) == 0x41A0).all()  # 20.0


@pytest.mark.parametrize(("stream", "waiting"), [(None, LEGACY), (0, LEGACY), (77, 77)])
def test_the_products_stream_waits_and_every_capsule_is_given_back(
    module: ModuleType, stream: int | None, waiting: int
) -> None:
    arrays = operands()
    module.gemm(arrays[0], arrays[1], out=arrays[2], stream=stream)
    assert module.streams == [stream or 0]
    assert [x.streams[-1] for x in arrays] == 3 * [waiting]
    assert [x.given_back for x in arrays] == [len(x.streams) for x in arrays] == [2, 2, 2]
    a, b, out = operands({"refuses": [78]})
    with pytest.raises(RuntimeError, match=r"^b: its __dlpack__ synchronizes no stream: no stream 78$"):
        module.gemm(a, b, out=out, stream=78)
    assert len(module.streams) == 1


@pytest.mark.parametrize("others", [0, 1, 2])
def test_arrays_of_two_libraries_use_the_stream_of_outs(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """A product without a kernel is refused."""
    cupy = Cupy()
    cupy.cuda.get_current_stream = lambda number: SimpleNamespace(ptr=78)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    held = [numbers(*shape) for shape in ((30, 20), (20, 3), (30, 3))]
    a, b, out = (Exported(x) if at == others else Ndarray(x) for at, x in enumerate(held))
    for _ in range(2):
        module.gemm(a, b, out=out)
    assert module.streams == [0 if others == 2 else 78] * 2
    assert (a, b, out)[others].streams[-1] == (LEGACY if others == 2 else 78)  # type: ignore[union-attr]
    np.testing.assert_array_equal(out.held, a.held @ b.held)
    wide = [x.astype(np.float64) for x in held]
    with pytest.raises(LookupError, match=r"^no f64 kernel tuned on a GPU is in this module"):
        module.gemm(*(Exported(x) if at == others else Ndarray(x) for at, x in enumerate(wide)))
    assert cupy.multiplied == 0


def test_arrays_are_held_until_their_product_is_done(module: ModuleType) -> None:
    """Otherwise their library may reuse the memory on another stream. A graph's arrays are its user's."""
    driver, done = module.cuda(), set[int]()
    driver.cuEventQuery = lambda event: 0 if event.value in done else 600
    out = Exported(numbers(30, 3))

    def multiply() -> list[Any]:
        a, b = Exported(numbers(30, 20)), Exported(numbers(20, 3))
        module.gemm(a, b, out=out, stream=77)
        assert driver.calls[-1] == "pop"
        return [weakref.ref(x) for x in (a, b)]

    first, second = multiply(), multiply()
    assert "event on 77" in driver.calls
    gc.collect()
    assert all(one() is not None for one in (*first, *second))
    done.update(list(driver.events)[:1])
    third = multiply()
    gc.collect()
    assert [one() is None for one in (*first, *second, *third)] == [True, True, False, False, False, False]
    assert not done & set(driver.events)
    before = len(driver.events)
    driver.capturing.add(77)
    multiply()
    assert len(driver.events) == before


# Refusals


REFUSED: list[tuple[Any, dict[str, Any], str]] = [  # of a
    (np.float32, {"version": (2, 0)}, r"memory address cannot be read: its DLPack has version 2\.0, expected 1"),
    (np.int32, {}, r"expected one of .*, got int32"),
    (np.float32, {"lanes": 2}, r"expected one of .*, got \|V8"),
    (np.float32, {"device_type": CPU}, r"expected a device array \(with .* or __dlpack__\)"),
    (np.float32, {"refuses": [LEGACY]}, r"a Exported whose memory address cannot be read: no stream 1"),
]


def test_what_is_refused(module: ModuleType) -> None:
    for dtype, told, message in REFUSED:
        array = Exported(numbers(30, 20).astype(dtype), **told)
        with pytest.raises(TypeError, match=f"^a: .*{message}"):
            module.gemm(array, Exported(numbers(20, 3)), out=Exported(numbers(30, 3)))
    for is_out in ({"version": None}, {"read_only": True}, {"flags": READ_ONLY | COPIED}):
        a, b, out = operands(of_out=is_out)
        with pytest.raises(ValueError, match=r"^out: it is read-only, or does not say otherwise$"):
            module.gemm(a, b, out=out)
    assert module.streams == []


# New arrays


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_result_is_of_the_callers_library(module: ModuleType, order: str) -> None:
    a, b = (Standard(numbers(*shape, order)) for shape in ((30, 20), (20, 3)))
    found = module.gemm(a, b)
    assert type(found) is Standard
    assert found.held.flags.f_contiguous == (order == "F")
    np.testing.assert_array_equal(found.held, a.held @ b.held)
    vector = module.gemm(a, Standard(numbers(20, 1)[:, 0]))
    assert vector.held.shape == (30,)
    with pytest.raises(RuntimeError, match=r"^a Exported creates no array for the result: pass out"):
        module.gemm(*operands()[:2])
    with pytest.raises(TypeError, match=r"^a: a Standard creates no writable array: pass out$"):
        module.gemm(Standard(numbers(30, 20), read_only=True), Standard(numbers(20, 3)))


class Jaxs(Exported):
    """An array of JAX's, which has the other interface too, and blocks the host for it."""

    @property
    def __cuda_array_interface__(self) -> Any:
        raise AssertionError("it was asked by the other interface")


def test_nothing_but_jax_writes_its_arrays(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(Array=Jaxs))
    a, b = Jaxs(numbers(30, 20), version=None), Jaxs(numbers(20, 3), version=None)
    with pytest.raises(TypeError, match=r"^a: only JAX can write JAX's arrays: call this module's jax\.matmul"):
        module.gemm(a, b)
    with pytest.raises(ValueError, match=r"^out: it is read-only"):
        module.gemm(a, b, out=Jaxs(numbers(30, 3), version=None))
    out = Exported(numbers(30, 3))
    module.gemm(a, b, out=out)
    np.testing.assert_array_equal(out.held, a.held @ b.held)
