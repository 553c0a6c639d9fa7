"""Random calls of an exported module on the host from many threads, with faults among them, compared with NumPy.

    python -m tests.odd_calls --calls 20000 --threads 8

Each call is one of three kinds. A plain one has the right result, and touches nothing beside `out`; one that is to be
refused raises TypeError, ValueError or LookupError; a kernel that faults raises KernelFault. The last two leave their
operands as they were, a refused call its `out` too. Shapes, storage orders, leading dimensions, element types,
factors and the way in which a call is wrong are random, and those of a seed.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import numpy as np

from tests.fabricated import exported, handmade, host_run, imported, trial, winners
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.tuner.device.interface import KernelFault

FAULTS = {  # alpha -> what a kernel does where it is that
    666: "if (blockIdx.x == gridDim.x - 1) *(volatile int *)(size_t(threadIdx.x)) = 1;",
    667: "if (threadIdx.x == 17) *(volatile int *)((size_t(1) << 46) + threadIdx.x) = 1;",
    668: "if (threadIdx.x == 3) return;",
    669: "volatile int zero = 0; counters[0] = 5 / zero;",
    670: "if (threadIdx.x == 0) __trap();",
}
OPS = {  # by type: of kernels that the module has; no other product is computed
    "f32": ("nn", "tn", "ntt"),
    "f64": ("nn", "nt", "ttt"),
    "c64": ("nn", "cn", "jtt"),
    "c128": ("nn", "ct"),
    "f16": ("nn", "tn"),
}
ALPHAS = (1, -1, 0, 0.5, 2, 0.1, np.float32(3), np.float64(-0.25), np.int64(2), True, 1e-3)
BETAS = (0, 0.0, -0.0, 1, -1, 0.3, np.float64(2), False)
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass
class Found:
    """Counted and wrong calls of a thread, or of all threads."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, kind: str, trouble: str) -> None:
        self.counts[kind] += 1
        if trouble:
            self.wrong.append(f"{kind}: {trouble}")


def planted(problem: Problem) -> KernelSource:
    """The plain kernel for the problem, which faults where alpha is one of FAULTS."""
    source = handmade(problem)
    faults = "".join(f"    if (alpha == {alpha}) {{ {fault} }}\n" for alpha, fault in FAULTS.items())
    return replace(
        source, text=source.text.replace("    __shared__ bool last;\n", f"    __shared__ bool last;\n{faults}")
    )


def odd_module(folder: Path, ops: dict[str, tuple[str, ...]] = OPS) -> ModuleType:
    problems = [Problem(40, 6, 90, dtype, op) for dtype, of_type in ops.items() for op in of_type]
    return imported(
        exported("module", winners(folder, *((host_run(), trial(problem=p, source=planted(p))) for p in problems))),
        folder,
    )


def padded(random: np.random.Generator, rows: int, columns: int, order: str, dtype: Any) -> tuple[Array, Array]:
    """A matrix of random numbers with random padding, and the whole that it is part of."""
    more = random.integers(0, 4, 4)
    shape = (rows + more[0] + more[1], columns + more[2] + more[3])
    values = random.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * random.standard_normal(shape)
    whole = np.asarray(values.astype(dtype), order=order)
    return whole[more[0] : more[0] + rows, more[2] : more[2] + columns], whole


@dataclass
class Call:
    """One call of gemm, and the memory that it may not touch."""

    a: Array
    b: Array
    out: Array | None
    named: dict[str, Any]
    wholes: tuple[Array, ...]


