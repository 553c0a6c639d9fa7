"""Products and plans with `measure`: what computes the product after the first one was timed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from tests.call_log import logged
from tests.fabricated import device_array
from tests.fake_tensors import Cupy, Tensor, fake_cupy
from tests.measured_plans.helpers import K, M, N, arrays, contenders, launch_of, started, tensors
from tests.threads_on_gpu import in_threads

# Choices


def test_a_kernel_for_the_transposed_product_may_be_the_plan(module: ModuleType) -> None:
    wide = arrays(16, 2 * 10**6, 16)  # whose tall row-major transpose is in the same memory
    transposed = [one for one in contenders(module, *wide) if one.is_transposed]
    assert [one.winner.op for one in transposed] == ["ttt", "ttt"]
    module.driver.takes_us = lambda launch: 1.0 if launch["grid"][0] == transposed[0].launch.splits else 1000.0
    start = module.plan(*wide, measure=True)
    start()
    values = module.driver.launches[-1]["values"]
    assert start.match.is_transposed
    assert values[:3] + [values[at] >> 40 for at in (4, 6, 9)] == [2 * 10**6, 16, 16, 2, 1, 3]


@pytest.mark.parametrize("is_plan", [True, False])
def test_the_fastest_launch_computes_the_product(module: ModuleType, torch: SimpleNamespace, is_plan: bool) -> None:
    """A launch that is far behind is timed twice, the others seven times. Without `measure` nothing changes."""
    (a, b, out), driver = tensors(), module.driver
    expected = module.choice(a, b, out, fallback="error")
    ways = [launch_of(way) for way in contenders(module, a, b, out)]
    for wanted in ways:  # each in its turn is the fastest
        driver.takes_us = lambda launch, wanted=wanted: 100.0 if started(launch) == wanted else 200.0
        for kept in (module.plans, module.decided, driver.launches):
            kept.clear()
        start: Any
        if is_plan:
            start = module.plan(a, b, out, measure=True)
            assert str(start.match).endswith(
                ": timed on these arrays, with the L2 dirty 100.0 us, the vendor 1000000.0 us"
            )
        else:
            start = lambda: module.gemm(a, b, out=out, measure=True, alpha=2.0)  # noqa: E731
            assert module.gemm(a, b, out=out, measure=True) is out
            assert started(driver.launches.pop()) == wanted
        tried = [started(one) for one in driver.launches]
        assert {one: tried.count(one) for one in ways} == dict.fromkeys(ways, 1 + 2) | {wanted: 1 + 7}
        for _ in range(2):
            count = len(driver.launches)
            assert start() is out
            assert [started(one) for one in driver.launches[count:]] == [wanted]
        module.gemm(a, b, out=out)
        assert started(driver.launches[-1]) == launch_of(expected)


def test_only_kernels_with_a_binary_are_timed_beside_the_predicted(module: Any) -> None:
    module.is_compiled = lambda *_: False
    module.plan(*arrays(), measure=True)
    expected = module.choice(*arrays(), fallback="error")
    assert {started(one) for one in module.driver.launches} == {launch_of(expected)}


def once(module: ModuleType, multiply: Callable[[], object]) -> None:
    """Check that the first product is timed, and that no later one is."""
    before = len(module.driver.launches)
    multiply()
    count = len(module.driver.launches)
    assert count > before + 7
    multiply()
    multiply()
    assert len(module.driver.launches) <= count + 2


@pytest.mark.parametrize("takes_us", [1e6, 0.001])
@pytest.mark.parametrize("more", [{"stream": 7}, {"alpha": np.float32(2)}, {"beta": 0}, {"fallback": "error"}, {}])
@pytest.mark.parametrize("is_made", [True, False])
def test_products_that_differ_in_addresses_are_timed_once(
    module: ModuleType, torch: SimpleNamespace, more: dict[str, Any], takes_us: float, is_made: bool
) -> None:
    torch.takes_us = takes_us
    torch.empty_strided = lambda *_, **__: tensors()[2]
    a, b, out = tensors()
    once(module, lambda: module.gemm(a, b, None if is_made else out, measure=True, **more))
    assert {launch["stream"] for launch in module.driver.launches} == {more.get("stream")}
    module.plans.clear()  # the choice outlives them
    count = len(module.driver.launches)
    module.gemm(*tensors()[:2], None if is_made else tensors()[2], measure=True, **more)
    assert len(module.driver.launches) <= count + 1
    b.requires_grad, torch.is_grad_enabled = True, lambda: False  # as a weight
    wider = tensors(M, N + 1, K)
    for given in ((a, b, tensors()[2]), arrays(), wider):
        module.decided.clear()
        once(module, partial(module.gemm, *given, measure=True))


def test_another_layout_or_fallback_is_decided_by_itself(module: ModuleType) -> None:
    def kind(*given: Any, fallback: str = "vendor", timed: bool = True) -> Any:
        return module._kind(module.Product.of(*given), fallback, is_vendor_timed=timed)

    a, b, out = arrays(8, 8, 64)
    padded = device_array((8, 64), (4, 48), at=1 << 40)
    mirrored, elsewhere = (device_array((64, 8), (32, 4), at=at << 40) for at in (1, 2))  # a transposed
    kinds = [kind(a, b, out), kind(padded, b, out), kind(a, mirrored, out), kind(a, elsewhere, out)]
    kinds += [kind(a, b, out, fallback="error"), kind(a, b, out, timed=False)]
    assert len(set(kinds)) == len(kinds)
    assert kind(*arrays(8, 8, 64)) == kinds[0]


def test_of_threads_one_times_and_the_others_wait(module: Any) -> None:
    timed: list[Any] = []

    def fastest_way(product: Any, found: Any, *_: Any) -> Any:
        time.sleep(0.05)
        return logged(timed, found, found)

    module.fastest_way = fastest_way
    product, kernel = module.Product.of(*arrays()), module.choice(*arrays(), fallback="error")
    in_threads([lambda: module.by_timing(product, kernel, kernel, "vendor", None, None, None)] * 6)
    assert timed == [kernel]


@pytest.mark.parametrize("what", ["load", "room", "vectors", "no kernel", "nothing"])
def test_what_cannot_be_timed_is_computed_as_predicted(module: Any, torch: SimpleNamespace, what: str) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise {"load": RuntimeError, "room": MemoryError, "no kernel": LookupError}[what]("no")

    plain, failing = module.chosen_or_vendor, {"load": "prepare_launch", "room": "fastest_way", "no kernel": "choose"}
    left = module.Vendor("expected to be faster")
    if what in ("load", "room", "vectors"):
        module.chosen_or_vendor = lambda p, fallback: left if fallback == "vendor" else plain(p, fallback)
    if what == "vectors":
        module.vendors_of = lambda *_: None
    elif what in failing:
        setattr(module, failing[what], fails)
    a, b, out = tensors(M, N, 0) if what == "nothing" else tensors()
    assert module.gemm(a, b, out=out, measure=True) is out
    assert (len(torch.asked), module.driver.launches) == (1, [])


# The vendor


def test_the_vendor_is_the_plan_if_it_is_faster(module: ModuleType, torch: SimpleNamespace) -> None:
    (a, b, out), driver = tensors(), module.driver
    torch.takes_us, driver.takes_us = 8000.0, lambda launch: 10000.0
    start = module.plan(a, b, out, alpha=2.0, measure=True)
    on_stream = module.plan(a, b, out, stream=77, measure=True)
    assert str(start.match) == (
        "the vendor: timed on these arrays, with the L2 dirty 8000.0 us, the fastest kernel 10000.0 us"
    )
    assert torch.asked[-1][-1] == 77  # where it is timed, too
    torch.asked, count = [], len(driver.launches)
    for torch.stream in (0, 33):  # that is current at the call
        assert start() is out
    on_stream()
    assert torch.asked == [(a, b, out, 2.0, 0, 0), (a, b, out, 2.0, 0, 33), (a, b, out, 1, 0, 77)]
    torch.stream = 0
    for given, is_left in (("vendor", True), ("error", False)):
        for _ in range(2):
            torch.asked, count = [], len(driver.launches)
            module.gemm(a, b, out=out, measure=True, fallback=given)
        assert (len(torch.asked), len(driver.launches) - count) == ((1, 0) if is_left else (0, 1))
    torch.takes_us = 12000.0
    match = module.plan(a, b, out, measure=True).match
    assert (match.is_vendor_chosen, match.vendor_us) == (False, 12000.0)
    torch.takes_us, driver.takes_us = 0.5, lambda launch: 1.0  # the host needs longer to call the vendor
    assert module.plan(a, b, out, measure=True).match.vendor_us == pytest.approx(0.5)


def test_a_new_result_of_the_vendor_has_the_kernels_layout(module: ModuleType, torch: SimpleNamespace) -> None:
    """The time does not decide the layout. Each product makes one result."""
    (a, b, _), made = tensors(), list[Any]()
    torch.empty_strided = lambda shape, strides, **_: logged(made, (shape, strides), tensors()[2])
    torch.takes_us, module.driver.takes_us = 8000.0, lambda launch: 10000.0
    for turn in range(3):
        module.gemm(a, b, measure=True)
        assert made == [((M, N), (1, M))] * (turn + 1)
    assert torch.asked[-1][2] is not None


@pytest.mark.parametrize("asked", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("bits", [(False, False), (True, False), (False, True)])
def test_the_vendor_gets_plain_tensors_factors_and_conjugates(
    module: ModuleType, torch: SimpleNamespace, asked: tuple[bool, bool], bits: tuple[bool, bool]
) -> None:
    described = [device_array((64, 64), (8, 512), at=at << 40, typestr="<c8") for at in (1, 2, 3)]
    given: list[Any] = [Tensor(one, dtype="torch.complex64") for one in described]
    plain = [object() for _ in range(3)]
    for tensor, one in zip(given, plain, strict=True):
        tensor.detach = lambda one=one: one
    given[0].is_conj, given[1].is_conj = (lambda: bits[0]), (lambda: bits[1])
    product = module.Product.of(*given, conjugates=asked)
    assert module.vendors_of(product, 2.0, 0.5).args == (*plain, 2.0, 0.5, asked)


def test_only_matrices_of_one_library_are_the_vendors(module: ModuleType, torch: SimpleNamespace) -> None:
    def is_vendors(*given: Any, math: str | None = None) -> bool:
        return module.vendors_of(module.Product.of(*given, math=math), None, None) is not None

    a, b, out = tensors()
    vectors = [Tensor(device_array((x,), (4,), at=at << 40), dtype="torch.float32") for x, at in ((K, 2), (M, 3))]
    assert is_vendors(a, b, out)
    assert not any(is_vendors(a, b, out, math=math) for math in ("tf32", "minplus"))
    assert not any(is_vendors(*given) for given in ((a, b, arrays()[2]), (a, *vectors), arrays()))


def test_cupy_is_timed_without_factors_only(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy multiplies by factors in kernels of their own."""
    monkeypatch.setitem(sys.modules, "cupy", cupy := fake_cupy())
    products, launches = list[Any](), module.driver.launches
    cupy.matmul = lambda a, b, out=None: logged(products, out, out)
    a, b, out = (Cupy(one) for one in arrays())
    module.driver.takes_us = lambda launch: 1e9

    def counts(**factors: Any) -> tuple[int, int]:
        before = len(products), len(launches)
        module.gemm(a, b, out=out, measure=True, **factors)
        return len(products) - before[0], len(launches) - before[1]

    counts()
    assert counts() == (1, 0)
    by_cupy, by_kernels = counts(alpha=2.0)
    assert (by_cupy, by_kernels > 7) == (0, True)
    assert [counts(alpha=2.0), counts()] == [(0, 1), (1, 0)]


