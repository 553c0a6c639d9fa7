"""`tsm2-tune run` and `record`: programs as they are."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.command import refused
from tests.databases import database_of
from tests.fabricated import configuration, trial
from tests.lt_calls import BIAS, EPILOGUE, matmul
from tests.on_host import IN_C
from tests.processes import python
from tests.standin_calls import TESTS, gemm
from tsm2_tune.api.products import problems_of
from tsm2_tune.commands.run import FUNCTION
from tsm2_tune.console import shapes_file
from tsm2_tune.console.shapes_file import recorded
from tsm2_tune.interpose.build import LEFT, SOURCES
from tsm2_tune.interpose.journal import HEAD, LINE, REASONS, UNCOUNTED, Seen, Written
from tsm2_tune.tuner.device.cuda import cuda_device_count

pytestmark = IN_C
BY_LIBRARY = "run --library {library}"
PROGRAM = (sys.executable, "-m", "tests.cublas_program")
NONE = (0,) * len(REASONS)
SEEN = Seen("gemm", "f32", "NT", (8, 10**6, 16), (8, 10**6, 8), 1, None, False, 100, 0, (0, 0, 100, *NONE[3:]), 0,
            90.0, (99, 4950.0), (), ())  # fmt: skip


def tsm2_tune(fakes: Path, *arguments: str, steps: Any = ()) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"LD_LIBRARY_PATH": str(fakes), "COLUMNS": "200"}
    return python(
        "-m", "tsm2_tune", *arguments, input=json.dumps([steps]), env=environment, timeout=120, cwd=TESTS.parent
    )


def test_record_writes_what_shapes_takes(fakes: Path, tmp_path: Path) -> None:
    output = tmp_path / "products.txt"
    steps = [gemm(m=2, n=600, k=3)] * 4 + [gemm("cublasZgemm_v2", transa=2, m=7, n=2, k=5000)] * 2
    done = tsm2_tune(fakes, "record", "--output", str(output), "--", *PROGRAM, steps=steps)
    assert (done.returncode, done.stderr) == (0, f"wrote {output}: 2 different products, 6 in all\n")
    assert json.loads(done.stdout)["statuses"] == [[0] * 6]
    text = output.read_text()
    assert "600x2x3:f32:ttt  # 4 times, 4000.0 us in all, 66.7 %, gemm NN, unaligned lines\n" in text
    found = problems_of(f"@{output}", "f32", "nn", "column")
    assert [one.text for one in found] == ["600x2x3:f32:ttt", "7x2x5000:c128:cn"]


def test_record_leaves_out_what_no_kernel_is_taken_for(fakes: Path) -> None:
    """Some of the second shape are plain products."""
    bias: dict[str, Any] = {"operation": {EPILOGUE: 4, BIAS: 1 << 40}}
    steps = [matmul(600, 2, 3, **bias)] * 3 + [matmul(700, 2, 3, **bias), matmul(700, 2, 3)]
    done = tsm2_tune(fakes, "record", "--output", "-", "--", *PROGRAM, steps=steps)
    _, *lines = done.stdout[done.stdout.index("# Products") :].splitlines()
    assert done.stderr == ""
    shapes = [line.partition(":f32")[0] for line in lines]
    assert shapes == ["# left out because it has an epilogue: 600x2x3", "700x2x3"]
    assert all("cublasLtMatmul NN" in line for line in lines)


def test_a_record_names_what_is_worth_tuning_and_why_the_rest_is_left_out() -> None:
    """A product stays for its share, by all routines, for a CUDA graph, or as one of at least four that differ in one
    extent and that together have the share.
    """

    def alike(counts: Sequence[int], **changes: Any) -> list[Seen]:
        return [replace(SEEN, op="TN", shape=(count, 1, 10**6), **{"calls": 3} | changes) for count in counts]

    seen = (
        SEEN,
        replace(SEEN, shape=(8, 700, 16), calls=1),
        replace(SEEN, shape=(8, 500, 17), calls=3, captured=3),
        *alike(range(1, 7)),
        *alike((1, 20, 50), dtype="f64"),
        *alike(range(1, 5), dtype="c64", gpu_us=(1, 0.01)),
        *(replace(SEEN, routine=name, shape=(8, 2000, 16), calls=1, gpu_us=(1, 90.0)) for name in ("gemm", "Lt")),
    )
    assert list(recorded(Written(seen), ["./program", "a b"], worth=0.025)) == RECORDED.splitlines()


RECORDED = """\
# Products of ./program 'a b', by cuBLAS, most GPU time first.
1000000x8x16:f32:ntt  # 100 times, 5000.0 us in all, 74.3 %, gemm NT
# left out because of its small share: 700x8x16:f32:ntt: 1 time, 50.0 us in all, 0.7 %, gemm NT
500x8x17:f32:ntt  # 3 times, 150.0 us in all, 2.2 %, gemm NT, 3 of them into a CUDA graph, whose\
 launches are not counted
