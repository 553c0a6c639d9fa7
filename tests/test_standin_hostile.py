"""Folders that the loader reads otherwise, programs that it does not reach, and journals of any content."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.command import run, said
from tests.on_host import IN_C
from tests.standin_calls import TESTS
from tsm2_tune.commands import run as run_command
from tsm2_tune.console.shapes_file import recorded
from tsm2_tune.interpose.build import standin_path
from tsm2_tune.interpose.journal import CALLED_NONE, HEAD, LINE, MAGIC, NOT_LOADED, written_in
from tsm2_tune.interpose.preload import LOADED

RECORD = ("record", "--output", "-", "--")


def journal(rng: np.random.Generator) -> bytearray:
    """A journal of a few lines, as the stand-in writes them."""
    lines = np.zeros(rng.integers(1, 5), LINE)
    for name in ("m", "n", "k", "lda", "ldb", "ldc", "calls", "taken", "captured", "timed", "gpu_ns", "first_ns"):
        lines[name] = rng.integers(1, 1000, len(lines))
    lines["state"], lines["batches"], lines["sampled"] = 2, 1, rng.integers(0, 6, (len(lines), 2))
    lines["routine"], lines["type"] = rng.integers(0, 8, len(lines)), rng.integers(0, 6, len(lines))
    lines["sample_ns"], lines["left"] = rng.integers(1, 1 << 32, (2, 5)), rng.integers(0, 9, lines["left"].shape)
    head = np.zeros(1, HEAD)
    head["magic"], head["line_bytes"], head["lines"] = MAGIC, LINE.itemsize, len(lines)
    return bytearray(head.tobytes() + lines.tobytes())


def mutated(content: bytearray, rng: np.random.Generator) -> bytes:
    """The journal with numbers in it, often extreme ones, and at times shorter or longer."""
    for _ in range(rng.integers(1, 9)):
        size = int(rng.choice((1, 4, 8)))
        at = int(rng.integers(0, 24 if rng.random() < 0.3 else len(content)) // size * size)
        extreme = rng.choice([0, 1, 1 << 31, (1 << 32) - 1, 0x7FF0 << 48, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
        number = int(extreme) if rng.random() < 0.7 else int.from_bytes(rng.bytes(8), "little")
        content[at : at + size] = (number % (1 << 8 * size)).to_bytes(size, "little")
    end = int(rng.choice([len(content), len(content), int(rng.integers(0, len(content)))]))
    return bytes(content[:end]) + bytes(int(rng.integers(0, 2)) * LINE.itemsize)


@pytest.mark.parametrize("seed", range(4))
def test_a_journal_of_any_content_is_read(tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(seed)
    for turn in range(100):
        folder = tmp_path / str(turn)
        folder.mkdir()
        (folder / "1-a").write_bytes(journal(rng))
        (folder / "1-b").write_bytes(mutated(journal(rng), rng))
        written = written_in(folder)
        assert len(written.seen) >= 1
        assert len(list(recorded(written, ["program"], worth=0.1))) > len(written.seen)
        run_command.print_products(written, 0, has_times=True)
        assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("lines", [(1 << 14) + 1, 1 << 31, (1 << 32) - 1])
def test_a_journal_of_more_lines_than_there_can_be_is_left_out(tmp_path: Path, lines: int) -> None:
    content = journal(np.random.default_rng(0))
    content[12:16] = lines.to_bytes(4, "little")
    (tmp_path / "1-a").write_bytes(content)
    assert written_in(tmp_path).missing == (f"1 file in {tmp_path} could not be read as products: left out",)


def copy_standin(cache: Path) -> None:
    """Copy the built stand-in to the folder, with its report, without which the cache does not find it."""
    built = standin_path()
    shard = cache / built.parent.relative_to(os.environ["XDG_CACHE_HOME"])
    shard.mkdir(parents=True, mode=0o700)
    for file in (built, built.with_suffix(".json")):
        shutil.copy2(file, shard)


class TestLoader:
    pytestmark = IN_C

    @pytest.fixture
    def in_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
        """Has the cache, with the stand-in, in a folder of this name."""

        def move(name: str) -> None:
            copy_standin(tmp_path / name)
            monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))

        return move

    @pytest.mark.parametrize("name", ["a;b", "100%", "a$b", "$", "é", "a,b", "a\nb"])
    def test_a_folder_that_the_loader_takes_as_it_is(self, in_folder: Callable[[str], None], name: str) -> None:
        in_folder(name)
        assert said(*RECORD, "true").endswith(f"# no product was seen: {CALLED_NONE}\n")

    @pytest.mark.parametrize("name", ["a b", "a:b", "$LIB", "$ORIGIN", "${LIB}", "x${ORIGIN}y", "$PLATFORM"])
    def test_a_folder_that_the_loader_reads_otherwise_is_refused(
        self, tmp_path: Path, in_folder: Callable[[str], None], name: str
    ) -> None:
        in_folder(name)
        done = run(*RECORD, "touch", f"{tmp_path}/ran")
        assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert done.stderr.startswith("Error: the loader does not preload /")
        assert not (tmp_path / "ran").exists()

    def test_a_cache_on_a_mount_without_execution_is_refused(self, tmp_path: Path) -> None:
        if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
            pytest.skip("no file system can be mounted here")
        cache = tmp_path / "cache"
        copy_standin(cache)
        script = f'mount --bind {cache} {cache} && mount -o remount,bind,noexec {cache} && exec "$@"'
        record = (sys.executable, "-m", "tsm2_tune", *RECORD, "true")
        done = subprocess.run(
            ["unshare", "-rm", "sh", "-c", script, "sh", *record], env=os.environ | {"XDG_CACHE_HOME": str(cache)},
            capture_output=True, text=True, timeout=120, cwd=TESTS.parent,
        )  # fmt: skip
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "is on a file system that is mounted noexec" in done.stderr

    def test_a_library_whose_name_the_loader_expands_is_refused(self, plain: str, tmp_path: Path) -> None:
        library = tmp_path / "$LIB" / "libtsm2.so"
        library.parent.mkdir()
        shutil.copy2(plain, library)
        done = run("run", "--library", str(library), "true")
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
        assert "the loader treats $ in the name of a library as a variable" in done.stderr

    def test_a_program_without_the_stand_in_is_told(self, tmp_path: Path) -> None:
        source, program = tmp_path / "program.c", tmp_path / "program"
        source.write_text("int main(void) { return 0; }")
        if subprocess.run(["cc", "-static", source, "-o", program], capture_output=True).returncode:
            pytest.skip("no static C library")
        assert said(*RECORD, str(program)).endswith(f"# no product was seen: {NOT_LOADED}\n")


def test_the_sign_of_a_loaded_stand_in_is_no_journal(tmp_path: Path) -> None:
    assert not written_in(tmp_path).was_loaded
    (tmp_path / LOADED).touch()
    assert (written_in(tmp_path).was_loaded, written_in(tmp_path).missing) == (True, ())
