"""Tests of the stand-in's journal: it harms no program, and says what is missing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.on_host import IN_C
from tests.standin_calls import FLAGS, TESTS, gemm, play
from tsm2_tune.interpose.build import standin_path
from tsm2_tune.interpose.journal import written_in
from tsm2_tune.interpose.preload import LOADED, Standing

pytestmark = IN_C
PROGRAM = f"{sys.executable} -m tests.cublas_program"


def with_journal(fakes: Path, journal: Path, script: str, steps: Any) -> subprocess.CompletedProcess[str]:
    """A shell's script, in which cuBLAS's calls are written down in that folder."""
    told = Standing(standin_path()).environment(journal) | {"LD_LIBRARY_PATH": str(fakes)}
    given = json.dumps([steps])
    return subprocess.run(
        ["sh", "-c", script], input=given, env=told, capture_output=True, text=True, cwd=TESTS.parent
    )


@pytest.mark.parametrize(("script", "error"), [
    ("ulimit -f 100; {}", "File too large"),
    ("unshare -rm sh -c 'mount -t tmpfs -o size=1m none {folder} && {}'", "No space left on device"),
])  # fmt: skip
def test_a_journal_without_room_leaves_the_program_alone(
    fakes: Path, tmp_path: Path, script: str, error: str
) -> None:
    if "mount" in script and subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    done = with_journal(fakes, tmp_path, script.format(PROGRAM, folder=tmp_path), [gemm()] * 3)
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert "are not in the report, because nothing can be written to" in done.stderr
    assert done.stderr.endswith(f"{error}\n")
    assert json.loads(done.stdout)["statuses"] == [[0] * 3]
    assert [file.name for file in tmp_path.iterdir()] == [LOADED]


def test_a_folder_that_is_gone_is_nobodys_loss(fakes: Path, tmp_path: Path) -> None:
    done = with_journal(fakes, tmp_path / "gone", PROGRAM, [gemm()])
    assert (done.returncode, done.stderr) == (0, "")


# Another process was ended while it wrote lines, of which none is whole.
HALF_WRITTEN = """
import ctypes, json, mmap, os, sys
from tests.cublas_program import play
from tsm2_tune.interpose.journal import HEAD, LINE
driver, cublas = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libcublas.so.13")
first, second = json.load(sys.stdin)[0]
play(cublas, driver, [first], [])
name = min(os.listdir(os.environ["TSM2_JOURNAL"]))  # before "loaded"
with open(os.path.join(os.environ["TSM2_JOURNAL"], name), "r+b") as file, mmap.mmap(file.fileno(), 0) as journal:
    for at in range(HEAD.itemsize, len(journal), LINE.itemsize):
        journal[at : at + 4] = (1).to_bytes(4, "little")
print(play(cublas, driver, [second, first], []))
"""


def test_a_line_that_is_never_finished_is_not_awaited(fakes: Path, tmp_path: Path) -> None:
    script = f"exec timeout 60 {sys.executable} -c '{HALF_WRITTEN}'"
    done = with_journal(fakes, tmp_path, script, [gemm(), gemm(m=7)])
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0, 0]\n", "")
    assert written_in(tmp_path).uncounted == (2, 0, 0)


# The child makes a product, and exits as programs do.
FORKS = """
import ctypes, os, sys
from tests.cublas_program import play
from tests.standin_calls import gemm
driver, cublas, step = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libcublas.so.13"), gemm("cublasDgemm_v2")
play(cublas, driver, [step, step], [])
if os.fork() == 0:
    play(cublas, driver, [step], [])
    sys.exit()
sys.exit(os.wait()[1])
"""


def test_a_forked_child_takes_no_times_and_counts_none_twice(fakes: Path, tmp_path: Path) -> None:
    told = Standing(standin_path(), has_times=True).environment(tmp_path) | {"LD_LIBRARY_PATH": str(fakes)}
    subprocess.run([sys.executable, "-c", FORKS], env=told, check=True, timeout=60, cwd=TESTS.parent)
    (one,) = written_in(tmp_path).seen
    assert (one.calls, one.first_us > 0, len(one.cublas_us)) == (3, True, 1)


def test_of_more_shapes_than_are_told_apart_kernels_are_taken_too(fakes: Path, plain: str) -> None:
    """Few places are tried for a line, so that some shapes find none before all are taken."""
    steps = [gemm("cublasDgemm_v2", m=m) for m in range(1, 16501)]
    without = [gemm("cublasDgemm_v2", m=m, transa=1) for m in range(2, 118)]  # for which no kernel is
    mixed = [one for pair in zip(steps[16384:], without, strict=True) for one in pair]
    played = play(fakes, [*steps[:16384], ["fake_reset"], *mixed], pack=Path(plain))  # of all the log has no room
    assert (len(played.launches), len(played.left)) == (116, 116)
    crowded, *others = played.uncounted
    assert (2 * 116 < crowded < 1000, others) == (True, [0, 0])
    assert sum(one.calls for one in played.seen) == 16500 + 116 - crowded


def test_products_before_a_driver_that_is_too_old_are_counted(fakes: Path, plain: str, tmp_path: Path) -> None:
    """It lacks a function of a later one."""
    older = ["cc", *FLAGS, "-DcuCtxGetId=cuCtxLacksIt", "-Wl,-soname,libcuda.so.1", str(TESTS / "fake_cuda.c")]
    subprocess.run([*older, "-o", str(tmp_path / "libcuda.so.1")], check=True)
    shutil.copy(fakes / "libcublas.so.13", tmp_path)
    played = play(tmp_path, [gemm("cublasDgemm_v2")] * 3, pack=Path(plain))
    assert (played.told, played.seen, played.uncounted) == ("", (), (0, 0, 3))
    assert (len(played.left), played.launches) == (3, [])
