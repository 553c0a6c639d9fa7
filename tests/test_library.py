"""The winners as a C library: what it launches and answers, before a driver that only writes down its calls."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests import library_calls
from tests.fabricated import (
    GPU,
    PROBLEM,
    configuration,
    exported,
    host_run,
    imported,
    kernel,
    source,
    trial,
    tuning_run,
    vendor_measurement,
    winners,
)
from tests.library_calls import (
    DRIVER_ERROR,
    INVALID_VALUE,
    NO_CONTEXT,
    NO_DRIVER,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    SUCCESS,
    TYPES,
    WORKSPACE_TOO_SMALL,
    WRONG_DIGEST,
    A,
    B,
    C,
    Call,
    Record,
    choices,
    created,
    fabricated_library,
    in_threads,
    play,
    random_calls,
    recording_process,
)
from tests.recording_driver import RecordingDriver
from tsm2_tune.cli import main
from tsm2_tune.errors import InputError, ToolMissing
from tsm2_tune.generator.config import Launch
from tsm2_tune.generator.problem import LARGEST_32_BIT_OFFSET, Problem
from tsm2_tune.runtime.elements import DTYPES
from tsm2_tune.tuner.export.library import SOURCES, export_library
from tsm2_tune.tuner.store import Store
from tsm2_tune.tuner.trial import Trial, TuningRun

pytestmark = [
    pytest.mark.host,
    pytest.mark.usefixtures("toolchain", "session_cache"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler"),
]
RUN = tuning_run()
A100 = tuning_run("NVIDIA A100", compute_capability="8.0", flags="-arch=sm_80")
OTHERS = ("NVIDIA A100", 8, 0)
SPLIT = Launch(threads=64, rows_per_block=32, smem_bytes=50000, columns_per_block=4, splits=3)
PLAIN = Launch(threads=128, rows_per_block=128, smem_bytes=4096)
SKINNY = Problem(6, 2, 3, "f32")

InProcess = Callable[..., Any]


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    """Calls functions in a process whose driver writes down its calls."""
    with recording_process(tmp_path_factory.mktemp("driver")) as call:
        yield call


def tried(problem: Problem = SKINNY, launch: Launch = PLAIN, *, run: TuningRun = RUN, **changes: Any) -> Any:
    """A winner with this launch, whose text is its own."""
    text = f"// {problem.text} {launch} {run.identity.name}\n"
    return run, trial(
        problem=problem, source=replace(source(configuration(), problem.dtype_name, text), launch=launch), **changes
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, session_cache: None) -> str:
    """A library with a plain kernel for each type, and for C in f32 one that splits k."""
    trials = [tried(Problem(6, 2, 3, dtype)) for dtype in TYPES]
    trials.append(tried(Problem(6, 2, 3, "f32", "tn"), SPLIT))
    return str(fabricated_library(tmp_path_factory.mktemp("plain"), *trials))


PRODUCT = Call("f32", "NN", 6, 2, 3)
SPLIT_PRODUCT = Call("f32", "TN", 70, 9, 3)  # 3 x 3 tiles
SPLIT_BYTES = 3 * 9 * 32 * 4 * 4


# The launch


def test_the_launch_is_as_the_kernel_expects(there: InProcess, plain: str) -> None:
    record: Record = there(play, plain, [replace(PRODUCT, ldc=8, alpha=2, beta=0.5), ("set_stream", 77), PRODUCT])
    assert record.statuses == [SUCCESS] * 2
    first, second = record.launches
    assert first.values(32, "f4")[:11] == [6, 2, 3, 2.0, A, 6, B, 3, 0.5, C, 8]
    assert (first.grid, first.block, first.smem_bytes, first.stream) == ([1, 1, 1], [128, 1, 1], 4096, 0)
    assert second.stream == 77
    assert record.brief[0].endswith(" 32 sm_90a")
    assert record.brief[1:] == ["function tsm2_v3", "launch", "launch"] or record.brief[2:] == ["launch", "launch"]


@pytest.mark.parametrize("dtype", TYPES)
def test_factors_have_the_type_of_sums(there: InProcess, plain: str, dtype: str) -> None:
    alpha, beta = (2 - 3j, 0.5 + 4j) if dtype.startswith("c") else (2.5, -0.5)
    record = there(play, plain, [Call(dtype, "NN", 6, 2, 3, alpha=alpha, beta=beta)])
    (launch,) = record.launches
    for place, factor in ((3, alpha), (8, beta)):
        raw = np.array([factor]).astype(library_calls.FACTORS[dtype]).tobytes()
        assert launch.arguments[place] == raw + bytes(16 - len(raw))


def test_wide_matrices_get_wide_indices(there: InProcess, plain: str) -> None:
    ld = LARGEST_32_BIT_OFFSET // 3
    record = there(play, plain, [replace(PRODUCT, lda=ld), replace(PRODUCT, lda=ld + 1)])
    narrow, wide = record.launches
    assert narrow.binary.split()[1] == "32"
    assert wide.binary.split()[1] == "64"
    assert wide.values(64, "f4")[:6] == [6, 2, 3, 1.0, A, ld + 1]
    tall = Call("f32", "NN", LARGEST_32_BIT_OFFSET // 2 + 1, 1, 1)
    assert there(play, plain, [tall]).launches[0].binary.split()[1] == "64"


def test_kernels_are_loaded_once_and_unloaded(there: InProcess, plain: str) -> None:
    record = there(play, plain, [PRODUCT, replace(PRODUCT, m=70), SPLIT_PRODUCT, SPLIT_PRODUCT, ("load",)])
    loads = [line for line in record.log if line.startswith("load ")]
    assert len(loads) == len(set(loads)) == 2 * 7
    assert record.log.count("attribute 8 = 50000") == 2  # more shared memory than a kernel has unasked


def test_a_call_in_another_context_is_in_the_handles(there: InProcess, plain: str) -> None:
    record = there(play, plain, [("fake_context", 0xC1), PRODUCT, ("fake_context", 0), PRODUCT])
    assert record.statuses == [SUCCESS] * 2
    assert record.brief[0] == "push c0"
    assert record.brief[-4:] == ["pop", "push c0", "launch", "pop"]


def test_threads_with_a_handle_each(there: InProcess, plain: str) -> None:
    calls = {stream: [PRODUCT, replace(SPLIT_PRODUCT, m=32 * stream)] * 50 for stream in range(3, 11)}
    record = there(in_threads, plain, calls)
    assert record.errors == []
    assert len(record.launches) == 8 * 100
    workspaces: dict[int, set[tuple[int, int]]] = {}
    for launch in record.launches:
        partials, counters = launch.values(32, "f4")[11:]
        if partials:
            workspaces.setdefault(launch.stream, set()).add((partials, counters))
    assert all(len(of_stream) == 1 for of_stream in workspaces.values())
    assert len(set.union(*workspaces.values())) == 8
    allocated = [line.split()[1] for line in record.log if line.startswith("allocate")]
    assert sorted(allocated) == sorted(line.split()[1] for line in record.log if line.startswith("free"))


LAUNCHES = (
    PLAIN,
    SPLIT,
    Launch(threads=128, rows_per_block=64, smem_bytes=0, columns_per_block=8, splits=100),
    Launch(threads=128, rows_per_block=64, smem_bytes=0, splits=65, flat_splits=8),
    Launch(threads=128, rows_per_block=64, smem_bytes=0, columns_per_block=16, splits=264, persistent=True),
    Launch(threads=128, rows_per_block=1, smem_bytes=0, splits=5, persistent=True),
    Launch(threads=128, rows_per_block=64, smem_bytes=0, lone_split=True),
)


@pytest.mark.parametrize("number", range(len(LAUNCHES)))
@pytest.mark.parametrize("op", ["nn", "tn", "ttt"])
def test_a_launch_is_the_python_modules(
    there: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, op: str
) -> None:
    trials = tried(Problem(64, 8, 32, "f32", op), LAUNCHES[number])
    library = str(fabricated_library(tmp_path, trials))
    (tmp_path / "module").mkdir()
    module = imported(exported("module", winners(tmp_path / "module", trials)), tmp_path)
    driver = recording(module, monkeypatch)
    ops = {"nn": "NN", "tn": "TN", "ttt": "NN"}[op]
    for m, n, k in ((1, 1, 1), (256, 5, 3), (257, 17, 400), (10**5, 33, 7)):
        call = Call("f32", ops, m, n, k, ldc=m + 3, alpha=2, beta=3, a=1 << 40, b=1 << 50, c=1 << 60)
        record = there(play, library, [("fake_memory", 1 << 40), call])
        (launch,) = record.launches
        a, b, out = arrays(call)
        driver.workspaces = LAUNCHES[number].has_workspace
        module.gemm(a, b, out=out, alpha=2, beta=3)
        expected = driver.launches[-1]
        of_module = driver.memory.values()
        assert [int(line.split()[1]) for line in record.log if line.startswith("allocate")] == list(of_module)
        module._workspaces.clear()
        driver.memory.clear()
        assert (launch.grid, launch.block, launch.smem_bytes) == (
            expected["grid"],
            expected["block"],
            expected["smem"],
        )
        assert launch.values(32, "f4")[:11] == expected["values"][:11]


def recording(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> RecordingDriver:
    """A driver for the module that takes any address, and has memory enough."""
    driver = RecordingDriver()
    driver.free_bytes = 1 << 40

    def attribute(value: Any, attribute: int, address: Any) -> int:
        value._obj.value = 0 if attribute == 9 else 0xC0
        return 0

    monkeypatch.setattr(driver, "cuPointerGetAttribute", attribute)
    monkeypatch.setattr(module, "cuda", lambda: driver)
    monkeypatch.setattr(module, "_by_nvrtc", lambda winner, bits, arch: b"cubin")
    return driver


def arrays(call: Call) -> list[SimpleNamespace]:
    """The call's op(A), op(B) and C as device arrays."""
    m, n, k = call.m, call.n, call.k
    size = DTYPES[call.dtype].itemsize
    kind = {"bf16": "<V2"}.get(call.dtype, DTYPES[call.dtype].str)
    found = []
    facts = zip(
        "ABC", ((m, k), (k, n), (m, n)), (*call.ops, "N"), call.leading, (call.a, call.b, call.c), strict=True
    )
    for _, shape, operation, ld, at in facts:
        strides = (size, ld * size) if operation == "N" else (ld * size, size)
        interface = {"shape": shape, "typestr": kind, "data": (at, False), "version": 3, "strides": strides}
        dtype = "bfloat16" if call.dtype == "bf16" else kind
        found.append(SimpleNamespace(__cuda_array_interface__=interface, dtype=dtype))
    return found


