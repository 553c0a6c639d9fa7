"""The core as a shared library: built at first use, and kept in the cache of compiled kernels."""

from __future__ import annotations

import ctypes
import hashlib
import json
from functools import cache
from importlib import resources
from pathlib import Path

from tsm2_tune.errors import ToolMissing
from tsm2_tune.runtime.choice.core import CORE_FLAGS, memory_file
from tsm2_tune.tuner.compile import cache as binaries
from tsm2_tune.tuner.compile.command_limits import workplace
from tsm2_tune.tuner.compile.shared_objects import as_c, c_texts, shared_object
from tsm2_tune.tuner.device.emulator.toolchain import compiler_command

SUFFIX = ".so"


def core_texts() -> dict[str, bytes]:
    """Return the core's C sources and headers: file name -> text."""
    return c_texts(resources.files("tsm2_tune") / "core")


def core_binary() -> bytes:
    """Return the core as a shared library for this machine: from the cache, or else compiled and kept there.

    Raise ToolMissing if there is no C compiler, InputError if the cache cannot be used.
    """
    texts, compiler = core_texts(), compiler_command()
    about = json.dumps([compiler, CORE_FLAGS, {name: text.decode() for name, text in texts.items()}])
    key = hashlib.sha256(about.encode()).hexdigest()
    found = binaries.find(key, SUFFIX)
    if found is not None:
        return found[0].read_bytes()

    def command(folder: Path, output: Path) -> list[str]:
        sources = [folder / name for name in sorted(texts) if name.endswith(".c")]
        return [*compiler, *CORE_FLAGS, "-o", str(output), *as_c(sources), "-lm"]

    binary = shared_object(texts, command, "core")
    with workplace(binaries.working_parent()) as work:
        output = work.folder / "core"
        output.write_bytes(binary)
        binaries.keep(output, key, SUFFIX, 0)
    return binary


@cache
def core_library() -> ctypes.CDLL:
    """Load the core into this process. Raise the errors of `core_binary`, and ToolMissing if it does not load."""
    try:
        return ctypes.CDLL(memory_file("tsm2_core", core_binary()))
    except OSError as error:
        raise ToolMissing(f"the compiled core does not load: {error}") from None
