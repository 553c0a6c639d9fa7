"""The compiled launcher that an exported module may hold."""

from __future__ import annotations

import sysconfig
from importlib import resources
from pathlib import Path

from tsm2_tune.errors import ToolMissing
from tsm2_tune.tuner.export.shared import shared_object
from tsm2_tune.tuner.host.toolchain import compiler_command

SOURCES = resources.files("tsm2_tune.tuner.export") / "launcher"
FLAGS = ("-std=c11", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-fno-lto", "-Wall", "-Wextra")
# Python's functions are the interpreter's, which loads it; of libraries it needs C's alone.
LINKING = ("-nodefaultlibs", "-s", "-Wl,--as-needed", "-Wl,-z,noexecstack")
LIBRARIES = ("-lm", "-lc", "-lgcc")


def launcher_binary() -> bytes:
    """The launcher, for this machine and CPython from 3.11 on. ToolMissing where what builds it is missing."""
    headers = Path(sysconfig.get_path("include"))
    compiler = compiler_command()
    if not (headers / "Python.h").is_file():
        raise ToolMissing(
            f"no Python.h in {headers}: install Python's development files (python3-dev) or export without --launcher"
        )
    texts = {file.name: file.read_bytes() for file in SOURCES.iterdir() if file.name.endswith((".c", ".h"))}
    sources = sorted(name for name in texts if name.endswith(".c"))

    def command(folder: Path, output: Path) -> list[str]:
        line = [*compiler, *FLAGS, "-isystem", str(headers), "-I", str(folder), *LINKING, "-o", str(output)]
        for name in sources:
            line += ["-x", "c", str(folder / name)]  # g++ takes -x for the first file behind it alone
        return [*line, "-x", "none", *LIBRARIES]

    return shared_object(texts, command, "launcher")
