"""Each command of the benchmarks starts, refuses wrong arguments and files in one sentence, and draws its file."""

from __future__ import annotations

import copy
import importlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from benchmarks import gains, headline, program_tables, redraw, repeated, result_file, unseen, unseen_file
from benchmarks.call_tables import OUT, OWN, SPLIT
from benchmarks.leave_one_out import times_in
from benchmarks.recorded_spaces import rows_in
from tests.databases import database_of
from tests.fabricated import configuration, host_run, trial
from tests.fabricated_rows import BIG, FACTS, OF_AN_UNSEEN_RUN, SMALL, measured, row
from tsm2_tune.commands.errors import Command
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


# Files of results. A hostile one differs from a right one in a field that its reader declares.


def reading(read: Callable[[Path], Any]) -> click.Command:
    """A command that only reads its file."""
    return Command("read", params=[click.Argument(["path"], type=click.Path(path_type=Path))], callback=read)


CALL = {"median_us": 7.0}
CALLED = {at: {"one_thread": {own: CALL, OUT: CALL, SPLIT: CALL}} for at, own in OWN.items()}
WINNER = {
    "device": "a card", "l2_state": "clean", "m": 20480, "n": 8, "k": 20480, "median_us": 400.0, "vendor_us": 500.0,
    "vendor_right": True, "cublas_us": 520.0, "cublas_right": True,
}  # fmt: skip
GRAPHS = dict.fromkeys(result_file.GRAPH_FIELDS, 2.5)
DIRTY = {f"{who}_dirty_us": 390.0 for who in ("plan", "search", "fallback")}
LEFT = {"falls_back": True, "fallback_us": 500.0, "fallback_verified": True}
REPEATED = {
    "rows": [{"us": [1.0, 2.0]}], "winners": [{"us": [1.0, 2.0], "configs": ["a", "b"]}], "devices": ["a card"] * 2,
    "one_card": True,
}  # fmt: skip
PROGRAMS = {"programs": {"one": {"before_ms": [4.0, 4.2], "after_ms": [2.0, 2.2]}}}
CHECKS = (
    result_file.FACTS, result_file.FIELDS, result_file.DIRTY_FIELDS, unseen_file.OF_A_RUN, unseen_file.OF_A_ROW,
    gains.OF_A_TUNED_SHAPE,
)  # fmt: skip
NULL = {name for checks in CHECKS for name, check in checks.items() if check(None)} | {*DIRTY, *GRAPHS}
MAY_BE_ZERO = ("run", "search_seconds", "seed", "each", "winners", "kernels")


@dataclass(frozen=True)
class Reader:
    """A command that reads a file, and the fields of a right file that it declares, by their place in it."""

    command: click.Command
    arguments: tuple[str, ...]
    sentence: str
    content: Mapping[str, Any]
    fields: Mapping[tuple[str | int, ...], Iterable[str | int]]
    never_none: Collection[str] = ()


READERS = {
    "cells.json": Reader(
        headline.main, (), r"no usable|is no result file",
        {
            **FACTS, "earlier_runs": [FACTS], "skipped": [BIG.record],
            "rows": [{**row(), **GRAPHS, "run": 1}],
        },
        {
            (): (*result_file.FACTS, "rows"), ("earlier_runs", 0): result_file.FACTS, ("skipped", 0): ("regime", "m"),
            ("rows", 0): (*result_file.FIELDS, *result_file.DIRTY_FIELDS, "launch_floor_us", "run"),
        },
    ),
    "unseen.json": Reader(
        unseen.main, ("--table",), r"no usable|is no result file|not say the plan of row 1|no time of the fallback",
        {**FACTS, **OF_AN_UNSEEN_RUN, "rows": [{**measured(**DIRTY, **LEFT), "run": 0}]},
        {
            (): unseen_file.OF_A_RUN, ("draw",): ("seed", "each"), ("pack_facts",): ("winners", "kernels"),
            ("rows", 0): (*unseen_file.OF_A_ROW, "plan", "plan_seconds", *DIRTY),
        },
        ("fallback_us", "search_seconds"),
    ),
    "export": Reader(
        reading(gains.read_tuned), (), r"no usable|no winners|of 2 GPUs and states of the L2",
        {"best": [WINNER, WINNER]}, {(): ("best",), ("best", 0): gains.OF_A_TUNED_SHAPE},
    ),
    "call_cost": Reader(
        reading(gains.Calls.of), (), "is no file of call_cost", CALLED,
        {
            (): OWN, ("torch",): ("one_thread",), ("torch", "one_thread"): (OWN["torch"], OUT),
            ("torch", "one_thread", SPLIT): CALL, ("cupy", "one_thread", OUT): CALL,
        },
    ),
    "repeated": Reader(
        repeated.main, ("--table",), "is no file of", REPEATED,
        {
            (): REPEATED, ("rows", 0): ("us",), ("rows", 0, "us"): (0, 1), ("winners", 0): ("us", "configs"),
            ("winners", 0, "us"): (0, 1), ("winners", 0, "configs"): (0,),
        },
    ),
    "programs": Reader(
        reading(program_tables.read_programs), (), "is no file of programs", PROGRAMS,
        {
            (): ("programs",), ("programs",): ("one",), ("programs", "one"): ("before_ms", "after_ms"),
        },
    ),
}  # fmt: skip


