"""The core as a shared library: built at first use, and kept in the cache of compiled kernels."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import platform
from contextlib import suppress
from importlib import resources
from pathlib import Path

from tsm2_tune.errors import ToolMissing
from tsm2_tune.runtime.choice.core import CORE_FLAGS, CORE_SECONDS, core_command, loaded_core, platform_name
from tsm2_tune.tuner.compile import cache
from tsm2_tune.tuner.compile.failure_cause import Interrupted, refuse_full_disk
from tsm2_tune.tuner.compile.shared_objects import c_texts, shared_object

SUFFIX = ".so"


def core_texts() -> dict[str, bytes]:
    """Return the core's C sources and headers: file name -> text."""
    return c_texts(resources.files("tsm2_tune") / "core")


def core_binary() -> bytes:
    """Return the core as a shared library for this machine. Raise the errors of `core_library`."""
    return _loaded()[0]


def core_library() -> ctypes.CDLL:
    """Load the core into this process: from the cache, or else compiled and kept there.

    Raise ToolMissing if there is no C compiler or the library does not load, InputError if the cache cannot be used.
    """
    return _loaded()[1]


@functools.cache
def _loaded() -> tuple[bytes, ctypes.CDLL]:
    texts = {name: text.decode() for name, text in core_texts().items()}
    about = json.dumps([platform_name(), platform.libc_ver(), CORE_FLAGS, texts])
    key = hashlib.sha256(about.encode()).hexdigest()
    found = cache.find(key, SUFFIX)
    if found is not None:
        binary = found.content
        try:
            return binary, loaded_core(binary)
        except OSError:  # made by another machine that shares the cache
            found.path.unlink()
    parent = cache.working_parent()
    try:
        core_command((), "")  # without a compiler it raises OSError, which would blame the folder
        binary = shared_object(core_texts(), _command, "core", limit_seconds=CORE_SECONDS)
        library = loaded_core(binary)
        with suppress(FileNotFoundError):  # the cache was removed just now
            cache.keep_content(binary, key, SUFFIX)
    except Interrupted:
        raise
    except (OSError, ToolMissing) as error:
        refuse_full_disk(parent)
        raise ToolMissing(f"the C code that predicts times does not load ({error}): install a C compiler") from None
    return binary, library


def _command(folder: Path, output: Path) -> list[str]:
    sources = [str(folder / name) for name in core_texts() if name.endswith(".c")]
    return core_command(sources, str(output))
