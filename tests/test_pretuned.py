"""Kernels that the package brings: what it has, and programs that are run with them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

import tsm2_tune
from benchmarks import pretuned as bench
from tests.command import completed, refused, run, said
from tests.fabricated import (
    BASIS,
    GPU,
    configuration,
    fake_binary,
    final,
    plain_sql,
    trial,
    tuning_run,
    vendor_measurement,
)  # fmt: skip
from tests.fake_compilers import fake_toolkit
from tests.on_host import has_compiler
from tests.processes import python
from tests.standin_calls import TESTS, gemm
from tsm2_tune import pretuned
from tsm2_tune.generator.device.cards import DRIVER_NAMES
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.compile import cache
from tsm2_tune.tuner.export.kernel_sets.intermediate_winners import verified_in_full
from tsm2_tune.tuner.results.merge import files
from tsm2_tune.tuner.results.merge.text_parser import parse_content
from tsm2_tune.tuner.results.store import Store

pytestmark = pytest.mark.slow

CONFIG, SKINNY = configuration(128, 2, 1), Problem(6, 2, 3, "f32")  # the program's product
PROGRAM = (sys.executable, "-m", "tests.cublas_program")
OTHER = Problem(600, 2, 300, "f64")
QUICK = ["tests.quick_command", "--device", "cpu"]
LEFT = "the program's products are left to cuBLAS"


@pytest.mark.parametrize("name", ["h100", "h200"])
def test_every_text_is_of_this_versions_kernels(name: str) -> None:
    (found,) = (one for one in pretuned.pretuned() if one.name == name)
    assert (found.device_name, found.compute_capability) == (DRIVER_NAMES[name], "9.0")
    with found.path() as path:
        told = parse_content(path, path.read_bytes())
    assert told.left_out == {}
    assert {device for device, _ in told.parts} == {found.device_name}
    assert {"f32", "f64"} <= {problem.dtype_name for _, problem in told.parts}
    excluded = list[str]()
    with Store.open(f"pretuned:{name}", create=False) as store:
        winners = store.best(device=found.device_name)
        assert verified_in_full(store, excluded.append, winners) == winners
    assert excluded == []


def test_a_card_has_its_own_text_and_another_one_its_sisters() -> None:
    names = {
        ("NVIDIA H200", "9.0"): "h200",
        ("NVIDIA H100 80GB HBM3", "9.0"): "h100",
        ("NVIDIA H100 PCIe", "9.0"): "h200",
    }
    assert {card: getattr(pretuned.for_card(*card), "name", None) for card in names} == names
    assert pretuned.for_card("NVIDIA A100", "8.0") is None


@pytest.mark.usefixtures("session_cache")
@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")
def test_the_bench_verifies_winners_searches_nothing_and_writes_the_text(tmp_path: Path) -> None:
    database, output = tmp_path / "tuned.db", tmp_path / "cpu.jsonl"
    tuned = [*QUICK, "--shapes", "64x2x64", "--family", "tsm2", "--max-trials", "1", "--db", str(database)]
    python("-m", *tuned, cwd=TESTS.parent, check=True)
    plain_sql(database, "UPDATE trial SET full_verdict = NULL")
    text = ["--dtype", "f32", "--device", "cpu", "--output", str(output)]
    said = CliRunner().invoke(bench.main, [str(database), "--no-verify", *text])
    assert said.output == f"wrote {output}: 1 winners, 0 of them verified in full\n"
    said = CliRunner().invoke(bench.main, [str(database), *text])
    assert said.output.endswith(f"wrote {output}: 1 winners, 1 of them verified in full\n")
    assert plain_sql(database, "SELECT count(*), count(full_verdict) FROM trial") == [(1, 1)]
    assert "calls right" in output.read_text()


@pytest.fixture
def texts(tmp_path: Path, session_cache: None) -> Path:
    """A folder with the text of a card: a winner that is verified in full, and one that is not."""
    database, folder = tmp_path / "tuned.db", tmp_path / "texts"
    folder.mkdir()
    with Store.open(database, create=True) as store:
        for problem, verdict in ((SKINNY, "right in 9 calls"), (OTHER, None)):
            store.add_trial(tuning_run(), trial(5, CONFIG, problem=problem, full_verdict=verdict))
            vendor = (vendor_measurement(50),)
            store.add_final(tuning_run(), final((CONFIG, 5), problem=problem, vendor=vendor), ("tsm2",), BASIS)
    tsm2_tune.export(database, format="trials", output=folder / "card.jsonl")
    return folder


@pytest.fixture
def packaged(texts: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same folder, which is the package's."""
    monkeypatch.setattr(pretuned, "FOLDER", texts)
    return texts


@pytest.mark.parametrize(
    "command",
    ["best", "show", "show 1", "source 1", "export --format csv -o -", "report -o -", "space --audit", "best --json"],
)
def test_a_text_is_read_without_an_import(packaged: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(packaged / "cache"))
    for name in ("pretuned:card", str(packaged / "card.jsonl")):  # the second one finds what the first has made
        result = completed(*command.split(), "--db", name)
        assert "tsm2" in result.output
    (made,) = cache.cache_folder().glob("??/*.db")
    assert str(made) not in result.output


