"""Check Python, its packages, PyCUDA and the C++ compiler."""

from __future__ import annotations

import ctypes
import platform
import tempfile
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import tsm2_tune
from tsm2_tune.errors import TuneError, pip_install
from tsm2_tune.tuner.compile.cache import refuse_noexec, working_parent
from tsm2_tune.tuner.compile.command_limits import Ended, Ending, run
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.compile.failure_cause import FROM_OUTSIDE, KILLED, is_killed, signal_name
from tsm2_tune.tuner.compile.shared_objects import compiler_command
from tsm2_tune.tuner.device.emulator.toolchain import host_toolchain
from tsm2_tune.tuner.doctor.finding import Finding, Question, note, ok, problem
from tsm2_tune.tuner.results.trial import in_a_line

ANSWER = 42
LINE = f'extern "C" __attribute__((visibility("default"))) int answer() {{ return {ANSWER}; }}\n'
# Module -> the distributions that provide it; one is enough.
EXTRAS = {
    "torch": ("torch",),
    "cupy": ("cupy", "cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x"),
    "jax": ("jax",),
    "pynvml": ("nvidia-ml-py",),
    "optuna": ("optuna",),
    "distributed": ("distributed",),
    "psycopg": ("psycopg",),
    "vl_convert": ("vl-convert-python",),
}


def python(question: Question) -> list[Finding]:
    """Return a finding with the versions of Python, of this package and of NumPy."""
    found = f"{platform.python_version()}, tsm2-tune {tsm2_tune.__version__}, numpy {version('numpy')}"
    return [ok("Python", f"{found}, {platform.system()} {platform.machine()}")]


def extras(question: Question) -> list[Finding]:
    """Return a finding with the versions of the optional packages, which are not imported, and the missing ones."""
    found = {name: next(filter(None, map(_version, names)), None) for name, names in EXTRAS.items()}
    here = [f"{name} {text}" for name, text in found.items() if text]
    missing = [name for name, text in found.items() if not text]
    text = ", ".join([*here, *([f"no {', '.join(missing)}"] if missing else [])])
    if question.gpu is not None and not found["pynvml"]:
        means = "trials do not record the GPU's clock"
        return [note("packages", text, means=means, remedy=pip_install("nvidia-ml-py"))]
    return [ok("packages", text, **found)]


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def host_compiler(question: Question) -> list[Finding]:
    """Return a finding: whether the C++ compiler can compile a small library, and whether the library works."""
    name = "C++ compiler"
    means = "--device cpu cannot run"
    try:
        return [_compiled(name, means, working_parent(), question.compile_seconds)]
    except TuneError as error:
        return [problem(name, in_a_line(str(error)), means=means)]


def _compiled(name: str, means: str, place: Path, limit_seconds: float) -> Finding:
    """Compile a small library in the folder `place` with the flags of kernels, call it, and return a finding."""
    remedy = "fix it, or name another compiler in CXX"
    command = compiler_command()
    told = run([*command, "--version"], limit_seconds=limit_seconds)
    if told.how is Ending.TIMED_OUT:
        return problem(name, f"{command[0]} --version: {ending_of(told)}", means=means, remedy=remedy)
    refuse_noexec()
    toolchain = host_toolchain()
    with tempfile.TemporaryDirectory(dir=place) as folder:
        source, binary = Path(folder, "line.cpp"), Path(folder, "line.so")
        trouble = compiled_line(toolchain, toolchain.flags, LINE, source, binary, limit_seconds - told.seconds)
        if trouble:
            found = f"{toolchain.compiler} does not compile a one-line program: {trouble}"
            return problem(name, found, means=means, remedy=KILLED if is_killed(trouble) else remedy)
        try:
            answered = ctypes.CDLL(str(binary)).answer()
        except (OSError, AttributeError) as error:
            answered = in_a_line(str(error))
    if answered != ANSWER:
        found = f"a program that {toolchain.compiler} compiled does not run: {answered}"
        return problem(
            name, found, means=means, remedy="set XDG_CACHE_HOME to a folder on a file system without noexec"
        )
    return ok(name, f"{toolchain.version} ({toolchain.compiler})")


def compiled_line(
    toolchain: Toolchain, flags: Sequence[str], line: str, source: Path, binary: Path, limit_seconds: float
) -> str:
    """Compile one line of code. Return one line that says why this failed, or "" if it succeeded."""
    source.write_text(line)
    ended = run([toolchain.compiler, *flags, "-o", str(binary), str(source)], limit_seconds=limit_seconds)
    return "" if ended.is_well else ending_of(ended)


def pycuda(question: Question) -> list[Finding]:
    """Return findings: whether PyCUDA can be imported, and whether the GPU opens."""
    from tsm2_tune.tuner.device import cuda

    name = "PyCUDA"
    try:
        drv: Any = cuda.driver()
    except TuneError as error:
        return [problem(name, in_a_line(str(error)), means="no kernel runs on a GPU")]
    compiled, supported = drv.get_version(), drv.get_driver_version()
    found = f"{_version('pycuda') or 'of unknown version'}, built for CUDA {'.'.join(map(str, compiled[:2]))}"
    findings = [ok(name, found)]
    if compiled[0] > supported // 1000:
        means = f"newer than the driver's CUDA {supported // 1000}, so calls may be missing"
        remedy = "pip install --force-reinstall --no-cache-dir --no-binary pycuda pycuda, with an older nvcc in PATH"
        findings = [note(name, found, means=means, remedy=remedy)]
    return [*findings, _opened(drv, int(question.spec))] if question.gpu is not None else findings


def _opened(drv: Any, ordinal: int) -> Finding:
    """Return a finding: whether a CUDA context can be created on the GPU with this number."""
    try:
        context = drv.Device(ordinal).retain_primary_context()
        context.push()
        free_bytes, total_bytes = drv.mem_get_info()
        context.pop()
        context.detach()
    except drv.Error as error:
        remedy = "end other processes on it, check its compute mode, or name another GPU with --device"
        return problem("device", f"GPU {ordinal} does not open: {in_a_line(str(error))}", remedy=remedy)
    return ok("device", f"GPU {ordinal} opens, {free_bytes / 2**30:.1f} of {total_bytes / 2**30:.1f} GiB are free")


def ending_of(ended: Ended) -> str:
    """Return one line that says why a compiler failed: its first error, else its first message, else its status."""
    if ended.how is Ending.TIMED_OUT:
        return f"no answer within {ended.seconds:.0f} s"
    lines = [in_a_line(line) for line in ended.messages.splitlines() if line.strip()]
    if lines:
        return next((line for line in lines if "error" in line.lower()), lines[0])[:300]
    if ended.how is Ending.SIGNALLED and ended.status in FROM_OUTSIDE:
        return f"it was killed by {signal_name(ended.status)}"
    return f"{ended.how.value} {ended.status}, without a message"
