"""Each command of the benchmarks starts, refuses wrong arguments and files in one sentence, and draws its file."""

from __future__ import annotations

import importlib
import json
import os
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from benchmarks import redraw, result_file
from benchmarks.cells_csv import cells_csv
from tests.databases import database_of
from tests.fabricated import configuration, host_run, trial
from tests.fabricated_rows import BIG, FACTS, OF_AN_UNSEEN_RUN, SMALL, measured, row
from tsm2_tune.errors import InputError
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


# Each line is a command, its arguments in a folder with a file there, and words of the sentence that refuses them.
REFUSED = """
    beside_cublas --output there | there exists: name another --output
    beside_cublas --device cpu --output new | cuBLAS has no host: use a CUDA ordinal
    call_cost --output new | no CUDA driver answers, and cuBLAS has no host: run this where there is a GPU
    expected cells.json | has no usable run in row 1: name a file of versus_cublas, or take the row out
    first_kernel --output there | --output
    gains --tuned cells.json --unseen unseen.json --calls {h100}-call-cost.json | has no winners
    gemv --dtype f8 --output new | unknown dtype 'f8'
    general --device cpu --output new | cuBLAS has no host
    join there --output new | is no result file
    plot there new | is no result file
    recorded_spaces host.db --output there | there exists
    regret --db host.db | has no trial of a GPU, and the host's times are of an emulation: name another --db
    repeated host.db | expected two databases
    standin_cost --library none --output new | no library none
    table there | is no result file of beside_cublas
    unseen --device cpu --pack there --searched-in unseen.json --output new | other is of another version
    unseen --device cpu --pack fails.py --output new | cannot be imported
    versus_cublas --resume --output there | is no result file
    versus_cublas --part 9999/9999 | part 9999/9999 of the selection has no cell
"""


@pytest.mark.slow
@pytest.mark.usefixtures("no_driver")
@pytest.mark.parametrize("line", re.findall(r"\S.*", REFUSED))
def test_a_wrong_argument_is_refused_before_the_run(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, sentence = line.split(" | ")
    name, *arguments = asked.format(h100=RESULTS / "h100").split()
    monkeypatch.chdir(tmp_path)
    unseen = {**FACTS, **OF_AN_UNSEEN_RUN, "rows": [{**measured(), "run": 0}]}
    cells = {**FACTS, "skipped": [BIG.record], "rows": [{**row(), "run": 1}]}
    texts = {
        "there": "hours",
        "fails.py": "1 / 0",
        "unseen.json": json.dumps(unseen),
        "cells.json": json.dumps(cells),
    }
    for file, text in texts.items():
        Path(file).write_text(text)
    if "host.db" in arguments:
        database_of("host.db", trial(), run=host_run())
    before = sorted(os.listdir())
    assert sentence in refused(command_named(name), *arguments)
    assert (sorted(set(os.listdir()) - {"__pycache__"}), Path("there").read_text()) == (before, "hours")


REGIONS = [match for path in redraw.PAGES for match in redraw.REGION.finditer(path.read_text(encoding="utf-8"))]


@pytest.mark.slow
@pytest.mark.parametrize("names", redraw.DRAWN)
def test_the_pages_are_drawn_from_the_files_of_results(names: str) -> None:
    parts = redraw.drawn(names)
    assert parts.keys() == {*names.split()}
    stale = [found[2] for found in REGIONS if found[2] in parts and found[0] != redraw.redrawn(found[0], parts)]
    assert stale == [], "python -m benchmarks.redraw"


def test_each_region_is_drawn() -> None:
    assert {found[2] for found in REGIONS} == {*" ".join(redraw.DRAWN).split()}
    with pytest.raises(InputError, match="nothing is drawn for 'other'"):
        redraw.redrawn("<!-- drawn: other -->\n\nx\n\n<!-- end -->", {})


@pytest.mark.slow
def test_the_cells_are_written_from_the_file_of_results() -> None:
    assert cells_csv(result_file.read(redraw.RESULT)["rows"]) == redraw.CELLS.read_text(encoding="utf-8")


# Each line is a command that draws a file of results, and words that it prints. It writes its file, if any, as `new`.
DRAWN = """
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
