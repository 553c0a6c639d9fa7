"""The C files and the CUDA headers of a folder build on one another without circles of includes or calls."""

import re
from collections.abc import Iterable
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import tsm2_tune

PACKAGE = Path(tsm2_tune.__file__).parent
CORE, LIBRARY, LAUNCHER = PACKAGE / "core", PACKAGE / "tuner/export/c", PACKAGE / "tuner/export/launcher"
PROGRAMS = {
    "core": [CORE],
    "library": [CORE, LIBRARY],
    "launcher": [CORE, LAUNCHER],
    "stand-in": [PACKAGE / "interpose/c"],
    "kernels": [PACKAGE / "kernels", PACKAGE / "kernels/mma"],
    "emulator": [PACKAGE / "tuner/device/emulator/include"],
}
OF_HEADERS = "kernels", "emulator"
COMMENT_OR_STRING = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.DOTALL)
INCLUDED = re.compile(r'^\s*#\s*include "([^"]+)"', re.MULTILINE)
# A definition begins a line, and a body follows its head.
DEFINED = re.compile(r"^(static )?\w[\w *\n]*?\b(\w+)\([^;{}#]*\)\s*\{", re.MULTILINE)
CALLED = re.compile(r"(?<![.>\w])(\w+)\(")


def files_of(folders: Iterable[Path]) -> dict[str, str]:
    """Return the texts of the C and CUDA files by their names."""
    return {
        path.name: path.read_text(encoding="utf-8")
        for folder in folders
        for path in folder.iterdir()
        if path.suffix in (".c", ".h", ".cuh")
    }


def includes(texts: dict[str, str]) -> dict[str, set[str]]:
    return {
        name: {one.rpartition("/")[2] for one in INCLUDED.findall(text)} & {*texts} for name, text in texts.items()
    }


def calls(texts: dict[str, str]) -> dict[str, set[str]]:
    """Return, for each C file, the C files that define the functions which it calls."""
    codes = {name: COMMENT_OR_STRING.sub("", text) for name, text in texts.items() if name.endswith(".c")}
    defined = {name: DEFINED.findall(code) for name, code in codes.items()}
    home = {function: name for name, found in defined.items() for static, function in found if not static}
    own = {name: {function for _, function in found} for name, found in defined.items()}
    return {
        name: {home[one] for one in CALLED.findall(code) if one in home and one not in own[name]}
        for name, code in codes.items()
    }


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_file_includes_or_calls_itself_through_others(program: str) -> None:
    texts = files_of(PROGRAMS[program])
    for needs in (includes(texts), calls(texts)):
        TopologicalSorter(needs).prepare()
    assert any(includes(texts).values())
    assert any(calls(texts).values()) == (program not in OF_HEADERS)
