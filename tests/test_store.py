"""The database: who wins, what becomes stale, and what a restart finds."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import tsm2_tune
from tests.fabricated import (
    BASIS,
    GPU,
    PROBLEM,
    configuration,
    final,
    measurement,
    plain_sql,
    trial,
    tuning_run,
    vendor_measurement,
)
from tsm2_tune.errors import InputError, StoreError
from tsm2_tune.generator.families.published import Ism2Config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results import loader
from tsm2_tune.tuner.results.snapshot import Snapshot
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache, LoadedResources, Measurement, Outcome, Trial, Verdict

RUN, ISM2, FAMILIES = tuning_run(), Ism2Config(1, 128, 4, 4, 2), ("tsm2", "ism2")
TODAY = FAMILIES, BASIS
KINDS = ("problem", "alike")  # arguments that select by a problem
C128, C256, C512 = configuration(128), configuration(256), configuration(512)


WRONG: dict[str, Any] = {"outcome": Outcome.WRONG_RESULT, "verdict": Verdict(False, 9.0, "C[0, 0]")}
CRASHED: dict[str, Any] = {"outcome": Outcome.CRASHED, "resources": None, "verdict": None, "measurement": None}
CONTRADICTORY: list[dict[str, Any]] = [{"verdict": WRONG["verdict"]}, {"verdict": None}, {"measurement": None}]
CHANGES: list[dict[str, Any]] = [{}, {}, {}, {}, WRONG, CRASHED]
OTHER, GPUS, BASES = Problem(20480, 8, 20480, "f32"), (GPU, "Tesla K40c"), (BASIS, "yesterday")


class Plain:
    """A store's winners and histories, computed without SQL: trials in the order in which they were stored."""

    def __init__(self) -> None:
        self.trials = dict[Any, Trial]()  # by device, problem, basis and configuration
        self.times = dict[Any, list[tuple[int, Measurement]]]()  # of a trial: round and time
        self.rounds = dict[Any, int]()  # of a device and a problem
        self.last = dict[Any, set[str]]()  # configurations of the last final

    def of(self, device: str, problem: Problem, basis: str = "") -> list[Any]:
        place = (device, problem, basis) if basis else (device, problem)
        return [key for key in self.trials if key[: len(place)] == place]

    def can_win(self, key: Any) -> bool:
        tried = self.trials[key]
        return tried.outcome is Outcome.OK and bool(tried.verdict and tried.verdict.correct) and key in self.times

    def newest(self, family: str, keys: Iterable[Any]) -> str:
        return str([key[2] for key in keys if key[3].family == family][-1])

    def winner(self, device: str, problem: Problem) -> tuple[Any, ...] | None:
        keys = self.of(device, problem)
        current = [key for key in keys if key[2] == self.newest(key[3].family, keys) and self.can_win(key)]
        if not current:
            return None
        timed = {key: self.times[key][-1] for key in current}

        def place(key: Any) -> tuple[float, float, str]:
            round_, measured = timed[key]
            return measured.median_us * (1 if round_ else 1.05), measured.high_us, key[3].text

        round_, leader = timed[min(current, key=place)]
        ties = [
            key
            for key, (own_round, own) in timed.items()
            if own_round == round_ and own.low_us <= leader.high_us and own.median_us <= 1.05 * leader.median_us
        ]
        key = min(ties, key=lambda one: (*self.resources(one), one[3].text))
        stale = key[2] != self.newest(key[3].family, [one for one in self.trials if one[0] == device])
        return device, problem, key[3].text, timed[key][1].median_us, round_, len(ties), int(stale)

    def resources(self, key: Any) -> tuple[int, int]:
        loaded = self.trials[key].resources
        return (loaded.registers, loaded.smem_bytes) if loaded else (-1, -1)

    def fastest_of_older(self, device: str, problem: Problem, basis: str) -> list[str]:
        tried = {key[3].family for key in self.of(device, problem, basis)}
        older = [key for key in self.of(device, problem) if key[3].family not in tried and self.can_win(key)]
        fastest = dict[str, str]()
        for key in sorted(older, key=lambda one: self.times[one][0][1].median_us):
            fastest.setdefault(key[3].family, key[3].text)
        return list(fastest.values())


