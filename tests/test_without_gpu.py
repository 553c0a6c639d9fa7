"""`tsm2-tune run` on a machine without a GPU: it says so at once, and cuBLAS computes the products."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.databases import database_of
from tests.fabricated import configuration, trial
from tests.processes import python
from tests.standin_calls import TESTS
from tsm2_tune.interpose.build import LEFT
from tsm2_tune.tuner.device.cuda import cuda_device_count

pytestmark = [
    pytest.mark.host,
    pytest.mark.usefixtures("toolchain", "session_cache"),
    pytest.mark.skipif(cuda_device_count() > 0, reason="a GPU is here"),
]
SAID = f"no GPU to use (no CUDA driver: libcuda.so.1 not found): {LEFT}\n"


@pytest.mark.parametrize("way", ["--db {database}", "--report --db {database}", "--library {library}"])
def test_no_gpu_is_told_and_nothing_is_compiled(way: str, path: Path, plain: str) -> None:
    database_of(path, trial(500.0, configuration()))
    arguments = way.format(database=path, library=plain).split()
    done = python("-m", "tsm2_tune", "run", *arguments, "--", "sh", "-c", "exit 7", cwd=TESTS.parent)
    assert (done.returncode, done.stderr.startswith(SAID)) == (7, True)
    assert done.stderr.removeprefix(SAID) == (
        "no product was seen: the program failed with status 7\n" if "report" in way else ""
    )