def call_of(random: np.random.Generator, ops: dict[str, tuple[str, ...]]) -> Call:
    """A product that the module has a kernel for."""
    dtype_name = str(random.choice(list(ops)))
    problem = Problem(40, 6, 90, dtype_name, str(random.choice(ops[dtype_name])))
    dtype = problem.dtype.numpy_name
    m, n, k = (int(extent) for extent in random.choice([1, 2, 3, 5, 8, 13, 31, 32, 33, 40], 3))
    orders = ["F" if letter in "nj" else "C" for letter in f"{problem.op}n"[:3]]
    shapes = ((m, k), (k, n), (m, n))
    made = [padded(random, *shape, order, dtype) for shape, order in zip(shapes, orders, strict=True)]
    (a, _), (b, _), (out, _) = made
    conj_a, conj_b = problem.conjugated
    named = {"alpha": random.choice(np.array(ALPHAS, object)), "conj_a": conj_a, "conj_b": conj_b}
    if dtype_name[0] == "c" and random.random() < 0.5:
        named["alpha"] = complex(*random.standard_normal(2))
    a.flags.writeable = bool(random.random() < 0.5)
    if random.random() < 0.2:
        return Call(a, b, None, named, tuple(whole for _, whole in made))
    named["beta"] = random.choice(np.array(BETAS, object))
    if named["beta"] == 0 and random.random() < 0.5:
        out[...] = np.nan  # which is not read
    return Call(a, b, out, named, tuple(whole for _, whole in made))


def refused(random: np.random.Generator, call: Call) -> Call:
    """The call with something that no kernel may be given."""
    a, b, out = call.a, call.b, call.out
    masked = np.ma.masked_array(a)
    read_only = np.array(b[:1].repeat(a.shape[0], 0), order="F")
    read_only.flags.writeable = False
    same = np.array(a, order="F", dtype=a.dtype)
    one = np.lib.stride_tricks.as_strided(same, (9, 9), (0, 0))  # an element, again and again
    ways: list[dict[str, Any]] = [
        {"a": masked},
        {"a": np.ones(a.shape, np.int64)},
        {"b": np.ones(b.shape, np.float32 if b.dtype != np.float32 else np.float64)},
        {"b": np.concatenate([b, b])},
        {"a": a[None]},
        {"a": a.tolist()},
        {"a": a.astype(a.dtype.newbyteorder(">"))},
        {"out": read_only},
        {"a": one, "b": np.ones((9, 1), a.dtype)},
        {"a": np.ones((9, 9), a.dtype), "b": np.ones((9, 9), a.dtype), "out": one},
        {"a": np.array(a, order="F").repeat(2, 0).repeat(2, 1)[::2, ::2][::-1] if min(a.shape) > 1 else a[:, :0]},
        {"a": same, "b": np.ones((a.shape[1], a.shape[1]), a.dtype, order="F"), "out": same},
        {"alpha": "1"},
        {"alpha": 10**400},
        {"beta": 2 if out is None else [1]},
        {"stream": 0},
        {"math": "tf32"},
    ]
    way = ways[int(random.integers(len(ways)))]
    arrays = {name: way.pop(name) for name in ("a", "b", "out") if name in way}
    return replace(call, **arrays, named=call.named | way)


def expected(call: Call) -> tuple[Array, Array]:
    """The product by NumPy in the widest type, and how far off each element may be."""
    wide = np.complex128 if call.a.dtype.kind == "c" else np.float64
    a, b = call.a.astype(wide), call.b.astype(wide)
    a, b = a.conj() if call.named["conj_a"] else a, b.conj() if call.named["conj_b"] else b
    alpha, beta = call.named["alpha"], call.named.get("beta", 0)
    before = 0 if call.out is None or beta == 0 else beta * call.out.astype(wide)
    sums = np.float32 if call.a.dtype == np.float16 else call.a.dtype
    size = abs(alpha) * (np.abs(a) @ np.abs(b)) + np.abs(before)
    rounding = np.finfo(sums).eps * (a.shape[1] + 8) + (2e-3 if call.a.dtype == np.float16 else 0)
    return alpha * (a @ b) + before, size * rounding + 1e-30 + (1e-7 if call.a.dtype == np.float16 else 0)


