"""Tests of the compiled launcher: which one a module loads, and how the module carries it."""

from __future__ import annotations

import ast
import hashlib
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

from tests.databases import database_of
from tests.fabricated import imported, module_of, trial
from tsm2_tune.cli import main
from tsm2_tune.errors import ToolMissing
from tsm2_tune.tuner.export.launcher_build import launcher_binary
from tsm2_tune.tuner.export.module import packed as packed_lines

pytestmark = [pytest.mark.host, pytest.mark.usefixtures("toolchain", "session_cache")]


@pytest.fixture(scope="module")
def binary(session_cache: None) -> bytes:
    return launcher_binary()


@pytest.fixture
def compiled(binary: bytes, tmp_path: Path) -> ModuleType:
    """A module with the launcher."""
    return module_of(tmp_path, trial(), launcher=binary)


def loaded(module: Any, kept: tuple[str, str, str] | None) -> Any:
    module.LAUNCHER = kept
    module.launcher.cache_clear()
    try:
        return module.launcher()
    finally:
        module.launcher.cache_clear()


def packed(binary: bytes) -> tuple[str, str]:
    return hashlib.sha256(binary).hexdigest(), ast.literal_eval("\n".join(packed_lines(binary)))


def test_one_that_does_not_match_its_digest_is_not_loaded(
    compiled: ModuleType, binary: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, digest, data = compiled.LAUNCHER
    assert loaded(compiled, (place, digest, data)) is not None
    changed = packed(binary[:-1] + bytes([binary[-1] ^ 1]))[1]
    for wrong in ((digest, changed), ("0" * 64, data), (digest, data[:100]), (digest, "~")):
        with pytest.raises(RuntimeError, match="the compiled launcher does not match its digest: export this module"):
            loaded(compiled, (place, *wrong))


def test_one_that_is_not_for_this_python_is_left_alone(compiled: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    place, *rest = compiled.LAUNCHER
    assert loaded(compiled, None) is None
    assert loaded(compiled, ("linux-other", *rest)) is None
    assert loaded(compiled, (place, *packed(b"no shared object"))) is None
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: int(name == "Py_GIL_DISABLED"))
    assert loaded(compiled, (place, *rest)) is None


# Making the launcher


def database(folder: Path) -> str:
    return database_of(folder / "results.db", trial())


def export(folder: Path, *arguments: str) -> Any:
    output = str(folder / "best_kernels.py")
    command = ["export", "--db", database(folder), "--no-binaries", "--output", output, *arguments]
    return CliRunner().invoke(main, command)


def test_export_puts_it_into_the_module(tmp_path: Path) -> None:
    done = export(tmp_path, "--format", "module", "--launcher")
    assert done.exit_code == 0, done.output
    assert {file.name for file in tmp_path.iterdir()} == {"results.db", "best_kernels.py"}
    module = imported((tmp_path / "best_kernels.py").read_text(), tmp_path)
    assert module.launcher().__name__ == "tsm2_launcher"


@pytest.mark.parametrize("form", ["csv", "library"])
def test_it_is_of_a_module(tmp_path: Path, form: str) -> None:
    command = ["export", "--db", database(tmp_path), "--output", "-", "--format", form, "--launcher"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 2
    assert f"--launcher is only for a module: leave it out with --format {form}" in done.output


def test_what_builds_it_may_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tsm2_tune.tuner.export.launcher_build.sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(ToolMissing, match=r"^no Python\.h in .*: install Python's development files"):
        launcher_binary()
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ToolMissing, match="C\\+\\+ compiler 'no-such-compiler' not found"):
        launcher_binary()
