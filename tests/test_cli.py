"""The command: what each subcommand prints, and that bad input gets one clear sentence and exit status 2."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import click
import pytest
from rich.console import Console

from tests.command import TUNE, refused, run
from tests.databases import database_of
from tests.fabricated import trial, tuning_run
from tsm2_tune.api import parse
from tsm2_tune.api.parse import MOST_SHAPES_BYTES, problems_of
from tsm2_tune.cli import main
from tsm2_tune.console import tables
from tsm2_tune.errors import InputError

pytestmark = pytest.mark.usefixtures("no_driver")

V0 = "tsm2:version=v0,threads=32,columns=1,prefetch=1"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("tune",), "nothing to tune: name --shapes"),
        (("--shapes", "8x8"), "shape '8x8': expected MxNxK"),
        (("--shapes", "0x8x8"), "at least 1"),
        (("--shapes", "-1x8x8"), "at least 1"),
        (("--shapes", "8x8x8", "--dtype", "f8"), "unknown dtype 'f8': expected one of f32, f64, c64, c128, bf16"),
        (("--shapes", "8x8x8", "--math", "tf32", "--dtype", "f8"), "expected one of f32, f64, c64, c128, bf16, f16"),
        (("source", V0, "--dtype", "f8"), "expected one of f32, f64, c64, c128, bf16, f16"),
        (("--shapes", "8x8x8", "--family", "tsm9"), "unknown family 'tsm9'"),
        (("--shapes", "8x8x8", "--family", ""), "unknown family ''"),
        (("--shapes", "8x8x8", "--family", "tsm2,gram"), "unknown family 'gram'"),
        (("space", "--shapes", "8x8x8", "--family", "tsmr"), "unknown family 'tsmr'"),
        (("--shapes", "8x8x8", "--guidelines", "reuse=1"), "unknown guideline 'reuse'"),
        (("--device", "cpu", "--shapes", "1e9x64x64"), "needs"),
        (("--device", "cpu", "--shapes", "3e9x1x1"), "at most 2147483647"),
        (("--shapes", "8x8x8,@no-such-file"), "shapes file 'no-such-file' cannot be read: No such file"),
        (("--shapes", "@no-such-file"), "shapes file 'no-such-file' cannot be read: No such file"),
        (("--device", "9", "--shapes", "8x8x8"), "no CUDA device 9"),
        (("--device", "0", "--shapes", "8x8x8"), "no CUDA driver answers"),
        (("--device", "h200", "--shapes", "8x8x8"), "bundled device profile"),
        (("--device", "tpu", "--shapes", "8x8x8"), "unknown device 'tpu'"),
        (("--device", "cpu", "--shapes", "8x8x8", "--db", "/no/such/folder/r.db"), "/no/such/folder/r.db"),
        (("--device", "cpu", "--shapes", "64x8x64", "--guidelines", "min-reuse=1e9,min-threads-per-sm=99999"),
         "no configuration left for 64x8x64:f32"),
        (("--max-trials", "0", "--shapes", "8x8x8"), "max-trials"),
        (("best", "--device", "cpu", "--db", "none.db"), "none.db"),
        (("--shapes", "8x8x8", "best"), "put the options after the command"),
        (("model", "--device", "cpu"), "--shapes"),
        (("space", "--device", "k80", "--shapes", "8x8x8"), "unknown device 'k80'"),
        (("source", "tsm2-v9"), f"tsm2 has no configuration 'tsm2-v9': an example is {V0}"),
        (
            ("source", "tsm2:version=v3,threads=128,columns=16,prefetchh=4"),
            "tsm2 has no configuration 'tsm2:version=v3,threads=128,columns=16,prefetchh=4': it has no tunable"
            f" 'prefetchh', did you mean prefetch; an example is {V0}",
        ),
        (
            ("source", "stream_a_dmma:threads=64,strips=1,columns=8,prefetch=64,stages=2", "--dtype", "f32"),
            "stream_a_dmma has no kernel for f32 and op nn in column layout: try --dtype f64",
        ),
        (("source", "tsm2:version=v3,threads=128,columns=16,prefetch=9"), "prefetch is one of 1, 2, 4, 6, 8"),
        (
            ("source", "resident_b_fma:threads=64,vector_bytes=16,columns=2,prefetch=4,evict_first=7"),
            "evict_first is one of 0",
        ),
        (("source", V0.replace("prefetch=1", "prefetch=4")), "each value is valid, but not their combination"),
        (("source", "nothing"), "unknown family 'nothing'"),
        (("best", "--db", "none.db"), "none.db"),
        (("export", "--db", "none.db", "--format", "csv", "--output", "-"), "none.db"),
        (("export", "--format", "xml", "--output", "-"), "xml"),
        (("show", "--db", "none.db"), "none.db"),
        (("show", "x"), "x"),
        (("show", "9" * 20), "not in the range"),
        (("show", "\u0661"), "'\u0661' is not a valid trial's number: expected digits from 0 to 9"),
        (("--shapes", "8x8x8", "--seed", "\uff11"), "'\uff11' is not a valid integer: expected digits"),
        (("--shapes", "8x8x8", "--max-trials", "1_0"), "'1_0' is not a valid integer: expected digits"),
        (("--shapes", "8x8x8", "--budget", "\uff11.5"), "'\uff11.5' is not a time: expected a number of seconds"),
        (("--shapes", "8x8x8", "--run-limit", "1_0"), "'1_0' is not a time: expected a number of seconds"),
        (("--shapes", "8x8x8", "--run-limit", "nan"), "expected a number of seconds"),
        (("--shapes", "8x8x8", "--run-limit", "1e10"), "not in the range"),
        (("--shapes", "8x8x8", "--compile-limit", "nan"), "expected a number of seconds"),
        (("--shapes", "8x8x8", "--compile-limit", "inf"), "not in the range"),
        (("--shapes", "8x8x8", "--budget", "nan"), "expected a number of seconds"),
        (("--shapes", "8x8x8", "--budget", "inf"), "not in the range"),
        (("--shapes", "9" * 5000 + "x8x8"), "a number of 5000 characters"),
        (("--device", "9" * 5000, "--shapes", "8x8x8"), "of 5000 digits"),
        (("space", "--device", "9" * 5000, "--shapes", "8x8x8"), "of 5000 digits"),
        (("--device", "", "--shapes", "8x8x8"), "unknown device ''"),
        (("--device", "\uff10", "--shapes", "8x8x8"), "unknown device '\uff10'"),
        (("space", "--device", "\uff10", "--shapes", "8x8x8"), "unknown device '\uff10'"),
        (("space", "--device", "", "--shapes", "8x8x8"), "unknown device ''"),
        (("--shapes", "@/dev/zero"), "'/dev/zero' is not a regular file"),
        (("--shapes", "@/"), "'/' is not a regular file"),
        (("--shapes", "@/proc/kmsg"), "'/proc/kmsg' holds no shape"),
        (("ladder", "--shapes", "8x8x8", "--device", "cpu", "--op", "tn"), "ladder does not compute 8x8x8:f32:tn"),
        (("ladder", "--shapes", "8x8x8", "--device", "cpu", "--dtype", "bf16"), "of f32 or f64; choose another --op"),
        (("ladder", "--shapes", "8x8x8", "--device", "h200"), "bundled device profile"),
        (("ladder", "--device", "cpu"), "Missing option '--shapes'"),
    ],
)  # fmt: skip
def test_bad_input_gets_one_sentence(
    arguments: tuple[str, ...], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert complaint in result.output
    assert result.output.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("before", [("source",), ("source", V0, "--dtype"), ("space", "--shapes"), ("best", "--db")])
def test_of_a_long_argument_its_ends_are_quoted(before: tuple[str, ...]) -> None:
    result = run(*before, f"first{'x' * 5000}last")
    assert result.exit_code == 2
    assert all(part in result.output for part in ("firstxxx", "xxx...xxx", "xxxlast"))
    assert len(result.output) < 900


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("precious notes, long enough to be no empty database" * 40)
    before = path.read_bytes()
    for arguments in ((*TUNE, "--db", str(path)), ("best", "--db", str(path))):
        result = run(*arguments)
        assert result.exit_code == 2
        assert str(path) in result.output
    assert path.read_bytes() == before


def test_a_newer_database_is_left_alone(database: str) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA user_version = 999")
    connection.close()
    before = Path(database).read_bytes()
    for arguments in ((*TUNE, "--db", database), ("best", "--db", database)):
        result = run(*arguments)
        assert result.exit_code == 2
        assert "newer" in result.output
    assert Path(database).read_bytes() == before


def test_a_device_that_was_not_tuned_is_named(database: str) -> None:
    for command in (["best"], ["export", "--format", "csv", "--output", "-"]):
        result = run(*command, "--db", database, "--device", "NVIDIA B200")
        assert result.exit_code == 2
        assert "it has 'NVIDIA H200'" in result.output
    assert "500.0" in run("best", "--db", database, "--device", "NVIDIA H200").output


def test_an_export_follows_links_and_writes_into_pipes(database: str, tmp_path: Path) -> None:
    target, link, pipe = tmp_path / "target.csv", tmp_path / "link.csv", tmp_path / "pipe"
    link.symlink_to(target)
    assert run("export", "--db", database, "--format", "csv", "--output", str(link)).exit_code == 0
    assert link.is_symlink()
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    assert run("export", "--db", database, "--format", "csv", "--output", str(pipe)).exit_code == 0
    reader.join()
    assert pipe.is_fifo()
    assert read == [target.read_text()]


def test_an_output_that_cannot_be_written(database: str, tmp_path: Path) -> None:
    result = run("export", "--db", database, "--format", "csv", "--output", str(tmp_path / "no" / "t.csv"))
    assert result.exit_code == 2
    assert "no/t.csv" in result.output


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
def test_an_export_never_replaces_its_database(database: str, tmp_path: Path, suffix: str) -> None:
    before = Path(database).read_bytes()
    link = tmp_path / "link.db"
    link.symlink_to(database)
    for named in (database, str(link)):
        result = run("export", "--db", named, "--format", "csv", "--output", database + suffix)
        assert result.exit_code == 2
        assert "part of the database" in " ".join(result.output.split())
    assert Path(database).read_bytes() == before


def test_a_shapes_file_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "shapes.txt"
    path.write_text("# " + "x" * MOST_SHAPES_BYTES)
    result = run("space", "--device", "cpu", "--shapes", f"@{path}")
    assert result.exit_code == 2
    assert f"more than {MOST_SHAPES_BYTES} bytes" in " ".join(result.output.split())


def test_shapes_files_stand_among_other_items(tmp_path: Path) -> None:
    path, other = tmp_path / "shapes.txt", tmp_path / "more.txt"
    path.write_text("8x8x8  # small\n\n16x2x16, 16x4x16\n")
    other.write_text("32x2x32")
    found = problems_of(f"@{path}, 9x9x9,@{other},8x8x8", "f32", "nn", "column")
    assert [p.shape for p in found] == ["8x8x8", "16x2x16", "16x4x16", "9x9x9", "32x2x32"]
    other.write_text(f"@{path}")
    assert "shape '@" in run("space", "--device", "cpu", "--shapes", f"@{other}").output


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf8x8x8\n9x9x9\n",
        b"8x8x8\r\n9x9x9\r\n",
        b"8x8x8 # Mac\r9x9x9",
        "8x8x8\n9x9x9\n".encode("utf-16"),
        "\ufeff8x8x8\n9x9x9\n".encode("utf-16-be"),
        b"8x8x8\n\xef\xbb\xbf# joined\n9x9x9\n",
        "8x8x8 # of \u2028 7x7x7\n9x9x9\n".encode(),
    ],
)
def test_a_shapes_file_of_another_editor_is_read_right(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "shapes.txt"
    path.write_bytes(content)
    assert [p.shape for p in problems_of(f"@{path}", "f32", "nn", "column")] == ["8x8x8", "9x9x9"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"8x8x8\n\0\0\0\0", "it contains NUL characters"),
        ("8x8x8\n".encode("utf-16-le"), "it contains NUL characters"),
        ("8x8x8\n".encode("utf-16")[:-1], "it is not text in UTF-8 or UTF-16"),
    ],
)
def test_a_damaged_shapes_file_is_refused(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "shapes.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=reason):
        problems_of(f"@{path}", "f32", "nn", "column")


def test_shapes_come_through_a_pipe_or_standard_input(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    os.write(writes, b"8x8x8\n")
    os.close(writes)
    assert [p.shape for p in problems_of(f"@/dev/fd/{reads}", "f32", "nn", "column")] == ["8x8x8"]
    os.close(reads)
    command = [sys.executable, "-m", "tsm2_tune", "space", "--device", "cpu", "--shapes"]
    for name in ("@-", "@/dev/stdin"):
        ended = subprocess.run([*command, name], input="8x8x9", capture_output=True, text=True, check=False)
        assert (ended.returncode, "8x8x9" in ended.stdout) == (0, True), ended.stderr


def test_shapes_that_do_not_end_are_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse, "MOST_SHAPES_SECONDS", 0.2)
    os.mkfifo(tmp_path / "fifo")
    reads, writes = os.pipe()
    os.write(writes, b"8x8x8\n")
    for name in (tmp_path / "fifo", f"/dev/fd/{reads}"):
        with pytest.raises(InputError, match=r"did not end within 0\.2 s: write the whole file first"):
            problems_of(f"@{name}", "f32", "nn", "column")
    os.close(reads)
    os.close(writes)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", [("show",), ("show", "1"), ("show", "--json"), ("--help",)])
def test_an_output_that_is_full(arguments: tuple[str, ...], database: str) -> None:
    of_database = ("--db", database) if "show" in arguments else ()
    command = [sys.executable, "-m", "tsm2_tune", *arguments, *of_database]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.strip().splitlines()[-1].startswith("Error: the output cannot be")
    assert "Traceback" not in ended.stderr


def test_ctrl_c_where_the_output_is_full() -> None:
    program = """