@pytest.mark.usefixtures("packaged")
def test_an_export_names_the_card_of_a_text() -> None:
    command = ("export", "--format", "csv", "-o", "-")
    assert said(*command, "--pretuned", "card") == said(*command, "--db", "pretuned:card")
    assert said(*command, "--pretuned", "pretuned:card") == said(*command, "--pretuned", "card")
    assert refused(*command, "--pretuned", "tpu") == "Error: unknown 'pretuned:tpu': the package has pretuned:card\n"
    assert refused("export", "--pretuned", "-o", "x.py").startswith("Error: --pretuned lacks its value, before -o;")
    assert refused(*command, "--pretuned", "card", "--db", "a.db").startswith(
        "Error: --pretuned and --db each choose"
    )


@pytest.mark.parametrize(
    ("content", "suffix", "words"),
    [
        ('{"x": 1}', ".jsonl", "is not a file of trials, though its name ends in .jsonl: "),
        ('{"tsm2-tune trials":99}', ".jsonl", "its version is 99, and not 4"),
        (None, ".txt", "is a file of trials: give it a name that ends in .jsonl, or import it"),
        (",-64,", ".jsonl", "registers = -64 is not a value of this column"),
        ("", ".jsonl", "has no trial to read: it is empty; name another file"),
    ],
)
def test_what_a_text_and_its_name_lack_is_told(
    content: str | None, suffix: str, words: str, texts: Path, tmp_path: Path
) -> None:
    path, text, before = tmp_path / f"some{suffix}", (texts / "card.jsonl").read_text(), {*tmp_path.iterdir()}
    path.write_text(text.replace(",64,", ",-64,") if content == ",-64," else text if content is None else content)
    output = f"-o {tmp_path / 'best.py'}"
    for command in ("best", "db check", "show", f"export {output}", f"report {output}"):
        assert words in refused(*f"{command} --db {path}".split()), command
    assert {*tmp_path.iterdir()} == {*before, path}


