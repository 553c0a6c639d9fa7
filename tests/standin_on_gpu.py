"""Random products on a GPU by a cuBLAS that is stood in for, and by the real one: the same.

    python -m tests.standin_on_gpu COUNT SEED THREADS

Matrices hold small whole numbers, so that every sum is exact. Prints how many products were taken, as JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cupy as cp
import numpy as np

from benchmarks.real_cublas import Real, loaded
from tests.cublas_program import WIDE, call
from tests.lt_calls import COMPUTE_OF
from tests.standin_calls import gemm
from tests.threads_on_gpu import in_threads
from tsm2_tune.interpose.journal import HEAD, LINE
from tsm2_tune.interpose.preload import LOADED

KINDS = {"S": 0, "D": 1, "C": 4, "Z": 5}
DTYPES = {0: "f4", 1: "f8", 4: "c8", 5: "c16", 2: "f2", 14: "u2"}
SCALES = {0: "f4", 2: "f4", 14: "f4", 1: "f8", 4: "c8", 5: "c16"}
Work = Callable[[tuple[ctypes.CDLL, Real], int, int, "Journal | None", Counter[str]], None]
MOST = 1 << 21  # elements of a matrix


def filled(rng: np.random.Generator, size: int, kind: int) -> Any:
    """Small whole numbers in a buffer."""
    values = rng.integers(-2, 3, size).astype(np.float32)
    if kind == 14:
        return cp.asarray((values.view(np.uint32) >> 16).astype(np.uint16))
    if kind in (4, 5):
        values = values + 1j * rng.integers(-2, 3, size).astype(np.float32)
    return cp.asarray(values.astype(DTYPES[kind]))


def numbers_in(x: Any, kind: int) -> Any:
    """Return the elements as numbers, so that zeros of both signs are equal."""
    return (x.astype(cp.uint32) << 16).view(cp.float32) if kind == 14 else x


def random_product(rng: random.Random) -> tuple[str, int, dict[str, Any], tuple[int, int, int]]:
    """A routine, its type, its arguments but for addresses, and the elements of A, B and C that it reaches."""
    letter = rng.choice("SDCZ")
    wide = rng.choice(("", "", WIDE))
    name = rng.choice(("gemm_v2", "gemm_v2", "GemmEx", "gemmStridedBatched", "gemv_v2", "syrk_v2", "herk_v2"))
    if name in ("syrk_v2", "herk_v2"):
        return random_triangle(rng, letter, "syrk_v2" if letter in "SD" else name, wide)
    kind = rng.choice((*KINDS.values(), 2, 14)) if name == "GemmEx" else KINDS[letter]
    extents = [1, 2, 5, 8, 16, 40]
    m, n, k = rng.choice(extents), rng.choice(extents), rng.choice(extents)
    long = rng.choice((1, 3, 500, 4099, 20000))
    m, n, k = rng.choice(((long, n, k), (m, n, long), (m, long, k), (min(long, 1500), n, min(long, 1200))))
    changes: dict[str, Any] = {
        "transa": rng.choice((0, 1, 2)), "transb": rng.choice((0, 1, 2)), "trans": rng.choice((0, 1, 2)),
        "alpha": [float(rng.choice((1, 1, 2, -1, 0))), float(rng.choice((0, 1)))],
        "beta": [float(rng.choice((0, 0, 1, -2))), float(rng.choice((0, 0, 1)))],
        "type_a": kind, "type_b": kind, "type_c": kind, "compute": COMPUTE_OF[kind],
        "count": rng.choice((1, 1, 1, 3)), "incx": rng.choice((1, 1, 3)), "incy": rng.choice((1, 1, 2)),
    }  # fmt: skip
    rows_a, rows_b = (k if changes["transa"] else m), (n if changes["transb"] else k)
    lda, ldb, ldc = (rows + rng.choice((0, 0, 1, 3, 4)) for rows in (rows_a, rows_b, m))
    if name == "gemv_v2":
        lda = m + rng.choice((0, 1, 4))
        reached = lda * n, max(m, n) * changes["incx"], max(m, n) * changes["incy"]
    else:
        columns_a, columns_b = (m if changes["transa"] else k), (k if changes["transb"] else n)
        reached = lda * columns_a, ldb * columns_b, ldc * n
    changes |= {"lda": lda, "ldb": ldb, "ldc": ldc, "stride_a": 0, "stride_b": reached[1], "stride_c": reached[2]}
    if rng.random() < 0.3:
        changes["stride_a"] = reached[0]
    routine = f"cublas{'' if name == 'GemmEx' else letter}{name}{wide}"
    count = changes["count"] if "Batched" in name else 1
    return routine, kind, changes | {"m": m, "n": n, "k": k}, tuple(count * one for one in reached)  # type: ignore[return-value]


def random_triangle(
    rng: random.Random, letter: str, name: str, wide: str
) -> tuple[str, int, dict[str, Any], tuple[int, int, int]]:
    """Return a random call of syrk or herk, as random_product does of gemm."""
    n, k = rng.choice((1, 2, 5, 8, 16, 40, 257)), rng.choice((1, 8, 500, 4099))
    across = 2 if name == "herk_v2" else 1
    changes: dict[str, Any] = {
        "n": n, "k": k, "uplo": rng.choice((0, 1)), "trans": rng.choice((0, across)),
        "alpha": [float(rng.choice((1, 2, -1, 0))), float(rng.choice((0, 1)))],
        "beta": [float(rng.choice((0, 0, 1, -2))), float(rng.choice((0, 0, 1)))],
        "ldc": n + rng.choice((0, 0, 1, 4)),
    }  # fmt: skip
    rows, columns = (k, n) if changes["trans"] else (n, k)
    changes["lda"] = rows + rng.choice((0, 0, 1, 3))
    reached = changes["lda"] * columns, 1, changes["ldc"] * n
    return f"cublas{letter}{name}{wide}", KINDS[letter], changes, reached


def factors_on_device(changes: dict[str, Any], kind: int, factors: Any, is_real: bool = False) -> dict[str, int]:
    """Put alpha and beta into device memory. Return their addresses."""
    places = dict[str, int]()
    for at, name in ((0, "alpha"), (16, "beta")):
        value = complex(*changes[name])
        plain = np.array([value if kind in (4, 5) else value.real]).astype(SCALES[kind])
        if is_real:
            plain = plain.real.copy()
        factors[at : at + plain.nbytes] = cp.asarray(plain.view(np.uint8))
        places[name] = factors.data.ptr + at
    return places


class Journal:
    """Number of products that the stand-in took in this process."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._lines: np.memmap[Any, Any] | None = None

    @property
    def taken(self) -> int:
        if self._lines is None:
            files = [file for file in self._folder.iterdir() if file.name != LOADED]
            if not files:
                return 0
            self._lines = np.memmap(files[0], LINE, "r", HEAD.itemsize)
        return int(self._lines["taken"].sum())


