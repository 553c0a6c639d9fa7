"""The winners as a C library: what it launches and answers, before a driver that only writes down its calls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from tests import library_calls as lib
from tests.calls import FACTORS, OPS, A, C, Call, few, is_launch_of, sequences
from tests.fabricated import GPU
from tests.library_calls import INVALID_VALUE, NOT_SUPPORTED, PRODUCT, SPLIT, SUCCESS, InProcess, play, tried
from tests.on_host import IN_C
from tsm2_tune.generator.config import Launch
from tsm2_tune.generator.problem import LARGEST_32_BIT_OFFSET, Problem

pytestmark = IN_C
SPLIT_PRODUCT = Call("f32", "TN", 70, 9, 3)  # 3 x 3 tiles
SPLIT_BYTES = 3 * 9 * 32 * 4 * 4


# The launch


def test_each_call_is_launched_as_it_is(there: InProcess, library_of_all: Path) -> None:
    @few
    @given(sequences(OPS, most=40))
    def each_is(calls: list[Call]) -> None:
        steps = [step for call in calls for step in (("set_stream", call.stream or 0), call.in_columns())]
        record = there(play, str(library_of_all), steps)
        assert record.statuses == [SUCCESS] * len(calls)
        assert {line.split()[-1] for line in record.log if line.startswith("load ")} <= {"sm_90a"}
        for call, launch in zip(calls, record.launches, strict=True):
            assert is_launch_of(launched(launch, problems[launch.binary.split()[0]]), call), (call, launch)

    problems = {tried(problem)[1].source.digest[:8]: problem for problem in lib.problems_of_all()}
    each_is()


def launched(launch: lib.Started, problem: Problem) -> Call:
    """Return what the problem's kernel was given as a call."""
    values = launch.values(int(launch.binary.split()[1]), np.dtype(FACTORS[problem.dtype_name]).str)
    m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, *_ = values
    assert (launch.grid, launch.block) == ([*lib.PLAIN.grid(m, n), 1], [lib.PLAIN.threads, 1, 1])
    assert launch.smem_bytes == lib.PLAIN.smem_bytes
    ops, order = problem.op[:2].upper(), "C" if problem.op[2:] else "F"
    factors = {"alpha": alpha, "beta": beta}
    return Call(
        problem.dtype_name, ops, m, n, k, lda, ldb, ldc, **factors, a=a, b=b, c=c, order=order, stream=launch.stream
    )


