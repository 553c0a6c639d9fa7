"""The templates and the device headers: how they are put together, and that headers are ordinary C++."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import tsm2_tune
from tests.cases import SOURCES
from tsm2_tune.generator.families.published import Tsm2Config
from tsm2_tune.generator.headers import header, with_headers
from tsm2_tune.generator.render import render
from tsm2_tune.generator.space.tunables import Constants
from tsm2_tune.tuner.compile.compiler import Toolchain

PACKAGE = Path(tsm2_tune.__file__).parent
FOLDER = PACKAGE / "templates"
TEMPLATES = {str(path.relative_to(FOLDER)): path.read_text() for path in FOLDER.rglob("*.cu.jinja")}
HEADERS = sorted(str(path.relative_to(PACKAGE / "kernels")) for path in (PACKAGE / "kernels").rglob("*.cuh"))
EXTENDS = re.compile(r'{% extends "([^"]+)" %}')


def test_a_template_extends_one_that_extends_none() -> None:
    parents = {name: found[1] for name, text in TEMPLATES.items() if (found := EXTENDS.search(text))}
    assert parents
    assert set(parents.values()).isdisjoint(parents)


def test_a_constant_is_printed_once_where_a_template_first_asks_for_it() -> None:
    constants = Constants.of(Tsm2Config, {"version": "v3", "threads": 128, "columns": 8, "prefetch": 0})
    columns = "constexpr int columns = 8;  // t2: columns of C that one thread accumulates in registers"
    assert constants("columns") == columns
    assert constants().startswith("constexpr int threads = 128;  // t1: threads of a block")
    assert constants() == ""
    with pytest.raises(KeyError):
        constants("columns")


def test_a_header_stands_once_in_a_text_behind_those_that_it_needs() -> None:
    text = with_headers('int a;\n#include "split_k.cuh"\nint b;\n#include "vector.cuh"\nint c;\n')
    places = [text.index(header(name)) for name in ("atomics.cuh", "vector.cuh", "split_k.cuh")]
    assert places == sorted(places)
    assert [text.count(header(name)) for name in ("atomics.cuh", "vector.cuh", "split_k.cuh")] == [1, 1, 1]
    assert text.index("int a;") < places[0] < text.index("int b;") < text.index("int c;")
    assert "#include" not in text


def test_every_header_is_in_a_kernel() -> None:
    texts = "".join(render(problem, config).text for config, problem in SOURCES)
    assert [name for name in HEADERS if header(name) not in texts] == ["fma_chains.cuh"]  # of the tuner's own kernels


@pytest.mark.host
@pytest.mark.parametrize("name", HEADERS)
def test_a_header_stands_alone(name: str, toolchain: Toolchain, tmp_path: Path) -> None:
    """With what it includes, as an editor opens it: here before the host's compiler."""
    text = tmp_path / "alone.cpp"
    text.write_text(toolchain.wrap(with_headers(f'#include "{name}"\n')))
    command = [toolchain.compiler, "-std=c++17", "-fsyntax-only", "-Wno-unknown-pragmas", str(text)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
