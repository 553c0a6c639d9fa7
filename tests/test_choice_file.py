"""The file of choices found with measure=True: read by later processes, written by several, and not trusted."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.fabricated import exported, trial, tuning_run, winners
from tests.modules import OUT, A, B, loaded, recorded


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Any]:
    """Makes fresh copies of one exported module, as processes have them."""
    path = tmp_path_factory.mktemp("module") / "kernels.py"
    path.write_text(exported("module", winners(path.parent, (tuning_run(), trial()))), encoding="utf-8")

    def process() -> Any:
        best: Any = recorded(loaded(path))
        best.driver.free_bytes = 1 << 30  # for what is written between timings
        return best

    return process


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "choices.json"


def is_timed(best: Any) -> bool:
    """Return whether the module times a product, which fills the L2 first."""
    best.driver.calls.clear()
    assert best.gemm(A, B, out=OUT, measure=True) is OUT
    return any(call.startswith("fill") for call in best.driver.calls)


def test_the_next_process_times_nothing(new: Callable[[], Any], file: Path) -> None:
    first, second, without = new(), new(), new()
    first.remember(file)
    assert is_timed(first)
    second.remember(str(file))
    assert not is_timed(second)
    assert second.driver.launches
    (found,) = second.decided.values()
    assert found.is_timed
    assert found.expected_us == next(iter(first.decided.values())).expected_us
    assert is_timed(without)
    assert len(file.read_text().splitlines()) == 1
    second.remember(None)
    second.decided.clear()
    assert is_timed(second)


def test_what_was_found_elsewhere_is_told_and_not_used(new: Callable[[], Any], file: Path) -> None:
    first = new()
    first.remember(file)
    is_timed(first)
    for name, value in (("IDENTITY", "another"), ("driver_version", lambda: "580.1 13000")):
        other = new()
        setattr(other, name, value)
        other.remember(file)
        with pytest.warns(RuntimeWarning, match="its choices are for another module, GPU or driver and are not used"):
            assert is_timed(other)
    again = new()
    again.remember(file)
    assert not is_timed(again)
    assert len(file.read_text().splitlines()) == 3


LINE = json.dumps(["owner", "product", [[0, 128, 1, False], 2.0, None]])
NO_CHOICES = (
    "{", "[" * 100_000, "null", "[1, 2, 3]", '["a", "b", [[0, 1, 1, false], 1e999, null]]', "\0\0",
    '["a", "b", [[0, 1, 1, false], -1.0, null]]', '["a", "b", [3, 1.0, null]]', '["a", "b", [null, 1.0]]', "\ufffd",
    LINE[:-9],  # the end of the file is missing
)  # fmt: skip


def test_lines_that_are_no_choices_are_left_out(new: Callable[[], Any], file: Path) -> None:
    file.write_text("\n".join(NO_CHOICES))
    for is_first in (True, False):
        best = new()
        with pytest.warns(RuntimeWarning, match=f"{len(NO_CHOICES)} lines are not choices"):
            best.remember(file)
        assert is_timed(best) == is_first


def test_a_launch_that_this_module_has_not_is_not_started(new: Callable[[], Any], file: Path) -> None:
    first = new()
    first.remember(file)
    is_timed(first)
    owner, named, (_, *times) = json.loads(file.read_text())
    for way in ([9, 128, 1, False], [0, 64, 1, False], [0, 128, 7, False], [-1, 128, 1, True]):
        second = new()
        file.write_text(json.dumps([owner, named, [way, *times]]) + "\n")
        second.remember(file)
        assert is_timed(second)


def test_a_file_of_another_kind_is_refused(new: Callable[[], Any], tmp_path: Path) -> None:
    best = new()
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as large:
        large.truncate((64 << 20) + 1)
    for name in ("pipe", "large"):
        with pytest.raises(ValueError, match="expected a regular file of at most 64 MiB"):
            best.remember(tmp_path / name)
    for wrong, error in ((tmp_path, IsADirectoryError), (3, TypeError)):
        with pytest.raises(error):
            best.remember(wrong)


def test_two_at_once_lose_nothing(new: Callable[[], Any], file: Path) -> None:
    several = [new() for _ in range(4)]
    product = several[0].Product.of(A, B, OUT)
    for best in several:
        best.remember(file)

    def add(number: int) -> None:
        best = several[number % len(several)]
        best.keep_choice(product, (0, number), "GPU", best.Vendor(""))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add, range(400)))
    last = new()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        last.remember(file)
    assert len(last._chosen_file[0].choices) == 400


def test_a_file_that_cannot_be_written_any_more_is_told(new: Callable[[], Any], file: Path) -> None:
    best = new()
    best.remember(file)
    file.unlink()
    file.mkdir()
    with pytest.warns(RuntimeWarning, match="a choice cannot be saved"):
        assert is_timed(best)