import sys, tsm2_tune.cli
from tsm2_tune.__main__ import main
def command():
    print("waits")
    raise KeyboardInterrupt
tsm2_tune.cli.main = command
main()
"""
    command = [sys.executable, "-c", program]
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=buffered)
    assert (ended.returncode, ended.stderr) == (130, "")


def test_a_sentence_quotes_no_more_than_fits() -> None:
    result = run("--shapes", "9" * 100_000)
    assert result.exit_code == 2
    assert len(result.output) < 2100
    assert result.output.startswith("Error: shape '999")
    assert "expected MxNxK" in result.output


def test_ctrl_c_before_the_first_trial(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(spec: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tsm2_tune.api.devices.find_target", interrupted)
    result = run(*TUNE, "--db", str(tmp_path / "r.db"))
    assert result.exit_code == 130
    assert result.output.startswith("stopped; ")


def test_hostile_names_are_shown_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    name, detail = "[/nope]:smile:", "[/nope]\x1b[31m:smile:\x9b"
    database_of(path, trial(500.0, detail=detail), run=tuning_run(name))
    for arguments, shown in ((("best",), name), (("show",), "[/nope][31m:smile:"), (("show", "1"), "[31m:smile:")):
        result = run(*arguments, "--db", str(path))
        assert result.exit_code == 0
        assert name in result.output
        assert shown in result.output
        assert "\x1b" not in result.output
    as_json = run("show", "--json", "--db", str(path)).output
    assert "\x9b" not in as_json
    assert (json.loads(as_json)[0]["device"], json.loads(as_json)[0]["detail"]) == (name, detail)


def test_hostile_names_on_a_terminal() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=80)
    tables.print_table(console, ("name",), [("[/nope]\x1b[31m\n",)])
    assert isinstance(console.file, io.StringIO)
    assert "[/nope][31m" in console.file.getvalue()


@pytest.mark.parametrize("name", [None, *main.commands])
def test_every_command_has_help(name: str | None) -> None:
    result = run(*([name] if name else []), "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("tune",), "nothing to tune: name --shapes"),
        (("--shape", "8x8x8"), "No such option: --shape; did you mean --shapes?"),
        (("-x",), "No such option '-x'; --help says more"),
        (("--shapes",), "Option '--shapes' requires an argument"),
        (("--shapes", "8x8x8", "--budget", "-1"), "is not in the range"),
        (
            ("--shapes", "8x8x8", "--math", "x"),
            "'x' is not one of 'full', 'tf32', '3xtf32', 'minplus'; --help says more",
        ),
        (("--shapes", "8x8x8", "--math", "tf23"), "'3xtf32', 'minplus'; did you mean tf32? --help says more"),
        (("export", "--format", "Modul", "--output", "-"), "'library'; did you mean module? --help says more"),
        (("--shapes", "8x8x8", "best"), "extra argument (best): put the options after the command 'best'"),
        (("nothing",), "No such command 'nothing'; --help says more"),
        (("bset",), "did you mean 'best'? --help says more"),
        (
            ("source", "tsm2:version=v9,threads=128,columns=16,prefetch=4"),
            ("'tsm2:version=v9,threads=128,columns=16,prefetch=4': version is one of v0, v1, v2, v3"),
        ),
        (("export", "--output", "-"), "its suffix names no format: choose one with --format (module, csv"),
        (("source",), "Missing argument 'TRIAL|CONFIGURATION'; --help says more"),
        (("show", "first"), "'first' is not a valid trial's number"),
        (("best", "--db", "/"), "'/' is a directory"),
        (("best", "--db", "/no/such\nfolder.db"), "no database /no/such folder.db"),
        (("devices", "3"), "unexpected extra argument (3)"),
    ],
    ids=lambda one: one if isinstance(one, str) else " ".join(one),
)
def test_a_usage_error_is_one_line(arguments: tuple[str, ...], sentence: str) -> None:
    result = refused(*arguments)
    assert result.startswith("Error: ")
    assert sentence in result


GROUPS = [name for name, command in main.commands.items() if isinstance(command, click.Group)]


@pytest.mark.parametrize("name", GROUPS)
def test_a_missing_subcommand_is_named(name: str) -> None:
    result = run(name)
    below = ", ".join(sorted(main.commands[name].commands))  # type: ignore[attr-defined]
    assert (result.exit_code, result.output) == (
        2,
        f"Error: Missing command: name one of {below}; --help says more\n",
    )


def test_best_and_show(database: str) -> None:
    (row,) = json.loads(run("best", "--db", database, "--json").output)["best"]
    assert row["median_us"] == 500.0
    assert row["parameters"]["version"] == "v3"
    assert "500.0" in run("best", "--db", database).output
    (line,) = json.loads(run("show", "--db", database, "--json").output)
    assert line["outcome"] == "ok"
    shown = json.loads(run("show", str(line["id"]), "--db", database, "--json").output)
    assert shown["measurements"][0]["median_us"] == 500.0
    assert shown["source"].startswith("//")
    assert "500 us +- " in run("show", str(line["id"]), "--db", database).output
    missing = run("show", "77", "--db", database)
    assert missing.exit_code == 2
    assert "77" in missing.output


@pytest.mark.usefixtures("fake_nvcc")
@pytest.mark.parametrize("form", ["module", "csv", "json", "markdown", "latex"])
def test_every_format_is_exported(form: str, database: str, tmp_path: Path) -> None:
    path, other, text = tmp_path / "out.py", tmp_path / "best-kernels.py", tmp_path / "best-kernels.txt"

    def told(output: Path) -> str:
        done = run("export", "--db", database, "--format", form, "--output", str(output))
        assert (done.exit_code, done.stdout) == (0, "")
        return done.stderr

    assert told(path) == f"wrote {path}\n"
    rename = ": rename it before you import it, to letters, digits and _"
    assert told(other) == f"wrote {other}{rename if form == 'module' else ''}\n"
    assert told(text) == f"wrote {text}{f'{rename}, and .py at the end' if form == 'module' else ''}\n"
    assert told(Path("/dev/null")) == "wrote /dev/null\n"
    assert "NVIDIA H200" in path.read_text()
    said = run("export", "--db", database, "--format", form, "--output", "-")
    assert said.stdout == path.read_text()
