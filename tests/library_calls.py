"""An exported C library, called by ctypes; also in a process whose CUDA driver only writes down its calls."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from tests.calls import OPS, SIZES, TYPES, Call
from tests.fabricated import configuration, kernels_of, source, trial, tuning_run, winners
from tests.library_batches import Batch, array_of
from tests.threads_on_gpu import in_threads as run_in_threads
from tsm2_tune.generator.config import Launch
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.source import INDEX_BITS, KernelSource
from tsm2_tune.tuner.export.cubins import compiled_cubins
from tsm2_tune.tuner.export.gathered import Kernel
from tsm2_tune.tuner.export.library import BESIDE, SOURCES, library_bytes
from tsm2_tune.tuner.packs.core_pack import DeviceRates
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.trial import Trial, TuningRun

SUCCESS, INVALID_VALUE, NOT_SUPPORTED, NO_DRIVER, NO_CONTEXT = range(5)
DRIVER_ERROR, OUT_OF_MEMORY, WORKSPACE_TOO_SMALL, WRONG_DIGEST = range(5, 9)
OPERATIONS = "NTC"
H200 = tuning_run()
A100 = tuning_run("NVIDIA A100", compute_capability="8.0", flags="-arch=sm_80")
OTHERS = ("NVIDIA A100", 8, 0)  # name and compute capability
PLAIN = Launch(threads=128, rows_per_block=128, smem_bytes=4096)
SPLIT = Launch(threads=64, rows_per_block=32, smem_bytes=50000, columns_per_block=4, splits=3)
InProcess = Callable[..., Any]
SKINNY = Problem(6, 2, 3, "f32")


PRODUCT = Call("f32", "NN", 6, 2, 3)


class Handle:
    """A handle of the library at this path."""

    def __init__(self, path: str) -> None:
        self.library = library = ctypes.CDLL(path)
        for name in ("tsm2_last_error", "tsm2_status_text", "tsm2_about"):
            getattr(library, name).restype = ctypes.c_char_p
        self.handle = ctypes.c_void_p()
        self.created = library.tsm2_create(ctypes.byref(self.handle))

    @property
    def error(self) -> str:
        return self.library.tsm2_last_error(self.handle).decode()  # type: ignore[no-any-return]

    def gemm(self, of: Call | Batch) -> int:
        call = of.call if isinstance(of, Batch) else of
        factors = [np.array([factor]) for factor in call.factors]
        alpha, beta = (ctypes.c_void_p(factor.ctypes.data) for factor in factors)
        shape, matrices, count = self._described(of)
        name = "_strided_batched" * bool(count)
        if isinstance(of, Batch) and of.arrays:
            name, bytes_apart = "_batched", [stride * SIZES[call.dtype] for stride in of.strides]
            places = zip((call.a, call.b, call.c), bytes_apart, of.arrays, strict=True)
            pointers = [array_of(at, of.count, stride, change) for at, stride, change in places]
            matrices = [[given, ld] for given, (_, ld, _) in zip(pointers, matrices, strict=True)]
        a, b, c = matrices
        routine = getattr(self.library, f"tsm2_gemm_{call.dtype}{name}")
        return int(routine(self.handle, *shape, alpha, *a, *b, beta, *c, *count))

    def _described(self, of: Call | Batch) -> tuple[list[Any], list[list[Any]], list[Any]]:
        """Return operations and extents, for each matrix its address, leading dimension and stride, and the count."""
        call, strides, count = (of.call, of.strides, [of.count]) if isinstance(of, Batch) else (of, (), [])
        operations = [OPERATIONS.index(letter) for letter in call.ops]
        extents = [ctypes.c_int64(extent) for extent in (call.m, call.n, call.k)]
        matrices: list[list[Any]] = [
            [ctypes.c_void_p(at), ctypes.c_int64(ld)]
            for at, ld in zip((call.a, call.b, call.c), call.leading, strict=True)
        ]
        for matrix, stride in zip(matrices, strides, strict=False):
            matrix.append(ctypes.c_int64(stride))
        return [*operations, *extents], matrices, list(map(ctypes.c_int64, count))

    def _ask(self, name: str, of: Call | Batch, *outputs: Any) -> int:
        """Return the status of a function that is asked about a product or a batch, whose C has no address."""
        shape, (a, b, c), count = self._described(of)
        function = getattr(self.library, f"tsm2_{name}{'_strided_batched' * bool(count)}")
        dtype = of.call.dtype if isinstance(of, Batch) else of.dtype
        return int(function(self.handle, TYPES.index(dtype), *shape, *a, *b, *c[1:], *count, *outputs))

    def choice(self, of: Call | Batch, size: int = 1024) -> tuple[int, str]:
        text = ctypes.create_string_buffer(size)
        return self._ask("choice", of, text, ctypes.c_size_t(size)), text.value.decode()

    def workspace_size(self, of: Call | Batch) -> int:
        size = ctypes.c_size_t()
        assert self._ask("workspace_size", of, ctypes.byref(size)) == SUCCESS, self.error
        return size.value

    def compare(self, of: Call | Batch) -> tuple[int, float, float, bool]:
        us, vendor_us, is_slower = ctypes.c_double(), ctypes.c_double(), ctypes.c_int(-1)
        status = self._ask("compare", of, *(ctypes.byref(one) for one in (us, vendor_us, is_slower)))
        return status, us.value, vendor_us.value, bool(is_slower.value)

    def beside(self) -> Handle:
        """Another one, which shares its kernels."""
        other = Handle.__new__(Handle)
        other.library, other.handle = self.library, ctypes.c_void_p()
        other.created = self.library.tsm2_create_beside(self.handle, ctypes.byref(other.handle))
        return other

    def set_workspace(self, address: int | None, size: int) -> int:
        return int(self.library.tsm2_set_workspace(self.handle, ctypes.c_void_p(address), ctypes.c_size_t(size)))

    def set_stream(self, stream: int) -> None:
        assert self.library.tsm2_set_stream(self.handle, ctypes.c_void_p(stream)) == SUCCESS

    def stream(self) -> int | None:
        found = ctypes.c_void_p()
        assert self.library.tsm2_get_stream(self.handle, ctypes.byref(found)) == SUCCESS
        return found.value

    def load(self) -> int:
        return int(self.library.tsm2_load(self.handle))

    def destroy(self) -> int:
        return int(self.library.tsm2_destroy(self.handle))


# Contents of a library


def tried(
    problem: Problem = SKINNY, launch: Launch = PLAIN, *, run: TuningRun = H200, **changes: Any
) -> tuple[TuningRun, Trial]:
    """A winner with this launch, whose text is its own."""
    text = f'const char *made_for = "{problem.text} {launch} {run.identity.name}";\n'
    own = replace(source(configuration(), problem.dtype_name, text), launch=launch)
    return run, trial(problem=problem, source=own, **changes)


def problems_of_all() -> list[Problem]:
    """Return a problem for each type and each of BLAS's operations: of f64 and c128 the transposed one."""
    calls = [Call(dtype, op, 6, 2, 3) for dtype, ops in OPS.items() for op in ops]
    calls = [call.transposed() if call.dtype in ("f64", "c128") else call for call in calls]
    return [Problem(one.m, one.n, one.k, one.dtype, one.ops.lower() + "t" * (one.order == "C")) for one in calls]


