"""Devices: their names, limits and peaks, the occupancy of kernels, which is CUDA's, and the roofline of problems."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from tests.fabricated import tuning_run
from tsm2_tune.api import devices
from tsm2_tune.api.devices import names_of, targets_of
from tsm2_tune.errors import DeviceError, InputError
from tsm2_tune.generator.device.architecture import architecture_of, peak_gflops
from tsm2_tune.generator.device.cards import PROFILES, PUBLISHED_PEAKS, profile_named
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.device.occupancy import occupancy
from tsm2_tune.generator.device.roofline import Ceilings, Roofline, data_sheet, modelled, roofline
from tsm2_tune.generator.dtypes import DTYPES, FMA_DTYPES, TF32_DTYPES
from tsm2_tune.generator.paper_model import choose
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.device.emulator.limits import host_limits
from tsm2_tune.tuner.device.target import Target, limits_of, stored_target

H200 = profile_named("h200")


def test_unknown_names_types_and_chips_are_refused() -> None:
    said = r"unknown device 'k80': expected a GPU's number, cpu, or a GPU model: s2050, k40c, m40"
    with pytest.raises(InputError, match=said):
        profile_named("k80")
    with pytest.raises(InputError, match="unknown dtype 'f8'"):
        peak_gflops(H200, "f8")
    with pytest.raises(InputError, match=r"compute capability 1\.3: expected 2\.0 or newer"):
        architecture_of((1, 3))  # a chip before Fermi
    for name in ("sms", "warp_threads", "sm_clock_mhz", "dram_gbytes_per_s"):  # they divide
        with pytest.raises(ValueError, match=f"limits of h200: {name} = 0(.0)? is not positive"):
            replace(H200, **{name: 0})  # type: ignore[arg-type]


def test_cards_have_the_limits_of_their_tables_and_drivers() -> None:
    assert list(PROFILES) == ["s2050", "k40c", "m40", "p100", "v100", "a100", "h100", "h200"]
    s2050 = profile_named("s2050")
    assert (s2050.registers_per_sm, s2050.smem_bytes_per_sm, s2050.blocks_per_sm) == (32768, 49152, 8)
    assert s2050.threads_per_sm // s2050.warp_threads == 48
    h200 = profile_named("h200")
    assert (h200.smem_bytes_per_block_optin, h200.smem_bytes_per_sm) == (232448, 233472)
    assert (h200.sms, h200.l2_bytes, h200.smem_bytes_reserved_per_block) == (132, 62914560, 1024)
    assert h200.dram_gbytes_per_s == pytest.approx(4814, abs=1)


@pytest.mark.parametrize("name", PROFILES)
def test_a_block_fits_a_multiprocessor_of_every_card(name: str) -> None:
    card = profile_named(name)
    assert card.name == name
    largest = card.smem_bytes_per_block_optin + card.smem_bytes_reserved_per_block
    assert card.smem_bytes_per_block <= largest <= card.smem_bytes_per_sm
    assert card.registers_per_block <= card.registers_per_sm
    assert card.threads_per_block <= card.threads_per_sm
    assert card.threads_per_sm % card.warp_threads == 0


@pytest.mark.parametrize(
    ("compute_capability", "f32", "f64"),
    [((2, 0), 32, 16), ((3, 5), 192, 64), ((5, 2), 128, 4), ((6, 0), 64, 32), ((6, 1), 128, 4), ((7, 0), 64, 32),
     ((7, 5), 64, 2), ((8, 0), 64, 32), ((8, 6), 128, 2), ((8, 9), 128, 2), ((9, 0), 128, 64), ((12, 0), 128, 2)],
)  # fmt: skip
def test_cores_of_the_architectures(compute_capability: tuple[int, int], f32: int, f64: int) -> None:
    row = architecture_of(compute_capability)
    assert (row.cores("f32"), row.cores("f64")) == (f32, f64)


@pytest.mark.parametrize(
    ("compute_capability", "f32", "f64"),
    [((0, 0), 8, 4), ((3, 5), 96, 32), ((6, 0), 32, 16), ((6, 1), 64, 2), ((7, 0), 64, 16), ((8, 0), 64, 16),
     ((8, 6), 64, 1), ((9, 0), 128 / 1.5, 32)],
)  # fmt: skip
def test_sums_and_minima_take_more_instructions(compute_capability: tuple[int, int], f32: float, f64: float) -> None:
    row = architecture_of(compute_capability)
    assert (row.cores("minplus_f32"), row.cores("minplus_f64")) == (f32, f64)


def test_published_peaks_are_near_cores_times_clock() -> None:
    for (name, dtype_name), published in PUBLISHED_PEAKS.items():
        assert published.gflops == pytest.approx(peak_gflops(profile_named(name), dtype_name), rel=0.04)


def test_an_unknown_chip_gets_the_newest_row_before_it() -> None:
    for asked, answered in (((13, 0), (12, 1)), ((99, 9), (12, 1)), ((8, 8), (8, 7)), ((9, 0), (9, 0))):
        assert architecture_of(asked).compute_capability == answered


# Card -> threads a block, registers a thread, shared bytes a block: blocks a multiprocessor and what limits them.
# Answers of cudaOccMaxActiveBlocksPerMultiprocessor in cuda_occupancy.h of CUDA 13.0, opted in to the shared memory
# asked for. The same program agreed on 1140000 random kernels of compute capabilities 3.0 to 12.0.
ANSWERS = {
    "k40c": """128 32 0: 16 warps + blocks + registers, 96 65 1000: 9 registers, 1024 65 0: 0 registers,
        256 64 49152: 1 shared memory, 288 127 4096: 1 registers""",
    "m40": """128 32 0: 16 warps + registers, 96 65 1000: 9 registers, 1024 65 0: 0 registers,
        256 64 49152: 2 shared memory, 288 127 4096: 1 registers""",
    "p100": """128 32 0: 16 warps + registers, 256 37 0: 6 registers, 96 65 1000: 9 registers,
        1024 64 0: 1 registers, 1024 65 0: 0 registers, 33 255 0: 4 registers,
        256 64 49152: 1 shared memory, 640 96 16384: 1 registers, 288 127 4096: 1 registers,
        992 65 0: 0 registers, 544 104 0: 0 registers, 736 80 0: 1 registers""",
    "v100": """128 32 0: 16 warps + registers, 96 65 1000: 9 registers, 1024 65 0: 0 registers,
        256 64 49152: 2 shared memory, 288 127 4096: 1 registers, 128 32 98304: 1 shared memory,
        128 32 98305: 0 shared memory, 512 40 24577: 3 registers + shared memory""",
    "a100": """128 32 0: 16 warps + registers, 96 65 1000: 9 registers, 1024 65 0: 0 registers,
        256 64 49152: 3 shared memory, 288 127 4096: 1 registers, 128 32 166912: 1 shared memory,
        128 32 166913: 0 shared memory, 192 56 12289: 6 registers""",
    "h100": """128 32 0: 16 warps + registers, 96 65 1000: 9 registers, 1024 65 0: 0 registers,
        256 64 49152: 4 registers + shared memory, 288 127 4096: 1 registers""",
    "h200": """128 32 0: 16 warps + registers, 256 37 0: 6 registers, 96 65 1000: 9 registers,
        1024 64 0: 1 registers, 1024 65 0: 0 registers, 33 255 0: 4 registers,
        256 64 49152: 4 registers + shared memory, 640 96 16384: 1 registers, 288 127 4096: 1 registers,
        128 110 16384: 4 registers, 32 16 0: 32 blocks, 64 24 6144: 32 warps + blocks + shared memory,
        128 40 232448: 1 shared memory, 128 40 232449: 0 shared memory, 256 72 115712: 2 shared memory,
        256 72 115713: 1 shared memory, 1 1 0: 32 blocks, 384 168 232448: 1 registers + shared memory""",
    # That header knows no Fermi. By the rules of its ancestor in CUDA 7.0: two halves of 16384 registers; a warp
    # takes a multiple of 64 registers, or of 128 where a thread has 21, 22, 29, 30, 37, 38, 45 or 46: with 20 there
    # are 640 a warp and 25 warps in a half, with 21 768 and 21, where 704 would let 8 blocks in.
    "s2050": """256 20 0: 6 warps + registers, 192 21 0: 7 registers, 256 32 0: 4 registers,
        256 63 0: 2 registers, 256 64 0: 0 registers, 64 16 0: 8 blocks,
        128 16 6000: 8 blocks + shared memory, 128 16 49152: 1 shared memory,
        128 16 49153: 0 shared memory, 1024 33 0: 0 registers""",
}


@pytest.mark.parametrize("name", ANSWERS)
def test_blocks_and_their_limits_are_cudas(name: str) -> None:
    for answer in ANSWERS[name].split(","):
        asked, said = answer.split(": ")
        threads, registers, smem_bytes = map(int, asked.split())
        found = occupancy(profile_named(name), threads=threads, registers=registers, smem_bytes=smem_bytes)
        assert f"{found.blocks_per_sm} {' + '.join(found.limited_by)}" == said, answer


def test_the_last_warp_of_a_block_is_not_full() -> None:
    found = occupancy(H200, threads=100, registers=32, smem_bytes=0)
    assert (found.blocks_per_sm, found.warps_per_sm, found.threads_per_sm) == (16, 64, 1600)


@pytest.mark.parametrize(
    ("threads", "registers", "smem_bytes", "blocks", "limit"),
    [(1025, 16, 0, 0, "warps"), (32, 256, 0, 0, "registers"), (32, 16, 232449, 0, "shared memory"),
     (32, 16, 233472 // 7 // 128 * 128 - 1024, 7, "shared memory"),
     (32, 16, 233472 // 7 // 128 * 128 - 1023, 6, "shared memory")],
)  # fmt: skip
def test_limits_of_a_block_and_its_reserve_count(
    threads: int, registers: int, smem_bytes: int, blocks: int, limit: str
) -> None:
    found = occupancy(H200, threads=threads, registers=registers, smem_bytes=smem_bytes)
    assert (found.blocks_per_sm, found.limited_by) == (blocks, (limit,))
    assert found.registers_per_thread_limit == 255


def test_on_the_host_nothing_is_rounded() -> None:
    host = replace(H200, name="host", compute_capability=(0, 0), smem_bytes_reserved_per_block=0)
    found = occupancy(host, threads=1024, registers=63, smem_bytes=0)
    assert (found.blocks_per_sm, found.limited_by) == (1, ("registers",))
    assert occupancy(host, threads=32, registers=1, smem_bytes=233472 // 31).blocks_per_sm == 31


@pytest.mark.parametrize("wrong", [{"threads": 0}, {"registers": -1}, {"smem_bytes": -1}])
def test_what_is_no_kernel_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="no kernel has"):
        occupancy(H200, **{"threads": 32, "registers": 16, "smem_bytes": 0} | wrong)


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
    assert (2 * gram.read_bytes, gram.flops) == (general.read_bytes, general.flops * 17 / 32)
    assert gram.least_us == pytest.approx(general.least_us / 2, rel=1e-5)


# Data sheets, in TFLOPS, dense: S2050 1.03/0.515 a GPU, K40 4.29/1.43, M40 7 (base 6.8)/0.213. P100's counts its
# boost clock, 1303 MHz: 9.3/4.7. V100 125 with tensor cores; A100 312, 156 and 19.5; H100 and H200 989, 494 and 67,
# of which the first two count 1830 MHz and not the highest clock, 1980.
@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("v100", {"f16": 125, "bf16": 15.7, "f64": 7.8, "f32": 15.7}),
        ("a100", {"f16": 312, "bf16": 312, "tf32": 156, "3xtf32": 52, "f64": 19.5, "c128": 19.5, "f32": 19.5}),
        ("h100", {"f16": 989 * 1980 / 1830, "tf32": 494 * 1980 / 1830, "f64": 67, "c64": 67 * 4 / 3, "f32": 67}),
        ("h200", {"bf16": 989 * 1980 / 1830, "tf32": 494 * 1980 / 1830, "f64": 67, "c128": 67, "f32": 67}),
        ("s2050", {"f32": 1.03, "f64": 0.515}),
        ("k40c", {"f16": 4.29, "bf16": 4.29, "f32": 4.29, "f64": 1.43, "c64": 4.29}),
        ("m40", {"f32": 6.83, "f64": 0.213}),
        ("p100", {"f32": 9.5, "f64": 4.76}),
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


def test_the_papers_model_refuses_types_and_products_it_lacks() -> None:
    with pytest.raises(InputError, match="no peak rate of f64 on h200: tune there again"):
        roofline(Problem(8, 8, 8, "f64"), H200, Ceilings(4000.0, 3000.0, (("f32", 60000.0),)))
    with pytest.raises(InputError, match="TSM2's model does not cover 16x16x999:f32:tx: it covers A B with all"):
        choose(Problem(16, 16, 999, "f32", "tx"), H200)
    with pytest.raises(InputError, match="does not cover 16x16x999:bf16: it covers fused multiply-adds, in f32, f64"):
        choose(Problem(16, 16, 999, "bf16"), H200)


# --- Devices as users name them ---


def target(spec: str) -> Target:
    nothing: Any = None
    return Target(spec, nothing, replace(tuning_run().identity, uuid=f"GPU-{spec}"), nothing)


@pytest.fixture
def found_targets(two_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "find_target", target)


TWICE, NONE = "named twice", "device"  # of errors


@pytest.mark.usefixtures("found_targets")
@pytest.mark.parametrize(
    ("named", "found"),
    [
        (None, "0"), (1, "1"), ("1", "1"), ("0,1", "0 1"), (" 1, 0", "1 0"), ("all", "0 1"), ([0, "1"], "0 1"),
        ([target("1"), 0], "1 0"), ("cpu", "cpu"),
        ("0,0", TWICE), ("1,01", TWICE), ([0, "0"], TWICE), ("cpu,cpu", TWICE), ([target("0"), target("0")], TWICE),
        ("0,", NONE), ("", NONE), (",", NONE), ("all,none", NONE), ("0,all", NONE), ("0 1", NONE), ([], NONE),
    ],
)  # fmt: skip
def test_each_device_is_named_once(named: Any, found: str) -> None:
    if found in (TWICE, NONE):
        with pytest.raises(InputError, match=found):
            targets_of(named)
    else:
        assert [one.spec for one in targets_of(named)] == found.split()


@pytest.mark.usefixtures("no_driver")
def test_all_of_no_gpus_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"no GPU here .*: tsm2-tune predict --device h100 or h200"):
        targets_of("all")


def test_devices_of_one_name_are_numbered() -> None:
    assert list(names_of((target("0"), target("1")))) == ["GPU 0", "GPU 1"]
    assert list(names_of((target("cpu"), target("cpu")))) == ["cpu", "cpu (1)"]


def test_a_stored_device_has_the_limits_of_its_name() -> None:
    host, h200 = limits_of("cpu"), ("NVIDIA H200", PROFILES["h200"])
    both = [host.name, h200[0]]
    assert stored_target(both[:1], None, "results.db") == stored_target(both, host.name, "results.db")
    assert stored_target(both, host.name, "results.db") == (host.name, host)
    assert stored_target(both[1:], None, "results.db") == h200
    assert stored_target(both, "h200", "results.db") == h200