def compare(store: Store, plain: Plain) -> None:
    winners = [plain.winner(*place) for place in product(GPUS, (OTHER, PROBLEM))]
    found = store.best()
    told = [(r.device, r.problem, r.config, r.median_us, r.round, r.ties, r.stale) for r in found]
    assert told == [one for one in winners if one is not None]
    for device, problem, basis in product(GPUS, (PROBLEM, OTHER), BASES):
        assert store.best(device=device, problem=problem) == tuple(
            row for row in found if (row.device, row.problem) == (device, problem)
        )
        history = store.history(device, problem, FAMILIES, basis)
        keys = plain.of(device, problem, basis)
        assert [one.config for one in history.tried()] == [key[3] for key in keys]
        assert [one.outcome for one in history.tried()] == [plain.trials[key].outcome for key in keys]
        assert history.final_configs() == plain.last.get((device, problem, basis), set())
        assert list(history.fastest_of_older()) == plain.fastest_of_older(device, problem, basis)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_winners_and_histories_are_those_of_a_plain_computation(seed: int, path: Path) -> None:
    chance, plain, devices = random.Random(seed), Plain(), set[str]()
    for step in range(30):
        with Store.open(path, create=True) as store:  # each as after a restart
            if step % 6 == 5:
                compare(store, plain)
            devices.add(add_something(store, plain, chance))
    assert plain_sql(path, "SELECT count(*) FROM run") == [(len(devices - {""}),)]


def add_something(store: Store, plain: Plain, chance: random.Random) -> str:
    """Add a final or a trial to both. Return the device that has it, or ""."""
    device, basis = (chance.choices(of, (4, 1))[0] for of in (GPUS, BASES))
    problem = chance.choices((PROBLEM, OTHER), (4, 1))[0]
    run = tuning_run(device)
    times = {config: chance.choice((100.0, 101.5, 103.0, 129.0)) for config in (C128, C256, C512, ISM2)}
    if chance.random() < 0.3:
        stored = [config for config in times if (device, problem, basis, config) in plain.trials]
        timed = {config: times[config] for config in stored if chance.random() < 0.7}
        if not timed:
            return ""
        number = store.add_final(run, final(*timed.items(), problem=problem), FAMILIES, basis)
        plain.rounds[device, problem] = plain.rounds.get((device, problem), 0) + 1
        assert number == plain.rounds[device, problem]
        plain.last[device, problem, basis] = {config.text for config in timed}
        for config, us in timed.items():
            plain.times.setdefault((device, problem, basis, config), []).append((number, measurement(us)))
        return device
    config, us = chance.choice(list(times.items()))
    loaded = LoadedResources(chance.choice((16, 64)), 0, chance.choice((2048, 4096)), 8)
    changes = {
        "measurement": measurement(us, chance.choice((1.0, 1.0, 40.0))),
        "resources": chance.choice((loaded, loaded, None)),
    } | chance.choice(CHANGES)
    made = trial(us, config, problem=problem, basis=basis, **changes)
    number = store.add_trial(run, made)
    key = (device, problem, basis, config)
    if key not in plain.trials:  # a trial is stored once
        plain.trials[key] = made
        if made.measurement is not None:
            plain.times[key] = [(0, made.measurement)]
    assert number == 1 + list(plain.trials).index(key)
    return device


def test_a_contradictory_trial_cannot_win_and_a_final_needs_its_trial(store: Store) -> None:
    for problem, change in zip((PROBLEM, OTHER, replace(OTHER, n=4)), CONTRADICTORY, strict=True):
        store.add_trial(RUN, trial(10, C128, problem=problem, **change))
    assert store.best() == ()
    with pytest.raises(StoreError, match="no trial of tsm2:version=v3,threads=256"):
        store.add_final(RUN, final((C128, 600), (C256, 600)), *TODAY)
    assert store.history(GPU, PROBLEM, *TODAY).final_configs() == frozenset()  # nothing of it was kept


def test_the_file_refuses_doubles_and_its_view_answers_plain_sqlite3(store: Store, path: Path) -> None:
    store.add_trial(RUN, trial(500))
    rows = plain_sql(
        path,
        "SELECT device, family, op, dtype, m, n, k, json_extract(parameters, '$.threads'), median_us,"
        " gbytes_per_s > 0, percent_of_floor, low_us, high_us, ties, stale FROM best",
    )
    assert rows == [(GPU, "tsm2", "nn", "f32", 20480, 16, 20480, 128, 500.0, 1, 80.0, 499.0, 501.0, 1, 0)]
    columns = ", ".join(c.name for c in schema.trial.columns if c.name != "id")
    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        plain_sql(path, f"INSERT INTO trial ({columns}) SELECT {columns} FROM trial")


