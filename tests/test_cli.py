"""The command: what people type, what is refused in one sentence, what is written, and what the plans print."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import click
import pytest

from tests.command import TUNE, completed, refused, run
from tests.databases import database_of
from tests.fabricated import GPU, trial, tuning_run
from tests.printed_commands import FOLDER, replayed
from tsm2_tune.api.parse import LARGE
from tsm2_tune.cli import EXAMPLES, main
from tsm2_tune.commands.errors import Option
from tsm2_tune.commands.options import Seconds
from tsm2_tune.console.plan_tables import data_sheet_text
from tsm2_tune.errors import pip_install
from tsm2_tune.generator import families
from tsm2_tune.generator.device.cards import DRIVER_NAMES, PROFILES
from tsm2_tune.generator.dtypes import DTYPES
from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.space import unfit
from tsm2_tune.tuner.device.emulator.limits import host_limits
from tsm2_tune.tuner.results.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_driver")]

V0 = "tsm2:version=v0,threads=32,columns=1,prefetch=1"
DMMA = "stream_a_dmma:threads=128,strips=2,columns=16,prefetch=16,stages=2,splits=4"
REFUSALS = FOLDER / "refusals.txt"


# Transcripts


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_commands_print_their_transcripts(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    transcript = path.read_text(encoding="utf-8")
    assert replayed(transcript) == transcript, "python -m tests.printed_commands"
    if path == REFUSALS:
        answers = re.split(r"\n?^\$ tsm2-tune .*\n", transcript, flags=re.MULTILINE)[1:]
        assert len(answers) > 150
        assert [one for one in answers if not re.fullmatch(r"Error: .{1,2000}\n\[status 2\]\n", one)] == []


# Refusals


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--shapes", "9" * 100_000), "999': expected MxNxK, such as"),
        (("--shapes", "8x8 " * 5000), "expected MxNxK, such as"),
        (("--device", "cpu", "--shapes", "1e9x64x64"), "needs"),
        (("--device", "cpu", "--shapes", "64x8x64", "--guidelines", "min-reuse=1e9,min-threads-per-sm=99999"),
         "no configuration left for 64x8x64:f32"),
        (("space", "--device", "9" * 5000, "--shapes", "8x8x8"), "unknown device '999"),
        (("best", "--db", "/no/such\nfolder.db"), "no database /no/such folder.db"),
    ],
    ids=lambda one: one if isinstance(one, str) else " ".join(one)[:50],
)  # fmt: skip
def test_bad_input_gets_one_sentence(
    arguments: tuple[str, ...], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Input that is long, or that this machine's size limits; tests/printed/refusals.txt has more."""
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert (result.exit_code, result.output[:7], result.output.count("\n")) == (2, "Error: ", 1), result.output
    assert complaint in result.output
    assert len(result.output) < 2100
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("before", [("source",), ("source", V0, "--dtype"), ("space", "--shapes"), ("best", "--db")])
def test_of_a_long_argument_its_ends_are_quoted(before: tuple[str, ...]) -> None:
    found = refused(*before, f"first{'x' * 5000}last")
    assert all(part in found for part in ("firstxxx", "xxx...xxx", "xxxlast"))


def test_a_line_that_is_not_utf8_is_named(path: Path, tmp_path: Path) -> None:
    trials = tmp_path / "trials.jsonl"
    run("export", "--db", database_of(path, trial()), "-o", str(trials))
    trials.write_bytes(trials.read_bytes().replace(b"tsm2:", b"tsm2\xff:", 1))
    number = 1 + trials.read_bytes().partition(b"\xff")[0].count(b"\n")
    for command in (("best", "--db", str(trials)), ("import", str(trials), "--db", str(path))):
        assert f"{trials}, line {number}, is not as this tsm2-tune writes it (it is not UTF-8)" in refused(*command)


