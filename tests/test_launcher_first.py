"""First calls of products that the compiled launcher starts itself: launch for launch what Python starts."""

from __future__ import annotations

import ctypes
import gc
import itertools
import random
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.call_log import logged
from tests.fake_tensors import TYPES, Parameter, Tensor, exchange
from tests.library_calls import H200
from tests.packs_of_everything import before_a_driver, modules_of_everything, products
from tests.random_calls import growth, odd_product, of_cupy, outcome, random_product, tensor
from tests.threads_on_gpu import in_threads

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("toolchain", "session_cache")]


def served(both_modules: tuple[ModuleType, ModuleType], library: Any, seed: int, kind: Any, context: int) -> set[Any]:
    """Make the same first and second calls of both. Return for which kinds of first calls the launcher started a
    kernel.
    """
    plain, compiled = both_modules
    long, of = list[Any](), compiled.Product.of
    compiled.Product.of = lambda *arguments, **named: logged(long, arguments, of(*arguments, **named))
    rng, count, by_vendor, kinds = random.Random(seed), 0, 0, set[Any]()
    for turn in range(700):
        arrays, named = (odd_product if turn % 6 == 5 else random_product)(rng)
        given = [kind(one) for one in arrays], named | {"out": named["out"] and kind(named["out"])}
        library.stream = stream = rng.choice((0, 0, 0, 77))
        getattr(library, "streams", {})[0] = stream
        for again in range(2):
            del long[:]
            for module in both_modules:
                module.driver.current = context if turn % 7 or named["out"] is None else None
            with getattr(library, "device", nullcontext)(int(turn % 5 == 0)):  # that is current in CuPy
                expected = outcome(plain, library, *given)
                assert outcome(compiled, library, *given) == expected, (turn, again, given)
            assert compiled.driver.current == plain.driver.current
            if not again and not long:
                by_vendor += not expected[2]
                count += bool(expected[2])
                kinds |= {(arrays[0].dtype, named["out"] is None) for _ in expected[2]}
    compiled.Product.of = of
    assert (by_vendor > 4, count > 40) == (True, True)
    assert {is_made for _, is_made in kinds} == {False, True}
    return kinds


@pytest.mark.parametrize("seed", range(4))
def test_a_first_call_does_what_it_does_without(tmp_path: Path, torch: Any, seed: int) -> None:
    made = modules_of_everything(tmp_path, seed)
    for module in made:
        before_a_driver(module)
    kinds = served(made, torch, seed, lambda one: one, 0xAA)
    assert {dtype for dtype, _ in kinds} == set(TYPES)


def test_a_first_call_with_arrays_of_cupy_does_what_it_does_without(
    both_modules: tuple[ModuleType, ModuleType], cupy: Any
) -> None:
    """CuPy's own products are computed on the arrays' device."""

    def matmul(a: Any, b: Any, out: Any = None) -> Any:
        assert cupy.cuda.runtime.getDevice() == 0
        return out

    cupy.matmul = matmul
    served(both_modules, cupy, 5, of_cupy, 0xC0)  # the context of all arrays


@pytest.fixture
def compiled(both_modules: tuple[ModuleType, ModuleType]) -> Any:
    return both_modules[1]


def test_python_chooses_once_for_each_kernel(compiled: Any) -> None:
    asked, choose = list[Any](), compiled.choose
    compiled.choose = lambda *arguments: logged(asked, arguments, choose(*arguments))
    for a, b, out in products(compiled, 300):
        assert compiled.gemm(a, b, out=out, fallback="error") is out
    launches = compiled.driver.launches
    assert (len(launches), len(asked)) == (300, len({launch["function"] for launch in launches}))


def test_no_kernel_of_another_context_is_started(compiled: Any) -> None:
    """After a reset of the device, handles of kernels are different."""
    made = [products(compiled, 20, dtype) for dtype in ("f32", "f64")]

    def started(each: Any) -> set[int]:
        del compiled.driver.launches[:]
        for a, b, out in each:
            compiled.gemm(a, b, out=out, fallback="error")
        return {launch["function"] for launch in compiled.driver.launches}

    def context_id(context: Any, number: Any) -> int:
        number._obj.value = 0xAB
        return 0

    before = started(made[0][:9] + made[1][:9])
    compiled.driver.cuCtxGetId = context_id
    get = compiled.driver.cuModuleGetFunction
    compiled.driver.cuModuleGetFunction = lambda function, module, name: get(
        function, SimpleNamespace(value=module.value + 1), name
    )
    for a, b, out in (made[0][9], made[0][10]):
        compiled.gemm(a, b, out=out, fallback="error", stream=0)  # which Python starts
    assert before.isdisjoint(started(made[0][11:] + made[1][11:]))
    assert before.isdisjoint(started(made[0][1:9] + made[1][1:9]))  # which the launcher started itself before


def test_a_product_that_is_to_be_timed_is_pythons(compiled: Any) -> None:
    made, asked = products(compiled, 40), list[Any]()
    for a, b, out in made[:20]:
        compiled.gemm(a, b, out=out, fallback="error")
    compiled.by_timing = lambda product, expected, *_: logged(asked, product, expected)
    for a, b, out in made[20:]:
        compiled.gemm(a, b, out=out, fallback="error", measure=True)
    assert len(asked) == 20


