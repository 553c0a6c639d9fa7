"""Tampered databases, each read or tuned on with.

`TAMPERED=100 python -m pytest tests/test_tampered.py` makes 100 times
as many.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest

from tests.tampered import Act, case, go_on, read
from tests.tampering import good_database

pytestmark = pytest.mark.usefixtures("no_driver")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("good") / "good.db"
    good_database(path)
    return path.read_bytes()


TIMES = int(os.environ.get("TAMPERED", "1"))


@pytest.mark.parametrize(("act", "count"), [(read, 60), (go_on, 8)])
def test_a_tampered_database_gives_a_result_or_a_sentence(good: bytes, tmp_path: Path, act: Act, count: int) -> None:
    ended = Counter(case(good, tmp_path, seed, act)[1] for seed in range(TIMES * count))
    assert ended["refused"] > 0
    assert ended["read"] + ended["tuned"] > 0


def test_a_good_database_is_read_and_tuned_on_with(good: bytes, tmp_path: Path) -> None:
    path = tmp_path / "good.db"
    path.write_bytes(good)
    assert {read(path, random.Random(seed)) for seed in range(20)} == {"read"}
    assert go_on(path, random.Random(0)) == "tuned"
