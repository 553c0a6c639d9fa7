"""The cache of compiled kernels has a limit, and commands that show and clear it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.command import refused, run
from tests.fake_compilers import binary
from tsm2_tune.tuner.compile import cache
from tsm2_tune.tuner.compile.command_limits import workplace
from tsm2_tune.tuner.compile.compiler import Toolchain, remove_leftovers


def test_what_went_longest_unused_is_evicted(
    binaries_folder: Path, writing_compiler: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [binary(writing_compiler, str(number)) for number in range(10)]
    sizes = {entry.size_bytes for entry in cache.entries()}
    (size,) = sizes
    long_ago = time.time() - 10 * cache.SPARED_SECONDS
    for age, path in enumerate(paths[:9]):
        os.utime(path, (long_ago - age, long_ago - age))
    monkeypatch.setenv("TSM2_TUNE_CACHE_LIMIT", str(10 * size))
    remove_leftovers()
    assert all(path.exists() for path in paths)
    assert binary(writing_compiler, "8") == paths[8]  # the oldest, which is the youngest now
    monkeypatch.setenv("TSM2_TUNE_CACHE_LIMIT", str(5 * size))
    remove_leftovers()
    assert [path.exists() for path in paths] == [True, True, False, False, False, False, False, False, True, True]
    assert sorted({entry.binary for entry in cache.entries()}) == sorted(path for path in paths if path.exists())
    assert len(list(binaries_folder.rglob("*.json"))) == 4
    monkeypatch.setenv("TSM2_TUNE_CACHE_LIMIT", "0")
    remove_leftovers()
    assert [path for path in paths if path.exists()] == [paths[8], paths[9]]  # this run used them


def test_nothing_that_a_link_leads_to_is_evicted_or_cleared(
    binaries_folder: Path, writing_compiler: Toolchain, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "thesis.txt").write_text("years of work")
    os.utime(elsewhere / "thesis.txt", (0, 0))
    binary(writing_compiler)
    taken = {path.name for path in binaries_folder.iterdir()}
    free = next(f"{number:02x}" for number in range(256) if f"{number:02x}" not in taken)
    (binaries_folder / free).symlink_to(elsewhere)
    monkeypatch.setenv("TSM2_TUNE_CACHE_LIMIT", "1")
    remove_leftovers()
    assert json.loads(run("cache", "show", "--json").output)["entries"] == 1
    assert run("cache", "clear").exit_code == 0
    assert (elsewhere / "thesis.txt").exists()


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("", 2**31), ("17", 17), ("3K", 3072), ("500m", 500 * 2**20)]
    + [(wrong, None) for wrong in ("much", "-1", "1.5G", "1e3", "9" * 40, "٣")],
)
def test_a_limit_is_told_as_a_size(
    text: str, size_bytes: int | None, binaries_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TSM2_TUNE_CACHE_LIMIT", text)
    if size_bytes is not None:
        assert json.loads(run("cache", "show", "--json").output)["limit_bytes"] == size_bytes
    else:
        assert "TSM2_TUNE_CACHE_LIMIT is " in refused("cache", "show")


def test_the_cache_can_be_shown_and_cleared(binaries_folder: Path, writing_compiler: Toolchain) -> None:
    empty = json.loads(run("cache", "show", "--json").output)
    assert (empty["entries"], empty["bytes"], empty["oldest_use"]) == (0, 0, None)
    path = binary(writing_compiler)
    (binaries_folder / f"{'ab' * 32}.so").touch()
    size_bytes = path.stat().st_size + path.with_suffix(".json").stat().st_size
    shown = json.loads(run("cache", "show", "--json").output)
    assert (shown["folder"], shown["entries"], shown["bytes"]) == (str(binaries_folder), 1, size_bytes)
    assert shown["oldest_use"] == shown["newest_use"]
    assert f"bytes: {size_bytes}\n" in run("cache", "show").output
    with workplace(cache.working_parent()) as work:
        result = run("cache", "clear")
        assert result.output == (
            f"removed 1 compiled kernels, {size_bytes} bytes; 1 working folders are in use, and were kept\n"
        )
        assert work.folder.is_dir()
    assert [one.name for one in binaries_folder.iterdir()] == ["working"]
    assert binary(writing_compiler) == path
