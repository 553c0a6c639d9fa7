"""What terminals are shown: nothing cut at any width, no character that they lack, and none that they obey."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import re
import struct
import subprocess
import sys
import termios
import time
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from tests.command import TUNE, run
from tests.fabricated import GPU, PROBLEM, configuration, exported, host_run, trial, tuning_run
from tsm2_tune import display, live, reports
from tsm2_tune.__main__ import main as command
from tsm2_tune.generator.families.ladder import STEPS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.export import FORMATS
from tsm2_tune.tuner.export.tables import csv_cell
from tsm2_tune.tuner.job import ProblemEnded, ProblemStarted, TrialStored
from tsm2_tune.tuner.ladder import Rung
from tsm2_tune.tuner.phases import Phases
from tsm2_tune.tuner.stopping import Stopped
from tsm2_tune.tuner.store import Store
from tsm2_tune.tuner.trial import Outcome
from tsm2_tune.tuner.tune import Options

WIDTHS = range(20, 201)
PRINT_TABLE = display.print_table  # which tests replace, to keep what is printed
OBEYED = "\x1b[31m\x07\x08\r\x00\x7f\x9b2J\x85\u202etxt.exe\u2066\u200f\u2028\u200b\u061c\U000e0041"
DEVICE = "GPU™ 128é 日本"  # a name that a file may have: it is printable
NAME = f"{DEVICE} {OBEYED}"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trials of three devices, some of which failed with a hostile message."""
    path = tmp_path_factory.mktemp("terminal") / "results.db"
    other = configuration(threads=256, columns=4, prefetch=2)
    with Store.open(path, create=True) as store:
        for name in (GPU, DEVICE):
            run = tuning_run(name, toolkit=name, flags=name)
            for problem in (Problem(20480, 16, 20480, "f32"), Problem(10**7, 8, 8, "f64")):
                store.add_trial(run, trial(123456.7, problem=problem))
                store.add_trial(run, trial(9876.5, other, problem=problem, basis="tomorrow"))
                store.add_trial(
                    run, trial(problem=problem, config=configuration(64), outcome=Outcome.COMPILE_FAILED,
                               measurement=None, verdict=None, detail=f"line 128 {NAME} of {'many ' * 30}")
                )  # fmt: skip
        store.add_trial(host_run(), trial(problem=Problem(64, 8, 64, "f64")))
    return path


# Widths


@dataclass
class Printed:
    """What print_table is given."""

    heads: Sequence[str]
    cells: Sequence[Sequence[str]]
    right: Sequence[int] = ()


def tables_of(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[Printed]:
    """Every table that the command prints."""
    found: list[Printed] = []

    def keep(_: Console, heads: Any, cells: Any, right: Any = ()) -> None:
        found.append(Printed(heads, cells, right))

    for module in (display, reports):
        monkeypatch.setattr(module, "print_table", keep)
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return found


def on_terminal(table: Printed, width: int) -> str:
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=width)
    PRINT_TABLE(console, table.heads, table.cells, right=table.right)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def assert_whole(table: Printed) -> None:
    """At every width each word of each cell stands in the output, as often as in the cells."""
    assert len(set(table.heads)) == len(table.heads), "a record would say two things by one name"
    words = [word for row in table.cells for cell in row for word in display.printable(cell).split()]
    assert words
    for width in WIDTHS:
        shown = on_terminal(table, width)
        left = re.split(r"[\s│┃]+", shown)
        missing = [word for word in set(words) if left.count(word) < words.count(word)]
        assert not missing, (width, missing, shown)
        if "│" in shown:  # a table with lines fits
            assert max(map(cell_len, shown.splitlines())) <= width


@pytest.mark.parametrize(
    "arguments",
    [
        "best --db {}",
        "show --db {}",
        "devices",
        "model --device h200 --shapes 20480x16x20480,1e7x8x8,15x15000x15000 --dtype f32,f64",
        "space --device h200 --shapes 20480x16x20480 --family tsm2,stream_a_fma",
        "space --device h200 --shapes 20480x16x20480 --family tsm2,stream_a_fma --explain",
        "space --device h200 --audit --db {}",
    ],
)
def test_tables_are_whole_at_every_width(database: Path, monkeypatch: pytest.MonkeyPatch, arguments: str) -> None:
    tables = tables_of(monkeypatch, *arguments.format(database).split())
    assert tables
    for table in tables:
        assert_whole(table)


