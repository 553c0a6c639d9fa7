"""The winners as a C library: what it launches and answers, before a driver that only writes down its calls."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from tests import library_calls as lib
from tests.calls import FACTORS, OPS, TYPES, A, B, C, Call, few, is_launch_of, sequences
from tests.fabricated import GPU
from tests.library_calls import INVALID_VALUE, NOT_SUPPORTED, PRODUCT, SPLIT, SUCCESS, InProcess, play, tried
from tests.on_host import IN_C
from tests.packs_of_everything import everything, kernels_of_everything
from tsm2_tune.generator.config import Launch
from tsm2_tune.generator.problem import LARGEST_32_BIT_OFFSET, Problem
from tsm2_tune.runtime.choice.choose import core_record
from tsm2_tune.runtime.choice.core import NO_KERNEL
from tsm2_tune.tuner.packs.core_pack import core_of
from tsm2_tune.tuner.packs.gains import with_gain_errors

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


def needed_bytes(there: InProcess, path: str, call: Call) -> int:
    size: int = there(play, path, [("workspace_size", call)]).values["workspace_size"]
    return size


def test_a_workspace_of_the_callers(there: InProcess, plain: str) -> None:
    at, needed = 0x7000000, needed_bytes(there, plain, SPLIT_PRODUCT)
    assert SPLIT_BYTES + 36 < needed < SPLIT_BYTES * 1.1 + 512
    assert needed_bytes(there, plain, PRODUCT) == 0
    for size in (needed, needed + 12345):
        record = there(play, plain, [("set_workspace", at, size), SPLIT_PRODUCT, PRODUCT])
        assert record.statuses == [SUCCESS] * 3
        assert not any(line.startswith("allocate") for line in record.log)
        partials, counters = record.launches[0].values(32, "f4")[11:]
        zeroed = next(line for line in record.log if line.startswith("zero"))
        words = int(zeroed.split()[2])
        assert (partials, zeroed) == (at, f"zero {counters:x} {words} words on 0")
        assert at + SPLIT_BYTES <= counters <= at + size - words * 4 <= at + size - 9 * 4
    own_again = there(play, plain, [("set_workspace", at, needed), ("set_workspace", None, 0), SPLIT_PRODUCT])
    assert f"allocate {SPLIT_BYTES}" in own_again.log
    too_small = there(play, plain, [("set_workspace", at, SPLIT_BYTES), SPLIT_PRODUCT])
    assert too_small.errors[1] == f"this product needs a workspace of {needed} bytes"


SMALL_TILES = Launch(threads=64, rows_per_block=1, smem_bytes=0, columns_per_block=1, splits=2)


def test_counters_have_room_of_their_own(there: InProcess, tmp_path: Path) -> None:
    """The first kernel has large tiles with a few counters, the second has more counters and smaller sums."""
    trials = [tried(Problem(6, 2, 3, "f32", "tn"), SPLIT), tried(Problem(6, 2, 3, "f64", "tn"), SMALL_TILES)]
    path = str(lib.fabricated_library(tmp_path, *trials))
    few, many = Call("f32", "TN", 32, 4, 3), Call("f64", "TN", 40, 1, 3)
    record = there(play, path, [few, many])
    assert [line for line in record.log if line.startswith("allocate")][1::2] == ["allocate 4", "allocate 160"]
    needed = needed_bytes(there, path, many)
    for size, status in ((needed, SUCCESS), (needed - 256, lib.WORKSPACE_TOO_SMALL)):
        record = there(play, path, [("set_workspace", 0x7000000, size), many])
        assert record.statuses == [SUCCESS, status]
        assert all(one.values(32, "f8")[12] + 160 <= 0x7000000 + size for one in record.launches)


# What is refused

CAPTURED: list[Any] = [("set_stream", 7), ("fake_capture", 7)]
WORKSPACE = ("set_workspace", 0x7000000, 1 << 20)
NO_ROOM = f"the GPU has no room for the {SPLIT_BYTES + 36} bytes in which a kernel splits k"
SCALES = "no kernel scales C: with k = 0 or alpha = 0 beta must be 0 or 1"
NO_F64 = "no f64 kernel for op nt is in this library, only for nn: tune with --dtype f64 --op nt and export again"
NO_TT = "no f32 kernel for op tt is in this library, only for nn, tn: tune with --dtype f32 --op tt and export again"
NO_MEMORY = "argument 11, ldb: 1152921504606846976 times 2 columns is more than any memory"
# Steps, and for each call, load and workspace the status and the beginning of its error
REFUSED: dict[str, tuple[list[Any], list[tuple[int, str]]]] = {
    "a kernel that is not loaded in a graph": (
        [*CAPTURED, PRODUCT, ("fake_capture", 0), PRODUCT, ("fake_capture", 7), PRODUCT],
        [(NOT_SUPPORTED, "this product's kernel is not loaded, which"), (SUCCESS, ""), (SUCCESS, "")]),
    "a graph has no workspace": (
        [("load",), *CAPTURED, SPLIT_PRODUCT, PRODUCT],
        [(SUCCESS, ""), (NOT_SUPPORTED, "this product needs a workspace, which a CUDA graph"), (SUCCESS, "")]),
    "a graph has the caller's workspace": ([WORKSPACE, ("load",), *CAPTURED, SPLIT_PRODUCT], [(SUCCESS, "")] * 3),
    **{f"{free} bytes of memory": (
        [("fake_memory", free), SPLIT_PRODUCT, ("fake_memory", 1 << 20), SPLIT_PRODUCT],
        [(lib.OUT_OF_MEMORY, NO_ROOM), (SUCCESS, "")]) for free in (0, SPLIT_BYTES)},
    "an unfit workspace": (
        [("set_workspace", 0x7000008, 1 << 20), ("set_workspace", 0x7000000, 255)],
        [(INVALID_VALUE, "argument 2, workspace: its"), (INVALID_VALUE, "argument 3, bytes: exp")]),
    "no kernel": (
        [replace(PRODUCT, ops="NT", dtype="f64"), replace(PRODUCT, ops="TT")],
        [(NOT_SUPPORTED, NO_F64), (NOT_SUPPORTED, NO_TT)]),
    **{error: ([replace(PRODUCT, **change), PRODUCT], [(INVALID_VALUE, error), (SUCCESS, "")]) for change, error in (
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
        ({"a": 0x1002}, "argument 8, A: its address is not a multiple of 4 bytes"), ({"ldb": 1 << 60}, NO_MEMORY))},
    "a beta of neither 0 nor 1": (
        [scaled for one in (replace(PRODUCT, beta=2), Call("c64", "NN", 6, 2, 3, beta=1j))
         for scaled in (replace(one, k=0, a=0, b=0), replace(one, alpha=0))], [(NOT_SUPPORTED, SCALES)] * 4),
    **{function: (
        [("fake_context", 0xC1), ("fake_fail", function.encode(), 1), PRODUCT, ("fake_fail", b"", 0), PRODUCT],
        [(lib.DRIVER_ERROR, f"{function} failed: CUDA_ERROR_INVALID_VALUE"), (SUCCESS, "")])
       for function in ("cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel", "cuCtxPushCurrent")},
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_told_and_the_next_call_goes_on(there: InProcess, plain: str, name: str) -> None:
    steps, answers = REFUSED[name]
    record = there(play, plain, steps)
    assert record.statuses == [status for status, _ in answers]
    for error, (_, expected) in zip(record.errors, answers, strict=True):
        assert error.startswith(expected) if expected else error == ""
    computed = sum(isinstance(step, Call) for step in steps) - sum(status != SUCCESS for status in record.statuses)
    assert len(record.launches) == max(computed, 0)
    assert record.brief.count("pop") == record.brief.count("push c0")
    if answers[0][0] == lib.DRIVER_ERROR:
        loaded, unloaded = (sum(line.startswith(word) for line in record.log) for word in ("load ", "unload "))
        assert loaded - unloaded == 1


def test_a_text_that_is_too_long_is_cut_and_a_stream_is_told(there: InProcess, plain: str) -> None:
    values = there(play, plain, [("choice", PRODUCT, 10), ("set_stream", 77), ("stream",)]).values
    assert (values["choice"], values["stream"]) == ((SUCCESS, "tsm2:vers"), 77)


def test_a_library_for_another_gpu_says_so(there: InProcess, plain: str) -> None:
    record = there(play, plain, [PRODUCT], lib.OTHERS)
    assert record.statuses == [NOT_SUPPORTED]
    assert "of NVIDIA H200: no binary of it for sm_80 is in this library" in record.errors[0]


@pytest.mark.parametrize("change", [{"k": 0, "a": 0, "b": 0}, {"alpha": 0}])
def test_extents_of_0_are_as_in_blas_and_an_alpha_of_0_too(
    there: InProcess, plain: str, change: dict[str, Any]
) -> None:
    empty = [replace(PRODUCT, m=0, a=0, c=0), replace(PRODUCT, n=0, b=0), replace(PRODUCT, beta=1, **change)]
    record = there(play, plain, empty)
    assert (record.statuses, record.log) == ([SUCCESS] * 3, [])
    for dtype, size in (("f32", 4), ("c128", 16), ("bf16", 2)):
        record = there(play, plain, [replace(Call(dtype, "NN", 6, 2, 3, ldc=9), **change)])
        assert record.log == [f"zero {C:x} pitch {9 * size} width {6 * size} height 2 on 0"]
    ((status, _, error),) = there(lib.choices, plain, [replace(PRODUCT, k=0)], (GPU, 9, 0))
    assert (status, error) == (NOT_SUPPORTED, "an extent is 0: no kernel computes that")


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


# The choice


def core_product(call: Call) -> bytes:
    """The product that the core reads. A vector is column-major and row-major if its elements are adjacent."""
    lds = []
    shapes = (call.m, call.k), (call.k, call.n), (call.m, call.n)
    for (rows, columns), operation, ld in zip(shapes, (*call.ops, "N"), call.leading, strict=True):
        stored = (rows, columns) if operation == "N" else (columns, rows)
        own = stored[0] if stored[1] == 1 else ld
        other = 1 if stored[1] == 1 else stored[1] if stored[0] == 1 and ld == 1 else 0
        lds.append((own, other) if operation == "N" else (other, own))
    conj_a, conj_b = (operation == "C" and call.dtype.startswith("c") for operation in call.ops)
    is_gram = call.a == call.b and call.m == call.n and lds[0] == lds[1][::-1]
    return core_record(call.dtype, (call.m, call.n, call.k), lds, (conj_a, conj_b), is_gram)


def random_calls(count: int, seed: int) -> list[Call]:
    """Return calls of every type and operation, of narrow and wide matrices, vectors and Gram matrices."""
    rng, calls = random.Random(seed), list[Call]()
    while len(calls) < count:
        ops = rng.choice(lib.OPERATIONS) + rng.choice(lib.OPERATIONS)
        m, n, k = (rng.choice((1, 2, 4, 7, 8, 64, 100, 4096, 20480, 10**6)) for _ in "mnk")
        same = rng.random() < 0.3
        plain = Call(rng.choice(TYPES), ops, m, m if same else n, k, b=A if same else B)
        lda, ldb, ldc = (ld + rng.choice((0, 0, 1, 5)) for ld in plain.leading)
        calls.append(replace(plain, lda=lda, ldb=lda if same and lda >= plain.leading[1] else ldb, ldc=ldc))
    return calls


@pytest.mark.parametrize(
    ("seed", "device"), [(0, (GPU, 9, 0)), (2, (GPU, 9, 0)), (3, lib.OTHERS), (1, ("NVIDIA H100", 9, 0))]
)
def test_a_library_tells_the_cores_choice(
    there: InProcess, tmp_path: Path, seed: int, device: tuple[str, int, int]
) -> None:
    every, rates = everything(seed)
    kernels, calls = kernels_of_everything(seed), random_calls(600, seed)
    core = core_of(with_gain_errors(kernels, rates), rates)
    library = str(lib.fabricated_library(tmp_path, kernels=every, rates=rates))
    told, times, chosen = there(lib.choices, library, calls, device), there(lib.compared, library, calls, device), 0
    for call, (status, text, error), compared_times in zip(calls, told, times, strict=True):
        choice = core.choose(core_product(call), device[0])
        if choice.reason == NO_KERNEL:
            assert (status, text) == (NOT_SUPPORTED, ""), call
            assert error.startswith(f"no {call.dtype} kernel for op "), call
            continue
        assert (status, text) == (SUCCESS, core.explanation(choice, device[0])), call
        has_cubin = kernels[choice.kernel].winner.compute_capability == f"{device[1]}.{device[2]}"
        runs = has_cubin and not choice.is_too_large
        expected = (SUCCESS, choice.us, choice.vendor_us, choice.is_vendors) if runs else (NOT_SUPPORTED, 0, 0, True)
        assert compared_times == expected, call
        chosen += 1
    assert chosen > 100
