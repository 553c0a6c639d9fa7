"""Run all probes of the command `doctor`, each in its own process with a time limit.

If a probe hangs or crashes, its finding says so.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from tsm2_tune.errors import TuneError
from tsm2_tune.tuner.device.target import HOST
from tsm2_tune.tuner.doctor.driver import NO_GPU, driver
from tsm2_tune.tuner.doctor.finding import Finding, Question, State, note, problem
from tsm2_tune.tuner.doctor.nvidia_smi import nvidia_smi
from tsm2_tune.tuner.doctor.software import extras, host_compiler, pycuda, python
from tsm2_tune.tuner.doctor.storage import cache, cache_left_as_it_was, database
from tsm2_tune.tuner.doctor.toolkit import toolkit, vendor
from tsm2_tune.tuner.results.trial import in_a_line
from tsm2_tune.tuner.worker.child_process import isolated_python

END_SECONDS = 2.0  # for a probe to clean up when it is terminated
AT_ONCE = 4
PROGRAM = "from tsm2_tune.tuner.doctor.examination import answer; answer()"
MARK = "\ntsm2-tune doctor: "  # printed before the findings, since loaded libraries may print too


@dataclass(frozen=True, slots=True)
class Probe:
    """A function that checks one thing that tuning needs, and the devices for which the function runs."""

    look: Callable[[Question], list[Finding]]
    kind: Literal["any", "host", "gpu", "running gpu"]  # devices for which it runs; the last needs a working GPU
    is_needed: bool  # whether tuning on these devices needs the checked thing
    remedy: str  # advice if the probe hangs or crashes


DATABASE = "database"  # the probe of the database that --db names
PROBES = {
    "Python": Probe(python, "any", True, "install Python anew"),
    "packages": Probe(extras, "any", False, "install Python's packages anew"),
    "CUDA driver": Probe(driver, "gpu", True, "check nvidia-smi and the system's log; restart"),
    "nvidia-smi": Probe(nvidia_smi, "running gpu", False, "read the system's log; restart the driver"),
    "PyCUDA": Probe(pycuda, "gpu", True, "pip install --force-reinstall --no-cache-dir --no-binary pycuda pycuda"),
    "CUDA toolkit": Probe(toolkit, "gpu", True, "check that the toolkit in CUDA_HOME, else in PATH, can be read"),
    "cuBLAS and cuBLASLt": Probe(vendor, "gpu", False, "install the CUDA toolkit, or tune with --no-vendor"),
    "C++ compiler": Probe(host_compiler, "host", True, "check that the compiler in CXX, else in PATH, can be read"),
    "cache": Probe(cache, "any", True, "set XDG_CACHE_HOME to a folder on a local disk"),
    DATABASE: Probe(database, "any", True, "name a file on a local disk with --db"),
}
FIRST = "CUDA driver"  # runs first, since later probes need its facts
ALONE = "nvidia-smi"  # runs before the others, which it would list as processes on the GPU
_running: set[subprocess.Popen[bytes]] = set()


@dataclass(frozen=True, slots=True)
class Examination:
    """All findings of the command `doctor` for one device."""

    spec: str
    findings: tuple[Finding, ...]

    @property
    def can_tune(self) -> bool:
        """Whether tuning on the device is possible: no finding is a problem."""
        return all(one.state is not State.PROBLEM for one in self.findings)


def examine(spec: str | None, database: str) -> Examination:
    """Run all probes for tuning on the device `spec` with this database, and return the findings.

    The default device is GPU 0 if there is a GPU, else the CPU.
    """
    with cache_left_as_it_was(), ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            of_driver = [] if spec == HOST else _examined(FIRST, Question(spec or "0", database))
            facts = next((one.facts for one in of_driver if one.facts), {})
            chosen = spec or ("0" if facts.get("gpus") else HOST)
            question = Question(chosen, database, facts)
            names = [name for name, probe in PROBES.items() if name != FIRST and _applies(probe, question, spec)]
            found = {ALONE: _examined(ALONE, question)} if ALONE in names else {}
            others = [name for name in names if name != ALONE]
            found |= zip(others, pool.map(lambda name: _examined(name, question), others), strict=True)
        finally:
            _end_all()
    found[FIRST] = of_driver
    return Examination(
        chosen, tuple(_weighed(one, PROBES[name], chosen) for name in PROBES for one in found.get(name, ()))
    )


def _applies(probe: Probe, question: Question, spec: str | None) -> bool:
    """Return whether to run the probe. `spec` is the device that the user named, None without one."""
    if probe.kind == "running gpu":
        return question.gpu is not None
    return probe.kind != "gpu" or spec != HOST


def _weighed(finding: Finding, probe: Probe, spec: str) -> Finding:
    """Return the finding. If it is a problem that does not concern the device, return it as a note."""
    is_of_device = probe.kind == "any" or (probe.kind == "host") == (spec == HOST)
    if finding.state is State.PROBLEM and not is_of_device:
        return replace(finding, state=State.NOTE)
    return finding


def _examined(name: str, question: Question) -> list[Finding]:
    """Run a probe in its own process and return its findings. If the probe fails, return a finding that says so."""
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            printed, why = _run(name, question, folder)
        answered = printed.rpartition(MARK)[2] if MARK in printed else None
        if answered is not None:
            return [Finding(**{**one, "state": State(one["state"])}) for one in json.loads(answered)]
    except (OSError, ValueError, TuneError) as error:
        why = in_a_line(str(error))
    probe = PROBES[name]
    tell = problem if probe.is_needed else note
    return [tell(name, why, means=NO_GPU if name == FIRST else "", remedy=probe.remedy)]


def _run(name: str, question: Question, folder: str) -> tuple[str, str]:
    """Run a probe with this temporary folder. Return its output, and what to say if that has no findings."""
    environment = {**os.environ, "TMPDIR": folder}
    process = subprocess.Popen(
        [*isolated_python(PROGRAM), name, json.dumps(asdict(question))],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )
    _running.add(process)
    try:
        printed = process.communicate(timeout=question.limit_seconds)[0]
    except subprocess.TimeoutExpired:
        _end(process)
        return "", f"no answer within {question.limit_seconds:g} s"
    _running.discard(process)
    text = printed.decode(errors="replace")
    last = in_a_line((text.strip().splitlines() or ["no message"])[-1])
    return text, f"looking failed ({_ending(process.returncode)}: {last})"


def _ending(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def _end_all() -> None:
    for process in list(_running):
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the probe and its child processes. Do not wait for a process that hangs in a system call."""
    _running.discard(process)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(OSError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
    if process.stdout is not None:
        process.stdout.close()


def answer(arguments: Sequence[str] = ()) -> None:
    """Run one probe and print its findings as JSON: the entry point of a probe's process."""
    name, text = arguments or sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the probe's files are removed
    asked: dict[str, Any] = json.loads(text)
    try:
        findings = PROBES[name].look(Question(**asked))
    except Exception as error:  # an error of a broken tool or library is reported in one line, not as a traceback
        sys.exit(f"{type(error).__name__}: {in_a_line(str(error))}")
    print(MARK + json.dumps([asdict(one) for one in findings]), flush=True)