def test_the_ladder_is_whole_at_every_width(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Printed] = []
    with Store.open(database, create=False) as store:
        rungs = [Rung(step, 3, store.trial(1), 1.28, 128.4) for step in STEPS.values()]
    monkeypatch.setattr(
        reports, "print_table", lambda _, heads, cells, right: found.append(Printed(heads, cells, right))
    )
    reports.print_ladder(Problem(1024, 1024, 1024, "f32"), GPU, rungs, Console(file=io.StringIO()))
    assert_whole(found[0])


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
    with live.Display(console, Options(), 12, Phases()) as shown:
        shown.show(started(12800, tried_before=128))
        for trial_id in range(1, 4):
            shown.show(TrialStored(trial(123456.7), trial_id))
    last = printed(console).rpartition("0/12")[2].split()  # Live draws it again and again
    assert last[:1] == ["problems"]
    assert {PROBLEM.text, "131/12800", "left", "123456.7", "13.6", "GB/s,", "0", "%", "floor"} <= set(last)


def test_the_best_is_told_beside_the_vendor_where_a_final_has_measured_it() -> None:
    console = on_screen(200)
    with live.Display(console, Options(), 1, Phases()) as shown:
        shown.show(started(128, vendor_us=600.0))
        shown.show(TrialStored(trial(500.0), 1))
        shown.show(TrialStored(trial(400.0), 2))
    last = " ".join(printed(console).rpartition(PROBLEM.text)[2].split())
    assert last.startswith("2/128 400.0 us, 4.2 TB/s, 1.50 x cuBLAS")


def test_where_no_bar_tells_trials_and_problems_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    console = on_screen(200, terminal=False)
    with live.Display(console, Options(budget_seconds=120.0), 12, Phases()) as shown:
        shown.show(started(128))
        for trial_id, median_us in enumerate((500.0, 450.0), 1):
            shown.show(TrialStored(trial(median_us), trial_id))
        monkeypatch.setattr(live, "SILENCE_SECONDS", 0.0)
        shown.show(TrialStored(trial(400.0), 3))
        shown.show(ProblemEnded(PROBLEM, 3, 3, 0, 125, 0, 0, None))
    counted, ended = printed(console).splitlines()
    of_best = r"best 400\.0 us, .* of the floor"
    assert re.fullmatch(rf"1/12 {PROBLEM.text}: 3 of 128 trials, \d+ (s|min) left; {of_best}", counted)
    assert ended == (
        f"1/12 {PROBLEM.text}: no configuration gave a right result (3 new trials; stopped by --budget, 125 untried)"
    )


@pytest.mark.parametrize(
    ("options", "changes", "why"),
    [
        (Options(), {}, "all tried"),
        (Options(max_trials=3), {}, "all tried"),
        (Options(max_trials=3), {"untried": 9}, "stopped by --max-trials, 9 untried"),
        (Options(max_trials=4), {"untried": 9, "interrupted": 1}, "stopped by --max-trials, 9 untried"),
        (
            Options(max_trials=5),
            {"untried": 9, "elsewhere": 2},
            "stopped by --max-trials, 9 untried; 2 with another run",
        ),
        (Options(max_trials=9, budget_seconds=1.0), {"untried": 9}, "stopped by --budget, 9 untried"),
    ],
)
def test_a_line_says_why_a_search_stopped(options: Options, changes: dict[str, int], why: str) -> None:
    console = on_screen(200, terminal=False)
    counts = {"new_trials": 3, "tried": 3, "timed_out": 0, "untried": 0, "interrupted": 0, "elsewhere": 0}
    with live.Display(console, options, 1, Phases()) as shown:
        shown.show(started(12))
        shown.show(ProblemEnded(PROBLEM, winner=None, **counts | changes))
    assert printed(console) == f"{PROBLEM.text}: no configuration gave a right result (3 new trials; {why})\n"


