"""The library that stands in for cuBLAS: what it takes, what it leaves, and what a program notices of it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fabricated import vendor_measurement, winners
from tests.library_calls import TYPES, Call, InProcess, fabricated_library, tried
from tests.library_calls import play as play_library
from tests.standin_calls import FLAGS, ONE, ROUTINES, A, B, C, Played, build_fakes, gemm, play, random_calls
from tsm2_tune.generator.problem import Problem
from tsm2_tune.standin.build import standin_path
from tsm2_tune.standin.journal import REASONS
from tsm2_tune.standin.running import Standing
from tsm2_tune.tuner.export.known import NOTHING_KNOWN
from tsm2_tune.tuner.export.library import library_bytes

pytestmark = [
    pytest.mark.host,
    pytest.mark.usefixtures("toolchain", "session_cache"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler"),
]
TF32_MATH = 3


@pytest.fixture(scope="module")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fakes")
    build_fakes(folder)
    return folder


@pytest.fixture
def pack(plain: str) -> Path:
    return Path(plain)


def without_factors(lines: list[str]) -> list[str]:
    """Addresses of host memory are other ones in each process."""
    return [re.sub(r"\b(?:9[0-9]{13}|1[0-9]{14})\b", "host", line) for line in lines]


def of_the_program(lines: list[str]) -> list[str]:
    """Calls of cuBLAS without those that its Sgemm makes itself."""
    before = ["", *lines]
    return [line for line, last in zip(lines, before, strict=False) if not last.startswith("cublasSgemm_v2 ")]


def by_reason(played: Played) -> dict[str, int]:
    """How many products were left for each reason."""
    found = dict[str, int]()
    for one in played.seen:
        for reason, count in zip(REASONS, one.left, strict=True):
            if count:
                found[reason] = found.get(reason, 0) + count
    return found


# What it leaves


@pytest.mark.parametrize("math", [0, TF32_MATH])
def test_what_no_kernel_is_for_goes_to_cublas_as_it_is(fakes: Path, math: int) -> None:
    steps = [["cublasSetStream_v2", 77], ["cublasSetMathMode", math], *random_calls(1500, 1)]
    alone, played = play(fakes, steps, standin=False), play(fakes, steps)
    assert played.told == ""
    assert played.statuses == alone.statuses
    assert len(alone.left) > 1500
    assert without_factors(played.left) == without_factors(alone.left)
    assert {line.split()[0] for line in played.left} == set(ROUTINES)
    assert played.launches == []


def test_each_call_is_taken_or_left_and_none_is_both(fakes: Path, pack: Path) -> None:
    steps = random_calls(3000, 2)
    alone, played = play(fakes, steps, standin=False), play(fakes, steps, pack=pack)
    assert played.told == ""
    assert len(played.launches) + len(of_the_program(played.left)) == len(of_the_program(alone.left)) == 3000
    assert len(played.launches) > 300
    assert sum(one.taken for one in played.seen) == len(played.launches)
    assert all(one.calls == one.taken + sum(one.left) for one in played.seen)
    rest = iter(without_factors(alone.left))
    assert all(line in rest for line in without_factors(played.left))  # in their order


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([["cublasSetPointerMode_v2", 1], gemm(alpha=0x1000, beta=0x2000)], "alpha and beta are in device memory"),
        ([["cublasSetMathMode", TF32_MATH], gemm()], "the program lets cuBLAS round more"),
        ([["cublasSetMathMode", TF32_MATH + 16], gemm()], "the program lets cuBLAS round more"),
        ([["cublasSetSmCountTarget", 100], gemm()], "the program wants multiprocessors left free"),
        ([gemm(alpha=[0.0, 0.0])], "alpha or an extent is 0, or C overlaps"),
        ([gemm(alpha=[-0.0, 0.0])], "alpha or an extent is 0, or C overlaps"),
        ([gemm(C=A + 4 * 17)], "alpha or an extent is 0, or C overlaps"),
        ([gemm(C=B - 4)], "alpha or an extent is 0, or C overlaps"),
        ([gemm(k=0)], "alpha or an extent is 0, or C overlaps"),
        ([gemm(lda=5)], "alpha or an extent is 0, or C overlaps"),
        ([gemm(transa=3)], "alpha or an extent is 0, or C overlaps"),
        ([gemm("cublasSgemv_v2", incy=2)], "the vector has gaps"),
        ([gemm("cublasSgemv_v2", incx=-1)], "the vector has gaps"),
        ([gemm("cublasSgemmStridedBatched", count=2)], "a batch of products"),
        ([gemm("cublasSgemmStridedBatched", count=-1)], "a batch of products"),
        ([gemm("cublasSgemmStridedBatched", count=2, stride_a=0, stride_b=6, stride_c=13)], "a batch of products"),
        ([gemm("cublasSgemmStridedBatched", count=2, stride_a=18, stride_b=6, stride_c=12)], "a batch of products"),
        ([gemm("cublasSgemmStridedBatched", count=2, stride_a=0, stride_b=7, stride_c=12)], "a batch of products"),
        ([gemm(transa=1)], "no kernel is in the pack for it"),
    ],
)
def test_what_a_kernel_does_not_compute_as_cublas_would_is_left(
    fakes: Path, tmp_path: Path, steps: list[Any], reason: str
) -> None:
    pack = fabricated_library(tmp_path, tried(Problem(6, 2, 3, "f32")))
    played = play(fakes, steps, pack=pack)
    assert played.launches == []
    assert played.left[0].split()[0] == steps[-1][0]
    if steps[-1][1].get("transa") != 3:  # which is no operation, and stands nowhere
        assert by_reason(played) == {reason: 1}


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(
    ("fit", "unfit"),
    [
        (gemm("cublasDgemv_v2", 6, 3), gemm("cublasDgemv_v2", 6, 3, incy=2)),
        (
            gemm("cublasSgemmStridedBatched", count=2, stride_a=0, stride_b=6, stride_c=12),
            gemm("cublasSgemmStridedBatched", n=4, count=2),
        ),
    ],
)
def test_what_is_left_does_not_decide_for_what_looks_alike(
    fakes: Path, tmp_path: Path, fit: Any, unfit: Any, is_first: bool
) -> None:
    pack = fabricated_library(tmp_path, *(tried(Problem(6, 1, 3, dtype)) for dtype in ("f32", "f64")))
    steps = [fit, unfit] * 2 if is_first else [unfit, fit] * 2
    played = play(fakes, steps, pack=pack)
    assert (len(played.launches), len(played.left)) == (2, 2)
    (one,) = played.seen
    assert (one.calls, one.taken) == (4, 2)


@pytest.mark.parametrize("routine", ["cublasDgemm_v2", "cublasZgemm_v2_64"])
def test_what_tf32_does_not_round_is_taken_in_its_mode(fakes: Path, pack: Path, routine: str) -> None:
    played = play(fakes, [["cublasSetMathMode", TF32_MATH], gemm(routine)], pack=pack)
    assert (len(played.launches), played.left) == (1, [])


@pytest.mark.parametrize(
    ("type_", "compute", "is_taken"),
    [(0, 68, True), (0, 69, True), (0, 77, False), (0, 74, False), (1, 70, True), (1, 68, False), (2, 68, True),
     (2, 64, False), (14, 68, True), (4, 68, True), (5, 70, True), (5, 71, True), (28, 68, False)],
)  # fmt: skip
def test_types_that_are_summed_up_as_kernels_do_are_taken(
    fakes: Path, pack: Path, type_: int, compute: int, is_taken: bool
) -> None:
    of_b = {"type_a": type_ if type_ != 28 else 0, "type_b": type_, "type_c": type_, "compute": compute}
    played = play(fakes, [gemm("cublasGemmEx", **of_b)], pack=pack)
    assert (len(played.launches), len(played.left)) == ((1, 0) if is_taken else (0, 1))


def test_a_product_that_cublas_is_expected_to_be_faster_at_is_left(fakes: Path, tmp_path: Path) -> None:
    rows, sources = winners(tmp_path, tried(Problem(6, 2, 3, "f32")))
    for us, launches in ((470.0, 0), (530.0, 1)):  # the kernel takes 500
        told = vendor_measurement(us)
        row = replace(rows[0], cublas_us=us, cublas_right=1, cublas_routine=told.routine)
        cubins = {(row.source_digest, bits, "sm_90a"): b"cubin\0" for bits in (32, 64)}
        path = tmp_path / f"lib{launches}.so"
        path.write_bytes(library_bytes([(row, sources[row.trial_id])], cubins, path.name, NOTHING_KNOWN))
        played = play(fakes, [gemm()], pack=path)
        assert len(played.launches) == launches
        assert by_reason(played) == ({} if launches else {"cuBLAS is expected to be as fast": 1})


# What it takes


def test_what_is_started_is_what_the_library_starts(there: InProcess, fakes: Path, pack: Path) -> None:
    """Of each routine the launch of the same product by the library itself, on the handle's stream."""
    letters = {"S": "f32", "D": "f64", "C": "c64", "Z": "c128"}
    cases = list[tuple[list[Any], Call]]()
    for letter, dtype in letters.items():
        alpha, beta = ([2.0, -3.0], [0.5, 4.0]) if letter in "CZ" else ([2.5, 0.0], [-0.5, 0.0])
        factors = {"alpha": alpha, "beta": beta}
        own = Call(dtype, "NN", 6, 2, 3, alpha=complex(*alpha), beta=complex(*beta), a=A, b=B, c=C, ldc=9)
        for wide in ("", "_64"):
            cases.append((gemm(f"cublas{letter}gemm_v2{wide}", **factors, ldc=9), own))
            cases.append((gemm(f"cublas{letter}gemmStridedBatched{wide}", **factors, ldc=9), own))
            wider = {"count": 4, "stride_a": 0, "stride_b": 6, "stride_c": 18}
            cases.append(
                (gemm(f"cublas{letter}gemmStridedBatched{wide}", **factors, ldc=9, **wider), replace(own, n=8))
            )
            vector = gemm(f"cublas{letter}gemv_v2{wide}", 6, 3, lda=7, **factors)
            cases.append((vector, replace(own, n=1, lda=7, ldc=6)))
    for type_, compute, dtype in ((2, 68, "f16"), (14, 68, "bf16"), (5, 70, "c128")):
        types = {"type_a": type_, "type_b": type_, "type_c": type_, "compute": compute}
        cases.append((gemm("cublasGemmEx", **types, beta=ONE), Call(dtype, "NN", 6, 2, 3, beta=1, a=A, b=B, c=C)))
    expected = there(play_library, str(pack), [("set_stream", 77), *(own for _, own in cases)])
    played = play(fakes, [["cublasSetStream_v2", 77], *(step for step, _ in cases)], pack=pack)
    assert played.told == ""
    assert played.left == []
    assert expected.statuses == [0] * len(cases)
    assert played.launches == [line for line in expected.log if line.startswith("launch ")]


