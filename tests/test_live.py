"""Tests of the display of a run: the best, the time left, and why a search stopped, with and without a terminal."""

from __future__ import annotations

import fcntl
import io
import os
import re
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from tests.command import TUNE
from tests.fabricated import PROBLEM, trial
from tests.servers import wait_until
from tsm2_tune.console import run_progress, search_progress
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.runs.events import ProblemEnded, ProblemStarted, TrialStored
from tsm2_tune.tuner.runs.signals import Stopped
from tsm2_tune.tuner.search.candidates import Why
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.phase_timer import PhaseTimer

ROOT = Path(__file__).parents[1]
OTHER = Problem(20480, 8, 20480, "f32")


def on_screen(width: int, *, terminal: bool = True) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, color_system=None, width=width)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def started(configurations: int, problem: Problem = PROBLEM, **changes: Any) -> ProblemStarted:
    space: Any = SimpleNamespace(problem=problem, kept=range(configurations))
    return ProblemStarted(space, **{"tried_before": 0, "seconds_before": 0.0, "best_before_us": None} | changes)


@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_the_lines_of_progress_are_whole(width: int) -> None:
    console = on_screen(width)
    with search_progress.SearchProgress(console, Options(), 12, PhaseTimer()) as shown:
        shown.show(started(12800, tried_before=128))
        for trial_id in range(1, 4):
            shown.show(TrialStored(trial(123456.7), trial_id))
    last = printed(console).rpartition("0/12")[2].split()  # Live draws it again and again
    assert last[:1] == ["problems"]
    assert {PROBLEM.text, "131/12800", "left,", "finals", "123456.7", "13.6", "GB/s,", "0", "%", "floor"} <= set(last)


def test_the_best_is_told_beside_the_vendor_where_a_final_has_measured_it() -> None:
    console = on_screen(200)
    with search_progress.SearchProgress(console, Options(), 1, PhaseTimer()) as shown:
        shown.show(started(128, vendor_us=600.0))
        shown.show(TrialStored(trial(500.0), 1))
        shown.show(TrialStored(trial(400.0), 2))
    last = " ".join(printed(console).rpartition(PROBLEM.text)[2].split())
    assert last.startswith("2/128 400.0 us, 4.2 TB/s, 1.50 x cuBLAS")


def test_where_no_bar_tells_trials_and_problems_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    console = on_screen(200, terminal=False)
    with search_progress.SearchProgress(console, Options(budget_seconds=120.0), 12, PhaseTimer()) as shown:
        shown.show(started(128))
        for trial_id, median_us in enumerate((500.0, 450.0), 1):
            shown.show(TrialStored(trial(median_us), trial_id))
        monkeypatch.setattr(search_progress, "SILENCE_SECONDS", 0.0)
        shown.show(TrialStored(trial(400.0), 3))
        shown.show(ProblemEnded(PROBLEM, 3, 3, 0, 125, 0, None, Why.BUDGET))
    counted, ended = printed(console).splitlines()
    of_best = r"best 400\.0 us, .* of the floor"
    assert re.fullmatch(
        rf"1/12 {PROBLEM.text}: 3 of 128 trials, \d+ (s|min) of search left, then finals; {of_best}", counted
    )
    assert ended == (
        f"1/12 {PROBLEM.text}: no configuration gave a right result (3 new trials; --budget spent, 125 more possible)"
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"why": Why.ALL_TRIED}, "all tried"),
        ({"why": Why.MAX_TRIALS, "untried": 9}, "--max-trials reached, 9 more possible"),
        ({"why": Why.BUDGET, "untried": 9}, "--budget spent, 9 more possible"),
        (
            {"why": Why.GAIN, "untried": 9, "quarantined": 1},
            "no more --gain expected, 9 more possible; 1 quarantined",
        ),
    ],
)
def test_a_line_says_why_a_search_stopped(changes: dict[str, Any], why: str) -> None:
    console = on_screen(200, terminal=False)
    counts = {"new_trials": 3, "tried": 3, "timed_out": 0, "untried": 0, "interrupted": 0}
    with search_progress.SearchProgress(console, Options(), 1, PhaseTimer()) as shown:
        shown.show(started(12))
        shown.show(ProblemEnded(PROBLEM, winner=None, **counts | changes))
    assert printed(console) == f"{PROBLEM.text}: no configuration gave a right result (3 new trials; {why})\n"


