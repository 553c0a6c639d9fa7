"""The library that stands in for cuBLAS: what it takes, and what a program notices of it."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.calls import OPS, TYPES, A, B, Call, few, sequences
from tests.cublas_program import WIDE
from tests.kept_objects import kept
from tests.library_calls import InProcess
from tests.library_calls import play as play_library
from tests.lt_calls import MATMUL
from tests.on_host import IN_C
from tests.quick import FOLDER_VARIABLE
from tests.standin_calls import Played, by_reason, gemm, of_the_program, play, ways_to_ask
from tsm2_tune.interpose.build import command, standin_texts
from tsm2_tune.interpose.journal import SLOWER
from tsm2_tune.interpose.preload import Standing
from tsm2_tune.tuner.device.emulator.toolchain import compiler_command

pytestmark = IN_C
TF32_MATH = 3
SPLIT = gemm(m=70, n=9, k=3, transa=1)  # by a kernel that splits k
NOT_CAPTURED = "captured, and the kernel is not loaded, or has no workspace"
Plays = Callable[..., Played]


@pytest.fixture
def played(fakes: Path, pack: Path) -> Plays:
    return lambda *steps, **named: play(fakes, steps, **{"pack": pack} | named)


def on_streams(streams: Iterable[int], step: Any = SPLIT) -> list[Any]:
    return [one for stream in streams for one in (["cublasSetStream_v2", stream], step)]


def workspaces(lines: list[str]) -> list[str]:
    """Addresses of the launches' partial sums, where they have some."""
    return [line.split(" ")[20] for line in lines if set(line.split(" ")[20]) != {"0"}]


def check_launches(there: InProcess, fakes: Path, pack: Path, asked: list[tuple[list[Any], Call]]) -> None:
    """Each step launches what the library launches for its call, on the same stream."""
    own = [step for _, call in asked for step in (("set_stream", call.stream or 0), call)]
    steps = [step for one, call in asked for step in (["cublasSetStream_v2", call.stream or 0], one)]
    expected, played = there(play_library, str(pack), own), play(fakes, steps, pack=pack)
    assert (played.told, played.left, expected.statuses) == ("", [], [0] * len(asked))
    assert played.launches == [line for line in expected.log if line.startswith("launch ")]


def test_each_product_is_launched_as_the_library_launches_it(
    there: InProcess, fakes: Path, library_of_all: Path
) -> None:
    """By each routine of cuBLAS that computes it, and by cublasLtMatmul."""

    @settings(few, max_examples=6)
    @given(sequences(OPS, most=40), st.randoms(use_true_random=True))
    def each_is(calls: list[Call], rng: random.Random) -> None:
        check_launches(there, fakes, library_of_all, [rng.choice(ways_to_ask(call)) for call in calls])

    each_is()


@pytest.mark.parametrize(("ops", "ldb"), [("NN", 0), ("TN", 0), ("CN", 0), ("NT", 5)])
def test_each_way_to_ask_for_a_long_product(
    there: InProcess, fakes: Path, library_of_all: Path, ops: str, ldb: int
) -> None:
    long = 2**33 + 6
    m, k = (long, 3) if ops[0] == "N" else (3, long)
    call = Call("c64", ops, m, 1, k, lda=long + 1, ldb=ldb, alpha=2 - 1j, beta=0.5j)
    asked = ways_to_ask(call)
    wide = [one for one in asked if one[0][0].endswith(WIDE) or one[0][0] == MATMUL]
    assert {step[0] for step, _ in wide} >= {"cublasCgemm_v2_64", "cublasCgemv_v2_64", MATMUL}
    check_launches(there, fakes, library_of_all, wide)


def test_a_context_has_its_kernels_and_workspaces(played: Plays) -> None:
    found = played(*(step for context in (0xC0, 0xC1) * 2 for step in (["fake_context", context], SPLIT)))
    assert len(found.launches) == 4
    assert [sum(line.startswith(word) for line in found.log) for word in ("load ", "allocate ")] == [2, 2 * 2]


