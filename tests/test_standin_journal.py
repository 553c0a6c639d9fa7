"""The stand-in's journal of any content and without room, and folders that the loader reads otherwise."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.calls import A, B
from tests.command import refused, said
from tests.on_host import IN_C
from tests.standin_calls import FLAGS, TESTS, gemm, play
from tsm2_tune.commands import run as run_command
from tsm2_tune.console.shapes_file import recorded
from tsm2_tune.interpose.build import standin_binary, standin_path, standin_texts
from tsm2_tune.interpose.journal import CALLED_NONE, HEAD, LINE, MAGIC, NOT_LOADED, written_in
from tsm2_tune.interpose.preload import LOADED, Standing

pytestmark = IN_C
RECORD = ("record", "--output", "-", "--")
PROGRAM = f"{sys.executable} -m tests.cublas_program"


# A journal of any content


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


def test_ten_shapes_that_were_left_to_cublas_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    for number in range(9):
        (tmp_path / f"1-{number}").write_bytes(journal(rng))
    written = written_in(tmp_path)
    lost = sum(one.lost > 0 for one in written.seen)
    run_command.print_products(written, 0, has_times=False)
    table = capsys.readouterr().err.split(f"\nleft to cuBLAS, 10 of {lost}:\n")[1]
    assert len(table.splitlines()) == 1 + 10  # beside the heads


@pytest.mark.parametrize("lines", [(1 << 14) + 1, 1 << 31, (1 << 32) - 1])
def test_a_journal_of_more_lines_than_there_can_be_is_left_out(tmp_path: Path, lines: int) -> None:
    content = journal(np.random.default_rng(0))
    content[12:16] = lines.to_bytes(4, "little")
    (tmp_path / "1-a").write_bytes(content)
    (tmp_path / LOADED).touch()  # which is no journal
    written = written_in(tmp_path)
    assert written.missing == (f"1 file in {tmp_path} could not be read as products: left out",)
    assert written.was_loaded


# Programs and their journals


def with_journal(fakes: Path, journal: Path, script: str, steps: Any) -> subprocess.CompletedProcess[str]:
    """A shell's script, in which cuBLAS's calls are written down in that folder."""
    told = Standing(standin_path()).environment(journal) | {"LD_LIBRARY_PATH": str(fakes)}
    given = json.dumps([steps])
    return subprocess.run(
        ["sh", "-c", script], input=given, env=told, capture_output=True, text=True, cwd=TESTS.parent
    )


NO_MOUNT = "no file system can be mounted here"


def can_mount() -> bool:
    return subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode == 0


@pytest.mark.parametrize(("script", "error"), [
    ("ulimit -f 100; {}", "File too large"),
    ("unshare -rm sh -c 'mount -t tmpfs -o size=1m none {folder} && {}'", "No space left on device"),
])  # fmt: skip
def test_a_journal_without_room_leaves_the_program_alone(
    fakes: Path, tmp_path: Path, script: str, error: str
) -> None:
    if "mount" in script and not can_mount():
        pytest.skip(NO_MOUNT)
    done = with_journal(fakes, tmp_path, script.format(PROGRAM, folder=tmp_path), [gemm()] * 3)
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert "are not in the report, because nothing can be written to" in done.stderr
    assert done.stderr.endswith(f"{error}\n")
    assert json.loads(done.stdout)["statuses"] == [[0] * 3]
    assert [file.name for file in tmp_path.iterdir()] == [LOADED]


def test_a_folder_that_is_gone_is_nobodys_loss(fakes: Path, tmp_path: Path) -> None:
    done = with_journal(fakes, tmp_path / "gone", PROGRAM, [gemm()])
    assert (done.returncode, done.stderr) == (0, "")


# Another process was ended while it wrote lines, of which none is whole.
HALF_WRITTEN = """
import ctypes, json, mmap, os, sys
from tests.cublas_program import play
from tsm2_tune.interpose.journal import HEAD, LINE
driver, cublas = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libcublas.so.13")
first, second = json.load(sys.stdin)[0]
play(cublas, driver, [first], [])
name = min(os.listdir(os.environ["TSM2_JOURNAL"]))  # before "loaded"
with open(os.path.join(os.environ["TSM2_JOURNAL"], name), "r+b") as file, mmap.mmap(file.fileno(), 0) as journal:
    for at in range(HEAD.itemsize, len(journal), LINE.itemsize):
        journal[at : at + 4] = (1).to_bytes(4, "little")
