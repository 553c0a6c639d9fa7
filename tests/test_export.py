"""The exports: nothing from a database can break a format, and every format says what its numbers belong to."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tsm2_tune
from tests.command import completed, refused, run
from tests.databases import database_of
from tests.fabricated import (
    GPU,
    Winners,
    configuration,
    exported,
    imported,
    source,
    trial,
    tuning_run,
    winners,
)
from tests.processes import python
from tsm2_tune.api.parse import FORMATS as ALL_FORMATS
from tsm2_tune.errors import InputError, StoreError
from tsm2_tune.generator.families.published import Tsm2Config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.device.target import limits_of
from tsm2_tune.tuner.export.tables import TABLES
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.written_files import write

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


@pytest.mark.parametrize("format_name", ["module", *TABLES])
def test_no_export_holds_what_a_terminal_obeys(nasty: Winners, format_name: str) -> None:
    text = exported(format_name, nasty, database=NASTY)
    assert {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")} <= {"\n", "\r"}


def test_each_format_reads_back_and_gives_no_text_a_meaning(nasty: Winners) -> None:
    """No cell of a CSV file is a formula, Markdown keeps its lines and cells, and LaTeX its special characters."""
    (winner,), sources = nasty
    text = exported("csv", ([replace(winner, flags=f"={NASTY}")], sources))
    (cells,) = csv.DictReader(io.StringIO(text, newline=""))
    shown = "".join(c if c.isprintable() else " " for c in NASTY)
    assert {cells[name] for name in ("device", "driver", "toolkit")} == {shown}
    assert (cells["flags"], cells["median_us"], cells["k"]) == (f"'={shown}", "500.0", "20480")

    document = json.loads(exported("json", nasty, database=NASTY))
    (row,) = document["best"]
    assert {row["device"], row["toolkit"], document["database"]} == {NASTY}
    assert row["parameters"] == configuration().tunables

    heading, _, facts, _, *table, end = exported("markdown", nasty).split("\n")
    assert heading.startswith("## A\"B'C\\|D\\\\E\\`F\\` {{ 7 \\* 7 }}")
    assert facts.startswith("Compute capability 9.0, driver A")
    assert (end, len(table)) == ("", 3)
    assert len({line.replace("\\\\", "").replace("\\|", "").count("|") for line in table}) == 1

    text = exported("latex", nasty)
    assert r"\textbackslash{}input\{x\}" in text
    body = text.split("\n")
    assert (body[0], body[-2]) == (r"\begin{table}", r"\end{table}")
    assert sum(line.endswith(r"\\") for line in body) == 2
    for special in "#$%_&":  # outside of alignment
        assert text.replace(" & ", "").replace(f"\\{special}", "").count(special) == 0


def test_modules_leave_out_winners_not_verified_in_full(path: Path) -> None:
    other, batch = Problem(64, 2, 64, "f64"), Problem(8, 8, 8, "f64", "nn", 500000)
    parts = [trial(problem=one, full_verdict=None) for one in (batch, other)]
    database_of(path, trial(full_verdict="right in 9 calls"), *parts)
    told = list[str]()
    found = tsm2_tune.export(path, format="module", binaries=False, on_event=lambda event: told.append(str(event)))
    assert told == [
        f"left out: 2 winners, not verified in full, such as {trial().config.text} for {batch.text} on {GPU}: to"
        f" verify them, run `tsm2-tune --db {path} --cache clean --shapes '{batch.text},{other.text}'` on that"
        " device, then this again"
    ]
    assert (found.text or "").count("    Winner(") == 1
    assert len((tsm2_tune.export(path, format="csv").text or "").splitlines()) == 4
    with pytest.raises(StoreError, match="a winner on NVIDIA H200 that was not verified in full"):
        tsm2_tune.export(path, format="module", binaries=False, products=[other])


@pytest.mark.parametrize("place", ["missing/best.so", "file/best.so", "folder.so", "loose.so", f"{'x' * 260}.so"])
def test_what_cannot_be_written_is_refused_before_anything_is_read(path: Path, tmp_path: Path, place: str) -> None:
    path.write_text("no database")
    (tmp_path / "file").touch()
    (tmp_path / "folder.so").mkdir()
    (tmp_path / "loose.so").symlink_to(tmp_path / "missing" / "best.so")
    before = sorted(tmp_path.rglob("*"))
    for form in ALL_FORMATS:
        done = refused("export", "--db", str(path), "--format", form, "--output", str(tmp_path / place))
        assert done.startswith(f"Error: cannot write {tmp_path}/{place[:9]}")
    with pytest.raises(InputError, match="cannot write"):
        write("text", tmp_path / place)
    assert sorted(tmp_path.rglob("*")) == before


def test_each_file_of_a_library_is_looked_at_before_anything_is_read(path: Path, tmp_path: Path) -> None:
    path.write_text("no database")
    with pytest.raises(InputError, match=r"cannot write a library to x\.txt: name a file that ends in \.so"):
        tsm2_tune.export(path, format="library", output="x.txt")
    for suffix in (".so", ".h", ".f90"):
        os.mkfifo(pipe := tmp_path / f"libtsm2{suffix}")
        with pytest.raises(InputError, match=rf"cannot write {pipe}: it is not a regular file"):
            tsm2_tune.export(path, format="library", output=tmp_path / "libtsm2.so")
        pipe.unlink()


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
def test_it_is_clean_python_and_importing_it_needs_numpy_only(nasty: Winners, tmp_path: Path) -> None:
    imported(exported("module", nasty), tmp_path)
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import best_kernels;"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'pycuda', 'tsm2_tune', 'jinja2'}))"
    )
    assert python("-c", script, tmp_path, check=True).stdout == "[]\n"
    if shutil.which("ruff") is not None:
        config = Path(__file__).parent.parent / "pyproject.toml"
        subprocess.run(["ruff", "check", "--config", config, tmp_path / "best_kernels.py"], check=True)


# Few kernels for many shapes: --within


A, B, C = (configuration(threads) for threads in (64, 128, 256))
SHAPES = tuple(Problem(m, 16, 20480, "f32") for m in (10240, 20480, 30720))


def stored(path: Path, *timed: tuple[Tsm2Config, Problem, float], device: str = GPU) -> str:
    """A database with these trials, all of them verified in full."""
    return database_of(
        path,
        *(trial(median_us, config, problem=problem, spread_us=0.1) for config, problem, median_us in timed),
        run=tuning_run(device),
    )


@pytest.fixture
def database(path: Path) -> str:
    """Return a database of three shapes, each with its own best kernel; one kernel is nearly as fast for all."""
    best = zip((A, B, C), SHAPES, (100.0, 200.0, 300.0), strict=True)
    near = ((B, SHAPES[0], 102.0), (B, SHAPES[2], 308.0))
    return stored(path, *best, *near)


def within(database: str, *options: str) -> tuple[list[dict[str, object]], str]:
    """The rows, and what was printed beside them."""
    result = completed("export", "--db", database, "--format", "json", "--output", "-", *options)
    return json.loads(result.stdout)["best"], result.stderr


@pytest.mark.usefixtures("no_driver")
def test_devices_types_and_ops_are_apart(database: str, path: Path) -> None:
    others = (Problem(10240, 16, 20480, "f64"), Problem(10240, 16, 20480, "f32", "nn"))
    stored(path, (C, others[0], 400.0))
    stored(path, (A, others[1], 500.0), device="another")
    rows, said = within(database, "--within", "3%")
    of_gpu = [(GPU, "f32", B.text)] * 3 + [(GPU, "f64", C.text)]
    found = [(row["device"], row["dtype"], row["config"]) for row in rows]
    assert found == [*of_gpu, ("another", "f32", A.text)]
    assert "counted as too slow (the device is not here)" in said
    assert [line for line in said.splitlines() if "within" in line] == [
        f"{GPU}, f32 nn: 1 kernel keeps 3 shapes within 3 % of the best time",
        f"{GPU}, f64 nn: 1 kernel keeps 1 shape within 3 % of the best time",
        "another, f32 nn: 1 kernel keeps 1 shape within 3 % of the best time",
    ]


def test_a_share_that_is_none(database: str) -> None:
    spelt = "3|0.03|nan%|inf%|-3%|+3%|1e2%|3%%|%|| 3%|1001%|99999%|3  %|٣%|3\n%"
    for share in spelt.split("|"):
        assert "is no percentage: expected at most 1000%, such as 3%" in refused(
            "export", "--db", database, "--within", share, "--format", "csv", "--output", "-"
        )


ON_HOST = ("--device", "cpu", "--family", "tsm2", "--max-trials", "2")
SMALL = "64x2x64,300x3x70,40x2x500"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, session_cache: None) -> Path:
    """A database of three shapes with two trials each, by this host."""
    path = tmp_path_factory.mktemp("tuned") / "results.db"
    completed(*ON_HOST, "--shapes", SMALL, "--no-pairs", "--db", str(path))
    return path


@pytest.mark.slow
def test_missing_pairs_are_measured_here(tuned: Path, path: Path, tmp_path: Path) -> None:
    path.write_bytes(tuned.read_bytes())
    command = ("export", "--db", str(path), "--within", "900%", "--format", "module", "--output")
    result = completed(*command, str(tmp_path / "best_kernels.py"))
    assert "1 kernel keeps 3 shapes within 900 %" in result.output
    assert "not served" not in result.output
    with Store.open(path, create=False) as store:
        host = limits_of("cpu").name
        winners = {row.problem: row for row in store.best(device=host)}
        assert len(store.listing()) > 6
    module = imported((tmp_path / "best_kernels.py").read_text(), tmp_path)
    assert len(module.KERNELS) == 1
    for winner in module.WINNERS:
        a, b = (
            np.asfortranarray(np.ones(shape, np.float32)) for shape in ((winner.m, winner.k), (winner.k, winner.n))
        )
        assert module.choice(a, b).distance == 0
        assert np.array_equal(module.gemm(a, b), a @ b)
        best = winners[Problem(winner.m, winner.n, winner.k, "f32")]
        assert winner.median_us <= 10 * best.median_us
    again = run(*command, str(tmp_path / "again.py"))
    assert again.output == result.output.replace("best_kernels.py", "again.py")
    assert (tmp_path / "again.py").read_text() == (tmp_path / "best_kernels.py").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("at", "trials", "said"),
    [
        (
            "Store.add_trials = lambda *arguments: (add(*arguments), stop())[0]",
            7,
            "stopped; every trial that ended is in {path}: run the same command again to continue",
        ),
        ("Tuner.compile_ahead = lambda *_: stop()", 6, "stopped; nothing is stored"),
    ],
)
def test_ctrl_c_leaves_what_was_measured(
    at: str, trials: int, said: str, tuned: Path, path: Path, tmp_path: Path
) -> None:
    path.write_bytes(tuned.read_bytes())
    script = f"""
import os, signal
from tests.quick_command import make_quick
from tsm2_tune.__main__ import main
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.search.loop import Tuner
make_quick(setattr)
add = Store.add_trials
stop = lambda: os.kill(os.getpid(), signal.SIGINT)
{at}
main()
"""
    output = tmp_path / "best.csv"
    options = ("export", "--db", str(path), "--within", "0%", "--format", "csv", "--output", str(output))
    done = python("-c", script, *options)
    assert done.returncode == 128 + signal.SIGINT, done.stderr
    assert said.format(path=path) in done.stdout
    assert done.stderr == ""
    assert not output.exists()
    with Store.open(path, create=False) as store:
        assert len(store.listing()) == trials