# The workspace


def test_a_split_kernel_gets_partials_and_zeroed_counters(there: InProcess, plain: str) -> None:
    record = there(play, plain, [("set_stream", 7), SPLIT_PRODUCT, SPLIT_PRODUCT])
    workspace = [line for line in record.brief if line.split()[0] in ("allocate", "zero", "launch", "wait")]
    counters = record.launches[0].values(32, "f4")[12]
    zeroed = f"zero {counters:x} 9 words on 7"
    assert workspace == [f"allocate {SPLIT_BYTES}", "allocate 36", zeroed, "launch", "launch"]
    assert record.launches[0] == record.launches[1]


def test_the_workspace_grows_and_goes_with_the_stream(there: InProcess, plain: str) -> None:
    larger = replace(SPLIT_PRODUCT, m=128)
    steps = [
        ("set_stream", 7),
        SPLIT_PRODUCT,
        larger,
        ("set_stream", 8),
        SPLIT_PRODUCT,
        ("fake_stream_ids", 50),
        larger,
    ]
    record = there(play, plain, steps)
    workspace = [line for line in record.brief if line.split()[0] in ("allocate", "free", "launch", "wait")]
    more = SPLIT_BYTES // 9 * 12
    assert workspace == [
        f"allocate {SPLIT_BYTES}",
        "allocate 36",
        "launch",
        "wait for 7",
        f"free {SPLIT_BYTES}",
        "free 36",
        f"allocate {more}",
        "allocate 48",
        "launch",
        "wait for all",  # for what the other stream has
        "launch",
        "wait for all",  # the same handle, and another stream
        "launch",
    ]


