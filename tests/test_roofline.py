"""The roofline of any problem: bytes, operations, intensity, machine balance, bound and least time."""

from __future__ import annotations

import math
from itertools import product

import pytest

from tsm2_tune.errors import InputError
from tsm2_tune.generator.device.cards import PROFILES, profile_named
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.device.roofline import Ceilings, Roofline, data_sheet, modelled, roofline
from tsm2_tune.generator.paper_model import choose
from tsm2_tune.generator.problem import DTYPES, FMA_DTYPES, TF32_DTYPES, Problem
from tsm2_tune.tuner.device.emulator.limits import host_limits

H200 = profile_named("h200")
SHAPES = ((20480, 16, 20480), (20480, 1, 20480), (10**7, 8, 8), (16, 16, 10**7), (8192, 8192, 8192), (1, 1, 1))
FIRST_WITH_TF32 = (8, 0)


def of(problem: Problem, limits: DeviceLimits = H200) -> Roofline:
    return roofline(problem, limits, data_sheet(limits))


def test_a_skinny_product_by_hand() -> None:
    found = of(Problem(20480, 16, 20480, "f32"))
    assert found.read_bytes == 4 * (20480 * 20480 + 20480 * 16)
    assert found.written_bytes == 4 * 20480 * 16
    assert found.flops == 2 * 20480 * 16 * 20480
    assert found.intensity == pytest.approx(8, rel=2e-3)  # n/2 flops for each byte of A
    assert found.unit == "f32 FMA"
    assert found.gflops == pytest.approx(132 * 128 * 1.98 * 2)
    assert found.balance == pytest.approx(found.gflops / H200.dram_gbytes_per_s)
    assert (found.bound, found.least_us) == ("memory", found.memory_us)
    assert found.least_us == pytest.approx(found.least_bytes / H200.dram_gbytes_per_s / 1e3)


def test_of_a_matrix_times_itself_one_is_read_and_half_computed() -> None:
    gram, general = (of(Problem(16, 16, 10**7, "f64", op)) for op in ("tx", "tn"))
    assert 2 * gram.read_bytes == general.read_bytes
    assert gram.flops == general.flops * 17 / 32
    assert gram.least_us == pytest.approx(general.least_us / 2, rel=1e-5)


# Data sheets, in TFLOPS, dense: V100 125 with tensor cores; A100 312, 156 and 19.5; H100 and H200 989, 494 and 67, of
# which the first two count 1830 MHz and not the highest clock, 1980.
@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("v100", {"f16": 125, "bf16": 15.7, "f64": 7.8, "f32": 15.7}),
        ("a100", {"f16": 312, "bf16": 312, "tf32": 156, "3xtf32": 52, "f64": 19.5, "c128": 19.5, "f32": 19.5}),
        ("h100", {"f16": 989 * 1980 / 1830, "tf32": 494 * 1980 / 1830, "f64": 67, "c64": 67 * 4 / 3, "f32": 67}),
        ("h200", {"bf16": 989 * 1980 / 1830, "tf32": 494 * 1980 / 1830, "f64": 67, "c128": 67, "f32": 67}),
        ("k40c", {"f16": 4.29, "bf16": 4.29, "f64": 1.43, "c64": 4.29}),
    ],
)
def test_rates_are_those_of_the_data_sheets(name: str, tflops: dict[str, float]) -> None:
    rates = dict(data_sheet(profile_named(name)).gflops)
    for dtype_name, expected in tflops.items():
        assert rates[dtype_name] == pytest.approx(expected * 1e3, rel=0.01), dtype_name


@pytest.mark.parametrize(
    ("name", "dtype_name", "unit"),
    [("v100", "f16", "f16 tensor cores"), ("v100", "bf16", "f32 FMA"), ("v100", "f64", "f64 FMA"),
     ("a100", "c128", "f64 tensor cores"), ("h200", "c64", "f64 tensor cores"), ("h200", "f32", "f32 FMA"),
     ("h200", "3xtf32", "tf32 tensor cores"), ("k40c", "c128", "f64 FMA"),
     ("h200", "minplus_f64", "f64 addition and minimum")],
)  # fmt: skip
def test_the_unit_is_the_one_that_is_fastest(name: str, dtype_name: str, unit: str) -> None:
    assert of(Problem(64, 64, 64, dtype_name), profile_named(name)).unit == unit


@pytest.mark.parametrize("limits", [*PROFILES.values(), host_limits()], ids=lambda limits: limits.name)
@pytest.mark.parametrize("dtype_name", DTYPES)
def test_every_problem_has_a_roofline_on_every_card(limits: DeviceLimits, dtype_name: str) -> None:
    if dtype_name in TF32_DTYPES and (0, 0) < limits.compute_capability < FIRST_WITH_TF32:
        with pytest.raises(InputError, match=f"{limits.name} has no tensor cores for --math {dtype_name}"):
            of(Problem(64, 8, 64, dtype_name), limits)
        return
    for (m, n, k), op in product(SHAPES, ("nn", "tn", "ttt", "tx")):
        problem = Problem(m, m if op == "tx" else n, k, dtype_name, op)
        found = modelled(problem, limits, data_sheet(limits))
        assert 0 < found.roofline.least_us < math.inf
        assert (found.roofline.bound == "memory") == (found.roofline.intensity <= found.roofline.balance)
        assert (found.tsm2 is None) == (found.unmodelled is not None) == (op != "nn" or dtype_name not in FMA_DTYPES)


def test_measured_rates_charge_writes_at_their_own() -> None:
    """A copy at 3000 GB/s where reading is at 4000: writing is at 2400."""
    ceilings = Ceilings(4000.0, 3000.0, (("f32", 60000.0),))
    problem = Problem(10**6, 8, 8, "f32")
    found = roofline(problem, H200, ceilings)
    assert found.memory_us == pytest.approx((problem.read_bytes / 4000 + problem.written_bytes / 2400) / 1e3)
    assert found.gbytes_per_s == pytest.approx(problem.least_bytes / found.memory_us / 1e3)
    assert found.balance == pytest.approx(60000 / found.gbytes_per_s)
    assert found.least_us == ceilings.floor_us(problem)


def test_unmeasured_types_and_other_products_of_the_papers_model_are_refused() -> None:
    with pytest.raises(InputError, match="no peak rate of f64 on h200: tune there again"):
        roofline(Problem(8, 8, 8, "f64"), H200, Ceilings(4000.0, 3000.0, (("f32", 60000.0),)))
    with pytest.raises(InputError, match="TSM2's model does not cover 16x16x999:f32:tx: it covers A B with all"):
        choose(Problem(16, 16, 999, "f32", "tx"), H200)
    with pytest.raises(InputError, match="does not cover 16x16x999:bf16: it covers fused multiply-adds, in f32, f64"):
        choose(Problem(16, 16, 999, "bf16"), H200)
