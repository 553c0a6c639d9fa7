"""Run all probes, each in its own process with a time limit. A probe that hangs or crashes is a finding too."""

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

LIMIT_SECONDS = 30.0  # for a probe
END_SECONDS = 2.0  # for a probe to clean up when it is ended
AT_ONCE = 4
PROGRAM = "from tsm2_tune.tuner.doctor.examination import answer; answer()"
MARK = "\ntsm2-tune doctor: "  # printed before the findings, since loaded libraries may print too


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe, and when it applies."""

    look: Callable[[Question], list[Finding]]
    kind: Literal["any", "host", "gpu", "running gpu"]  # devices to which it applies; the last needs a GPU here
    is_needed: bool  # whether tuning on such a device needs it
    remedy: str  # if the probe hangs or crashes


PROBES = {
    "Python": Probe(python, "any", True, "install Python anew"),
    "packages": Probe(extras, "any", False, "install Python's packages anew"),
    "CUDA driver": Probe(driver, "gpu", True, "see nvidia-smi and the system's log; restart"),
    "nvidia-smi": Probe(nvidia_smi, "running gpu", False, "see the system's log; restart the driver"),
    "PyCUDA": Probe(pycuda, "gpu", True, "pip install --force-reinstall --no-cache-dir --no-binary pycuda pycuda"),
    "CUDA toolkit": Probe(toolkit, "gpu", True, "see that the toolkit in CUDA_HOME, else in PATH, can be read"),
    "cuBLAS and cuBLASLt": Probe(vendor, "gpu", False, "install the CUDA toolkit, or tune with --no-vendor"),
    "C++ compiler": Probe(host_compiler, "host", True, "see that the compiler in CXX, else in PATH, can be read"),
    "cache": Probe(cache, "any", True, "set XDG_CACHE_HOME to a folder on a local disk"),
    "database": Probe(database, "any", True, "name a file on a local disk with --db"),
}
FIRST = "CUDA driver"  # later probes get its facts
ALONE = "nvidia-smi"  # before the others, which it would list as processes on the GPU
_running: set[subprocess.Popen[bytes]] = set()


@dataclass(frozen=True, slots=True)
class Examination:
    """The findings for one device."""

    spec: str
    findings: tuple[Finding, ...]

    @property
    def can_tune(self) -> bool:
        """Whether a run on the device would work."""
        return all(one.state is not State.PROBLEM for one in self.findings)


def examine(spec: str | None, database: str) -> Examination:
    """Probe all that tuning on the device needs; by default GPU 0 if there is one, else the host."""
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
    """Return whether the probe applies to the device."""
    if probe.kind == "running gpu":
        return question.gpu is not None
    return probe.kind != "gpu" or spec != HOST


def _weighed(finding: Finding, probe: Probe, spec: str) -> Finding:
    """Return the finding; a problem becomes a note if the device does not need what was probed."""
    is_of_device = probe.kind == "any" or (probe.kind == "host") == (spec == HOST)
    if finding.state is State.PROBLEM and not is_of_device:
        return replace(finding, state=State.NOTE)
    return finding


def _examined(name: str, question: Question) -> list[Finding]:
    """Return the probe's findings; a failure of the probe is a finding too."""
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
    """Return the output of the probe's process, and how it failed if it did. Wait no longer than the limits."""
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
        printed = process.communicate(timeout=LIMIT_SECONDS)[0]
    except subprocess.TimeoutExpired:
        _end(process)
        return "", f"no answer within {LIMIT_SECONDS:g} s"
    _running.discard(process)
    text = printed.decode(errors="replace")
    last = in_a_line((text.strip().splitlines() or ["no message"])[-1])
    return text, f"looking failed ({_ending(process.returncode)}: {last})"


def _ending(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def _end_all() -> None:
    """End the probes that still run, after an interruption."""
    for process in list(_running):
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the probe and its child processes. One that hangs in the operating system's kernel is left behind."""
    _running.discard(process)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(OSError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
    if process.stdout is not None:
        process.stdout.close()


def answer(arguments: Sequence[str] = ()) -> None:
    """Run one probe and print its findings. A probe's process begins here."""
    name, text = arguments or sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that its files are removed
    asked: dict[str, Any] = json.loads(text)
    try:
        findings = PROBES[name].look(Question(**asked))
    except Exception as error:  # an error of a broken tool or library is reported in one line, not as a traceback
        sys.exit(f"{type(error).__name__}: {in_a_line(str(error))}")
    print(MARK + json.dumps([asdict(one) for one in findings]), flush=True)
