"""The command's storage orders: --op and --layout, and what commands say of results that have them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import refused, run
from tests.databases import database_of
from tests.fabricated import handmade, trial, tuning_run
from tsm2_tune.generator import families
from tsm2_tune.generator.families.stream_a import StreamADmmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.store import Store

MMA = StreamADmmaConfig(128, 2, 16, 16, 2, splits=4, row_tiles=1, min_blocks=1)
ROW_MAJOR = Problem(20480, 16, 20480, "f64", "ttt")


FEW = ("--family", "tsm2,stream_a_fma,row_lanes_shared_b")


def test_a_space_of_every_op_is_shown() -> None:
    arguments = ("space", "--device", "h200", "--shapes", "20480x16x20480", "--dtype", "f64", "--json", *FEW)
    found = json.loads(run(*arguments, "--op", "nn,ttt").output)
    assert [one["problem"] for one in found] == ["20480x16x20480:f64", ROW_MAJOR.text]
    assert "tsm2" in found[0]["families"]
    assert "tsm2" not in found[1]["families"]
    assert json.loads(run(*arguments, "--layout", "row").output) == found[1:]


def test_the_source_is_that_of_the_op() -> None:
    texts = {op: run("source", MMA.text, "--dtype", "f64", "--op", op).output for op in ("nn", "ttt")}
    assert "A, B, C column-major" in texts["nn"]
    assert "A, B, C row-major" in texts["ttt"]
    assert run("source", MMA.text, "--dtype", "f64", "--layout", "row").output == texts["ttt"]
    inner = "inner_fma:threads=128,block=16x16,thread=8x4x2,stages=1,splits=264"
    assert "conjugate(a[r][q]) * b[c][q];" in run("source", inner, "--dtype", "c64", "--op", "cn").output


def test_a_problem_that_no_family_computes_gets_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "FAMILIES", {"tsm2": families.FAMILIES["tsm2"]})
    for command in ((), ("space",)):
        found = refused(*command, "--device", "h200", "--shapes", "8x8x8", "--op", "nn,ttt")
        assert "no kernel family computes 8x8x8:f32:ttt: choose another --op, --dtype or shape" in found


@pytest.fixture
def database(tmp_path: Path) -> str:
    """A database with a trial of row-major matrices."""
    path = tmp_path / "results.db"
    return database_of(path, trial(500.0, MMA, problem=ROW_MAJOR))


def test_a_row_major_winner_is_named(database: str) -> None:
    for arguments in (("best",), ("show",), ("show", "1")):
        result = run(*arguments, "--db", database)
        assert result.exit_code == 0, result.output
        assert (ROW_MAJOR.text if arguments[0] == "show" else "A B, row-major") in result.output
    (row,) = json.loads(run("best", "--json", "--db", database).output)["best"]
    assert row["op"] == "ttt"
    assert json.loads(run("show", "1", "--json", "--db", database).output)["problem"] == ROW_MAJOR.text


def test_a_gram_winner_is_another_problems(tmp_path: Path) -> None:
    path, shape = tmp_path / "results.db", (16, 16, 10**6)
    with Store.open(path, create=True) as store:
        for op in ("tn", "tx"):
            problem = Problem(*shape, "f64", op)
            store.add_trial(tuning_run(), trial(500.0, MMA, problem=problem, source=handmade(problem)))
        assert [row.problem.op for row in store.best()] == ["tn", "tx"]
    assert "16x16x1000000:f64:tx" in run("show", "2", "--db", str(path)).output