def test_wide_matrices_get_wide_indices(there: InProcess, plain: str) -> None:
    ld = LARGEST_32_BIT_OFFSET // 3
    record = there(play, plain, [replace(PRODUCT, lda=ld), replace(PRODUCT, lda=ld + 1)])
    narrow, wide = record.launches
    assert [one.binary.split()[1] for one in (narrow, wide)] == ["32", "64"]
    assert wide.values(64, "f4")[:6] == [6, 2, 3, 1.0, A, ld + 1]
    tall = Call("f32", "NN", LARGEST_32_BIT_OFFSET // 2 + 1, 1, 1)
    assert there(play, plain, [tall]).launches[0].binary.split()[1] == "64"


def test_kernels_are_loaded_once_and_unloaded(there: InProcess, plain: str) -> None:
    record = there(play, plain, [PRODUCT, replace(PRODUCT, m=70), SPLIT_PRODUCT, SPLIT_PRODUCT, ("load",)])
    loads = [line for line in record.log if line.startswith("load ")]
    assert len(loads) == len(set(loads)) == 2 * 7
    assert record.log.count("attribute 8 = 50000") == 2  # more shared memory than a kernel has unasked


def test_handles_beside_each_other_load_a_kernel_once(there: InProcess, plain: str) -> None:
    record = there(lib.beside_each_other, plain)
    assert record.statuses == [SUCCESS] * 7
    why = "argument 1, other: it is of another context than the current one"
    assert record.values == {"loaded": 1, "unloaded": 0, "elsewhere": INVALID_VALUE, "why": why}
    assert sum(line.startswith("unload ") for line in record.log) == 1


def test_a_call_in_another_context_is_in_the_handles(there: InProcess, plain: str) -> None:
    record = there(play, plain, [("fake_context", 0xC1), PRODUCT, ("fake_context", 0), PRODUCT])
    assert (record.statuses, record.brief[0]) == ([SUCCESS] * 2, "push c0")
    assert record.brief[-4:] == ["pop", "push c0", "launch", "pop"]


def test_threads_with_a_handle_each(there: InProcess, plain: str) -> None:
    calls = {stream: [PRODUCT, replace(SPLIT_PRODUCT, m=32 * stream)] * 50 for stream in range(3, 11)}
    record = there(lib.in_threads, plain, calls)
    assert record.errors == []
    assert len(record.launches) == 8 * 100
    given = {(launch.stream, *launch.values(32, "f4")[11:]) for launch in record.launches}
    workspaces = [(stream, partials, counters) for stream, partials, counters in given if partials]
    assert [len({one[at] for one in workspaces}) for at in range(3)] == [8] * 3 == [len(workspaces)] * 3
    allocated = [line.split()[1] for line in record.log if line.startswith("allocate")]
    assert sorted(allocated) == sorted(line.split()[1] for line in record.log if line.startswith("free"))


# The workspace


def test_the_workspace_grows_and_goes_with_the_stream(there: InProcess, plain: str) -> None:
    larger = replace(SPLIT_PRODUCT, m=128)
    on_8 = [("set_stream", 8), SPLIT_PRODUCT]
    steps = [("set_stream", 7), SPLIT_PRODUCT, SPLIT_PRODUCT, larger, *on_8, ("fake_stream_ids", 50), larger]
    record = there(play, plain, steps)
    first, again, *_ = record.launches
    assert (first == again, first.grid) == (True, [9, 3, 1])
    counters = first.values(32, "f4")[12]
    kinds = "allocate", "free", "launch", "wait", "zero"
    workspace = [line for line in record.brief if line.split()[0] in kinds]
    zeroed = [line for line in workspace if line.startswith("zero")]
    assert (zeroed[0], len(zeroed)) == (f"zero {counters:x} 9 words on 7", 2)
    assert [line for line in workspace if line not in zeroed] == [
        *(f"allocate {SPLIT_BYTES}", "allocate 36", "launch", "launch"),
        *("wait for 7", f"free {SPLIT_BYTES}", "free 36"),
        *(f"allocate {SPLIT_BYTES // 9 * 12}", "allocate 48", "launch"),
        *("wait for all", "launch"),  # for what the other stream has
        *("wait for all", "launch"),  # the same handle, and another stream
    ]


def test_a_workspace_of_the_callers(there: InProcess, plain: str) -> None:
    at = 0x7000000
    needed, none = (
        there(play, plain, [("workspace_size", of)]).values["workspace_size"] for of in (SPLIT_PRODUCT, PRODUCT)
    )
    assert SPLIT_BYTES + 36 < needed < SPLIT_BYTES * 1.1 + 512
    assert none == 0
    for size, status in ((needed, SUCCESS), (needed + 12345, SUCCESS), (SPLIT_BYTES, lib.WORKSPACE_TOO_SMALL)):
        record = there(play, plain, [("set_workspace", at, size), SPLIT_PRODUCT, PRODUCT])
        assert record.statuses == [SUCCESS, status, SUCCESS]
        assert not any(line.startswith("allocate") for line in record.log)
        if status == SUCCESS:
            partials, counters = record.launches[0].values(32, "f4")[11:]
            zeroed = next(line for line in record.log if line.startswith("zero"))
            words = int(zeroed.split()[2])
            assert (partials, zeroed) == (at, f"zero {counters:x} {words} words on 0")
            assert at + SPLIT_BYTES <= counters <= at + size - words * 4 <= at + size - 9 * 4
        else:
            assert record.errors[1] == f"this product needs a workspace of {needed} bytes"
    own_again = there(play, plain, [("set_workspace", at, needed), ("set_workspace", None, 0), SPLIT_PRODUCT])
    assert f"allocate {SPLIT_BYTES}" in own_again.log
    for address, size, error in ((at + 8, needed, "argument 2, workspace: its"), (at, 255, "argument 3, bytes: exp")):
        refused = there(play, plain, [("set_workspace", address, size)])
        assert refused.statuses == [INVALID_VALUE]
        assert refused.errors[0].startswith(error)


SMALL_TILES = Launch(threads=64, rows_per_block=1, smem_bytes=0, columns_per_block=1, splits=2)


def test_counters_have_room_of_their_own(there: InProcess, tmp_path: Path) -> None:
    """The first kernel has large tiles with a few counters, the second has more counters and smaller sums."""
    trials = [tried(Problem(6, 2, 3, "f32", "tn"), SPLIT), tried(Problem(6, 2, 3, "f64", "tn"), SMALL_TILES)]
    path = str(lib.fabricated_library(tmp_path, *trials))
    few, many = Call("f32", "TN", 32, 4, 3), Call("f64", "TN", 40, 1, 3)
    record = there(play, path, [few, many])
    assert [line for line in record.log if line.startswith("allocate")][1::2] == ["allocate 4", "allocate 160"]
    needed = there(play, path, [("workspace_size", many)]).values["workspace_size"]
    for size, status in ((needed, SUCCESS), (needed - 256, lib.WORKSPACE_TOO_SMALL)):
        record = there(play, path, [("set_workspace", 0x7000000, size), many])
        assert record.statuses == [SUCCESS, status]
        for launched in record.launches:
            counters = launched.values(32, "f8")[12]
            assert counters + 160 <= 0x7000000 + size


def test_a_captured_product_has_the_callers_workspace(there: InProcess, plain: str) -> None:
    captured = [("load",), ("set_stream", 7), ("fake_capture", 7)]
    record = there(play, plain, [*captured[1:], PRODUCT, ("fake_capture", 0), PRODUCT, ("fake_capture", 7), PRODUCT])
    assert record.statuses == [NOT_SUPPORTED, SUCCESS, SUCCESS]
    assert "kernel is not loaded, which a CUDA graph needs: tsm2_load before it" in record.errors[0]
    record = there(play, plain, [*captured, SPLIT_PRODUCT, PRODUCT])
    del record.statuses[0], record.errors[0]  # the load's
    assert record.statuses == [NOT_SUPPORTED, SUCCESS]
    assert "a CUDA graph has from the caller: tsm2_set_workspace" in record.errors[0]
    record = there(play, plain, [("set_workspace", 0x7000000, 1 << 20), *captured, SPLIT_PRODUCT])
    assert record.statuses == [SUCCESS] * 3


@pytest.mark.parametrize("free_bytes", [0, SPLIT_BYTES])
def test_without_memory_it_says_so_and_goes_on(there: InProcess, plain: str, free_bytes: int) -> None:
    record = there(play, plain, [("fake_memory", free_bytes), SPLIT_PRODUCT, ("fake_memory", 1 << 20), SPLIT_PRODUCT])
    assert record.statuses == [lib.OUT_OF_MEMORY, SUCCESS]
    assert record.errors[0] == f"the GPU has no room for the {SPLIT_BYTES + 36} bytes in which a kernel splits k"


# Products without a kernel


def test_a_text_that_is_too_long_is_cut_and_a_stream_is_told(there: InProcess, plain: str) -> None:
    values = there(play, plain, [("choice", PRODUCT, 10), ("set_stream", 77), ("stream",)]).values
    assert (values["choice"], values["stream"]) == ((SUCCESS, "tsm2:vers"), 77)


def test_a_product_without_a_kernel_or_a_binary(there: InProcess, plain: str) -> None:
    record = there(play, plain, [replace(PRODUCT, ops="NT", dtype="f64"), replace(PRODUCT, ops="TT")])
    assert record.statuses == [NOT_SUPPORTED, NOT_SUPPORTED]
    assert record.errors == [
        "no f64 kernel for op nt is in this library, only for nn: tune with --dtype f64 --op nt and export again",
        "no f32 kernel for op tt is in this library, only for nn, tn: tune with --dtype f32 --op tt and export again",
    ]
    record = there(play, plain, [PRODUCT], lib.OTHERS)
    assert record.statuses == [NOT_SUPPORTED]
    assert "of NVIDIA H200: no binary of it for sm_80 is in this library" in record.errors[0]


# Statuses


def test_arguments_are_checked_as_in_blas(there: InProcess, plain: str) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"m": -1}, "argument 4, m: -1, expected at least 0"), ({"n": -2}, "argument 5, n: -2, expected at least 0"),
        ({"k": -3}, "argument 6, k: -3, expected at least 0"),
        ({"lda": 5}, "argument 9, lda: 5, expected at least 6"),
        ({"ops": "TN", "lda": 2}, "argument 9, lda: 2, expected at least 3"),
        ({"ldb": 2}, "argument 11, ldb: 2, expected at least 3"),
        ({"ops": "NT", "ldb": 1}, "argument 11, ldb: 1, expected at least 2"),
        ({"ldc": 5}, "argument 14, ldc: 5, expected at least 6"),
        ({"m": 0, "lda": -1}, "argument 9, lda: -1, expected at least 1"),
        ({"a": 0}, "argument 8, A: it is NULL"), ({"b": 0}, "argument 10, B: it is NULL"),
        ({"c": 0}, "argument 13, C: it is NULL"),
        ({"a": 0x1002}, "argument 8, A: its address is not a multiple of 4 bytes"),
        ({"ldb": 1 << 60}, "argument 11, ldb: 1152921504606846976 times 2 columns is more than any memory"),
    ]  # fmt: skip
    steps = [one for change, _ in wrong for one in (replace(PRODUCT, **change), PRODUCT)]
    record = there(play, plain, steps)
    assert record.errors == [one for _, error in wrong for one in (error, "")]
    assert record.statuses == [INVALID_VALUE, SUCCESS] * len(wrong)
    assert len(record.launches) == len(wrong)


