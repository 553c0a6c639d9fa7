"""tsm2-tune db check: what is found in a database, how it is told, and that nothing is changed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.command import run
from tests.fabricated import BASIS, configuration, downgrade, final, plain_sql, source, trial, tuning_run
from tests.tampering import GRAM, good_database
from tsm2_tune.tuner.results.maintenance import integrity
from tsm2_tune.tuner.results.storage import schema, schema_versions
from tsm2_tune.tuner.results.store import Store

GONE = "boot-0:1 1 1 00000000000000000000000000000000"  # owner of a run whose machine was rebooted
OLD = source(configuration(256), text="int older;\n")


@pytest.fixture
def good(path: Path) -> Path:
    good_database(path)
    return path


def told(path: Path) -> list[str]:
    """The lines, without the database's name and the last one."""
    said = run("db", "check", "--db", str(path))
    assert said.stderr == ""
    name, *lines = said.stdout.splitlines()
    assert name == f"{path}:"
    assert said.exit_code == int(any(line.startswith("problem ") for line in lines))
    return lines if said.exit_code else lines[:-1]


def test_a_good_database_is_sound_and_left_as_it_is(good: Path) -> None:
    content, names = good.read_bytes(), set(good.parent.iterdir())
    said = run("db", "check", "--db", str(good))
    assert (said.exit_code, said.stderr) == (0, "")
    assert said.stdout == f"{good}:\nok       database: 12 trials, 14 measurements, 4 problems\n"
    assert (good.read_bytes(), set(good.parent.iterdir())) == (content, names)
    found = json.loads(run("db", "check", "--json", "--db", str(good)).stdout)
    assert (found["database"], found["is_sound"]) == (str(good), True)
    assert [(one["name"], one["facts"]) for one in found["findings"]] == [("database", {"trials": 12, "times": 14})]


FAULTS = {  # statements that damage a good database, and the line of the check; test_hostile_rows.py has each value
    "UPDATE paragraph SET text = text || 'int more;' WHERE key = (SELECT substr(paragraphs, -16) FROM source"
    " WHERE digest = (SELECT source_digest FROM trial WHERE id = 3))":
        "row: trial 3 is not as this",
    "UPDATE trial SET verdict_correct = 0 WHERE id = 2":
        "trial: trial 2 is ok, but has no right result or time. Remedy: tsm2-tune forget 2",
    "UPDATE trial SET verdict_correct = NULL, verdict_worst_ratio = NULL, verdict_detail = NULL WHERE id = 2":
        "trial: trial 2 is ok, but has no right result or time",
    "UPDATE measurement SET round = -1 WHERE trial_id = 5":
        "trial: trial 5 is ok, but has no right result or time",
    "UPDATE trial SET outcome = 'behind' WHERE id = 2":
        "trial: trial 2 was behind and so not verified, but has a verdict. Remedy: tsm2-tune forget 2",
    "UPDATE trial SET basis = printf('%064d', 0) || '0' WHERE id = 2":
        "trial: trial 2 has a basis that is not a digest, so no trial is compared with it. Remedy: tsm2-tune forget",
    "UPDATE trial SET basis = printf('%063d', 0) || 'G' WHERE id = 2": "trial: trial 2 has a basis that is not a",
    "UPDATE measurement SET cache = 'warm' WHERE round = 0 AND trial_id = 2":
        "trial: trial 2 has its time in another state of the L2. Remedy: tsm2-tune forget 2",
    "UPDATE trial SET outcome = 'interrupted' WHERE id = 7": "trial: trial 7 was interrupted, but is stored",
    "UPDATE trial SET verdict_correct = 1, verdict_worst_ratio = 0.5 WHERE outcome = 'wrong-result'":
        "trial: trial 9 has a right result and is wrong",
    "UPDATE measurement SET run_id = 3 WHERE trial_id = 6": "trial: trial 6 has a time by a run on another device",
    "UPDATE measurement SET run_id = 1 WHERE round = 1 AND trial_id = 1":
        "final: round 1 of problem 1 on NVIDIA H200 belongs to two finals",
    "UPDATE vendor_measurement SET cache = 'warm'":
        "final: vendor measurement 1 is in another state of the L2 than the kernels of its final. Remedy: restore",
    "DELETE FROM measurement WHERE trial_id = 6":
        "references: 3 rows of sample of a measurement that does not exist. Remedy: restore a copy",
    "UPDATE measurement SET final = NULL WHERE round = 1": "row: trial 1 is not as this tsm2-tune stores it (round 1",
    "UPDATE measurement SET final_stamp = 4611686018427387903 WHERE round = 1":
        "row: trial 1 is not as this tsm2-tune stores it (the stamp 4611686018427387903 is too far",
    "CREATE TABLE extra (x)": "layout: has 'extra', unlike tsm2-tune's schema",
}  # fmt: skip


@pytest.mark.parametrize("what", FAULTS)
def test_what_is_wrong_is_told(what: str, good: Path) -> None:
    plain_sql(good, what)
    assert any(one.startswith(f"problem  {FAULTS[what]}") for one in told(good)), told(good)


