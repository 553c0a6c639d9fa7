"""An exported module refuses what it cannot multiply, in a sentence; what its factors may be, 0 among them."""

from __future__ import annotations

import shutil
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.call_log import logged
from tests.fabricated import device_array
from tests.fake_tensors import Masked, Tensor, conjugate, matrix
from tests.library_arrays import GPUArray, array_of
from tests.modules import OUT, A, B

PLACES = {"a": 0x1000, "b": 0x2000, "out": 0x3000}
SHAPES = {"a": (6, 3), "b": (3, 2), "out": (6, 2)}
KINDS = ("interface", "torch", "cupy", "pycuda")


def described(name: str, **changes: Any) -> SimpleNamespace:
    """Return a description of a, b or out: column-major in float32 but for the changes."""
    told: dict[str, Any] = {"shape": SHAPES[name], "at": PLACES[name]} | changes
    return device_array(told.pop("shape"), told.pop("strides", ...), **told)


def operands(kind: str, **changes: dict[str, Any]) -> dict[str, Any]:
    return {name: array_of(kind, described(name, **changes.get(name, {}))) for name in PLACES}


def check_refused(module: ModuleType, kind: str, error: type[Exception], sentence: str, **changes: Any) -> None:
    """A call with the changes is refused before a product of such arrays and after it, and starts nothing."""
    given = operands(kind)
    for _ in range(2):
        with pytest.raises(error, match=sentence):
            module.gemm(**given | changes)
        module.gemm(**given)
    assert len(module.driver.launches) == 2


@pytest.fixture(autouse=True)
def libraries(torch: Any, cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycuda.gpuarray", SimpleNamespace(GPUArray=GPUArray))


CONTIGUOUS = "^a: expected a 6x3 matrix whose columns or rows are contiguous"
OF_DRIVER = ("interface", "pycuda")  # libraries whose context the driver tells
ARRAYS: list[tuple[tuple[str, ...], str, dict[str, Any], type[Exception], str]] = [
    (KINDS, "a", {"strides": (8, 48)}, ValueError, CONTIGUOUS + (
        r", with strides \(4, at least 24\) or \(at least 12, 4\) bytes, got \(8, 48\): pass a contiguous copy$"
    )),
    *((KINDS, "a", {"strides": strides}, ValueError, CONTIGUOUS) for strides in ((4, 20), (8, 4), (4, 0), (4, -24))),
    (KINDS, "b", {"at": 0x2002}, ValueError, "^b: its address is not a multiple of 4 bytes"),
    (KINDS, "b", {"shape": (4, 2)}, ValueError, "^b: expected 3 rows, as a has columns, got 4x2"),
    (KINDS, "b", {"typestr": "<f8", "strides": (8, 24)}, TypeError, "^b: expected float32 as a, got float64"),
    (KINDS, "out", {"shape": (6, 3)}, ValueError, "^out: expected 6x2, got 6x3"),
    # The first and the last element of a and of b, and the last of out's gap.
    *((KINDS, "out", {"at": at}, ValueError, "^out: it shares memory with a, which the kernel still reads")
      for at in (0x1008, 0x1000 - 44, 0x1000 + 68)),
    *((KINDS, "out", {"at": at}, ValueError, "^out: it shares memory with b")
      for at in (0x2008, 0x2000 - 44, 0x2000 + 20)),
    (OF_DRIVER, "b", {"at": 0x20000}, ValueError, "its address 0x20000 is not memory of a CUDA "),
    (OF_DRIVER, "b", {"at": 0x8000}, ValueError, "b and a are in different CUDA "),
    *((("interface", "torch", "pycuda"), name, {"at": 0}, TypeError, f"^{name}: it has no memory of its own")
      for name in PLACES),
    *((("interface",), *row) for row in (
        ("a", {"strides": (4, 26)}, ValueError, CONTIGUOUS),
        ("a", {"strides": (14, 4)}, ValueError, CONTIGUOUS),
        ("a", {"shape": (6,)}, ValueError, r"^a: expected a matrix.*\(6,\)"),
        ("a", {"typestr": "<i4"}, TypeError, "^a: expected one of float32, float64, .*float16, got int32"),
        ("a", {"typestr": ">f4"}, TypeError, "^a: expected one of float32, float64"),
        ("a", {"mask": object()}, TypeError, "^a: masked arrays are not supported"),
        ("out", {"data": (0x3000, True)}, ValueError, "^out: it is read-only"),
        ("out", {"at": 0x1FD4, "strides": (8, 4)}, ValueError, "^out: it shares memory with b"),
    )),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name", "changes", "error", "sentence"), [(kind, *row) for kinds, *row in ARRAYS for kind in kinds]
)
def test_arrays_that_are_refused(
    module: ModuleType, kind: str, name: str, changes: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    module.driver.owner = lambda address: 0xD0 if address == 0x8000 else 0xC0  # another context's memory
    check_refused(module, kind, error, sentence, **{name: array_of(kind, described(name, **changes))})


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        *(({"typestr": typestr}, "a text as typestr") for typestr in (None, 4, ["<f4"])),
        *(({"shape": shape}, "whole numbers from 0 on as shape") for shape in (None, 6, (6.0, 3), (-6, 3), ("6", 3))),
        *(({"strides": strides}, "whole numbers as strides") for strides in (4, (4.0, 24), (None, 24))),
        *(
            ({"data": data}, "an address and whether it is read-only as data")
            for data in (None, 4096, (4096,), ("a", False), (-16, False), (2**64 + 16, False), (4096.0, False))
        ),
        *(({"stream": stream}, "a handle or None as stream") for stream in ("x", -1, 1.0)),
    ],
)
def test_an_array_that_is_described_wrongly_is_named(
    module: ModuleType, name: str, changes: dict[str, Any], expected: str
) -> None:
    given = operands("interface")
    given[name].__cuda_array_interface__ |= changes
    with pytest.raises(TypeError, match=f"^{name}: its __cuda_array_interface__ is not one: expected {expected}$"):
        module.gemm(**given)


