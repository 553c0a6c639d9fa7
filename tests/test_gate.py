"""The gate of templates: other instructions are told, other names and comments are not."""

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


@needs_nvcc
def test_changed_machine_code_is_told(tmp_path: Path, session_cache: None, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tmp_path / "before.jsonl.xz"
    said = CliRunner().invoke(gate.main, ["record", "--only", NAME, "--output", str(before)])
    assert (said.exit_code, said.output) == (0, f"wrote {before}: 1 kernels\n")

    def compared(edit: Callable[[str], str], *options: str) -> tuple[int, list[str]]:
        """Return the status and the lines of a comparison with kernels whose text is edited."""

        def edited(problem: Problem, config: KernelConfig) -> KernelSource:
            source = render(problem, config)
            return replace(source, text=edit(source.text))

        with monkeypatch.context() as patch:
            patch.setattr(gate, "render", edited)
            said = CliRunner().invoke(gate.main, ["compare", str(before), *options])
        return said.exit_code, said.output.splitlines()

    same = "1 of 1 kernels are the same"
    assert compared(str, "--family", "tsm2,ism2") == (0, [f"{same}, 1 of them by the letter"])
    assert compared(str, "--family", "tsm2") == (0, ["0 of 0 kernels are the same, 0 of them by the letter"])
    renamed = compared(lambda text: f"// new\n{text.replace('alpha', 'alpha_')}")
    assert renamed == (0, [f"{same}, 0 of them by the letter"])
    status, lines = compared(lambda text: text.replace("beta *", "beta + ", 1))
    assert (status, lines[-1]) == (1, "0 of 1 kernels are the same, 0 of them by the letter")
    assert lines[0].startswith(f"{LINE}: ")
    content = lzma.decompress(before.read_bytes()).decode()
    before.write_bytes(lzma.compress(content.replace(NAME, f"{NAME}.5").encode()))
    assert compared(str) == (1, [f"{NAME}.5 181x5x67:f64: gone", lines[-1]])
    monkeypatch.setattr(gate, "compiler", lambda: ["nvcc 99"])
    status, lines = compared(str)
    assert (status, lines[0].endswith(", here is nvcc 99: install that")) == (2, True)