def test_a_text_that_changes_while_it_is_opened_is_one_of_both(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cached database of a content has the trials of this content."""
    place, content = tmp_path / "card.jsonl", (texts / "card.jsonl").read_bytes()
    place.write_bytes(content)

    def content_of(path: Path) -> bytes:
        place.write_bytes(content.replace(b"right in 9 calls", b"right in 8 calls"))
        return content

    with monkeypatch.context() as patch:
        patch.setattr(files, "content_of", content_of)
        with Store.open(place, create=False) as store:
            first = store.database.digest()
    digests = []
    for file in (texts / "card.jsonl", place):
        with Store.open(file, create=False) as store:
            digests.append(store.database.digest())
    assert digests[0] == first != digests[1]  # libraries of their kernels are kept by these digests


@pytest.mark.parametrize(
    "command",
    ["forget 1", "--device cpu --shapes 8x8x8", "db vacuum", "quarantine --forgive all", "import best.db", "confirm"],
)
def test_a_text_is_never_written(packaged: Path, command: str) -> None:
    before = (packaged / "card.jsonl").read_bytes()
    for name in ("pretuned:card", str(packaged / "card.jsonl")):
        assert refused(*command.split(), "--db", name) == (
            f"Error: {name} is a file of trials, which can only be read: name a database, such as results.db;"
            f" tsm2-tune import {name} --db results.db imports it\n"
        )
    assert (packaged / "card.jsonl").read_bytes() == before


def test_a_name_of_a_text_is_no_new_database(texts: Path, tmp_path: Path) -> None:
    path, new = str(texts / "card.jsonl"), tmp_path / "new.jsonl"
    written = "which export and pack write: name a database, such as results.db\n"
    for command in (["import"], ["db", "merge"]):
        assert refused(*command, path, "--db", str(new)) == f"Error: {new} would be a file of trials, {written}"
        assert not new.exists()
    assert "2 trials, 6 measurements, 2 problems" in said("db", "check", path)


def test_advice_about_a_text_imports_it_first(texts: Path, tmp_path: Path) -> None:
    path = texts / "card.jsonl"
    done = run("export", "--db", str(path), "--no-binaries", "-o", str(tmp_path / "best.py"))
    first, last = done.stderr.splitlines()
    advice = (
        f": to verify it, run `tsm2-tune import {path} --db results.db`, then `tsm2-tune --db results.db --cache"
        f" clean --shapes 600x2x300:f64` on that device, then this again with --db results.db in place of {path}"
    )
    assert first.endswith(advice)
    assert last == f"wrote {tmp_path}/best.py: 1 kernel for 1 problem"
    path.write_text(path.read_text().replace('"right in 9 calls"', "null"))
    assert (
        f": to verify them, run `tsm2-tune import {path} --db results.db`, then `tsm2-tune --db results.db"
        in refused("export", "--db", str(path), "--no-binaries", "-o", str(tmp_path / "best.py"))
    )


@pytest.fixture
def toolkit(tmp_path: Path) -> Path:
    """A CUDA toolkit whose compiler makes something at once."""
    return fake_toolkit(tmp_path / "toolkit", fake_binary())


def ran(
    texts: Path, *program: str, drivers: Path | str = "", toolkit: Path | str = "", path: str | None = None,
    kernels: Sequence[str] = ("--pretuned",),
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """`tsm2-tune run` of the program with these kernels, texts, driver and toolkit."""
    script = (
        f"from pathlib import Path; from tsm2_tune import pretuned; pretuned.FOLDER = Path({str(texts)!r})\n"
        f"from tsm2_tune.__main__ import main; main()"
    )
    told = {"LD_LIBRARY_PATH": str(drivers), "CUDA_HOME": str(toolkit), "PATH": path or os.environ["PATH"]}
    told, given = os.environ | {"CUDA_PATH": "", "COLUMNS": "200"} | told, json.dumps([[gemm()] * 3])
    return python("-c", script, "run", *kernels, "--", *program, input=given, env=told, timeout=120, cwd=TESTS.parent)


def launches(done: subprocess.CompletedProcess[str]) -> int:
    return sum(line.startswith("launch ") for line in json.loads(done.stdout)["log"])


needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


BUILDING = "building a library of the kernels in pretuned:card, the first time only"
NOT_IN_FULL = (
    f"left out: 1 winner, not verified in full, {CONFIG.text} for {OTHER.text} on {GPU}: to verify it, run"
    " `tsm2-tune import pretuned:card --db results.db`, then `tsm2-tune --db results.db --cache clean --shapes"
    " 600x2x300:f64` on that device, then this again with --db results.db in place of pretuned:card"
)
SISTER = f"{GPU} borrows kernels that were measured on NVIDIA H300: tune on this GPU for its own"
OTHER_CARD = f"no kernels are pretuned for {GPU}, nor for another GPU of compute capability 9.0: {LEFT}"
UNVERIFIED = f"pretuned:card has no winner of a GPU that was verified in full: {LEFT}"


@needs_compiler
@pytest.mark.parametrize(
    ("changes", "lines", "launched"),
    [
        ({}, [BUILDING, NOT_IN_FULL], 3),
        ({GPU: "NVIDIA H300"}, [SISTER], 3),
        ({GPU: "NVIDIA A100", '"9.0"': '"8.0"'}, [OTHER_CARD], 0),
        ({'"right in 9 calls"': "null"}, [UNVERIFIED], 0),
    ],
    ids=["own card", "sister", "other card", "not verified"],
)
def test_a_program_gets_what_was_verified_in_full_and_nothing_else(
    fakes: Path, texts: Path, toolkit: Path, changes: dict[str, str], lines: list[str], launched: int
) -> None:
    text = (texts / "card.jsonl").read_text()
    for before, after in changes.items():
        text = text.replace(before, after)
    (texts / "card.jsonl").write_text(text)
    done = ran(texts, *PROGRAM, drivers=fakes, toolkit=toolkit)
    assert (done.returncode, launches(done)) == (0, launched)
    said = done.stderr.splitlines()
    assert said[: len(lines) if launched else None] == lines
    if not changes:
        again = ran(texts, *PROGRAM, drivers=fakes)  # no compiler is asked for again
        assert (again.returncode, launches(again), again.stderr) == (0, 3, "")


@needs_compiler
def test_a_program_runs_with_the_kernels_of_a_text(fakes: Path, texts: Path, toolkit: Path) -> None:
    named = ("pretuned:card", str(texts / "card.jsonl"))
    for name in named:
        done = ran(texts, *PROGRAM, drivers=fakes, toolkit=toolkit, kernels=("--db", name))
        assert (done.returncode, launches(done)) == (0, 3), done.stderr
    done = ran(texts, *PROGRAM, drivers=fakes, toolkit=toolkit, kernels=("--db", "pretuned:other"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("Error: unknown 'pretuned:other'")


@needs_compiler
def test_without_a_compiler_or_a_gpu_the_program_runs_as_it_is(
    fakes: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # where no other test has compiled anything
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("c++", "g++", "cc", "gcc", "as", "ld", "sh"):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    if not Path("/usr/local/cuda/bin/nvcc").exists():
        done = ran(texts, "sh", "-c", "exit 7", drivers=fakes, path=str(tools))
        assert (done.returncode, done.stderr.count("\n")) == (7, 1)
        assert done.stderr.startswith("nvcc not found: ")
        assert done.stderr.endswith(f": {LEFT}\n")
    done = ran(texts, "sh", "-c", "exit 7", drivers=tmp_path)
    assert done.returncode == 7
    if "borrows" not in done.stderr and "compiling" not in done.stderr:  # a GPU answers here
        assert done.stderr == f"no GPU to use (no CUDA driver: libcuda.so.1 not found): {LEFT}\n"
