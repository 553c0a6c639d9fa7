"""Compilers for kernels that run once: compiling them takes longer than they run. What runs them is made before."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

from tests.kept_objects import digest_of, keep
from tsm2_tune.tuner.compile.compiler import Toolchain, cache_folder
from tsm2_tune.tuner.device.emulator import toolchain as emulator_toolchain
from tsm2_tune.tuner.device.emulator.preprocess import host_text
from tsm2_tune.tuner.device.emulator.toolchain import HEADERS, host_toolchain

FOLDER_VARIABLE = "TSM2_TUNE_TEST_HEADERS"  # where compiled headers are kept, if not in the cache
OBJECT = "emulation.o"
GOLD = "-fuse-ld=gold"
# The emulation is in an object, but where races are watched: that is of the text, too.
HEADER = """#ifndef TSM2_HOST_RACES
#define TSM2_HOST_LINKED
#endif
#include "{}/cuda_on_host.h"
"""
AS_OBJECT = ("-O2", "-DTSM2_HOST_LINKED", "-c", "-x", "c++")
# Kernels need neither, so that they are linked without the C++ compiler's libraries.
PLAIN = ("-fno-exceptions", "-fno-threadsafe-statics")
Answers = tuple[str, tuple[str, ...], str, str]  # of a compiler, as the emulator's toolchain asks it
C_ALONE = ("-nodefaultlibs", "-Wl,-z,defs", "-lm", "-lc", "-lgcc")


@dataclass(frozen=True, slots=True)
class Linking(Toolchain):
    """A compiler that links an object, and whose binaries are the same wherever that is."""

    @property
    def digest(self) -> str:
        facts = {one.name: getattr(self, one.name) for one in fields(Toolchain)}
        return Toolchain(**facts | {"libraries": ()}).digest


def quick_toolchain(toolchain: Toolchain, level: str = "-O1") -> Toolchain:
    """The host's compiler with little optimisation, our header compiled before, and a quick linker where one is."""
    for quick in variants(toolchain, level):
        header = header_of(quick)
        if header.exists() or is_made(header, quick):
            return with_header(quick, header)
    return quick


def is_made(header: Path, toolchain: Toolchain) -> bool:
    """Return whether the compiler can make a library and the header, which one process makes and others wait for."""
    folder = header.parent.parent
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "making").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        return header.exists() or (links(toolchain) and is_compiled(header, toolchain))


def keep_answers(setattr: Callable[[object, str, object], None]) -> None:
    """Have what the host's compiler answers read from the folder of headers, if a process of this test run asked."""
    if FOLDER_VARIABLE in os.environ:
        folder, ask = Path(os.environ[FOLDER_VARIABLE]), emulator_toolchain._answers
        setattr(emulator_toolchain, "_answers", partial(kept_answers, folder, ask))


def kept_answers(folder: Path, ask: Callable[..., Answers], *facts: object) -> Answers:
    """Return what `ask` returns for the facts, and keep it in the folder for other processes."""
    place = folder / f"answers-{digest_of(HEADERS, *facts)}.json"
    if not place.exists():
        keep(place, json.dumps(ask(*facts)).encode())
    version, taken, made, differs = json.loads(place.read_text())
    return version, tuple(taken), made, differs


def quick_host_toolchain() -> Toolchain:
    """The host's compiler as `quick_toolchain` has it where that was made already, else as a user has it."""
    toolchain = host_toolchain()
    if FOLDER_VARIABLE in os.environ:
        for quick in variants(toolchain, "-O1"):
            if header_of(quick).exists():
                return with_header(quick, header_of(quick))
    return toolchain


def variants(toolchain: Toolchain, level: str) -> tuple[Toolchain, Toolchain]:
    """With a quick linker, and with the usual one."""
    plain = replace(toolchain, flags=(*(level if flag == "-O3" else flag for flag in toolchain.flags), *PLAIN))
    return replace(plain, flags=(*plain.flags, GOLD)), plain


def links(toolchain: Toolchain) -> bool:
    """Return whether the compiler can link a library: a linker may be there that lacks what it needs."""
    with tempfile.TemporaryDirectory() as work:
        source = Path(work, "empty.cpp")
        source.write_text("#include <string>\nstd::string empty() { return {}; }\n")
        command = [toolchain.compiler, *toolchain.flags, "-o", str(Path(work, "empty.so")), str(source)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def header_of(toolchain: Toolchain) -> Path:
    """The header that includes ours, beside what this compiler made of it."""
    key = hashlib.sha256(f"{toolchain.digest} {HEADER} {HEADERS}".encode()).hexdigest()
    named = os.environ.get(FOLDER_VARIABLE)
    return (Path(named) if named else cache_folder()) / f"header-{key}" / "header.h"


def with_header(toolchain: Toolchain, header: Path) -> Toolchain:
    """The compiler, whose binaries are the same whichever header it is given."""
    given = {one.name: getattr(toolchain, one.name) for one in fields(toolchain)}
    made = {"wrap": partial(_after, str(header)), "libraries": (str(header.with_name(OBJECT)), *C_ALONE)}
    return Linking(**given | made)


def _after(header: str, text: str) -> str:
    """The text for the host after the header; a function that another process knows, too."""
    return f'#include "{header}"\n#line 1\n{host_text(text)}'


def is_compiled(header: Path, toolchain: Toolchain) -> bool:
    """Compile the header and the object beside it, and return whether the compiler could."""
    folder = header.parent
    work = Path(tempfile.mkdtemp(dir=folder.parent))
    source = work / header.name
    source.write_text(HEADER.format(HEADERS))
    flags = [flag for flag in toolchain.flags if flag not in ("-shared", GOLD)]
    header_made = ["-x", "c++-header", "-o", f"{source}.gch", str(source)]
    object_made = [*AS_OBJECT, "-o", str(work / OBJECT), str(HEADERS / "emulation.h")]
    commands = ([toolchain.compiler, *flags, *made] for made in (header_made, object_made))
    try:
        if all(subprocess.run(command, capture_output=True, check=False).returncode == 0 for command in commands):
            with suppress(OSError):  # another process was quicker
                work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return header.exists()