@pytest.mark.parametrize("terminal", [False, True])
def test_what_a_signal_interrupts_is_told(terminal: bool) -> None:
    console = on_screen(200, terminal=terminal)

    def interrupted() -> None:
        with search_progress.SearchProgress(console, Options(), 12, PhaseTimer()) as shown:
            shown.show(started(128))
            shown.show(TrialStored(trial(400.0), 1))
            raise Stopped

    with pytest.raises(Stopped):
        interrupted()
    told = printed(console).splitlines()[-1]
    number = "" if terminal else "1/12 "
    assert told.endswith(
        f"{number}{PROBLEM.text}: interrupted, 1 of 128 tried; best 400.0 us, 4.2 TB/s, 100 % of the floor"
    )


def test_runs_that_share_problems_have_a_line_each() -> None:
    console, other = on_screen(200), Problem(64, 8, 64, "f32")
    with search_progress.SearchProgress(console, Options(), 3, PhaseTimer()) as shown:
        for run, problem, median_us in (("GPU 0", PROBLEM, 400.0), ("GPU 1", other, 7.0)):
            shown.show(started(128, problem), run)
            shown.show(TrialStored(trial(median_us, problem=problem), 1), run)
    for line in (f"GPU 0  {PROBLEM.text}  1/128  400.0 us", f"GPU 1  {other.text}  1/128  7.0 us"):
        assert printed(console).rpartition("0/3 problems")[2].count(line) == 1
    plain = on_screen(200, terminal=False)
    with search_progress.SearchProgress(plain, Options(), 3, PhaseTimer()) as shown:
        shown.show(started(0, PROBLEM), "GPU 0")
        for run, problem in (("GPU 1", other), ("GPU 2", PROBLEM)):
            shown.show(started(0, problem), run)
        for run, problem in (("GPU 0", PROBLEM), ("GPU 1", other), ("GPU 2", PROBLEM)):
            shown.show(ProblemEnded(problem, 0, 0, 0, 0, 0, None, Why.ALL_TRIED), run)
    assert [line.partition(" (")[0] for line in printed(plain).splitlines()] == [
        f"GPU 0: 1/3 {PROBLEM.text}: nothing tried",
        f"GPU 1: 2/3 {other.text}: nothing tried",
        f"GPU 2: 1/3 {PROBLEM.text}: nothing tried",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("terminal", [False, True])
def test_a_long_trial_is_not_silent(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    """ParsedTrials after a while, then twice as long after that, and so on; anew after each event."""
    monkeypatch.setattr(search_progress, "LONG_SECONDS", 0.2)
    console = on_screen(200, terminal=terminal)
    phases = PhaseTimer()
    with search_progress.SearchProgress(console, Options(), 2, phases) as shown:
        time.sleep(0.3)
        assert printed(console).count(" s)") == 0, "there is no problem yet"
        shown.show(started(128))
        phases.enter("compilers")
        wait_until(lambda: printed(console).count(": compiling (") >= 2)
        phases.enter("timing")
        shown.show(TrialStored(trial(500.0), 1))
        wait_until(lambda: ": timing (" in printed(console))
        shown.show(ProblemEnded(PROBLEM, 1, 1, 0, 127, 0, None, Why.BUDGET))
        ended = printed(console)
        time.sleep(0.5)
        assert " s)" not in printed(console)[len(ended) :], "the problem has ended"
    pattern = rf"{'' if terminal else '1/2 '}20480x16x20480:f32: compiling \(\d+ s\)"
    assert len(re.findall(pattern, ended)) >= 2


def test_finals_show_their_phase_and_no_time_that_is_not_known() -> None:
    console, now, phases = on_screen(200), [0.0], PhaseTimer()
    with search_progress.SearchProgress(console, Options(), 1, phases, lambda: now[0], "pairs") as shown:
        shown.show(started(3))
        phases.enter("compilers")
        lines = Console(file=io.StringIO(), width=200)
        lines.print(shown)
        assert "0/3  compiling" in printed(lines)
        for trial_id in range(1, 4):
            now[0] += 1.0
            shown.show(TrialStored(trial(400.0), trial_id))
        phases.enter("full verification: long extents with 64-bit indices")
        now[0] += 60.0
        lines = Console(file=io.StringIO(), width=200)
        lines.print(shown)
    assert "3/3  finals and pairs left  verifying the winner: long extents with 64-bit indices" in printed(lines)


DRAWN_AT_EACH_EVENT = """
from tests.quick_command import main, make_quick
from tsm2_tune.console.search_progress import SearchProgress

update = SearchProgress._update

def update_and_draw(self):
    update(self)
    self._progress.refresh()

make_quick(setattr)
SearchProgress._update = update_and_draw
main()
"""


def in_a_terminal(columns: int, *arguments: str) -> str:
    """Return what the command writes to a terminal of so many columns, in a process of its own."""
    controlled, screen = os.openpty()
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    clean = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    command = [sys.executable, "-c", DRAWN_AT_EACH_EVENT, *arguments]
    with subprocess.Popen(
        command, stdin=screen, stdout=screen, stderr=screen, cwd=ROOT, env=clean | {"TERM": "xterm"}
    ):
        os.close(screen)
        written = b""
        while part := read(controlled):
            written += part
    os.close(controlled)
    return written.decode()


def read(controlled: int) -> bytes:
    """Return what was written to a terminal, or nothing once every process that has it open has ended."""
    try:
        return os.read(controlled, 65536)
    except OSError:
        return b""


@pytest.mark.usefixtures("toolchain", "session_cache")
def test_a_run_in_a_narrow_terminal(path: Path) -> None:
    """Its progress folds at the width."""
    arguments = ("--shapes", "16x1x16,16x2x16", "--no-pairs", "--db", str(path))
    written = in_a_terminal(30, *TUNE[:2], *TUNE[4:], *arguments)
    drawn = re.findall(r"^(\d/2 problems.*?)(?=\x1b\[2K|\x1b\[\?25h)", written, re.DOTALL | re.MULTILINE)
    assert drawn
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).rstrip() for one in drawn for line in one.splitlines()]
    assert max(map(cell_len, lines)) <= 30
    assert {"0/2 problems", "1/2 problems"} <= {line.partition("  ")[0] for line in lines}
    assert re.search(r"16x[12]x16:f32  1/1", " ".join(lines))
    assert re.search(r"\(1 new trial; --max-trials reached, \d+ more possible\)", written)


