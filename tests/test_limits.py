"""Limits of devices: bundled profiles, facts by compute capability, peaks."""

from dataclasses import replace

import pytest

from tsm2_tune.errors import InputError
from tsm2_tune.generator.device.architecture import architecture_of, peak_gflops
from tsm2_tune.generator.device.cards import PROFILES, PUBLISHED_PEAKS, profile_named


def test_unknown_names_and_chips_are_refused() -> None:
    said = r"unknown device 'k80': expected a GPU's number, cpu, or a GPU model: s2050, k40c, m40"
    with pytest.raises(InputError, match=said):
        profile_named("k80")
    with pytest.raises(InputError, match="unknown dtype 'f8'"):
        peak_gflops(profile_named("h200"), "f8")
    with pytest.raises(InputError, match=r"compute capability 1\.3: expected 2\.0 or newer"):
        architecture_of((1, 3))  # a chip before Fermi


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


@pytest.mark.parametrize("name", ["sms", "warp_threads", "sm_clock_mhz", "dram_gbytes_per_s"])
def test_a_limit_that_divides_cannot_be_zero(name: str) -> None:
    with pytest.raises(ValueError, match=f"limits of h200: {name} = 0(.0)? is not positive"):
        replace(profile_named("h200"), **{name: 0})  # type: ignore[arg-type]


# Data sheets, in TFLOPS: S2050 1.03/0.515 a GPU, K40 4.29/1.43, M40 7 (base 6.8)/0.213, V100 15.7/7.8, A100 19.5/9.7,
# H100 SXM5 and H200 67/34. P100's counts its boost clock, 1303 MHz: 9.3/4.7.
@pytest.mark.parametrize(
    ("name", "f32_tflops", "f64_tflops"),
    [("s2050", 1.03, 0.515), ("k40c", 4.29, 1.43), ("m40", 6.83, 0.213), ("p100", 9.5, 4.76),
     ("v100", 15.7, 7.8), ("a100", 19.5, 9.7), ("h100", 67, 33.5), ("h200", 67, 33.5)],
)  # fmt: skip
def test_peaks_are_those_of_the_data_sheets(name: str, f32_tflops: float, f64_tflops: float) -> None:
    card = profile_named(name)
    assert peak_gflops(card, "f32") == pytest.approx(f32_tflops * 1e3, rel=0.01)
    assert peak_gflops(card, "f64") == pytest.approx(f64_tflops * 1e3, rel=0.01)


@pytest.mark.parametrize("key", PUBLISHED_PEAKS)
def test_published_peaks_are_near_cores_times_clock(key: tuple[str, str]) -> None:
    name, dtype_name = key
    assert PUBLISHED_PEAKS[key].gflops == pytest.approx(peak_gflops(profile_named(name), dtype_name), rel=0.04)


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


@pytest.mark.parametrize(
    ("asked", "answered"), [((13, 0), (12, 1)), ((99, 9), (12, 1)), ((8, 8), (8, 7)), ((9, 0), (9, 0))]
)
def test_an_unknown_chip_gets_the_newest_row_before_it(asked: tuple[int, int], answered: tuple[int, int]) -> None:
    assert architecture_of(asked).compute_capability == answered