# Contents of out


def test_out_is_restored_if_beta_reads_it(
    module: Any, held: list[str], torch: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    module.plan(*tensors(), beta=0.0, measure=True)
    module.plan(*tensors(), measure=True)
    assert held == []
    for call in (module.plan, module.gemm):
        held.clear()
        call(*tensors(), alpha=3.0, beta=0.5, measure=True)
        assert held == ["copied", "in inference mode", "put back what it held"]
        assert [module.driver.launches[-1]["values"][at] for at in (3, 8)] == [3.0, 0.5]
    with pytest.raises(
        TypeError, match="out: a SimpleNamespace cannot be saved and restored: pass arrays of PyTorch"
    ):
        module.plan(*arrays(), beta=0.5, measure=True)
    module.driver.launches.clear()
    module.gemm(*arrays(), beta=0.5, measure=True)  # is not timed
    expected = module.choice(*arrays(), fallback="error")
    assert [started(one) for one in module.driver.launches] == [launch_of(expected)]
    module.driver.free_bytes, module.scratch = 0, lambda *_: None
    with pytest.raises(MemoryError, match="no room"):
        module.plan(*tensors(), beta=0.5, measure=True)
    assert held[-1] == "put back what it held"
    monkeypatch.setattr(Tensor, "clone", Mock(side_effect=RuntimeError("CUDA out of memory")))
    with pytest.raises(MemoryError, match="out: its contents cannot be saved: CUDA out of memory"):
        module.plan(*tensors(), beta=0.5, measure=True)


@pytest.mark.parametrize(("beta", "is_kept"), [(0.0, True), (np.inf, False), (None, False)])
def test_with_minplus_beta_0_reads_out(module: Any, held: list[str], beta: float | None, is_kept: bool) -> None:
    found = module.choice(*tensors(), fallback="error")
    module.contenders = lambda *_: [found]
    module.fastest_way(module.Product.of(*tensors(), math="minplus"), found, None, beta, None, None)
    assert ("copied" in held) == is_kept


# Kept plans


def test_plans_of_slower_launches_are_not_kept(module: ModuleType) -> None:
    module.plan(*arrays(), measure=True)
    assert len(module.plans) <= 2  # the one that gemm takes, and the fastest


def test_plans_differ_by_all_that_their_launch_depends_on(module: ModuleType) -> None:
    """Two that differ in one of these alone are not one."""

    def column_major(*shapes: tuple[int, ...], ld: int = 64) -> list[Any]:
        return [device_array(shape, (4, 4 * ld)[: len(shape)], at=at << 40) for at, shape in enumerate(shapes, 1)]

    def plan_of(given: list[Any], **changes: Any) -> Any:
        chosen = module.choice(*given, fallback="error")
        found = replace(chosen, **changes) if changes else chosen
        return module.prepare_launch(module.Product.of(*given), found, None)[1]

    square = column_major(*[(64, 64)] * 3)
    found = module.choice(*square, fallback="error")
    other = next(w for w in module.WINNERS if w.op == found.winner.op and w is not found.winner)
    made = [
        plan_of(square),
        plan_of(square, winner=other),
        plan_of(square, launch=replace(found.launch, rows_per_block=2 * found.launch.rows_per_block)),
        plan_of(square, launch=found.launch.with_splits(found.launch.splits + 1)),
        plan_of(square, is_transposed=True),
        plan_of(column_major(*[(64, 64)] * 3, ld=100)),
        plan_of(column_major((64, 32), (32, 64), (64, 64))),
        plan_of(column_major((64, 64), (64,), (64,))),
        plan_of(column_major((64, 64), (64, 1), (64, 1))),
    ]
    assert len(set(map(id, made))) == len(made)
    assert set(map(id, made)) == set(map(id, module.plans.values()))  # each is kept
    assert [one.out_shape for one in made[-2:]] == [(64,), (64, 1)]
    assert plan_of(square) is made[0]


def test_a_plan_keeps_its_stream_alive(module: ModuleType) -> None:
    given: Any = SimpleNamespace(handle=7)
    start = module.plan(*arrays(), stream=given)
    count = sys.getrefcount(given)
    del start
    assert sys.getrefcount(given) == count - 1
