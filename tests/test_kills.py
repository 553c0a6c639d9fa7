"""A tuning that is killed, or whose worker is, goes on with nothing lost, doubled, misjudged or left behind.

A few of what `python -m tests.kills` does a hundred times.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from tests import kills
from tests.on_host import has_compiler

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(not has_compiler(), reason="no C++ compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
]


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A cache that holds the kernels, and how long a tuning takes with it."""
    folder = tmp_path_factory.mktemp("whole")
    return folder / "cache", kills.whole(folder)


@pytest.mark.parametrize(
    ("what", "seed", "number"), [("main", 1, 1), ("main", 2, 1), ("worker", 1, 1), ("worker", 2, 3)]
)
def test_who_is_killed(what: str, seed: int, number: int, warm: tuple[Path, float], tmp_path: Path) -> None:
    cache, seconds = warm
    kills.try_once(tmp_path, what, cache, random.Random(seed), seconds=0.3 * seconds, kills=number)
