"""The report: what its charts and tables are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fabricated import GPU, PROBLEM, tuning_run
from tests.reported import DETAIL, OTHER, Page, data_of, page_of, read, tried
from tsm2_tune.generator.problem import Problem
from tsm2_tune.html import bounds, charts, convergence, gains, heat_maps, roofline, side_by_side, trial_list
from tsm2_tune.html.contents import Contents, TrialRow
from tsm2_tune.html.page import page
from tsm2_tune.html.table_data import Table, columnar, fixed, rounded
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.trial import Cache, Outcome


@pytest.fixture
def own(path: Path) -> Contents:
    """Return the report's contents of two searches."""
    return read(tried(path, tuning_run()))


def winner(own: Contents, **changes: Any) -> BestRow:
    return replace(own.winners[0], **changes)


# Contents


def test_all_trials_are_read(own: Contents) -> None:
    assert (len(own.trials), len(own.winners), [one.identity.name for one in own.runs]) == (10, 2, [GPU])
    failed = [one for one in own.trials if one.outcome is Outcome.WRONG_RESULT]
    assert [(one.problem, one.median_us, one.detail) for one in failed] == [(OTHER, None, DETAIL)]
    assert own.trials[0].tunables == {"version": "v3", "threads": 64, "columns": 4, "prefetch": 4}


def test_a_state_of_the_l2_leaves_the_others_out(path: Path) -> None:
    assert len(read(tried(path), Cache.CLEAN).trials) == 10
    assert read(path, Cache.DIRTY).trials == ()


# Bounds


def test_each_group_keeps_the_same_share() -> None:
    groups = [list(range(100)), [7], list(range(50))]
    assert bounds.share([100, 1, 50], 41) == 20
    assert bounds.first_of_each(groups, 41) == [*range(20), 7, *range(20)]
    spread = bounds.spread_of_each(groups, 11)
    assert spread == [0, 25, 50, 74, 99, 7, 0, 12, 24, 37, 49]
    assert bounds.first_of_each(groups, 2) == [0, 7]
    assert bounds.first_of_each(groups, 1000) == [one for group in groups for one in group]


def test_a_cut_text_says_so() -> None:
    assert bounds.cut("x" * 500) == "x" * 500
    assert bounds.cut("x" * 501) == "x" * 500 + "… (1 more characters)"


def test_what_is_left_out_is_said() -> None:
    assert bounds.left_out("trials", 3000, 100_000, "the fastest").startswith("3,000 of 100,000 trials: the fastest.")
    assert bounds.left_out("trials", 3, 3, "the fastest") == ""


def test_a_large_database_is_bounded(own: Contents, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_list, "MOST_TRIALS", 3)
    monkeypatch.setattr(roofline, "MOST_POINTS", 4)
    monkeypatch.setattr(convergence, "MOST_SEARCHES", 1)
    monkeypatch.setattr(heat_maps, "MOST_OF_MAPS", 6)
    monkeypatch.setattr(gains, "MOST_WINNERS", 1)
    text = page(own, (), written_at="", version="", library="")
    for sentence in (
        "3 of 10 trials are listed", "4 of 9 trials are drawn", "1 of 2 searches", "6 of 8 trials are in heat maps",
        "1 of 2 winners",
    ):  # fmt: skip
        assert sentence in text
    found = data_of(Page(text))
    assert len(found["charts"]["convergence"]["spec"]["params"]) == 2
    assert len(found["trials"]["rows"]["trial"]) == 3
    outcomes = found["trials"]["rows"]["outcome"]
    assert set(outcomes["texts"]) == {"ok", "wrong-result"}  # the first texts of each problem and outcome
    assert len(found["maps"]["maps"][0]["us"]) == 6


