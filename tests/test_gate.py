"""The gate of templates: what changes a kernel's code is told, and what changes its text alone is not."""

from __future__ import annotations

import lzma
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import gate
from tests.on_host import needs_nvcc
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families import FAMILIES, parse_config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.source import KernelSource

pytestmark = pytest.mark.slow

NAME = "ism2:optimisation=1,threads=32,columns=2,prefetch=4,row_tiles=2"
LINE = f"{NAME} 181x5x67:f64"


def test_every_kernel_is_one_that_this_version_makes() -> None:
    found = gate.subjects()
    configs = [parse_config(spelt) for spelt, _ in found]
    assert None not in configs
    assert {config.family for config in configs if config} == set(FAMILIES)
    assert len(found) == len(set(found)) > 900


@pytest.fixture
def before(tmp_path: Path, session_cache: None) -> Path:
    """Record one kernel, and return the file."""
    path = tmp_path / "before.jsonl.xz"
    said = CliRunner().invoke(gate.main, ["record", "--only", NAME, "--output", str(path)])
    assert (said.exit_code, said.output) == (0, f"wrote {path}: 1 kernels\n")
    return path


def compared(before: Path, monkeypatch: pytest.MonkeyPatch, edit: Callable[[str], str]) -> tuple[int, list[str]]:
    """The status and the lines of a comparison with kernels whose text is edited."""

    def edited(problem: Problem, config: KernelConfig) -> KernelSource:
        source = render(problem, config)
        return replace(source, text=edit(source.text))

    monkeypatch.setattr(gate, "render", edited)
    said = CliRunner().invoke(gate.main, ["compare", str(before)])
    return said.exit_code, said.output.splitlines()


@needs_nvcc
@pytest.mark.parametrize(
    ("edit", "by_the_letter"), [(str, 1), (lambda text: f"// new\n{text.replace('alpha', 'alpha_')}", 0)]
)
def test_comments_and_names_may_change(
    before: Path, monkeypatch: pytest.MonkeyPatch, edit: Callable[[str], str], by_the_letter: int
) -> None:
    status, lines = compared(before, monkeypatch, edit)
    assert (status, lines) == (0, [f"1 of 1 kernels are the same, {by_the_letter} of them by the letter"])


@needs_nvcc
def test_the_families_that_are_asked_for_are_compared(before: Path) -> None:
    for family, said in (
        ("tsm2", "0 of 0 kernels"),
        ("stream_a_fma,ism2", "1 of 1 kernels"),
        ("tsm9", "unknown family"),
    ):
        assert said in CliRunner().invoke(gate.main, ["compare", str(before), "--family", family]).output


@needs_nvcc
def test_other_instructions_compilers_and_missing_configurations_are_told(
    before: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, lines = compared(before, monkeypatch, lambda text: text.replace("beta *", "beta + ", 1))
    assert status == 1
    assert lines[0].startswith(f"{LINE}: ")
    assert lines[-1] == "0 of 1 kernels are the same, 0 of them by the letter"
    with lzma.open(before, "rt") as file:
        text = file.read()
    with lzma.open(before, "wt") as file:
        file.write(text.replace(NAME, f"{NAME}.5"))
    status, lines = compared(before, monkeypatch, str)
    assert (status, lines[0]) == (1, f"{NAME}.5 181x5x67:f64: gone")
    monkeypatch.setattr(gate, "compiler", lambda: ["nvcc 99"])
    said = CliRunner().invoke(gate.main, ["compare", str(before)])
    assert (said.exit_code, said.output.endswith(", here is nvcc 99: install that\n")) == (2, True)