def test_show_gives_back_what_was_stored_and_every_trial_is_listed(store: Store) -> None:
    most = 2**14  # a longer sentence is cut off
    stored = trial(500, C128, guideline_broken="blocks-per-sm", detail="x" * most, full_verdict="y" * most)
    told = replace(stored, detail="x" * (most + 1), full_verdict="y" * (most + 1))
    assert store.add_trial(RUN, told) == 1
    store.add_final(RUN, final((C128, 490)), *TODAY)
    record = store.trial(1)
    assert (record.trial, record.run, record.current) == (stored, RUN, True)
    assert record.rounds == ((0, measurement(500)), (1, measurement(490)))
    store.add_trial(RUN, trial(0, C256, basis="tomorrow", **CRASHED))
    assert not store.trial(1).current
    lines = [(line.id, line.problem, line.config, line.outcome, line.median_us) for line in store.listing()]
    assert lines == [(1, PROBLEM.text, C128.text, "ok", 500), (2, PROBLEM.text, C256.text, "crashed", None)]
    with pytest.raises(InputError, match="no trial 99"):
        store.trial(99)


def test_many_winners_are_those_that_are_read_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with its own samples and vendor's times, in the order of the rows, a few at a time."""
    monkeypatch.setattr(loader, "MOST_TRIALS", 2)
    problems = [Problem(4096, 8, k, "f32") for k in (3072, 512, 1024, 2048, 640)]
    for number, problem in enumerate(problems):
        store.add_trial(tuning_run(), trial(20.0 + number, problem=problem))
        of_vendor = (vendor_measurement(40.0 + number),)
        store.add_final(tuning_run(), final((C128, 10.0 + number), problem=problem, vendor=of_vendor), *TODAY)
    rows = store.best()
    assert [row.k for row in rows] == sorted(problem.k for problem in problems)
    assert rows == tuple(store.best(problem=row.problem)[0] for row in rows)
    assert {row.problem: (row.median_us, row.vendor_us) for row in rows} == {
        problem: (10.0 + number, 40.0 + number) for number, problem in enumerate(problems)
    }
    ids = [row.trial_id for row in reversed(rows)]
    assert store.trials(ids) == {trial_id: store.trial(trial_id) for trial_id in ids}
    assert store.rows(ids) == [store.rows([trial_id])[0] for trial_id in ids]
    assert store.best(omit={(GPU, row.problem) for row in rows[1:]}) == rows[:1]
    assert store.best(omit={("another device", rows[0].problem)}) == rows


def test_snapshot_returns_what_the_store_returned(store: Store, path: Path) -> None:
    batch, other = Problem(16, 16, 16, "f32", batch=500), Problem(4096, 8, 512, "f64")
    problems = [PROBLEM, replace(PROBLEM, k=512), other, batch]
    for number, problem in enumerate(problems):
        store.add_trial(tuning_run(), trial(20.0 + number, problem=problem))
        vendor = (vendor_measurement(40.0),)
        store.add_final(tuning_run(), final((C128, 10.0 + number), problem=problem, vendor=vendor), *TODAY)
    store.add_trial(tuning_run("Tesla K40c"), trial(500.0, problem=other))
    store.add_trial(RUN, trial(30.0, problem=OTHER, is_between=True))
    ids = [row.trial_id for row in store.best()]

    def everything(of: Store) -> list[Any]:
        asked: list[dict[str, Any]] = [{}, {"device": GPU}, {"between": True}, {"omit": {(GPU, other)}}]
        asked += [{name: one} for name, one in product(KINDS, problems)]
        asked += [{"device": GPU, "alike": other, "cache": cache} for cache in Cache]
        current = [of.current(GPU), *(of.current(GPU, **{name: one}) for name, one in product(KINDS, problems))]
        winning = of.winning(row for row in of.best() if row.batch == 1)
        return [[of.best(**which) for which in asked], current, of.trials(ids), of.rows(ids), winning]

    with Snapshot.open(path, create=False) as snapshot:
        assert everything(snapshot) == everything(store)
        before = store.best(), store.current(GPU), store.trials(ids)
        store.forget([], [], lambda _: None, device=GPU)
        assert (snapshot.best(), snapshot.current(GPU), snapshot.trials(ids)) == before


def test_an_export_has_the_time_of_the_last_final(store: Store, path: Path) -> None:
    store.add_trial(RUN, trial(500, C128))
    for us in (490, 470):
        store.add_final(RUN, final((C128, us)), *TODAY)
    (result,) = json.loads(tsm2_tune.export(path, format="t4", products=PROBLEM.text).text or "")["results"]
    assert result["measurements"][0]["value"] == 0.47