def test_an_x_with_gaps_is_a_row_that_is_transposed(there: InProcess, fakes: Path, tmp_path: Path) -> None:
    pack = fabricated_library(tmp_path, tried(Problem(6, 1, 3, "f64", "nt")))
    played = play(fakes, [gemm("cublasDgemv_v2", 6, 3, incx=5)], pack=pack)
    own = Call("f64", "NT", 6, 1, 3, ldb=5, a=A, b=B, c=C)
    expected = there(play_library, str(pack), [own])
    assert played.launches == [line for line in expected.log if line.startswith("launch ")]
    assert len(played.launches) == 1


def test_cublas_may_call_its_own_routines(fakes: Path, pack: Path) -> None:
    """Its Sgemm here calls its 64-bit one by name, which is the stand-in's: it is no product of the program's."""
    steps = [["cublasSetMathMode", TF32_MATH], gemm(), gemm()]
    played = play(fakes, steps, pack=pack)
    assert [line.split()[0] for line in played.left] == ["cublasSgemm_v2", "cublasSgemm_v2_64"] * 2
    (one,) = played.seen
    assert one.calls == 2


def test_each_stream_has_a_workspace_and_all_have_the_kernels(fakes: Path, pack: Path) -> None:
    split = gemm(m=70, n=9, k=3, transa=1)
    steps = [step for stream in (3, 4, 5, 3) for step in (["cublasSetStream_v2", stream], split)]
    played = play(fakes, steps, pack=pack)
    assert len(played.launches) == 4
    assert sum(line.startswith("load ") for line in played.log) == 1
    assert sum(line.startswith("allocate ") for line in played.log) == 2 * 3
    assert not any(line.startswith("wait for all") for line in played.log)