def test_tunables_of_another_version_are_no_fault(good: Path) -> None:
    plain_sql(good, "UPDATE trial SET tunables = '{}' WHERE id = 2")
    assert [one for one in told(good) if one.startswith("problem")] == []


def test_of_many_alike_the_first_are_told_and_the_others_counted(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integrity, "MOST_OF_A_KIND", 2)
    plain_sql(good, "UPDATE measurement SET median_us = median_us + 1 WHERE round = 0")
    lines = told(good)
    assert sum("row: trial" in line for line in lines) == 2
    assert "problem  row: 7 more findings of this kind" in lines


def test_a_final_that_is_there_twice_is_told(path: Path) -> None:
    c128, c256 = configuration(128), configuration(256)
    with Store.open(path, create=True) as store:
        for us, config in ((500, c128), (510, c256)):
            store.add_trial(tuning_run(), trial(us, config))
        for us in (490, 491, 491):
            store.add_final(tuning_run(), final((c128, us), (c256, 505)), ("tsm2",), BASIS)
    where = f"of {trial().problem.text} on NVIDIA H200 appears twice"
    *twice, end = told(path)
    assert [(line.startswith("problem  final: final "), line.endswith(where)) for line in twice] == [(True, True)] * 2
    assert end == "ok       database: 2 trials, 8 measurements, 1 problem"


def test_dates_in_the_future_and_what_is_old_or_unused_are_notes(good: Path) -> None:
    plain_sql(good, "UPDATE trial SET stamp = stamp + 31536000000000 WHERE id = 3")
    plain_sql(good, "UPDATE run SET started_at = '2999-01-01T00:00:00+00:00' WHERE id = 1")
    with Store.open(good, create=False) as store:
        store.add_trial(tuning_run(), trial(500, configuration(256), problem=GRAM, source=OLD))
    plain_sql(good, "INSERT INTO problem VALUES (90, 'nn', 'f32', 9, 9, 9, 1458, 972, 1)")
    columns = ", ".join(one.name for one in schema.source.c if one.name not in ("digest", "kernel", "paragraphs"))
    plain_sql(good, f"INSERT INTO source SELECT 'x', kernel, paragraphs, {columns} FROM source LIMIT 1")
    downgrade(good)
    removes = f"Remedy: tsm2-tune db vacuum --db {good} removes them"
    ahead = "A clock was ahead. Remedy: set the clock, then tune again"
    assert told(good) == [
        f"note     schema: 24, older than this version's {schema_versions.version()}. Remedy: tsm2-tune db migrate"
        f" --db {good} migrates it, as does the next command that opens it",
        f"note     clock: 1 run dated in the future, first run 1. {ahead}",
        f"note     clock: 2 trials dated in the future, first trial 3. {ahead}",
        "note     kernels: 1 trial of kernels whose code changed in this version, on NVIDIA H200. Their times"
        " can still win. Remedy: tune again on that device",
        f"note     unused: 1 row of source. No trial uses them. {removes}",
        f"note     unused: 1 row of problem. No trial uses them. {removes}",
    ]
    assert plain_sql(good, "PRAGMA user_version") == [(schema_versions.OLDEST,)]


def test_expired_leases_are_a_note_unless_a_run_died_at_a_configuration(good: Path) -> None:
    config = configuration(256).text
    for problem, seconds, *more in (
        ("expired", -1, None, None, 0),
        ("current", 30, None, None, 0),
        ("killed by it", -1, config, None, 0),
        ("suspected", -1, None, config, 1),
    ):
        values = "'NVIDIA H200', ?, ?, strftime('%s', 'now') + ?, ?, ?, ?"
        plain_sql(good, f"INSERT INTO lease VALUES ({values})", problem, GONE, seconds, *more)
    removes = f"Remedy: tsm2-tune db vacuum --db {good} removes them"
    assert told(good) == [f"note     leases: 1 lease of runs that were killed. {removes}"]
    assert run("db", "vacuum", "--db", str(good)).output.endswith("; rows removed: 1 of lease\n")
    left = plain_sql(good, "SELECT problem FROM lease ORDER BY problem")
    assert left == [("current",), ("killed by it",), ("suspected",)]


def test_damage_is_told_wherever_it_is(good: Path, tmp_path: Path) -> None:
    content, damaged = good.read_bytes(), tmp_path / "damaged.db"
    found = list[tuple[int, str]]()
    for at in range(4096, len(content), 4096):  # each page
        damaged.write_bytes(content[:at] + os.urandom(8) + content[at + 8 :])
        said = run("db", "check", "--db", str(damaged))
        assert said.exception is None or isinstance(said.exception, SystemExit)
        found.append((said.exit_code, said.output))
    assert {code for code, _ in found} <= {0, 1}
    assert sum(code for code, _ in found) > 0.9 * len(found)  # the others are of pages that are free
    assert any("integrity: " in text for _, text in found)
