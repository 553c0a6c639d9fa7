"""Processes that a run starts are isolated, and need nothing of the process that starts them."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import python
from tsm2_tune.errors import DeviceError
from tsm2_tune.tuner.runs.blas_threads import VARIABLE, one_blas_thread
from tsm2_tune.tuner.worker import child_process

NAMES = (
    "types signal math random json site re os ctypes struct socket select selectors tempfile numpy jinja2 copy enum"
)
TUNED = """
import sys, threading
sys.path[:] = [one for one in sys.path if one]
main = sys.modules["__main__"]
import os, tsm2_tune
from tests.quick import keep_answers
from tests.quick_command import make_quick
keep_answers(setattr)
make_quick(setattr)
def tune():
    asked = dict(family="tsm2", max_trials=1, vendor=False)
    result = tsm2_tune.tune("40x2x70", device="cpu", db=sys.argv[1], **asked)
    return len(result.ended)
"""
AT_ONCE = f"""{TUNED}
environment, umask = dict(os.environ), os.umask
os.umask = lambda *_: sys.exit("umask was set")
assert tune() == 1
assert dict(os.environ) == environment
assert sys.modules["__main__"] is main
"""
IN_A_POOL = f"""{TUNED}
import multiprocessing
with multiprocessing.get_context("fork").Pool(1) as pool:
    assert pool.apply(tune) == 1
"""

EXAMINED = """
import sys
from tsm2_tune.tuner.doctor.examination import examine
sys.path.insert(0, "")
found = examine("cpu", sys.argv[1]).findings
assert found and not any("looking failed" in one.text for one in found), found
"""


def isolated(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(child_process.ROOT)}
    return python("-P", *arguments, env=environment, **options)


@pytest.mark.slow
@pytest.mark.usefixtures("session_cache", "toolchain")
@pytest.mark.parametrize("script", [AT_ONCE, IN_A_POOL, EXAMINED], ids=["at once", "in a pool", "doctor"])
def test_nothing_in_the_working_folder_runs(script: str, tmp_path: Path) -> None:
    for name in NAMES.split():
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\n")
    ended = isolated("-c", script, tmp_path / "r.db", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert not (tmp_path / "ran").exists()


def test_a_child_imports_modules_of_the_caller_after_those_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("types", "sitecustomize", "usercustomize"):
        (tmp_path / f"{name}.py").write_text(f"print({name!r}, 'ran')")
    (tmp_path / "helper.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.path.insert(1, tmp_path)  # type: ignore[arg-type]
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)
        for folder in ("relative", ""):
            patch.syspath_prepend(folder)
        assert child_process.search_path()[0] == str(child_process.ROOT)
        assert not {"", str(tmp_path), "relative"} & set(child_process.search_path())
    command = child_process.isolated_python("import types, helper, tsm2_tune; print(helper.__file__)")
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == (f"{tmp_path / 'helper.py'}\n", "")


@pytest.mark.parametrize("executable", ["", None, "/missing"])
def test_a_python_that_is_not_known_or_an_archive_is_named(
    executable: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", executable)
        with pytest.raises(DeviceError, match=r"sys\.executable"):
            child_process.start_child(multiprocessing.freeze_support)
    monkeypatch.setattr(child_process, "__file__", "/a.zip/tsm2_tune/tuner/child.py")
    with pytest.raises(DeviceError, match="archive"):
        child_process.python_executable()


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


@pytest.mark.slow
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


def test_one_blas_thread_is_for_the_block_unless_a_user_asks_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    for before, within in ((None, "1"), ("2", "2")):
        monkeypatch.delenv(VARIABLE, raising=False)
        if before is not None:
            monkeypatch.setenv(VARIABLE, before)
        with one_blas_thread():
            assert os.environ[VARIABLE] == within
        assert os.environ.get(VARIABLE) == before
