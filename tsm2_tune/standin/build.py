"""The stand-in and the pack that it takes kernels from, as files that a program can load."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

from tsm2_tune import __version__
from tsm2_tune.errors import InputError, ToolMissing
from tsm2_tune.pretuned import PREFIX, Pretuned, for_card
from tsm2_tune.runtime.driver import device_of
from tsm2_tune.tuner import cache
from tsm2_tune.tuner import export as exports
from tsm2_tune.tuner.addresses import is_address
from tsm2_tune.tuner.export import library
from tsm2_tune.tuner.export.shared import shared_object
from tsm2_tune.tuner.host.toolchain import compiler_command
from tsm2_tune.tuner.importing.files import opened
from tsm2_tune.tuner.nvcc import nvcc_path
from tsm2_tune.tuner.processes import workplace
from tsm2_tune.tuner.store import Store
from tsm2_tune.tuner.stored import BestRow

SOURCES = resources.files("tsm2_tune.standin") / "c"
FLAGS = ("-std=c11", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-fno-lto", "-Wall", "-Wextra")
LINKING = ("-nodefaultlibs", "-s", "-Wl,--as-needed", "-Wl,-z,defs", "-Wl,-z,noexecstack")
LIBRARIES = ("-ldl", "-lpthread", "-lm", "-lc", "-lgcc")
SEPARATORS = " :"  # of paths in LD_PRELOAD
LEFT = "the program's products are left to cuBLAS"
Among = Callable[[Sequence[BestRow]], Sequence[BestRow]]


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


def pack_path(database: str, tell: Callable[[str], None]) -> Path | None:
    """The C library of the database's winners and of kernels between them, built where it is not in the cache; None,
    which is told, where no GPU is here.

    Of those that were verified in full: that others are left out is told, as imported ones are. InputError where none
    is of a GPU, ToolMissing without compiler.
    """
    if database and not is_address(database) and not os.path.exists(database):
        raise InputError(
            f"no database {database}: tune first, name another with --db, or take the kernels that the package brings"
            " with --pretuned"
        )
    if gpu_here(tell) is None:
        return None
    with Store.open(database, create=False) as store:
        return _kept(_digest(__version__, store.database.digest()), lambda: _pack(store, tell))


def _pack(store: Store, tell: Callable[[str], None]) -> bytes:
    """The library of the store's winners on GPUs that were verified in full. InputError where there are none."""
    if not any(row.compute_capability and row.verified_in_full for row in store.best()):
        raise InputError(
            f"{store.path} has no winner of a GPU that was verified in full: tune there, or name --pretuned or"
            " --library"
        )
    tell(f"making a library of the kernels in {store.path}, the first time only")

    def verified(rows: Sequence[BestRow]) -> list[BestRow]:
        return exports.with_between(store, tell, exports.verified_in_full(rows, tell))

    return _library(store, verified, tell)


def pretuned_path(tell: Callable[[str], None]) -> Path | None:
    """The C library of the kernels that the package brings for GPU 0, of those that were verified in full, built
    where it is not in the cache; None, which is told, where there are none, or what builds it is missing.

    A GPU that was not measured borrows those of one of the same compute capability, which is told.
    """
    gpu = gpu_here(tell)
    if gpu is None:
        return None
    device_name, compute_capability = gpu
    found = for_card(device_name, compute_capability)
    if found is None:
        tell(f"no kernels are pretuned for {device_name}, nor for another GPU of compute capability"
             f" {compute_capability}: {LEFT}")  # fmt: skip
        return None
    if found.device_name != device_name:
        tell(f"{device_name} borrows kernels that were measured on {found.device_name}: tune here for its own")
    key = _digest(__version__, PREFIX, found.file.read_text(encoding="utf-8"))
    try:
        return _kept(key, lambda: _pretuned(found, tell))
    except (InputError, ToolMissing) as error:
        tell(f"{error}: {LEFT}")
        return None


def gpu_here(tell: Callable[[str], None]) -> tuple[str, str] | None:
    """The name and the compute capability of GPU 0; None, which is told, where there is none."""
    try:
        device_name, architecture = device_of(0)
    except (RuntimeError, AttributeError) as error:  # the latter of a driver that lacks a function
        tell(f"no GPU to use ({error}): {LEFT}")
        return None
    major, minor = divmod(int("".join(filter(str.isdecimal, architecture))), 10)
    return device_name, f"{major}.{minor}"


def _pretuned(text: Pretuned, tell: Callable[[str], None]) -> bytes:
    """The library of the text's kernels. InputError where none is verified in full, ToolMissing without compiler."""
    if not text.is_verified():
        raise InputError(f"no kernel that was measured on {text.device_name} is verified in full yet")
    compiler_command()
    nvcc_path()
    with text.path() as path, opened(path) as (database, left_out):
        store = Store(database)
        if left_out:
            tell(f"left out: {len(left_out)} pretuned configurations, of which this tsm2-tune makes other kernels")

        def verified(rows: Sequence[BestRow]) -> list[BestRow]:
            found = [row for row in rows if row.verified_in_full]
            if count := len(rows) - len(found):
                tell(f"left out: {count} pretuned kernel{'s' if count > 1 else ''}, not verified in full")
            if found:
                tell(f"compiling what was measured on {text.device_name}, the first time only")
            return exports.with_between(store, tell, found)

        return _library(store, verified, tell)


def _library(store: Store, among: Among, tell: Callable[[str], None]) -> bytes:
    """The C library of the store's winners that are chosen, and of what is added to them."""
    with workplace(cache.working_parent()) as work:
        output = work.folder / "libtsm2.so"
        exports.export_library(store, str(output), among=among, tell=tell)
        return output.read_bytes()


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