def test_a_page_of_thousands_of_trials_has_a_few_megabytes(own: Contents) -> None:
    """No two of them have the same texts, times or tunables; half of them failed, with a long message."""
    problems = [Problem(1024 * at, 8, 4096, "f32") for at in range(1, 21)]
    right = own.trials[0]
    wrong = next(one for one in own.trials if one.outcome is Outcome.WRONG_RESULT)

    def tried_at(at: int) -> TrialRow:
        values: dict[str, Any] = {"id": at, "problem": problems[at % 20], "config": f"{at:05d}{'x' * 145}"}
        if at // 20 % 2:
            return replace(wrong, detail=f"{at:05d}{'y' * 3000}", **values)
        tunables = {**right.tunables, "threads": at, "columns": at // 40, "prefetch": at % 7}
        return replace(right, median_us=100.0 + at, tunables=tunables, **values)

    every = tuple(map(tried_at, range(50_000)))
    text = page(replace(own, trials=every), (), written_at="", version="", library="")
    assert "5,000 of 50,000 trials are listed" in text
    assert "3,000 of 25,000 trials are drawn" in text
    assert "20,000 of 25,000 trials are in heat maps" in text
    assert 3_000_000 < len(text.encode()) < 4_500_000  # beside the library that draws charts


# Charts


def test_gains_are_counted_with_the_losses(own: Contents) -> None:
    gain = gains.gain_of(own.winners)
    assert (gain.winners, gain.compared, gain.faster, gain.close, gain.slower) == (2, 2, 1, 0, 1)
    assert gain.mean == pytest.approx((2.0 * 0.8) ** 0.5)
    assert (gain.median, gain.least, gain.most) == pytest.approx((1.4, 0.8, 2.0))
    (lost,) = gains.lost(own.winners).rows
    assert lost[0] == OTHER.text
    assert [row["rank"] for row in gains.dots(own.winners)] == [1, 2]
    assert [row["problem"] for row in gains.dots(own.winners)] == [PROBLEM.text, OTHER.text]


@pytest.mark.parametrize(("factor", "losses"), [(0.96, 1), (0.98, 0), (1.0, 0)])
def test_the_table_of_losses_has_those_that_the_sentence_counts(own: Contents, factor: float, losses: int) -> None:
    row = winner(own, x_cublas=factor)
    assert len(gains.lost([row]).rows) == gains.gain_of([row]).slower == losses


def test_within_three_percent_is_no_gain_and_no_loss(own: Contents) -> None:
    rows = [winner(own, x_cublas=one) for one in (1.031, 1.029, 1.0, 0.971, 0.969)]
    gain = gains.gain_of(rows)
    assert (gain.faster, gain.close, gain.slower) == (1, 3, 1)


def test_a_wrong_vendor_is_compared_with_nothing(own: Contents) -> None:
    rows = [winner(own, vendor_us=9.0, vendor_right=0, x_cublas=None), winner(own, vendor_us=None, x_cublas=None)]
    gain = gains.gain_of(rows)
    assert (gain.compared, gain.wrong, gain.mean) == (0, 1, None)
    assert gains.dots(rows) == []
    assert "no time of cuBLAS" in gains.sentence("H", gain)
    both = gains.sentence("H", gains.gain_of([*rows, winner(own, x_cublas=2.0)]))
    assert "2.00 x cuBLAS in the median of 1 of 3 problems" in both
    assert "1 were not compared. cuBLAS gave a wrong result for 1." in both


def test_the_roofline_bends_where_memory_and_arithmetic_take_as_long(own: Contents) -> None:
    rows, note = roofline.points(own.trials, own.winners)
    assert note == ""
    assert sorted({row["what"] for row in rows}) == ["cuBLAS", "trial", "winner"]
    first = next(row for row in rows if row["problem"] == PROBLEM.text and row["us"] == 432.0)
    assert first["intensity"] == PROBLEM.flops / PROBLEM.least_bytes
    assert first["gflops"] == pytest.approx(PROBLEM.flops / 432.0 * 1e-3)
    line = [one for one in roofline.ceilings(own.runs, rows) if one["dtype"] == "f32"]
    assert [one["gflops"] for one in line][1:] == [60000.0, 60000.0]
    assert line[1]["intensity"] == 15.0
    assert line[0]["gflops"] == pytest.approx(4000.0 * line[0]["intensity"])


def test_a_search_has_steps_where_its_best_changes(own: Contents) -> None:
    groups, untold = convergence.by_search(own.trials)
    found, note = convergence.searches(groups)
    assert untold == note == ""
    steps = [(step.trials, step.seconds, step.best_us) for step in found[0].steps]
    assert steps == [
        (1, 3.0, 496.0), (2, 6.0, 492.0), (3, 9.0, 476.0), (4, 12.0, 472.0), (5, 15.0, 456.0), (6, 18.0, 452.0),
        (7, 21.0, 436.0), (8, 24.0, 432.0), (8, 24.0, 432.0),
    ]  # fmt: skip
    assert convergence.lines(found)[0]["over"] == pytest.approx(496 / 432)


def test_trials_that_a_search_did_not_ask_for_are_none_of_its_own(own: Contents) -> None:
    """If one trial names its strategy, all of its search do, and a trial without one is not of the search."""

    def counted(rows: Sequence[TrialRow]) -> list[int]:
        return sorted(one.trials for one in convergence.searches(convergence.by_search(rows)[0])[0])

    one, *others = own.trials
    assert counted(own.trials) == [2, 8]
    assert counted([replace(one, strategy="model"), *others]) == [1, 2]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((10, 40, None), (3, 40)),  # the largest of several spaces
        ((3, 3, 3), (3, 3)),
        ((2, 2, 2), None),  # no space has all that was tried
        ((None, None, None), None),
    ],
)
def test_searches_say_how_much_of_their_space_they_tried(
    own: Contents, sizes: Sequence[int | None], expected: tuple[int, int] | None
) -> None:
    trials = [replace(one, space_configurations=size) for one, size in zip(own.trials, sizes, strict=False)]
    found = convergence.coverages([trials])
    assert [(one.tried, one.configurations) for one in found] == ([expected] if expected else [])


