"""Find nvcc, and return it as a Toolchain that compiles CUDA text to cubins."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from tsm2_tune.errors import ToolMissing
from tsm2_tune.generator.device.tensor_cores import WITH_WARPGROUP_PRODUCTS
from tsm2_tune.tuner.compile.compiler import ANSWER_SECONDS, Toolchain, answer, asked, script_digest
from tsm2_tune.tuner.compile.environment import (
    OF_NVCC,
    OF_TEXTS,
    Variables,
    compiler_environment,
    deciding,
    program_path,
)
from tsm2_tune.tuner.results.trial import in_a_line

SAMPLE = "sample.cu"  # need not exist
# In the output of nvcc --dryrun: lines that set a variable to paths, and lines with flags from nvcc.profile.
_PLACE = re.compile(r"#\$ (?!\w+_FLAGS=)\w+=")
_ADDED = re.compile(r"^#\$ \w+_FLAGS=.*\S", re.MULTILINE)
_PATH = re.compile(r"/[^\s\"]*/|tmpxft_[0-9a-f]+")
VARIABLES = ("CUDA_HOME", "CUDA_PATH")  # each may name a toolkit; the first with an nvcc is used


@dataclass(frozen=True, slots=True)
class Nvcc:
    """The path of nvcc, with the environment variable that led to it."""

    path: str
    named_by: str  # the variable that names its toolkit; "" if nvcc was found without one
    passed_over: tuple[str, ...]  # variables that name a folder without an executable nvcc


def find() -> Nvcc:
    """Return the nvcc of $CUDA_HOME or $CUDA_PATH, else the one on PATH, else the one in /usr/local/cuda.

    Raise ToolMissing if there is no nvcc.
    """
    passed_over: list[str] = []
    for name in filter(os.environ.get, VARIABLES):
        folder = Path(os.environ[name], "bin")
        if shutil.which("nvcc", path=str(folder)):
            return Nvcc(str(folder / "nvcc"), name, tuple(passed_over))
        passed_over.append(name)
    found = program_path("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if found is None:
        places = "$CUDA_HOME/bin, $CUDA_PATH/bin, PATH and /usr/local/cuda/bin"
        raise ToolMissing(f"nvcc not found: looked in {places}; set CUDA_HOME")
    return Nvcc(found, "", tuple(passed_over))


def nvcc_path() -> str:
    """Return the path of nvcc. Raise ToolMissing if it is not found."""
    return find().path


def architecture_flag(compute_capability: tuple[int, int]) -> str:
    """Return nvcc's -arch value for a compute capability, such as "sm_80". For Hopper it is "sm_90a"."""
    major, minor = compute_capability
    return f"sm_{major}{minor}" + ("a" if compute_capability == WITH_WARPGROUP_PRODUCTS else "")


def cuda_toolchain(compute_capability: tuple[int, int]) -> Toolchain:
    """Return the toolchain that compiles CUDA text with nvcc to cubins for this compute capability.

    Raise ToolMissing if nvcc is not found or does not print its version.
    """
    compiler = nvcc_path()
    printed = answer(compiler, "--version")
    release = next((line for line in printed.messages.splitlines() if "release" in line), "").strip()
    if not (printed.is_well and release):
        said = answer(compiler, "--version", errors=True).messages.strip() or "no output"
        raise ToolMissing(f"{compiler} --version fails ({said}): fix the toolkit")
    flags = ("-cubin", f"-arch={architecture_flag(compute_capability)}", "-std=c++17", "-Xptxas", "-v")
    return Toolchain(
        compiler=compiler,
        version=in_a_line(release),
        flags=flags,
        source_suffix=".cu",
        suffix=".cubin",
        extra_digest=_variables_digest(compiler, flags),
        includes=(str(Path(__file__).with_name("nvcc_include")),),
        variables=deciding((*OF_NVCC, *OF_TEXTS)),
        differs=_differences(compiler, flags),
    )


def _differences(compiler: str, flags: tuple[str, ...]) -> str:
    """Return a text that identifies the compiler if it differs from its toolkit's nvcc, such as a wrapper script."""
    said = _dry_run(compiler, flags)
    folder = re.search(r"^#\$ _HERE_=(.+)$", said, re.MULTILINE)
    own = os.path.join(folder[1], "nvcc") if folder else ""
    if not os.path.isfile(own) or script_digest(own):
        return script_digest(compiler)
    found = _commands(said)
    if _ADDED.search(found) or found != _commands(_dry_run(own, flags)):
        return f"[nvcc with other options, SHA-256 {hashlib.sha256(found.encode()).hexdigest()}]"
    return ""


def _variables_digest(compiler: str, flags: tuple[str, ...]) -> str:
    """Return the SHA-256 of the options and headers that the user's environment variables add; "" if none is set.

    The variables' values alone would not show a changed options file or a changed header.
    """
    variables = deciding((*OF_NVCC, *OF_TEXTS))
    if not variables:
        return ""
    found = _commands(_dry_run(compiler, flags, variables))
    if deciding(OF_TEXTS):
        headers = [compiler, *flags[1:], "-E", "-Xcompiler", "-P", "-x", "cu", os.devnull]
        found += asked(headers, limit_seconds=ANSWER_SECONDS, environment=compiler_environment(variables))[0].messages
    return hashlib.sha256(found.encode()).hexdigest()


def _dry_run(compiler: str, flags: tuple[str, ...], variables: Variables = ()) -> str:
    """Return the output of nvcc --dryrun: the commands that nvcc would run with these environment variables."""
    command = [compiler, *flags, "--dryrun", "-o", "/dev/null", SAMPLE]
    ended, _ = asked(command, limit_seconds=ANSWER_SECONDS, environment=compiler_environment(variables))
    return ended.messages


def _commands(said: str) -> str:
    """Return the output of nvcc --dryrun without the paths of this machine."""
    lines = (line for line in said.splitlines() if not _PLACE.match(line))
    return _PATH.sub("", "\n".join(lines))
