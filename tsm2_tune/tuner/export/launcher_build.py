"""Compilation of an exported module's launcher, a CPython extension in C that chooses and launches kernels."""

from __future__ import annotations

import sysconfig
from importlib import resources
from pathlib import Path

from tsm2_tune.errors import ToolMissing
from tsm2_tune.generator.problem import ELEMENT_TYPES
from tsm2_tune.tuner.compile.shared_objects import as_c, c_texts, shared_object
from tsm2_tune.tuner.device.emulator.toolchain import compiler_command
from tsm2_tune.tuner.export import library
from tsm2_tune.tuner.export.library import EXACT, PACK, Winners, pack_text
from tsm2_tune.tuner.export.measured_times import NOTHING_KNOWN, Known

SOURCES = resources.files("tsm2_tune.tuner.export") / "launcher"
OF_THE_LIBRARY = ("choose.c", "predict.c", "product.c")  # sources shared with the C library: the choice of a kernel
FLAGS = ("-std=c11", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-fno-lto", "-Wall", "-Wextra", EXACT)
# The launcher is linked only with the C library: the running interpreter provides Python's functions.
LINKING = ("-nodefaultlibs", "-s", "-Wl,--as-needed", "-Wl,-z,noexecstack")
LIBRARIES = ("-lm", "-lc", "-lgcc")


def launcher_binary(winners: Winners = (), known: Known = NOTHING_KNOWN) -> bytes:
    """Compile the launcher that chooses among these winners. Return the bytes of the shared object.

    It runs on this machine with CPython 3.11 or later. Raise ToolMissing if a C compiler or Python.h is missing.
    """
    headers = Path(sysconfig.get_path("include"))
    compiler = compiler_command()
    if not (headers / "Python.h").is_file():
        raise ToolMissing(
            f"no Python.h in {headers}: install Python's development files (python3-dev) or export without --launcher"
        )
    texts = c_texts(SOURCES)
    for file in library.SOURCES.iterdir():
        if file.name in OF_THE_LIBRARY or file.name.endswith(".h"):
            texts[file.name] = file.read_bytes()
    usable = [(row, source) for row, source in winners if row.compute_capability and row.dtype in ELEMENT_TYPES]
    texts[PACK] = pack_text(usable, None, known).encode()
    sources = sorted(name for name in texts if name.endswith(".c"))

    def command(folder: Path, output: Path) -> list[str]:
        line = [*compiler, *FLAGS, "-isystem", str(headers), "-I", str(folder), *LINKING, "-o", str(output)]
        return [*line, *as_c(folder / name for name in sources), *LIBRARIES]

    return shared_object(texts, command, "launcher")
