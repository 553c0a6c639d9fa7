"""Each command of the benchmarks starts, refuses wrong arguments and files in one sentence, and draws its file."""

from __future__ import annotations

import copy
import importlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from benchmarks import gains, headline, program_tables, redraw, repeated, result_file, unseen, unseen_file
from benchmarks.call_tables import OUT, OWN, SPLIT
from benchmarks.cells_csv import cells_csv
from benchmarks.leave_one_out import times_in
from benchmarks.recorded_spaces import rows_in
from tests.databases import database_of
from tests.fabricated import configuration, host_run, trial
from tests.fabricated_rows import BIG, FACTS, OF_AN_UNSEEN_RUN, SMALL, measured, row
from tsm2_tune.commands.errors import Command
from tsm2_tune.errors import InputError
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.seed_table import FILE as MEASURED

RESULTS = Path("benchmarks/results").absolute()
NEEDS = {"report_pictures": "playwright"}  # a package that a command imports at once
COMMANDS = sorted(path.stem for path in Path("benchmarks").glob("*.py") if "__main__" in path.read_text())


def command_named(name: str) -> click.Command:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    found = importlib.import_module(f"benchmarks.{name}").main
    assert isinstance(found, click.Command)
    return found


def started(command: click.Command, *arguments: object) -> Result:
    return CliRunner().invoke(command, [str(one) for one in arguments])


def refused(command: click.Command, *arguments: object) -> str:
    """The sentence that a command says before it ends with status 2."""
    ended = started(command, *arguments)
    assert (ended.exit_code, ended.output[:7], ended.output.count("\n")) == (2, "Error: ", 1), ended.exception
    return ended.output


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_starts_and_knows_its_options(name: str) -> None:
    command = command_named(name)
    for part in ([], *([one] for one in getattr(command, "commands", ()))):
        assert started(command, *part, "--help").exit_code == 0
        assert "--nonsense" in refused(command, *part, "--nonsense")


# Files of results


def reading(read: Callable[[Path], Any]) -> click.Command:
    """A command that only reads its file."""
    return Command("read", params=[click.Argument(["path"], type=click.Path(path_type=Path))], callback=read)


CALL = {"median_us": 7.0}
WINNER = {
    "device": "a card", "l2_state": "clean", "m": 20480, "n": 8, "k": 20480, "median_us": 400.0, "vendor_us": 500.0,
    "vendor_right": True, "cublas_us": 520.0, "cublas_right": True,
}  # fmt: skip
REPEATED = {
    "rows": [{"us": [1.0, 2.0]}], "winners": [{"us": [1.0, 2.0], "configs": ["a", "b"]}], "devices": ["a card"] * 2,
    "one_card": True,
}  # fmt: skip
CONTENTS: dict[str, Mapping[str, Any]] = {
    "cells.json": {**FACTS, "earlier_runs": [FACTS], "skipped": [BIG.record], "rows": [{**row(), "run": 1}]},
    "unseen.json": {**FACTS, **OF_AN_UNSEEN_RUN, "rows": [{**measured(), "run": 0}]},
    "export": {"best": [WINNER, WINNER]},
    "call_cost": {at: {"one_thread": {own: CALL, OUT: CALL, SPLIT: CALL}} for at, own in OWN.items()},
    "repeated": REPEATED,
    "programs": {"programs": {"one": {"before_ms": [4.0, 4.2], "after_ms": [2.0, 2.2]}}},
}
READERS: dict[str, tuple[click.Command, tuple[str, ...]]] = {
    "cells.json": (headline.main, ()), "unseen.json": (unseen.main, ("--table",)),
    "export": (reading(gains.read_tuned), ()), "call_cost": (reading(gains.Calls.of), ()),
    "repeated": (repeated.main, ("--table",)), "programs": (reading(program_tables.read_programs), ()),
}  # fmt: skip
DECLARED = {
    *result_file.FACTS, *result_file.FIELDS, *result_file.DIRTY_FIELDS, *unseen_file.OF_A_RUN, *unseen_file.OF_A_ROW,
    *gains.OF_A_TUNED_SHAPE, *OWN, *OWN.values(), OUT, "one_thread", "one", "us", "configs", "rows", "best",
    "programs", "before_ms", "after_ms", "plan", "plan_seconds",
}  # fmt: skip