def test_a_problem_that_no_family_computes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "FAMILIES", {"tsm2": families.FAMILIES["tsm2"]})
    for command in ((), ("space",)):
        found = refused(*command, "--device", "h200", "--shapes", "8x8x8", "--op", "nn,ttt")
        assert "no kernel family computes 8x8x8:f32:ttt: choose another --op, --dtype or shape" in found


def test_no_option_drops_a_value_silently() -> None:
    def every(group: click.Group = main) -> Iterator[click.Command]:
        for command in filter(None, (group.get_command(click.Context(group), name) for name in group.commands)):
            yield from (command, *(every(command) if isinstance(command, click.Group) else ()))

    options = [one for command in every() for one in command.params if isinstance(one, click.Option)]
    assert len(options) > 100
    assert all(isinstance(one, Option) for one in options)


# Output


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
def test_an_export_never_replaces_its_database(database: str, tmp_path: Path, suffix: str) -> None:
    before = Path(database).read_bytes()
    link = tmp_path / "link.db"
    link.symlink_to(database)
    for named in (database, str(link)):
        output = database + suffix
        assert "part of the database" in refused("export", "--db", named, "--format", "csv", "--output", output)
    assert Path(database).read_bytes() == before


def test_an_export_follows_links_and_writes_into_pipes(database: str, tmp_path: Path) -> None:
    target, link, pipe = tmp_path / "target.csv", tmp_path / "link.csv", tmp_path / "pipe"
    link.symlink_to(target)
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    for output in (link, pipe):
        assert run("export", "--db", database, "--format", "csv", "--output", str(output)).exit_code == 0
    reader.join()
    assert (link.is_symlink(), pipe.is_fifo(), read) == (True, True, [target.read_text()])


def into(file: TextIO, *arguments: str) -> subprocess.CompletedProcess[str]:
    command, buffered = [sys.executable, *arguments], {**os.environ, "PYTHONUNBUFFERED": ""}
    return subprocess.run(command, stdout=file, stderr=subprocess.PIPE, text=True, check=False, env=buffered)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", ["show 1 --db {}", "show --json --db {}", "--help"])
def test_an_output_that_is_full(arguments: str, database: str) -> None:
    with open("/dev/full", "w") as full:
        ended = into(full, "-m", "tsm2_tune", *arguments.format(database).split())
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
    with open("/dev/full", "w") as full:
        ended = into(full, "-c", program)
    assert (ended.returncode, ended.stderr) == (130, "")