@pytest.mark.parametrize("wanted", [False, True])
def test_colours_are_left_out_where_nobody_wants_them(wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "" if wanted else "1")
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=110)
    with search_progress.SearchProgress(console, Options(), 2, PhaseTimer()) as shown:
        shown.show(started(128))
        shown.show(TrialStored(trial(400.0), 1))
    coloured = re.search(r"\x1b\[(?:[0-9;]*;)?(?:3|9)[0-7]m", printed(console))
    assert (coloured is not None) == wanted


def test_the_time_left_says_what_it_does_not_count() -> None:
    """The first problem's finals take an unknown time; pairs follow the search; nothing is left at the end."""
    console = on_screen(200, terminal=False)
    with search_progress.SearchProgress(console, Options(), 2, PhaseTimer(), next_phase="pairs") as shown:
        shown.show(started(128))
        for trial_id in range(1, 4):
            shown.show(TrialStored(trial(500.0), trial_id))
        assert re.fullmatch(r"\d+ (s|min) of search left, then finals, then pairs", shown.remaining)
        shown.show(ProblemEnded(PROBLEM, 3, 3, 0, 0, 0, None, Why.ALL_TRIED))
        assert re.fullmatch(r"\d+ (s|min) left, then pairs", shown.remaining)
        shown.show(started(128, OTHER))
        shown.show(ProblemEnded(OTHER, 3, 3, 0, 0, 0, None, Why.ALL_TRIED))
        assert shown.remaining == ""


@pytest.mark.parametrize(("load", "warns"), [(0.5, False), (64.5, True)])
def test_a_busy_machine_is_told_before_the_search(load: float, warns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_progress, "cores", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert run_progress.load_text() == ("note: the load is 64.5 on 2 cores: times will be noisy" if warns else "")


def test_wide_intervals_are_told_after_the_table() -> None:
    rows: list[Any] = [SimpleNamespace(median_us=100.0, low_us=low, high_us=102.0) for low in (90.0, 96.0)]
    assert run_progress.noise_text(rows, "h.db").startswith("note: 1 of 2 times are noisy (+- over 5 %)")
    assert "`tsm2-tune confirm --db h.db`" in run_progress.noise_text(rows, "h.db")
    assert run_progress.noise_text(rows[1:], "h.db") == ""


@pytest.mark.parametrize("is_on_path", [True, False])
@pytest.mark.parametrize(("database", "place"), [("results.db", ""), ("a b.db", " --db 'a b.db'")])
def test_a_run_ends_in_the_next_two_commands_as_they_are_typed(
    database: str, place: str, is_on_path: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tsm2-tune").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path) if is_on_path else "/nowhere")
    monkeypatch.setattr(sys, "argv", [".venv/bin/tsm2-tune"])
    typed = "tsm2-tune" if is_on_path else ".venv/bin/tsm2-tune"
    assert list(run_progress.next_steps(database)) == [
        f"next: {typed} best{place}",
        f"      {typed} export -o best_kernels.py{place}",
    ]
