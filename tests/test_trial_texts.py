"""Trials as a text: what an export writes of them, and what an import makes of that."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tsm2_tune
from tests import hostile
from tests.command import refused, run
from tests.databases import C128, C256, C512, TODAY, facts
from tests.fabricated import (
    GPU,
    configuration,
    final,
    measurement,
    plain_sql,
    source,
    trial,
    tuning_run,
    vendor_measurement,
)
from tsm2_tune.generator.families import parse_config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.tuner.export.measured_times import Elsewhere, times_elsewhere
from tsm2_tune.tuner.results.merge import files
from tsm2_tune.tuner.results.merge.serializer import LINES
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache, LoadedResources, Verdict

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("session_cache")]

RUN = replace(tuning_run(), sms=132)
SHAPES = tuple(Problem(20480, n, 20480, "f32") for n in (8, 16, 32))
TIMES = (100.0 + 1 / 3, math.nextafter(200.0, 300.0), 300.1)  # that take all digits


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, session_cache: None) -> Path:
    """Three shapes: winners, one that ties with them, one that is far behind, and one that failed."""
    path = tmp_path_factory.mktemp("made") / "tuned.db"
    with Store.open(path, create=True) as store:
        for problem, us in zip(SHAPES, TIMES, strict=True):
            for config, times in ((C128, 1.0), (C256, 1.001), (C512, 2.0)):
                own = trial(us * times, config, problem=problem, full_verdict=None)
                store.add_trial(RUN, replace(own, verdict=Verdict(True, 0.0123456, "right")))
            wrong = (vendor_measurement(us * 3), vendor_measurement(us * 2, "cublasLtMatmul #3", right=False))
            store.add_final(RUN, final((C128, us), (C256, us * 1.001), problem=problem, vendor=wrong), *TODAY)
        (winner,) = store.best(problem=SHAPES[0])
        store.add_full_verdict(winner.trial_id, "every element of 9 calls right")
    return path


@pytest.fixture
def tuned(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(made, tmp_path / "tuned.db"))


@pytest.fixture(scope="module")
def whole(made: Path) -> str:
    """The text of the database."""
    return text(made)


@pytest.fixture
def written(whole: str, tmp_path: Path) -> Path:
    file = tmp_path / "trials.jsonl"
    file.write_text(whole)
    return file


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "new.db"


def text(path: Path, **which: Any) -> str:
    found = tsm2_tune.export(path, format="trials", **which).text
    assert found is not None
    return found


def lines(found: str, kind: str) -> list[dict[str, Any]]:
    """The lines of a kind, by the names of their members."""
    every = [json.loads(line) for line in hostile.in_full(found).splitlines()[1:]]
    return [dict(zip(LINES[kind], line[1:], strict=True)) for line in every if line[0] == kind]


@pytest.mark.parametrize("count", [3, 5])
def test_batches_take_nothing_from_single_products(whole: str, tuned: Path, count: int) -> None:
    with Store.open(tuned, create=False) as store:
        alone = elsewhere_of(store)
        for n in (8, 16):
            batch = Problem(64, n, 64, "f32", batch=count)
            store.add_trial(RUN, trial(1.0, C128, problem=batch, full_verdict="right"))
        assert alone.items() <= elsewhere_of(store).items()
    lines = [line for line in whole.splitlines() if line.startswith('["trial"')]
    assert len(lines) == 6
    assert {*lines} < {*text(tuned).splitlines()}


def elsewhere_of(store: Store) -> dict[Problem, Elsewhere]:
    winners = {row.trial_id: row.problem for row in store.best()}
    return {winners[one]: times for one, times in times_elsewhere(store, store.trials([*winners])).items()}


def test_a_text_has_a_line_for_each_trial_that_counts(tuned: Path) -> None:
    found = text(tuned)
    trials = lines(found, "trial")
    assert [(one["problem"], one["config"]) for one in trials] == [
        (problem.text, config.text) for problem in SHAPES for config in (C128, C256)
    ]
    assert [one["times"][-1][3] for one in trials[::2]] == list(TIMES)
    assert [one["full_verdict"] for one in trials] == ["every element of 9 calls right"] + [None] * 5
    assert {one["verdict_worst_ratio"] for one in trials} == {0.0123}
    assert [one["verdict_worst_ratio"] for one in lines(found, "vendor")] == [0.25, None] * 3
    assert {len(lines(found, kind)) for kind in ("tools", "run")} == {1}
    assert "// " not in found  # no kernel's text
    assert max(map(len, found.splitlines())) < 1000
    with Store.open(tuned, create=False) as store:
        store.add_final(RUN, final((C128, 90.0), (C256, 91.0), problem=SHAPES[0]), *TODAY)
    plain_sql(tuned, "UPDATE trial SET is_between = 1 WHERE id = 1")  # a mark that a text does not repeat
    found = text(tuned)
    assert {one["is_between"] for one in lines(found, "trial")} == {0}
    last = lines(found, "final")[-1]["key"]
    for one, us in zip(lines(found, "trial"), (90.0, 91.0), strict=False):
        assert [(time[0], time[3]) for time in one["times"][1:]] == [(last, us)]


def test_what_a_text_tells_of_a_trial_is_stored_as_it_was(tmp_path: Path, new: Path) -> None:
    """All but what it does not tell: how long it took, and when it ended, which is no later than its run began."""
    ours, right, told = tmp_path / "ours.db", Verdict(True, 0.9996, "just right"), dict[str, Any]()
    timed = replace(measurement(50), cache=Cache.WARM, samples_us=(49.0, 49.5, 50.0, 50.5, 51.0))
    told |= {"cache": Cache.WARM, "measurement": timed, "guideline_broken": "occupancy", "verdict": right}
    told |= {
        "resources": LoadedResources(65, 16, 2048, blocks_per_sm=3),
        "spill_bytes": 8,
        "config": C128,
        "strategy": "model",
    }
    with Store.open(ours, create=True) as store:
        for problem, is_between in ((SHAPES[0], False), (SHAPES[1], True)):
            store.add_trial(RUN, trial(problem=problem, is_between=is_between, **told))
        beside = (replace(vendor_measurement(60), verdict=right),)
        store.add_final(RUN, final((C128, 51), problem=SHAPES[0], vendor=beside), *TODAY)
    tsm2_tune.export(ours, format="trials", output=tmp_path / "trials.jsonl")
    tsm2_tune.import_trials(tmp_path / "trials.jsonl", new)
    kept = "registers, local_bytes, smem_bytes, blocks_per_sm, spill_bytes, guideline_broken, strategy, is_between"
    found = plain_sql(new, f"SELECT {kept}, cache, ended_at, verdict_worst_ratio FROM trial ORDER BY is_between")
    assert found == [(65, 16, 2048, 3, 8, "occupancy", "model", one, "warm", RUN.started_at, 1.0) for one in (0, 1)]
    assert plain_sql(new, "SELECT cache, summary_of FROM measurement WHERE round = 0") == [("warm", 5)] * 2
    told_of_vendor = plain_sql(new, "SELECT verdict_worst_ratio, verdict_detail FROM vendor_measurement")
    assert told_of_vendor == [(1.0, "right, by a file of trials")]


def test_same_trials_have_the_same_text_in_any_order(tuned: Path, whole: str, tmp_path: Path, new: Path) -> None:
    for problem in reversed(SHAPES):
        part = str(tmp_path / f"{problem.n}.jsonl")
        said = run("export", "--db", str(tuned), "--shapes", problem.shape, "--format", "trials", "--output", part)
        assert (said.exit_code, said.stderr) == (0, f"wrote {part}: 1 kernel for 1 problem\n")
        tsm2_tune.import_trials(part, new)
    assert text(new) == whole


@pytest.mark.parametrize("states", [[Cache.CLEAN], [Cache.DIRTY, Cache.CLEAN]])
def test_filtered_text_has_selected_winners_only(states: list[Cache], tuned: Path, tmp_path: Path, new: Path) -> None:
    """At other shapes it has times of the kernels and of cuBLAS, with which a module chooses as before."""
    if states[0] is Cache.DIRTY:  # tuned in both states: the first shape's winner with a clean L2 is not selected
        with Store.open(tuned, create=False) as store:
            dirty = trial(150.0, C128, problem=SHAPES[0], basis="d" * 64, cache=Cache.DIRTY)
            timed = replace(measurement(150.0), cache=Cache.DIRTY)
            store.add_trial(RUN, replace(dirty, measurement=timed, floor_us=RUN.ceilings.floor_us(SHAPES[0])))
    plain_sql(tuned, "UPDATE trial SET full_verdict = 'right'")
    selected, file = [problem.shape for problem in SHAPES[: len(states)]], tmp_path / "selected.jsonl"
    tsm2_tune.export(tuned, format="trials", output=file, products=selected)
    tsm2_tune.import_trials(file, new)
    for path in (file, new):
        found = [(row.problem, row.cache) for one in Cache for row in tsm2_tune.best(path, cache=one)]
        assert sorted(found) == sorted(zip(SHAPES, states, strict=False))
        assert text(path) == file.read_text()
        assert module(path) == module(tuned, products=selected)
    assert {one["problem"] for one in lines(file.read_text(), "vendor")} == {problem.text for problem in SHAPES}


def test_cublas_of_a_shape_that_is_not_selected_is_that_beside_its_winner(tuned: Path, tmp_path: Path) -> None:
    """The winner ties with a faster kernel. Without that kernel the first shape's kernel would be the fastest."""
    with Store.open(tuned, create=False) as store:
        for us, *times in ((600, (C128, 190.3)), (500, (C512, 190.0), (C256, 190.6))):
            store.add_final(RUN, final(*times, problem=SHAPES[1], vendor=(vendor_measurement(us),)), *TODAY)
        assert [(row.config, row.cublas_us) for row in store.best(problem=SHAPES[1])] == [(C256.text, 500)]
    plain_sql(tuned, "UPDATE trial SET full_verdict = 'right'")
    file = tmp_path / "selected.jsonl"
    tsm2_tune.export(tuned, format="trials", output=file, products=SHAPES[0])
    assert module(file) == module(tuned, products=SHAPES[0])
    assert text(file) == file.read_text()