def test_a_workspace_of_the_callers(there: InProcess, plain: str) -> None:
    at = 0x7000000
    steps = [("workspace_size", SPLIT_PRODUCT), ("workspace_size", PRODUCT), SPLIT_PRODUCT]
    needed = there(play, plain, steps[:1]).values["workspace_size"]
    assert SPLIT_BYTES + 36 < needed < SPLIT_BYTES * 1.1 + 512
    assert there(play, plain, steps[1:2]).values["workspace_size"] == 0
    for size, status in ((needed, SUCCESS), (needed + 12345, SUCCESS), (SPLIT_BYTES, WORKSPACE_TOO_SMALL)):
        record = there(play, plain, [("set_workspace", at, size), SPLIT_PRODUCT, PRODUCT])
        assert record.statuses == [SUCCESS, status, SUCCESS]
        assert not any(line.startswith("allocate") for line in record.log)
        if status == SUCCESS:
            partials, counters = record.launches[0].values(32, "f4")[11:]
            zeroed = next(line for line in record.log if line.startswith("zero"))
            words = int(zeroed.split()[2])
            assert zeroed == f"zero {counters:x} {words} words on 0"
            assert partials == at
            assert counters >= at + SPLIT_BYTES
            assert words >= 9
            assert counters + words * 4 <= at + size
        else:
            assert record.errors[1] == f"this product needs a workspace of {needed} bytes"
    own_again = there(play, plain, [("set_workspace", at, needed), ("set_workspace", None, 0), SPLIT_PRODUCT])
    assert f"allocate {SPLIT_BYTES}" in own_again.log
    for address, size, error in ((at + 8, needed, "argument 2, workspace: its"), (at, 255, "argument 3, bytes: exp")):
        refused = there(play, plain, [("set_workspace", address, size)])
        assert refused.statuses == [INVALID_VALUE]
        assert refused.errors[0].startswith(error)


