"""Commands of a database that are killed in the middle."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import db_killed
from tests.processes import python

POINTS = 12


@pytest.mark.usefixtures("session_cache")
def test_after_a_kill_the_database_is_as_before_or_as_after(tmp_path: Path) -> None:
    found = python("-m", db_killed.__name__, tmp_path, POINTS, cwd=Path(__file__).parents[1])
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.splitlines() == [f"{name}: killed {POINTS} times" for name in ("vacuum", "migrate", "merge")]
