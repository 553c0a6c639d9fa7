"""The command's storage orders: --op and --layout, and what commands say of results that have them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import run
from tests.databases import database_of
from tests.fabricated import handmade, trial, tuning_run
from tsm2_tune.api.parse import op_in, problems_of
from tsm2_tune.errors import InputError
from tsm2_tune.generator import families
from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.families.stream_a import StreamADmmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.store import Store

MMA = StreamADmmaConfig(128, 2, 16, 16, 2, splits=4, row_tiles=1, min_blocks=1)
ROW_MAJOR = Problem(20480, 16, 20480, "f64", "ttt")


def test_every_shape_is_asked_for_in_every_op_once() -> None:
    found = problems_of("8x2x8,9x2x9", "f64", "nn, tn,nn", "column")
    assert [problem.text for problem in found] == ["8x2x8:f64", "8x2x8:f64:tn", "9x2x9:f64", "9x2x9:f64:tn"]


def test_an_op_may_have_capital_letters_as_in_blas() -> None:
    assert problems_of("8x2x8,8x2x8:f64:TN", "f64", "Nt", "row") == problems_of(
        "8x2x8,8x2x8:f64:tn", "f64", "nt", "row"
    )


def test_row_major_matrices_are_transposed_to_blas() -> None:
    assert {op: op_in("row", op) for op in ("nn", "tn", "nt", "tt")} == {
        "nn": "ttt",
        "tn": "ntt",
        "nt": "tnt",
        "tt": "nnt",
    }
    assert [op_in("column", op) for op in ("nn", "ttt")] == ["nn", "ttt"]
    with pytest.raises(InputError, match="--layout sets the order of C"):
        op_in("row", "ttt")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--op", "xn"), "unknown op 'xn': expected two of the letters n, t"),
        (("--op", "n"), "unknown op 'n'"),
        (("--op", "nnn"), "unknown op 'nnn'"),
        (("--op", "nn,"), "unknown op ''"),
        (("--op", "xn", "--layout", "row"), "op 'xn' with --layout row: expected two of the letters n, t"),
        (("--op", "nnt", "--layout", "row"), "op 'nnt' with --layout row"),
        (("--layout", "diagonal"), "'diagonal' is not one of 'column', 'row'"),
    ],
)
@pytest.mark.parametrize("command", [(), ("space",), ("model",)], ids=str)
def test_a_wrong_op_gets_one_sentence(command: tuple[str, ...], arguments: tuple[str, ...], complaint: str) -> None:
    result = run(*command, "--device", "h200", "--shapes", "8x8x8", *arguments)
    assert result.exit_code == 2
    assert complaint in " ".join(result.output.split())


@pytest.mark.parametrize("command", [(), ("space",)], ids=str)
def test_a_problem_that_no_family_computes_gets_one_sentence(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(families, "FAMILIES", {name: FAMILIES[name] for name in ("tsm2", "stream_a_fma")})
    for arguments, complaint in (
        (("--op", "nn,ttt"), "no kernel family computes 8x8x8:f32:ttt: choose another --op, --dtype or shape"),
        (("--layout", "row"), "no kernel family computes 8x8x8:f32:ttt"),
        (
            ("--op", "ntt", "--family", "tsm2"),
            "8x8x8:f32:ntt is computed by stream_a_fma, not by tsm2: name another --family",
        ),
    ):
        result = run(*command, "--device", "h200", "--shapes", "8x8x8", *arguments)
        assert result.exit_code == 2
        assert complaint in " ".join(result.output.split())
        assert list(tmp_path.iterdir()) == []


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
    for arguments in (("--dtype", "f32"), ("--dtype", "f64", "--op", "ny")):
        assert run("source", MMA.text, *arguments).exit_code == 2
    assert "stream_a_dmma has no kernel for f32 and op nn" in run("source", MMA.text, "--dtype", "f32").output


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


@pytest.mark.usefixtures("fake_nvcc")
@pytest.mark.parametrize("form", ["module", "csv", "json", "markdown", "latex"])
def test_a_row_major_winner_is_exported(form: str, database: str) -> None:
    result = run("export", "--db", database, "--format", form, "--output", "-")
    assert result.exit_code == 0, result.output
    assert "ttt" in result.output


def test_math_makes_f32_another_type() -> None:
    assert [p.text for p in problems_of("8x2x8", "f32", "nn", "column", "tf32")] == ["8x2x8:tf32"]
    assert [p.text for p in problems_of("8x2x8", "c64", "cn", "row")] == ["8x2x8:c64:jtt"]
    for dtype in ("f64", "bf16", "f32,c64"):
        result = run("space", "--device", "h200", "--shapes", "8x8x8", "--math", "3xtf32", "--dtype", dtype)
        assert result.exit_code == 2
        assert f"--math 3xtf32 with --dtype {dtype.split(',')[-1]}: this arithmetic is only for f32" in " ".join(
            result.output.split()
        )


def test_conjugates_are_for_complex_types() -> None:
    result = run("space", "--device", "h200", "--shapes", "8x8x1000", "--op", "cn")
    assert result.exit_code == 2
    assert "op 'cn' of f32: c and j conjugate" in " ".join(result.output.split())
    (found,) = json.loads(
        run(
            "space",
            "--device",
            "h200",
            "--shapes",
            "8x8x1000",
            "--op",
            "cn",
            "--dtype",
            "c64",
            "--json",
            "--family",
            "inner_fma",
        ).output
    )
    assert "inner_fma" in found["families"]


@pytest.mark.parametrize(
    ("configuration", "dtypes", "op"),
    [
        ("resident_b_fma:threads=64,vector_bytes=4,columns=1,prefetch=1", ("f32", "f64"), "nn"),
        (
            "row_lanes_register_b:threads=128,vector_bytes=4,lanes=1,columns=1,rows=2,min_blocks=2",
            ("f32", "c64"),
            "ttt",
        ),
        (
            (
                "row_lanes_shared_b:threads=256,vector_bytes=4,lanes=32,rows=4,columns=1,vectors=2,stages=2,strips=2,min_blocks=2"
            ),
            ("f32", "f64"),
            "ttt",
        ),
        (
            (
                "staged_fma:threads=128,ring_threads=128,block=16x16x128,stages=2,copy=registers,splits=16,thread=8x8x4"
            ),
            ("f32", "f64"),
            "tn",
        ),
    ],
)
def test_no_source_is_printed_that_would_be_wrong(configuration: str, dtypes: tuple[str, str], op: str) -> None:
    right, wrong = (run("source", configuration, "--dtype", dtype, "--op", op) for dtype in dtypes)
    assert right.exit_code == 0
    assert (wrong.exit_code, wrong.output.count("\n")) == (2, 1)
    assert f"has no kernel for {dtypes[1]} and op {op}, because a " in wrong.output


def test_the_source_of_a_complex_kernel_conjugates() -> None:
    text = run(
        "source", "inner_fma:threads=128,block=16x16,thread=8x4x2,stages=1,splits=264", "--dtype", "c64", "--op", "cn"
    ).output
    assert "using scalar = complex64;" in text
    assert "conjugate(a[r][q]) * b[c][q];" in text


@pytest.mark.parametrize("name", ["tf32", "3xtf32"])
def test_tf32_is_no_element_type(name: str) -> None:
    result = run("space", "--device", "h200", "--shapes", "8x8x8", "--dtype", name)
    assert result.exit_code == 2
    assert f"--dtype f32 --math {name}" in " ".join(result.output.split())


def test_gram_is_an_op_of_every_type() -> None:
    found = problems_of("8xmx1000", "f32,c64", "gram,tx", "column")
    assert [problem.op for problem in found] == ["tx", "cx", "tx"]
    assert [problem.op for problem in problems_of("8xmx1000", "f32,c64", "gram", "row")] == ["nxt", "jxt"]
    result = run("space", "--device", "h200", "--shapes", "8x4x1000", "--op", "gram")
    assert result.exit_code == 2
    assert "shape 8x4x1000 with op tx: a matrix times itself has m = n" in " ".join(result.output.split())
    text = run(
        "source",
        (
            "staged_symmetric_fma:threads=128,ring_threads=128,block=16,block_k=128,stages=2,copy=registers,splits=396,lines=8,step=1"
        ),
        "--op",
        "gram",
    ).output
    assert "B is the same as A" in text
    assert (
        run(
            "source",
            (
                "staged_symmetric_fma:threads=128,ring_threads=128,block=16,block_k=128,stages=2,copy=registers,splits=396,lines=8,step=1"
            ),
            "--op",
            "tn",
        ).exit_code
        == 2
    )


def test_a_gram_winner_is_another_problems(tmp_path: Path) -> None:
    path, shape = tmp_path / "results.db", (16, 16, 10**6)
    with Store.open(path, create=True) as store:
        for op in ("tn", "tx"):
            problem = Problem(*shape, "f64", op)
            store.add_trial(tuning_run(), trial(500.0, MMA, problem=problem, source=handmade(problem)))
        assert [row.problem.op for row in store.best()] == ["tn", "tx"]
    assert "16x16x1000000:f64:tx" in run("show", "2", "--db", str(path)).output