def test_a_captured_product_has_the_callers_workspace(there: InProcess, plain: str) -> None:
    captured = [("set_stream", 7), ("fake_capture", 7)]
    record = there(play, plain, [*captured, SPLIT_PRODUCT, PRODUCT])
    assert record.statuses == [NOT_SUPPORTED, SUCCESS]
    assert "a CUDA graph has from the caller: tsm2_set_workspace" in record.errors[0]
    record = there(play, plain, [("set_workspace", 0x7000000, 1 << 20), *captured, SPLIT_PRODUCT])
    assert record.statuses == [SUCCESS] * 2


@pytest.mark.parametrize("free_bytes", [0, SPLIT_BYTES])
def test_without_memory_it_says_so_and_goes_on(there: InProcess, plain: str, free_bytes: int) -> None:
    steps = [("fake_memory", free_bytes), SPLIT_PRODUCT, ("fake_memory", 1 << 20), SPLIT_PRODUCT]
    record = there(play, plain, steps)
    assert record.statuses == [OUT_OF_MEMORY, SUCCESS]
    assert record.errors[0] == f"the GPU has no room for the {SPLIT_BYTES + 36} bytes in which a kernel splits k"


# The choice


def pack_of_everything(seed: int) -> list[tuple[TuningRun, Trial]]:
    """Winners of every type and op at random shapes, on two GPUs."""
    rng, trials = random.Random(seed), []
    extents = (1, 2, 4, 8, 16, 64, 4096, 20480, 10**6)
    ops = [a + b for a, b in product("nt", repeat=2)] + ["nnt", "tnt", "ntt", "ttt", "tx", "nxt"]
    for dtype, run in product(TYPES, (RUN, A100)):
        every = [*ops, "cn", "nc", "cc", "cx", "jtt", "tjt", "jxt", "tc"] if dtype.startswith("c") else ops
        for op in rng.sample(every, 6):
            for _ in range(rng.randint(1, 4)):
                m, n, k = (rng.choice(extents) for _ in "mnk")
                problem = Problem(m, m if "x" in op else n, k, dtype, op)
                trials.append(tried(problem, run=run, median_us=rng.choice((5.0, 6.5, 7.25))))
    return trials


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("device", [(GPU, 9, 0), OTHERS, ("NVIDIA H100", 9, 0)])
def test_the_choice_is_the_python_modules(
    there: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, device: tuple[str, int, int]
) -> None:
    trials = pack_of_everything(seed)
    library = str(fabricated_library(tmp_path, *trials))
    (tmp_path / "module").mkdir()
    module = imported(exported("module", winners(tmp_path / "module", *trials)), tmp_path)
    recording(module, monkeypatch)
    monkeypatch.setattr(module, "device_of", lambda ordinal: (device[0], "sm_90a"))
    calls = random_calls(1000, seed)
    found = there(choices, library, calls, device)
    swapped = grams = 0
    for call, (status, text, error) in zip(calls, found, strict=True):
        conjugates = {f"conj_{x}": operation == "C" for x, operation in zip("ab", call.ops, strict=True)}
        try:
            match = module.choice(*arrays(call), **conjugates, fallback="error")
        except (LookupError, ValueError):
            assert (status, text) == (NOT_SUPPORTED, ""), call
            assert error.startswith(f"no {call.dtype} kernel for op "), call
            continue
        assert (status, text) == (SUCCESS, f"{match.winner.config}, {match}"), call
        swapped += match.swapped
        grams += match.winner.is_gram
    assert swapped > 20
    assert grams > 5


