"""Compilation of an exported module's launcher, a CPython extension in C that chooses and launches kernels."""

from __future__ import annotations

import sysconfig
from importlib import resources
from pathlib import Path

from tsm2_tune.errors import ToolMissing
from tsm2_tune.tuner.compile.core_library import core_texts
from tsm2_tune.tuner.compile.shared_objects import as_c, c_texts, shared_object
from tsm2_tune.tuner.device.emulator.toolchain import compiler_command
from tsm2_tune.tuner.export.library import EXACT

SOURCES = resources.files("tsm2_tune.tuner.export") / "launcher"
FLAGS = ("-std=c11", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-fno-lto", "-Wall", "-Wextra", EXACT)
# The launcher is linked only with the C library: the running interpreter provides Python's functions.
LINKING = ("-nodefaultlibs", "-s", "-Wl,--as-needed", "-Wl,-z,noexecstack")
LIBRARIES = ("-lm", "-lc", "-lgcc")


def launcher_binary() -> bytes:
    """Compile the launcher. Return the bytes of the shared object.

    It runs on this machine with CPython 3.11 or later. Raise ToolMissing if a C compiler or Python.h is missing.
    """
    headers = Path(sysconfig.get_path("include"))
    compiler = compiler_command()
    if not (headers / "Python.h").is_file():
        raise ToolMissing(
            f"no Python.h in {headers}: install Python's development files (python3-dev) or export without --launcher"
        )
    texts = {**core_texts(), **c_texts(SOURCES)}
    sources = sorted(name for name in texts if name.endswith(".c"))

    def command(folder: Path, output: Path) -> list[str]:
        line = [*compiler, *FLAGS, "-isystem", str(headers), "-I", str(folder), *LINKING, "-o", str(output)]
        return [*line, *as_c(folder / name for name in sources), *LIBRARIES]

    return shared_object(texts, command, "launcher")
