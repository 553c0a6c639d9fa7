"""Tests of output to terminals: complete at any width, without characters that they lack or obey."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from tests.command import completed
from tests.fabricated import GPU, configuration, host_run, trial, tuning_run
from tests.processes import python
from tsm2_tune.__main__ import main as command
from tsm2_tune.console import audit_tables, plan_tables, tables, trial_tables
from tsm2_tune.console.printable import printable
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.export.tables import TABLES, csv_cell
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Outcome

pytestmark = pytest.mark.slow

WIDTHS = range(20, 201)
PRINT_TABLE = tables.print_table  # which tests replace, to keep what is printed
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


HEADS_100 = "shape type product us +- % cuBLAS us x % floor family trial"
HEADS_80 = "shape type product us x family trial"


def tables_of(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[tuple[Any, Any]]:
    """Return the columns and rows of every table that the command prints."""
    found: list[tuple[Any, Any]] = []
    for module in (audit_tables, tables, plan_tables, trial_tables):
        monkeypatch.setattr(
            module, "print_table", lambda _, *table, **named: found.append((table[0], list(table[1])))
        )
    completed(*arguments)
    return found


def on_terminal(width: int, print_: Callable[..., Any], *arguments: Any, colours: Any = None, **named: Any) -> str:
    """Return what is printed to a terminal of this width."""
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, color_system=colours, width=width)
    print_(console, *arguments, **named)
    return shown.getvalue()


def assert_whole(columns: Any, rows: Any) -> None:
    """At every width each word of each cell stands in the output, as often as in the cells."""
    words = [word for row in rows for text in columns.values() for word in printable(text(row)).split()]
    assert words
    for width in WIDTHS:
        shown = on_terminal(width, PRINT_TABLE, columns, rows)
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
    found = tables_of(monkeypatch, *arguments.format(database).split())
    assert found
    for columns, rows in found:
        assert_whole(columns, rows)


@pytest.mark.parametrize("width", [40, 80, 100])
def test_findings_are_wrapped_between_words(width: int) -> None:
    text = "note     CUDA driver: none; in a container pass the GPU on, such as with --gpus all, or see the page"
    first, *rest = on_terminal(width, tables.print_hanging, text, 9).splitlines()
    assert " ".join([first, *map(str.strip, rest)]) == text
    assert all(line.startswith(" " * 9) and len(line) <= width for line in rest)


@pytest.mark.parametrize(("width", "heads"), [(80, HEADS_80), (100, HEADS_100), (120, HEADS_100)])
def test_best_fits_the_terminal(store: Store, width: int, heads: str) -> None:
    """Rows of products and layouts that differ, with long names and times; one is slower than cuBLAS."""
    store.add_trial(tuning_run(), trial(12345.6))
    (row,) = store.best()
    long: dict[str, Any] = {"m": 16, "n": 16, "k": 10**7, "vendor_us": 23456.7, "vendor_right": 1, "trial_id": 12345}
    winners = (
        replace(row, op="tn", dtype="c128", family="stream_a_complex_dmma", x_cublas=1.5, **long),
        replace(row, op="ttt", dtype="f64", family="staged_symmetric_dmma", x_cublas=0.5, **long),
    )
    shown = on_terminal(width, lambda console: tables.winners_table(winners, console), colours="standard")
    lines = shown.splitlines()
    assert ["0.50" in line for line in lines if "\x1b[33m" in line] == [True]  # what is slower is yellow
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
    assert max(map(len, plain)) <= width
    cells = [re.sub("[│┃]", " ", line).split() for line in plain]
    assert heads.split() in cells
    rows = [line for line in cells if line[:1] == ["16x16x10000000"]]
    assert [("12346" in line, "23457" in line) for line in rows] == [(True, "cuBLAS" in heads)] * len(winners)
    assert plain[-1] == "geometric mean 0.87 x cuBLAS: 1 faster, 1 slower"


COMMANDS = (
    "best --db {}",
    "show --db {}",
    "show 3 --db {}",
    "show --json --db {}",
    "devices",
    "space --device h200 --shapes 64x4x64 --family tsm2 --explain",
    "model --device h200 --shapes 64x4x64",
    *(f"export --format {name} --output - --db {{}}" for name in ("module", *TABLES)),
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


@pytest.mark.usefixtures("fake_nvcc")
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("terminal", [False, True])
def test_encodings_written(database: Path, monkeypatch: pytest.MonkeyPatch, encoding: str, terminal: bool) -> None:
    if terminal:
        for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "200"}.items():
            monkeypatch.setenv(name, value)
    streams = {name: io.BytesIO() for name in ("stdout", "stderr")}
    for name, errors in (("stdout", "strict"), ("stderr", "backslashreplace")):  # Python's own error handlers
        monkeypatch.setattr(sys, name, io.TextIOWrapper(streams[name], encoding, errors=errors))
    arguments = [one.format(database).encode().split() for one in COMMANDS]
    ends = [ends_of(one, monkeypatch) for one in arguments]
    sys.stderr.flush()
    assert ends == [0] * (len(COMMANDS) - 2) + [2, 2]
    shown, told = streams["stdout"].getvalue(), streams["stderr"].getvalue()
    names = {"ascii": rb"GPU\u2122 128\xe9", "latin-1": b"GPU\\u2122 128\xe9", "utf-8": "GPU™ 128é".encode()}
    assert names[encoding] in shown
    assert told.count(b"Error: ") == 2
    assert encoding != "ascii" or told.isascii()


def in_a_process(*arguments: bytes, **environment: str) -> subprocess.CompletedProcess[bytes]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LC_", "LANG"))}
    command: list[str | bytes] = [sys.executable, "-m", "tsm2_tune", *arguments]
    return subprocess.run(command, capture_output=True, env=clean | environment, check=False)


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


@pytest.mark.parametrize("arguments", ["best", "show", "show 3", "show --json", "best --json"])
@pytest.mark.parametrize("terminal", [False, True])
def test_nothing_is_obeyed(database: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, terminal: bool) -> None:
    for name, value in {"FORCE_COLOR": "1", "NO_COLOR": "1", "TERM": "xterm"}.items():
        (monkeypatch.setenv if terminal else lambda name, _: monkeypatch.delenv(name, raising=False))(name, value)
    result = completed(*arguments.split(), "--db", str(database))
    shown = re.sub(r"\x1b\[[0-9;]*m", "", result.output) if terminal else result.output  # Rich's own styles
    assert DEVICE in shown or "31m" in shown or "GPU\\u2122" in shown
    assert {c for c in shown if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")} <= {"\n"}


def test_every_control_is_dropped_and_every_letter_stays() -> None:
    for code in (*range(0x10000), *range(0xE0000, 0xE0100), ord("😀")):
        character = chr(code)
        shown, category = printable(character), unicodedata.category(character)
        if character == "\n" or category[0] in "LMNPS" or character == " ":
            assert shown == character
        elif category == "Cs":
            assert shown == f"\\u{code:04x}"
        elif category in ("Cc", "Zl", "Zp"):
            assert shown.strip(" ") == ""
        elif unicodedata.bidirectional(character) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"):
            assert shown == ""


CELLS = {
    "=1+1": "'=1+1", "+1+1": "'+1+1", "-1+1": "'-1+1", "@SUM(1)": "'@SUM(1)", "\t=1": "' =1", "\r=1": "' =1",
    " \x1b=1": "'  =1", "\uff1d1": "'\uff1d1", "-12.5e-3": "-12.5e-3", "+7": "+7", "-nan": "'-nan", "a=1": "a=1",
    "line\r\nfeed\x9b\u202e": "line  feed  ", "": "", -0.5: -0.5, 7: 7,
}  # fmt: skip


def test_no_cell_is_a_formula() -> None:
    assert {cell: csv_cell(cell) for cell in CELLS} == CELLS


def test_a_size_that_is_none_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for size in ("²", "9" * 5000, "wide"):
        for name in ("COLUMNS", "LINES"):
            monkeypatch.setenv(name, size)
        completed("devices")


def test_waiting_without_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with tables.waiting("reading results.db"):
        pass
    assert tuple(capsys.readouterr()) == ("", "")


def test_what_takes_long_says_what_it_does_on_a_terminal(terminal: io.StringIO) -> None:
    with tables.waiting(f"reading {OBEYED}"):
        pass
    assert "- reading [31m2Jtxt.exe" in re.sub("\x1b\\[[0-9]*m", "", terminal.getvalue())
    assert terminal.getvalue().isascii()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_how_to_complete(shell: str) -> None:
    program = "import sys; sys.argv[0] = 'tsm2-tune'; from tsm2_tune.__main__ import main; main()"
    done = python("-c", program, env={**os.environ, "_TSM2_TUNE_COMPLETE": f"{shell}_source"})
    assert (done.returncode, f"_TSM2_TUNE_COMPLETE={shell}_complete" in done.stdout) == (0, True), done.stderr