def fabricated_library(
    folder: Path,
    *trials: tuple[TuningRun, Trial],
    kernels: Sequence[Kernel] = (),
    rates: Mapping[str, DeviceRates] = MappingProxyType({}),
) -> Path:
    """A library of the trials' winners, whose binaries are names: first letters of the digest, width, architecture,
    and of kernels of batches the number of parameters."""
    kernels = kernels or kernels_of(winners(folder, *trials))
    keys = {
        (row.source_digest, bits, f"sm_{row.compute_capability.replace('.', '').replace('90', '90a')}")
        for row in (one.row for one in kernels)
        for bits in INDEX_BITS
    }
    launches = {one.row.source_digest: one.source.launch for one in kernels}
    cubins = {key: _binary(*key, launches[key[0]]) for key in sorted(keys)}
    path = folder / "libtsm2.so"
    path.write_bytes(library_bytes(kernels, rates, cubins, path.name))
    return path


def library_of(path: Path, row: BestRow, sources: Mapping[int, KernelSource]) -> Path:
    """A library of one winner, whose binaries are no code."""
    cubins = {(row.source_digest, bits, "sm_90a"): b"cubin\0" for bits in INDEX_BITS}
    path.write_bytes(library_bytes(kernels_of(((row,), sources)), {}, cubins, path.name))
    return path