def test_the_page_shows_the_completeness_of_searches(own: Contents) -> None:
    sizes = {PROBLEM: 1840, OTHER: 2}
    ended = {PROBLEM: "max-trials", OTHER: None}
    known = [
        replace(one, space_configurations=sizes[one.problem], search_ended=ended[one.problem]) for one in own.trials
    ]
    rows = convergence.completeness_table(convergence.coverages(convergence.by_search(known)[0])).rows
    assert [row[-1] for row in rows] == ["--max-trials", "interrupted, or not stored"]
    text = page_of(replace(own, trials=tuple(known))).root.whole_text()
    assert "Configurations tried: 10 of 1,842 (0.5429 %) in 2 searches, of which 1 tried all." in text
    assert "Completeness of each search" in text
    assert "1,840" in text
    assert "Completeness" not in page_of(own).root.whole_text()  # the schema is older


def test_imported_and_superseded_trials_are_of_no_search(own: Contents) -> None:
    imported = [replace(one, total_seconds=0.0) for one in own.trials]
    found, note = convergence.by_search(imported)
    assert (found, note.startswith("2 problems were imported")) == ([], True)
    assert convergence.by_search([replace(one, superseded=True) for one in own.trials]) == ([], "")
    assert roofline.points([replace(one, superseded=True) for one in own.trials], ())[0] == []


def test_a_heat_map_has_the_tunables_that_vary(own: Contents) -> None:
    (found,), note = heat_maps.maps(own.trials)
    assert note == ""
    assert list(found["tunables"]) == ["threads", "columns"]  # with four values, and with two
    assert found["tunables"]["threads"]["values"] == ["64", "128", "256", "512"]
    assert found["us"] == sorted(found["us"])
    first = [found["tunables"][name]["values"][found["tunables"][name]["at"][0]] for name in ("threads", "columns")]
    assert (first, found["us"][0]) == (["512", "8"], 432.0)


def test_a_tunable_that_is_not_stored_is_a_value_of_its_own(own: Contents) -> None:
    older = [replace(one, tunables={"threads": 64, "columns": 4}) for one in own.trials[:1]]
    newer = [replace(one, tunables={"threads": 64, "columns": 4, "swap": 2}) for one in own.trials[1:4]]
    few = [replace(one, tunables={"threads": 32, "columns": 4, "swap": "on"}) for one in own.trials[4:5]]
    ((found,), _) = heat_maps.maps([*older, *newer, *few])
    assert found["tunables"]["swap"]["values"] == ["2", "-", "on"]


