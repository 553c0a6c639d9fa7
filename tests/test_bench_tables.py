"""Tests of what benchmarks compute from the rows of their files: means, quantiles, the faster side, and tables."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks import measured, scale, unseen_tables
from benchmarks.cells import LAYOUTS, REGIMES, SHAPE_SETS, SMALL_EXTENT, Cell, Regime, cells, in_set, shapes_of
from benchmarks.claims import outcome
from benchmarks.gains import Calls, gains_of
from benchmarks.headline import (
    geometric_mean,
    gram,
    headline,
    means,
    means_text,
    products,
    runs_together,
    small_products,
)
from benchmarks.leave_one_out import outcome as outcome_of_choices
from benchmarks.leave_one_out import pairs_to_time, regime
from benchmarks.plot import DOTS_PER_INCH, POINTS, draw, long_text, narrow_text
from benchmarks.scale_simulation import Load, simulated
from benchmarks.unseen_run import ratios
from benchmarks.unseen_shapes import OWNERS, UNSEEN_REGIMES, Ranges, drawn
from tests.fabricated_rows import BIG, FACTS, SMALL, row
from tests.fabricated_rows import measured as of_unseen
from tsm2_tune.errors import InputError
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.families import FAMILIES, parse_config
from tsm2_tune.generator.problem import DTYPES, Problem
from tsm2_tune.tuner.runs.leases import RENEWAL_SECONDS
from tsm2_tune.tuner.verify.operands import needed_bytes

H200 = PROFILES["h200"]
SQUARE_PROBLEM = Problem(16, 16, 10_000_000, "f32", "nxt")
SQUARE = row(Cell("G", "row", SQUARE_PROBLEM))
PROBLEM = Problem(20480, 2, 20480, "f32")


def last_line(table: str) -> list[str]:
    return [cell.strip() for cell in table.splitlines()[-1].split("|")[1:-1]]


# Which products are measured


def test_cells_are_of_their_regimes_and_of_nested_sets() -> None:
    for m, n, k in shapes_of("R", "full"):
        assert 10240 <= m <= 30720
        assert n <= 64
        assert m == k or (m == 15360 and k in (1920, 3840, 7680))
    assert all(m >= 10_000 and max(n, k) <= 64 for m, n, k in shapes_of("L", "full"))
    assert {(k, n, m) for m, n, k in shapes_of("L", "full")} == set(shapes_of("T", "full"))
    for name in REGIMES:
        quick, head, full = (shapes_of(name, shape_set) for shape_set in SHAPE_SETS)
        assert all(len(set(shapes)) == len(shapes) for shapes in (quick, head, full))
        assert set(head) <= set(full) > set(quick)
    found = cells(REGIMES, LAYOUTS, ("f32", "f64"), "full")
    assert len({cell.text for cell in found}) == len(found) == 4 * sum(len(shapes_of(one, "full")) for one in REGIMES)
    for cell in found:
        assert cell.small == (cell.regime != "R" and max(cell.problem.m, cell.problem.k) <= SMALL_EXTENT)
    assert in_set(row(), "headline")
    assert not in_set(row(Cell("R", "column", Problem(20480, 3, 20480, "f32"))), "headline")


@pytest.mark.parametrize("name", DTYPES)
def test_every_cell_of_the_headline_has_a_family_in_every_type(name: str) -> None:
    every = cells(REGIMES, LAYOUTS, (name,), "headline")
    assert all(any(family.supports(cell.problem) for family in FAMILIES.values()) for cell in every)
    ops = {"f32": {"tx", "nxt"}, "f64": {"tx", "nxt"}, "c64": {"cx", "jxt"}, "c128": {"cx", "jxt"}}  # BLAS has these
    assert {cell.problem.op for cell in every if cell.regime == "G"} == ops.get(name, set())


DRAW: dict[str, Any] = {"each": 14, "ranges": Ranges(), "seed": 0, "limits": H200}
KINDS = (UNSEEN_REGIMES, LAYOUTS, ("f32", "f64", "c64"))


def test_unseen_shapes_are_drawn_log_uniformly_and_fit() -> None:
    found = drawn(*KINDS, **DRAW)
    assert len(found) == len({cell.problem for cell in found}) == 3 * 2 * 3 * 14
    for cell in found:
        p = cell.problem
        large, long, small = {
            "R": ((p.m, p.k), (), (p.n,)), "L": ((), (p.m,), (p.n, p.k)), "T": ((), (p.k,), (p.m, p.n)),
        }[cell.regime]  # fmt: skip
        assert all(2_000 <= extent <= 30_000 for extent in large)
        assert all(20_000 <= extent <= 20_000_000 for extent in long)
        assert all(1 <= extent <= 64 for extent in small)
        assert OWNERS * needed_bytes(p) < H200.memory_bytes
    many = drawn(("L",), ("column",), ("f32",), **DRAW | {"each": 800})
    places = [math.log(cell.problem.m / 20_000) / math.log(1000) for cell in many]
    assert all(150 <= sum(at / 4 <= place < (at + 1) / 4 for place in places) <= 250 for at in range(4))
    assert set(drawn(("T",), ("row",), ("f64",), **DRAW)) <= set(found)  # the other arguments make no difference
    assert not set(drawn(*KINDS, **DRAW | {"seed": 1})) & set(found)
    few = replace(H200, memory_bytes=8 * 2**30)  # 2 GiB of it are for operands
    assert all(OWNERS * needed_bytes(cell.problem) <= 2**31 for cell in drawn(*KINDS, **DRAW | {"limits": few}))
    with pytest.raises(InputError, match=r"the ranges have no 2 shapes of R in f32 that fit h200"):
        drawn(("R",), ("column",), ("f32",), **DRAW | {"each": 2, "ranges": Ranges(large=(9, 9), small=(2, 2))})


# Beside cuBLAS


def interval(found: dict[str, Any], who: str, low: float, high: float) -> dict[str, Any]:
    return {**found, f"{who}_low_us": low, f"{who}_high_us": high}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (row(ours=400.0, lt=480.0), "ahead"),
        (row(ours=490.0, lt=480.0), "behind"),
        (interval(row(ours=479.0, lt=480.0), "ours", 470.0, 480.5), "even"),
        (interval(row(ours=481.0, lt=480.0), "cublaslt", 479.0, 482.0), "even"),
        (row(ours=490.0, lt=None), "ahead"),
        ({**row(ours=510.0, lt=None), "cublas_verified": False}, "ahead"),
        ({**row(ours=490.0, lt=480.0), "cublaslt_verified": False}, "ahead"),
    ],
)
def test_who_is_ahead_is_told_by_intervals_and_right_answers(found: dict[str, Any], expected: str) -> None:
    assert outcome(found) == expected


def test_the_headline_has_a_line_a_cell() -> None:
    texts, config = ["R", "column", "f32", "20480x8x20480"], "`tsm2:version=v3,threads=128,columns=8,prefetch=4`"
    texts[3] = "20480 x 8 x 20480"
    assert last_line(headline([row()])) == [*texts, *["**400**", "500", "480", "1.20", "410", "1.20", "95"], config]
    before = {name: value for name, value in row().items() if "dirty" not in name}
    assert last_line(headline([before])) == [*texts, *["**400**", "500", "480", "1.20", "95"], config]
    assert last_line(headline([row(), before]))[7:11] == ["1.20", "–", "–", "95"]
    assert "dirty" not in means_text([before])
    wrong = {**row(ours=600.0), "cublas_verified": False}
    assert " | 600 | 500 (wrong) | **480** | 0.80 | " in headline([wrong])
    assert [mean["cublas"] for mean in means([wrong, row()])] == [pytest.approx(500 / 400)]
    assert " | syrk us | cuBLASLt us | " in gram([row(), SQUARE])
    assert (gram([row()]), products([row(), row(SMALL), SQUARE])) == ("", headline([row()]))
    graph = {"ours_graph_us": 2.5, "cublas_graph_us": 5.25, "launch_floor_us": 1.5}
    assert last_line(small_products([{**row(SMALL), **graph}, row()]))[4:] == ["**2.50**", "5.25", "1.50", "1.00"]
    assert small_products([row()]) == ""


def test_means_are_geometric_and_leave_small_cells_apart() -> None:
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert geometric_mean([]) is None
    first, second = means([row(ours=250.0), row(ours=1000.0, lt=None), row(SMALL, lt=300.0)])
    assert (first["regime"], first["cells"], first["behind"]) == ("R", 2, 1)  # cuBLAS, where cuBLASLt has none
    assert first["faster"] == pytest.approx((480 / 250 * 500 / 1000) ** 0.5)
    assert (first["cublas"], first["cublaslt"]) == (pytest.approx(1.0), pytest.approx(480 / 250))
    assert (second["regime"], second["behind"]) == ("L small", 1)
    text = means_text([row(ours=250.0), row(ours=1000.0, lt=None)])
    assert last_line(text) == ["R", "f32", "column", "2", *["0.98", "1.00", "1.92", "1", "0.98", "1.00", "1.88"]]
    earlier = {**FACTS, "date": "2026-11-20", "read_gbytes_per_s": 4600.0}
    assert runs_together({**FACTS, "earlier_runs": [earlier], "rows": []}) == (
        "NVIDIA H200, 580, nvcc 13.0, cuBLAS 130100; 2026-11-20 to 2026-11-21, 2 runs. Ceilings: 4.60 to 4.62 TB/s"
        " read, 4.17 TB/s copied, 65.0 TFLOP/s by FMA in f32, 65.0 TFLOP/s on the tensor cores in f64."
    )


@pytest.mark.slow
def test_the_letters_of_the_picture_can_be_read(tmp_path: Path) -> None:
    """A code host shows the picture 860 pixels wide."""
    pytest.importorskip("matplotlib")
    draw({**FACTS, "rows": [row(BIG), row(SMALL)]}, tmp_path / "picture.foo")
    picture = (tmp_path / "picture.foo").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert (POINTS - 1) * DOTS_PER_INCH / 72 * 860 / int.from_bytes(picture[16:20], "big") >= 9.5
    problems = [Problem(20480, 8, 20480, "f32"), Problem(15360, 3, 1920, "f32"), Problem(10**7, 64, 8, "f32")]
    regimes: tuple[Regime, ...] = ("R", "R", "L")
    rows = [row(Cell(one, "column", problem)) for one, problem in zip(regimes, problems, strict=True)]
    texts = [(narrow_text(found), long_text(found)) for found in rows]
    assert texts == [("8", "20480"), ("3", "15360 x 1920"), ("8x64", "$10^{7}$")]


# A program's gain, with the cost of the call


CALLS = Calls(ours_us=6.0, vendors_us=12.0, left_us=16.0)


def product(ours: float, vendors: float, **changes: Any) -> dict[str, Any]:
    plain = {"cublas_us": vendors, "cublaslt_us": None, "falls_back": False, "plan_us": None, "plan_verified": True}
    found: dict[str, Any] = row() | plain | {"ours_us": ours} | changes
    return found


def winner(ours: float, vendors: float, cublas: float | None = None, **changes: Any) -> dict[str, Any]:
    """A winner as a JSON export has it."""
    times = {"median_us": ours, "vendor_us": vendors, "cublas_us": vendors if cublas is None else cublas}
    return {"m": 20480, "n": 8, "k": 20480, "vendor_right": 1, "cublas_right": 1} | times | changes


@pytest.mark.parametrize(
    ("found", "gain"),
    [
        (product(100.0, 250.0), 2.5),
        (product(3.0, 4.0), 2.0),  # the call takes longer: 12 us over 6
        (product(3.0, 24.0), 4.0),
        (product(300.0, 200.0, falls_back=True), 1.0),
        (product(7.0, 5.0, falls_back=True), 12.0 / 16.0),
        # cuBLASLt's fastest algorithm is what it is compared with, and cuBLAS's own routine what PyTorch starts.
        (product(300.0, 250.0, cublaslt_us=200.0, cublaslt_verified=True, falls_back=True), 200.0 / 250.0),
        (product(1.0, 2.0, cublas_verified=False), None),
        (product(100.0, 200.0, verified=False), None),
        # The module found it by timing: a kind of its own.
        (product(100.0, 200.0, plan_us=80.0, plan="stream_a_fma", falls_back=None), 2.5),
        (product(100.0, 5.0, plan_us=3.0, plan="stream_a_fma", falls_back=None), 12.0 / 6.0),
        (product(100.0, 200.0, plan_us=190.0, plan="the vendor: timed", falls_back=None), 200.0 / 190.0),
        (product(100.0, 5.0, plan_us=5.0, plan="the vendor: timed", falls_back=None), 12.0 / 16.0),
        (product(100.0, 5.0, plan_us=5.0, plan="a", falls_back=None, plan_verified=False), None),
        (winner(300.0, 200.0), 1.0),
        (winner(300.0, 200.0, 250.0), 0.8),
        (winner(240.0, 200.0, 250.0), 200 / 240),
        (winner(300.0, 200.0, 250.0, cublas_right=0), 200.0 / 300.0),  # not left to a routine that is wrong
        (winner(100.0, 200.0, vendor_right=0), None),
    ],
)
def test_a_product_takes_the_longer_of_its_kernel_and_its_call(found: dict[str, Any], gain: float | None) -> None:
    of_kinds = gains_of([], [found], CALLS) if "falls_back" in found else gains_of([found], [], CALLS)
    assert [value for values in of_kinds.values() for value in values] == (
        [] if gain is None else [pytest.approx(gain)]
    )


# Shapes that were not tuned


def summary_of(*rows: dict[str, Any], by_timing: bool = False) -> Any:
    return unseen_tables.summary(rows, by_timing=by_timing)


def test_a_summary_is_of_times_over_ours() -> None:
    found = summary_of(of_unseen(), of_unseen(ours_us=960.0, expected_us=480.0))
    assert (found.shapes, found.worst, found.slower, found.slower_with_fallback) == (2, 0.5, 0.5, 0.5)
    expected = {
        "x_vendor": math.sqrt(1.2 * 0.5), "x_search": math.sqrt(0.95 * 380 / 960), "search_x_vendor": 480 / 380,
        "median_regret": (400 / 380 + 960 / 380) / 2 - 1, "regret_of_95": 960 / 380 - 1,
        "off": (500 / 400 + 960 / 480) / 2, "off_of_95": 2.0,
    }  # fmt: skip
    assert {name: getattr(found, name) for name in expected} == pytest.approx(expected)
    timed = summary_of(of_unseen(), of_unseen(ours_us=960.0), by_timing=True)
    assert (timed.x_vendor, timed.x_search) == (pytest.approx(480 / 384), pytest.approx(380 / 384))
    assert timed.median_regret == timed.regret_of_95 == pytest.approx(384 / 380 - 1)
    assert [unseen_tables.ranked(values, 0.95) for values in ([], list(range(100, 0, -1)), [3.0])] == [None, 95, 3.0]


def test_slower_is_by_over_3_percent_and_a_fallback_takes_the_vendors_time() -> None:
    assert [summary_of(of_unseen(ours_us=480.0 * times)).slower for times in (1.029, 1.031)] == [0, 1]
    left = summary_of(of_unseen(ours_us=960.0, falls_back=True, fallback_us=485.0))
    assert (left.slower, left.slower_with_fallback) == (1, 0)
    assert summary_of(of_unseen(falls_back=None)).slower_with_fallback is None
    assert unseen_tables.with_fallback_us(of_unseen(fallback_us=1.0)) == 400.0
    slow = summary_of(of_unseen(plan_us=500.0, falls_back=True, fallback_us=480.0), by_timing=True)
    assert (slow.slower, slow.slower_with_fallback) == (1, 1)
    # cuBLAS's own routine takes longer than cuBLASLt's fastest algorithm, and is what the library has.
    own = of_unseen(ours_us=450.0, cublas_us=440.0, cublaslt_us=400.0, fallback_us=441.0, falls_back=True)
    found = summary_of(own)
    assert (found.slower, found.slower_with_fallback, found.slower_than_cublas) == (1.0, 1.0, 0.0)
    assert summary_of(of_unseen(plan_us=470.0, cublas_us=440.0), by_timing=True).slower_than_cublas == 1.0


def test_wrong_answers_are_no_times() -> None:
    assert summary_of(of_unseen(cublas_verified=False, cublaslt_verified=False)).x_vendor is None
    assert summary_of(of_unseen(search_verified=False)).x_search is None
    assert summary_of(of_unseen(plan_verified=False), by_timing=True).x_search is None
    wrong = summary_of(of_unseen(verified=False))
    assert (wrong.x_vendor, wrong.x_search) == (None, None)
    assert ratios(of_unseen(search_verified=False, cublas_verified=False)) == {
        "x_vendor": 1.2, "x_search": 0.95, "x_search_of_plan": 0.9896, "x_expected": 1.25,
    }  # fmt: skip


# What a search knows before


def spelt(splits: int, stages: int = 2) -> KernelConfig:
    text = f"stream_a_fma:threads=64,columns=2,prefetch=16,stages={stages},splits={splits},min_blocks=6"
    return cast(KernelConfig, parse_config(text))


def test_measured_problems_keep_the_fastest_and_pairs_are_of_whole_cells() -> None:
    times = {spelt(8): 100.0, spelt(13): 99.0, spelt(8, 4): 101.0, spelt(5, 8): 102.0, spelt(4, 8): 103.0}
    kept = [(spelt(13), 99.0), (spelt(8, 4), 101.0), (spelt(5, 8), 102.0)]  # each of another main loop
    assert [(one.config, one.us) for one in measured.fastest(times)] == kept
    times = {spelt(8): 100.0, spelt(13): 101.0, spelt(5): 102.0}
    assert outcome_of_choices(PROBLEM, [spelt(13)], times).is_hit  # within a percent
    missed, unknown = (outcome_of_choices(PROBLEM, choices, times) for choices in ([spelt(5), spelt(4)], [spelt(4)]))
    assert (missed.is_hit, missed.times, unknown.is_hit, unknown.times) == (False, 1.02, False, 0)
    assert unknown.expected > 0
    every = [PROBLEM, Problem(10240, 2, 10240, "f64"), Problem(10**7, 2, 2, "f32")]
    known = {problem: {spelt(26): 1.0} for problem in every}
    lists = [dict.fromkeys(every, choices) for choices in ((spelt(8), spelt(13)), (spelt(8),))]
    pairs = list(pairs_to_time(lists, known, most=7))
    assert [set(configs) for _, configs in pairs] == [{spelt(8), spelt(13), spelt(26)}] * 2
    assert list(pairs_to_time(lists, known, most=7)) == pairs
    texts = "20480x2x20480:f32", "10000000x8x8:f32", "8x8x10000:f32:tn", "16x16x10000000:f32:tx"
    assert [regime(Problem.parse(text)) for text in texts] == ["R", "L", "T", "G"]


# A campaign on many GPUs


def test_a_campaign_has_a_parent_a_node() -> None:
    found = scale.recorded()
    search = found.searches[0]
    nodes, apart = (scale.Campaign(shapes=100, gpus=10, kinds=1, gpus_per_node=count) for count in (8, 1))
    writes, of_apart = (scale.writes_per_second(search, one, found) for one in (nodes, apart))
    assert list(writes) == ["trials", "leases", "finals", "renewals"]
    assert (writes["renewals"], of_apart["renewals"]) == (2 / RENEWAL_SECONDS, 10 / RENEWAL_SECONDS)
    assert writes["leases"] == of_apart["leases"] == pytest.approx(10 * 2 / search.seconds)
    assert 10 * search.trials / search.seconds / writes["trials"] == pytest.approx(3)  # 26 a second, 0.1 s together
    full = [{one.name: one.gpus for one in scale.limits(search, of, found)} for of in (nodes, apart)]
    assert [one["connections to PostgreSQL"] for one in full] == [pytest.approx(97 * 8 / 9), 97 / 2]


def test_a_parent_stores_what_has_ended_meanwhile() -> None:
    load = Load(trials_per_second=10.0, server_seconds=0.01, ahead=4)
    assert load.next_store(1.1, 1.05) == pytest.approx((1.2, 2))  # the first trial after 1.15
    assert load.next_store(1.1, 1.25) == pytest.approx((1.4, 4))
    assert load.next_store(1.1, 1.39) == pytest.approx((1.5, 5))
    assert load.next_store(1.1, 1.42) == pytest.approx((1.52, 5))  # the GPU waited from 1.4 on
    assert load.next_store(1.1, 9.0) == pytest.approx((9.1, 5))  # the GPU waited after the fourth
    assert replace(load, trials_per_second=100.0, ahead=40).next_store(1.0, 1.105) == pytest.approx((1.21, 22))


def test_a_full_server_stores_what_its_processors_can() -> None:
    load = Load(trials_per_second=10.0, server_seconds=0.01, ahead=4)
    alone = simulated([load], cores=1)
    assert alone.waits[-1] == 0.0  # stored while it tries others
    assert alone.trials == pytest.approx(1, rel=0.02)
    assert alone.busy == pytest.approx(10 * 0.01, rel=0.1)
    full = simulated([load] * 400, cores=4)
    assert full.busy > 0.99
    assert full.trials * 400 * load.trials_per_second == pytest.approx(4 / load.server_seconds, rel=0.05)
    # All but those that are served wait: by Little's law, for what each has to do but make a trial and store five.
    assert full.wait(0.5) == pytest.approx(400 / (4 / load.server_seconds / 5) - 0.1 - 0.05, rel=0.1)
    assert simulated([load] * 50, cores=2, seed=1) == simulated([load] * 50, cores=2, seed=1)
    assert simulated([load] * 50, cores=2, seed=1) != simulated([load] * 50, cores=2, seed=2)