def _binary(digest: str, bits: int, architecture: str, launch: Launch) -> bytes:
    number = f" {parameters_of(launch)}" if launch.batched else ""
    return f"{digest[:8]} {bits} {architecture}{number}\0".encode()


def parameters_of(launch: Launch) -> int:
    """Return the number of a kernel's parameters."""
    of_workspace = OF_WORKSPACE * (1 + bool(launch.batched)) * launch.has_workspace
    return PLAIN_ARGUMENTS - OF_WORKSPACE + of_workspace + OF_BATCH * bool(launch.batched)


# In a process with a driver that writes down its calls


@contextmanager
def recording_process(folder: Path) -> Iterator[InProcess]:
    """A function that calls another with its arguments in a process with the driver in the folder."""
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("LD_LIBRARY_PATH"))))
    with pytest.MonkeyPatch.context() as patch, ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        patch.setenv("LD_LIBRARY_PATH", path)  # before the pool's first call starts the process
        yield lambda function, *arguments: pool.submit(function, *arguments).result(120)


ARGUMENT_DIGITS = 32  # hexadecimal digits of an argument in the driver's log
# Numbers of arguments: of a single product; the workspace's, and its strides; of a batch
PLAIN_ARGUMENTS, OF_WORKSPACE, OF_BATCH = 13, 2, 4


def kinds_of(count: int, bits: int, sum_type: str) -> list[np.dtype[Any]]:
    """Return the types of so many arguments. Behind a single product's are the batch and its strides."""
    index, factor, pointer, wide = np.dtype(f"i{bits // 8}"), np.dtype(sum_type), np.dtype("u8"), np.dtype("i8")
    operand = [pointer, index]
    has_workspace = count != PLAIN_ARGUMENTS - OF_WORKSPACE + OF_BATCH
    kinds = [index] * 3 + [factor, *operand, *operand, factor, *operand] + [pointer] * OF_WORKSPACE * has_workspace
    return kinds if count == PLAIN_ARGUMENTS else [*kinds, np.dtype("i4"), *[wide] * (count - len(kinds) - 1)]


@dataclass(frozen=True)
class Started:
    """A launch, as the driver got it."""

    grid: list[int]
    block: list[int]
    smem_bytes: int
    stream: int
    arguments: list[bytes]
    binary: str

    @classmethod
    def of(cls, line: str) -> Started:
        words = line.split(" ")
        numbers = [int(word) for word in words[1:9]]
        count = sum(len(word) == ARGUMENT_DIGITS for word in words[9:])
        arguments = [bytes.fromhex(one) for one in words[9 : 9 + count]]
        return cls(numbers[:3], numbers[3:6], numbers[6], numbers[7], arguments, " ".join(words[9 + count :]))

    def values(self, bits: int, sum_type: str) -> list[Any]:
        """m, n, k, alpha, A, lda, B, ldb, beta, C, ldc, partials, counters; of a batch also what `kinds_of` adds."""
        kinds = kinds_of(len(self.arguments), bits, sum_type)
        return [np.frombuffer(raw, kind, 1)[0].item() for raw, kind in zip(self.arguments, kinds, strict=True)]


@dataclass
class Record:
    """Result of a scenario: statuses, texts of errors, and the calls of the driver."""

    log: list[str]
    statuses: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def launches(self) -> list[Started]:
        return [Started.of(line) for line in self.log if line.startswith("launch ")]

    @property
    def brief(self) -> list[str]:
        """The driver's calls, launches by the word alone."""
        return ["launch" if line.startswith("launch ") else line for line in self.log]


def driver() -> Any:
    """The recording driver of this process, as at first."""
    library = ctypes.CDLL("libcuda.so.1")
    library.fake_log.restype = ctypes.c_char_p
    for name in ("fake_memory", "fake_capture", "fake_stream_ids", "fake_context"):
        getattr(library, name).argtypes = [ctypes.c_ulonglong]
    library.fake_reset()
    library.fake_context(0xC0)
    library.fake_device(b"NVIDIA H200", 9, 0)
    library.fake_memory_type(ctypes.c_ulonglong(0), 0)
    return library


