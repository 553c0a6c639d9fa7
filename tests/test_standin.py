"""The library that stands in for cuBLAS: what it takes and what it leaves, and what the program notices of it."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.calls import OPS, TYPES, A, B, C, Call, few, sequences
from tests.cublas_program import WIDE
from tests.fabricated import vendor_measurement, winners
from tests.library_calls import InProcess, fabricated_library, library_of, tried
from tests.library_calls import play as play_library
from tests.lt_calls import MATMUL, NO_KERNEL, WRONG
from tests.on_host import IN_C
from tests.quick import FOLDER_VARIABLE
from tests.standin_calls import (
    ROUTINES,
    ZERO,
    Played,
    by_reason,
    gemm,
    of_the_program,
    play,
    random_calls,
    ways_to_ask,
    without_copies,
    without_factors,
)
from tsm2_tune.generator.problem import Problem
from tsm2_tune.interpose.journal import SLOWER
from tsm2_tune.interpose.preload import Standing

pytestmark = IN_C
TENSOR_OP_MATH, TF32_MATH, BF16X9_MATH, FP64_EMULATED_MATH = 1, 3, 4, 8
SPLIT = gemm(m=70, n=9, k=3, transa=1)  # by a kernel that splits k
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


# Which products a kernel computes, and why cuBLAS computes the others


def test_each_call_is_taken_or_left_and_none_is_both(fakes: Path, pack: Path) -> None:
    """Without a pack, and with one, cuBLAS gets its calls as they are and in their order."""
    calls = random_calls(4000, 2)
    steps = [["cublasSetStream_v2", 77], *calls[:2000], ["cublasSetMathMode", TF32_MATH], *calls[2000:]]
    alone, passed_on, found = (play(fakes, steps, **named) for named in ({"standin": False}, {}, {"pack": pack}))
    assert (passed_on.told, passed_on.statuses, passed_on.launches) == ("", alone.statuses, [])
    assert without_factors(passed_on.left) == without_factors(alone.left)
    assert {line.split()[0] for line in passed_on.left} == set(ROUTINES)
    left = without_copies(found.left)
    assert (found.told, len(found.launches) + len(of_the_program(left))) == ("", 4000)
    assert len(of_the_program(alone.left)) == 4000
    assert sum(one.taken for one in found.seen) == len(found.launches) > 150
    assert all(one.calls == one.taken + sum(one.left) for one in found.seen)
    rest = iter(without_factors(alone.left))
    assert all(line in rest for line in without_factors(left))  # in their order


def batch(**changes: Any) -> list[Any]:
    plain: dict[str, Any] = {"count": 2, "stride_a": 0, "stride_b": 6, "stride_c": 12}
    return gemm("cublasSgemmStridedBatched_64", **plain | changes)


UNFIT = {
    WRONG: [
        *(gemm(**one) for one in (
            {"alpha": ZERO}, {"alpha": 0}, {"beta": 0}, {"alpha": [-0.0, 0.0]}, {"C": A + 4 * 17}, {"C": B - 4},
            {"k": 0}, {"ldb": 2}, {"ldc": 5}, {"lda": 5}, {"A": 0}, {"A": A + 2}, {"B": B + 1}, {"C": 0},
            {"C": C + 1})),
        gemm("cublasSgemmStridedBatched", count=-1), batch(ldb=2**63 - 1, stride_b=-2),  # 2 ldb, wrapped
        batch(count=2**62 + 1),
    ],
    NO_KERNEL: [
        gemm("cublasSgemmStridedBatched", count=2), gemm(transa=1),
        *(gemm("cublasSgemmStridedBatched", count=2, stride_a=a, stride_b=b, stride_c=c)
          for a, b, c in ((0, 6, 13), (18, 6, 12), (0, 7, 12))),
        batch(transb=1, ldb=4, stride_b=8), batch(stride_b=6 + 2**32), batch(stride_c=12 + 2**32),
        batch(stride_a=2**32),
    ],
    "the vector is not contiguous": [gemm("cublasSgemv_v2", incy=2), gemm("cublasSgemv_v2", incx=-1)],
}  # fmt: skip


@pytest.mark.parametrize("reason", UNFIT)
def test_what_a_kernel_does_not_compute_as_cublas_would_is_left(fakes: Path, narrow: Path, reason: str) -> None:
    """Even if fitting calls and unfit ones take turns: none decides for others."""
    calls, no_operation = UNFIT[reason], gemm(transa=3)  # which stands nowhere in the journal
    found = play(fakes, [one for call in (no_operation, *calls) * 2 for one in (call, gemm())], pack=narrow)
    left = [line.split()[0] for line in of_the_program(found.left)]
    assert left == [call[0] for call in (no_operation, *calls)] * 2
    assert (found.told, len(found.launches)) == ("", 2 * len(calls) + 2)
    assert by_reason(found) == {reason: 2 * len(calls)}


LOWER, NOT_STARTED = "the program allows cuBLAS a lower precision", "the kernel could not be started"
NO_ROOM, NOT_CAPTURED = "no memory for a workspace", "captured, and the kernel is not loaded, or has no workspace"
GAP = gemm(transa=1, lda=5, C=A + 4 * (5 * 5 + 3))  # A has no gap behind its last column
ON_7, CAPTURED, ENDED = ["cublasSetStream_v2", 7], ["fake_capture", 7], ["fake_capture", 0]
SCENARIOS: dict[str, tuple[list[Any], int, dict[str, int]]] = {  # steps, launches, and what was left for which reason
    "alpha in device memory": (
        [["cublasSetPointerMode_v2", 1], gemm(alpha=0x1000, beta=0x2000)], 0,
        {"alpha and beta are in device memory": 1}),
    **{f"math mode {math}": ([["cublasSetMathMode", math], gemm()], 0, {LOWER: 1})
       for math in (TF32_MATH, TF32_MATH + 16, TENSOR_OP_MATH, BF16X9_MATH)},
    "reserved multiprocessors": (
        [["cublasSetSmCountTarget", 100], gemm()], 0, {"the program reserves multiprocessors": 1}),
    "matrices side by side": ([gemm(C=A + 4 * 18), gemm(C=B - 4 * 12), gemm(C=B + 4 * 6), GAP], 4, {}),
    "a kernel that was not loaded decides for no other call": (
        [["fake_fail", "cuModuleLoadData", 2], gemm(), ["fake_fail", "", 0], gemm()], 1, {NOT_STARTED: 1}),
    "a kernel is started three times": (
        [["fake_fail", "cuLaunchKernel", 700], *[gemm()] * 5, ["fake_fail", "", 0], gemm(), gemm("cublasDgemm_v2")],
        1, {NOT_STARTED: 6}),
    "no memory": (
        [["fake_memory", 0], *[SPLIT] * 4, ["fake_memory", 1 << 30], SPLIT], 1, {NO_ROOM: 4}),
    "no memory for a graph": (
        [ON_7, SPLIT, ["fake_memory", 0], CAPTURED, SPLIT, ENDED, SPLIT], 2, {NOT_CAPTURED: 1}),
    "a complex factor is 0 by both parts": (
        [gemm(f"cublas{letter}gemm_v2", alpha=alpha) for letter in "CZ" for alpha in ([0.0, 2.0], [2.0, 0.0], ZERO)],
        4, {WRONG: 2}),
    "another GPU": ([["fake_device", "NVIDIA A100", 8, 0], gemm()], 0, {NO_KERNEL: 1}),
    "contexts, of which 64 have a lane": (  # without a lane a context has no line in the journal
        [step for number in range(70) for step in (["fake_context", 0xC0 + number], gemm())], 64, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_else_is_taken_or_left(played: Plays, name: str) -> None:
    steps, launches, left = SCENARIOS[name]
    found = played(*steps)
    calls = sum(not step[0].startswith(("fake_", "cublasSet")) for step in steps)
    assert (len(found.launches), by_reason(found)) == (launches, left)
    assert len(of_the_program(found.left)) == calls - launches
    assert (
        found.told.count("a product is left to cuBLAS: ")
        == found.told.count("\n")
        == min(left.get(NOT_STARTED, 0), 3)
    )


@pytest.mark.parametrize("is_first", [True, False])
def test_what_is_left_does_not_decide_for_what_looks_alike(fakes: Path, tmp_path: Path, is_first: bool) -> None:
    fit, unfit = gemm("cublasDgemv_v2", 6, 3), gemm("cublasDgemv_v2", 6, 3, incy=2)
    pack = fabricated_library(tmp_path, tried(Problem(6, 1, 3, "f64")))
    (one,) = play(fakes, [fit, unfit] * 2 if is_first else [unfit, fit] * 2, pack=pack).seen
    assert (one.calls, one.taken) == (4, 2)


def test_types_and_modes_that_round_as_kernels_do_are_taken(played: Plays) -> None:
    """Modes of single precision do not concern double."""
    kinds = {(0, 68), (0, 69), (1, 70), (2, 68), (14, 68), (4, 68), (5, 70), (5, 71)}
    others = {(0, 77), (0, 74), (1, 68), (2, 64), (28, 68)}
    asked = [(kind, 0, kind in kinds) for kind in sorted(kinds | others)]
    for type_, exact in {0: (0, 2), 4: (0, 2), 2: (0, 1, 2), 14: (0, 1, 2)}.items():
        asked += [((type_, 68), mode, mode in exact) for mode in range(5)]
    for type_ in (1, 5):
        modes = (TENSOR_OP_MATH, TF32_MATH, BF16X9_MATH, FP64_EMULATED_MATH)
        asked += [((type_, 70), mode, mode != FP64_EMULATED_MATH) for mode in modes]
    steps = list[Any]()
    for m, ((type_, compute), mode, _) in enumerate(asked, start=6):
        call = gemm("cublasGemmEx", m, type_a=type_ % 28, type_b=type_, type_c=type_, compute=compute)
        steps += [["cublasSetMathMode", mode], call]
    found = played(*steps, gemm("cublasGemmStridedBatchedEx_64", compute=64))
    assert {one.shape[0] for one in found.seen if one.taken} == {m for m, one in enumerate(asked, start=6) if one[2]}
    assert found.uncounted == (0, len(others) + 1, 0)
    assert len(found.launches) + len(found.left) == len(asked) + 1


def test_a_product_that_cublas_is_expected_to_be_faster_at_is_left(fakes: Path, tmp_path: Path) -> None:
    rows, sources = winners(tmp_path, tried(Problem(6, 2, 3, "f32")))
    for us, launches in ((470.0, 0), (530.0, 1)):  # the kernel takes 500
        row = replace(rows[0], cublas_us=us, cublas_right=1, cublas_routine=vendor_measurement(us).routine)
        found = play(fakes, [gemm()], pack=library_of(tmp_path / f"lib{launches}.so", row, sources))
        assert len(found.launches) == launches
        assert by_reason(found) == ({} if launches else {"cuBLAS is expected to be as fast": 1})


@pytest.mark.parametrize("what", ["missing", "text", "other library", "older"])
def test_a_pack_that_is_none_is_told_once(fakes: Path, tmp_path: Path, what: str) -> None:
    path = tmp_path / "libtsm2.so"
    if what == "text":
        path.write_text("no library")
    elif what != "missing":
        functions = ["interface", "status_text", "last_error", "create", "create_beside", "set_stream", "compare"]
        functions += [f"gemm_{dtype}" for dtype in TYPES]
        older = "".join(f"long tsm2_{name}(void) {{ return {name == 'interface':d}; }}\n" for name in functions)
        text = older if what == "older" else "int other;"
        subprocess.run(["cc", "-shared", "-fPIC", "-xc", "-", "-o", str(path)], input=text, text=True, check=True)
    found = play(fakes, [gemm(), gemm(), gemm("cublasDgemm_v2")], pack=path)
    assert found.told.startswith("tsm2-tune: all products are left to cuBLAS: ")
    assert (found.told.count("\n"), str(path) in found.told, len(found.left)) == (1, True, 5)
    assert by_reason(found) == {"no library of kernels is loaded": 3}


# Contexts, streams and graphs


def test_a_context_has_its_kernels_and_workspaces(played: Plays) -> None:
    found = played(*(step for context in (0xC0, 0xC1) * 2 for step in (["fake_context", context], SPLIT)))
    assert len(found.launches) == 4
    assert [sum(line.startswith(word) for line in found.log) for word in ("load ", "allocate ")] == [2, 2 * 2]


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
    warm = [*on_streams([5]), gemm(), ON_7, CAPTURED]
    found = played(*warm, SPLIT, gemm(), SPLIT, gemm("cublasDgemm_v2"), ENDED, SPLIT)
    assert [line.split()[0] for line in found.left] == ["cublasDgemm_v2"]
    assert (by_reason(found), len(found.launches)) == ({NOT_CAPTURED: 1}, 6)
    assert len(set(workspaces(found.launches))) == 4  # of stream 5, of each of the graph's two, and of stream 7
    captured = found.log[found.log.index(found.launches[1]) + 1 : found.log.index(found.launches[-1])]
    assert [line for line in captured if line.startswith("wait")] == [f"wait for {0x5001}"] * 2
    assert sum(line.startswith("zero") and line.endswith(f"on {0x5001}") for line in captured) == 2


def test_graphs_have_a_gibibyte_of_workspaces(played: Plays) -> None:
    """Each allocation counts, and none that was refused: a small one fits after large ones."""
    large = gemm(m=2_000_000, n=9, k=3, transa=1)
    found = played(["fake_memory", 1 << 40], *on_streams([7], large), CAPTURED, *[large] * 10, SPLIT)
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


# The journal, with times


def test_what_was_seen_stays_however_the_program_ends(fakes: Path, pack: Path) -> None:
    child = [gemm("cublasDgemm_v2")] * 3
    found = play(fakes, [gemm(), ["fork", child], gemm(), ["kill", 9]], pack=pack)
    assert found.status == -9
    assert {one.dtype: (one.calls, one.taken) for one in found.seen} == {"f32": (2, 2), "f64": (3, 3)}


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


def test_captured_calls_have_no_times_and_times_end_no_capture(played: Plays) -> None:
    (one,) = played(ON_7, *[gemm()] * 5, CAPTURED, *[gemm()] * 9, has_times=True).seen
    assert (one.calls, one.taken, one.captured, one.gpu_us[0]) == (14, 11, 9, 5 - 2)
    on_another = played(CAPTURED, *[gemm(), SPLIT] * 9, has_times=True)
    assert {(len(one.cublas_us), one.captured) for one in on_another.seen} == {(4, 0)}
    assert not any("capture ended" in line for line in on_another.log)


def test_of_more_products_than_are_waited_for_some_have_no_time(played: Plays) -> None:
    failing = ["fake_fail", "cuEventQuery", 600], *[gemm()] * 700, ["fake_fail", "", 0], *[gemm()] * 9
    (one,) = played(*failing, has_times=True).seen
    assert (one.calls, one.taken, one.gpu_us[0]) == (709, 703, 512 - 2 + 9)
    steps = [step for turn in range(1200) for step in (["fake_context", 0xC0 + turn % 3], gemm())]
    assert [one.gpu_us[0] for one in played(*steps, has_times=True).seen] == [1200 - 2]  # events of each context


def test_the_environment_is_the_programs_own_besides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TSM2_TIMES", "1")
    monkeypatch.setenv("LD_PRELOAD", "libother.so")
    told = Standing(tmp_path / "standin.so", tmp_path / "pack.so").environment(None)
    assert told["LD_PRELOAD"] == f"{tmp_path}/standin.so:libother.so"
    ours = {name for name in told if name.startswith("TSM2_") and name not in (FOLDER_VARIABLE, "TSM2_TUNE_MACHINE")}
    assert ours == {"TSM2_LIBRARY"}