def test_of_many_contexts_each_has_a_lane_of_its_own_or_none(played: Plays) -> None:
    found = played(*(step for number in range(70) for step in (["fake_context", 0xC0 + number], gemm())))
    assert (len(found.launches), len(of_the_program(found.left))) == (64, 70 - 64)
    assert by_reason(found) == {}  # without a lane the context has no line


def test_per_thread_streams_differ_and_default_names_agree(fakes: Path, pack: Path) -> None:
    own = [["meet"], ["cublasSetStream_v2", 2], SPLIT, ["meet"]]  # both are there at once
    assert len(set(workspaces(play(fakes, own, own, pack=pack).launches))) == 2
    assert len(set(workspaces(play(fakes, on_streams((0, 1)), pack=pack).launches))) == 1


def test_cublas_may_call_its_own_routines(played: Plays) -> None:
    """Its Sgemm here calls its 64-bit one by name, which is the stand-in's: it is no product of the program's."""
    found = played(["cublasSetMathMode", TF32_MATH], gemm(), gemm())
    assert [line.split()[0] for line in found.left] == ["cublasSgemm_v2", "cublasSgemm_v2_64"] * 2
    assert [one.calls for one in found.seen] == [2]


def test_what_is_captured_has_a_workspace_of_its_own(played: Plays) -> None:
    warm = [*on_streams([5]), gemm(), ["cublasSetStream_v2", 7], ["fake_capture", 7]]
    found = played(*warm, SPLIT, gemm(), SPLIT, gemm("cublasDgemm_v2"), ["fake_capture", 0], SPLIT)
    assert [line.split()[0] for line in found.left] == ["cublasDgemm_v2"]
    assert (by_reason(found), len(found.launches)) == ({NOT_CAPTURED: 1}, 6)
    assert len(set(workspaces(found.launches))) == 4  # of stream 5, of each of the graph's two, and of stream 7
    captured = found.log[found.log.index(found.launches[1]) + 1 : found.log.index(found.launches[-1])]
    assert [line for line in captured if line.startswith("wait")] == [f"wait for {0x5001}"] * 2
    assert sum(line.startswith("zero") and line.endswith(f"on {0x5001}") for line in captured) == 2


def test_graphs_have_a_gibibyte_of_workspaces(played: Plays) -> None:
    """Each allocation counts, and none that was refused: a small one fits after large ones."""
    large = gemm(m=2_000_000, n=9, k=3, transa=1)
    found = played(["fake_memory", 1 << 40], *on_streams([7], large), ["fake_capture", 7], *[large] * 10, SPLIT)
    allocated = [int(line.split()[1]) for line in found.log if line.startswith("allocate ")][2:]
    assert allocated[-1] < allocated[0]
    assert 2**30 - allocated[0] < sum(allocated) <= 2**30
    assert by_reason(found) == {NOT_CAPTURED: 11 - len(allocated)}


def test_threads_have_their_streams(fakes: Path, pack: Path) -> None:
    own = [SPLIT, gemm(), gemm("cublasDgemm_v2")] * 60
    played = play(fakes, *([["cublasSetStream_v2", stream], *own] for stream in range(3, 11)), pack=pack)
    assert (played.told, played.statuses, len(played.launches)) == ("", [[0] * 180] * 8, 8 * 180)
    assert sum(one.calls for one in played.seen) == 8 * 180
    of_streams = [
        set(workspaces([line for line in played.launches if line.split(" ")[8] == str(stream)]))
        for stream in range(3, 11)
    ]
    assert [len(one) for one in of_streams] == [1] * 8
    assert len(set.union(*of_streams)) == 8


def test_of_many_streams_some_share_a_workspace(played: Plays) -> None:
    found = played(*on_streams(range(3, 103)))
    assert [int(line.split(" ")[8]) for line in found.launches] == list(range(3, 103))
    starts = [sum(line.startswith(word) for line in found.log) for word in ("allocate ", "wait for all")]
    assert starts == [2 * 64, 100 - 64]


# A pack that is none