def play(path: str, steps: Sequence[Any], device: tuple[str, int, int] = ("NVIDIA H200", 9, 0)) -> Record:
    """Do the steps with a new handle, one after another.

    A step is a Call or a Batch, a driver's `fake_` function with its arguments, or a name of Handle's with its own.
    """
    fake = driver()
    fake.fake_device(device[0].encode(), *device[1:])
    handle = Handle(path)
    assert handle.created == SUCCESS, handle.created
    record = Record([])
    for step in steps:
        if isinstance(step, Call | Batch):
            record.statuses.append(handle.gemm(step))
            record.errors.append(handle.error)
        elif step[0].startswith("fake_"):
            getattr(fake, step[0])(*step[1:])
        else:
            found = getattr(handle, step[0])(*step[1:])
            record.values[step[0]] = found
            if step[0] in ("load", "set_workspace"):
                record.statuses.append(found)
                record.errors.append(handle.error)
    record.log = fake.fake_log().decode(errors="replace").splitlines()
    handle.destroy()
    return record


def beside_each_other(path: str) -> Record:
    """Two handles that share kernels, the first of which ends before the other; and one in another context."""
    fake = driver()
    first = Handle(path)
    second = first.beside()
    record = Record([], statuses=[first.created, second.created])
    record.statuses += [first.gemm(PRODUCT), second.gemm(PRODUCT)]
    record.values["loaded"] = fake.fake_log().decode().count("load ")
    record.statuses += [first.destroy(), second.gemm(PRODUCT)]
    fake.fake_context(0xC1)
    third = second.beside()
    record.values["elsewhere"], record.values["why"] = third.created, third.error
    record.values["unloaded"] = fake.fake_log().decode().count("unload ")
    record.statuses.append(second.destroy())
    record.log = fake.fake_log().decode(errors="replace").splitlines()
    return record


def created(steps: Sequence[tuple[Any, ...]], path: str) -> tuple[int, str, list[str]]:
    """The status of a handle made after the driver was told so, that status in words, and the last error of the
    handle, in this thread and in another one.
    """
    fake = driver()
    for name, *arguments in steps:
        getattr(fake, name)(*arguments)
    handle = Handle(path)
    words = handle.library.tsm2_status_text(handle.created).decode()
    errors = [handle.error]
    other = threading.Thread(target=lambda: errors.append(handle.error))
    other.start()
    other.join()
    if handle.created == SUCCESS:
        handle.destroy()
    return handle.created, words, errors


def choices(path: str, calls: Sequence[Call], device: tuple[str, int, int]) -> list[tuple[int, str, str]]:
    """Return each call's status, its choice in words, and the text of the error."""
    driver().fake_device(device[0].encode(), *device[1:])
    handle = Handle(path)
    found = [(*handle.choice(call), handle.error) for call in calls]
    again = [(*handle.choice(call), handle.error) for call in calls]  # from the cache of choices
    assert found == again
    handle.destroy()
    return found


def compared(path: str, calls: Sequence[Call], device: tuple[str, int, int]) -> list[tuple[int, float, float, bool]]:
    """Return each call's status, the expected times of the library and cuBLAS, and whether the library is faster."""
    driver().fake_device(device[0].encode(), *device[1:])
    handle = Handle(path)
    found = [handle.compare(call) for call in calls]
    handle.destroy()
    return found


def in_threads(path: str, calls: Mapping[int, Sequence[Call]]) -> Record:
    """By thread of this process, each with a handle and a stream of its own, the calls."""
    fake = driver()
    failures: list[str] = []

    def work(stream: int, own: Sequence[Call]) -> None:
        fake.fake_context(0xC0)
        handle = Handle(path)
        handle.set_stream(stream)
        fake.fake_context(0)  # the handle's is made current for each call
        failures.extend(handle.error for call in own if handle.gemm(call) != SUCCESS)
        if handle.destroy() != SUCCESS:
            failures.append("not destroyed")

    run_in_threads([partial(work, *item) for item in calls.items()])
    return Record(fake.fake_log().decode().splitlines(), errors=failures)


def real_library(folder: Path, *trials: tuple[TuningRun, Trial]) -> str:
    """A library of real kernels, its header and its interface for Fortran beside it."""
    kernels = kernels_of(winners(folder, *trials))
    cubins, missing = compiled_cubins(kernels, print)
    assert missing == []
    path = folder / "libtsm2.so"
    path.write_bytes(library_bytes(kernels, {}, cubins, path.name))
    for suffix, name in BESIDE.items():
        path.with_suffix(suffix).write_bytes((SOURCES / name).read_bytes())
    return str(path)