def test_the_choice_tells_the_vendors_time(there: InProcess, tmp_path: Path) -> None:
    rows, sources = winners(tmp_path, tried())
    told = vendor_measurement(470.0)
    row = replace(
        rows[0], vendor_us=told.measurement.median_us, vendor_right=1, vendor_routine=told.routine, x_cublas=0.94
    )
    cubins = {(row.source_digest, bits, "sm_90a"): b"cubin\0" for bits in (32, 64)}
    path = tmp_path / "libtsm2.so"
    path.write_bytes(library_calls.library_bytes([(row, sources[row.trial_id])], cubins, path.name))
    ((status, text, _),) = there(choices, str(path), [PRODUCT], (GPU, 9, 0))
    assert (status, text) == (SUCCESS, f"{row.config}, exact: 500.0 us, cublasSgemm 470.0 us")


def test_a_text_that_is_too_long_is_cut(there: InProcess, plain: str) -> None:
    record = there(play, plain, [("choice", PRODUCT, 10)])
    assert record.values["choice"] == (SUCCESS, "tsm2-v3-t")


def test_a_product_without_a_kernel_or_a_binary(there: InProcess, plain: str) -> None:
    record = there(play, plain, [replace(PRODUCT, ops="NT", dtype="f64"), replace(PRODUCT, ops="TT")])
    assert record.statuses == [NOT_SUPPORTED, NOT_SUPPORTED]
    assert record.errors == [
        "no f64 kernel for op nt is in this library, only for nn: tune with --dtype f64 --op nt and export again",
        "no f32 kernel for op tt is in this library, only for nn, tn: tune with --dtype f32 --op tt and export again",
    ]
    record = there(play, plain, [PRODUCT], OTHERS)
    assert record.statuses == [NOT_SUPPORTED]
    assert "of NVIDIA H200: no binary of it for sm_80 is in this library" in record.errors[0]


# Statuses


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"m": -1}, "argument 4, m: -1, expected at least 0"),
        ({"n": -2}, "argument 5, n: -2, expected at least 0"),
        ({"k": -3}, "argument 6, k: -3, expected at least 0"),
        ({"lda": 5}, "argument 9, lda: 5, expected at least 6"),
        ({"ops": "TN", "lda": 2}, "argument 9, lda: 2, expected at least 3"),
        ({"ldb": 2}, "argument 11, ldb: 2, expected at least 3"),
        ({"ops": "NT", "ldb": 1}, "argument 11, ldb: 1, expected at least 2"),
        ({"ldc": 5}, "argument 14, ldc: 5, expected at least 6"),
        ({"m": 0, "lda": -1}, "argument 9, lda: -1, expected at least 1"),
        ({"a": 0}, "argument 8, A: it is NULL"),
        ({"b": 0}, "argument 10, B: it is NULL"),
        ({"c": 0}, "argument 13, C: it is NULL"),
        ({"a": 0x1002}, "argument 8, A: its address is not a multiple of 4 bytes"),
        ({"ldb": 1 << 60}, "argument 11, ldb: 1152921504606846976 times 2 columns is more than any memory"),
    ],
)
def test_arguments_are_checked_as_in_blas(there: InProcess, plain: str, change: dict[str, Any], error: str) -> None:
    record = there(play, plain, [replace(PRODUCT, **change), PRODUCT])
    assert (record.statuses, record.errors) == ([INVALID_VALUE, SUCCESS], [error, ""])


