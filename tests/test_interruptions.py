"""Tests of failed compilers: whose fault it is, and that nothing of a compiler stays, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fake_compilers import WRITE, calls, compiled, fake, is_gone
from tests.processes import ROOT
from tests.servers import wait_until
from tsm2_tune.errors import ToolMissing
from tsm2_tune.tuner.compile import compiler, failure_cause
from tsm2_tune.tuner.compile.compiler import Toolchain, kill_running
from tsm2_tune.tuner.device.emulator import toolchain as emulator_toolchain
from tsm2_tune.tuner.device.emulator.toolchain import host_toolchain
from tsm2_tune.tuner.results.trial import Binary, CompileFailure, Outcome

pytestmark = pytest.mark.slow

INTERRUPTED, COMPILE_FAILED, TIMED_OUT = Outcome.INTERRUPTED, Outcome.COMPILE_FAILED, Outcome.TIMED_OUT


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty cache of the test's own, in which no working folder stays."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "tsm2-tune" / "binaries"
    yield folder
    assert not list((folder / "working").glob("*"))


def failure(toolchain: Toolchain, text: str = "", limit_seconds: float = 60.0) -> CompileFailure:
    answer = compiled(toolchain, text, limit_seconds)
    assert isinstance(answer, CompileFailure)
    return answer


@pytest.mark.parametrize("name", ["KILL", "TERM", "HUP", "INT", "USR1", "XCPU", "BUS"])
def test_a_signal_from_outside_is_no_verdict(name: str, tmp_path: Path) -> None:
    """Nor is that of a part that a driver waits for, which has nothing but an exit status to tell it."""
    assert failure(fake(tmp_path, f"kill -{name} $$\n")).outcome is INTERRUPTED
    assert failure(fake(tmp_path, f"sh -c 'kill -{name} $$'\nexit $?\n")).outcome is INTERRUPTED


@pytest.mark.parametrize("name", ["KILL", "TERM", "XFSZ", "SEGV"])
@pytest.mark.parametrize("part", ["cc1plus", "as", "collect2"])
def test_system_compiler_tells_how_its_parts_end(part: str, name: str, tmp_path: Path, toolchain: Toolchain) -> None:
    """The language of its messages makes no difference."""
    if "clang" in toolchain.version:
        pytest.skip("clang++ has no parts of these names")
    (tmp_path / part).write_text(f"#!/bin/sh\nkill -{name} $$\n")
    (tmp_path / part).chmod(0o755)
    failed = failure(replace(toolchain, flags=(*toolchain.flags, f"-B{tmp_path}/")), "// nothing\n")
    assert failed.outcome is (COMPILE_FAILED if name == "SEGV" else INTERRUPTED), failed.detail


MESSAGES = {
    "c++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.": INTERRUPTED,
    "g++: internal compiler error: Killed (program cc1plus)": INTERRUPTED,
    "c++: internal compiler error: File size limit exceeded signal terminated program cc1plus": INTERRUPTED,
    "c++: internal compiler error: Aborted signal terminated program cc1plus": COMPILE_FAILED,
    "c++: fatal error: Segmentation fault signal terminated program cc1plus": COMPILE_FAILED,
    "collect2: fatal error: ld terminated with signal 9 [Killed]": INTERRUPTED,
    "collect2: fatal error: ld terminated with signal 11 [Segmentation fault]": COMPILE_FAILED,
    "nvcc error   : 'cicc' died due to signal 9 (Kill signal)": INTERRUPTED,
    "nvcc error   : 'ptxas' died due to signal 15 (Terminated)": INTERRUPTED,
    "nvcc error   : 'cicc' died due to signal 11 (Invalid memory reference)": COMPILE_FAILED,
    "clang++: error: unable to execute command: Killed": INTERRUPTED,
    "clang++: error: unable to execute command: Segmentation fault (core dumped)": COMPILE_FAILED,
    "c++: fatal error: cannot execute 'cc1plus': execvp: No such file or directory": INTERRUPTED,
    "cc1plus: out of memory allocating 65536 bytes after a total of 1 bytes": INTERRUPTED,
    "virtual memory exhausted: Cannot allocate memory": INTERRUPTED,
    "terminate called after throwing an instance of 'std::bad_alloc'": INTERRUPTED,
    "kernel.cu: fatal error: error writing to /tmp/x.s: No space left on device": INTERRUPTED,
    "c++: fatal error: cannot create temporary file: Disk quota exceeded": INTERRUPTED,
    "as: can't open: Too many open files in system": INTERRUPTED,
    'kernel.cu(3): error: identifier "killed" is undefined': COMPILE_FAILED,
    "ptxas error   : Entry function 'k' uses too much shared data (0x20000 bytes, 0xc000 max)": COMPILE_FAILED,
}


@pytest.mark.parametrize("message", MESSAGES)
def test_messages_in_which_only_words_tell(message: str, tmp_path: Path) -> None:
    (tmp_path / "message").write_text(message)
    failed = failure(fake(tmp_path, f"cat {tmp_path}/message >&2\nexit 1\n"))
    assert failed.outcome is MESSAGES[message]
    assert message in failed.detail


def test_a_kill_for_want_of_memory_is_believed_without_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kills = iter(range(10))
    monkeypatch.setattr(failure_cause, "out_of_memory_kills", lambda: next(kills))
    failed = failure(fake(tmp_path, "exit 1\n"))
    assert failed.outcome is INTERRUPTED
    assert failed.detail.endswith("the machine ran out of memory")


def test_compiler_that_cannot_be_started_is_no_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    missing = fake(tmp_path, WRITE)
    Path(missing.compiler).unlink()
    failed = failure(missing)
    assert failed == CompileFailure(INTERRUPTED, f"{missing.compiler} cannot be started: No such file or directory")
    assert failure(fake(tmp_path, "rm $0\nexit 1\n")).outcome is INTERRUPTED
    kill_running()  # none waits to be used

    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    failed = failure(fake(tmp_path, WRITE))
    assert failed.outcome is INTERRUPTED
    assert "Resource temporarily unavailable" in failed.detail


@pytest.mark.parametrize("first", ["kill -KILL $$", "exit 1", "kill -KILL $PPID", "rm -rf $TMPDIR; exit 1"])
def test_what_fails_once_is_compiled_again_at_once(first: str, tmp_path: Path) -> None:
    answer = compiled(fake(tmp_path, f"[ $(wc -l < $calls) = 1 ] && {{ {first}; }}\n{WRITE}"))
    assert isinstance(answer, Binary)
    assert len(calls(tmp_path)) == 2


def test_a_refusal_stands_when_it_came_twice(tmp_path: Path) -> None:
    refusing = fake(tmp_path, "[ $(wc -l < $calls) = 2 ] && kill -KILL $$\necho no\nexit 1\n")
    assert failure(refusing) == CompileFailure(COMPILE_FAILED, "no")
    assert len(calls(tmp_path)) == 3


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("script", "outcome", "said"),
    [
        *((f"kill -{name} $$", COMPILE_FAILED, f"killed by SIG{name}, without a message")
          for name in ("SEGV", "ABRT", "ILL", "FPE")),
        ("setsid sleep 600 &\necho $! >> $calls\nsleep 600", TIMED_OUT, "compiling took more than 1 s"),
        ("sh -c 'kill -STOP $$'", INTERRUPTED, "stopped, and not continued"),
        ("kill -STOP $$", INTERRUPTED, "stopped, and not continued"),
        ("yes", COMPILE_FAILED, "the compiler prints too much: y\ny\n"),
    ],
)  # fmt: skip
def test_hanging_compiler_ends_with_its_children(script: str, outcome: Outcome, said: str, tmp_path: Path) -> None:
    failed = failure(fake(tmp_path, f"{script}\n"), limit_seconds=60.0 if script == "yes" else 1.0)
    assert (failed.outcome, said in failed.detail) == (outcome, True), failed.detail
    assert len(failed.detail) <= compiler.DETAIL_CHARACTERS
    assert all(map(is_gone, calls(tmp_path)))


CONTINUE = """setsid sh -c "echo $$ >> $calls; sleep 1.2; kill -CONT {0}" &
while [ $(wc -l < $calls) = 1 ]; do :; done
kill -STOP {1}
"""


@pytest.mark.parametrize("who", [("$$", "$$"), ("-$PPID", "0")])
def test_time_in_which_a_compiler_is_stopped_does_not_count(who: tuple[str, str], tmp_path: Path) -> None:
    """Itself, or its whole group, with what watches it."""
    answer = compiled(fake(tmp_path, CONTINUE.format(*who) + WRITE), limit_seconds=0.6)
    assert isinstance(answer, Binary), answer
    assert answer.compile_seconds < 0.6


@pytest.mark.parametrize("detach", ["", "setsid"])
def test_a_descendant_that_holds_the_pipe_holds_nobody_up(detach: str, tmp_path: Path) -> None:
    spills = "ptxas info: 0 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads"
    script = f"{detach} sleep 600 &\necho $! >> $calls\nyes padding | head -c 1000000\necho '{spills}'\n{WRITE}"
    answer = compiled(fake(tmp_path, script), limit_seconds=60)
    assert isinstance(answer, Binary)
    assert answer.spill_bytes == 12, "all that it says is read"
    assert answer.compile_seconds < 30
    assert all(map(is_gone, calls(tmp_path)))


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("sleep 600", "it took more than 0.2 s"),
        ("yes", "it prints too much"),
        ("sleep 600 & echo 1.0", None),
        ("kill -KILL $$", "it was killed by SIGKILL; find out what kills it, then run this again"),
        ("exit 127", "a program that it starts is missing"),
    ],
)
def test_what_a_compiler_is_asked_is_bounded(
    script: str, complaint: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (named := tmp_path / "compiler").write_text(f"#!/bin/sh\n{script}\n")
    named.chmod(0o755)
    monkeypatch.setenv("CXX", str(named))
    monkeypatch.setattr(compiler, "ANSWER_SECONDS", 0.2 if script == "sleep 600" else 30.0)
    if complaint is None:
        assert compiler.answer(str(named), "--version").messages == "1.0\n"
    else:
        remedy = "" if "find out" in complaint else "; fix it or name another compiler"
        with pytest.raises(ToolMissing, match=f"compiler {named} does not answer .*: {complaint}{remedy}$"):
            host_toolchain()


@pytest.mark.parametrize(
    ("at", "what"),
    [
        *((at, "kill -KILL $$") for at in ("--version", "-fsyntax-only", "sample.cpp", "-###", "-E")),
        ("sample.cpp", "rm -rf {folder}/working"),
    ],
)
def test_a_compiler_that_the_machine_stops_once_is_asked_again(
    at: str, what: str, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (named := tmp_path / "compiler").write_text(
        f"""#!/bin/sh
