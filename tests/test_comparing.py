"""The commands that predict and time what kernels gain over cuBLAS."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import tsm2_tune
from tests.command import completed, refused, run
from tests.exchanged import tuned_database
from tests.fabricated import plain_sql
from tsm2_tune.commands.predict import closing_text
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.pretuned import Pretuned, pretuned
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.export import comparison
from tsm2_tune.tuner.export.comparison import Compared
from tsm2_tune.tuner.packs.choice import Choice, choices
from tsm2_tune.tuner.results.trial import Outcome

pytestmark = pytest.mark.usefixtures("session_cache")


@pytest.mark.slow
def test_predict_tells_measured_and_predicted_gains() -> None:
    tuned, between, wide = predicted("h100", "5120x12x10240", "30000x12x5000", "12x30000x5000")
    assert (tuned["is_measured"], tuned["distance"], "measured" in tuned["reason"]) == (True, 0.0, True)
    assert tuned["measured_at"] == "5120x12x10240"
    assert not between["is_measured"]
    assert between["distance"] > 0.5
    assert between["x_vendor"] == between["vendor_us"] / between["kernel_us"]
    assert f"{between['kernel_us']:.1f} us predicted" in between["reason"]
    assert "as the transposed product 30000x12x5000" in wide["reason"]


def chosen(text: Pretuned, problems: list[Problem]) -> list[Choice]:
    """Return the choices for problems that the included measurements have kernels for."""
    _, found = choices(text, problems, lambda _: "", lambda _: None)
    return [cast(Choice, one) for one in found]


def predicted(card: str, *shapes: str) -> list[dict[str, Any]]:
    said = run("predict", "--device", card, "--shapes", ",".join(shapes), "--json")
    assert (said.exit_code, said.stderr) == (0, "")
    return list(json.loads(said.stdout)["problems"])


def tuned_on_host(path: Path, *shapes: str, **options: Any) -> None:
    chosen: dict[str, Any] = {"device": "cpu", "family": "tsm2", "max_trials": 1, "pairs": False} | options
    tsm2_tune.tune(list(shapes), db=path, **chosen)


@pytest.mark.slow
def test_predict_reads_what_it_has_found_before() -> None:
    predicted("h100", "30000x12x5000")
    script = (
        "import sys; from tsm2_tune.commands.predict import predict;"
        "predict(['--device', 'h100', '--shapes', '30000x12x5000'], standalone_mode=False);"
        "sys.exit(bool({'sqlalchemy', 'jinja2'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


def test_predict_says_what_an_exported_module_says(tmp_path: Path) -> None:
    database, module = tmp_path / "results.db", tmp_path / "module.py"
    tuned_database(database)
    run("export", "--db", str(database), "-o", str(module), "--no-binaries")
    names: dict[str, Any] = {"__name__": "module"}
    exec(module.read_text(), names)
    match = names["match"](20000, 16, 20480, "f32", "NVIDIA H200")
    said = run("predict", "--db", str(database), "--shapes", "20000x16x20480", "--json")
    (found,) = json.loads(said.stdout)["problems"]
    assert found["reason"] in (str(match), f"the vendor: {match}")
    plain_sql(database, f"UPDATE trial SET full_verdict = NULL WHERE id = {tsm2_tune.best(database)[0].trial_id}")
    said = run("predict", "--db", str(database), "--shapes", "30000x12x5000")
    assert (said.exit_code, said.stderr.count("\n")) == (0, 1)
    assert said.stderr.startswith("left out: 1 winner, not verified in full")


@pytest.fixture
def of_h100(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pretuned:
    """Return the pretuned kernels of an H100 for three of their problems: reading all takes seconds."""
    (every,) = (one for one in pretuned() if one.name == "h100")
    kept, lines = {"7001x8x3001:f32", "24x12x40009:f32:tn", "5120x12x10240:f32"}, list[str]()
    head, *rest = every.file.read_text(encoding="utf-8").splitlines()
    for line in rest:
        kind, of, *_ = json.loads(line)
        if kind not in ("trial", "vendor") or of in kept:
            lines.append(line)
    head = json.dumps(json.loads(head) | {"count": len(lines)})
    (tmp_path / "h100.jsonl").write_text("\n".join([head, *lines, ""]), encoding="utf-8")
    monkeypatch.setattr("tsm2_tune.pretuned.FOLDER", tmp_path)
    return pretuned()[0]


@pytest.mark.usefixtures("of_h100")
def test_predict_prints_a_row_for_a_problem_without_a_kernel() -> None:
    arguments = ("predict", "--device", "h100", "--op", "tn", "--dtype", "f32,bf16", "8x8x10000")
    said = run(*arguments)
    reason = (
        "pretuned:h100 has no kernel for 8x8x10000:bf16:tn that is verified in full: tsm2-tune best --db"
        " pretuned:h100 shows what it has, tsm2-tune 8x8x10000:bf16:tn tunes one"
    )
    assert (said.exit_code, said.stdout.splitlines()[-1]) == (1, reason), said.output
    assert re.search(r"^8x8x10000:bf16:tn( +-){3}  no kernel  ( *-){3}$", said.stdout, re.MULTILINE)
    f32, bf16 = json.loads(run(*arguments, "--json").stdout)["problems"]
    assert f32.keys() == bf16.keys()
    assert {name for name, value in bf16.items() if value is not None} == {"problem", "reason"}
    assert bf16["reason"] == reason
    for problem, said_of_it in (
        ("8x8x10000:bf16:tn", reason),
        (
            "4*9x9x9:minplus_f32",
            "no kernel family computes 4*9x9x9:minplus_f32: choose another --op, --dtype or shape",
        ),
    ):
        alone = run("predict", "--device", "h100", problem)
        assert (alone.exit_code, alone.stdout.splitlines()[-1]) == (1, said_of_it)


def test_the_modules_kernel_and_launch_are_compared(of_h100: Pretuned) -> None:
    problems = [Problem(40000, 8, 10000, "f32"), Problem(8, 8, 3_000_000, "f32", "tx"), Problem(1664, 4, 9008, "f32")]
    found = chosen(of_h100, problems)
    target = cast(Target, SimpleNamespace(limits=PROFILES["h100"]))
    candidates = [comparison.chosen_candidate(target, one) for one in found]
    assert [one.problem.op for one in candidates] == ["nn", "tn", "nn"]  # the pack has no kernel for Gram matrices
    for candidate, choice in zip(candidates, found, strict=True):
        made, wanted = candidate.launch, choice.match.launch
        assert (made.rows_per_block, made.splits) == (wanted.rows_per_block, wanted.splits)
        assert render(candidate.problem, candidate.config).digest == choice.match.winner.digest
    assert candidates[0].launch.splits == 5  # no search tries so many


@pytest.mark.slow
def test_compare_times_what_the_module_chooses(
    path: Path, toolchain: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned_on_host(path, "64x2x64", "128x2x64", max_trials=2)
    before = path.read_bytes()
    arguments = ("compare", "--device", "cpu", "--db", str(path), "--shapes", "64x2x64,96x2x64")
    said = completed(*arguments)
    head, _, *rows, closing = said.stdout.splitlines()
    assert "kernels are emulated on the CPU and there is no cuBLAS: times mean nothing" in head
    assert [(row.split()[0], row.split()[-1]) for row in rows] == [("64x2x64", "tsm2"), ("96x2x64", "tsm2")]
    assert closing == "no time to compare with cuBLAS"
    found = json.loads(run(*arguments, "--json").stdout)
    assert found["is_emulated"]
    assert found["problems"][0]["kernel"] == plain_sql(path, "SELECT config FROM best WHERE m = 64")[0][0]
    assert all(one["low_us"] <= one["kernel_us"] <= one["high_us"] for one in found["problems"])
    assert path.read_bytes() == before

    def timed(_: object, choice: Choice, candidate: Candidate) -> Compared:
        return Compared(choice, candidate.config, Outcome.WRONG_RESULT, trouble="wrong: C[3, 1]")

    monkeypatch.setattr(comparison, "_timed", timed)
    said = run(*arguments[:-1], "64x2x64")
    assert said.exit_code == 1, said.output
    assert said.stdout.splitlines()[-1] == "64x2x64:f32: wrong: C[3, 1]"


@pytest.mark.slow
def test_compare_says_what_it_lacks(path: Path, toolchain: object) -> None:
    assert "no kernels are pretuned for cpu" in refused("compare", "--device", "cpu", "--shapes", "64x2x64")
    tuned_on_host(path, "64x2x64")
    sought = ("compare", "--device", "cpu", "--db", str(path), "--shapes", "64x2x64", "--dtype")
    reason = f"has no kernel for 64x2x64:f64 that is verified in full: tsm2-tune best --db {path} shows what it has"
    for types in ("f64", "f32,f64"):
        said = run(*sought, types)
        assert (said.exit_code, reason in said.stderr) == (1, True)
    assert said.stdout.splitlines()[2].split()[:2] == ["64x2x64", "f32"]


def test_a_kernel_that_the_module_leaves_to_cublas_costs_a_program_nothing() -> None:
    choices: list[Any] = [SimpleNamespace(is_vendor_chosen=one) for one in (False, True, False)]
    assert closing_text([2.0, 0.5, None], choices) == (
        "geometric mean 1.41 x cuBLAS with an exported module, which calls cuBLAS for 1 of 2;"
        " 1.00 x with kernels only: 1 faster, 1 slower"
    )
    assert closing_text([2.0], choices[:1]) == "geometric mean 2.00 x cuBLAS: 1 faster, 0 slower"