@pytest.mark.parametrize("change", [{"k": 0, "a": 0, "b": 0}, {"alpha": 0}])
def test_extents_of_0_are_as_in_blas_and_an_alpha_of_0_too(
    there: InProcess, plain: str, change: dict[str, Any]
) -> None:
    empty = [replace(PRODUCT, m=0, a=0, c=0), replace(PRODUCT, n=0, b=0), replace(PRODUCT, beta=1, **change)]
    record = there(play, plain, empty)
    assert (record.statuses, record.log) == ([SUCCESS] * 3, [])
    for dtype, size in (("f32", 4), ("c128", 16), ("bf16", 2)):
        record = there(play, plain, [replace(Call(dtype, "NN", 6, 2, 3, ldc=9), **change)])
        assert record.statuses == [SUCCESS]
        assert record.log == [f"zero {C:x} pitch {9 * size} width {6 * size} height 2 on 0"]
    scaled = replace(PRODUCT, beta=2), Call("c64", "NN", 6, 2, 3, beta=1j)
    record = there(play, plain, [replace(one, **change) for one in scaled])
    assert record.statuses == [NOT_SUPPORTED] * 2
    assert record.errors[0] == "no kernel scales C: with k = 0 or alpha = 0 beta must be 0 or 1"
    ((status, _, error),) = there(lib.choices, plain, [replace(PRODUCT, k=0)], (GPU, 9, 0))
    assert (status, error) == (NOT_SUPPORTED, "an extent is 0: no kernel computes that")