def test_two_databases_are_compared_by_shared_problems(own: Contents, tmp_path: Path) -> None:
    other = read(tried(tmp_path / "other.db", tuning_run("NVIDIA H100"), scale=1.5))
    sides = [one for each in (own, other) for one in side_by_side.sides(each.name, each.winners)]
    (found,) = side_by_side.comparisons(sides)
    assert found.mean == pytest.approx(1.5)
    assert [side_by_side.factor(pair) for pair in found.pairs] == pytest.approx([1.5, 1.5])
    assert (
        "2 shared problems, 2 of them faster on the first; times on the other are 1.50 times"
        in side_by_side.sentence(found)
    )
    text = page_of(own, other).root.whole_text()
    assert "NVIDIA H100" in text


def test_times_of_two_states_are_not_compared(own: Contents) -> None:
    sides = [
        side_by_side.Side("a", own.winners),
        side_by_side.Side("b", tuple(replace(row, cache="dirty") for row in own.winners)),
    ]
    (found,) = side_by_side.comparisons(sides)
    assert (found.pairs, found.other_states) == ((), 2)
    assert side_by_side.sentence(found) == (
        "a and b share no problem that was measured in the same state of the L2. 2 more were measured in"
        " different states of the L2."
    )


def test_two_devices_of_one_database_are_compared(path: Path) -> None:
    tried(path, tuning_run())
    found = page_of(read(tried(path, tuning_run("NVIDIA H100"), scale=2.0)))
    assert "Comparison of devices and databases" in found.root.whole_text()
    times = data_of(found)["charts"]["comparison"]["data"]["compared"]["x"]
    assert times == [0.5, 0.5]  # the H200's over the H100's, which comes first


def test_a_trial_says_why_it_does_not_compete(own: Contents) -> None:
    changed = [replace(own.trials[0], superseded=True, guideline_broken="min-reuse"), *own.trials[1:]]
    rows, _ = trial_list.listed(changed)
    assert [row["why"] for row in rows[:2]] == [
        "superseded: this version generates other code; breaks the guideline min-reuse by its real occupancy",
        "",
    ]
    failed = next(row for row in rows if row["outcome"] == "wrong-result")
    assert failed["why"].startswith(DETAIL[:100])
    assert failed["us"] is None
    assert "device" not in trial_list.heads(rows)
    assert "device" in trial_list.heads([rows[0], {**rows[1], "device": "another"}])


@pytest.mark.slow
def test_every_specification_compiles(own: Contents) -> None:
    """By the Vega-Lite that draws them."""
    reason = "vl-convert-python is not installed: pip install 'tsm2-tune[report]'"
    vega_lite = pytest.importorskip("vl_convert", reason=reason)
    rows, _ = roofline.points(own.trials, own.winners)
    dots = gains.dots(own.winners)
    many = [{**dots[0], "device": str(number % 2), "rank": number} for number in range(50)]
    compared = [{"other": "b", "problem": "p", "rank": 1, "x": 0.5, "us": 1.0, "other_us": 0.5}]
    for spec in (
        charts.gains(dots), charts.gains(many), charts.roofline(rows), charts.convergence(["a", "b"]),
        charts.heat_map(), charts.comparison(compared),
    ):  # fmt: skip
        compiled = vega_lite.vegalite_to_vega(spec)
        assert compiled["marks"]


# Numbers and columns


def test_numbers_are_short() -> None:
    assert [rounded(one).text for one in (1234.5, 12.34, 1.234, 0.01234, None)] == [
        "1,234",
        "12.3",
        "1.23",
        "0.0123",
        "-",
    ]


def test_columns_write_a_text_once() -> None:
    rows: list[dict[str, Any]] = [{"a": "x", "b": 1.23456789}, {"a": "y", "b": None}, {"a": "x", "b": 3}]
    assert columnar(rows, ("a", "b")) == {"a": {"texts": ["x", "y"], "at": [0, 1, 0]}, "b": [1.23457, None, 3]}
    assert columnar([], ("a",)) == {"a": []}


def test_a_column_of_one_value_is_left_out() -> None:
    table = Table("", ("problem", "device"), (("p", "d"), ("q", "d")))
    assert table.without_one("device").heads == ("problem",)
    other = replace(table, rows=(("p", "d"), ("q", "e")))
    assert other.without_one("device") is other
    assert Table("", ("a", "b"), (("x", fixed(1, 1)),)).numeric == (False, True)