def damaged(content: Any) -> Iterator[tuple[str, Any]]:
    """The content without each field that a reader declares, and with a value of another type in its place."""
    for name, value in list(content.items() if isinstance(content, dict) else enumerate(content)):
        if name in DECLARED:
            del content[name]
            yield f"no {name}", content
        if name in DECLARED or isinstance(name, int):
            content[name] = {}
            yield f"{name}: {{}}", content
        content[name] = value
        if isinstance(value, (dict, list)) and (name in (*DECLARED, "earlier_runs") or isinstance(name, int)):
            yield from ((told, content) for told, _ in damaged(value))


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_of_results_is_refused(name: str, tmp_path: Path) -> None:
    (command, arguments), path, content = READERS[name], tmp_path / "found.json", copy.deepcopy(CONTENTS[name])
    path.write_text(json.dumps(content))
    assert started(command, *arguments, path).exit_code == 0
    taken = []
    for told, changed in damaged(content):
        path.write_text(json.dumps(changed))
        ended = started(command, *arguments, path)
        if ended.exit_code != 2 or ended.output.count("\n") > 3:
            taken.append(f"{told} -> {ended.exit_code}: {ended.output[:80]} {str(ended.exception)[:60]}")
    assert taken == []


# Each line is a command, its arguments in a folder with a file there, and words of the sentence that refuses them.
REFUSED = """
    beside_cublas --device cpu --output new | cuBLAS has no host: use a CUDA ordinal
    beside_cublas --output there | there exists: name another --output
    beside_cublas --output no/new | is in no folder that exists
    beside_cublas --shapes 8x8 --output new | expected MxNxK
    beside_cublas --dtype f8 --output new | unknown dtype 'f8'
    beside_cublas --seconds nan --output new | is not a time
    beside_cublas --seconds 0 --output new | is not in the range
    call_cost --device cpu --output new | cuBLAS has no host: use a CUDA ordinal
    call_cost --output new | no CUDA driver answers, and cuBLAS has no host: run this where there is a GPU
    expected there | is no result file
    expected cells.json | no kernel that won several shapes
    expected cells.json --profile nosuch | nosuch
    first_kernel --output there | --output
    gains --tuned cells.json --unseen unseen.json --calls {h100}-call-cost.json | has no winners
    gains --tuned {h100}-tuned.json --unseen cells.json --calls {h100}-call-cost.json | name a file of unseen
    gains --tuned {h100}-tuned.json --unseen unseen.json --calls {h100}-call-cost.json | of NVIDIA H200
    gemv --device cpu --output new | cuBLAS has no host
    gemv --dtype f8 --output new | unknown dtype 'f8'
    gemv --layout diagonal --output new | unknown layout
    general --device cpu --output new | cuBLAS has no host
    join there --output new | is no result file
    plot there new | is no result file
    recorded_spaces host.db --output there | there exists
    regret --db host.db | has no trial of a GPU, and the host's times are of an emulation: name another --db
    regret --spaces there | has no recorded spaces
    regret --output there | there exists
    repeated host.db | expected two databases
    repeated host.db host.db --output there | exists
    standin_cost --library none --output new | no library none
    table there | is no result file of beside_cublas
    unseen --table there | is no result file
    unseen --device cpu --pack there --searched-in cells.json --output new | name a file of unseen
    unseen --device cpu --pack there --searched-in unseen.json --output new | other is of another version
    unseen --device cpu --pack there --searched-in short.json --output new | is not of searches of one length
    unseen --device cpu --pack there --searched-in wrong.json --output new | has no winner of a search
    unseen --device cpu --pack there --searched-in on_gpu.json --output new | the searches were on NVIDIA H200, not on
    unseen --device cpu --small 5:3 | --small
    unseen --device cpu --pack there --output new | is no Python file
    unseen --device cpu --pack def.py --output new | cannot be imported
    unseen --device cpu --pack fails.py --output new | cannot be imported
    unseen --device cpu --pack other.py --output new | is no exported module
    versus_cublas --device cpu --output new | cuBLAS has no host
    versus_cublas --output there | there exists: name another --output, or go on with --resume
    versus_cublas --resume --output there | is no result file
    versus_cublas --output no/new | is in no folder that exists
    versus_cublas --seconds -1 | --seconds -1: expected a number above 0
    versus_cublas --seconds nan | --seconds nan: expected a number above 0
    versus_cublas --time-limit nan | --time-limit nan: expected a number above 0
    versus_cublas --regime R,X | unknown regime 'X': expected one of R, L, T, G
    versus_cublas --dtype f31 | unknown dtype 'f31'
    versus_cublas --layout , | no layout in ','
    versus_cublas --part 4/3 | expected such as 1/4
    versus_cublas --part 9999/9999 | part 9999/9999 of the selection has no cell
"""