@pytest.mark.parametrize("terminal", [False, True])
def test_what_a_signal_interrupts_is_told(terminal: bool) -> None:
    console = on_screen(200, terminal=terminal)

    def interrupted() -> None:
        with live.Display(console, Options(), 12, Phases()) as shown:
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
    with live.Display(console, Options(), 3, Phases()) as shown:
        for run, problem, median_us in (("GPU 0", PROBLEM, 400.0), ("GPU 1", other, 7.0)):
            shown.show(started(128, problem), run)
            shown.show(TrialStored(trial(median_us, problem=problem), 1), run)
    for line in (f"GPU 0  {PROBLEM.text}  1/128  400.0 us", f"GPU 1  {other.text}  1/128  7.0 us"):
        assert printed(console).rpartition("0/3 problems")[2].count(line) == 1
    plain = on_screen(200, terminal=False)
    with live.Display(plain, Options(), 3, Phases()) as shown:
        shown.show(started(0, PROBLEM), "GPU 0")
        shown.show(started(0, other), "GPU 1")
        for run, problem in (("GPU 0", PROBLEM), ("GPU 1", other)):
            shown.show(ProblemEnded(problem, 0, 0, 0, 0, 0, 0, None), run)
    assert [line.partition(" (")[0] for line in printed(plain).splitlines()] == [
        f"GPU 0: 1/3 {PROBLEM.text}: nothing tried",
        f"GPU 1: 2/3 {other.text}: nothing tried",
    ]


