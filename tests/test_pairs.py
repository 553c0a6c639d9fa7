"""Winners' kernels at the other tuned shapes, as the command measures them on this host."""

from __future__ import annotations

import io
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from tests.command import run
from tests.databases import dump
from tests.kills import asked
from tests.on_host import ON_HOST
from tests.processes import ROOT
from tsm2_tune.api.tune import TuningResult
from tsm2_tune.console.cross_timing import PairProgress
from tsm2_tune.console.eta import remaining_text
from tsm2_tune.console.run_progress import changed_text, spent_text
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Outcome
from tsm2_tune.tuner.runs.events import PairMeasured
from tsm2_tune.tuner.worker.client import Attempt, AttemptResult, Worker

pytestmark = [*ON_HOST, pytest.mark.usefixtures("known_ceilings")]

SHAPES = "64x2x64,33x3x17"
FAMILIES = "tsm2,stream_a_fma,inner_fma"  # so few, as the spaces of all take a second each
TRIALS = (
    "SELECT p.dtype, p.op, p.m, t.config, t.outcome FROM trial t JOIN problem p ON p.id = t.problem_id ORDER BY t.id"
)
WINNERS = "SELECT dtype, op, m, config FROM best ORDER BY 1, 2, 3"
SAID = "cross-checked kernels at shapes that they did not win: "


def command(path: Path, *options: str, shapes: str = SHAPES, families: str = FAMILIES) -> tuple[str, ...]:
    named = ("--family", families) if families else ()
    return ("--device", "cpu", "--shapes", shapes, *named, "--max-trials", "1", "--db", str(path), *options)


def tuned(path: Path, *options: str, **named: str) -> str:
    """Run the command, and return what it prints."""
    result = run(*command(path, *options, **named))
    assert result.exit_code == 0, result.output
    return result.output


def of_families(path: Path, families: dict[str, str]) -> Path:
    """The database, with each of these shapes tuned by one family, so that others lack its kernel."""
    for shape, family in families.items():
        tuned(path, "--no-pairs", shapes=shape, families=family)
    assert asked(path, "SELECT count(*) FROM trial") == [(len(families),)]
    return path


