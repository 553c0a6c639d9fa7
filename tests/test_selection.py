"""Tests of the stored results that `best`, `show` and `export` select, and of the problems that they print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import refused, run
from tests.databases import database_of
from tests.fabricated import GPU, configuration, trial, tuning_run
from tsm2_tune.api.parse import problems_of
from tsm2_tune.api.selection import selected
from tsm2_tune.errors import InputError
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.store import Store

PROBLEMS = (
    Problem(20480, 16, 20480, "f32"),
    Problem(20480, 16, 20480, "f64"),
    Problem(10**7, 8, 8, "f32"),
)


@pytest.fixture
def database(path: Path) -> str:
    """A database with a winner of each problem, one of them on another device."""
    with Store.open(path, create=True) as store:
        for number, problem in enumerate(PROBLEMS):
            run_of = tuning_run("other") if number == 2 else tuning_run()
            store.add_trial(run_of, trial(500.0 + number, configuration(128), problem=problem))
    return str(path)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ((), PROBLEMS),
        (("--shapes", "20480x16x20480"), PROBLEMS[:2]),
        (("--shapes", "20480x16x20480,1e7x8x8", "--dtype", "f32"), (PROBLEMS[0], PROBLEMS[2])),
        (("--shapes", PROBLEMS[1].text), PROBLEMS[1:2]),
        (("--shapes", f"{PROBLEMS[1].text},1e7x8x8"), PROBLEMS[1:]),
        (("--dtype", "f64"), PROBLEMS[1:2]),
        (("--op", "nn"), PROBLEMS),
        (("--device", "other"), PROBLEMS[2:]),
        (("--device", GPU, "--dtype", "f32"), PROBLEMS[:1]),
        (("--device", GPU.split()[-1].lower()), PROBLEMS[:2]),
    ],
)
def test_only_what_was_asked_for_is_shown(given: tuple[str, ...], found: tuple[Problem, ...], database: str) -> None:
    expected = sorted(problem.text for problem in found)
    best = json.loads(run("best", "--db", database, "--json", *given).output)["best"]
    assert sorted(Problem(*(row[name] for name in ("m", "n", "k", "dtype", "op"))).text for row in best) == expected
    shown = json.loads(run("show", "--db", database, "--json", *given).output)
    assert sorted(line["problem"] for line in shown) == expected
    exported = run("export", "--db", database, "--format", "json", "--output", "-", *given)
    assert exported.exit_code == 0, exported.output
    assert len(json.loads(exported.output)["best"]) == len(expected)


@pytest.mark.parametrize("command", [("best",), ("show",), ("export", "--format", "csv", "--output", "-")])
def test_where_there_is_none_it_is_said(command: tuple[str, ...], database: str) -> None:
    assert "matches: " in refused(*command, "--db", database, "--shapes", "8x8x8")


@pytest.mark.parametrize(
    ("given", "there"),
    [
        (("--op", "tn"), "--op nn"),
        (("--dtype", "c64"), "--dtype f32, f64"),
        (("--shapes", "8x8x8"), "--shapes 10000000x8x8, 20480x16x20480"),
        (("--cache", "warm"), "--cache clean"),
        (("--dtype", "f64", "--op", "tn"), "--op nn if the other options stay the same"),
        (
            ("--dtype", "f64", "--shapes", "1e7x8x8"),
            "--shapes 20480x16x20480 or --dtype f32 if the other options stay the same",
        ),
        (("--dtype", "c64", "--op", "tn"), "--dtype f32, f64 or --op nn"),
    ],
)
@pytest.mark.parametrize("command", [("best",), ("show",), ("export", "--format", "csv", "--output", "-")])
def test_where_there_is_none_what_there_is_is_named(
    given: tuple[str, ...], there: str, command: tuple[str, ...], database: str
) -> None:
    result = run(*command, "--db", database, *given)
    assert result.exit_code == 2
    what = "trial" if command == ("show",) else "winner"
    assert result.output == f"Error: no {what} of 3 matches: {database} has {there}\n"


def test_of_many_only_some_are_named(path: Path) -> None:
    database_of(path, *(trial(500.0, configuration(128), problem=Problem(m, 8, 8, "f32")) for m in range(10, 20)))
    named = ", ".join(f"{m}x8x8" for m in range(10, 18))
    assert f"--shapes {named} and 2 more\n" in run("best", "--db", str(path), "--shapes", "8x8x8").output


def test_an_op_that_is_none_is_refused(database: str) -> None:
    assert "unknown op 'nq': expected two of the letters n, t, c, j" in refused(
        "best", "--db", database, "--op", "nq"
    )


def test_one_trial_is_not_selected(database: str) -> None:
    result = run("show", "1", "--dtype", "f32", "--db", database)
    assert result.exit_code == 2
    assert "leave them or TRIAL out" in result.output


def test_ops_are_selected_as_they_are_tuned() -> None:
    row_major = selected(None, None, None, "nn,tn", layout="row")
    assert [Problem(8, 8, 8, "f32", op) in row_major for op in ("ttt", "ntt", "nn", "tn")] == [
        True,
        True,
        False,
        False,
    ]
    assert Problem(8, 8, 8, "f32", "nxt") in selected(None, None, None, "gram", layout="row")


def test_a_layout_alone_selects_all_that_lie_so() -> None:
    row_major = selected(None, None, None, None, layout="row")
    ops = ("ttt", "ntt", "nnt", "jtt", "nxt", "nn", "tn", "tx")
    assert [Problem(8, 8, 8, "c64", op) in row_major for op in ops] == [*[True] * 5, *[False] * 3]
    column_major = selected(None, None, None, None, layout="column")
    assert [Problem(8, 8, 8, "c64", op) in column_major for op in ops] == [*[False] * 5, *[True] * 3]
    assert all(Problem(8, 8, 8, "c64", op) in selected() for op in ops)


@pytest.mark.parametrize("device", ["", "h", "h20", "another"])  # no name, parts of words, and none
def test_a_device_is_named_by_what_is_of_one_alone(device: str, database: str) -> None:
    assert f"no trial of the device {device!r}" in refused("best", "--db", database, "--device", device)


def test_a_device_that_may_be_several_is_asked_for_by_more(database: str, path: Path) -> None:
    with Store.open(path, create=True) as store:
        for name in ("NVIDIA H100 80GB HBM3", "NVIDIA H200"):
            store.add_trial(tuning_run(name), trial())
    assert run("best", "--db", str(path), "--device", "h100").exit_code == 0
    result = run("best", "--db", str(path), "--device", "nvidia")
    assert (result.exit_code, result.output) == (
        2,
        f"Error: the device 'nvidia' may be 'NVIDIA H100 80GB HBM3' or 'NVIDIA H200' in {path}: use a longer name\n",
    )  # fmt: skip


def test_gram_matrices_are_of_real_and_of_complex_numbers() -> None:
    selection = selected(None, None, None, "gram")
    assert Problem(8, 8, 8, "f32", "tx") in selection
    assert Problem(8, 8, 8, "c64", "cx") in selection
    assert Problem(8, 8, 8, "c64", "tx") in selection
    assert Problem(8, 8, 8, "f32", "tn") not in selection


def test_elements_are_selected_whatever_the_math() -> None:
    f32, tf32 = Problem(8, 8, 8, "f32"), Problem(8, 8, 8, "tf32")
    assert f32 in selected(None, None, "f32", None)
    assert tf32 in selected(None, None, "f32", None)
    assert f32 not in selected(None, None, "tf32", None)


# Problems as they are printed


def test_a_problem_that_is_printed_can_be_asked_for() -> None:
    asked = "100000x8x16:f32:tnt,8x4x2,16x16x1000:3xtf32:tn,64x2x64:c64"
    assert [problem.text for problem in problems_of(asked, "f64,c64", "tn", "column")] == [
        "100000x8x16:f32:tnt", "8x4x2:f64:tn", "8x4x2:c64:tn", "16x16x1000:3xtf32:tn", "64x2x64:c64",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("item", "complaint"),
    [
        ("8x8x8:f23", "unknown dtype 'f23'"),
        ("8x8x8:f32:zz", "op 'zz'"),
        ("0x8x8:f32", "outside 1"),
        ("8x8x9999999999:f32", "outside 1"),
        ("8x8:f32", "expected MxNxK"),
        ("8x8x8:f32:nn:nn", "no whole number"),
    ],
)
def test_a_problem_that_is_none(item: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        problems_of(item, "f32", "nn", "column")


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("float32", "f32"),
        ("F64", "f64"),
        ("double", "f64"),
        ("complex64", "c64"),
        ("Half", "f16"),
        ("bfloat16", "bf16"),
    ],
)
def test_a_type_may_have_the_name_that_others_give_it(name: str, ours: str, database: str) -> None:
    assert [one.text for one in problems_of("8x8x8", name, "nn", "column")] == [f"8x8x8:{ours}"]
    assert [one.text for one in problems_of(f"8x8x8:{name}", "f32", "nn", "column")] == [f"8x8x8:{ours}"]
    assert Problem(8, 8, 8, ours) in selected(None, None, name, None)


def test_a_misspelled_type_is_told() -> None:
    result = run("space", "--device", "H200", "--shapes", "8x8x8", "--dtype", "flaot32")
    assert result.exit_code == 2
    expected = "expected one of f32, f64, c64, c128, bf16, f16"
    assert result.output == f"Error: unknown dtype 'flaot32': {expected}; did you mean f32?\n"


def test_a_card_has_its_name_in_capitals_too() -> None:
    shown = [run("model", "--device", name, "--shapes", "8x8x8").output for name in ("h200", "H200")]
    assert shown[0] == shown[1]


def test_a_source_is_of_a_layout() -> None:
    arguments = ("source", "gemv:threads=128,lanes=1,rows=1,vector=1,prefetch=8")
    assert run(*arguments, "--layout", "row").stdout == run(*arguments, "--op", "ttt").stdout
    assert run(*arguments, "--layout", "row").exit_code == 0
