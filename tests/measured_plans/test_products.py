"""gemm with `measure`: the first product of a kind is timed, and what takes least computes the others too."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.measured_plans.helpers import arrays, slow_but, started, tensors, ways_to


@pytest.fixture
def slow(module: ModuleType, torch: SimpleNamespace) -> SimpleNamespace:
    """PyTorch, which takes longer than any kernel."""
    torch.driver, torch.takes_us = module.driver, 1e6
    return torch


def test_the_first_product_is_timed_and_the_others_start_at_once(module: ModuleType, slow: SimpleNamespace) -> None:
    given, driver = tensors(), module.driver
    for way in ways_to(module, *given):  # each in its turn is the fastest
        module.plans.clear()
        wanted = way.launch.threads, way.launch.splits
        driver.takes_us, driver.launches = slow_but(wanted), []
        a, b, out = given
        assert module.gemm(a, b, out=out, measure=True) is out
        assert len(driver.launches) > 7  # timed
        assert started(driver.launches[-1]) == wanted
        launches = len(driver.launches)
        assert module.gemm(a, b, out=out, measure=True, alpha=2.0) is out
        assert [started(one) for one in driver.launches[launches:]] == [wanted]


def test_products_without_measure_go_on_to_be_predicted(module: ModuleType, slow: SimpleNamespace) -> None:
    (a, b, out), driver = tensors(), module.driver
    expected = module.choice(a, b, out, fallback="error").launch
    other = next(w.launch for w in ways_to(module, a, b, out) if w.launch != expected)
    driver.takes_us = slow_but((other.threads, other.splits))
    for measure, wanted in ((False, expected), (True, other), (False, expected), (True, other)):
        module.gemm(a, b, out=out, measure=measure)
        assert started(driver.launches[-1]) == (wanted.threads, wanted.splits)


def test_a_new_out_is_made_once_for_each_product(module: ModuleType, slow: SimpleNamespace) -> None:
    made: list[Any] = []

    def empty_strided(shape: Any, strides: Any, **_: Any) -> Any:
        made.append(tensors()[2])
        return made[-1]

    slow.empty_strided = empty_strided
    a, b, _ = tensors()
    first = module.gemm(a, b, measure=True)
    assert first is made[-1]
    count = len(made)
    assert module.gemm(a, b, measure=True) is made[-1]
    assert len(made) == count + 1


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


def test_what_no_kernel_is_for_is_left_to_the_vendor_untimed(
    module: ModuleType, torch: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_kernel(*_: Any) -> Any:
        raise LookupError("no kernel")

    monkeypatch.setattr(module, "choose", no_kernel)
    a, b, out = tensors()
    assert module.gemm(a, b, out=out, measure=True) is out
    assert (len(torch.asked), module.driver.launches) == (1, [])


def test_nothing_is_timed_while_a_stream_is_captured(module: ModuleType, slow: SimpleNamespace) -> None:
    a, b, out = tensors()
    slow.stream = 9
    module.driver.capturing.add(9)
    with pytest.raises(RuntimeError, match="nothing is timed while a stream is captured"):
        module.gemm(a, b, out=out, measure=True)
    module.driver.capturing.clear()
    module.gemm(a, b, out=out, measure=True)
    launches = len(module.driver.launches)
    module.driver.capturing.add(9)  # now it is known, and is captured as others are
    module.gemm(a, b, out=out, measure=True)
    assert len(module.driver.launches) == launches + 1


def test_arrays_of_other_libraries_are_timed_too(module: ModuleType) -> None:
    given = arrays()
    module.gemm(*given, measure=True)
    assert len(module.driver.launches) > 7
