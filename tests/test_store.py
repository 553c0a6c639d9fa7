"""The database: who wins, what becomes stale, and what a restart finds."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fabricated import BASIS, GPU, PROBLEM, configuration, final, measurement, plain_sql, trial, tuning_run
from tsm2_tune.errors import InputError, StoreError
from tsm2_tune.generator.families.published import Ism2Config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Outcome, Verdict

RUN = tuning_run()
TODAY = ("tsm2", "ism2"), BASIS
C128, C256, C512 = configuration(128), configuration(256), configuration(512)


# Winners


def test_the_least_median_wins(store: Store) -> None:
    store.add_trial(RUN, trial(500, C128))
    fastest = store.add_trial(RUN, trial(450, C256))
    (row,) = store.best()
    assert (row.trial_id, row.median_us, row.ties, row.stale) == (fastest, 450, 1, 0)
    assert json.loads(row.parameters) == C256.tunables
    assert row.gbytes_per_s == pytest.approx(PROBLEM.least_bytes / 450e-6 / 1e9)
    assert row.percent_of_floor == pytest.approx(100 * 400 / 450)


def test_every_device_dtype_and_shape_has_its_own_winner(store: Store) -> None:
    for device in (GPU, "Tesla K40c"):
        for problem in (PROBLEM, Problem(20480, 16, 20480, "f64"), Problem(20480, 8, 20480, "f32")):
            store.add_trial(tuning_run(device), trial(problem=problem))
    assert len(store.best()) == 6
    assert len(store.best(device=GPU)) == 3
    assert len(store.best(device=GPU, problem=PROBLEM)) == 1
    assert store.best(family="ism2") == ()
    assert store.devices() == (GPU, "Tesla K40c")


@pytest.mark.parametrize(
    "change",
    [
        {"outcome": Outcome.WRONG_RESULT, "verdict": Verdict(False, 9.0, "C[0, 0]")},
        {"verdict": Verdict(False, 9.0, "C[0, 0]")},
        {"verdict": None},
        {"measurement": None},
        {"outcome": Outcome.CRASHED, "resources": None, "verdict": None, "measurement": None},
    ],
)
def test_only_a_verified_and_measured_trial_can_win(store: Store, change: dict[str, Any]) -> None:
    store.add_trial(RUN, trial(10, C128, **change))
    assert store.best() == ()
    store.add_trial(RUN, trial(500, C256))
    assert [row.config for row in store.best()] == [C256.text]


def test_overlapping_intervals_tie_and_fewest_registers_win(store: Store) -> None:
    store.add_trial(RUN, trial(500.0, C128, registers=128))
    store.add_trial(RUN, trial(501.9, C256, registers=32))
    store.add_trial(RUN, trial(502.1, C512, registers=16))  # its low end is past the leader's high end
    (row,) = store.best()
    assert (row.config, row.ties) == (C256.text, 2)


def test_then_least_shared_memory_then_the_text_decides(store: Store) -> None:
    store.add_trial(RUN, trial(500, C512, smem_bytes=2048))
    store.add_trial(RUN, trial(500, C256, smem_bytes=2048))
    store.add_trial(RUN, trial(500, C128, smem_bytes=4096))
    (row,) = store.best()
    assert (row.config, row.ties) == (C256.text, 3)


def test_a_device_that_tells_no_registers_ties_by_text(store: Store) -> None:
    host = tuning_run("Some CPU", compute_capability="")
    for config in (C512, C256):
        store.add_trial(host, trial(500, config, resources=None))
    (row,) = store.best()
    assert (row.config, row.registers, row.ties) == (C256.text, None, 2)


def test_finals_supersede_the_first_measurements(store: Store) -> None:
    for config, median_us in ((C128, 500), (C256, 510), (C512, 900)):
        store.add_trial(RUN, trial(median_us, config))
    assert store.history(GPU, PROBLEM, *TODAY).final_configs() == frozenset()
    assert store.add_final(RUN, final((C128, 520), (C256, 505)), *TODAY) == 1
    assert [(row.config, row.median_us, row.round) for row in store.best()] == [(C256.text, 505, 1)]
    later = tuning_run(started_at="2026-02-02T00:00:00+00:00")
    assert store.add_final(later, final((C128, 480), (C512, 490)), *TODAY) == 2
    (row,) = store.best()
    assert (row.config, row.median_us, row.round, row.tuned_at) == (C128.text, 480, 2, later.started_at)
    assert store.history(GPU, PROBLEM, *TODAY).final_configs() == {C128.text, C512.text}


def test_a_final_hides_no_faster_trial_that_was_not_in_it(store: Store) -> None:
    for config, median_us in ((C128, 500), (C256, 510)):
        store.add_trial(RUN, trial(median_us, config))
    store.add_final(RUN, final((C128, 501), (C256, 511)), *TODAY)
    store.add_trial(RUN, trial(250, C512))
    assert [(row.config, row.round) for row in store.best()] == [(C512.text, 0)]


def test_a_tie_is_within_five_percent(store: Store) -> None:
    store.add_trial(RUN, trial(100, C512, measurement=measurement(100, spread_us=40)))
    store.add_trial(RUN, trial(129, C128, measurement=measurement(129, spread_us=40)))
    (row,) = store.best()
    assert (row.config, row.ties) == (C512.text, 1)


def test_finals_of_one_problem_leave_the_others_alone(store: Store) -> None:
    other = Problem(20480, 8, 20480, "f32")
    for problem in (PROBLEM, other):
        store.add_trial(RUN, trial(500, C128, problem=problem))
    store.add_final(RUN, final((C128, 600)), *TODAY)
    assert {row.problem: row.median_us for row in store.best()} == {PROBLEM: 600, other: 500}


def test_a_final_needs_its_trial(store: Store) -> None:
    store.add_trial(RUN, trial(500, C128))
    with pytest.raises(StoreError, match="no trial of tsm2:version=v3,threads=256"):
        store.add_final(RUN, final((C128, 600), (C256, 600)), *TODAY)
    assert store.history(GPU, PROBLEM, *TODAY).final_configs() == frozenset()  # nothing of it was kept


# Stale trials


def test_a_newer_basis_takes_the_older_out_of_the_race(store: Store, path: Path) -> None:
    store.add_trial(RUN, trial(400, C128, basis="yesterday"))
    store.add_final(RUN, final((C128, 400)), ("tsm2",), "yesterday")
    store.add_trial(RUN, trial(500, C128, basis=BASIS))
    assert [row.median_us for row in store.best()] == [500]
    assert plain_sql(path, "SELECT count(*) FROM trial") == [(2,)]  # stale, not wrong: it stays


def test_a_changed_family_leaves_the_others_in_the_race(store: Store) -> None:
    store.add_trial(RUN, trial(400, Ism2Config(1, 128, 4, 4, 2), basis="yesterday"))
    store.add_trial(RUN, trial(500, C128, basis=BASIS))
    assert [row.family for row in store.best()] == ["ism2"]


def test_a_winner_is_stale_where_its_family_moved_on_elsewhere(store: Store) -> None:
    other = Problem(20480, 8, 20480, "f32")
    store.add_trial(RUN, trial(400, basis="yesterday"))
    store.add_trial(RUN, trial(400, problem=other, basis=BASIS))
    store.add_trial(tuning_run("Tesla K40c"), trial(900, basis="yesterday"))
    assert {(row.device, row.n): row.stale for row in store.best()} == {
        (GPU, 16): 1,
        (GPU, 8): 0,
        ("Tesla K40c", 16): 0,
    }


def test_winners_of_one_problem_or_kind_are_those_of_the_whole_view(store: Store) -> None:
    alike = [PROBLEM, Problem(20480, 8, 20480, "f32"), Problem(20480, 16, 640, "f32"), Problem(640, 16, 20480, "f32")]
    others = [Problem(20480, 16, 20480, "f64"), Problem(20480, 16, 20480, "f32", "ttt")]
    for device in (GPU, "Tesla K40c"):
        for problem in alike:
            store.add_trial(tuning_run(device), trial(400, C128, problem=problem, basis="yesterday"))
        for problem in others:  # so all of the others are stale
            store.add_trial(tuning_run(device), trial(500, C512, problem=problem, basis=BASIS))
    every = store.best()
    assert {row.problem: row.stale for row in every if row.op == "nn"} == dict.fromkeys(alike, 1) | {others[0]: 0}
    for problem in (*alike, *others):
        assert store.best(problem=problem) == tuple(row for row in every if row.problem == problem)
        kind = (problem.dtype_name, problem.op)
        assert store.best(alike=problem) == tuple(row for row in every if (row.dtype, row.op) == kind)
    of_gpu = tuple(row for row in every if row.problem in alike and row.device == GPU)
    assert store.best(alike=PROBLEM, device=GPU) == of_gpu
    assert store.best(problem=Problem(4096, 4, 4096, "f32")) == ()


def test_the_fastest_of_each_family_that_moved_on_is_known(store: Store) -> None:
    ism2 = Ism2Config(1, 128, 4, 4, 2)
    store.add_trial(RUN, trial(400, C128, basis="yesterday"))
    store.add_trial(RUN, trial(300, C256, basis="yesterday"))
    store.add_trial(RUN, trial(100, C512, basis="yesterday", verdict=Verdict(False, 2.0, "wrong")))
    store.add_trial(RUN, trial(200, ism2, basis="yesterday"))
    assert store.history(GPU, PROBLEM, *TODAY).fastest_of_older() == (ism2.text, C256.text)
    assert store.history(GPU, PROBLEM, ("tsm2",), BASIS).fastest_of_older() == (C256.text,)
    assert store.history(GPU, PROBLEM, ("tsm2", "ism2"), "yesterday").fastest_of_older() == ()
    store.add_trial(RUN, trial(500, C128, basis=BASIS))
    assert store.history(GPU, PROBLEM, *TODAY).fastest_of_older() == (ism2.text,)


# Restarts


def test_a_trial_is_stored_once(store: Store, path: Path) -> None:
    first = store.add_trial(RUN, trial(500))
    again = tuning_run(started_at="2026-02-02T00:00:00+00:00")
    assert store.add_trial(again, trial(1)) == first
    assert [row.median_us for row in store.best()] == [500]
    assert plain_sql(path, "SELECT count(*) FROM sample") == [(3,)]
    assert store.add_trial(again, trial(500, basis="tomorrow")) != first
    assert store.add_trial(tuning_run("Tesla K40c"), trial(500)) != first


def test_the_file_itself_refuses_a_double(store: Store, path: Path) -> None:
    store.add_trial(RUN, trial(500))
    columns = ", ".join(c.name for c in schema.trial.columns if c.name != "id")
    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        plain_sql(path, f"INSERT INTO trial ({columns}) SELECT {columns} FROM trial")


def test_a_restart_finds_what_was_tried(path: Path) -> None:
    with Store.open(path, create=True) as store:
        ok = store.add_trial(RUN, trial(500, C128))
        failed = store.add_trial(
            RUN, trial(0, C256, outcome=Outcome.TIMED_OUT, resources=None, verdict=None, measurement=None)
        )
        store.add_trial(RUN, trial(500, C512, basis="yesterday"))
        store.add_trial(tuning_run("Tesla K40c"), trial(500, C512))
        store.add_trial(RUN, trial(500, C512, problem=Problem(1, 1, 1, "f64")))
    with Store.open(path, create=True) as store:
        tried = store.history(GPU, PROBLEM, *TODAY).tried()
        assert [(t.id, t.config, t.outcome, t.median_us) for t in tried] == [
            (ok, C128, Outcome.OK, 500),
            (failed, C256, Outcome.TIMED_OUT, None),
        ]
        assert store.history(GPU, PROBLEM, (), "").tried() == ()


def test_a_run_that_stores_nothing_leaves_no_row(path: Path) -> None:
    with Store.open(path, create=True) as store:
        store.add_trial(RUN, trial(500))
        store.history(GPU, PROBLEM, *TODAY).tried()
        store.add_trial(RUN, trial(500, C256))
    assert plain_sql(path, "SELECT count(*) FROM run") == [(1,)]


@pytest.mark.slow
def test_a_killed_writer_loses_nothing_it_reported(path: Path) -> None:
    script = (
        "from tests.fabricated import *\nfrom tsm2_tune.tuner.results.store import Store\n"
        "from tsm2_tune.generator.families import FAMILIES\n"
        f"with Store.open({str(path)!r}, create=True) as store:\n"
        "    for config in FAMILIES['tsm2'].configurations():\n"
        "        print(store.add_trial(tuning_run(), trial(500, config)), flush=True)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    writer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment, text=True)
    assert writer.stdout is not None
    with writer:
        reported = [int(writer.stdout.readline()) for _ in range(20)]
        writer.send_signal(signal.SIGKILL)
        reported += [int(line) for line in writer.stdout if line.endswith("\n")]
    with Store.open(path, create=True) as store:
        assert {t.id for t in store.history(GPU, PROBLEM, *TODAY).tried()} >= set(reported)
        assert plain_sql(path, "SELECT count(*) FROM sample") == [
            (3 * len(store.history(GPU, PROBLEM, *TODAY).tried()),)
        ]


def test_show_gives_back_what_was_stored(store: Store) -> None:
    stored = trial(500, C128, guideline_broken="blocks-per-sm", detail="fine")
    trial_id = store.add_trial(RUN, stored)
    store.add_final(RUN, final((C128, 490)), *TODAY)
    record = store.trial(trial_id)
    assert (record.trial, record.run, record.current) == (stored, RUN, True)
    assert record.rounds == ((0, measurement(500)), (1, measurement(490)))
    store.add_trial(RUN, trial(500, C256, basis="tomorrow"))
    assert not store.trial(trial_id).current
    with pytest.raises(InputError, match="no trial 99"):
        store.trial(99)


def test_every_trial_is_listed(store: Store) -> None:
    store.add_trial(RUN, trial(500, C128, basis="yesterday"))
    store.add_trial(RUN, trial(0, C256, outcome=Outcome.CRASHED, detail="gone", measurement=None))
    lines = [(line.id, line.problem, line.config, line.outcome, line.median_us) for line in store.listing()]
    assert lines == [(1, PROBLEM.text, C128.text, "ok", 500), (2, PROBLEM.text, C256.text, "crashed", None)]


def test_the_view_answers_a_plain_sqlite3(store: Store, path: Path) -> None:
    store.add_trial(RUN, trial(500))
    rows = plain_sql(
        path,
        "SELECT device, family, op, dtype, m, n, k, json_extract(parameters, '$.threads'), median_us,"
        " gbytes_per_s > 0, percent_of_floor, low_us, high_us, ties, stale FROM best",
    )
    assert rows == [(GPU, "tsm2", "nn", "f32", 20480, 16, 20480, 128, 500.0, 1, 80.0, 499.0, 501.0, 1, 0)]
