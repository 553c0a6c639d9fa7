"""`tsm2-tune run` and `record`: programs as they are."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import programs as bench
from tests.standin_calls import TESTS, build_fakes, gemm
from tsm2_tune.options import problems_of
from tsm2_tune.programs import recorded
from tsm2_tune.standin.build import SOURCES
from tsm2_tune.standin.journal import HEAD, LINE, MAGIC, REASONS, Seen, seen_in

pytestmark = [
    pytest.mark.host,
    pytest.mark.usefixtures("toolchain", "session_cache"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler"),
]
BY_LIBRARY = "run --library {library}"
PROGRAM = (sys.executable, "-m", "tests.cublas_program")
SEEN = Seen("gemm", "f32", "NT", (8, 10**6, 16), (8, 10**6, 8), 1, False, 100, 0, (0, 0, 100) + (0,) * 14, 90.0,
            (99, 4950.0), (0, 0.0))  # fmt: skip


@pytest.fixture(scope="module")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fakes")
    build_fakes(folder)
    return folder


def tsm2_tune(fakes: Path, *arguments: str, steps: Any = ()) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"LD_LIBRARY_PATH": str(fakes), "COLUMNS": "200"}
    command = [sys.executable, "-m", "tsm2_tune", *arguments]
    return subprocess.run(
        command,
        input=json.dumps([steps]),
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=TESTS.parent,
    )


def test_record_writes_what_shapes_takes(fakes: Path, tmp_path: Path) -> None:
    output = tmp_path / "products.txt"
    steps = [gemm(m=2, n=600, k=3)] * 4 + [gemm("cublasZgemm_v2", transa=2, m=7, n=2, k=5000)] * 2
    done = tsm2_tune(fakes, "record", "--output", str(output), "--", *PROGRAM, steps=steps)
    assert (done.returncode, done.stderr) == (0, f"wrote {output}: 2 different products, 6 in all\n")
    assert json.loads(done.stdout)["statuses"] == [[0] * 6]
    text = output.read_text()
    assert "600x2x3:f32:ttt  # 4 times, 4000.0 us in all, 66.7 %, gemm NN, odd lines\n" in text
    found = problems_of(f"@{output}", "f32", "nn", "column")
    assert [one.text for one in found] == ["600x2x3:f32:ttt", "7x2x5000:c128:cn"]


def test_record_of_a_program_without_products_says_so(fakes: Path) -> None:
    done = tsm2_tune(fakes, "record", "--output", "-", "--", "true")
    assert done.stdout == (
        "# Products of true, by cuBLAS, most GPU time first.\n"
        "# none was seen: the program called no cuBLAS, or has it linked into itself\n"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_what_no_family_computes_is_left_out_in_words() -> None:
    of_16_bits = Seen("GemmEx", "f16", "CC", (8, 8, 8), (8, 8, 8), 1, False, 1, 0, (0,) * 17, 0.0, (0, 0.0), (0, 0.0))
    lines = list(recorded([SEEN, of_16_bits], ["./program", "a b"]))
    assert lines[0] == "# Products of ./program 'a b', by cuBLAS, most GPU time first."
    assert lines[1] == "1000000x8x16:f32:ntt  # 100 times, 5000.0 us in all, 100.0 %, gemm NT"
    assert all(line.startswith(("#", "8x8x8:f16")) for line in lines[2:])


def test_what_is_worth_little_is_left_out() -> None:
    little = replace(SEEN, shape=(8, 1000, 16), calls=1)
    whole = list(recorded([SEEN, little], ["program"]))
    assert whole[2].startswith("1000x8x16:f32:ntt  # 1 time, 50.0 us in all, 1.0 %")
    _, first, second = recorded([SEEN, little], ["program"], worth=0.01)
    assert first == whole[1]
    assert second.startswith("# left out, as it is worth little: 1000x8x16:f32:ntt: 1 time")


def test_run_takes_kernels_of_a_library_and_reports(fakes: Path, plain: str) -> None:
    steps = [gemm()] * 10 + [gemm(transa=2, transb=1)] * 3
    done = tsm2_tune(fakes, "run", "--report", "--library", plain, "--", *PROGRAM, steps=steps)
    assert done.returncode == 0
    log = json.loads(done.stdout)["log"]
    assert sum(line.startswith("launch ") for line in log) == 6
    assert "13 products seen, 6 computed by tuned kernels, 7 left to cuBLAS\n" in done.stderr
    assert "10.00 ms by cuBLAS, 10.00 ms by the kernels, 1.00 times as fast\n" in done.stderr
    assert "6x2x3" in done.stderr


def test_run_becomes_the_program(fakes: Path, plain: str) -> None:
    done = tsm2_tune(fakes, "run", "--library", plain, "--", *PROGRAM, steps=[gemm()] * 3)
    assert (done.returncode, done.stderr) == (0, "")
    assert sum(line.startswith("launch ") for line in json.loads(done.stdout)["log"]) == 3
    done = tsm2_tune(fakes, "run", "--library", plain, "sh", "-c", "exit 5")
    assert done.returncode == 5


@pytest.mark.parametrize("more", [(), ("--report",)])
def test_a_programs_status_is_the_commands(fakes: Path, plain: str, more: tuple[str, ...]) -> None:
    for program, status in ((("sh", "-c", "exit 5"), 5), (("sh", "-c", "kill -9 $$"), None)):
        done = tsm2_tune(fakes, "run", *more, "--library", plain, "--", *program)
        assert done.returncode == (status if status is not None else 137 if more else -9)


def test_a_signal_goes_to_the_program(fakes: Path, plain: str, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    script = f"trap 'exit 3' TERM; touch {begun}; while :; do sleep 0.05; done"
    command = [sys.executable, "-m", "tsm2_tune", "run", "--report", "--library", plain, "--", "sh", "-c", script]
    started = subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=TESTS.parent)
    while not begun.exists():
        time.sleep(0.05)
    started.send_signal(signal.SIGTERM)
    assert started.wait(30) == 3


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (f"{BY_LIBRARY} nosuchprogram", "cannot run nosuchprogram: no such program is in PATH"),
        (f"{BY_LIBRARY} --report nosuchprogram", "cannot run nosuchprogram: no such program is in PATH"),
        (f"{BY_LIBRARY} /etc/passwd", "cannot run /etc/passwd: "),
        ("run --library /nowhere/libtsm2.so -- true", "no library /nowhere/libtsm2.so: tsm2-tune export"),
        ("run --db /nowhere/results.db -- true", "no database /nowhere/results.db"),
        ("run", "Missing argument 'PROGRAM...'"),
        ("record --output /nowhere/products.txt -- true", "cannot write /nowhere/products.txt: its folder"),
        ("record -- true", "Missing option '--output'"),
    ],
)
def test_what_cannot_be_run_is_refused(fakes: Path, plain: str, arguments: str, sentence: str) -> None:
    done = tsm2_tune(fakes, *arguments.format(library=plain).split())
    assert done.returncode == 2
    assert done.stderr.startswith(f"Error: {sentence}")
    assert done.stderr.count("\n") == 1


def test_a_journal_that_is_none_has_no_products(tmp_path: Path) -> None:
    head = MAGIC.ljust(HEAD.itemsize, b"\0")
    for number, content in enumerate(
        (b"", MAGIC, head, head + b"\xff" * LINE.itemsize, head + b"\2\0\0\0" + b"\xff" * 999)
    ):
        (tmp_path / str(number)).write_bytes(content)
    assert seen_in(tmp_path) == ()


def test_the_bench_keeps_the_report_and_hands_its_options_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    commands = list[list[str]]()

    def ran(before: Any, program: Any) -> tuple[float, str, str]:
        commands.append(list(before))
        if "record" in before:
            Path(before[before.index("--output") + 1]).write_text("8x8x8:f32\n")
        return 2.0, "7", "/home/me/a.py: a warning\n12 products seen, 3 computed by tuned kernels\nmore\n"

    monkeypatch.setattr(bench, "run", ran)
    told = SimpleNamespace(stdout="")
    monkeypatch.setattr(bench.subprocess, "run", lambda command, **_: commands.append(command) or told)
    output = tmp_path / "programs.json"
    done = CliRunner().invoke(bench.main, ["--only", "tall_qr.py", "--output", str(output)])
    assert done.exit_code == 0, done.output
    (one,) = json.loads(output.read_text())["programs"].values()
    assert one["report"] == "12 products seen, 3 computed by tuned kernels\nmore\n"
    assert (one["before_ms"], one["after_ms"], one["recorded"]) == ([2.0] * 2, [2.0] * 2, "8x8x8:f32\n")
    assert all(isinstance(word, str) for command in commands for word in command)
    assert commands[0][3:6] == ["record", "--worth", "2%"]


def test_reasons_have_the_journals_order() -> None:
    assert len(REASONS) == LINE["left"].shape[0]
    text = (SOURCES / "standin.h").read_text(encoding="utf-8")
    names = text[text.index("enum reason {") :].partition("REASONS")[0]
    assert len(re.findall(r"^    [A-Z_]+,", names, re.MULTILINE)) == len(REASONS)
    assert (SEEN.us, SEEN.reason) == (50.0, "no kernel is in the pack for it")