def work(
    libraries: tuple[ctypes.CDLL, Real], count: int, seed: int, journal: Journal | None, found: Counter[str]
) -> None:
    """So many products on a stream and with handles of their own."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    cublas, real = libraries
    handle = ctypes.c_void_p()
    assert cublas.cublasCreate_v2(ctypes.byref(handle)) == 0
    factors = cp.empty(64, np.uint8)
    for turn in range(count):
        routine, kind, changes, reached = random_product(rng)
        if max(reached) > MOST:
            continue
        a, b, c = (filled(numbers, size, kind) for size in reached)
        streams = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream.null
        stream = streams[rng.random() < 0.3]
        again, kept = c.copy(), list[Any]()
        cublas.cublasSetStream_v2(handle, ctypes.c_void_p(stream.ptr))
        cublas.cublasSetMathMode(handle, ctypes.c_int(rng.choice((0, 0, 0, 3))))
        on_device = rng.random() < 0.15
        cublas.cublasSetPointerMode_v2(handle, ctypes.c_int(on_device))
        if on_device:
            changes |= factors_on_device(changes, kind, factors, is_real="herk" in routine)
        cp.cuda.Device().synchronize()  # all that was written by CuPy, on another stream
        before = 0 if journal is None else journal.taken
        statuses = []
        for library, out in ((cublas, c), (real, again)):
            of_operands = {"A": a.data.ptr, "B": b.data.ptr, "C": out.data.ptr, "x": b.data.ptr, "y": out.data.ptr}
            _, values = gemm(routine, **(changes | of_operands))
            statuses.append(call(library, handle, routine, values, kept, {}))
        stream.synchronize()
        assert statuses[0] == statuses[1], (turn, routine, changes)
        is_taken = journal is not None and journal.taken > before
        found["taken" if is_taken else "left"] += 1
        as_numbers = is_taken or journal is None
        ours, own = (numbers_in(x, kind) if as_numbers else x.view(np.uint8) for x in (c, again))
        same = bool((ours == own).all())
        assert same, (turn, routine, changes, is_taken)
        found[f"taken {routine}"] += is_taken


def main(work: Work, libraries: tuple[ctypes.CDLL, Real]) -> None:
    count, seed, threads = map(int, sys.argv[1:])
    found = Counter[str]()
    journal = Journal(os.environ["TSM2_JOURNAL"]) if threads == 1 else None

    def on_device(number: int) -> None:
        with cp.cuda.Device(0):
            work(libraries, count, seed + number, journal, found)

    in_threads([partial(on_device, number) for number in range(threads)])
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(work, loaded())