@pytest.mark.usefixtures("no_driver")
@pytest.mark.parametrize("line", re.findall(r"\S.*", REFUSED))
def test_a_wrong_argument_is_refused_before_the_run(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, sentence = line.split(" | ")
    name, *arguments = asked.format(h100=RESULTS / "h100").split()
    monkeypatch.chdir(tmp_path)
    files = {name: json.dumps(content) for name, content in CONTENTS.items()}
    files["short.json"] = files["unseen.json"].replace('"search_seconds": 5.0', '"search_seconds": 0')
    files["wrong.json"] = files["unseen.json"].replace('"search_verified": true', '"search_verified": false')
    files["on_gpu.json"] = files["unseen.json"].replace('"other"', f'"{configuration().text}"')
    for file, text in (files | {"there": "hours", "def.py": "def", "fails.py": "1 / 0", "other.py": "x = 1"}).items():
        Path(file).write_text(text)
    if "host.db" in arguments:
        database_of("host.db", trial(), run=host_run())
    before = sorted(os.listdir())
    assert sentence in refused(command_named(name), *arguments)
    assert (sorted(set(os.listdir()) - {"__pycache__"}), Path("there").read_text()) == (before, "hours")


@pytest.mark.slow
def test_the_pages_are_drawn_from_the_files_of_results() -> None:
    parts = redraw.all_drawn()
    pages = {path: path.read_text(encoding="utf-8") for path in redraw.PAGES}
    stale = [path.name for path, page in pages.items() if redraw.redrawn(page, parts) != page]
    assert stale == [], "python -m benchmarks.redraw"
    assert cells_csv(result_file.read(redraw.RESULT)["rows"]) == redraw.CELLS.read_text(encoding="utf-8")
    assert {match[2] for page in pages.values() for match in redraw.REGION.finditer(page)} == set(parts)
    with pytest.raises(InputError, match="nothing is drawn for 'other'"):
        redraw.redrawn("<!-- drawn: other -->\n\nx\n\n<!-- end -->", {})


# Each line is a command that draws a file of results, and words that it prints. It writes its file, if any, as `new`.
DRAWN = """
    doctor_answers --output new | /home/me/.cache/tsm2-tune
    expected {h200}-versus-cublas.json | all
    gains --tuned {h100}-tuned.json --unseen {h100}-unseen-4.json --calls {h100}-call-cost.json --picture new | tuned
    headline {h200}-versus-cublas.json --shapes-of quick | Geometric means of the speed-ups
    join {h200}-versus-cublas.json {h200}-versus-cublas.json --output new | rows of
    leave_one_out run pairs.txt --device cpu --output new | 1/1 1000x2x2:f32 1 configurations
    measured --output new | wrote
    parent_cost 1000x16x1000:f32 --trials 20 --rounds 1 | ms
    plot cells.json new |
    recorded_spaces results.db --output new | wrote new: 1 trials of 1 problems
    repeated --table {h200}-two-cards.json | NVIDIA H200, two cards:
    table {h200}-beside-cublas.json | | 20480 x
    unseen --table {h100}-unseen.json | The pack has
"""


@pytest.mark.slow
@pytest.mark.parametrize("line", re.findall(r"\S.*", DRAWN))
def test_a_file_of_results_is_drawn(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, _, sentence = line.partition(" |")
    name, *arguments = asked.format(h100=RESULTS / "h100", h200=RESULTS / "h200").split()
    command = command_named(name)
    if name in ("plot", "gains"):
        pytest.importorskip("matplotlib")
    if name == "doctor_answers" and shutil.which("nvcc") is None:
        pytest.skip("no nvcc")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    Path("pairs.txt").write_text(f"1000x2x2:f32 {configuration().text}\n", encoding="utf-8")
    database_of("results.db", trial())
    Path("cells.json").write_text(json.dumps({**FACTS, "rows": [{**row(cell), "run": 0} for cell in (BIG, SMALL)]}))
    ended = started(command, *arguments)
    assert (ended.exit_code, sentence.strip() in ended.output) == (0, True), ended.output
    if name in ("plot", "gains"):
        assert Path("new").read_bytes().startswith(b"\x89PNG")
    elif name == "measured":
        assert Path("new").read_text(encoding="utf-8") == MEASURED.read_text(encoding="utf-8")
    elif name == "join":
        assert result_file.read(Path("new"))["rows"] == result_file.read(RESULTS / "h200-versus-cublas.json")["rows"]
    elif name == "leave_one_out":
        assert list(times_in(Path("new"))) == [Problem.parse("1000x2x2:f32")]
    elif name == "recorded_spaces":
        assert [len(found["trials"]) for found in rows_in(Path("new"))] == [1]