def test_extents_of_0_are_as_in_blas(there: InProcess, plain: str) -> None:
    empty = [replace(PRODUCT, m=0, a=0, c=0), replace(PRODUCT, n=0, b=0), replace(PRODUCT, k=0, beta=1, a=0)]
    record = there(play, plain, empty)
    assert (record.statuses, record.log) == ([SUCCESS] * 3, [])
    for dtype, size in (("f32", 4), ("c128", 16), ("bf16", 2)):
        record = there(play, plain, [Call(dtype, "TN", 6, 2, 0, ldc=9, a=0, b=0)])
        assert record.statuses == [SUCCESS]
        assert record.log == [f"zero {C:x} pitch {9 * size} width {6 * size} height 2 on 0"]
    record = there(play, plain, [replace(PRODUCT, k=0, beta=2), Call("c64", "NN", 6, 2, 0, beta=1j)])
    assert record.statuses == [NOT_SUPPORTED] * 2
    assert record.errors[0] == "no kernel scales C: with k = 0 beta must be 0 or 1"
    ((status, _, error),) = there(choices, plain, [replace(PRODUCT, k=0)], (GPU, 9, 0))
    assert (status, error) == (NOT_SUPPORTED, "an extent is 0: no kernel computes that")


@pytest.mark.parametrize(
    "function", ["cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel", "cuCtxPushCurrent"]
)
def test_the_drivers_errors_have_their_names(there: InProcess, plain: str, function: str) -> None:
    steps = [("fake_context", 0xC1), ("fake_fail", function.encode(), 1), PRODUCT, ("fake_fail", b"", 0), PRODUCT]
    record = there(play, plain, steps)
    assert record.statuses == [DRIVER_ERROR, SUCCESS]
    assert record.errors == [f"{function} failed: CUDA_ERROR_INVALID_VALUE", ""]
    assert record.brief.count("pop") == record.brief.count("push c0")
    loaded = sum(line.startswith("load ") for line in record.log)
    unloaded = sum(line.startswith("unload ") for line in record.log)
    assert loaded - unloaded == 1


def test_a_handle_needs_a_driver_and_a_context(there: InProcess, plain: str) -> None:
    assert there(created, [], plain) == (SUCCESS, "success")
    status, words = there(created, [("fake_context", 0)], plain)
    assert (status, words) == (NO_CONTEXT, "no CUDA context is current: cudaFree(0) makes one")
    status, words = there(created, [("fake_fail", b"cuInit", 100)], plain)
    assert status == NO_DRIVER
    assert words.startswith("no CUDA driver: libcuda.so.1 is not there")
    assert there(created, [("fake_fail", b"cuCtxGetDevice", 1)], plain)[0] == DRIVER_ERROR


def test_a_changed_binary_is_refused(there: InProcess, plain: str, tmp_path: Path) -> None:
    content = Path(plain).read_bytes()
    first = there(play, plain, [PRODUCT]).log[0].removeprefix("load ").encode()
    assert content.count(first) == 1
    changed = tmp_path / "libtsm2.so"
    changed.write_bytes(content.replace(first, first.replace(b"sm_90a", b"sm_90b")))
    record = there(play, str(changed), [PRODUCT, replace(PRODUCT, dtype="f64")])
    assert record.statuses == [WRONG_DIGEST, SUCCESS]
    assert "does not match its digest" in record.errors[0]
    assert record.brief[-1] == "launch"
    assert sum(line.startswith("load ") for line in record.log) == 1


def test_a_stream_is_told(there: InProcess, plain: str) -> None:
    assert there(play, plain, [("set_stream", 77), ("stream",)]).values["stream"] == 77


