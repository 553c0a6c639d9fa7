"""A device that starts several calls before the first is judged gives the verdicts of one that waits for each."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest

from tests.conftest import compiled
from tsm2_tune.generator.families.stream_a import StreamAFmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.emulator.device import HostDevice
from tsm2_tune.tuner.device.support_kernels import FEW_RECORDS, WORST_RECORDS, Support
from tsm2_tune.tuner.results.trial import Verdict
from tsm2_tune.tuner.verify.bound_kernel import BoundKernel, Entry
from tsm2_tune.tuner.verify.checks import checks_of, every_check
from tsm2_tune.tuner.verify.operands import Operands
from tsm2_tune.tuner.verify.verdict import inspect, prepare, verify

SPLIT = StreamAFmaConfig(64, 1, 2, 4, 2, splits=3, row_tiles=1, min_blocks=1)
PROBLEM = Problem(70, 3, 40, "f32")
RESET, ADDED = "atomic_inc_acq_rel(counter, count - 1);", "atomic_add_acq_rel(counter, 1);"
LAST = "    if (arrives_last("
SCALED = ".element[v], beta);"


class Ahead(HostDevice):
    """The host, as if kernels ran while the next are started."""

    calls_ahead = 5  # no divisor of how many checks there are


def verdict_of(device: HostDevice, support_path: str, toolchain: Toolchain, original: str, planted: str) -> Verdict:
    source = render(PROBLEM, SPLIT)
    text = source.text.replace(original, planted)
    assert (text == source.text) == (original == planted)
    binary = compiled(text, source.kernel, toolchain, source.defines)
    support = Support(device, support_path, PROBLEM.dtype_name)
    operands = Operands(device, support, PROBLEM, index_bits=PROBLEM.index_bits)
    loaded = BoundKernel(device, operands, Entry(binary.path, source.kernel, source.launch))
    try:
        return verify(device, operands, loaded, seed=3, checks=every_check(PROBLEM))
    finally:
        loaded.free()
        operands.free()
        support.free()


@pytest.mark.parametrize(
    ("original", "planted", "said"),
    [
        ("", "", "every element of"),
        (RESET, ADDED, "timed call: left the counter of tile 0 at 3, not at 0"),
        (LAST, f"    partials[-2] = 0;\n{LAST}", "timed call: wrote where it must not"),
        (SCALED, ".element[v], sum_t(0));", "general call: C["),
    ],
    ids=["right", "counter", "workspace", "beta"],
)
def test_the_verdict_does_not_depend_on_how_many_calls_are_ahead(
    support_path: str, quickest: Toolchain, original: str, planted: str, said: str
) -> None:
    found = [verdict_of(device, support_path, quickest, original, planted) for device in (HostDevice(), Ahead())]
    assert said in found[0].detail
    assert found[1] == found[0]


@pytest.mark.parametrize(
    ("m", "least", "most"), [(200, 1, WORST_RECORDS), (2500, 300, FEW_RECORDS), (30_011, FEW_RECORDS + 1, 2**14)]
)
def test_a_wrong_element_is_found_however_many_threads_compare(
    support_path: str, m: int, least: int, most: int
) -> None:
    device = Ahead()
    device.limits = replace(device.limits, sms=300)
    device.support_threads = 256
    problem = Problem(m, 3, 1, "f64")
    support = Support(device, support_path, problem.dtype_name)
    operands = Operands(device, support, problem, index_bits=problem.index_bits)
    check = checks_of(problem)[0]
    prepare(operands, check, seed=3)

    def held(address: int, count: int) -> np.ndarray:
        return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_double)), (count,))

    c = held(operands.c.address, 3 * m)
    right = np.outer(held(operands.b.address, 3), held(operands.a.address, m)).ravel()
    tiles = -(-m // problem.dtype.reference_tile[0])
    assert least <= -(-tiles // 256) * 256 <= most
    c[:] = right
    assert inspect(operands, check) == Verdict(True, 0.0, "")
    for place in (0, 1, m - 1, 3 * m - 1, *range(17, 3 * m, 3 * m // 7)):
        c[place] += 1
        assert f"C[{place % m}, {place // m}] = " in inspect(operands, check).detail
        assert "; 1 of " in inspect(operands, check).detail
        c[place] = right[place]
    operands.free()
    support.free()