def test_what_is_captured_has_a_workspace_of_its_own(fakes: Path, pack: Path) -> None:
    split, whole = gemm(m=70, n=9, k=3, transa=1), gemm()
    warm = [["cublasSetStream_v2", 5], split, whole, ["cublasSetStream_v2", 7], ["fake_capture", 7]]
    after = [["fake_capture", 0], split]
    played = play(fakes, [*warm, split, whole, split, gemm("cublasDgemm_v2"), *after], pack=pack)
    assert [line.split()[0] for line in played.left] == ["cublasDgemm_v2"]
    assert by_reason(played) == {"captured, and the kernel is not loaded, or has no workspace": 1}
    assert len(played.launches) == 6
    room = [line.split(" ")[20] for line in played.launches if set(line.split(" ")[20]) != {"0"}]
    assert len(set(room)) == 4  # of stream 5, of each of the graph's two, and of stream 7
    captured = played.log[played.log.index(played.launches[1]) + 1 : played.log.index(played.launches[-1])]
    assert [line for line in captured if line.startswith("wait")] == [f"wait for {0x5001}"] * 2
    assert sum(line.startswith("zero") and line.endswith(f"on {0x5001}") for line in captured) == 2


def test_without_memory_a_captured_product_is_left(fakes: Path, pack: Path) -> None:
    split = gemm(m=70, n=9, k=3, transa=1)
    steps = [
        ["cublasSetStream_v2", 7],
        split,
        ["fake_memory", 0],
        ["fake_capture", 7],
        split,
        ["fake_capture", 0],
        split,
    ]
    played = play(fakes, steps, pack=pack)
    assert len(played.launches) == 2
    assert by_reason(played) == {"captured, and the kernel is not loaded, or has no workspace": 1}


