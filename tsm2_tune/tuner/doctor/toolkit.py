"""Check nvcc with its host compiler, and the vendor's libraries cuBLAS and cuBLASLt."""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
from pathlib import Path

from tsm2_tune.errors import ToolMissing
from tsm2_tune.tuner.compile import nvcc
from tsm2_tune.tuner.compile.command_limits import Ending, run
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.compile.failure_cause import KILLED, is_killed
from tsm2_tune.tuner.doctor.finding import Finding, Question, note, ok, problem
from tsm2_tune.tuner.doctor.software import compiled_line, ending_of
from tsm2_tune.tuner.measure.vendor import libraries
from tsm2_tune.tuner.results.trial import in_a_line

NAME = "CUDA toolkit"
MEANS = "no kernel is compiled for a GPU"
LINE = 'extern "C" __global__ void line(float *x) { *x = 1.0f; }\n'
ANY_ARCHITECTURE = (9, 0)  # a placeholder if there is no GPU: the flag -arch is then removed
# Pattern of nvcc's message -> the remedy
REMEDIES = {
    r"gpu.architecture|gpu-name": "install a toolkit that supports this GPU, and set CUDA_HOME to it",
    r"unsupported (GNU|clang) version|unsupported Microsoft": "install an older host compiler, and name it:"
    " export NVCC_PREPEND_FLAGS='-ccbin g++-13'",
    r"preprocess host compiler|(gcc|g\+\+|\bcc\b).*(not found|No such file)|cannot execute": "install g++, which nvcc"
    " calls",
    r"No space left|quota": "free some space where TMPDIR is",
}
ELF = b"\x7fELF"


def toolkit(question: Question) -> list[Finding]:
    """Return findings: whether nvcc can compile a small kernel, and whether variables name folders without nvcc."""
    try:
        used = nvcc.find()
    except ToolMissing as error:
        return [problem(NAME, in_a_line(str(error)), means=MEANS)]
    return [_compiled(question, used), *_passed_over(used)]


def _passed_over(used: nvcc.Nvcc) -> list[Finding]:
    """Return a finding for each environment variable that names a folder without an executable nvcc."""
    return [
        note(
            name,
            f"{in_a_line(os.environ[name])} has no bin/nvcc that can be run; {used.path} is used instead",
            remedy="set it to the toolkit's folder, or unset it",
        )
        for name in used.passed_over
    ]


def _compiled(question: Question, used: nvcc.Nvcc) -> Finding:
    """Return a finding: whether nvcc compiles a small kernel for the device, and whether the driver can load it."""
    told = run([used.path, "--version"], limit_seconds=question.compile_seconds)
    if told.how is Ending.TIMED_OUT:
        return problem(NAME, f"{used.path} --version: {ending_of(told)}", means=MEANS, remedy=_other_than(used))
    capability = question.compute_capability
    try:
        toolchain = nvcc.cuda_toolchain(capability or ANY_ARCHITECTURE)
    except ToolMissing as error:
        return problem(NAME, in_a_line(str(error)), means=MEANS)
    release = re.search(r"release (\d+)\.(\d+)", toolchain.version)
    version = f"nvcc {release[1]}.{release[2]}" if release else toolchain.version
    found = f"{version} ({toolchain.compiler})"
    limit_seconds = question.compile_seconds - told.seconds
    trouble = _trouble(toolchain, has_architecture=capability is not None, limit_seconds=limit_seconds)
    if trouble:
        remedy = (
            KILLED
            if is_killed(trouble)
            else next((what for said, what in REMEDIES.items() if re.search(said, trouble)), _other_than(used))
        )
        return problem(NAME, f"{found} does not compile a one-line program: {trouble}", means=MEANS, remedy=remedy)
    supported = question.driver.get("version")
    if release and supported is not None and int(release[1]) > supported // 1000:
        text = f"{found} is newer than the driver, which has CUDA {supported // 1000}.{supported % 1000 // 10}"
        remedy = f"update the driver, or set CUDA_HOME to a toolkit of CUDA {supported // 1000}"
        return problem(NAME, text, means="the driver does not load kernels of this nvcc", remedy=remedy)
    architecture = "" if capability is None else f", compiles for {nvcc.architecture_flag(capability)}"
    return ok(NAME, f"{found}{architecture}")


def _other_than(used: nvcc.Nvcc) -> str:
    """Return the text of the remedy for an nvcc that does not work."""
    if used.named_by:
        return f"fix that toolkit, set {used.named_by} to another, or unset it"
    return "fix that toolkit, or set CUDA_HOME to another"


def _trouble(toolchain: Toolchain, *, has_architecture: bool, limit_seconds: float) -> str:
    """Compile one line of code with nvcc. Return a text that says how the compilation fails, or "" if it succeeds."""
    flags = [flag for flag in toolchain.flags if has_architecture or not flag.startswith("-arch")]
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "line.cu"), Path(folder, "line.cubin")
        trouble = compiled_line(toolchain, flags, LINE, source, binary, limit_seconds)
        if not trouble and not (binary.is_file() and binary.read_bytes().startswith(ELF)):
            return "it exited with status 0, but wrote no binary"
    return trouble


def vendor(question: Question) -> list[Finding]:
    """Return a finding with the versions of cuBLAS and cuBLASLt, or that one of them is missing."""
    name, means = "cuBLAS and cuBLASLt", "kernels are not compared with cuBLAS"
    versions = {}
    for which in (libraries.CUBLAS, libraries.CUBLASLT):
        try:
            versions[which] = _version(which, libraries.library(which))
        except ToolMissing as error:
            return [note(name, in_a_line(str(error)), means=means)]
    return [ok(name, ", ".join(f"{which} {text}" for which, text in versions.items()), **versions)]


def _version(which: str, library: ctypes.CDLL) -> str:
    """Return the version that the loaded library reports, without a CUDA context. `which` is the library's name."""
    if which == libraries.CUBLASLT:
        library.cublasLtGetVersion.restype = ctypes.c_size_t
        return libraries.version_text(library.cublasLtGetVersion())
    parts = [ctypes.c_int(0) for _ in range(3)]
    for kind, value in enumerate(parts):  # libraryPropertyType: major, minor, patch
        library.cublasGetProperty(kind, ctypes.byref(value))
    return ".".join(str(value.value) for value in parts)