@pytest.mark.parametrize("terminal", [False, True])
def test_a_long_trial_is_not_silent(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    """Told after a while, then twice as long after that, and so on; anew after each event."""
    monkeypatch.setattr(live, "LONG_SECONDS", 0.2)
    console = on_screen(200, terminal=terminal)
    assert isinstance(console.file, io.StringIO)
    phases = Phases()
    with live.Display(console, Options(), 2, phases) as shown:
        time.sleep(0.3)
        assert "no news" not in console.file.getvalue(), "there is no problem yet"
        shown.show(started(128))
        phases.enter("compilers")
        wait_until(lambda: console.file.getvalue().count("no news for ") >= 2)
        phases.enter("timing")
        shown.show(TrialStored(trial(500.0), 1))
        wait_until(lambda: "at timing" in console.file.getvalue())
        shown.show(ProblemEnded(PROBLEM, 1, 1, 0, 127, 0, 0, None))
        ended = console.file.getvalue()
        time.sleep(0.5)
        assert "no news" not in console.file.getvalue()[len(ended) :], "the problem has ended"
    pattern = rf"{'' if terminal else '1/2 '}20480x16x20480:f32: no news for \d+ s, at compilers"
    assert len(re.findall(pattern, ended)) >= 2


def in_a_terminal(columns: int, *arguments: str, **environment: str) -> str:
    """What the command, in a process of its own, writes to a terminal of so many columns."""
    controlled, screen = os.openpty()
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    clean = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    command = [sys.executable, "-m", "tsm2_tune", *arguments]
    with subprocess.Popen(
        command, stdin=screen, stdout=screen, stderr=screen, env=clean | {"TERM": "xterm"} | environment
    ):
        os.close(screen)
        written = b""
        while part := read(controlled):
            written += part
    os.close(controlled)
    return written.decode()


def read(controlled: int) -> bytes:
    """What a terminal was written; nothing where all who have it open have ended."""
    try:
        return os.read(controlled, 65536)
    except OSError:
        return b""


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.usefixtures("toolchain", "session_cache")
def test_a_run_in_a_narrow_terminal(path: Path, plain: bool) -> None:
    """Its progress folds at the width, and has no colours where nobody wants them."""
    arguments = ("--shapes", "64x2x64,33x3x17", "--no-pairs", "--db", str(path))
    written = in_a_terminal(30, *TUNE, *arguments, **({"NO_COLOR": "1"} if plain else {}))
    colours = re.findall(r"\x1b\[[0-9;]*m", written)
    assert not [one for one in colours if plain and re.search(r"[34]\d|9\d", one)]
    drawn = re.findall(r"^(\d/2 problems.*?)(?=\x1b\[2K|\x1b\[\?25h)", written, re.DOTALL | re.MULTILINE)
    assert drawn
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).rstrip() for one in drawn for line in one.splitlines()]
    assert max(map(cell_len, lines)) <= 30
    assert {"0/2 problems", "1/2 problems"} <= {line.partition("  ")[0] for line in lines}
    assert "64x2x64:f32  1/1" in " ".join(lines)
    assert "(1 new trial; stopped by --max-trials, 37 untried)" in written


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait 10 s at the most."""
    end = time.monotonic() + 10.0
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


# Encodings


COMMANDS = (
    "best --db {}",
    "show --db {}",
    "show 3 --db {}",
    "show --json --db {}",
    "devices",
    "space --device h200 --shapes 64x4x64 --family tsm2 --explain",
    "model --device h200 --shapes 64x4x64",
    *(f"export --format {name} --output - --db {{}}" for name in FORMATS),
    "best --db /no/such/é™.db",
    "best --device é™ --db {}",
)


def ends_of(arguments: Sequence[bytes], monkeypatch: pytest.MonkeyPatch) -> object:
    """The exit status of the command; anything but an exit is raised."""
    monkeypatch.setattr(sys, "argv", ["tsm2-tune", *map(os.fsdecode, arguments)])
    with pytest.raises(SystemExit) as end:
        command()
    sys.stdout.flush()
    return end.value.code


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("terminal", [False, True])
def test_every_encoding_is_written(
    database: Path, monkeypatch: pytest.MonkeyPatch, encoding: str, terminal: bool
) -> None:
    if terminal:
        for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "200"}.items():
            monkeypatch.setenv(name, value)
    streams = {name: io.BytesIO() for name in ("stdout", "stderr")}
    for name, errors in (("stdout", "strict"), ("stderr", "backslashreplace")):  # as Python opens them
        monkeypatch.setattr(sys, name, io.TextIOWrapper(streams[name], encoding, errors=errors))
    arguments = [one.format(database).encode().split() for one in COMMANDS]
    ends = [ends_of(one, monkeypatch) for one in arguments]
    sys.stderr.flush()
    assert ends == [0] * (len(COMMANDS) - 2) + [2, 2]
    shown, told = streams["stdout"].getvalue(), streams["stderr"].getvalue()
    assert {"ascii": rb"GPU\u2122 128\xe9", "latin-1": b"GPU\\u2122 128\xe9"}.get(
        encoding, "GPU™ 128é".encode()
    ) in shown
    assert told.count(b"Error: ") == 2
    assert encoding != "ascii" or told.isascii()


def in_a_process(*arguments: bytes, **environment: str) -> subprocess.CompletedProcess[bytes]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LC_", "LANG"))}
    command = [sys.executable, "-m", "tsm2_tune", *arguments]
    return subprocess.run(command, capture_output=True, env=clean | environment, check=False)


def test_the_locale_c_is_written(database: Path) -> None:
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    found = in_a_process(b"show", b"--db", os.fsencode(database), **plain)
    assert (found.returncode, found.stderr) == (0, b"")
    assert rb"GPU\u2122 128\xe9" in found.stdout


def test_a_path_that_is_no_text_is_named(database: Path) -> None:
    odd = os.fsencode(database.parent) + b"/odd\xff\x1b[31m.db"
    missing = in_a_process(b"best", b"--db", odd)
    assert (missing.returncode, missing.stdout) == (2, b"")
    assert rb"odd\udcff[31m.db: tune first" in missing.stderr
    assert b"\x1b" not in missing.stderr
    Path(os.fsdecode(odd)).write_bytes(database.read_bytes())
    found = in_a_process(b"export", b"--format", b"json", b"--output", b"-", b"--db", odd)
    assert (found.returncode, found.stderr) == (0, b"")
    assert json.loads(found.stdout)["database"] == os.fsdecode(odd)


# Characters that a terminal obeys


@pytest.mark.parametrize("arguments", ["best", "show", "show 3", "show --json", "best --json"])
@pytest.mark.parametrize("terminal", [False, True])
def test_nothing_shown_is_obeyed(
    database: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, terminal: bool
) -> None:
    for name, value in {"FORCE_COLOR": "1", "NO_COLOR": "1", "TERM": "xterm"}.items():
        (monkeypatch.setenv if terminal else lambda name, _: monkeypatch.delenv(name, raising=False))(name, value)
    result = run(*arguments.split(), "--db", str(database))
    assert result.exit_code == 0
    shown = re.sub(r"\x1b\[[0-9;]*m", "", result.output) if terminal else result.output  # Rich's own styles
    assert DEVICE in shown or "31m" in shown or "GPU\\u2122" in shown
    assert {c for c in shown if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")} <= {"\n"}


def test_every_control_is_dropped_and_every_letter_stays() -> None:
    for code in (*range(0x10000), *range(0xE0000, 0xE0100), ord("😀")):
        character = chr(code)
        shown, category = display.printable(character), unicodedata.category(character)
        if character == "\n" or category[0] in "LMNPS" or character == " ":
            assert shown == character
        elif category == "Cs":
            assert shown == f"\\u{code:04x}"
        elif category in ("Cc", "Zl", "Zp"):
            assert shown.strip(" ") == ""
        elif unicodedata.bidirectional(character) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"):
            assert shown == ""


# Cells of CSV


@pytest.mark.parametrize(
    ("cell", "safe"),
    [
        ("=1+1", "'=1+1"),
        ("+1+1", "'+1+1"),
        ("-1+1", "'-1+1"),
        ("@SUM(1)", "'@SUM(1)"),
        ("\t=1", "' =1"),
        ("\r=1", "' =1"),
        (" \x1b=1", "'  =1"),
        ("\uff1d1", "'\uff1d1"),
        ("-12.5e-3", "-12.5e-3"),
        ("+7", "+7"),
        ("-nan", "'-nan"),
        ("a=1", "a=1"),
        ("line\r\nfeed\x9b\u202e", "line  feed  "),
        ("", ""),
        (-0.5, -0.5),
        (7, 7),
    ],
)
def test_no_cell_is_a_formula(cell: object, safe: object) -> None:
    assert csv_cell(cell) == safe


@pytest.mark.parametrize("format_name", FORMATS)
def test_no_export_holds_what_a_terminal_obeys(tmp_path: Path, format_name: str) -> None:
    name = f"=cmd|' /C calc'!A0{OBEYED}"
    hostile = {"driver": name, "toolkit": f"-{name}", "flags": f"+{name}", "tuned_at": f"@{name}", "version": name}
    with Store.open(tmp_path / "results.db", create=True) as store:
        store.add_trial(tuning_run(), trial())
        sources = store.sources(store.best())
        rows = [replace(row, device=name, **hostile) for row in store.best()]  # which no file may have
    text = exported(format_name, (rows, sources), database=name)
    assert {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")} <= {"\n", "\r"}
    if format_name == "csv":
        (row,) = csv.DictReader(io.StringIO(text, newline=""))
        assert not [cell for cell in row.values() if cell.startswith(("=", "+", "-", "@"))]
        assert row["device"].startswith("'=cmd|")


@pytest.mark.parametrize("size", ["²", "9" * 5000, "wide"])
def test_a_size_that_is_none_counts_for_nothing(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "LINES"):
        monkeypatch.setenv(name, size)
    result = run("space", "--shapes", "64x4x64", "--family", "tsm2", "--device", "h200")
    assert result.exit_code == 0, result.output
    assert "configurations" in result.output


def test_what_takes_long_says_what_it_does_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with display.waiting("reading results.db"):
        pass
    assert tuple(capsys.readouterr()) == ("", "")
    shown = io.StringIO()
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr(display, "console", lambda stderr: Console(file=shown, force_terminal=True, width=80))
    with display.waiting(f"reading {OBEYED}"):
        pass
    assert "- reading [31m2Jtxt.exe" in re.sub("\x1b\\[[0-9]*m", "", shown.getvalue())
    assert shown.getvalue().isascii()