def test_threads_have_their_streams(fakes: Path, pack: Path) -> None:
    split = gemm(m=70, n=9, k=3, transa=1)
    threads = [
        [["cublasSetStream_v2", stream], *([split, gemm(), gemm("cublasDgemm_v2")] * 60)] for stream in range(3, 11)
    ]
    played = play(fakes, *threads, pack=pack)
    assert played.told == ""
    assert played.statuses == [[0] * 180] * 8
    assert len(played.launches) == 8 * 180
    assert sum(one.calls for one in played.seen) == 8 * 180
    room: dict[str, set[str]] = {}
    for line in played.launches:
        words = line.split(" ")
        if set(words[20]) != {"0"}:  # its partials
            room.setdefault(words[8], set()).add(words[20])
    assert len(room) == 8
    assert all(len(of_stream) == 1 for of_stream in room.values())
    assert len(set.union(*room.values())) == 8


def test_of_many_streams_some_share_a_workspace(fakes: Path, pack: Path) -> None:
    split = gemm(m=70, n=9, k=3, transa=1)
    streams = range(3, 103)
    played = play(fakes, [step for stream in streams for step in (["cublasSetStream_v2", stream], split)], pack=pack)
    assert [int(line.split(" ")[8]) for line in played.launches] == list(streams)
    assert sum(line.startswith("allocate ") for line in played.log) == 2 * 64
    assert sum(line.startswith("wait for all") for line in played.log) == 100 - 64


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
    assert played.told.count("\n") == 1
    assert played.told.startswith("tsm2-tune: all products are left to cuBLAS: ")
    assert str(path) in played.told
    assert len(played.left) == 5
    assert by_reason(played) == {"no pack is there": 3}


def test_another_gpu_leaves_all_to_cublas(fakes: Path, pack: Path) -> None:
    played = play(fakes, [["fake_device", "NVIDIA A100", 8, 0], gemm()], pack=pack)
    assert by_reason(played) == {"no kernel is in the pack for it": 1}
    assert played.told == ""


# Verifying


@pytest.fixture
def multiplying() -> dict[str, str]:
    return {"FAKE_CUBLAS_MULTIPLIES": "1"}


def verified(fakes: Path, pack: Path, multiplying: dict[str, str], writes: float, **changes: Any) -> Played:
    """Three products of ones, by a kernel that writes a number into the first element of C, and nothing else."""
    c = [3.0 + changes.pop("before", 0.0)] * 12
    steps = [["memory", {"A": [1.0] * 18, "B": [1.0] * 6, "C": c}], *[gemm("cublasDgemm_v2", **changes)] * 5]
    environment = multiplying | {"FAKE_KERNEL_WRITES": repr(writes)}
    return play(fakes, steps, pack=pack, compared=3, environment=environment)


