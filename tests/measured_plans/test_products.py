"""gemm with `measure`: the first product of a kind is timed, and what takes least computes the others too."""

from __future__ import annotations

import contextlib
import sys
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.call_log import logged
from tests.fabricated import device_array
from tests.fake_tensors import Cupy, fake_cupy
from tests.measured_plans.helpers import K, M, N, arrays, slow_but, started, tensors, ways_to
from tests.threads_on_gpu import in_threads


@pytest.fixture
def slow(module: ModuleType, torch: SimpleNamespace) -> SimpleNamespace:
    """PyTorch, which takes longer than any kernel."""
    torch.driver, torch.takes_us = module.driver, 1e6
    return torch


def test_the_first_product_is_timed_and_the_others_start_at_once(module: ModuleType, slow: SimpleNamespace) -> None:
    (a, b, out), driver = tensors(), module.driver
    expected = module.choice(a, b, out, fallback="error").launch
    for way in ways_to(module, a, b, out):  # each in its turn is the fastest
        module.plans.clear()
        module.decided.clear()
        wanted = way.launch.threads, way.launch.splits
        driver.takes_us, driver.launches = slow_but(wanted), []
        assert module.gemm(a, b, out=out, measure=True) is out
        assert len(driver.launches) > 7  # timed
        assert started(driver.launches[-1]) == wanted
        launches = len(driver.launches)
        module.gemm(a, b, out=out)  # which goes on to be predicted
        assert module.gemm(a, b, out=out, measure=True, alpha=2.0) is out
        assert [started(one) for one in driver.launches[launches:]] == [(expected.threads, expected.splits), wanted]


def test_a_new_out_is_made_once_for_each_product(module: ModuleType, slow: SimpleNamespace) -> None:
    a, b, _ = tensors()
    assert module.gemm(a, b, measure=True) is slow.made[-1]
    count = len(slow.made)
    assert module.gemm(a, b, measure=True) is slow.made[-1]
    assert len(slow.made) == count + 1


def test_what_the_vendor_computes_lies_as_a_kernels_result_would(module: ModuleType, torch: SimpleNamespace) -> None:
    """However long each takes: a result's layout is no matter of timing."""
    a, b, _ = tensors()
    made: list[Any] = []
    torch.empty_strided = lambda shape, strides, **_: logged(made, (shape, strides), tensors()[2])
    torch.driver, torch.takes_us, module.driver.takes_us = module.driver, 8000.0, lambda launch: 10000.0
    for _ in range(3):
        module.gemm(a, b, measure=True)
    assert set(made) == {((M, N), (1, M))}
    assert len(torch.asked) > 3
    assert torch.asked[-1][2] is not None


def test_the_vendor_computes_it_where_that_is_faster(module: ModuleType, torch: SimpleNamespace) -> None:
    a, b, out = tensors()
    torch.driver, torch.takes_us, module.driver.takes_us = module.driver, 8000.0, lambda launch: 10000.0
    assert module.gemm(a, b, out=out, measure=True) is out
    launches, torch.asked = len(module.driver.launches), []
    assert module.gemm(a, b, out=out, measure=True) is out
    assert (len(torch.asked), len(module.driver.launches)) == (1, launches)
    assert module.gemm(a, b, out=out, measure=True, fallback="error") is out  # timed without it
    assert len(module.driver.launches) > launches
    launches = len(module.driver.launches)
    assert module.gemm(a, b, out=out, measure=True, fallback="error") is out
    assert len(module.driver.launches) == launches + 1


def test_nothing_is_timed_while_a_stream_is_captured(module: ModuleType, slow: SimpleNamespace) -> None:
    a, b, out = tensors()
    slow.stream = 9
    module.driver.capturing.add(9)
    with pytest.raises(RuntimeError, match="kernels cannot be timed while a stream is captured"):
        module.gemm(a, b, out=out, measure=True)
    module.driver.capturing.clear()
    module.gemm(a, b, out=out, measure=True)
    launches = len(module.driver.launches)
    module.driver.capturing.add(9)  # now it is known, and is captured as others are
    module.gemm(a, b, out=out, measure=True)
    assert len(module.driver.launches) == launches + 1


def once(module: ModuleType, multiply: Any) -> None:
    """The first product is timed, and of two more each is one launch, or one of the vendor's products."""
    multiply()
    launches = len(module.driver.launches)
    assert launches > 7
    multiply()
    multiply()
    assert len(module.driver.launches) <= launches + 2


def test_other_arrays_and_a_weight_are_timed_once_too(module: ModuleType, slow: SimpleNamespace) -> None:
    given = arrays()
    once(module, lambda: module.gemm(*given, measure=True))
    module.driver.launches.clear()
    a, b, out = tensors(M, N, 2 * K)
    slow.is_grad_enabled, b.requires_grad = lambda: False, True  # a weight that requires a gradient
    once(module, lambda: module.gemm(a, b, out=out, measure=True))


