"""The stand-in and the pack that it takes kernels from, as files that a program can load."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from importlib import resources
from pathlib import Path

from tsm2_tune import __version__
from tsm2_tune.errors import InputError
from tsm2_tune.tuner import cache
from tsm2_tune.tuner import export as exports
from tsm2_tune.tuner.export import library
from tsm2_tune.tuner.export.shared import shared_object
from tsm2_tune.tuner.host.toolchain import compiler_command
from tsm2_tune.tuner.processes import workplace
from tsm2_tune.tuner.store import Store

SOURCES = resources.files("tsm2_tune.standin") / "c"
FLAGS = ("-std=c11", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-fno-lto", "-Wall", "-Wextra")
LINKING = ("-nodefaultlibs", "-s", "-Wl,--as-needed", "-Wl,-z,defs", "-Wl,-z,noexecstack")
LIBRARIES = ("-ldl", "-lpthread", "-lm", "-lc", "-lgcc")
SEPARATORS = " :"  # of paths in LD_PRELOAD


def standin_path() -> Path:
    """The stand-in's file, built where it is not in the cache.

    ToolMissing where the C++ compiler is missing; InputError for a folder that LD_PRELOAD cannot name.
    """
    texts = {file.name: file.read_bytes() for file in SOURCES.iterdir() if file.name.endswith((".c", ".h"))}
    texts["tsm2.h"] = (library.SOURCES / "tsm2.h").read_bytes()
    compiler = compiler_command()
    path = _kept(
        _digest(
            __version__, " ".join(compiler), *(f"{name}\0{text.decode()}" for name, text in sorted(texts.items()))
        ),
        lambda: shared_object(texts, lambda folder, output: _command(compiler, folder, output), "stand-in"),
    )
    if any(separator in str(path) for separator in SEPARATORS):
        raise InputError(
            f"{path.parent.parent} has a space or a colon in its name, which LD_PRELOAD takes for the next library:"
            " set XDG_CACHE_HOME to a folder without"
        )
    return path


def _command(compiler: list[str], folder: Path, output: Path) -> list[str]:
    command = [*compiler, *FLAGS, "-I", str(folder), *LINKING, "-o", str(output)]
    for file in sorted(folder.glob("*.c")):
        command += ["-x", "c", str(file)]  # g++ takes -x for the first file behind it alone
    return [*command, "-x", "none", *LIBRARIES]


def pack_path(database: str, tell: Callable[[str], None]) -> Path:
    """The C library of the database's winners and of kernels between them, built where it is not in the cache.

    As `export_library` fails where a compiler is missing, and without winners.
    """
    with Store.open(database, create=False) as store:
        found = hashlib.sha256(__version__.encode())
        for beside in ("", "-wal"):  # what SQLite has not yet put into the file itself
            file = Path(f"{store.path}{beside}")
            if file.is_file():
                found.update(file.read_bytes())

        def made() -> bytes:
            with workplace(cache.working_parent()) as work:
                output = work.folder / "libtsm2.so"
                among = partial(exports.with_between, store, tell)
                exports.export_library(store, str(output), among=among, tell=tell)
                return output.read_bytes()

        return _kept(found.hexdigest(), made)


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def _kept(key: str, make: Callable[[], bytes]) -> Path:
    """The cache's file of this key, made where it is not there."""
    found = cache.find(key, ".so")
    if found is not None:
        return found[0]
    made = make()
    with workplace(cache.working_parent()) as work:
        output = work.folder / "made.so"
        output.write_bytes(made)
        return cache.keep(output, key, ".so", 0)
