"""What makes stored trials stale, and that no time is stored of a text that was not tried."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.fabricated import plain_sql
from tests.on_host import has_compiler
from tsm2_tune.generator.families import FAMILIES, tsmr
from tsm2_tune.generator.families.tsm2 import Tsm2Config
from tsm2_tune.generator.families.tsmr import TsmrConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import environment, render
from tsm2_tune.tuner.basis import needed_modules, referenced_templates
from tsm2_tune.tuner.past import Contender, Past, finalists

PROBLEM = Problem(200, 2, 300, "f32")
TSMR, TSM2 = TsmrConfig(64, 1, 2, 4, 2, splits=3, row_tiles=1, min_blocks=1), Tsm2Config("v2", 32, 2, 4)
PACKAGE = Path(__file__).parents[1] / "tsm2_tune"


def imported(module: str) -> set[str]:
    """The generator's modules that this one's own statements import, those within its functions left out."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    found = set[str]()
    for statement in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.ImportFrom):
            assert statement.level == 0, f"{module}: write the whole name of what is imported"
            found.add(statement.module or "")
        elif isinstance(statement, ast.Import):
            found |= {alias.name for alias in statement.names}
    return {name for name in found if name.startswith("tsm2_tune.generator")}


def test_a_change_of_any_template_that_a_family_uses_makes_its_trials_stale() -> None:
    used = referenced_templates(environment(), FAMILIES["tsmr"].template)
    parts = {"parts.cu.jinja", "numbers.cu.jinja", "splits.cu.jinja"}
    assert used == {"tsmr.cu.jinja", "streaming.cu.jinja", *parts}


@pytest.mark.parametrize("family", FAMILIES)
def test_and_one_of_any_python_that_it_needs(family: str) -> None:
    own = f"tsm2_tune.generator.families.{family}"
    assert type(FAMILIES[family]).__module__ == own
    expected, unread = set[str](), [own]
    while unread:
        module = unread.pop()
        if module not in expected:
            expected.add(module)
            unread.extend(imported(module))
    assert needed_modules(own) == expected
    assert "tsm2_tune.generator.config" in expected


@pytest.mark.host
@pytest.mark.usefixtures("session_cache")
@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")
def test_a_changed_constant_makes_trials_stale_and_they_are_tried_again(tmp_path: Path) -> None:
    tree, path = tmp_path / "tree", tmp_path / "results.db"
    shutil.copytree(PACKAGE, tree / "tsm2_tune")
    command = [sys.executable, "-m", "tests.quick_command", "--device", "cpu", "--shapes", "40x2x70"]
    command += ["--family", "tsmr", "--max-trials", "1", "--db", str(path)]

    def tune() -> str:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tree), *sys.path])}
        return subprocess.run(command, cwd=tree, env=environment, check=True, capture_output=True, text=True).stdout

    assert "(1 new trial;" in tune()
    assert "(0 new trials" in tune()
    changed = tree / "tsm2_tune" / "generator" / "families" / "tsmr.py"
    changed.write_text(changed.read_text().replace("TILE_DEPTH = 64 ", "TILE_DEPTH = 32 "))
    assert "(1 new trial;" in tune()
    kept = "SELECT count(*), count(DISTINCT config), count(DISTINCT basis), count(DISTINCT source_digest) FROM trial"
    assert plain_sql(path, kept) == [(2, 1, 2, 2)]
    assert plain_sql(path, "SELECT trial_id > 1, stale FROM best") == [(1, 0)]


def test_who_would_have_another_text_today_is_in_no_final(monkeypatch: pytest.MonkeyPatch) -> None:
    contenders = tuple(
        Contender(config, median_us, source_digest=render(PROBLEM, config).digest)
        for config, median_us in ((TSMR, 100.0), (TSM2, 101.0))
    )
    past = Past(frozenset(), 0.0, contenders, frozenset())
    assert [one.config for one, _ in finalists(PROBLEM, past)] == [TSMR, TSM2]
    assert [source.digest for _, source in finalists(PROBLEM, past)] == [one.source_digest for one in contenders]
    monkeypatch.setattr(tsmr, "TILE_DEPTH", 32)
    assert [one.config for one, _ in finalists(PROBLEM, past)] == [TSM2]