@pytest.mark.parametrize("writes", [0.0, 3 + 1e-10, float("nan"), float("inf")])
def test_a_kernel_that_is_off_is_left_out(
    fakes: Path, pack: Path, multiplying: dict[str, str], writes: float
) -> None:
    played = verified(fakes, pack, multiplying, writes)
    assert played.told.count("\n") == 1
    assert f"6x2x3 of f64: C[0, 0] of the kernel is {writes:.9g}, of cuBLAS 3" in played.told
    assert len(played.launches) == 1
    assert len(played.left) == 5
    assert by_reason(played) == {"its result was compared": 1, "the kernel's result was off": 4}
    assert played.seen[0].worst > 1
    assert played.results == [[3.0] * 12] * 5


@pytest.mark.parametrize("writes", [3.0, 3 + 1e-15])
def test_a_kernel_that_is_right_is_taken_after_the_comparison(
    fakes: Path, pack: Path, multiplying: dict[str, str], writes: float
) -> None:
    played = verified(fakes, pack, multiplying, writes)
    assert played.told == ""
    assert (len(played.launches), len(played.left)) == (5, 3)
    (one,) = played.seen
    assert (one.compared, one.taken) == (3, 2)
    assert one.worst < 0.1


def test_a_comparison_leaves_what_cublas_computes_of_the_c_before(
    fakes: Path, pack: Path, multiplying: dict[str, str]
) -> None:
    played = verified(fakes, pack, multiplying, -7.0, before=1.0, beta=ONE)
    assert played.results[0] == [7.0] * 12
    assert "of the kernel is -7, of cuBLAS 7" in played.told


# The journal


def test_what_was_seen_stays_however_the_program_ends(fakes: Path, pack: Path) -> None:
    child = [gemm("cublasDgemm_v2")] * 3
    played = play(fakes, [gemm(), ["fork", child], gemm(), ["kill", 9]], pack=pack)
    assert played.status == -9
    assert {one.dtype: (one.calls, one.taken) for one in played.seen} == {"f32": (2, 2), "f64": (3, 3)}


def test_what_differs_is_counted_apart(fakes: Path, pack: Path) -> None:
    played = play(fakes, [gemm(), gemm(lda=7), gemm(ldc=7), gemm("cublasDgemm_v2"), gemm(n=4)] * 2, pack=pack)
    assert [(one.calls, one.taken) for one in played.seen] == [(2, 2)] * 5
    assert len({(one.dtype, one.leading, one.shape) for one in played.seen}) == 5


def test_times_are_of_what_ran(fakes: Path, pack: Path) -> None:
    played = play(fakes, [gemm()] * 10, pack=pack, has_times=True)
    (one,) = played.seen
    assert (one.calls, one.taken) == (10, 6)
    assert one.first_us > 0
    assert one.cublas_us == (3, 3000.0)  # an event is a millisecond later than the one before
    assert one.taken_us == (6, 6000.0)
    assert by_reason(played) == {"timed, to be compared": 4}
    assert len(played.left) == 2 * 4


def test_the_environment_is_the_programs_own_besides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TSM2_TIMES", "1")
    monkeypatch.setenv("LD_PRELOAD", "libother.so")
    told = Standing(tmp_path / "standin.so", tmp_path / "pack.so").environment(None)
    assert told["LD_PRELOAD"] == f"{tmp_path}/standin.so:libother.so"
    assert {name for name in told if name.startswith("TSM2_")} == {"TSM2_LIBRARY"}


# Programs that are linked with cuBLAS, and how they ask for functions

LINKED = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int cublasCreate_v2(void **);
int cublasDgemm_v2(void *, int, int, int, int, int, const double *, const double *, int, const double *, int,
                   const double *, double *, int);
