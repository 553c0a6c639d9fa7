"""A tuning that is killed, or whose worker is, goes on with nothing lost, doubled, misjudged or left behind.

A few of what `python -m tests.kills` does a hundred times.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from tests import kills
from tests.command import run
from tests.conftest import copy_cache
from tests.kills import Place
from tests.on_host import has_compiler

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(not has_compiler(), reason="no C++ compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
]


@pytest.fixture(scope="module")
def warm(session_cache: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that holds the kernels."""
    folder = tmp_path_factory.mktemp("whole")
    assert run(*kills.TUNE, "--db", str(folder / "results.db")).exit_code == 0
    copy_cache(folder / "cache")
    return folder / "cache"


@pytest.mark.parametrize(("what", "seed", "number"), [("main", 1, 1), ("worker", 3, 2)])
def test_who_is_killed(what: str, seed: int, number: int, warm: Path, tmp_path: Path) -> None:
    """Workers while they time and verify for seconds, so that kernels are running when they are killed."""
    place = Place(tmp_path, warm, "tests.quickly_compiled" if what == "worker" else "tests.quick_command")
    kills.try_once(place, what, random.Random(seed), seconds=0.5, kills=number)
