"""The report: what its charts and tables are made of, its page, and what the command refuses."""

from __future__ import annotations

import base64
import hashlib
import re
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tsm2_tune
from tests.command import refused, run
from tests.databases import database_of
from tests.fabricated import tuning_run
from tests.reported import DETAIL, DEVICE, LIBRARY, OTHER, OUTLINE, Page, data_of, outline, page_of, read, tried
from tsm2_tune.errors import pip_install
from tsm2_tune.generator.problem import Problem
from tsm2_tune.html import bounds, charts, convergence, gains, side_by_side, trials
from tsm2_tune.html.contents import Contents, TrialRow
from tsm2_tune.html.page import page
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.trial import Cache, Outcome


@pytest.fixture
def without_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that draws nothing, in the place of the one that takes seconds to make."""
    monkeypatch.setitem(
        sys.modules, "vl_convert", SimpleNamespace(javascript_bundle=lambda snippet: LIBRARY + snippet)
    )


@pytest.fixture
def own(path: Path) -> Contents:
    """Return the report's contents of two searches."""
    return read(tried(path, tuning_run()))


def winner(own: Contents, **changes: Any) -> BestRow:
    return replace(own.winners[0], **changes)


def test_a_state_of_the_l2_leaves_the_others_out(path: Path) -> None:
    assert len(read(tried(path), Cache.CLEAN).trials) == 10
    assert read(path, Cache.DIRTY).trials == ()


