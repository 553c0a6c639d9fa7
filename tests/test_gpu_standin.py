"""The stand-in for cuBLAS on a GPU: what it takes and what it leaves is what cuBLAS computes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fabricated import handmade, trial
from tests.on_gpu import ON_GPU
from tests.test_gpu_library import Memory, written
from tsm2_tune.generator.problem import Problem
from tsm2_tune.standin.build import standin_path
from tsm2_tune.standin.journal import written_in
from tsm2_tune.standin.running import Standing

pytestmark = [*ON_GPU, pytest.mark.usefixtures("session_cache")]
REAL, COMPLEX = ("nn", "tn", "nt", "tt"), ("nn", "tn", "nt", "cn", "nc", "cc")
OPS = {"f32": REAL, "f64": REAL[:3], "c64": COMPLEX, "c128": COMPLEX, "bf16": REAL[:3], "f16": REAL[:3]}
COUNT = int(os.environ.get("TSM2_STANDIN_CALLS", "1500"))


@pytest.fixture(scope="module")
def gpu_memory() -> Iterator[Memory]:
    pytest.importorskip("pycuda", reason="PyCUDA is not installed")
    pytest.importorskip("cupy", reason="CuPy is not installed")
    memory = Memory()
    yield memory
    memory.context.pop()


@pytest.fixture(scope="module")
def library(gpu_memory: Memory, tmp_path_factory: pytest.TempPathFactory, session_cache: None) -> Path:
    problems = [Problem(256, 8, 64, dtype, op) for dtype, ops in OPS.items() for op in ops]
    trials = [trial(problem=problem, source=handmade(problem)) for problem in problems]
    return Path(written(tmp_path_factory.mktemp("library"), *((gpu_memory.run, one) for one in trials)))


@pytest.mark.parametrize("threads", [1, 8])
def test_random_products_are_what_cublas_computes(library: Path, tmp_path: Path, threads: int) -> None:
    told = Standing(standin_path(), library).environment(tmp_path)
    command = [sys.executable, "-m", "tests.standin_on_gpu", str(COUNT // threads), "1", str(threads)]
    done = subprocess.run(command, env=told, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    seen = written_in(tmp_path).seen
    taken = sum(one.taken for one in seen)
    print(f"{sum(one.calls for one in seen)} seen, {taken} taken", done.stderr[-300:])
    assert taken > COUNT // 5
    found = json.loads(done.stdout)
    if threads == 1:
        assert found["taken"] == taken