case "$*" in *{at}*) mkdir {tmp_path}/stopped 2> {os.devnull} && {what.format(folder=cache)};; esac
exec c++ "$@"
"""
    )
    named.chmod(0o755)
    monkeypatch.setenv("CXX", str(named))
    found = host_toolchain()
    assert (tmp_path / "stopped").exists()
    emulator_toolchain._answers.cache_clear()
    assert host_toolchain() == found


HANGING = "setsid sleep 600 &\necho $! >> $calls\nmktemp\nsleep 600 &\necho $! >> $calls\nwait\n"


def is_hanging(folder: Path) -> bool:
    return (folder / "calls").exists() and len(calls(folder)) == 3


def test_killing_what_runs_kills_all_of_it(tmp_path: Path) -> None:
    answers: list[Binary | CompileFailure] = []
    compiling = threading.Thread(target=lambda: answers.append(compiled(fake(tmp_path, HANGING))))
    compiling.start()
    wait_until(lambda: is_hanging(tmp_path))
    kill_running()
    compiling.join()
    assert [answer.outcome for answer in answers if isinstance(answer, CompileFailure)] == [INTERRUPTED]
    assert len(calls(tmp_path)) == 3  # it was not started again
    assert all(map(is_gone, calls(tmp_path)))


def test_a_fork_has_compilers_of_its_own(tmp_path: Path) -> None:
    writing = fake(tmp_path, WRITE)
    assert isinstance(compiled(writing, "before"), Binary)
    child = os.fork()
    if child == 0:
        os._exit(0 if isinstance(compiled(writing, "child"), Binary) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert isinstance(compiled(writing, "parent"), Binary)


COMPILING = """
import signal, sys
from pathlib import Path
from tests.fake_compilers import compiled, fake
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and so do theirs
signal.signal(signal.SIGHUP, signal.SIG_DFL)
compiled(fake(Path(sys.argv[1]), sys.argv[2]))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_compilers_and_their_files_end_with_the_process(number: int, tmp_path: Path, cache: Path) -> None:
    command = [sys.executable, "-c", COMPILING, str(tmp_path), HANGING]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    main = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
    wait_until(lambda: is_hanging(tmp_path))
    main.send_signal(number)
    main.wait()
    assert all(map(is_gone, calls(tmp_path)))
    wait_until(lambda: not list((cache / "working").iterdir()))
    assert {path.name for path in tmp_path.iterdir()} == {"cache", "calls", "fake-compiler"}