1x1x1000000:f32:tn  # 3 times, 150.0 us in all, 2.2 %, gemm TN, for 6 products that differ in one extent
2x1x1000000:f32:tn  # 3 times, 150.0 us in all, 2.2 %, gemm TN, for 6 products that differ in one extent
# left out because of its small share: 3x1x1000000:f32:tn: 3 times, 150.0 us in all, 2.2 %, gemm TN
4x1x1000000:f32:tn  # 3 times, 150.0 us in all, 2.2 %, gemm TN, for 6 products that differ in one extent
# left out because of its small share: 5x1x1000000:f32:tn: 3 times, 150.0 us in all, 2.2 %, gemm TN
6x1x1000000:f32:tn  # 3 times, 150.0 us in all, 2.2 %, gemm TN, for 6 products that differ in one extent
# left out because of its small share: 1x1x1000000:f64:tn: 3 times, 150.0 us in all, 2.2 %, gemm TN
# left out because of its small share: 20x1x1000000:f64:tn: 3 times, 150.0 us in all, 2.2 %, gemm TN
# left out because of its small share: 50x1x1000000:f64:tn: 3 times, 150.0 us in all, 2.2 %, gemm TN
# left out because of its small share: 1x1x1000000:c64:tn: 3 times, 0.0 us in all, 0.0 %, gemm TN
# left out because of its small share: 2x1x1000000:c64:tn: 3 times, 0.0 us in all, 0.0 %, gemm TN
# left out because of its small share: 3x1x1000000:c64:tn: 3 times, 0.0 us in all, 0.0 %, gemm TN
# left out because of its small share: 4x1x1000000:c64:tn: 3 times, 0.0 us in all, 0.0 %, gemm TN
2000x8x16:f32:ntt  # 1 time, 90.0 us in all, 1.3 %, gemm NT
2000x8x16:f32:ntt  # 1 time, 90.0 us in all, 1.3 %, Lt NT
"""


def test_herk_is_a_problem_that_tuning_knows() -> None:
    def text(dtype: str, op: str) -> str:
        problem = replace(SEEN, dtype=dtype, op=op, shape=(8, 8, 1000), is_gram=True).problem
        return problem.text if problem is not None else ""

    assert [text("c64", op) for op in ("NC", "NT", "CN", "TN")] == [
        f"8x8x1000:c64:{op}" for op in ("nc", "nx", "cx", "tx")
    ]
    assert [text("f32", op) for op in ("NC", "CN")] == ["8x8x1000:f32:nx", "8x8x1000:f32:tx"]


@pytest.mark.parametrize(("limit", "value"), [("MOST_SHAPES_BYTES", 1000), ("MOST_PROBLEMS", 11)])
def test_of_more_products_than_are_read_the_most_worthy_are_written(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(shapes_file, limit, value)
    many = tuple(replace(SEEN, shape=(8, 10**6 + count, 16)) for count in range(100))
    lines = list(recorded(Written(many), ["program"]))
    assert len("\n".join(lines)) < 1000
    assert [line.partition("x")[0] for line in lines[1:-1]] == [str(10**6 + at) for at in range(len(lines) - 2)]
    left = 100 - (len(lines) - 2)
    assert lines[-1] == f"# left out because the file for --shapes is full: {left} products with less time"
    assert 85 < left < 95


def test_run_takes_kernels_of_a_library_and_reports(fakes: Path, plain: str) -> None:
    steps = [gemm()] * 14 + [gemm(transa=2, transb=1)] * 3
    done = tsm2_tune(fakes, "run", "--report", "--library", plain, "--", *PROGRAM, steps=steps)
    assert done.returncode == 0
    log = json.loads(done.stdout)["log"]
    assert sum(line.startswith("launch ") for line in log) == 8
    seen = "17 products seen, 8 computed by tuned kernels, 9 left to cuBLAS, 6 of these to compare with it\n"
    assert seen in done.stderr
    assert "14.00 ms by cuBLAS, 14.00 ms by the kernels, 1.00 times as fast\n" in done.stderr
    taken, left = done.stderr.split("\nleft to cuBLAS:\n")
    assert re.search(r"^gemm +f32 +NN +6x2x3 +14 +8 +1000.0 +1000.0$", taken, re.MULTILINE)
    (row,) = left.splitlines()[1:]
    assert re.match(r"gemm +f32 +CT +6x2x3 +3 +0 +1000.0 +- +the library has no kernel for it$", row)


def test_record_ranks_by_time_on_the_gpu(fakes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call costs the host 92 ms, each the GPU 3."""
    monkeypatch.setenv("FAKE_CUBLAS_STARTS_UP_MS", "92")
    monkeypatch.setenv("FAKE_CUBLAS_MS", "3")
    steps = [gemm("cublasDgemm_v2", m=16_000, n=8, k=8), *[gemm("cublasDgemm_v2", m=8, n=8, k=16_000)] * 103]
    output = tmp_path / "products.txt"
    tsm2_tune(fakes, "record", "--worth", "2%", "--output", str(output), "--", *PROGRAM, steps=steps)
    first, second = output.read_text().splitlines()[1:]
    assert first.startswith("8x8x16000:f64  # 103 times, 309000.0 us in all, 99.0 %")
    assert second.startswith("# left out because of its small share: 16000x8x8:f64: 1 time, 3000.0 us in all, 1.0 %")


