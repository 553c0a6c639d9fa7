"""The command loads NumPy with one thread, and leaves nothing of that to programs that it starts."""

from __future__ import annotations

import os

import pytest

from tests.processes import python
from tsm2_tune.tuner.runs.blas_threads import VARIABLE, one_blas_thread

STARTED = """
import os, sys, threading, time
from contextlib import suppress
from tsm2_tune.__main__ import main
sys.argv = ["tsm2-tune", "--shapes", "8x8x8", "--device", "tpu"]
with suppress(SystemExit):
    main()
assert "numpy" in sys.modules
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join()
time.sleep(0.1)  # a thread of the system ends a little after Python's
print(len(os.listdir("/proc/self/task")), os.environ.get("OPENBLAS_NUM_THREADS"))
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="Linux tells a process's threads")
@pytest.mark.parametrize(("asked", "threads"), [(None, "1 None"), ("2", "2 2")])
def test_the_command_has_one_thread_and_leaves_who_asks_for_more_theirs(asked: str | None, threads: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    environment |= {VARIABLE: asked} if asked else {}
    if asked and len(os.sched_getaffinity(0)) < int(asked):
        pytest.skip("OpenBLAS starts no more threads than there are processors")
    output = python("-c", STARTED, env=environment, check=True).stdout
    assert output.splitlines()[-1] == threads


def test_the_environment_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(KeyError), one_blas_thread():
        raise KeyError(os.environ[VARIABLE])
    assert VARIABLE not in os.environ
