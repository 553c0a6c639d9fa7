"""A compiled launcher that is told of all kernels starts none that it must not."""

from __future__ import annotations

import ctypes
import itertools
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.fake_tensors import Parameter, Tensor, exchange
from tests.library_calls import H200
from tests.packs_of_everything import products
from tests.random_calls import tensor

pytestmark = [pytest.mark.host, pytest.mark.usefixtures("toolchain", "session_cache")]


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


def test_no_kernel_of_another_device_is_started(both_modules: tuple[ModuleType, ModuleType]) -> None:
    a, b, out = products(both_modules[1], 1)[0]
    made = launcher_of_all_kernels(both_modules[1], a)
    assert made.start(a, b, out, None, None, ASKED, None) is out
    for one in (a, b, out):
        one.get_device = lambda: 1
    assert made.start(a, b, out, None, None, ASKED, None) == "plain"


def test_a_product_of_more_blocks_than_a_grid_has_is_not_started(both_modules: tuple[ModuleType, ModuleType]) -> None:
    made = launcher_of_all_kernels(both_modules[1], products(both_modules[1], 1)[0][0])
    refused = []
    for (m, n, k), orders in itertools.product(itertools.product((4096, 2**45), (1, 2, 8), (1, 8)), ("FFF", "CCC")):
        shapes = [(m, k), (k, n), (m, n)]
        a, b, out = map(tensor, shapes, orders, [1 << 56, 2 << 56, 3 << 56], ["f32"] * 3)
        started = made.start(a, b, out, None, None, ASKED, None)
        assert started is out or m > 4096
        if m > 4096 and started == "plain":
            with pytest.raises(ValueError, match="more tiles than a launch has blocks"):
                both_modules[0].gemm(a, b, out=out, fallback="error")
            refused.append(started)
        else:
            both_modules[0].gemm(a, b, out=out, fallback="error")
    assert refused


def test_what_is_no_kernel_is_not_taken(both_modules: tuple[ModuleType, ModuleType]) -> None:
    made = both_modules[1].launcher().Launcher(int, exchange(), (Tensor, Parameter), int, int, int, {}, int)
    (a, _, _), count = products(both_modules[1], 1)[0], len(both_modules[1].WINNERS)
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
