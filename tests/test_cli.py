"""The command: what each subcommand prints, and that bad input gets one clear sentence and exit status 2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, TextIO

import pytest

from tests.command import TUNE, refused, run
from tsm2_tune.api.parse import LARGE
from tsm2_tune.generator import families, problem
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.space.space import unfit

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_driver")]

V0 = "tsm2:version=v0,threads=32,columns=1,prefetch=1"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--shapes", "9" * 100_000), "999': expected MxNxK, such as"),
        (("--shapes", "8x8 " * 5000), "expected MxNxK, such as"),
        (("--device", "cpu", "--shapes", "1e9x64x64"), "needs"),
        (("--device", "cpu", "--shapes", "64x8x64", "--guidelines", "min-reuse=1e9,min-threads-per-sm=99999"),
         "no configuration left for 64x8x64:f32"),
        (("space", "--device", "9" * 5000, "--shapes", "8x8x8"), "of 5000 digits"),
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
    result = run(*before, f"first{'x' * 5000}last")
    assert result.exit_code == 2
    assert all(part in result.output for part in ("firstxxx", "xxx...xxx", "xxxlast"))
    assert len(result.output) < 900


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


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
def test_an_export_never_replaces_its_database(database: str, tmp_path: Path, suffix: str) -> None:
    before = Path(database).read_bytes()
    link = tmp_path / "link.db"
    link.symlink_to(database)
    for named in (database, str(link)):
        output = database + suffix
        assert "part of the database" in refused("export", "--db", named, "--format", "csv", "--output", output)
    assert Path(database).read_bytes() == before


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", ["show 1 --db {}", "show --json --db {}", "--help"])
def test_an_output_that_is_full(arguments: str, database: str) -> None:
    with open("/dev/full", "w") as full:
        ended = into(full, "-m", "tsm2_tune", *arguments.format(database).split())
    assert ended.returncode == 2
    assert ended.stderr.strip().splitlines()[-1].startswith("Error: the output cannot be")
    assert "Traceback" not in ended.stderr


def into(file: TextIO, *arguments: str) -> subprocess.CompletedProcess[str]:
    command, buffered = [sys.executable, *arguments], {**os.environ, "PYTHONUNBUFFERED": ""}
    return subprocess.run(command, stdout=file, stderr=subprocess.PIPE, text=True, check=False, env=buffered)


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


def test_a_trial_is_shown_as_it_is_stored(database: str) -> None:
    (line,) = json.loads(run("show", "--db", database, "--json").output)
    assert line["outcome"] == "ok"
    shown = json.loads(run("show", str(line["id"]), "--db", database, "--json").output)
    assert shown["measurements"][0]["median_us"] == 500.0
    assert shown["source"] == run("source", "1", "--db", database).output


@pytest.mark.parametrize("form", ["module", "csv"])
def test_a_name_that_no_module_can_have_is_told(form: str, database: str, tmp_path: Path) -> None:
    def told(output: str) -> str:
        done = run("export", "--db", database, "--format", form, "--output", output, "--no-binaries")
        assert (done.exit_code, done.stdout) == (0, "")
        return done.stderr.removeprefix(f"wrote {output}: 1 kernel for 1 problem")

    rename = "; rename it before you import it, to letters, digits and _" if form == "module" else ""
    assert [told(str(tmp_path / "out.py")), told("/dev/null")] == ["\n", "\n"]
    assert told(str(tmp_path / "best-kernels.py")) == f"{rename}\n"
    assert told(str(tmp_path / "best-kernels.txt")) == f"{rename and f'{rename}, and .py at the end'}\n"


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


@pytest.mark.parametrize("device", [*PROFILES, "cpu"])
def test_space_works_for_every_card_without_a_gpu(device: str) -> None:
    result = run("space", "--device", device, "--shapes", "10240x8x10240", "--dtype", "f64", "--explain")
    assert result.exit_code == 0
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
        for dtype in problem.DTYPES.values()
        for op in ("nn", "tn", "tx", "ttt")
        for size, batch in ((1, 1), (LARGE, 1), (1, 2))
        if family.supports(product := problem.Problem(size, size, size, dtype.name, op, batch))
        and unfit(family, config, product) is None
    )
    typed = ("--dtype", dtype.element_name, "--math", dtype.math)
    result = run("source", config.text, *typed, "--op", op)
    assert result.exit_code == 0
    assert result.output.startswith(f"// {config.kernel_text}\n// ")
    assert f"using scalar = {dtype.c_type};" in result.output


DMMA = "stream_a_dmma:threads=128,strips=2,columns=16,prefetch=16,stages=2,splits=4"


def test_the_source_is_that_of_the_op() -> None:
    texts = {op: run("source", DMMA, "--dtype", "f64", "--op", op).output for op in ("nn", "ttt")}
    assert "A, B, C column-major" in texts["nn"]
    assert "A, B, C row-major" in texts["ttt"]
    assert run("source", DMMA, "--dtype", "f64", "--layout", "row").output == texts["ttt"]
    inner = "inner_fma:threads=128,block=16x16,thread=8x4x2,stages=1,splits=264"
    assert "conjugate(a[r][q]) * b[c][q];" in run("source", inner, "--dtype", "c64", "--op", "cn").output


def test_a_problem_that_no_family_computes_gets_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "FAMILIES", {"tsm2": families.FAMILIES["tsm2"]})
    for command in ((), ("space",)):
        found = refused(*command, "--device", "h200", "--shapes", "8x8x8", "--op", "nn,ttt")
        assert "no kernel family computes 8x8x8:f32:ttt: choose another --op, --dtype or shape" in found


def test_devices_lists_the_bundled_cards() -> None:
    assert {one["device"] for one in json.loads(run("devices", "--json").output)} == {"cpu", *PROFILES}
    assert "h200" in run("devices").output
