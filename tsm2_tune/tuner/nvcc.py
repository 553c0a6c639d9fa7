"""nvcc as a toolchain: where it is, and how it makes a cubin."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tsm2_tune.errors import ToolMissing
from tsm2_tune.generator.tensor_cores import WITH_WARPGROUP_PRODUCTS
from tsm2_tune.tuner.compiler import Toolchain, answer
from tsm2_tune.tuner.trial import in_a_line


def nvcc_path() -> str:
    """The compiler; ToolMissing where it is neither under $CUDA_HOME nor on PATH."""
    homes = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    for home in homes:
        if shutil.which("nvcc", path=str(Path(home, "bin"))):
            return str(Path(home, "bin", "nvcc"))
    found = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if found is None:
        places = "$CUDA_HOME/bin, $CUDA_PATH/bin, PATH and /usr/local/cuda/bin"
        raise ToolMissing(f"nvcc not found: looked in {places}; set CUDA_HOME")
    return found


def architecture_flag(compute_capability: tuple[int, int]) -> str:
    """nvcc's name of an architecture, with Hopper's instructions for groups of warps, which no other has."""
    major, minor = compute_capability
    return f"sm_{major}{minor}" + ("a" if compute_capability == WITH_WARPGROUP_PRODUCTS else "")


def cuda_toolchain(compute_capability: tuple[int, int]) -> Toolchain:
    """nvcc to cubin for one architecture."""
    compiler = nvcc_path()
    told = answer(compiler, "--version")
    release = next((line for line in told.messages.splitlines() if "release" in line), "").strip()
    if not (told.is_well and release):
        said = answer(compiler, "--version", errors=True).messages.strip() or "no output"
        raise ToolMissing(f"{compiler} --version fails ({said}): mend the toolkit")
    return Toolchain(
        compiler=compiler,
        version=in_a_line(release),
        flags=("-cubin", f"-arch={architecture_flag(compute_capability)}", "-std=c++17", "-Xptxas", "-v"),
        source_suffix=".cu",
        suffix=".cubin",
        extra_digest="",
        includes=(str(Path(__file__).with_name("nvcc_include")),),
    )