def test_threads_start_first_products_while_the_table_is_forgotten(compiled: Any) -> None:
    compiled.driver.cuLaunchKernelEx = ctypes.CDLL(None).sched_yield
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    made = products(compiled, 2300)

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for turn in range(800):
            a, b, out = rng.choice(made)
            given = None if rng.random() < 0.3 else out
            result = compiled.gemm(a, b, out=given, fallback=rng.choice(("error", "vendor")))
            assert given is None or result is out
            if turn % 100 == 0:
                for kept in ("plans", "starters", "launchers"):
                    getattr(compiled, kept).clear()
                gc.collect()

    try:
        in_threads([partial(work, seed) for seed in range(4)])
    finally:
        sys.setswitchinterval(interval)


def test_nothing_is_kept_of_first_calls(compiled: Any, torch: Any) -> None:
    compiled.driver.cuLaunchKernelEx = ctypes.CDLL(None).sched_yield  # returns 0, and records nothing
    made = products(compiled, 2300)  # more calls than the table has places: all is forgotten on the way
    counted = (made[0][0].dtype, torch.empty_strided, compiled.Plan, None)

    def calls() -> None:
        for a, b, out in made:
            compiled.gemm(a, b, out=out, fallback="error")
            compiled.gemm(a, b, fallback="error")
        for kept in ("plans", "starters", "launchers"):  # the launcher goes, with all that it knows
            getattr(compiled, kept).clear()
        compiled.driver.calls.clear()
        torch.made.clear()
        gc.collect()

    changed, blocks = growth(calls, counted)
    assert changed < 50
    assert blocks < 50, "blocks of memory, of 4,600 calls"


# A launcher that is told of all kernels starts none that it must not


def launcher_of_all_kernels(module: ModuleType, array: Tensor, of_type: int = 0) -> Any:
    """A launcher to which every kernel is loaded where the array is. Each launch succeeds, and what it does not start
    is "plain"."""
    key, endless = (1, 1, 0), SimpleNamespace(sizes_bytes=(2**64 - 1,) * 2, addresses=(256, 256), owners=(None,) * 2)
    like_torch = (exchange(), (Tensor, Parameter), int, int, int)
    made = module.launcher().Launcher(lambda *_: "plain", *like_torch, {key: endless}, int)
    returns_0 = ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p).value
    for kernel in itertools.product(range(len(module.WINNERS)), (0, 1)):
        assert made.know(array, H200.identity.name, of_type, {}, kernel, (returns_0, 1), key)
    return made


ASKED = (False, False, None, "error", False)


def test_no_product_of_another_device_or_a_larger_grid_is_started(
    both_modules: tuple[ModuleType, ModuleType],
) -> None:
    given = products(both_modules[1], 1)[0]
    made = launcher_of_all_kernels(both_modules[1], given[0])
    assert made.start(*given, None, None, ASKED, None) is given[2]
    for one in given:
        one.get_device = lambda: 1  # which has no kernels
    assert made.start(*given, None, None, ASKED, None) == "plain"
    refused = []
    for (m, n, k), orders in itertools.product(itertools.product((4096, 2**45), (1, 2, 8), (1, 8)), ("FFF", "CCC")):
        shapes = [(m, k), (k, n), (m, n)]
        a, b, out = map(tensor, shapes, orders, [1 << 56, 2 << 56, 3 << 56], ["f32"] * 3)
        started = made.start(a, b, out, None, None, ASKED, None)
        assert started is out or m > 4096
        if m > 4096 and started == "plain":
            with pytest.raises(ValueError, match="needs more blocks than a grid has"):
                both_modules[0].gemm(a, b, out=out, fallback="error")
            refused.append(started)
        else:
            both_modules[0].gemm(a, b, out=out, fallback="error")
    assert refused


def test_what_is_no_kernel_is_not_taken(compiled: Any) -> None:
    made = compiled.launcher().Launcher(int, exchange(), (Tensor, Parameter), int, int, int, {}, int)
    (a, _, _), count = products(compiled, 1)[0], len(compiled.WINNERS)
    sound: Any = (a, "a GPU", 0, {}, (0, 0), (1, 1), (1, 1, 0))
    assert made.know(*sound)
    for at, wrong in [(2, -1), (2, 6), (4, (-1, 0)), (4, (count, 0)), (4, (0, 2)), (4, (0, -1)), (5, (0, 1)),
                      (5, (1, 0)), (1, 256 * "x")]:  # fmt: skip
        with pytest.raises(ValueError, match="this is no kernel"):
            made.know(*sound[:at], wrong, *sound[at + 1 :])
    for at, wrong in [(1, 3), (2, "f32"), (4, 0), (6, [])]:
        with pytest.raises(TypeError):
            made.know(*sound[:at], wrong, *sound[at + 1 :])
    assert not made.know(object(), *sound[1:])  # which describes itself in no way
    devices = []
    for number in range(1, 20):
        a.get_device = partial(int, number)
        devices.append(made.know(*sound))
    assert devices == [True] * 15 + [False] * 4