print(play(cublas, driver, [second, first], []))
"""


def test_a_line_that_is_never_finished_is_not_awaited(fakes: Path, tmp_path: Path) -> None:
    script = f"exec timeout 60 {sys.executable} -c '{HALF_WRITTEN}'"
    done = with_journal(fakes, tmp_path, script, [gemm(), gemm(m=7)])
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0, 0]\n", "")
    assert written_in(tmp_path).uncounted == (2, 0, 0)


# The child makes a product, and exits as programs do.
FORKS = """
import ctypes, os, sys
from tests.cublas_program import play
from tests.standin_calls import gemm
driver, cublas, step = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libcublas.so.13"), gemm("cublasDgemm_v2")
play(cublas, driver, [step, step], [])
if os.fork() == 0:
    play(cublas, driver, [step], [])
    sys.exit()
sys.exit(os.wait()[1])
"""


def test_a_forked_child_takes_no_times_and_counts_none_twice(fakes: Path, tmp_path: Path) -> None:
    told = Standing(standin_path(), has_times=True).environment(tmp_path) | {"LD_LIBRARY_PATH": str(fakes)}
    subprocess.run([sys.executable, "-c", FORKS], env=told, check=True, timeout=60, cwd=TESTS.parent)
    (one,) = written_in(tmp_path).seen
    assert (one.calls, one.first_us > 0, len(one.cublas_us)) == (3, True, 1)


def test_of_more_shapes_than_are_told_apart_kernels_are_taken_too(fakes: Path, plain: str) -> None:
    """Few places are tried for a line, so that some shapes find none before all are taken."""
    steps = [gemm("cublasDgemm_v2", m=m) for m in range(1, 16501)]
    without = [gemm("cublasDgemm_v2", m=m, transa=1) for m in range(2, 118)]  # for which no kernel is
    mixed = [one for pair in zip(steps[16384:], without, strict=True) for one in pair]
    played = play(fakes, [*steps[:16384], ["fake_reset"], *mixed], pack=Path(plain))  # of all the log has no room
    assert (len(played.launches), len(played.left)) == (116, 116)
    crowded, *others = played.uncounted
    assert (2 * 116 < crowded < 1000, others) == (True, [0, 0])
    assert sum(one.calls for one in played.seen) == 16500 + 116 - crowded


def test_products_before_a_driver_that_is_too_old_are_counted(fakes: Path, plain: str, tmp_path: Path) -> None:
    """It lacks a function of a later one."""
    older = ["cc", *FLAGS, "-DcuCtxGetId=cuCtxLacksIt", "-Wl,-soname,libcuda.so.1", str(TESTS / "fake_cuda.c")]
    subprocess.run([*older, "-o", str(tmp_path / "libcuda.so.1")], check=True)
    shutil.copy(fakes / "libcublas.so.13", tmp_path)
    played = play(tmp_path, [gemm("cublasDgemm_v2")] * 3, pack=Path(plain))
    assert (played.told, played.seen, played.uncounted) == ("", (), (0, 0, 3))
    assert (len(played.left), played.launches) == (3, [])


@pytest.fixture(scope="module")
def of_one_line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stand-in whose journal has one line."""
    texts = standin_texts()
    texts["standin.h"] = texts["standin.h"].replace(b"LINES = 16384", b"LINES = 1")
    built = tmp_path_factory.mktemp("standin") / "standin.so"
    built.write_bytes(standin_binary(texts))
    return built