const char *fake_log(void);
double cos(double);
int main(void)
{
    void *handle;
    const double one = 1, zero = 0;
    cublasCreate_v2(&handle);
    const int status = cublasDgemm_v2(handle, 0, 0, 6, 2, 3, &one, (double *)(1l << 40), 6, (double *)(1l << 50), 3,
                                      &zero, (double *)(1l << 60), 6);
    void *next = dlsym(RTLD_NEXT, "main"), *standard = dlsym(RTLD_DEFAULT, "cublasDgemm_v2");
    printf("%d %d %d %d\\n%s", status, next == NULL, standard == (void *)cublasDgemm_v2,
           dlsym(RTLD_NEXT, "printf") != NULL, fake_log());
    return 7;
}
"""


def test_a_program_that_is_linked_with_cublas_is_reached(fakes: Path, pack: Path, tmp_path: Path) -> None:
    source, program = tmp_path / "linked.c", tmp_path / "linked"
    source.write_text(LINKED)
    command = ["cc", str(source), f"-L{fakes}", "-l:libcublas.so.13", "-l:libcuda.so.1", "-o", str(program)]
    subprocess.run(command, check=True)
    told = Standing(standin_path(), pack).environment(None) | {"LD_LIBRARY_PATH": str(fakes)}
    done = subprocess.run([program], env=told, capture_output=True, text=True)
    first, *log = done.stdout.splitlines()
    assert (done.returncode, first) == (7, "0 1 1 1")
    assert sum(line.startswith("launch ") for line in log) == 1
    assert not any(line.startswith("cublas") for line in log)


PLUGIN = """
int cublasCreate_v2(void **);
int cublasDgemm_v2(void *, int, int, int, int, int, const double *, const double *, int, const double *, int,
                   const double *, double *, int);
int multiply(int transa)
{
    void *handle;
    const double one = 1, zero = 0;
    cublasCreate_v2(&handle);
    return cublasDgemm_v2(handle, transa, 0, 6, 2, 3, &one, (double *)(1l << 40), 6, (double *)(1l << 50), 3, &zero,
                          (double *)(1l << 60), 6);
}
"""
TWO = """
import ctypes, sys
driver = ctypes.CDLL("libcuda.so.1")
driver.fake_log.restype = ctypes.c_char_p
first, second = ctypes.CDLL("libcublas.so.13"), ctypes.CDLL(sys.argv[1])
for plugin in (ctypes.CDLL(sys.argv[2]), ctypes.CDLL(sys.argv[3])) * 2:
    for transa in (0, 1):
        assert plugin.multiply(transa) == 0
handle = ctypes.c_void_p()
second.cublasCreate_v2(ctypes.byref(handle))
assert second.cublasSetStream_v2(handle, ctypes.c_void_p(9)) == 0
print(driver.fake_log().decode())
"""


def test_each_of_two_cublas_libraries_gets_its_own_calls(fakes: Path, tmp_path: Path) -> None:
    pack = fabricated_library(tmp_path, tried(Problem(6, 2, 3, "f64")))
    other = tmp_path / "libcublas.so.12"
    linked = (f"-L{fakes}", "-l:libcuda.so.1")
    source = str(Path(__file__).with_name("fake_cublas.c"))
    command = ["cc", *FLAGS, '-DPREFIX="of 12: "', "-Wl,-soname,libcublas.so.12", source, *linked, "-o", str(other)]
    subprocess.run(command, check=True)
    (tmp_path / "plugin.c").write_text(PLUGIN)
    plugins = []
    for folder, library in ((fakes, "libcublas.so.13"), (tmp_path, "libcublas.so.12")):
        plugins.append(str(tmp_path / f"plugin-{library}.so"))
        build = [
            "cc",
            "-shared",
            "-fPIC",
            str(tmp_path / "plugin.c"),
            f"-L{folder}",
            f"-l:{library}",
            "-o",
            plugins[-1],
        ]
        subprocess.run(build, check=True)
    told = Standing(standin_path(), pack).environment(None) | {"LD_LIBRARY_PATH": f"{fakes}:{tmp_path}"}
    done = subprocess.run([sys.executable, "-c", TWO, str(other), *plugins], env=told, capture_output=True, text=True)
    assert done.stderr == ""
    calls = [line.split(" stream")[0] for line in done.stdout.splitlines() if "cublas" in line]
    assert calls == ["cublasDgemm_v2", "of 12: cublasDgemm_v2"] * 2
    assert sum(line.startswith("launch ") for line in done.stdout.splitlines()) == 4