def module(path: Path, **which: Any) -> list[str]:
    """The lines of the module of these winners, but for the names of the database and of the module."""
    found = tsm2_tune.export(path, format="module", binaries=False, between=False, **which).text or ""
    return [one for one in found.splitlines() if not one.startswith(("# Made by", "IDENTITY = "))]


def test_text_of_what_is_there_adds_nothing(tuned: Path, written: Path, new: Path) -> None:
    before = facts(tuned)
    found = tsm2_tune.import_trials(written, tuned)
    assert (found.trials, found.known, found.times, facts(tuned)) == (0, 6, 0, before)
    tsm2_tune.import_trials(written, new)
    assert plain_sql(new, "SELECT count(*), count(summary_of), min(summary_of) FROM measurement") == [(12, 12, 3)]
    assert plain_sql(new, "SELECT count(*) FROM sample") == [(0,)]
    assert json.loads(run("show", "1", "--db", str(new), "--json").stdout)["measurements"][0]["summary_of"] == 3
    assert run("show", "1", "--db", str(new)).exit_code == 0
    assert tsm2_tune.import_trials(tuned, new).trials == 3
    assert facts(new) == facts(tuned)


def test_a_later_column_may_be_missing(whole: str, tuned: Path, new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of older versions lack it, and files in which it is NULL in all trials."""
    monkeypatch.setitem(schema.trial.c.strategy.info, "later", True)
    file, short = new.with_name("short.jsonl"), text(tuned)
    assert short == whole.replace('"strategy",', "").replace(",0,null,64,", ",0,64,")
    for written in (whole, short):
        file.write_text(written)
        new.unlink(missing_ok=True)
        tsm2_tune.import_trials(file, new)
        assert text(new) == short
    plain_sql(new, "UPDATE trial SET strategy = 'model' WHERE id = 1")
    assert sorted(one["strategy"] or "" for one in lines(text(new), "trial")) == [*5 * [""], "model"]


def test_another_kernel_is_told_and_the_rest_is_imported(tuned: Path, written: Path, new: Path) -> None:
    odd = trial(50, configuration(64), problem=SHAPES[1], source=source(configuration(64), text="// of before\n"))
    with Store.open(tuned, create=False) as store:
        store.add_trial(RUN, odd)
    spelt = '"tsm2:version=v3,threads=256,columns=8,prefetch=4"'
    written.write_text(text(tuned).replace(spelt, '"tsm9:threads=256"'))
    said = run("import", str(written), "--db", str(new))
    assert (said.exit_code, said.stderr.splitlines()) == (0, [
        "left out: tsm9:threads=256, measured on NVIDIA H200, is not a configuration of this tsm2-tune",
        "left out: tsm2:version=v3,threads=64,columns=8,prefetch=4, measured on NVIDIA H200, has other kernel"
        " code in this tsm2-tune: tune 20480x16x20480:f32 again",
    ])  # fmt: skip
    assert said.stdout.startswith(f"{new}: added 3 trials (0 already present) and ")
    assert [row.config for row in tsm2_tune.best(new)] == [C128.text] * 3
    new.unlink()
    written.write_text(text(tuned).replace('"tsm2:', '"tsm9:'))
    assert f"{written} has no trial to read: left out: tsm9:" in refused("import", str(written), path=new)
    assert not new.exists()


def test_a_configuration_is_one_of_a_space_however_it_is_spelt(whole: str, written: Path, tmp_path: Path) -> None:
    for spelling, trials in (
        ("stream_a_fma:threads=128,columns=8,prefetch=8,stages=4,splits=12", 6),
        ("stream_a_fma:splits=12,stages=4,prefetch=8,columns=8,threads=128,row_tiles=1", 6),
        ("tsm2:version=v3,threads=100,columns=8,prefetch=4", 5),
    ):
        spelt = parse_config(spelling)
        assert spelt is not None
        named = changed("trial", "config", spelling)(whole)
        written.write_text(changed("trial", "source", render(SHAPES[0], spelt).digest[:16])(named))
        found = tsm2_tune.import_trials(written, tmp_path / f"{len(spelling)}.db")
        assert (found.trials, len(found.left_out)) == (trials, 6 - trials)
        assert all(f"{spelling}, measured on {GPU}, is not a configuration" in one for one in found.left_out)


def changed(kind: str, name: str, value: object) -> Callable[[str], str]:
    """The text with this member of the first line of a kind."""
    return lambda found: hostile.changed(found, kind, name, value, 0)[0]


def of_time(place: int, value: object, *, at: int = 0) -> Callable[[str], str]:
    """The text with this member of a time of the first trial: of its own, or of its one in a final."""

    def change(found: str) -> str:
        times = lines(found, "trial")[0]["times"]
        times[at][place] = value
        return changed("trial", "times", times)(found)

    return change


def twice_in_a_final(found: str) -> str:
    times = lines(found, "trial")[0]["times"]
    return changed("trial", "times", [*times, times[-1]])(found)


def elsewhere(found: str) -> str:
    """The text where the first trial's final is of a run on another device."""
    every = found.splitlines()
    tools, run = (every[at].replace(RUN.identity.name, "NVIDIA H100") for at in (1, 2))
    of_tools, of_run = (json.loads(line)[1] for line in (tools, run))
    tools, run = tools.replace(of_tools, "0" * 8), run.replace(of_run, "1" * 8).replace(of_tools, "0" * 8)
    final = lines(found, "trial")[0]["times"][1][0]
    finals = [line.replace(of_run, "1" * 8) if line.startswith(f'["final","{final}') else line for line in every]
    head, *rest = of_time(1, "1" * 8, at=1)("\n".join(finals)).split("\n", 1)
    return "\n".join([head, tools, run, *rest])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (changed("trial", "registers", None), "registers is missing"),
        (changed("trial", "verdict_worst_ratio", 1.5), "error of 1.5 times its bound"),
        (changed("trial", "verdict_worst_ratio", None), "verdict_worst_ratio is missing"),
        (of_time(0, "0" * 16), "its first time does not belong to it"),
        (of_time(0, None, at=1), "another time does not belong to a final on its device"),
        (elsewhere, "another time does not belong to a final on its device"),
        (of_time(4, 1e6), "is not between"),
        (of_time(5, 1.0), "is not between"),
        (changed("vendor", "final", "0" * 16), "(no line before has the final 0000000000000000)"),
        (of_time(1, "deadbeef"), "(no line before has the run deadbeef)"),
        (changed("run", "tools", "deadbeef"), "(no line before has the tools deadbeef)"),
        (changed("trial", "basis", "deadbeef"), "(no line before has the basis deadbeef)"),
        (changed("final", "stamp", 2**62 - 1), "is too far in the future"),
        (changed("trial", "stamp", 2**62 - 1), "is too far in the future"),
        (lambda found: re.sub(',"count":[0-9]+', "", found), "does not contain its number of lines"),
        (lambda found: found[: found.rindex("[")], "1 lines are missing"),
        (lambda found: found.splitlines()[0], "lines are missing"),
        (changed("vendor", "verdict_worst_ratio", None), "a right result with an error of inf"),
        (lambda found: found.replace("100.33333333333333", "1e999"), "median_us = inf is not a value of this column"),
        (lambda found: found.replace("100.33333333333333", "9" * 5000), "line 8, is not"),
        *((lambda found, at=at: found + found.splitlines()[at], "appears twice") for at in (1, 2, 3, 4, 7, -1)),
        (twice_in_a_final, "appears twice"),
        (lambda found: found + '["trial", 1]', "trial has 1 members, and not 1"),
        (lambda found: found + '["trail"]', "is not a line of this format"),
        (lambda found: found + '[["trial"]]', "is not a line of this format"),
        (lambda found: found + found.splitlines()[0], "is not a line of this format"),
        (lambda found: found + "7", "7 is not a line of this format"),
        (lambda found: found + "[" * 100_000, "is not as this tsm2-tune writes it"),
        (lambda found: found + '{"x"', "it is not JSON"),
        (lambda found: found.replace('trials":4', 'trials":3'), "its version is 3, and not 4"),
        (lambda found: found.replace('["problem","config"', '["config","problem"'), "its lines have other members"),
        (lambda found: found.replace('"strategy",', "", 1), "its lines have other members"),
        (
            lambda found: found.replace('"times":["final","run"', '"times":["run","final"'),
            "its lines have other members",
        ),
    ],
)
def test_what_is_not_as_it_was_written_is_refused_in_a_sentence(
    change: Callable[[str], str], said: str, whole: str, tuned: Path, written: Path
) -> None:
    before = tuned.read_bytes()
    written.write_text(change(whole))
    found = run("import", str(written), "--db", str(tuned))
    assert (found.exit_code, found.stdout, found.stderr.count("\n")) == (2, "", 1), found.stderr
    assert found.stderr.startswith(f"Error: {written}, line ")
    assert said in found.stderr
    assert tuned.read_bytes()[100:] == before[100:]  # behind the header, which counts openings


def test_what_editors_and_pipes_make_of_a_text_is_read_as_it_was(whole: str, written: Path) -> None:
    spaced = whole.replace("\n", "\n \n").encode() + b"\n\n\n"
    for damaged in (whole.encode("utf-8-sig"), whole.encode("utf-16"), whole.replace("\n", "\r\n").encode(), spaced):
        written.write_bytes(damaged)
        assert text(written) == whole


def test_too_much_and_bytes_that_are_no_text(whole: str, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Millions of values are refused before they are read."""
    for begin in ('{"tsm2-tune trials":4,"x":[', '{"x":['):
        written.write_text(begin + "{}," * files.MOST_VALUES + "{},{}]}")
        assert "has more than 64000000 bytes or 4000000 values" in run("import", str(written)).stderr
    written.write_bytes(whole.encode() + b"\xff")
    assert "is not as this tsm2-tune writes it" in run("import", str(written)).stderr
    monkeypatch.setattr(files, "MOST_BYTES", 100)
    assert "has more than 100 bytes" in run("import", str(written)).stderr