SQUARE: dict[str, Any] = {"m": 6, "n": 6, "k": 6, "transa": 1}
STRIDED: dict[str, Any] = SQUARE | {"routine": "cublasSgemmStridedBatched", "count": 3}
OTHERS: list[dict[str, Any]] = [
    {"m": 9}, {"n": 4}, {"k": 5, "lda": 6}, {"lda": 7}, {"ldb": 7}, {"ldc": 7}, {"transa": 0, "transb": 1},
    {"transb": 2}, {"B": A}, {"routine": "cublasDgemm_v2"}, {"routine": "cublasSgemmStridedBatched"},
    {"routine": "cublasSgemmStridedBatched", "count": 2}, {"routine": "cublasSgemmBatched", "count": 2},
]  # fmt: skip


@pytest.mark.parametrize(
    ("first", "others"), [(SQUARE, OTHERS), (STRIDED, [{"stride_a": 7}, {"stride_b": 7}, {"stride_c": 7}])]
)
def test_what_meets_in_one_place_of_the_journal_is_told_apart(
    fakes: Path, of_one_line: Path, first: dict[str, Any], others: list[dict[str, Any]]
) -> None:
    """Other products than the first find no place."""
    steps = [gemm(**first), *(gemm(**first | other) for other in others), gemm(**first)]
    played = play(fakes, steps, library=of_one_line)
    assert ([one.calls for one in played.seen], played.uncounted) == ([2], (len(others), 0, 0))


def test_other_products_have_other_lines(fakes: Path) -> None:
    steps = [gemm(**SQUARE), *(gemm(**SQUARE | other) for other in OTHERS), gemm(**SQUARE)]
    played = play(fakes, steps)
    assert sorted(one.calls for one in played.seen) == [*[1] * len(OTHERS), 2]
    assert [(one.shape, one.leading) for one in played.seen if one.is_gram] == [((6, 6, 6), (6, 6, 6))]


def test_a_matrix_and_the_same_one_transposed_are_counted_apart(fakes: Path) -> None:
    same: dict[str, Any] = {"m": 3, "n": 3, "k": 6, "transa": 1, "lda": 6}
    of_others = [{"B": B}, {"B": A, "ldb": 7}, {"B": A, "transa": 0, "k": 3}, {"B": A, "n": 2}]
    played = play(fakes, [gemm(**same | {"B": A}), *(gemm(**same | one) for one in of_others)])
    assert len(played.seen) == 5
    assert [(one.shape, one.leading) for one in played.seen if one.is_gram] == [((3, 3, 6), (6, 6, 3))]


# The loader


def copy_standin(cache: Path) -> None:
    """Copy the built stand-in to the folder, with its report, without which the cache does not find it."""
    built = standin_path()
    shard = cache / built.parent.relative_to(os.environ["XDG_CACHE_HOME"])
    shard.mkdir(parents=True, mode=0o700)
    for file in (built, built.with_suffix(".json")):
        shutil.copy2(file, shard)


class TestLoader:
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
        assert refused(*RECORD, "touch", f"{tmp_path}/ran").startswith("Error: the loader does not preload /")
        assert not (tmp_path / "ran").exists()

    def test_a_cache_on_a_mount_without_execution_is_refused(self, tmp_path: Path) -> None:
        if not can_mount():
            pytest.skip(NO_MOUNT)
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
        said = refused("run", "--library", str(library), "true")
        assert "the loader treats $ in the name of a library as a variable" in said

    def test_a_program_without_the_stand_in_is_told(self, tmp_path: Path) -> None:
        source, program = tmp_path / "program.c", tmp_path / "program"
        source.write_text("int main(void) { return 0; }")
        if subprocess.run(["cc", "-static", source, "-o", program], capture_output=True).returncode:
            pytest.skip("no static C library")
        assert said(*RECORD, str(program)).endswith(f"# no product was seen: {NOT_LOADED}\n")