def test_the_page_is_as_its_outline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a reader sees of two databases, and the numbers of the charts."""
    monkeypatch.chdir(tmp_path)
    assert outline() == OUTLINE.read_text(encoding="utf-8"), "python -m tests.printed_commands"


def test_each_group_keeps_the_same_share() -> None:
    groups = [list(range(100)), [7], list(range(50))]
    assert bounds.share([100, 1, 50], 41) == 20
    assert bounds.first_of_each(groups, 41) == [*range(20), 7, *range(20)]
    spread = bounds.spread_of_each(groups, 11)
    assert spread == [0, 25, 50, 74, 99, 7, 0, 12, 24, 37, 49]
    assert bounds.first_of_each(groups, 2) == [0, 7]
    assert bounds.first_of_each(groups, 1000) == [one for group in groups for one in group]


@pytest.mark.slow
def test_a_page_of_thousands_of_trials_has_a_few_megabytes(own: Contents) -> None:
    """No two of them have the same texts, times or tunables; half of them failed, with a long message."""
    problems = [Problem(1024 * at, 8, 4096, "f32") for at in range(1, 121)]
    right = own.trials[0]
    wrong = next(one for one in own.trials if one.outcome is Outcome.WRONG_RESULT)

    def tried_at(at: int) -> TrialRow:
        values: dict[str, Any] = {"id": at, "problem": problems[at % 120], "config": f"{at:05d}{'x' * 145}"}
        if at // 120 % 2:
            return replace(wrong, detail=f"{at:05d}{'y' * 3000}", **values)
        tunables = {**right.tunables, "threads": at, "columns": at // 240, "prefetch": at % 7}
        return replace(right, median_us=100.0 + at, tunables=tunables, **values)

    every = tuple(map(tried_at, range(48_000)))
    many = replace(own, trials=every, winners=own.winners * 1001)
    text = page(many, (), written_at="", version="", library="")
    for sentence in (
        "4,800 of 48,000 trials are listed", "3,000 of 24,000 trials are drawn", "100 of 120 searches",
        "20,000 of 24,000 trials are in heat maps", "2,000 of 2,002 winners",
    ):  # fmt: skip
        assert sentence in text
    rows = data_of(Page(text))["trials"]["rows"]
    assert set(rows["outcome"]["texts"]) == {"ok", "wrong-result"}  # the first of each problem and outcome
    assert 3_000_000 < len(text.encode()) < 5_500_000  # beside the library that draws charts


@pytest.mark.parametrize(("factor", "losses"), [(0.969, 1), (0.971, 0), (1.0, 0), (1.029, 0), (1.031, 0)])
def test_within_three_percent_is_no_gain_and_no_loss(own: Contents, factor: float, losses: int) -> None:
    row = winner(own, x_cublas=factor)
    gain = gains.gain_of([row])
    assert len(gains.lost([row]).rows) == gain.slower == losses
    assert gain.faster == int(factor > 1.03)


def test_a_wrong_vendor_is_compared_with_nothing(own: Contents) -> None:
    rows = [winner(own, vendor_us=9.0, vendor_right=0, x_cublas=None), winner(own, vendor_us=None, x_cublas=None)]
    gain = gains.gain_of(rows)
    assert (gain.compared, gain.wrong, gain.mean) == (0, 1, None)
    assert gains.dots(rows) == []
    assert "no time of cuBLAS" in gains.sentence("H", gain)
    both = gains.sentence("H", gains.gain_of([*rows, winner(own, x_cublas=2.0)]))
    assert "2.00 x cuBLAS in the median of 1 of 3 problems" in both
    assert "1 were not compared. cuBLAS gave a wrong result for 1." in both


def test_trials_that_a_search_did_not_ask_for_are_none_of_its_own(own: Contents) -> None:
    """If one trial names its strategy, all of its search do, and a trial without one is not of the search."""

    def counted(rows: Sequence[TrialRow]) -> list[int]:
        return sorted(one.trials for one in convergence.searches(convergence.by_search(rows)[0]))

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
def test_coverage_of_searches(own: Contents, sizes: Sequence[int | None], expected: tuple[int, int] | None) -> None:
    trials = [replace(one, space_configurations=size) for one, size in zip(own.trials, sizes, strict=False)]
    found = [one for one in convergence.searches([trials]) if one.configurations is not None]
    assert [(one.tried, one.configurations) for one in found] == ([expected] if expected else [])


def test_imported_and_superseded_trials_are_of_no_search(own: Contents) -> None:
    imported = [replace(one, total_seconds=0.0) for one in own.trials]
    found, note = convergence.by_search(imported)
    assert (found, note.startswith("2 problems were imported")) == ([], True)
    assert convergence.by_search([replace(one, superseded=True) for one in own.trials]) == ([], "")
    assert trials.points([replace(one, superseded=True) for one in own.trials], ())[0] == []


def test_a_tunable_that_is_not_stored_is_a_value_of_its_own(own: Contents) -> None:
    older = [replace(one, tunables={"threads": 64, "columns": 4}) for one in own.trials[:1]]
    newer = [replace(one, tunables={"threads": 64, "columns": 4, "swap": 2}) for one in own.trials[1:4]]
    few = [replace(one, tunables={"threads": 32, "columns": 4, "swap": "on"}) for one in own.trials[4:5]]
    ((found,), _) = trials.maps([*older, *newer, *few])
    assert found["tunables"]["swap"]["values"] == ["2", "-", "on"]


def test_times_of_two_states_are_not_compared(own: Contents) -> None:
    dirty = tuple(replace(row, cache="dirty") for row in own.winners)
    (found,) = side_by_side.comparisons([side_by_side.Side("a", own.winners), side_by_side.Side("b", dirty)])
    assert (found.pairs, found.other_states) == ((), 2)
    assert side_by_side.sentence(found) == (
        "a and b share no problem that was measured in the same state of the L2. 2 more were measured in"
        " different states of the L2."
    )


@pytest.mark.slow
def test_every_specification_compiles_by_vega_lite(own: Contents) -> None:
    reason = "vl-convert-python is not installed: pip install 'tsm2-tune[report]'"
    vega_lite = pytest.importorskip("vl_convert", reason=reason)
    rows, _ = trials.points(own.trials, own.winners)
    dots = gains.dots(own.winners)
    many = [{**dots[0], "device": str(number % 2), "rank": number} for number in range(50)]
    compared = [{"other": "b", "problem": "p", "rank": 1, "x": 0.5, "us": 1.0, "other_us": 0.5}]
    for spec in (
        charts.gains(dots), charts.gains(many), charts.roofline(rows), charts.convergence(["a", "b"]),
        charts.heat_map(), charts.comparison(compared),
    ):  # fmt: skip
        assert vega_lite.vegalite_to_vega(spec)["marks"]


# The page


def test_the_page_loads_nothing_and_each_table_has_a_caption(own: Contents) -> None:
    found = page_of(own)
    assert len(found.ids) == len(set(found.ids))
    assert all(len(table.all("caption")) == 1 for table in found.root.all("table"))
    assert not any({"src", "action", "data"} & element.attributes.keys() for element in found.elements())
    assert all(one.attributes["href"].startswith("#") for one in found.root.all("a"))
    (style,) = found.root.all("style")
    assert found.root.all("link") == []
    assert not {"url(", "@import"} & set(re.findall(r"url\(|@import", style.text))
    for section in found.root.all("section"):
        if any(one.attributes.get("role") == "img" for one in section.all("div")):
            assert section.all("details")  # its numbers


def test_the_policy_lets_these_scripts_run_and_no_others(own: Contents) -> None:
    found = page_of(own)
    policy = found.root.all("meta")[1].attributes["content"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    scripts = [one.text for one in found.root.all("script") if "type" not in one.attributes]
    digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts]
    assert re.findall("'sha256-([^']+)'", policy) == digests
    assert (len(digests), "\r" in scripts[0]) == (2, False)


def test_hostile_texts_titles_and_notes_are_texts(path: Path) -> None:
    found = page_of(read(tried(path)))
    assert found.root.all("b") == found.root.all("img") == found.root.all("i") == found.root.all("u") == []
    assert len(found.root.all("script")) == 3
    text = found.root.whole_text()
    for one in (DEVICE, "<i>driver</i>", "{{ 7 * 7 }} </style>", "<u>0</u>"):
        assert one in text
    rows = data_of(found)["trials"]["rows"]
    assert any(one.startswith(DETAIL[:500]) and one.endswith("more characters)") for one in rows["why"]["texts"])
    assert data_of(found)["charts"]["roofline"]["data"]["points"]["device"]["texts"] == [DEVICE]
    hostile = "</title><script>alert(1)</script> {{ 7 * 7 }}"
    titles = {"title": hostile, "note": hostile + DEVICE}
    found = Page(page(read(path), (), written_at="", version="0", library=LIBRARY, **titles))
    assert found.root.all("h1")[0].text == hostile
    assert found.root.all("header")[0].all("p")[0].text == hostile + DEVICE
    assert found.root.all("title")[0].whole_text() == f"{hostile} - tsm2-tune report"
    assert len(found.root.all("script")) == 3


@pytest.mark.parametrize(("capability", "is_told"), [("9.0", False), ("", True)])
def test_emulation_is_told_first(own: Contents, capability: str, is_told: bool) -> None:
    runs = tuple(replace(run, identity=replace(run.identity, compute_capability=capability)) for run in own.runs)
    sections = page_of(replace(own, runs=runs)).root.all("section")
    first = next(one for one in sections if one.attributes["id"] == "summary").all("p")[0].text
    assert (first == "Kernels are emulated on the CPU: times mean nothing.") is is_told


def test_a_page_without_a_winner_says_so(path: Path) -> None:
    tried(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        for table in ("sample", "measurement"):
            connection.execute(f"DELETE FROM {table}")
        connection.execute("UPDATE trial SET outcome = 'wrong-result', verdict_correct = 0, full_verdict = NULL")
    found = page_of(read(path))
    assert "there is no winner" in found.root.whole_text()
    assert [one.whole_text() for one in found.root.all("h2")] == ["Summary", "Each trial"]


@pytest.mark.usefixtures("without_charts")
def test_the_command_writes_a_page(path: Path, tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    output.write_text("what was there")
    result = run("report", "--db", str(tried(path)), "--output", str(output))
    assert (result.exit_code, result.output) == (0, f"wrote {output}\n")
    Page(output.read_text(encoding="utf-8"))
    printed = run("report", str(path), "--title", "Node 7", "--note", "<b>", "--output", "-").output
    assert printed.startswith("<!DOCTYPE html>")
    assert "<h1>Node 7</h1>" in printed
    assert "&lt;b&gt;" in printed
    exported = tsm2_tune.report(path, products="20480x16x20480", compare=path)
    assert exported.files == ()
    assert OTHER.text not in str(exported.text)


def test_missing_package_is_named(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    said = refused("report", "--db", str(tried(path)), "--output", str(tmp_path / "report.html"))
    assert said == f"Error: a report needs the package vl-convert-python: {pip_install('vl-convert-python')}\n"
    assert not (tmp_path / "report.html").exists()


@pytest.mark.usefixtures("without_charts")
@pytest.mark.parametrize("text", [7, "\0", "\ud800"])
def test_a_title_that_a_page_cannot_hold_is_refused(path: Path, text: object) -> None:
    with pytest.raises(tsm2_tune.InputError, match="title = "):
        tsm2_tune.report(tried(path), title=text)  # type: ignore[arg-type]


@pytest.mark.usefixtures("without_charts")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--db", "none.db"), "no database none.db: tune first"),
        (("--db", "empty.db"), "empty.db holds no results yet"),
        (("--db", "untried.db"), "untried.db has no trial yet: tune first"),
        (("--db", "good.db", "--compare", "none.db"), "no database none.db"),
        (("--db", "good.db", "--compare", "foreign.db"), "foreign.db is "),
        (("--db", "good.db", "--shapes", "8x8x8"), "no trial of 10 matches: good.db has"),
        (("--db", "good.db", "--device", "K80"), "no trial of the device 'K80' in good.db"),
        (("--db", "good.db", "--output", "good.db"), "cannot write good.db: it is part of the database good.db"),
        (
            ("--db", "good.db", "--compare", "newer.db", "--output", "newer.db"),
            "cannot write newer.db: it is part of the database newer.db",
        ),
        (("--db", "text.db", "--output", "none/report.html"), "cannot write none/report.html: its folder does not"),
        (("--db", "good.db", "--output", ""), "the name of the file to write is empty"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, tuple) else "",
)
def test_what_cannot_be_reported_is_one_sentence(
    arguments: tuple[str, ...], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.db").touch()
    Path("text.db").write_text("no database, but long enough to be taken for the head of one" * 20)
    database_of("untried.db")
    tried(Path("good.db"))
    tried(Path("newer.db"))
    for name, statement in (("foreign.db", "CREATE TABLE trial (id)"), ("newer.db", "PRAGMA user_version = 9999")):
        with closing(sqlite3.connect(name)) as connection, connection:
            connection.execute(statement)
    before = {one: one.read_bytes() for one in tmp_path.iterdir() if one.is_file()}
    assert sentence in refused("report", *arguments)
    assert {one: one.read_bytes() for one in tmp_path.iterdir() if one.is_file()} == before
