"""Compilers for kernels that run once: compiling them takes longer than they run."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tsm2_tune.tuner.compiler import Toolchain, cache_folder
from tsm2_tune.tuner.host.toolchain import HEADERS


def quick_toolchain(toolchain: Toolchain, level: str = "-O1") -> Toolchain:
    """The host's compiler with little optimisation, our header compiled before, and a quick linker where one is."""
    linker = ("-fuse-ld=gold",) if shutil.which("ld.gold") and links(toolchain, "-fuse-ld=gold") else ()
    flags = tuple(level if flag == "-O3" else flag for flag in toolchain.flags)
    quick = replace(toolchain, flags=(*flags, *linker))
    header = compiled_header(quick)
    return quick if header is None else replace(quick, flags=(*quick.flags, "-include", str(header)))


def links(toolchain: Toolchain, flag: str) -> bool:
    """Whether the compiler makes a library with this flag: a linker may be there that does not find what it needs."""
    with tempfile.TemporaryDirectory() as work:
        source = Path(work, "empty.cpp")
        source.write_text("#include <string>\nstd::string empty() { return {}; }\n")
        command = [toolchain.compiler, *toolchain.flags, flag, "-o", str(Path(work, "empty.so")), str(source)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def compiled_header(toolchain: Toolchain) -> Path | None:
    """A header that includes ours, beside what the compiler made of it; None where it makes nothing of headers."""
    key = hashlib.sha256(f"{toolchain.digest} {HEADERS}".encode()).hexdigest()
    folder = cache_folder() / f"header-{key}"
    if not folder.exists():
        work = Path(tempfile.mkdtemp(dir=cache_folder()))
        header = work / "header.h"
        header.write_text(f'#include "{HEADERS}/cuda_on_host.h"\n')
        command = [toolchain.compiler, *toolchain.flags, "-x", "c++-header", "-o", f"{header}.gch", str(header)]
        try:
            if subprocess.run(command, capture_output=True, check=False).returncode != 0:
                return None
            with suppress(OSError):  # another process was quicker
                work.rename(folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return folder / "header.h"
