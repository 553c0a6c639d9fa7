"""The exports: nothing from a database can break a format, and every format says what its numbers belong to."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tsm2_tune
from tests.command import refused
from tests.databases import database_of
from tests.fabricated import GPU, Winners, configuration, exported, imported, source, trial, tuning_run, winners
from tests.processes import python
from tsm2_tune.api.parse import FORMATS as ALL_FORMATS
from tsm2_tune.errors import InputError, StoreError
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.export import FORMATS, write

NASTY = (
    """A"B'C|D\\E`F` {{ 7 * 7 }} {% raw %} \"\"\" ''' */ // # %d $x$ _y_ ^~ <b>&amp; ??/ \\input{x}"""
    "\n| x |\r\n# heading\x1b[31m\u202e\u200b\U000e0041\x00\x0b\x85\u2028é€😀 \\"
)

# Tables


@pytest.fixture
def nasty(tmp_path: Path) -> Winners:
    """Texts that no database may hold: what a format gives a meaning to is escaped all the same."""
    (row,), _ = winners(tmp_path, (tuning_run(), trial()))
    texts: dict[str, Any] = dict.fromkeys(("device", "driver", "toolkit", "flags", "tuned_at", "version"), NASTY)
    kernel = source(configuration(), text=f"// {NASTY}\n")
    return [replace(row, **texts, source_digest=kernel.digest)], {row.trial_id: kernel}


