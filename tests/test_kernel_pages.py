"""The page of each kernel: as its declaration has it now, with commands that work."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from tests.command import run
from tests.modules import loaded

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    """docs/kernels.py."""
    return loaded(DOCS / "kernels.py")


def test_the_pages_are_as_they_would_be_drawn_now(kernels: ModuleType) -> None:
    drawn = kernels.pages()
    assert {path.name for path in (DOCS / "kernels").iterdir()} == set(drawn)
    for name, text in drawn.items():
        assert (DOCS / "kernels" / name).read_text(encoding="utf-8") == text, "run python docs/kernels.py"


@pytest.mark.parametrize("page", [path.name for path in sorted((DOCS / "kernels").glob("[!R]*.md"))])
def test_the_commands_of_a_page_print_kernels(page: str) -> None:
    text = (DOCS / "kernels" / page).read_text(encoding="utf-8")
    commands = re.findall(r"^tsm2-tune (source .*)$", text, re.MULTILINE)
    assert len(commands) == text.count("\n## ")
    for command in commands:
        result = run(*shlex.split(command))
        assert result.exit_code == 0, result.output
        assert "__global__" in result.output