@pytest.mark.parametrize("takes_us", [1e6, 0.001])
@pytest.mark.parametrize(
    "more", [{"stream": 7}, {"alpha": np.float32(2)}, {"beta": 0}, {"alpha": 2 + 0.0}, {"fallback": "error"}]
)
@pytest.mark.parametrize("is_made", [True, False])
def test_what_the_short_way_declines_is_timed_once_too(
    module: ModuleType, torch: SimpleNamespace, more: dict[str, Any], takes_us: float, is_made: bool
) -> None:
    torch.driver, torch.takes_us = module.driver, takes_us
    torch.empty_strided = lambda *_, **__: tensors()[2]
    a, b, out = tensors()
    once(module, lambda: module.gemm(a, b, None if is_made else out, measure=True, **more))
    if "stream" in more:
        assert {launch["stream"] for launch in module.driver.launches} == {7}


def test_what_was_decided_outlives_the_plans(module: ModuleType, slow: SimpleNamespace) -> None:
    a, b, out = tensors()
    module.gemm(a, b, out=out, measure=True)
    module.plans.clear()
    launches = len(module.driver.launches)
    module.gemm(a, b, out=out, measure=True)
    assert len(module.driver.launches) == launches + 1
    module.gemm(tensors()[0], tensors()[1], out=tensors()[2], measure=True)
    assert len(module.driver.launches) == launches + 2
    wider = tensors(M, N + 1, K)
    module.gemm(*wider[:2], out=wider[2], measure=True)  # another kind
    assert len(module.driver.launches) > launches + 9


def test_what_lies_otherwise_is_another_kind(module: ModuleType) -> None:
    def kind(*given: Any, fallback: str = "vendor", timed: bool = True) -> Any:
        product = module.Product.of(*given, conjugates=(False, False), math=None)
        return module._kind(product, fallback, is_vendor_timed=timed)

    a, b, out = arrays(8, 8, 64)
    padded = device_array((8, 64), (4, 48), at=1 << 40)  # at the same address, of the same shape
    mirrored, elsewhere = (device_array((64, 8), (32, 4), at=at << 40) for at in (1, 2))  # a transposed
    kinds = [kind(a, b, out), kind(padded, b, out), kind(a, mirrored, out), kind(a, elsewhere, out)]
    kinds += [kind(a, b, out, fallback="error"), kind(a, b, out, timed=False)]
    assert len(set(kinds)) == len(kinds)
    assert kind(*arrays(8, 8, 64)) == kinds[0]


def test_of_threads_that_begin_at_once_one_times(module: Any) -> None:
    timed: list[Any] = []

    def slowly(product: Any, found: Any, *_: Any) -> Any:
        timed.append(found)
        time.sleep(0.05)
        return found

    module.fastest_way = slowly
    product = module.Product.of(*arrays(), conjugates=(False, False), math=None)
    kernel = module.choice(*arrays(), fallback="error")

    in_threads([lambda: module.by_timing(product, kernel, kernel, "vendor", None, None, None)] * 6)
    assert timed == [kernel]


def test_what_out_holds_is_kept(module: Any, slow: SimpleNamespace) -> None:
    kept: list[Any] = []

    @contextlib.contextmanager
    def preserved(name: str, array: Any) -> Any:
        kept.append(array)
        yield

    module.preserved = preserved
    a, b, out = tensors()
    module.gemm(a, b, out=out, beta=1, measure=True)
    assert kept == [out]
    described = arrays()
    expected = module.choice(*described, fallback="error").launch
    module.driver.launches = []
    module.gemm(*described, beta=1, measure=True)  # which nobody can copy: untimed
    assert [started(one) for one in module.driver.launches] == [(expected.threads, expected.splits)]


@pytest.mark.parametrize("what", ["load", "room", "vectors", "no kernel", "nothing"])
def test_what_cannot_be_timed_is_computed_as_expected(module: Any, torch: SimpleNamespace, what: str) -> None:
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


def test_cupys_products_with_factors_are_decided_by_themselves(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CuPy multiplies by factors in operations of their own, so it is timed without alone."""
    cupy = fake_cupy()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    products: list[Any] = []
    cupy.matmul = lambda a, b, out=None: logged(products, out, out)
    a, b, out = (Cupy(one) for one in arrays())
    module.driver.takes_us = lambda launch: 1e9
    module.gemm(a, b, out=out, measure=True)  # CuPy's takes no time here
    launches, products[:] = len(module.driver.launches), []
    module.gemm(a, b, out=out, measure=True)
    assert (len(products), len(module.driver.launches)) == (1, launches)
    module.gemm(a, b, out=out, alpha=2.0, measure=True)  # only kernels are timed
    assert len(products) == 1
    assert len(module.driver.launches) > launches + 7
    launches = len(module.driver.launches)
    module.gemm(a, b, out=out, alpha=2.0, measure=True)
    module.gemm(a, b, out=out, measure=True)
    assert (len(products), len(module.driver.launches)) == (2, launches + 1)


def test_cupys_plans_are_of_these_arrays_and_the_latest(module: ModuleType) -> None:
    look_up = module.cupy_look_up(fake_cupy())
    given, others = ([Cupy(one) for one in arrays(m)] for m in (M, 2 * M))
    assert look_up(*given, None)[0] is None
    for plan in ((1, 2, 3), (4, 5, 6)):
        assert look_up(*given, None, plan)[0] == plan
        assert [look_up(*one, None)[0] for one in (given, others, given)] == [plan, None, plan]
