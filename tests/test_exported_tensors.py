"""Tensors that are more than their memory: what a bit, a layout or a gradient says is honoured or refused."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.fabricated import device_array
from tests.fake_tensors import Cupy, Masked, Parameter, Tensor, conjugate, f32, matrix
from tests.modules import launched_on

# The conjugate bit


@pytest.mark.parametrize(
    ("bits", "asked", "op"),
    [
        ("", {}, "tn"),
        ("a", {}, "cn"),
        ("a", {"conj_a": True}, "tn"),  # the conjugate of a conjugate
        ("", {"conj_a": True}, "cn"),
        ("ab", {}, "cc"),
        ("ab", {"conj_b": True}, "ct"),
    ],
)
def test_the_conjugate_bit_is_the_ops(
    module: ModuleType, torch: Any, bits: str, asked: dict[str, bool], op: str
) -> None:
    a, b = matrix(6, 3, "C"), matrix(3, 2, "C" if "b" in bits else "F", at=0x2000)
    tensors = [conjugate(x) if name in bits else Tensor(x) for name, x in (("a", a), ("b", b))]
    assert module.choice(*tensors, **asked).winner.op == op


def test_a_conjugate_without_a_kernel_for_it_is_refused(module: ModuleType, torch: Any) -> None:
    a, b = conjugate(matrix(6, 3)), Tensor(matrix(3, 2, at=0x2000))
    with pytest.raises(ValueError, match=r"a conjugated: this module has no c64 kernel for that.* tune with --op jn"):
        module.gemm(a, b, out=Tensor(matrix(6, 2, at=0x3000)), fallback="error")


def test_a_matrix_and_its_conjugate_transpose_are_one(module: ModuleType, torch: Any) -> None:
    x = matrix(3, 64)  # x.mH is row-major in the same memory
    across = device_array((64, 3), (24, 8), typestr="<c8")
    assert module.choice(conjugate(across), Tensor(x)).winner.op == "cx"
    assert module.choice(Tensor(across), Tensor(x)).winner.op == "tx"


def test_an_out_to_be_conjugated_is_refused(module: ModuleType, torch: Any) -> None:
    with pytest.raises(TypeError, match=r"^out: its conjugate bit is set, and no kernel writes conjugates"):
        module.gemm(Tensor(matrix(6, 3)), Tensor(matrix(3, 2, at=0x2000)), out=conjugate(matrix(6, 2, at=0x3000)))
    assert module.driver.launches == []


# Refusals


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (lambda x: Tensor(x, is_neg=lambda: True), r"has its negative bit set: pass {}\.resolve_neg\(\)"),
        (lambda x: Tensor(x, requires_grad=True), r"requires a gradient.*: pass {}\.detach\(\)"),
        (lambda x: Tensor(None, layout=object()), r"is sparse: pass {}\.to_dense\(\)"),
        (lambda x: Tensor(None, is_nested=True), r"is nested: pass {}\.to_padded_tensor\(0\)"),
        (lambda x: Tensor(x, is_quantized=True), r"is quantised: pass {}\.dequantize\(\)"),
        (lambda x: Masked(x), r"is of a subclass.*: pass {}\.as_subclass\(torch\.Tensor\)"),
    ],
)
@pytest.mark.parametrize("name", ["a", "b", "out"])
def test_a_tensor_that_is_more_than_its_memory(
    module: ModuleType, torch: Any, name: str, tensor: Any, message: str
) -> None:
    given = {"a": matrix(6, 3), "b": matrix(3, 2, at=0x2000), "out": matrix(6, 2, at=0x3000)}
    with pytest.raises(TypeError, match=f"^{name}: it {message.format(name)}"):
        module.gemm(**{other: tensor(x) if other == name else Tensor(x) for other, x in given.items()})
    assert module.driver.launches == []


def test_a_tensor_at_no_address_is_refused(module: ModuleType, torch: Any) -> None:
    arrays = [Tensor(matrix(6, 3)), Tensor(matrix(3, 2, at=0x2000)), Tensor(matrix(6, 2, at=0x3000))]
    nowhere = [Tensor(matrix(6, 3, at=0)), Tensor(matrix(3, 2, at=0)), Tensor(matrix(6, 2, at=0))]
    for _ in range(2):  # before such a product was started, and after it
        for at, name in enumerate(("a", "b", "out")):
            with pytest.raises(TypeError, match=f"^{name}: it has no memory of its own"):
                module.gemm(*arrays[:at], nowhere[at], *arrays[at + 1 :])
        module.gemm(*arrays)
    assert len(module.driver.launches) == 2


def test_a_parameter_is_a_tensor(module: ModuleType, torch: Any) -> None:
    arrays = (matrix(6, 3), matrix(3, 2, at=0x2000), matrix(6, 2, at=0x3000))
    module.gemm(*map(Parameter, arrays))
    assert len(module.driver.launches) == 1


def test_tensors_without_device_memory_are_refused(module: ModuleType, torch: Any) -> None:
    with pytest.raises(TypeError, match=r"^a: expected a device array .* got Tensor"):  # a CPU's, or a meta tensor
        module.gemm(Tensor(None), Tensor(None))


def test_an_array_that_does_not_tell_its_memory(module: ModuleType) -> None:
    class Deleted:
        @property
        def __cuda_array_interface__(self) -> Any:
            raise RuntimeError("Array has been deleted")

    with pytest.raises(
        TypeError, match=r"^a: a Deleted whose memory address cannot be read: Array has been deleted$"
    ):
        module.gemm(Deleted(), Deleted())


# The current stream


def test_the_launch_goes_to_pytorchscurrent_stream(module: ModuleType, torch: Any) -> None:
    arrays = [Tensor(f32(at), dtype="torch.float32") for at in (0x1000, 0x2000, 0x3000)]
    torch.stream = 77
    assert launched_on(module, *arrays) == (77, [])
    assert launched_on(module, *arrays, stream=78) == (78, [])
    assert launched_on(module, *arrays, stream=0) == (None, [])  # the default stream, where it is asked for
    torch.stream = 0
    assert launched_on(module, *arrays) == (None, [])


def test_the_launch_goes_to_cupys_current_stream_of_the_arrays_device(module: ModuleType, cupy: Any) -> None:
    cupy.streams = {0: 5, 1: 77}
    arrays = [Cupy(f32(at, stream=77), 1) for at in (0x1000, 0x2000, 0x3000)]
    assert launched_on(module, *arrays) == (77, [])


def test_without_such_a_library_it_is_the_default_stream(module: ModuleType) -> None:
    assert launched_on(module, *map(f32, (0x1000, 0x2000, 0x3000))) == (None, [])


def test_what_another_library_is_at_is_waited_for(module: ModuleType, torch: Any) -> None:
    torch.stream = 77
    module.driver.owner = lambda address: 0xAA  # the context that libraries share
    of_torch = [Tensor(f32(at), dtype="torch.float32") for at in (0x1000, 0x2000, 0x3000)]
    assert launched_on(module, of_torch[0], of_torch[1], f32(0x4000)) == (None, ["wait for 77"])
    module.driver.calls.clear()
    assert launched_on(module, f32(0x4000, stream=5), f32(0x5000, stream=5), of_torch[2]) == (77, ["wait for 5"])


def test_a_new_out_is_a_tensor_of_the_stream_that_a_is_at(module: ModuleType, torch: Any) -> None:
    torch.stream = 77
    a, b = (Tensor(f32(at), dtype="torch.float32") for at in (0x1000, 0x2000))
    for turn in range(3):
        assert module.gemm(a, b) is torch.made[-1]
        assert (module.driver.launches[-1]["stream"], len(torch.made)) == (77, turn + 1)
    assert torch.made[-1].shape == (4, 4)


# The short way of products that were started before


def tensors(*at: int, **changes: Any) -> list[Tensor]:
    return [Tensor(f32(one), **{"dtype": "torch.float32", **changes}) for one in at]


def test_the_second_product_takes_the_short_way(module: ModuleType, torch: Any, long_products: list[Any]) -> None:
    a, b, out = tensors(0x1000, 0x2000, 0x3000)
    assert all(module.gemm(a, b, out=out, alpha=2) is out for _ in range(3))
    others = tensors(0x4000, 0x5000, 0x6000)
    assert module.gemm(*others) is others[2]
    assert module.gemm(*others, alpha=0.5, beta=-1.0, stream=78) is others[2]
    assert module.gemm(a, b, out=out) is out
    assert len(long_products) == 1
    launches = module.driver.launches
    assert [one["values"] for one in launches[:3]] == [[4, 4, 4, 2.0, 0x1000, 4, 0x2000, 4, 0.0, 0x3000, 4]] * 3
    assert launches[3]["values"] == [4, 4, 4, 1.0, 0x4000, 4, 0x5000, 4, 0.0, 0x6000, 4]
    assert launches[4]["values"] == [4, 4, 4, 0.5, 0x4000, 4, 0x5000, 4, -1.0, 0x6000, 4]
    assert (launches[4]["stream"], launches[5]["values"]) == (
        78,
        [*launches[0]["values"][:3], 1.0, *launches[0]["values"][4:]],
    )


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda a, b, out: (a, b, Tensor(f32(0x1008), dtype="torch.float32")), ValueError, "shares memory with a"),
        (lambda a, b, out: (a, b, Tensor(f32(0x2008), dtype="torch.float32")), ValueError, "shares memory with b"),
        (
            lambda a, b, out: (a, Tensor(f32(0x2000), dtype="torch.float32", requires_grad=True), out),
            TypeError,
            "gradient",
        ),
        (
            lambda a, b, out: (Tensor(f32(0x1000), dtype="torch.float32", is_neg=lambda: True), b, out),
            TypeError,
            "negative bit",
        ),
        (lambda a, b, out: (a, Masked(f32(0x2000), dtype="torch.float32"), out), TypeError, "subclass"),
        (lambda a, b, out: (a, None, out), TypeError, "expected a device array"),
        (lambda a, b, out: (a, np.ones((4, 4), np.float32), out), TypeError, "one is a NumPy array"),
    ],
)
def test_what_is_refused_is_refused_on_the_short_way_too(
    module: ModuleType, torch: Any, long_products: list[Any], change: Any, error: type[Exception], message: str
) -> None:
    arrays = tensors(0x1000, 0x2000, 0x3000)
    module.gemm(*arrays)
    with pytest.raises(error, match=message):
        module.gemm(*change(*arrays))
    assert len(module.driver.launches) == 1


@pytest.mark.parametrize(
    "factors", [{"alpha": 1e300}, {"beta": "1"}, {"alpha": 1j}, {"alpha": None, "beta": 10**400}]
)
def test_factors_are_looked_at_on_the_short_way_too(
    module: ModuleType, torch: Any, long_products: list[Any], factors: dict[str, Any]
) -> None:
    arrays = tensors(0x1000, 0x2000, 0x3000)
    module.gemm(*arrays)
    with pytest.raises((TypeError, ValueError), match=r"^(alpha|beta): (too large|expected)"):
        module.gemm(*arrays, **factors)
    assert len(module.driver.launches) == 1


def test_another_conjugate_bit_is_another_product(module: ModuleType, torch: Any, long_products: list[Any]) -> None:
    a, b, out = matrix(6, 3, "C"), matrix(3, 2, at=0x2000), matrix(6, 2, at=0x3000)
    for described in (Tensor(a), conjugate(a), Tensor(a), conjugate(a)):
        module.gemm(described, Tensor(b), out=Tensor(out))
    assert len(long_products) == 2


def test_the_second_product_of_cupys_arrays_takes_the_short_way(
    module: ModuleType, cupy: Any, long_products: list[Any]
) -> None:
    def rows(m: int, n: int, at: int, pad: int = 0) -> Cupy:
        return Cupy(device_array((m, n), (4 * (n + pad), 4), at=at))

    cupy.streams[0] = 77
    for turn in range(2):
        for pads in ((0, 0, 0), (5, 0, 0), (0, 5, 0), (0, 0, 5), (5, 6, 7)):
            a, b, out = rows(6, 3, 0x1000, pads[0]), rows(3, 2, 0x2000, pads[1]), rows(6, 2, 0x3000, pads[2])
            assert module.gemm(a, b, out=out) is out
            launch = module.driver.launches[-1]
            assert [launch["values"][at] for at in (5, 7, 10)] == [3 + pads[0], 2 + pads[1], 2 + pads[2]]
            assert launch["stream"] == 77
        assert module.gemm(a, b) is cupy.made[turn]
        assert len(long_products) == 6
    with pytest.raises(ValueError, match="shares memory"):
        module.gemm(a, b, out=rows(6, 2, 0x1008))
    with pytest.raises(ValueError, match="expected 3 rows"):
        module.gemm(a, rows(4, 2, 0x2000), out=out)


def test_a_primary_context_stays_current_in_a_thread_without_one(module: ModuleType, torch: Any) -> None:
    primary, driver = 0xAA, module.driver
    arrays = tensors(0x1000, 0x2000, 0x3000)
    module.gemm(*arrays)
    assert (driver.current, driver.pushed) == (primary, [])
    driver.current = other = 0xBB
    module.gemm(*arrays)
    assert driver.current == other
    driver.current = None
    module.gemm(*map(f32, (0x1000, 0x2000, 0x3000)))  # their context is not the primary one
    assert driver.current is None


def test_a_plan_starts_the_same_arrays(module: ModuleType, torch: Any) -> None:
    a, b, out = tensors(0x1000, 0x2000, 0x3000)
    start = module.plan(a, b, out, alpha=3, beta=0.5)
    assert module.driver.launches == []
    torch.stream = 77
    assert start() is out
    torch.stream = 78
    assert start() is out
    assert [one["stream"] for one in module.driver.launches] == [77, 78]
    assert module.driver.launches[1]["values"] == [4, 4, 4, 3.0, 0x1000, 4, 0x2000, 4, 0.5, 0x3000, 4]
    assert start.match.winner.op == "nn"
    module.plan(a, b, out, stream=5)()
    assert module.driver.launches[2]["stream"] == 5
    with pytest.raises(TypeError, match="a plan needs an out, and a, b and out in a GPU's memory"):
        module.plan(a, b, None)


def test_no_library_is_imported_for_a_stream(module_of_all: ModuleType) -> None:
    before = {name for name in ("torch", "cupy") if name in sys.modules}
    assert module_of_all.current_stream(f32(0x1000)) is None
    assert {name for name in ("torch", "cupy") if name in sys.modules} == before
