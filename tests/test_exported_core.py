"""The core in an exported module: loaded from memory, built from its text, or missing."""

from __future__ import annotations

import copy
import errno
import hashlib
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.fabricated import GPU, device_array, exported, imported, trial, tuning_run, winners
from tests.on_host import IN_C
from tests.recording_driver import recording
from tests.standing_in import Disk
from tsm2_tune.errors import InputError, ToolMissing
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.compile import core_library

pytestmark = IN_C


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    problem = Problem(512, 8, 256, "f32")
    return exported("module", winners(tmp_path_factory.mktemp("winners"), (tuning_run(), trial(problem=problem))))


@pytest.fixture
def module(text: str, tmp_path: Path) -> Any:
    """Return a module of one winner, for 512x8x256, whose core is not loaded yet."""
    return imported(text, tmp_path)


@pytest.fixture
def no_compiler(module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module.CORE = None
    monkeypatch.setenv("PATH", str(tmp_path))


def chosen(module: Any) -> Any:
    return module.match(512, 8, 300, "f32", GPU)


def test_a_match_can_be_copied_pickled_and_hashed(module: Any) -> None:
    module.built_core = None  # the compiled core is loaded from memory
    found = chosen(module)
    assert (found.is_tuned, hash(copy.copy(found))) == (False, hash(found))
    for again in (copy.copy(found), copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert (again.grid, str(again)) == (found.grid, str(found))
        assert str(again.timed(9.0, 20.0)).endswith("with the L2 dirty 9.0 us, the vendor 20.0 us")


def test_without_a_compiler_tuned_shapes_alone_have_kernels(module: Any, no_compiler: None) -> None:
    with pytest.warns(RuntimeWarning, match=r"tuned shapes only, .* there is no C compiler"):
        found = module.match(512, 8, 256, "f32", GPU)
    assert found.is_tuned
    assert str(found) == f"{found.winner.config}: tuned for this shape"
    said = "no kernel was tuned for 512x8x300 f32, and times cannot be predicted here"
    with pytest.raises(LookupError, match=said):
        chosen(module)
    with pytest.raises(LookupError, match="no kernel was tuned for"):  # on another GPU
        module.match(512, 8, 256, "f32", "another GPU")
    recording(module)
    arrays = [device_array(shape, at=at << 40) for at, shape in enumerate(((512, 256), (256, 8), (512, 8)), start=1)]
    assert module.choice(*arrays).is_tuned
    assert module.contenders(module.Product.of(*arrays), GPU)[0].is_tuned


def test_a_compiler_that_fails_is_named(module: Any, no_compiler: None, tmp_path: Path) -> None:
    """Its own files are in the folder of the text, which is not named."""
    failing = tmp_path / "cc"
    failing.write_text('#!/bin/sh\necho no space in "$TMPDIR"/ >&2\nexit 1\n')
    failing.chmod(0o755)
    with pytest.warns(RuntimeWarning, match=rf"{failing} does not compile it \(status 1\): no space in /\)"):
        assert module.module_core() is None


@pytest.mark.parametrize("name", ["CORE", "PACK"])
def test_data_that_does_not_match_its_digest_is_not_used(module: Any, name: str) -> None:
    *place, _, data = getattr(module, name)
    setattr(module, name, (*place, "0" * 64, data))
    with pytest.raises(RuntimeError, match="does not match its digest: export this module again"):
        chosen(module)


def test_for_another_platform_its_text_is_compiled(module: Any) -> None:
    module.CORE = ("linux-another", *module.CORE[1:])
    with ThreadPoolExecutor(4) as threads:  # each may compile it
        assert not any(threads.map(lambda _: chosen(module).is_tuned, range(4)))
    assert module.module_core() is module.module_core()


def test_without_a_descriptor_the_next_call_tries_again(module: Any) -> None:
    file = module.memory_file
    module.memory_file = Mock(side_effect=OSError(errno.EMFILE, "Too many open files"))
    with pytest.raises(OSError, match="Too many open files"):
        chosen(module)
    module.memory_file = file
    assert not chosen(module).is_tuned


def test_a_library_in_memory_is_known_by_its_content(module: Any) -> None:
    first, again, other = (module.memory_file("name", data) for data in (b"one", b"one", b"other"))
    assert first.rpartition("/")[0] == again.rpartition("/")[0] != other.rpartition("/")[0]
    assert Path(first).read_bytes() == b"one"
    for device in ("\ud800", f"{GPU}\0x"):  # odd names are those of other devices
        assert module.match(512, 8, 256, "f32", device).other_device == device


def test_a_cached_core_that_does_not_load_is_built_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, disk: Disk
) -> None:
    plain = core_library.core_binary()
    monkeypatch.setenv("CXX", "g++ -ffast-math")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    core_library._loaded.cache_clear()
    assert core_library.core_binary() == plain
    (kept,) = tmp_path.rglob("*.so")
    report = kept.with_suffix(".json")
    kept.write_bytes(b"of another machine")
    facts = json.loads(report.read_text()) | {"sha256": hashlib.sha256(kept.read_bytes()).hexdigest()}
    report.write_text(json.dumps(facts))
    core_library._loaded.cache_clear()
    assert core_library.core_binary() == plain
    assert kept.read_bytes() == plain
    core_library._loaded.cache_clear()
    kept.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissing, match="install a C compiler"):
        core_library.core_binary()
    (killed := tmp_path / "cc").write_text("#!/bin/sh\nkill -KILL $$\n")
    killed.chmod(0o755)
    with pytest.raises(
        ToolMissing, match=f"^{killed} does not build the core: it was killed by SIGKILL; find out what"
    ):
        core_library.core_binary()
    killed.unlink()
    disk(tmp_path, f_bavail=0)
    with pytest.raises(InputError, match=rf"with 0\.0 MiB left on the disk of {tmp_path}/.*: free some space"):
        core_library.core_binary()
