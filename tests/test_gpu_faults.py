"""On a GPU: a run goes on past kernels that hang or fault, and ends in one sentence where device memory is exhausted.

    python -m pytest -q -s tests/test_gpu_faults.py

prints how often each fault was met.
"""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.command import run
from tests.fabricated import plain_sql
from tests.faulty_kernels import Fault, check, planted, tuned_twice
from tests.on_gpu import ON_GPU
from tests.quick_command import CALLS
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families.published import Tsm2Config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.results.trial import Outcome
from tsm2_tune.tuner.search import finals
from tsm2_tune.tuner.search.options import Options

pytestmark = [*ON_GPU, pytest.mark.alone]

ROUNDS = 3  # rounds for each fault
LIMIT_SECONDS = 4.0  # limit of a stage: an endless kernel takes it twice, for its problem and for small ones
FARTHER_THAN_ANY = 1e6  # times as long as the fastest: a first look leaves nothing out
PROBLEMS = (Problem(4096, 16, 4096, "f32"), Problem(8192, 16, 4096, "f32"))  # both have the same texts and launches
TIMED_OUT, CRASHED = Outcome.TIMED_OUT, Outcome.CRASHED
FAULTS = (
    Fault("endless kernel", "for (volatile int i = 0;; ++i) {}", TIMED_OUT, "took more than 4 s"),
    Fault(
        "endless in one warp", "if (threadIdx.x / 32 == 1) for (volatile int i = 0;; ++i) {}", TIMED_OUT, "took more"
    ),
    Fault("illegal address", "*(volatile int *)8 = 1;", CRASHED, "illegal memory access"),
    Fault("read far past an operand", "A += 1ll << 36;", CRASHED, "illegal memory access"),
    Fault("misaligned address", "*(volatile int *)((char *)C + 1) = 1;", CRASHED, "misaligned address"),
    Fault("trap", "__trap();", CRASHED, ""),
    Fault("stack overflow", "if (deep(0, nullptr) == 7) C[0] = 1;", CRASHED, ""),
)
# After each that is faulty comes one that is right.
CONFIGS = tuple(Tsm2Config("v3", 128, columns, prefetch) for columns in (4, 8, 16) for prefetch in (1, 2, 4, 6, 8))[
    : 2 * len(FAULTS)
]
PLANTED: dict[KernelConfig, Fault] = dict(zip(CONFIGS[::2], FAULTS, strict=True))
RIGHT = CONFIGS[1::2]


@pytest.mark.usefixtures("known_ceilings")
def test_a_run_goes_on_past_kernels_that_hang_or_fault(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(finals, "ON_GPU", CALLS)  # of a winner's verification: others take longer than the limit
    before = set(multiprocessing.active_children())
    faulty = replace(target, toolchain=planted(target.toolchain, PLANTED))
    options = Options(run_limit_seconds=LIMIT_SECONDS, reach=FARTHER_THAN_ANY)
    met, said, start = Counter[str](), dict[str, str](), time.monotonic()
    for number in range(ROUNDS):
        found = tuned_twice(faulty, PROBLEMS, CONFIGS, tmp_path / f"{number}.db", options)
        check(found, PLANTED, RIGHT, PROBLEMS)
        for config, fault in PLANTED.items():
            met[fault.name] += len(found.outcomes(config))
            said[fault.name] = str(found.outcomes(config)[0][1])
    assert set(multiprocessing.active_children()) <= before
    with capsys.disabled():
        print(f"\n{ROUNDS} rounds in {time.monotonic() - start:.0f} s on {target.identity.name}:")
        for name, count in met.items():
            print(f"{name}: {count} times, and left out as often for the next problem; {said[name]}")


# Program that takes all but so many bytes of a device's memory until its input ends.
HOG = """
import sys
import pycuda.driver as drv
drv.init()
context = drv.Device(0).retain_primary_context()
context.push()
kept, left, size = [], int(sys.argv[1]), 2**36
while size >= 2**20:
    try:
        if drv.mem_get_info()[0] - size < left:
            raise drv.MemoryError
        kept.append(drv.mem_alloc(size))
    except drv.MemoryError:
        size //= 2
print("taken", flush=True)
sys.stdin.read()
context.pop()
"""


@contextmanager
def exhausted(left_bytes: int) -> Iterator[None]:
    """Another process has the rest of the device's memory."""
    hog = [sys.executable, "-W", "ignore", "-c", HOG, str(left_bytes)]
    with subprocess.Popen(hog, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "taken\n"
        yield


@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize(
    ("left_bytes", "said"),
    [(3 * 2**30, "does not fit in the device's free memory"), (0, "device 0 does not open")],
)
def test_a_device_without_memory_ends_the_run_in_a_sentence(
    left_bytes: int, said: str, number: int, path: Path
) -> None:
    options = ("--device", "0", "--shapes", "4096x16x4096", "--family", "tsm2", "--max-trials", "2", "--no-vendor")
    command = (*options, "--full-trials", "--db", str(path))
    with exhausted(left_bytes):
        result = run(*command)
    assert result.exit_code == 2, result.output
    (error,) = [line for line in result.output.splitlines() if line.startswith("Error: ")]
    assert said in error
    assert "Traceback" not in result.output
    assert plain_sql(path, "SELECT count(*) FROM trial") == [(0,)]
    assert run(*command).exit_code == 0  # once there is room
    assert plain_sql(path, "SELECT outcome FROM trial") == [("ok",)] * 2