# The files


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with two winners of a GPU, one of --math and one of a host."""
    path = tmp_path / "results.db"
    gpu, maths = Problem(4096, 8, 512, "f32"), Problem(4096, 8, 512, "minplus_f32")
    with Store.open(path, create=True) as store:
        for run, problem in ((RUN, PROBLEM), (RUN, gpu), (RUN, maths), (host_run(), PROBLEM)):
            store.add_trial(run, trial(problem=problem, source=kernel(configuration(), problem)))
    return path


def run(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["export", "--format", "library", *arguments])


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_it_is_exported_with_its_header_and_its_interface(there: InProcess, path: Path, tmp_path: Path) -> None:
    output = tmp_path / "libmine.so"
    done = run("--db", str(path), "--output", str(output))
    assert done.exit_code == 0, done.output
    assert "left out: 1 winner of a host" in done.output
    assert {file.name for file in tmp_path.glob("*mine*")} == {"libmine.so", "libmine.h", "libmine.f90"}
    assert (tmp_path / "libmine.h").read_bytes() == (SOURCES / "tsm2.h").read_bytes()
    record = there(play, str(output), [Call("f32", "NN", 4096, 8, 512), ("load",)])
    assert record.statuses == [SUCCESS] * 2
    assert all(line.startswith("load \x7fELF") for line in record.log if line.startswith("load "))
    ((_, text, _),) = there(choices, str(output), [Call("f32", "NN", 4096, 8, 512)], (GPU, 9, 0))
    assert text == f"{configuration().text}, exact: 500.0 us"
    again = run("--db", str(path), "--output", str(tmp_path / "second" / ".." / "libmine.so"))
    assert again.exit_code in (0, 2)


def test_it_needs_the_c_library_alone(plain: str) -> None:
    if shutil.which("readelf") is None:
        pytest.skip("no readelf")
    told = subprocess.run(["readelf", "-d", plain], check=True, capture_output=True, text=True).stdout
    needed = {line.rpartition("[")[2].partition(".so")[0] for line in told.splitlines() if "(NEEDED)" in line}
    assert needed <= {"libc", "libdl", "libm", "ld-linux-x86-64", "ld-linux-aarch64"}
    assert "[libtsm2.so]" in told


@pytest.mark.parametrize("name", ["-", "libtsm2", "libtsm2.h", ".so"])
def test_other_names_are_refused(path: Path, tmp_path: Path, name: str) -> None:
    output = name if name == "-" else str(tmp_path / name)
    done = run("--db", str(path), "--output", output)
    assert (done.exit_code, done.output.count("\n")) == (2, 1)
    assert "name a file that ends in .so, such as libtsm2.so" in done.output


@pytest.mark.parametrize("missing", ["nvcc", "c++"])
def test_without_a_compiler_nothing_is_written(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    def refuse(*_: object) -> None:
        raise ToolMissing(f"{missing} not found: install it")

    name = "library.compiler_command" if missing == "c++" else "binaries.cuda_toolchain"
    monkeypatch.setattr(f"tsm2_tune.tuner.export.{name}", refuse)
    before = sorted(tmp_path.rglob("*"))
    done = run("--db", str(path), "--dtype", "f32", "--device", GPU, "--output", str(tmp_path / "libtsm2.so"))
    assert (done.exit_code, done.output.splitlines()[-1]) == (2, f"Error: {missing} not found: install it")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_where_one_file_cannot_be_written_none_is(path: Path, tmp_path: Path) -> None:
    (tmp_path / "libtsm2.f90").mkdir()
    (tmp_path / "libtsm2.h").write_text("of before")
    before = sorted(tmp_path.rglob("*"))
    done = run("--db", str(path), "--output", str(tmp_path / "libtsm2.so"))
    assert done.exit_code == 2
    assert f"cannot write {tmp_path}/libtsm2.f90" in done.output
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "libtsm2.h").read_text() == "of before"


def test_winners_that_a_library_has_no_function_for(tmp_path: Path) -> None:
    with Store.open(tmp_path / "results.db", create=True) as store:
        store.add_trial(host_run(), trial())
        with pytest.raises(
            InputError, match="has no winner of what was asked for that was tuned on a GPU for one of f32"
        ):
            export_library(store, str(tmp_path / "libtsm2.so"))


def test_no_binaries_is_of_a_module(path: Path, tmp_path: Path) -> None:
    done = run("--db", str(path), "--no-binaries", "--output", str(tmp_path / "libtsm2.so"))
    assert done.exit_code == 2
    assert "--no-binaries is of a module" in done.output


def test_nothing_from_the_database_becomes_code(there: InProcess, tmp_path: Path) -> None:
    nasty = "A\"B'C\\D*/ // # ??/ %d %s \n\x01é"
    rows, sources = winners(tmp_path, tried())
    row = replace(rows[0], device=nasty, driver=nasty, toolkit=nasty, flags=nasty, tuned_at="2026-01-02")
    cubins = {(row.source_digest, bits, "sm_90a"): b"cubin\0" for bits in (32, 64)}
    path = tmp_path / "libtsm2.so"
    path.write_bytes(library_calls.library_bytes([(row, sources[row.trial_id])], cubins, path.name))
    ((status, text, _),) = there(choices, str(path), [PRODUCT], (nasty, 9, 0))
    assert (status, text) == (SUCCESS, f"{row.config}, exact: 500.0 us")
    ((status, text, _),) = there(choices, str(path), [PRODUCT], (GPU, 9, 0))
    assert f"tuned on {nasty}: no winner of {GPU} fits" in text


STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"]


@pytest.mark.parametrize(("language", "standard"), [("c", "c99"), ("c", "c11"), ("c++", "c++11"), ("c++", "c++17")])
def test_the_header_compiles(tmp_path: Path, language: str, standard: str) -> None:
    header = tmp_path / "libtsm2.h"
    header.write_bytes((SOURCES / "tsm2.h").read_bytes())
    user = tmp_path / "user"
    user.write_text(
        '#include "libtsm2.h"\n#include "libtsm2.h"\n'
        "int user(tsm2_handle handle);\n"
        "int user(tsm2_handle handle)\n{\n"
        "    const float one = 1;\n    float *x = 0;\n"
        "    return tsm2_gemm_f32(handle, TSM2_N, TSM2_T, 1, 1, 1, &one, x, 1, x, 1, &one, x, 1) == TSM2_SUCCESS;\n}\n"
    )
    compiler = shutil.which("c++" if language == "c++" else "cc")
    if compiler is None:
        pytest.skip("no C++ compiler")
    command = [compiler, *STRICT, f"-std={standard}", "-x", language, "-c", str(user), "-o", str(tmp_path / "user.o")]
    subprocess.run(command, check=True)


@pytest.mark.parametrize("file", sorted(file.name for file in SOURCES.iterdir() if file.name.endswith(".c")))
def test_the_c_texts_are_clean(tmp_path: Path, file: str) -> None:
    command = ["cc", *STRICT, "-std=c11", "-O2", "-c", str(SOURCES / file), "-o", str(tmp_path / "text.o")]
    subprocess.run(command, check=True)


@pytest.mark.skipif(shutil.which("gfortran") is None, reason="no gfortran")
def test_the_interface_for_fortran_compiles(tmp_path: Path) -> None:
    interface, example = SOURCES / "tsm2.f90", Path(__file__).parent.parent / "examples" / "library.f90"
    for text in (interface, example):
        command = ["gfortran", "-std=f2008", "-Wall", "-Wextra", "-Werror", "-c", str(text), "-o", "text.o"]
        subprocess.run(command, check=True, cwd=tmp_path)


def test_the_interface_for_fortran_is_the_headers() -> None:
    import re

    header, interface = (SOURCES / "tsm2.h").read_text(), (SOURCES / "tsm2.f90").read_text()
    code = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    in_c = {
        name: [re.split(r"[ *]+", one.strip())[-1].lower() for one in arguments.split(",")]
        for name, arguments in re.findall(r"(tsm2_\w+)\(([^)]*)\);", code)
    }
    joined = re.sub(r"&\s*\n\s*", "", interface)
    in_fortran = {
        name: arguments.lower().split(", ")
        for name, arguments in re.findall(r"function (tsm2_\w+)\((.*?)\) bind\(c\)", joined)
    }
    assert len(in_fortran) == 14
    for name, arguments in in_fortran.items():
        expected = ["element_type" if one == "type" else one for one in in_c[name]]
        assert arguments == expected, name
    constants = dict(re.findall(r"TSM2_(\w+) = (\d+)", code))
    assert {n.upper(): v for n, v in re.findall(r"enumerator :: tsm2_(\w+) = (\d+)", interface)} == constants