class Deleted:
    @property
    def __cuda_array_interface__(self) -> Any:
        raise RuntimeError("Array has been deleted")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("changes", "error", "sentence"),
    [
        ({"b": None}, TypeError, "^b: expected a device array"),
        ({"a": [[1.0]]}, TypeError, "^a: expected a device array .* got list"),
        ({"b": np.ones((3, 2), np.float32)}, TypeError, "^a and b: one is a NumPy array"),
        ({"b": Tensor(None)}, TypeError, "^b: expected a device array .* got Tensor"),  # a CPU's, or a meta tensor
        *(
            ({"a": SimpleNamespace(__cuda_array_interface__=x)}, TypeError, "^a: its .* is not one: expected typestr")
            for x in (5, {}, {"shape": (4, 4), "typestr": "<f4"}, "typestr shape data")
        ),
        ({"a": Deleted()}, TypeError, "^a: a Deleted whose memory address cannot be read: Array has been deleted$"),
        ({"alpha": 1e300}, ValueError, "^alpha: too large for float32"),
        ({"alpha": 10**40}, ValueError, "^alpha: too large for float32"),
        ({"alpha": None, "beta": 10**400}, ValueError, "^beta: too large for float32"),
        ({"alpha": "1"}, TypeError, "^alpha: expected a real number, got str"),
        ({"beta": 1j}, TypeError, "^beta: expected a real number, got complex"),
        ({"beta": 2, "out": None}, ValueError, "^beta = 2: pass the matrix that it scales as out"),
        ({"stream": "default"}, TypeError, "^stream: expected a stream, its handle or None, got str"),
        *(({"stream": x}, ValueError, f"^stream: {x} is not a stream's handle: expected 0 to") for x in (-1, 2**64)),
        ({"fallback": "cublas"}, ValueError, "^fallback: expected 'vendor' or 'error', got 'cublas'"),
        *(
            ({"math": x}, ValueError, "^math: expected None, or tf32 of float32, or 3xtf32")
            for x in ("bf16", ["tf32"])
        ),
    ],
)
def test_arguments_that_are_refused(
    module: ModuleType, kind: str, changes: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    check_refused(module, kind, error, sentence, **changes)


# Tensors that are more than their memory


@pytest.mark.parametrize(
    ("tensor", "sentence"),
    [
        (lambda x: Tensor(x, is_neg=lambda: True), r"has its negative bit set: pass {}\.resolve_neg\(\)"),
        (lambda x: Tensor(x, requires_grad=True), r"requires a gradient.*: pass {}\.detach\(\)"),
        (lambda x: Tensor(None, layout=object()), r"is sparse: pass {}\.to_dense\(\)"),
        (lambda x: Tensor(None, is_nested=True), r"is nested: pass {}\.to_padded_tensor\(0\)"),
        (lambda x: Tensor(x, is_quantized=True), r"is quantised: pass {}\.dequantize\(\)"),
        (Masked, r"is of a subclass.*: pass {}\.as_subclass\(torch\.Tensor\)"),
    ],
)
@pytest.mark.parametrize("name", PLACES)
def test_a_tensor_that_is_more_than_its_memory(module: ModuleType, name: str, tensor: Any, sentence: str) -> None:
    wrong = tensor(described(name))
    if not wrong.is_quantized:  # which has a type of its own
        wrong.dtype = array_of("torch", described(name)).dtype
    check_refused(module, "torch", TypeError, f"^{name}: it {sentence.format(name)}", **{name: wrong})


def test_conjugates_without_a_kernel_and_as_out_are_refused(module: ModuleType) -> None:
    a, b, out = matrix(6, 3), matrix(3, 2, at=0x2000), matrix(6, 2, at=0x3000)
    with pytest.raises(ValueError, match=r"a conjugated: this module has no c64 kernel for that.* tune with --op jn"):
        module.gemm(conjugate(a), Tensor(b), out=Tensor(out), fallback="error")
    with pytest.raises(TypeError, match=r"^out: its conjugate bit is set, and no kernel writes conjugates"):
        module.gemm(Tensor(a), Tensor(b), out=conjugate(out))
    assert module.driver.launches == []


# NumPy's arrays


READ_ONLY = np.zeros((6, 2), order="F")
READ_ONLY.flags.writeable = False
WHOLE = np.ones((6, 6), order="F")


@pytest.mark.parametrize(
    ("changes", "error", "sentence"),
    [
        ({"a": np.ma.masked_array(np.ones((6, 3)))}, TypeError, "a: masked arrays are not supported"),
        ({"a": np.ones((6, 3), order="F")[::-1]}, ValueError, "a: .*pass a contiguous copy"),
        ({"out": np.lib.stride_tricks.as_strided(np.zeros(6), (6, 2), (8, 0))}, ValueError, "out: .*contiguous copy"),
        ({"out": READ_ONLY}, ValueError, "out: it is read-only"),
        ({"a": np.ones((6, 3), ">f8", order="F")}, TypeError, "a: expected one of float32"),
        ({"a": WHOLE[:, :3], "out": WHOLE[:, 2:4]}, ValueError, "out: it shares memory with a"),
        ({"stream": 0}, TypeError, "stream: NumPy arrays have none"),
    ],
)
def test_arrays_of_numpy_that_are_refused(
    host_module: ModuleType, changes: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    given = {"a": np.ones((6, 3), order="F"), "b": np.ones((3, 2), order="F"), "out": np.zeros((6, 2), order="F")}
    with pytest.raises(error, match=f"^{sentence}"):
        host_module.gemm(**given | changes)


# Factors: at alpha = 0 a product is beta C, as of BLAS, and what A and B hold is not read


@pytest.fixture
def zeroed(splitting: ModuleType) -> list[list[int]]:
    """The memory that the driver was asked to fill, and with which value."""
    found = list[list[int]]()
    splitting.driver.cuMemsetD2D8Async = lambda *given: logged(found, [one.value for one in given], 0)
    return found


@pytest.mark.parametrize("alpha", [0, 0.0, -0.0, np.float32(0), np.zeros(())])
def test_without_a_library_the_driver_writes_zeros(splitting: Any, zeroed: list[list[int]], alpha: Any) -> None:
    assert splitting.gemm(A, B, out=OUT, alpha=alpha) is OUT
    splitting.plan(A, B, OUT, alpha=alpha, stream=7)()
    # Address, bytes between columns, value, bytes of a column, columns, stream.
    assert zeroed == [[0x3000, 32, 0, 24, 2, None], [0x3000, 32, 0, 24, 2, 7]]
    assert splitting.gemm(A, B, out=OUT, alpha=alpha, beta=1) is OUT
    assert (splitting.driver.launches, len(zeroed)) == ([], 2)
    with pytest.raises(ValueError, match=r"^alpha = 0 needs a beta of 0 or 1 with arrays that are not all of"):
        splitting.gemm(A, B, out=OUT, alpha=alpha, beta=0.5)
    with pytest.raises(ValueError, match=r"^alpha = 0 needs an out with arrays"):
        splitting.gemm(A, B, alpha=alpha)
    splitting.gemm(A, B, out=OUT, alpha=alpha, math="minplus")  # here alpha is an addend
    assert len(splitting.driver.launches) == 1


@pytest.mark.usefixtures("torch")
def test_later_calls_do_not_read_a_and_b_either(splitting: Any) -> None:
    scaled = list[Any]()
    splitting.vendors_product = lambda *arguments: scaled.append(arguments[3:5])
    for alpha in (None, 2.0, 0.0, 0, 2.0):
        splitting.gemm(*(array_of("torch", one) for one in (A, B, OUT)), alpha=alpha, beta=0.5)
    assert scaled == [(0, 0.5)] * 2
    assert len(splitting.driver.launches) == 3


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
@pytest.mark.parametrize("beta", [0, 0.5])
def test_on_the_host_a_nan_does_not_reach_out(host_module: ModuleType, beta: float) -> None:
    given = ((6, 3), np.nan), ((3, 2), np.nan), ((6, 2), 4.0)
    a, b, out = (np.full(shape, value, order="F") for shape, value in given)
    assert (host_module.gemm(a, b, out=out, alpha=0, beta=beta) == 4 * beta).all()


def scalar(device: str, *, requires_grad: bool = False) -> Any:
    where = SimpleNamespace(type=device)
    return Tensor(None, ndim=0, device=where, requires_grad=requires_grad, item=lambda: 2.0)


@pytest.mark.parametrize(
    "factor", [2, np.float64(2), np.float16(2), np.array(2.0), np.array(2), np.array(2, "f4"), scalar("cpu")]
)
@pytest.mark.usefixtures("torch")
def test_a_number_in_host_memory_is_a_factor(splitting: ModuleType, factor: Any) -> None:
    splitting.gemm(A, B, out=OUT, alpha=factor, beta=factor)
    splitting.plan(A, B, OUT, alpha=factor, beta=factor)()
    for launch in splitting.driver.launches:
        assert (launch["values"][3], launch["values"][8]) == (2.0, 2.0)


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        *(
            (x, "expected a real number")
            for x in (np.ones(1), np.ones((1, 1)), [2.0], "2", np.array("2"), np.array(2j))
        ),
        (scalar("cuda"), r"it is in a device's memory, .* wait for the device: pass (alpha|beta)\.item\(\)$"),
        (scalar("cpu", requires_grad=True), "it requires a gradient, which kernels do not compute"),
    ],
)
@pytest.mark.usefixtures("torch")
def test_anything_else_is_no_factor(splitting: ModuleType, factor: Any, said: str) -> None:
    for name in ("alpha", "beta"):
        for function in (splitting.gemm, splitting.plan):
            with pytest.raises(TypeError, match=f"^{name}: {said}"):
                function(A, B, OUT, **{name: factor})


def test_managed_memory_is_of_the_gpu_and_memory_of_the_host_is_not(splitting: ModuleType) -> None:
    def attribute(value: Any, attribute: int, address: Any) -> int:
        value._obj.value = {8: 1, 9: -2}.get(attribute, 0)
        return 0

    splitting.driver.cuPointerGetAttribute = attribute
    splitting.gemm(A, B, out=OUT)
    assert len(splitting.driver.launches) == 1
    splitting.driver.cuPointerGetAttribute = lambda value, attribute, address: 0 if attribute == 8 else 1
    with pytest.raises(ValueError, match="a: its address 0x1000 is not memory of a CUDA device"):
        splitting.gemm(A, B, out=OUT)