@pytest.mark.parametrize("what", ["missing", "text", "other library", "older"])
def test_a_pack_that_is_none_is_told_once(fakes: Path, tmp_path: Path, what: str) -> None:
    path = tmp_path / "libtsm2.so"
    if what == "text":
        path.write_text("no library")
    elif what != "missing":
        source = tmp_path / "other.c"
        functions = ["interface", "status_text", "last_error", "create", "create_beside", "set_stream", "compare"]
        functions += [f"gemm_{dtype}" for dtype in TYPES]
        older = "".join(f"long tsm2_{name}(void) {{ return {name == 'interface':d}; }}\n" for name in functions)
        source.write_text(older if what == "older" else "int other;")
        subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(path)], check=True)
    played = play(fakes, [gemm(), gemm(), gemm("cublasDgemm_v2")], pack=path)
    assert played.told.startswith("tsm2-tune: all products are left to cuBLAS: ")
    assert (played.told.count("\n"), str(path) in played.told, len(played.left)) == (1, True, 5)
    assert by_reason(played) == {"no library of kernels is loaded": 3}


# The journal


@pytest.fixture(scope="module")
def of_one_line(session_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stand-in whose journal has one line."""
    texts = standin_texts()
    texts["standin.h"] = texts["standin.h"].replace(b"LINES = 16384", b"LINES = 1")
    built = tmp_path_factory.mktemp("standin") / "standin.so"
    built.write_bytes(
        kept(session_folder / "objects", texts, lambda at, to: command(compiler_command(), at, to), "stand-in")
    )
    return built


def test_what_was_seen_stays_however_the_program_ends(fakes: Path, pack: Path) -> None:
    child = [gemm("cublasDgemm_v2")] * 3
    played = play(fakes, [gemm(), ["fork", child], gemm(), ["kill", 9]], pack=pack)
    assert played.status == -9
    assert {one.dtype: (one.calls, one.taken) for one in played.seen} == {"f32": (2, 2), "f64": (3, 3)}


SQUARE: dict[str, Any] = {"m": 6, "n": 6, "k": 6, "transa": 1}
STRIDED: dict[str, Any] = SQUARE | {"routine": "cublasSgemmStridedBatched", "count": 3}


@pytest.mark.parametrize(("first", "others"), [
    (SQUARE, [
        {"m": 9}, {"n": 4}, {"k": 5, "lda": 6}, {"lda": 7}, {"ldb": 7}, {"ldc": 7}, {"transa": 0, "transb": 1},
        {"transb": 2}, {"B": A}, {"routine": "cublasDgemm_v2"}, {"routine": STRIDED["routine"]},
        {"routine": STRIDED["routine"], "count": 2}, {"routine": "cublasSgemmBatched", "count": 2},
    ]),
    (STRIDED, [{"stride_a": 7}, {"stride_b": 7}, {"stride_c": 7}]),
])  # fmt: skip
def test_what_meets_in_one_place_of_the_journal_is_told_apart(
    fakes: Path, of_one_line: Path, first: dict[str, Any], others: list[dict[str, Any]]
) -> None:
    """Other products than the first find no place."""
    steps = [gemm(**first), *(gemm(**first | other) for other in others), gemm(**first)]
    played = play(fakes, steps, library=of_one_line)
    assert ([one.calls for one in played.seen], played.uncounted) == ([2], (len(others), 0, 0))


def test_a_matrix_and_the_same_one_transposed_are_counted_apart(fakes: Path) -> None:
    same: dict[str, Any] = {"m": 3, "n": 3, "k": 6, "transa": 1, "lda": 6}
    of_others = [{"B": B}, {"B": A, "ldb": 7}, {"B": A, "transa": 0, "k": 3}, {"B": A, "n": 2}]
    played = play(fakes, [gemm(**same | {"B": A}), *(gemm(**same | one) for one in of_others)])
    assert len(played.seen) == 5
    assert [(one.shape, one.leading) for one in played.seen if one.is_gram] == [((3, 3, 6), (6, 6, 3))]


def test_times_are_of_what_ran(played: Plays) -> None:
    found = played(*[gemm()] * 20, has_times=True)
    (one,) = found.seen
    assert (one.calls, one.taken, one.gpu_us) == (20, 14, (18, 18_000.0))
    assert one.first_us == 1000.0  # an event is a millisecond later than the one before
    assert one.cublas_us == one.taken_us == (1000.0,) * 5
    assert (by_reason(found), len(found.left)) == ({"timed, to be compared": 6}, 2 * 6)


@pytest.mark.parametrize("stream", [0, 1, 7])
def test_start_up_is_no_gpu_time(fakes: Path, stream: int) -> None:
    """The first call takes the host 92 ms, and each the GPU 3: of a product that comes once, and of another."""
    steps = [["cublasSetStream_v2", stream], gemm("cublasDgemm_v2", n=4), *[gemm("cublasDgemm_v2")] * 10]
    slow = {"FAKE_CUBLAS_STARTS_UP_MS": "92", "FAKE_CUBLAS_MS": "3"}
    played = play(fakes, steps, has_times=True, environment=slow)
    assert [(one.calls, one.total_us) for one in played.seen] == [(10, 30_000), (1, 3000)]


@pytest.mark.parametrize(("kernel_ms", "went_back"), [(2, False), (3, False), (4, True)])
def test_what_loses_in_the_program_goes_back_to_cublas(
    fakes: Path, pack: Path, kernel_ms: int, went_back: bool
) -> None:
    slow = {"FAKE_CUBLAS_MS": "3", "FAKE_KERNEL_MS": str(kernel_ms)}
    right = slow | {"FAKE_CUBLAS_MULTIPLIES": "1", "FAKE_KERNEL_WRITES": "3"}
    steps = [["memory", {"A": [1.0] * 18, "B": [1.0] * 6, "C": [3.0] * 12}], *[gemm("cublasDgemm_v2")] * 40]
    played = play(fakes, steps, pack=pack, has_times=True, environment=right)
    (one,) = played.seen
    assert (one.went_back, one.reason) == (went_back, SLOWER if went_back else "")
    assert (one.cublas_us, one.taken_us) == ((3000.0,) * 5, (kernel_ms * 1000.0,) * 5)
    assert len(played.launches) == one.taken == (40 - 6 if not went_back else 7)
    assert played.results == [[3.0] * 12] * 40
    unmeasured = play(fakes, steps, pack=pack, environment=right)
    assert (len(unmeasured.launches), unmeasured.results) == (40, played.results)


def test_no_times_are_taken_of_what_is_captured(played: Plays) -> None:
    found = played(["cublasSetStream_v2", 7], *[gemm()] * 5, ["fake_capture", 7], *[gemm()] * 9, has_times=True)
    (one,) = found.seen
    assert (one.calls, one.taken, one.captured, one.gpu_us[0]) == (14, 11, 9, 5 - 2)


def test_taking_times_ends_no_capture_on_another_stream(played: Plays) -> None:
    found = played(["fake_capture", 7], *[gemm(), SPLIT] * 9, has_times=True)
    assert {(len(one.cublas_us), one.captured) for one in found.seen} == {(4, 0)}
    assert not any("capture ended" in line for line in found.log)


def test_of_more_products_than_are_waited_for_some_have_no_time(played: Plays) -> None:
    failing = ["fake_fail", "cuEventQuery", 600], *[gemm()] * 700, ["fake_fail", "", 0], *[gemm()] * 9
    (one,) = played(*failing, has_times=True).seen
    assert (one.calls, one.taken, one.gpu_us[0]) == (709, 703, 512 - 2 + 9)


def test_each_context_has_events_of_its_own(played: Plays) -> None:
    steps = [step for turn in range(1200) for step in (["fake_context", 0xC0 + turn % 3], gemm())]
    assert [one.gpu_us[0] for one in played(*steps, has_times=True).seen] == [1200 - 2]


def test_the_environment_is_the_programs_own_besides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TSM2_TIMES", "1")
    monkeypatch.setenv("LD_PRELOAD", "libother.so")
    told = Standing(tmp_path / "standin.so", tmp_path / "pack.so").environment(None)
    assert told["LD_PRELOAD"] == f"{tmp_path}/standin.so:libother.so"
    ours = {name for name in told if name.startswith("TSM2_") and name not in (FOLDER_VARIABLE, "TSM2_TUNE_MACHINE")}
    assert ours == {"TSM2_LIBRARY"}
