"""Plans that are made by timing: the vendor's product as one, what `out` holds, and what is kept."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from tests.call_log import logged
from tests.fabricated import device_array
from tests.fake_tensors import Tensor
from tests.measured_plans.helpers import K, M, arrays, tensors

# The vendor


def test_the_vendor_becomes_the_plan_where_it_is_faster(module: ModuleType, torch: SimpleNamespace) -> None:
    a, b, out = tensors()
    torch.driver, torch.takes_us, module.driver.takes_us = module.driver, 8000.0, lambda launch: 10000.0
    start = module.plan(a, b, out, alpha=2.0, measure=True)
    assert str(start.match) == (
        "the vendor: timed on these arrays, with the L2 dirty 8000.0 us, the fastest kernel 10000.0 us"
    )
    launches, torch.asked = len(module.driver.launches), []
    assert start() is out
    assert len(module.driver.launches) == launches
    assert torch.asked == [(a, b, out, 2.0, 0, 0)]
    torch.stream = 33  # that is current at the call
    start()
    assert torch.asked[-1][-1] == 33
    on_stream = module.plan(a, b, out, stream=77, measure=True)
    assert torch.asked[-1][-1] == 77  # where it is timed too
    torch.stream, torch.asked = 33, []
    on_stream()
    assert torch.asked[-1][-1] == 77
    torch.takes_us = 12000.0
    start = module.plan(a, b, out, measure=True)
    assert str(start.match).endswith(": timed on these arrays, with the L2 dirty 10000.0 us, the vendor 12000.0 us")
    assert not start.match.is_vendor_chosen


def test_what_the_host_needs_to_start_the_vendor_counts(module: ModuleType, torch: SimpleNamespace) -> None:
    torch.driver, torch.takes_us, module.driver.takes_us = module.driver, 0.5, lambda launch: 1.0
    found = module.plan(*tensors(), measure=True).match  # which no Python starts in less than a microsecond
    assert (found.is_timed, found.vendor_us) == (True, pytest.approx(0.5))


def test_the_vendor_multiplies_plain_tensors_by_both_factors(module: ModuleType, torch: SimpleNamespace) -> None:
    plain = [object() for _ in range(3)]
    given = tensors()
    for tensor, one in zip(given, plain, strict=True):
        tensor.detach = lambda one=one: one
    product = module.Product.of(*given, conjugates=(False, False), math=None)
    multiply = module.vendors_of(product, 2.0, 0.5)
    assert multiply.args == (*plain, 2.0, 0.5, (False, False))


@pytest.mark.parametrize("asked", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("bits", [(False, False), (True, False), (False, True)])
def test_the_vendor_is_asked_for_conjugates_that_no_bit_says(
    module: ModuleType, torch: SimpleNamespace, asked: tuple[bool, bool], bits: tuple[bool, bool]
) -> None:
    described = [device_array((64, 64), (8, 512), at=at << 40, typestr="<c8") for at in (1, 2, 3)]
    a, b, out = [Tensor(one, dtype="torch.complex64") for one in described]
    a.is_conj, b.is_conj = (lambda: bits[0]), (lambda: bits[1])
    product = module.Product.of(a, b, out, conjugates=asked, math=None)
    assert module.vendors_of(product, None, None).args[-1] == asked


def test_what_the_vendor_computes_otherwise_is_not_its(module: ModuleType, torch: SimpleNamespace) -> None:
    def product(*given: Any, math: str | None = None) -> Any:
        return module.Product.of(*given, conjugates=(False, False), math=math)

    assert module.vendors_of(product(*tensors()), 1, 0) is not None
    assert module.vendors_of(product(*tensors(), math="tf32"), 1, 0) is None
    assert module.vendors_of(product(*tensors(), math="minplus"), None, None) is None
    a, b, _ = tensors()
    assert module.vendors_of(product(a, b, arrays()[2]), 1, 0) is None  # the arrays are of two libraries
    vectors = [device_array((K,), (4,), at=2 << 40), device_array((M,), (4,), at=3 << 40)]
    column = [Tensor(one, dtype="torch.float32") for one in vectors]
    assert module.vendors_of(product(a, *column), 1, 0) is None
    assert module.vendors_of(product(*arrays()), 1, 0) is None


# Contents of out


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch, torch: SimpleNamespace) -> list[str]:
    """Return a log of the copies of tensors and of the writes that restore them."""
    log: list[str] = []
    monkeypatch.setattr(Tensor, "clone", lambda self: logged(log, "copied", "what it held"), raising=False)
    put = lambda self, place, value: log.append(f"put back {value}")  # noqa: E731
    monkeypatch.setattr(Tensor, "__setitem__", put, raising=False)

    @contextlib.contextmanager
    def inference_mode() -> Any:
        log.append("in inference mode")
        yield

    torch.inference_mode = inference_mode
    return log


def test_what_out_holds_is_put_back_where_beta_keeps_it(module: Any, held: list[str]) -> None:
    module.plan(*tensors(), beta=0.0, measure=True)
    module.plan(*tensors(), measure=True)
    assert held == []
    module.plan(*tensors(), alpha=3.0, beta=0.5, measure=True)
    assert held == ["copied", "in inference mode", "put back what it held"]
    assert [module.driver.launches[-1]["values"][at] for at in (3, 8)] == [3.0, 0.5]
    with pytest.raises(
        TypeError, match="out: a SimpleNamespace cannot be saved and restored: pass arrays of PyTorch or"
    ):
        module.plan(*arrays(), beta=0.5, measure=True)
    module.driver.free_bytes, held[:] = 0, []
    module.scratch = lambda *_: None
    with pytest.raises(MemoryError, match="no room"):
        module.plan(*tensors(), beta=0.5, measure=True)
    assert held[-1] == "put back what it held"


def test_of_minplus_beta_0_keeps_what_out_holds(module: ModuleType, held: list[str]) -> None:
    def kept(**factors: Any) -> bool:
        held.clear()
        product = module.Product.of(*tensors(), conjugates=(False, False), math="minplus")
        found = module.choice(*tensors(), fallback="error")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "contenders", lambda *_: [found])
            module.fastest_way(product, found, factors.get("alpha"), factors.get("beta"), None, None)
        return "copied" in held

    assert kept(beta=0.0)
    assert not kept(beta=np.inf)
    assert not kept()


@pytest.mark.usefixtures("torch")
def test_a_copy_that_cannot_be_made_is_told(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "clone", Mock(side_effect=RuntimeError("CUDA out of memory")), raising=False)
    with pytest.raises(MemoryError, match="out: its contents cannot be saved: CUDA out of memory"):
        module.plan(*tensors(), beta=0.5, measure=True)


# Kept plans


def test_plans_of_ways_that_lost_are_not_kept(module: ModuleType) -> None:
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
    class Stream:
        handle = 7

    given = Stream()
    start = module.plan(*arrays(), stream=given)
    count = sys.getrefcount(given)
    del start
    assert sys.getrefcount(given) == count - 1