def test_ctrl_c_before_the_first_trial(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(spec: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tsm2_tune.api.devices.find_target", interrupted)
    result = run(*TUNE, "--db", str(tmp_path / "r.db"))
    assert result.exit_code == 130
    assert result.output.startswith("stopped; ")


# What people type


def test_alone_it_shows_examples() -> None:
    assert (run().exit_code, run().output) == (0, f"{EXAMPLES}\n")


def test_a_budget_may_have_a_unit() -> None:
    seconds = {"90": 90, "90s": 90, "2m": 120, "1.5h": 5400, "1e2": 100, "2 min": 120, ".5": 0.5}
    assert {typed: Seconds(min=0).convert(typed, None, None) for typed in seconds} == seconds


@pytest.mark.parametrize("command", [("best",), ("db", "check"), ("report",), ("quarantine",), ("db", "vacuum")])
def test_a_database_may_be_an_argument(
    command: tuple[str, ...], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(database).parent)
    pytest.importorskip("vl_convert")
    assert run(*command, database).exit_code == 0
    assert "named twice" in refused(*command, database, "--db", "other.db")
    assert (command == ("report",)) == Path("report.html").exists()


def test_the_ending_of_a_file_says_the_format(database: str, tmp_path: Path) -> None:
    beginnings = {".csv": "device,", ".json": "{", ".md": "## ", ".tex": "\\begin{table}", ".jsonl": "{"}
    for ending, beginning in beginnings.items():
        output = tmp_path / f"best{ending}"
        done = run("export", "--db", database, "-o", str(output))
        assert (done.exit_code, output.read_text()[: len(beginning)]) == (0, beginning), done.output


@pytest.mark.parametrize("form", ["module", "csv"])
def test_a_name_that_no_module_can_have_is_told(form: str, database: str, tmp_path: Path) -> None:
    def told(output: str) -> str:
        done = run("export", "--db", database, "--format", form, "--output", output, "--no-binaries")
        assert (done.exit_code, done.stdout) == (0, "")
        return done.stderr.removeprefix(f"wrote {output}: 1 kernel for 1 problem")

    rename = "; rename it before you import it, to letters, digits and _" if form == "module" else ""
    assert [told(str(tmp_path / "out.py")), told("/dev/null")] == ["\n", "\n"]
    assert told(str(tmp_path / "best-kernels.txt")) == f"{rename and f'{rename}, and .py at the end'}\n"


@pytest.mark.parametrize(
    "words",
    ["64x4x64 8x8x8", "64x4x64 --shapes 8x8x8", "@shapes.txt", "64x4x64,8x8x8 --dtype f32 --dtype f64 --json"],
)
def test_shapes_may_be_arguments_and_lists_are_joined(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shapes.txt").write_text("64x4x64\n8x8x8\n")
    found = json.loads(run("space", "--device", "h100", *words.split(), "--json").output)
    dtypes = ("f32", "f64") if "f64" in words else ("f32",)
    assert [one["problem"] for one in found] == [f"{shape}:{one}" for shape in ("64x4x64", "8x8x8") for one in dtypes]


@pytest.mark.parametrize("is_own", [True, False])
def test_a_missing_package_is_installed_by_the_pip_of_this_python(
    is_own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = tmp_path / "pip"
    pip.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    python = str(tmp_path / "python") if is_own else sys.executable
    monkeypatch.setattr(sys, "executable", python)
    assert pip_install("a[b]") == f"{'pip' if is_own else f'{python} -m pip'} install 'a[b]'"


# Spaces, sources and models


def test_space_counts_every_configuration_and_has_every_op() -> None:
    few = ("--dtype", "f64", "--family", "tsm2,stream_a_fma,row_lanes_shared_b")
    arguments = ("space", "--device", "h200", "--shapes", "20480x16x20480", *few)
    column, row = json.loads(run(*arguments, "--json", "--op", "nn,ttt").output)
    assert [one["problem"] for one in (column, row)] == ["20480x16x20480:f64", "20480x16x20480:f64:ttt"]
    assert ["tsm2" in one["families"] for one in (column, row)] == [True, False]
    assert json.loads(run(*arguments, "--json", "--layout", "row").output) == [row]
    assert column["total"] == column["kept"] + sum(column["dropped"].values())
    lines = run(*arguments, "--list").output.splitlines()
    assert len(lines) == column["kept"]
    assert set(json.loads(lines[0])) >= {"family", "configuration", "tunables", "registers", "threads_per_sm"}


def test_a_space_without_a_shape_says_which_one_it_shows() -> None:
    shown = run("space", "--device", "h100", "--family", "tsm2")
    assert (shown.exit_code, "no shape is named: this is 8192x8192x8192" in shown.stderr) == (0, True)
    assert run("space", "8x8x8", "--device", "h100", "--family", "tsm2").stderr == ""


@pytest.mark.parametrize("device", [*PROFILES, "cpu"])
def test_space_works_for_every_card_without_a_gpu(device: str) -> None:
    result = completed("space", "--device", device, "--shapes", "10240x8x10240", "--dtype", "f64", "--explain")
    lines = result.output.splitlines()
    assert "  threads [t1]: threads of a block" in result.output
    for place, line in enumerate(lines):
        if ", none kept: " in line:  # tunables are explained only of families that are kept
            assert not lines[place + 1].startswith("  ")


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_source_prints_any_configuration_that_is_listed(family: Any) -> None:
    config = next(iter(family.configurations()))
    dtype, op = next(
        (dtype, op)
        for dtype in DTYPES.values()
        for op in ("nn", "tn", "tx", "ttt")
        for size, batch in ((1, 1), (LARGE, 1), (1, 2))
        if family.supports(product := Problem(size, size, size, dtype.name, op, batch))
        and unfit(family, config, product) is None
    )
    typed = ("--dtype", dtype.element_name, "--math", dtype.math)
    result = completed("source", config.text, *typed, "--op", op)
    assert result.output.startswith(f"// {config.kernel_text}\n// ")
    assert f"using scalar = {dtype.c_type};" in result.output


def test_the_source_is_that_of_the_op(database: str) -> None:
    texts = {op: run("source", DMMA, "--dtype", "f64", "--op", op).output for op in ("nn", "ttt")}
    assert "A, B, C column-major" in texts["nn"]
    assert "A, B, C row-major" in texts["ttt"]
    assert run("source", DMMA, "--dtype", "f64", "--layout", "row").output == texts["ttt"]
    inner = "inner_fma:threads=128,block=16x16,thread=8x4x2,stages=1,splits=264"
    assert "conjugate(a[r][q]) * b[c][q];" in run("source", inner, "--dtype", "c64", "--op", "cn").output
    found = run("source", "row_lanes_register_b:threads=128,vector_bytes=4,lanes=1,columns=1,rows=2,min_blocks=2")
    assert (found.exit_code, found.stderr) == (0, "for --layout row\n")
    assert "A, B, C row-major" in found.stdout
    stored = json.loads(run("show", "1", "--db", database, "--json").output)["source"]
    assert run("source", "1", "--db", database).output == stored


def test_devices_lists_the_bundled_cards() -> None:
    assert {one["device"] for one in json.loads(run("devices", "--json").output)} == {"cpu", *PROFILES}
    assert len(set(DRIVER_NAMES.values())) == len(DRIVER_NAMES) == len(PROFILES)


def asked(*arguments: str) -> Any:
    result = completed("model", "--shapes", "8x8x8", *arguments, "--json")
    (found,) = json.loads(result.output)
    return found


def test_rates_that_nothing_measured_have_their_source() -> None:
    assert "assumed, since nothing was measured" in asked("--device", "cpu")["rates"]
    here = replace(PROFILES["h200"], name="NVIDIA H200")
    assert data_sheet_text(here) == "driver: 132 multiprocessors at 1980 MHz, 4.81 TB/s"


def test_a_database_that_has_no_rates_is_refused(tmp_path: Path) -> None:
    empty, of_host = database_of(tmp_path / "empty.db"), tmp_path / "host.db"
    database_of(of_host, trial(), run=tuning_run("Some CPU", compute_capability=""))
    for path, device, said in (
        (empty, "h200", "tune first"),
        (str(of_host), "Some CPU", "the limits of the device 'Some CPU' are unknown on this machine: run this on a"),
    ):
        assert said in refused("model", "--db", path, "--shapes", "8x8x8", "--dtype", "bf16", "--device", device)


def test_of_several_devices_the_one_that_is_here_is_meant(path: Path) -> None:
    name = host_limits().name
    with Store.open(path, create=True) as store:
        for one in (GPU, "Tesla K40c"):
            store.add_trial(tuning_run(one), trial())
    said = refused("model", "--db", str(path), "--shapes", "8x8x8")
    assert f"no trial of the device {name!r} in {path}: it has 'NVIDIA H200', 'Tesla K40c'" in said
    database_of(path, trial(), run=tuning_run(name))
    assert asked("--db", str(path))["device"] == name
    assert asked("--db", str(path), "--device", GPU)["device"] == "h200"


def test_a_prediction_says_where_cublas_is_called() -> None:
    shown = run("predict", "--device", "h100", "--shapes", "8000x8000x64", "--dtype", "f64").output
    assert re.search(r"^8000x8000x64:f64: cuBLAS is called, not \w+_dmma:", shown, re.MULTILINE), shown