def trouble_of_plain(module: ModuleType, call: Call) -> str:
    result, bound = expected(call)
    operands = call.a.tobytes(), call.b.tobytes()
    whole = call.wholes[2]
    before = whole.copy()
    made = module.gemm(call.a, call.b, call.out, **call.named)
    if call.out is not None and made is not call.out:
        return "another array came back than was given as out"
    if not (np.abs(made - result) <= bound).all():
        return f"{made.dtype} {made.shape} {call.named}: off by {np.abs(made - result).max():.3g}"
    if (call.a.tobytes(), call.b.tobytes()) != operands:
        return "an operand was written"
    if call.out is not None:
        before_out = np.lib.array_utils.byte_bounds(call.out)[0] - whole.ctypes.data
        row, column = (before_out // s % e for s, e in zip(whole.strides, whole.shape, strict=True))
        rows, columns = call.out.shape
        before[row : row + rows, column : column + columns] = made
    return "" if before.tobytes() == whole.tobytes() else "memory beside out was written"


def trouble_of_refused(module: ModuleType, call: Call) -> str:
    before = [whole.copy() for whole in call.wholes]
    try:
        module.gemm(call.a, call.b, call.out, **call.named)
    except (TypeError, ValueError, LookupError):
        same = all(x.tobytes() == y.tobytes() for x, y in zip(before, call.wholes, strict=True))
        return "" if same else "a refused call wrote"
    return f"not refused: {call}"


def trouble_of_fault(module: ModuleType, call: Call, alpha: int) -> str:
    try:
        module.gemm(call.a, call.b, call.out, **call.named | {"alpha": alpha})
    except KernelFault as fault:
        return "" if "of block" in str(fault) else f"a fault without its place: {fault}"
    return f"alpha = {alpha} did not fault"


def one_call(module: ModuleType, random: np.random.Generator, found: Found, ops: dict[str, tuple[str, ...]]) -> None:
    call = call_of(random, ops)
    kind = str(random.choice(["plain", "refused", "fault"], p=[0.7, 0.15, 0.15]))
    try:
        if kind == "plain":
            trouble = trouble_of_plain(module, call)
        elif kind == "refused":
            trouble = trouble_of_refused(module, refused(random, call))
        else:
            trouble = trouble_of_fault(module, call, int(random.choice(list(FAULTS))))
    except Exception as error:  # nothing else may come out of a call
        trouble = f"{type(error).__name__}: {error} from {call}"
    found.add(kind, trouble)


def odd_calls(
    module: ModuleType, calls: int, threads: int, seed: int = 1, ops: dict[str, tuple[str, ...]] = OPS
) -> Found:
    """The calls, divided among the threads, which begin at once."""
    found = [Found() for _ in range(threads)]
    at_once = threading.Barrier(threads)

    def work(thread: int) -> None:
        random = np.random.default_rng((seed, thread))
        at_once.wait()
        for _ in range(thread, calls, threads):
            one_call(module, random, found[thread], ops)

    workers = [threading.Thread(target=work, args=[thread]) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    counts = sum((one.counts for one in found), Counter())
    return Found(counts, [wrong for one in found for wrong in one.wrong])


@click.command()
@click.option("--calls", default=20_000, show_default=True)
@click.option("--threads", default=8, show_default=True)
@click.option("--seed", default=1, show_default=True)
def main(calls: int, threads: int, seed: int) -> None:
    """Call an exported module with odd arguments from many threads."""
    with tempfile.TemporaryDirectory() as folder:
        module = odd_module(Path(folder))
        start = time.perf_counter()
        found = odd_calls(module, calls, threads, seed)
    for wrong in found.wrong:
        click.echo(wrong, err=True)
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(found.counts.items()))
    seconds = time.perf_counter() - start
    click.echo(
        f"{found.counts.total()} calls of {threads} threads in {seconds:.0f} s: {counts}; {len(found.wrong)} wrong"
    )
    sys.exit(bool(found.wrong))


if __name__ == "__main__":
    main()