def test_what_goes_back_to_cublas_is_reported(fakes: Path, plain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CUBLAS_MS", "1")
    monkeypatch.setenv("FAKE_KERNEL_MS", "4")
    steps = [gemm("cublasDgemm_v2")] * 40
    done = tsm2_tune(fakes, "run", "--report", "--library", plain, "--", *PROGRAM, steps=steps)
    why = "because the kernel was slower in this program"
    assert f"27 products of 1 shape went back to cuBLAS, {why}\n" in done.stderr
    (row,) = done.stderr.split("\nleft to cuBLAS:\n")[1].splitlines()[1:]
    assert re.match(r"gemm +f64 +NN +6x2x3 +40 +7 +1000.0 +4000.0 +the kernel was slower in this program$", row)
    assert "times as fast" not in done.stderr


def test_run_becomes_the_program(fakes: Path, plain: str) -> None:
    done = tsm2_tune(fakes, "run", "--library", plain, "--", *PROGRAM, steps=[gemm()] * 3)
    assert (done.returncode, done.stderr) == (0, "")
    assert sum(line.startswith("launch ") for line in json.loads(done.stdout)["log"]) == 3


@pytest.mark.parametrize(
    ("more", "script", "status"), [("", "exit 5", 5), ("", "kill -9 $$", -9), ("--report", "exit 5", 5),
                                   ("--report", "kill -9 $$", 137)]
)  # fmt: skip
def test_a_programs_status_is_the_commands(fakes: Path, plain: str, more: str, script: str, status: int) -> None:
    done = tsm2_tune(fakes, "run", *more.split(), "--library", plain, "--", "sh", "-c", script)
    assert done.returncode == status  # and how it is linked is not blamed
    assert done.stderr == (more and f"no product was seen: the program failed with status {status}\n")


@pytest.mark.parametrize("way", [f"{BY_LIBRARY} --report", "record --output {folder}/products.txt"])
@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("rm -r $TSM2_JOURNAL", "the recorded products are lost: another program removed /"),
        ("cd $TSM2_JOURNAL; mkfifo 1-aaaaaa; mkdir 2; echo foreign > 3; ln -s 3 4; : > 5", "4 files in /"),
    ],
)
def test_a_journal_that_was_meddled_with_changes_no_status(
    fakes: Path, plain: str, tmp_path: Path, way: str, script: str, sentence: str
) -> None:
    arguments = way.format(library=plain, folder=tmp_path).split()
    done = tsm2_tune(fakes, *arguments, "--", "sh", "-c", f"{script}; exit 5")
    assert done.returncode == 5
    assert sum(line.startswith(sentence) for line in done.stderr.splitlines()) == 1
    if "record" in way:
        assert f"# {sentence}" in (tmp_path / "products.txt").read_text()


def test_products_that_were_not_understood_are_told(fakes: Path) -> None:
    steps = [gemm("cublasGemmEx", compute=64)] * 3
    done = tsm2_tune(fakes, "record", "--output", "-", "--", *PROGRAM, steps=steps)
    assert done.returncode == 0
    said = "3 products more were left to cuBLAS, because no kernel has their element types"
    assert said in done.stdout + done.stderr
    assert "no product was seen" not in done.stdout + done.stderr


def test_kernels_that_cannot_be_started_are_told(fakes: Path, plain: str, tmp_path: Path) -> None:
    text = tmp_path / "text.so"
    text.write_bytes(b"\x7fELF, and no library" + FUNCTION)
    for library, why in ((plain, "kernels could not be started"), (text, "the library of kernels cannot be used")):
        steps = [["fake_fail", "cuModuleLoadData", 218], *[gemm()] * 6]
        done = tsm2_tune(fakes, "run", "--report", "--library", str(library), "--", *PROGRAM, steps=steps)
        assert done.returncode == 0
        assert re.search(
            rf"^[56] products left to cuBLAS because {why}: .* driver may be older", done.stderr, re.MULTILINE
        )