@pytest.fixture(scope="module")
def of_two_kernels(session_cache: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("two") / "results.db"
    return of_families(path, dict(zip(SHAPES.split(","), ("tsm2", "stream_a_fma"), strict=True)))


@pytest.fixture
def two_kernels(of_two_kernels: Path, path: Path) -> Path:
    return Path(shutil.copy(of_two_kernels, path))


def test_pairs_are_measured_after_the_last_problem_and_once(two_kernels: Path) -> None:
    before, winners, untouched = asked(two_kernels, TRIALS), asked(two_kernels, WINNERS), dump(two_kernels)
    assert SAID not in tuned(two_kernels, "--no-pairs")
    assert dump(two_kernels) == untouched
    said = tuned(two_kernels, families="")
    after = asked(two_kernels, TRIALS)
    assert after[:2] == before
    (first, first_m), (second, second_m) = [(config, m) for _, _, m, config, _ in before]
    assert {(config, m) for _, _, m, config, _ in after[2:]} == {(first, second_m), (second, first_m)}
    assert {outcome for *_, outcome in after} == {"ok"}
    assert said.index("2/2 33x3x17") < said.index(f"{SAID}2 measured\n") < said.index("% floor")
    assert {m for *_, m, _ in winners} == {m for *_, m, _ in asked(two_kernels, WINNERS)}
    assert asked(two_kernels, "SELECT min(verified_in_full) FROM best") == [(1,)]
    stored = dump(two_kernels)
    assert SAID not in tuned(two_kernels)
    assert dump(two_kernels) == stored


def test_gram_shapes_have_pairs_of_their_own_and_types_are_not_mixed(path: Path) -> None:
    families = {"33x3x17:f64": "stream_a_fma", "4x4x64:f32:tx": "inner_fma", "6x6x80:f32:tx": "inner_fma"}
    before = asked(of_families(path, families), TRIALS)
    assert f"{SAID}2 measured\n" in tuned(path, shapes=",".join(families))
    (_, _, _, small, _), (_, _, _, large, _) = before[1:]
    after = {tuple(row[:4]) for row in asked(path, TRIALS)[len(before) :]}
    assert after == {("f32", "tx", 6, small), ("f32", "tx", 4, large)}


KILLED = """
import os, signal
from tests.quick_command import make_quick
from tsm2_tune.__main__ import main
from tsm2_tune.tuner.worker.client import Worker
make_quick(setattr)
attempt, attempts = Worker.attempt, []
def second_kills(worker, request, *meanwhile):
    attempts.append(request)
    if len(attempts) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return attempt(worker, request, *meanwhile)
Worker.attempt = second_kills
main()
"""


def test_killed_among_them_it_goes_on(two_kernels: Path) -> None:
    before = set(asked(two_kernels, TRIALS))
    done = subprocess.run([sys.executable, "-c", KILLED, *command(two_kernels)], cwd=ROOT, stdout=subprocess.DEVNULL)
    assert done.returncode == -signal.SIGKILL
    killed = set(asked(two_kernels, TRIALS))
    assert before < killed
    assert len(killed) == 3
    tuned(two_kernels)
    ended = asked(two_kernels, TRIALS)
    assert killed <= set(ended)
    assert len(ended) == len(set(ended))
    assert asked(two_kernels, "SELECT owner FROM lease WHERE owner <> ''") == []
    with Store.open(two_kernels, create=False) as store:
        rows = store.best()
        right = [one for one in store.current(rows[0].device) if one.median_us is not None]
    timed = {(one.config.kernel_text, one.problem) for one in right}
    winning = {one.config.kernel_text for one in right if one.id in {row.trial_id for row in rows}}
    assert {(kernel, row.problem) for kernel in winning for row in rows} <= timed


def test_what_the_machine_interrupts_is_told_and_tried_again(
    two_kernels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        lost = AttemptResult(Outcome.INTERRUPTED, "the worker died during timing (SIGKILL)")
        patch.setattr(Worker, "attempt", lambda *_: lost)
        result = run(*command(two_kernels))
    assert result.exit_code == 1
    assert f"{SAID}0 measured, 2 interrupted\n" in result.output
    assert "2 interrupted by the machine" in result.output
    assert f"{SAID}2 measured\n" in tuned(two_kernels)


def test_where_no_bar_tells_a_line_counts_them_now_and_then() -> None:
    now, text = [0.0], io.StringIO()
    console = Console(file=text, force_terminal=False)
    with PairProgress(console, "pairs", counts=("final",), clock=lambda: now[0]) as shown:
        for done in range(20):
            now[0] += 4.0
            shown.show(PairMeasured(done, 132))
    seconds = {done: 4.0 * (done + 1) / done * (132 - done) for done in (3, 7, 11, 15, 19)}
    lines = [f"pairs: {done} of 132, {remaining_text(left)}" for done, left in seconds.items()]
    assert text.getvalue().splitlines() == lines


@pytest.mark.usefixtures("impatient")
def test_a_pair_that_takes_long_is_told(two_kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = Worker.attempt

    def slow(worker: Worker, request: Attempt, *meanwhile: Any) -> AttemptResult:
        time.sleep(0.5)
        return attempt(worker, request, *meanwhile)

    monkeypatch.setattr(Worker, "attempt", slow)
    assert re.search(r"^pairs: [01] of 2(; 1 final)?: [a-z' ]+ \(\d+ s\)$", tuned(two_kernels), re.MULTILINE)


def test_problems_whose_winner_is_anothers_kernel_are_named() -> None:
    def changed(configs: str, winners: str) -> tuple[Problem, ...]:
        problems = [Problem(m, 2, 8, "f32") for m in range(8, 8 + len(configs))]
        found = [SimpleNamespace(problem=one, config=config) for one, config in zip(problems, winners, strict=True)]
        ended: Any = [
            SimpleNamespace(problem=one, winner=SimpleNamespace(config=config) if config != "-" else None)
            for one, config in zip(problems, configs, strict=True)
        ]
        return TuningResult(cast(Any, None), tuple(ended), cast(Any, found), 0).changed

    assert changed("abc-", "abcd") == ()
    assert changed_text(changed("abc", "bbc")) == "1 problem got a faster kernel from another shape: 8x2x8:f32"
    assert changed_text(changed("aaaaaa", "bbbbbb")).endswith(", 11x2x8:f32, 12x2x8:f32, ...")


def test_seconds_of_a_run_are_told_by_their_purpose() -> None:
    searched = {"start": 2.0, "ceilings": 0.4, "search": 3.0, "compilers": 6.0, "timing": 1.2}
    searched |= {"the final round": 0.3, "the vendor's routines": 2.0, "full verification: edges": 7.0}
    assert (
        spent_text(searched, {}) == "22 seconds: 2 starting, 10 searching, 2 in finals, 7 verifying winners in full"
    )
    assert spent_text({"search": 3.0}, {"timing": 4.0, "full verification": 1.0}) == (
        "8 seconds: 3 searching, 5 timing kernels at other shapes"
    )
    assert spent_text({}, {}) == "0 seconds"
