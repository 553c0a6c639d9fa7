"""Build the stand-in, the shared object that LD_PRELOAD loads before cuBLAS, or find it in the cache."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path

from tsm2_tune import __version__
from tsm2_tune.errors import InputError
from tsm2_tune.interpose.preload import LOADED, SHELL
from tsm2_tune.runtime.cuda.driver import device_of
from tsm2_tune.tuner.compile import cache
from tsm2_tune.tuner.compile.command_limits import workplace
from tsm2_tune.tuner.compile.environment import OF_LINKERS, OF_TEXTS, deciding
from tsm2_tune.tuner.compile.shared_objects import c_library, c_texts, compiler_command
from tsm2_tune.tuner.results.trial import in_a_line

SOURCES = resources.files("tsm2_tune.interpose") / "c"
LIBRARY, CORE = resources.files("tsm2_tune.tuner") / "export" / "c", resources.files("tsm2_tune") / "core"
# What the stand-in has of the C library and the core: a batch that is one product is recorded as that.
SHARED = ((LIBRARY, ("tsm2.h", "product.h", "product.c")), (CORE, ("core.h", "merge.c")))
LEFT = "the program's products are left to cuBLAS"


def standin_path() -> Path:
    """Return the path of the stand-in's shared object. It is built if it is not in the cache.

    Raise ToolMissing if the C++ compiler is missing. Raise InputError if LD_PRELOAD does not load the file.
    """
    texts = standin_texts()
    path = cached_file(
        digest(
            __version__,
            " ".join(compiler_command()),
            *map(str, deciding((*OF_TEXTS, *OF_LINKERS))),
            *(f"{name}\0{text.decode()}" for name, text in sorted(texts.items())),
        ),
        lambda: standin_binary(texts),
    )
    _refuse_unloadable(path)
    return path


def standin_texts() -> dict[str, bytes]:
    """Return the stand-in's C sources and headers: file name -> text."""
    shared = {name: (folder / name).read_bytes() for folder, names in SHARED for name in names}
    return c_texts(SOURCES) | shared


def standin_binary(texts: Mapping[str, bytes]) -> bytes:
    """Build the stand-in from its C sources and headers. Return its bytes."""
    return c_library(texts, "stand-in", options=("-Wl,-z,defs",), libraries=("-ldl", "-lpthread"))


def _refuse_unloadable(path: Path) -> None:
    """Raise InputError if LD_PRELOAD does not load the file.

    Some paths do not work in LD_PRELOAD: a space or a colon ends a path, and names such as $LIB are expanded.
    """
    with workplace(cache.working_parent()) as work:
        environment = os.environ | {"LD_PRELOAD": str(path), "TSM2_JOURNAL": str(work.folder)}
        shell = subprocess.run([SHELL, "-c", ":"], env=environment, capture_output=True, text=True, errors="replace")
        if (work.folder / LOADED).exists():
            return
    raise InputError(
        f"the loader does not preload {path}: set XDG_CACHE_HOME to a folder with no space, colon or $"
        f" in its name; it says: {in_a_line(shell.stderr) or 'nothing'}"
    )


def gpu_here(tell: Callable[[str], None]) -> tuple[str, str] | None:
    """Return name and compute capability of GPU 0, such as "9.0". Without a GPU, tell so and return None."""
    try:
        device_name, architecture = device_of(0)
    except (RuntimeError, AttributeError) as error:  # AttributeError: an old driver lacks a function
        tell(f"no GPU to use ({error}): {LEFT}")
        return None
    major, minor = divmod(int("".join(filter(str.isdecimal, architecture))), 10)
    return device_name, f"{major}.{minor}"


def digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def cached_file(key: str, make: Callable[[], bytes]) -> Path:
    """Return the path of the cached file with this key. If it is missing, store the bytes that `make` returns."""
    cache.refuse_noexec()
    found = cache.find(key, ".so")
    return found.path if found is not None else cache.keep_content(make(), key, ".so")