@pytest.mark.parametrize("output", [".", "nowhere/products.txt", "file/products.txt", "x" * 300])
def test_unwritable_output_is_refused_before_the_program_runs(tmp_path: Path, output: str) -> None:
    (tmp_path / "file").touch()
    refusal = refused("record", "--output", f"{tmp_path}/{output}", "--", "touch", f"{tmp_path}/ran")
    quoted = re.escape(f"{tmp_path}/{output}") if len(output) < 100 else rf"{re.escape(str(tmp_path))}/x+\.\.\.x+"
    assert re.match(f"Error: cannot write {quoted}: it", refusal)
    assert os.listdir(tmp_path) == ["file"]


def test_what_was_recorded_is_shown_where_it_cannot_be_written(fakes: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    done = tsm2_tune(fakes, "record", "--output", f"{folder}/products.txt", "--", "rm", "-r", str(folder))
    assert done.returncode == 2
    assert done.stdout.startswith(f"# Products of rm -r {folder}, by cuBLAS")
    assert done.stderr.endswith("; what was recorded is on standard output\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (f"{BY_LIBRARY} nosuchprogram", "cannot run nosuchprogram: no such program is in PATH"),
        (f"{BY_LIBRARY} --report nosuchprogram", "cannot run nosuchprogram: no such program is in PATH"),
        (f"{BY_LIBRARY} /etc/passwd", "cannot run /etc/passwd: "),
        ("run -- README.md", "cannot run README.md: no such program is in PATH; for the file here say ./README.md"),
        ("run -- ./README.md", "cannot run ./README.md: it is not executable: name its interpreter before it"),
        ("run -- ./docs", "cannot run ./docs: it is a folder"),
        ("run --library docs -- true", "docs is a folder: name the library in it with --library"),
    ],
)
def test_what_cannot_be_run_is_refused(plain: str, arguments: str, sentence: str) -> None:
    assert refused(*arguments.format(library=plain).split()).startswith(f"Error: {sentence}")


@pytest.mark.parametrize("content", [b"text" + FUNCTION, b"\x7fELF of another library", b""])
def test_a_file_that_is_no_library_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "text.so").write_bytes(content)
    refusal = refused("run", "--library", f"{tmp_path}/text.so", "--", "true")
    assert refusal.startswith(f"Error: {tmp_path}/text.so is not a library of kernels: ")


@pytest.mark.parametrize(("enum", "sentences"), [("reason", REASONS), ("uncounted", UNCOUNTED)])
def test_sentences_have_the_journals_order(enum: str, sentences: tuple[str, ...]) -> None:
    assert len(sentences) == (LINE["left"] if enum == "reason" else HEAD["uncounted"]).shape[0]
    text = (SOURCES / "standin.h").read_text(encoding="utf-8")
    names = re.sub(r"/\*.*?\*/", "", text.partition(f"enum {enum} {{")[2].partition("}")[0], flags=re.DOTALL)
    assert names.count(",") == len(sentences)


@pytest.mark.parametrize(
    ("script", "status", "said"),
    [
        ("exit 0", 0, "wrote {}: no product was seen: the program did not call cuBLAS, or links it"),
        ("exit 5", 5, "nothing was written: the program failed with status 5 before any product was seen\n"),
        ("kill -9 $$", 137, "nothing was written: the program failed with status 137 before any product was seen\n"),
        (f"{shlex.join(PROGRAM)}; exit 5", 5, "wrote {}: 1 different product, 1 in all\n"),
    ],
    ids=["nothing", "fails", "killed", "fails later"],
)
def test_a_record_of_a_program_that_fails_is_of_what_it_did(
    fakes: Path, tmp_path: Path, script: str, status: int, said: str
) -> None:
    output = tmp_path / "products.txt"
    output.write_text("8x8x8:f32\n")
    done = tsm2_tune(fakes, "record", "--output", str(output), "--", "sh", "-c", script, steps=[gemm()])
    assert (done.returncode, done.stderr.startswith(said.format(output))) == (status, True), done.stderr
    assert (output.read_text() == "8x8x8:f32\n") is said.startswith("nothing")
    assert ("\n6x2x3:" in output.read_text()) is ("1 different" in said)


@pytest.mark.skipif(cuda_device_count() > 0, reason="a GPU is here")
@pytest.mark.parametrize("way", ["--db {database}", "--report --db {database}", "--library {library}"])
def test_without_a_gpu_that_is_told_and_nothing_is_compiled(way: str, path: Path, plain: str) -> None:
    database_of(path, trial(500.0, configuration()))
    arguments = way.format(database=path, library=plain).split()
    done = python("-m", "tsm2_tune", "run", *arguments, "--", "sh", "-c", "exit 7", cwd=TESTS.parent)
    failed = "no product was seen: the program failed with status 7\n" if "report" in way else ""
    no_gpu = f"no GPU to use (no CUDA driver: libcuda.so.1 not found): {LEFT}\n"
    assert (done.returncode, done.stderr) == (7, no_gpu + failed)
