"""Tests that docs/scale.md says what the command prints, by arithmetic that can be followed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import parent_cost, scale, scale_facts, scale_rates
from benchmarks.redraw import REGION
from benchmarks.scale import Campaign, Rates, Recorded, Search
from tsm2_tune.generator.problem import Problem

PAGE = Path(__file__).parents[1] / "docs/scale.md"
TEN = {"rows": 10, "bytes": 1000}  # 100 bytes a row
SEARCH = Search("one", trials=200, right=0.5, seconds=40, once_seconds=5, texts=40, budget_seconds=20)
CAMPAIGN = Campaign(shapes=30, gpus=4, kinds=2)  # 60 problems, 12,000 trials


def rates(**row: float) -> Rates:
    reads = [{"trials": 1000, "winner_seconds": 0.001}, {"trials": 3000, "winner_seconds": 0.005}]
    tables = dict.fromkeys(("trial", "measurement", "sample", "source"), TEN)
    rows = [{"trials_per_second": 1, "server_seconds_per_trial": 9.0}, {"trials_per_second": 50, **row}]
    return Rates({"reads": reads, "rows": rows, "tables": tables})


FOUND = Recorded(
    (SEARCH, SEARCH, SEARCH),
    rates(),
    rates(server_seconds_per_trial=0.01),
    {"trials": 3000, "texts": 100, "texts_grow_by": 0.5, "samples_of_final": 10, "compile_seconds": 2.0},
    {"writes": 8, "winners": 2},
    cores=9,
)


def test_the_page_has_what_the_command_prints() -> None:
    page = {name: match for _, name, match in re_regions(PAGE.read_text(encoding="utf-8"))}
    ended = CliRunner().invoke(scale.main, [])
    assert ended.exit_code == 0, ended.output
    assert ended.output == "\n\n".join(page[name] for name in ("scale-sizes", "scale-writes", "scale-limits")) + "\n"
    smaller = CliRunner().invoke(scale.main, ["--shapes", "500", "--gpus", "8", "--kinds", "1"]).output
    assert smaller != ended.output


def re_regions(page: str) -> list[tuple[int, str, str]]:
    """Return the start, the name and the text of each region that is drawn."""
    return [
        (match.start(), match[2], match[0].removeprefix(match[1]).removesuffix(match[3]))
        for match in REGION.finditer(page)
    ]


def test_rows_and_bytes_are_those_of_all_problems() -> None:
    rows = scale.rows_of(SEARCH, CAMPAIGN, FOUND.texts)
    assert rows == {
        "trial": 12_000,
        "measurement": 12_000 + 600,  # five finalists in two states
        "sample": 12_000 * (35 + 10) / 2 + 600 * 10,
        "vendor_measurement": 240,
        "vendor_sample": 2_400,
        "source": 200,  # twice the texts of four times the trials
    }
    assert scale.bytes_of(rows, FOUND.sqlite) == 100 * sum(rows.values())


def test_hours_are_those_of_the_gpu_that_has_most_problems() -> None:
    assert scale.hours(SEARCH, CAMPAIGN) * 3600 == pytest.approx(5 + 15 * 40)
    assert scale.hours(SEARCH, Campaign(1, 4, 1)) * 3600 == pytest.approx(5 + 40)


def test_writes_are_of_trials_claims_finals_and_beats() -> None:
    assert SEARCH.per_second == 10
    assert scale.writes_per_second(SEARCH, FOUND) == {"trials": 5.0, "claims": 0.5, "finals": 0.2, "beats": 0.2}
    assert scale.compiling_cores(SEARCH, FOUND.texts) == 4.0


def test_what_is_full_first_stands_above() -> None:
    found = {one.name: one.gpus for one in scale.limits(SEARCH, FOUND)}
    assert found == pytest.approx(
        {
            "trials into one SQLite file": 50 / 5,
            "connections to PostgreSQL": 97 / 2,
            "PostgreSQL's processors": 16 / (5 * 0.01),
            "looks for winners": 16 / (2 / 40 * 0.005),  # two a problem
        }
    )
    assert list(found.values()) == sorted(found.values())


def test_searches_are_means_of_those_that_end_early() -> None:
    def row(kernels: str, trials: int, **phases: float) -> dict[str, Any]:
        outcomes = {"ok": trials // 4, "behind": trials - trials // 4}
        more = {
            "phases": {"start": 3.0, "ceilings": 1.0, **phases},
            "outcomes": outcomes,
            "texts": 10,
            "seconds": 20.0,
        }
        return {"in_full": False, "kernels": kernels, "trials": trials, **more}

    rows = [row("none compiled", 100, timing=10.0), row("none compiled", 300, timing=30.0), row("compiled", 400)]
    cold, warm, goal = scale.searches([*rows, {"in_full": True}])
    assert (cold.trials, cold.right, cold.seconds, cold.once_seconds) == (200, 0.25, 20.0, 4.0)
    assert (warm.trials, goal.trials, goal.per_second) == (400, 2000, 100.0)


@pytest.mark.host
@pytest.mark.usefixtures("toolchain", "session_cache")
def test_a_new_file_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MANY", 1000), ("READS", 1), ("ROUNDS", 1), ("OF_PROBLEM", 20)):
        monkeypatch.setattr(scale_rates, name, value)
    monkeypatch.setattr(scale_facts, "HOST_SHAPES", ("16x1x16",))
    monkeypatch.setattr(scale_facts, "HOST_TRIALS", 1)
    output = tmp_path / "rates.json"
    ended = CliRunner().invoke(scale_rates.main, ["--tuners", "2", "--seconds", "4", "--output", str(output)])
    assert ended.exit_code == 0, ended.output
    found = json.loads(output.read_text())
    recorded = json.loads(scale.SQLITE.read_text())
    assert found.keys() == recorded.keys()
    assert found["recorded"] == pytest.approx(recorded["recorded"])  # SQLite sums in another order from 3.43 on
    assert found["rows"][0]["trials_per_second"] > 0
    assert found["tables"]["sample"]["rows"] > found["tables"]["trial"]["rows"] >= 40
    assert found["asked"]["winners"] >= 1
    assert [row["trials"] >= 1000 for row in found["reads"]][-1]


@pytest.mark.host
def test_what_a_trial_costs_is_measured_without_a_gpu(tmp_path: Path) -> None:
    problem = Problem(20480, 16, 20480, "f32")
    assert 0.0 < parent_cost.milliseconds_per_trial(problem, 20, str(tmp_path / "results.db")) < 1000.0