@pytest.mark.parametrize(
    "function", ["cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel", "cuCtxPushCurrent"]
)
def test_the_drivers_errors_have_their_names(there: InProcess, plain: str, function: str) -> None:
    steps = [("fake_context", 0xC1), ("fake_fail", function.encode(), 1), PRODUCT, ("fake_fail", b"", 0), PRODUCT]
    record = there(play, plain, steps)
    assert record.statuses == [lib.DRIVER_ERROR, SUCCESS]
    assert record.errors == [f"{function} failed: CUDA_ERROR_INVALID_VALUE", ""]
    assert record.brief.count("pop") == record.brief.count("push c0")
    loaded, unloaded = (sum(line.startswith(word) for line in record.log) for word in ("load ", "unload "))
    assert loaded - unloaded == 1


def test_a_handle_needs_a_driver_and_a_context(there: InProcess, plain: str) -> None:
    assert there(lib.created, [], plain) == (SUCCESS, "success", ["", ""])
    status, words, errors = there(lib.created, [("fake_context", 0)], plain)
    assert (status, words) == (lib.NO_CONTEXT, "no CUDA context is current: cudaFree(0) makes one")
    assert errors == [words, "the handle is NULL"]  # another thread's errors are not told
    status, words, errors = there(lib.created, [("fake_fail", b"cuInit", 100)], plain)
    assert (status, errors[0]) == (lib.NO_DRIVER, words)
    assert words.startswith("no CUDA driver: libcuda.so.1 is not there")
    status, _, errors = there(lib.created, [("fake_fail", b"cuCtxGetDevice", 1)], plain)
    assert (status, errors[0].partition(":")[0]) == (lib.DRIVER_ERROR, "cuCtxGetDevice failed")


def test_a_changed_binary_is_refused(there: InProcess, plain: str, tmp_path: Path) -> None:
    content = Path(plain).read_bytes()
    first = there(play, plain, [PRODUCT]).log[0].removeprefix("load ").encode()
    assert content.count(first) == 1
    changed = tmp_path / "libtsm2.so"
    changed.write_bytes(content.replace(first, first.replace(b"sm_90a", b"sm_90b")))
    record = there(play, str(changed), [PRODUCT, replace(PRODUCT, dtype="f64")])
    assert record.statuses == [lib.WRONG_DIGEST, SUCCESS]
    assert "does not match its digest" in record.errors[0]
    assert record.brief[-1] == "launch"
    assert sum(line.startswith("load ") for line in record.log) == 1