@pytest.mark.parametrize("format_name", FORMATS)
def test_no_export_holds_what_a_terminal_obeys(nasty: Winners, format_name: str) -> None:
    text = exported(format_name, nasty, database=NASTY)
    assert {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")} <= {"\n", "\r"}


def test_csv_reads_back_and_no_cell_is_a_formula(nasty: Winners) -> None:
    (winner,), sources = nasty
    text = exported("csv", ([replace(winner, flags=f"={NASTY}")], sources))
    (row,) = csv.DictReader(io.StringIO(text, newline=""))
    shown = "".join(c if c.isprintable() else " " for c in NASTY)
    assert {row[name] for name in ("device", "driver", "toolkit")} == {shown}
    assert row["flags"] == f"'={shown}"
    assert (row["median_us"], row["k"]) == ("500.0", "20480")


def test_json_reads_back(nasty: Winners) -> None:
    document = json.loads(exported("json", nasty, database=NASTY))
    (row,) = document["best"]
    assert {row["device"], row["toolkit"], document["database"]} == {NASTY}
    assert row["parameters"] == configuration().tunables


def test_markdown_keeps_its_lines_and_cells(nasty: Winners) -> None:
    heading, _, facts, _, *table, end = exported("markdown", nasty).split("\n")
    assert heading.startswith("## A\"B'C\\|D\\\\E\\`F\\` {{ 7 * 7 }}".replace("*", "\\*"))
    assert facts.startswith("Compute capability 9.0, driver A")
    assert end == ""
    assert len(table) == 3
    assert len({line.replace("\\\\", "").replace("\\|", "").count("|") for line in table}) == 1


def test_latex_escapes_every_special_character(nasty: Winners) -> None:
    text = exported("latex", nasty)
    assert r"\textbackslash{}input\{x\}" in text
    body = text.split("\n")
    assert body[0] == r"\begin{table}"
    assert body[-2] == r"\end{table}"
    assert sum(line.endswith(r"\\") for line in body) == 2
    for special in "#$%_&":  # outside of alignment
        assert text.replace(" & ", "").replace(f"\\{special}", "").count(special) == 0


def test_nothing_to_export_and_an_unknown_format(nasty: Winners) -> None:
    with pytest.raises(InputError, match=r"nothing to export: results\.db has no winner"):
        exported("csv", ((), {}))
    with pytest.raises(InputError, match="unknown format 'xml': expected one of module, csv"):
        exported("xml", nasty)


def test_modules_leave_out_winners_not_verified_in_full(path: Path) -> None:
    other = Problem(64, 2, 64, "f64")
    database_of(path, trial(full_verdict="right in 9 calls"), trial(problem=other, full_verdict=None))
    told = list[str]()
    found = tsm2_tune.export(path, format="module", binaries=False, on_event=lambda event: told.append(str(event)))
    assert told == [
        f"left out: 1 winner, not verified in full, {trial().config.text} for {other.text} on {GPU}: tune that"
        " shape on that device to verify it"
    ]
    assert (found.text or "").count("    Winner(") == 1
    assert len((tsm2_tune.export(path, format="csv").text or "").splitlines()) == 3
    with pytest.raises(StoreError, match="a winner on NVIDIA H200 that was not verified in full"):
        tsm2_tune.export(path, format="module", binaries=False, products=[other])


def test_a_library_of_a_wrong_name_is_refused_before_anything_is_read(path: Path) -> None:
    path.write_text("no database")
    with pytest.raises(InputError, match=r"cannot write a library to x\.txt: name a file that ends in \.so"):
        tsm2_tune.export(path, format="library", output="x.txt")


@pytest.mark.parametrize("form", ALL_FORMATS)
@pytest.mark.parametrize("place", ["missing/best.so", "file/best.so", "folder.so", "loose.so", f"{'x' * 260}.so"])
def test_what_cannot_be_written_is_refused_before_anything_is_read(
    path: Path, tmp_path: Path, form: str, place: str
) -> None:
    path.write_text("no database")
    (tmp_path / "file").touch()
    (tmp_path / "folder.so").mkdir()
    (tmp_path / "loose.so").symlink_to(tmp_path / "missing" / "best.so")
    before = sorted(tmp_path.rglob("*"))
    done = refused("export", "--db", str(path), "--format", form, "--output", str(tmp_path / place))
    assert done.startswith(f"Error: cannot write {tmp_path}/{place[:9]}")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("suffix", [".so", ".h", ".f90"])
def test_each_file_of_a_library_is_looked_at_before_anything_is_read(path: Path, tmp_path: Path, suffix: str) -> None:
    path.write_text("no database")
    os.mkfifo(tmp_path / f"libtsm2{suffix}")
    with pytest.raises(InputError, match=rf"cannot write {tmp_path}/libtsm2\{suffix}: it is not a regular file"):
        tsm2_tune.export(path, format="library", output=tmp_path / "libtsm2.so")


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.md"
    path.write_text("old")
    write("new\r\né", path)
    assert path.read_bytes() == "new\r\né".encode()
    assert path.stat().st_mode & 0o444 == 0o444 & ~_umask()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("place", ["missing/out.md", "file/out.md", "folder"])
def test_a_path_that_cannot_be_written(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match="cannot write"):
        write("text", tmp_path / place)
    assert sorted(tmp_path.rglob("*")) == before


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


# The module as a file


def test_nothing_from_the_database_becomes_code(nasty: Winners, tmp_path: Path) -> None:
    text = exported("module", nasty, database=NASTY)
    assert text.isascii()
    compile(text, "best_kernels.py", "exec")
    module = imported(text, tmp_path)
    (winner,) = module.WINNERS
    assert (winner.device, winner.toolkit, winner.tuned_at) == (NASTY, NASTY, NASTY)
    assert list(module.KERNELS) == [winner.digest]
    assert module.text_of(winner) == f"// {NASTY}\n"


@pytest.mark.slow
def test_importing_it_needs_numpy_only(nasty: Winners, tmp_path: Path) -> None:
    imported(exported("module", nasty), tmp_path)
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import best_kernels;"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'pycuda', 'tsm2_tune', 'jinja2'}))"
    )
    done = python("-c", script, tmp_path, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.skipif(shutil.which("ruff") is None, reason="no ruff")
def test_it_is_clean_python(nasty: Winners, tmp_path: Path) -> None:
    imported(exported("module", nasty), tmp_path)
    config = Path(__file__).parent.parent / "pyproject.toml"
    subprocess.run(["ruff", "check", "--config", config, tmp_path / "best_kernels.py"], check=True)