def wrong_values(value: Any) -> tuple[Any, ...]:
    """Values of other types than this one's, and numbers that no measurement has."""
    if isinstance(value, bool):
        return "yes", 2, [], {}
    if isinstance(value, (int, float)):
        return -1.0, "1", math.nan, math.inf, 10**400, [], {}, True
    return (5, {}, True) if isinstance(value, (str, list)) else (5, [], "x")


def at(content: Any, place: Iterable[str | int]) -> Any:
    for key in place:
        content = content[key]
    return content


def hostile(reader: Reader) -> Iterator[tuple[str, str]]:
    """The reader's file without each field that it declares, and with each wrong value of it."""
    for place, names in reader.fields.items():
        for name in names:
            right = at(reader.content, (*place, name))
            nothing: list[Any] = [None] if name not in NULL or name in reader.never_none else []
            nothing += [...] if name not in DIRTY else []
            nothing += [0] if type(right) in (int, float) and name not in MAY_BE_ZERO else []
            for wrong in (*nothing, *wrong_values(right)):
                content = copy.deepcopy(reader.content)
                if wrong is ...:
                    del at(content, place)[name]
                else:
                    at(content, place)[name] = wrong
                yield f"{(*place, name)}: {wrong!r}", json.dumps(content)
    for text in ("", "[]", "{}", '{"rows": 3}', '{"rows": [1]}', '{"rows": ' + "[" * 200_000, "\udcff"):
        yield text[:20], text


@pytest.mark.parametrize("name", READERS)
def test_a_hostile_file_is_refused(name: str, tmp_path: Path) -> None:
    reader, path = READERS[name], tmp_path / "found.json"
    path.write_text(json.dumps(reader.content))
    assert started(reader.command, *reader.arguments, path).exit_code == 0
    taken = list[str]()
    for told, text in hostile(reader):
        path.write_bytes(text.encode(errors="surrogateescape"))
        ended = started(reader.command, *reader.arguments, path)
        if ended.exit_code != 2 or not re.search(reader.sentence, ended.output) or ended.output.count("\n") > 3:
            taken.append(f"{told[:60]} -> {ended.exit_code}: {ended.output[:80]} {str(ended.exception)[:60]}")
    assert "\n".join(taken) == ""


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


@pytest.mark.parametrize("line", re.findall(r"\S.*", REFUSED))
def test_a_wrong_argument_is_refused_before_the_run(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, sentence = line.split(" | ")
    name, *arguments = asked.format(h100=RESULTS / "h100").split()
    monkeypatch.setattr("benchmarks.gpu.cuda_device_count", lambda: 0)
    monkeypatch.chdir(tmp_path)
    files = {name: json.dumps(reader.content) for name, reader in READERS.items()}
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
def test_the_pages_are_drawn_from_the_files_of_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    pages = {path: tmp_path / path.relative_to(redraw.ROOT) for path in (*redraw.PAGES, redraw.CELLS)}
    pictures = {name: tmp_path / f"{name}.png" for name in ("GAINS", "ALL_GAINS", "PROGRAMS_PICTURE")}
    for page, copied in pages.items():
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(page, copied)
    (*copies, csv_file), drawn, parts = pages.values(), list[Path](), redraw.all_drawn()
    for name, value in {
        "all_drawn": lambda: parts,
        "ROOT": tmp_path,
        "PAGES": copies,
        "CELLS": csv_file,
        **pictures,
    }.items():
        monkeypatch.setattr(redraw, name, value)
    monkeypatch.setattr(redraw, "draw", lambda found, path: drawn.append(path))  # it takes long
    said = started(redraw.main).output.splitlines()
    assert [line for line in said if not line.endswith(": as before")] == [], "python -m benchmarks.redraw"
    assert len(said) == len(pages)
    assert drawn == [redraw.RESULT.with_suffix(".png")]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures.values())
    regions = {match[2] for page in copies for match in redraw.REGION.finditer(page.read_text(encoding="utf-8"))}
    assert regions == set(parts)


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
