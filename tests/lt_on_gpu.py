"""Random products on a GPU by a cublasLtMatmul that is stood in for, and by the real one: the same.

    python -m tests.lt_on_gpu COUNT SEED THREADS

As tests.standin_on_gpu. What cuBLASLt refuses, of row-major matrices some, is compared with NumPy's product where it
was taken.
"""

from __future__ import annotations

import ctypes
import random
from collections import Counter
from typing import Any

import cupy as cp
import numpy as np

from benchmarks.real_cublas import Real, loaded
from tests.lt_calls import BATCHES, EPILOGUE, POINTER_MODE, SM_COUNT, STRIDE, call, matmul
from tests.standin_on_gpu import DTYPES, MOST, Journal, factors_on_device, filled, main, numbers_in

RELU = 2
WORKSPACE_BYTES = 32 << 20


def reached(layout: dict[str, Any]) -> int:
    """Elements of memory."""
    lines = layout["rows"] if layout["more"].get(1) else layout["columns"]
    return int(layout["ld"] * lines * layout["more"].get(BATCHES, 1))


def random_product(rng: random.Random) -> dict[str, Any]:
    """Return the arguments of a random product, without addresses."""
    extents, kind = [1, 2, 5, 8, 16, 40], rng.choice((0, 0, 1, 2, 4, 5, 14))
    m, n, k, long = (*(rng.choice(extents) for _ in "mnk"), rng.choice((1, 3, 500, 4099, 20000)))
    m, n, k = rng.choice(((long, n, k), (m, n, long), (m, long, k), (min(long, 1500), n, min(long, 1200))))
    transa, transb = rng.choice((0, 0, 1, 2)), rng.choice((0, 0, 1, 2))
    asked: dict[str, Any]
    _, asked = matmul(m, n, k, kind, transa, transb, rng.choice(("ccc", "ccc", "ccc", "rcc", "crc", "rrc", "rrr")))
    for layout in asked["layouts"].values():
        layout["ld"] += rng.choice((0, 0, 0, 1, 3, 4))
    asked["alpha"] = [float(rng.choice((1, 1, 2, -1, 0))), float(rng.choice((0, 1)))]
    asked["beta"] = [float(rng.choice((0, 0, 1, -2))), float(rng.choice((0, 0, 1)))]
    unusual = rng.random()
    if unusual < 0.05:
        asked["operation"][EPILOGUE] = RELU
    elif unusual < 0.1:
        asked["operation"][SM_COUNT] = 16
    elif unusual < 0.2:
        asked["operation"][POINTER_MODE] = 1
    elif unusual < 0.25 and kind == 0:
        asked["compute"] = 77
    elif unusual < 0.3:
        for layout in asked["layouts"].values():
            layout["more"] |= {STRIDE: reached(layout), BATCHES: 3}
    elif unusual < 0.4:  # one product all the same
        for layout in asked["layouts"].values():
            layout["more"] |= {STRIDE: reached(layout), BATCHES: 1}
    elif unusual < 0.6:
        asked["layouts"]["c"] = dict(asked["layouts"]["d"])
        asked["is_apart"] = rng.random() < 0.5
    return asked


def matrix_in(buffer: Any, layout: dict[str, Any], kind: int) -> Any:
    """Return the matrix in the buffer, in NumPy's widest type of its kind."""
    lines = (layout["rows"], layout["columns"]) if layout["more"].get(1) else (layout["columns"], layout["rows"])
    flat = numbers_in(buffer, kind).get()[: lines[0] * layout["ld"]].reshape(lines[0], layout["ld"])[:, : lines[1]]
    return (flat if layout["more"].get(1) else flat.T).astype(np.complex128 if kind in (4, 5) else np.float64)


def is_product(asked: dict[str, Any], kind: int, a: Any, b: Any, before: Any, after: Any) -> bool:
    """Return whether the matrix `after` is the product that was asked for."""

    def op(number: int, matrix: Any) -> Any:
        return (matrix, matrix.T, matrix.conj().T)[number]

    layouts, operation = asked["layouts"], asked["operation"]
    alpha, beta = (complex(*asked[name]) if kind in (4, 5) else asked[name][0] for name in ("alpha", "beta"))
    whole = alpha * (
        op(operation.get(3, 0), matrix_in(a, layouts["a"], kind))
        @ op(operation.get(4, 0), matrix_in(b, layouts["b"], kind))
    )
    if beta:
        whole = whole + beta * matrix_in(before, layouts["d"], kind)
    stored = whole.astype(DTYPES[kind]) if kind != 14 else whole
    rounding = 2.0**-8 if kind == 14 else 0.0  # bfloat16, which NumPy lacks
    return bool((abs(matrix_in(after, layouts["d"], kind) - stored) <= rounding * abs(stored)).all())


def work(
    libraries: tuple[ctypes.CDLL, Real], count: int, seed: int, journal: Journal | None, found: Counter[str]
) -> None:
    """So many products on streams, with a handle of their own."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    lt, handle = libraries[0], ctypes.c_void_p()
    assert lt.cublasLtCreate(ctypes.byref(handle)) == 0
    factors, workspace = cp.empty(64, np.uint8), cp.empty(WORKSPACE_BYTES, np.uint8)
    streams = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream.null
    for turn in range(count):
        asked = random_product(rng)
        kind, sizes = asked["layouts"]["d"]["type"], [reached(asked["layouts"][name]) for name in "abd"]
        if max(sizes) > MOST:
            continue
        a, b, d = (filled(numbers, size, kind) for size in sizes)
        before, again, apart, kept = d.copy(), d.copy(), filled(numbers, sizes[2], kind), list[Any]()
        stream = streams[rng.random() < 0.3]
        told = asked | (factors_on_device(asked, kind, factors) if POINTER_MODE in asked["operation"] else {})
        told |= {"workspace": workspace.data.ptr, "workspace_bytes": WORKSPACE_BYTES, "stream": stream.ptr}
        cp.cuda.Device().synchronize()  # all that was written by CuPy, on another stream
        taken_before = 0 if journal is None else journal.taken
        statuses = list[int]()
        for library, out in ((lt, d), (libraries[1], again)):
            of_c = apart if asked.get("is_apart") else out
            at = {"A": a.data.ptr, "B": b.data.ptr, "C": of_c.data.ptr, "D": out.data.ptr}
            statuses.append(call(library, handle, told | at, kept))
        stream.synchronize()
        is_taken = journal is not None and journal.taken > taken_before
        found["taken" if is_taken else "left"] += 1
        orders = "".join("cr"[asked["layouts"][name]["more"].get(1, 0)] for name in "abd")
        found[f"taken {orders}"] += is_taken
        if statuses[0] != statuses[1]:  # cuBLASLt refuses what a kernel computes
            assert (statuses[0], "r" in orders) == (0, True), (turn, asked, statuses)
            found[f"taken though refused {orders}"] += 1
            assert is_product(asked, kind, a, b, before, d), (turn, asked)
            continue
        found["refused"] += statuses[0] != 0
        as_numbers = is_taken or journal is None
        ours, own = (numbers_in(x, kind) if as_numbers else x.view(np.uint8) for x in (d, again))
        same = bool((ours == own).all())
        assert same, (turn, asked, is_taken)


if __name__ == "__main__":
    main(work, loaded("libcublasLt"))
