"""Random calls of an exported module on the host from many threads, with faults among them, compared with NumPy.

    python -m tests.odd_calls --calls 20000 --threads 8

Each call is one of three kinds. A plain one has the exact result, and touches nothing beside `out`; one that is to be
refused raises TypeError, ValueError or LookupError; a kernel that faults raises KernelFault. The last two leave their
operands as they were, a refused call its `out` too. The calls are those of a seed.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import numpy as np

from tests.calls import Array, Call, Ops, check_on_host, operands, ops_of, random_call, whole_of
from tests.fabricated import exported, handmade, host_run, imported, trial, winners
from tests.threads_on_gpu import in_threads
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
OPS: Ops = {  # by type: of kernels that the module has
    "f32": ("nn", "tn", "ntt"),
    "f64": ("nn", "nt", "ttt"),
    "c64": ("nn", "cn", "jtt"),
    "c128": ("nn", "ct"),
    "f16": ("nn", "tn"),
}
EXTENTS = (1, 2, 3, 5, 8, 13, 31, 32, 33, 40)
SAME_AS_2 = (2, 2.0, np.float32(2), np.float64(2), np.int64(2))


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


def odd_module(folder: Path, ops: Ops = OPS) -> ModuleType:
    problems = [Problem(40, 6, 90, dtype, op) for dtype, of_type in ops.items() for op in of_type]
    return imported(
        exported("module", winners(folder, *((host_run(), trial(problem=p, source=planted(p))) for p in problems))),
        folder,
    )


def refused(rng: random.Random, a: Array, b: Array, has_out: bool) -> dict[str, Any]:
    """Draw arguments that no kernel may be given."""
    read_only = np.array(b[:1].repeat(a.shape[0], 0), order="F")
    read_only.flags.writeable = False
    same = np.array(a, order="F", dtype=a.dtype)
    one = np.lib.stride_tricks.as_strided(same, (9, 9), (0, 0))  # an element, again and again
    return rng.choice(
        [
            {"a": np.ma.masked_array(a)},
            {"a": np.ones(a.shape, np.int64)},
            {"b": np.ones(b.shape, np.float32 if b.dtype != np.float32 else np.float64)},
            {"b": np.concatenate([b, b])},
            {"a": np.stack([a, a]), "b": np.stack([b, b, b])},
            {"a": a.tolist()},
            {"a": a.astype(a.dtype.newbyteorder(">"))},
            {"out": read_only},
            {"a": one, "b": np.ones((9, 1), a.dtype)},
            {"a": np.ones((9, 9), a.dtype), "b": np.ones((9, 9), a.dtype), "out": one},
            {"a": np.array(a, order="F").repeat(2, 0).repeat(2, 1)[::2, ::2][::-1] if min(a.shape) > 1 else a[:, :0]},
            {"a": same, "b": np.ones((a.shape[1], a.shape[1]), a.dtype, order="F"), "out": same},
            {"alpha": "1"},
            {"alpha": 10**400},
            {"beta": [1] if has_out else 2},
            {"stream": 0},
            {"math": "tf32"},
        ]
    )


def one_call(module: ModuleType, rng: random.Random, found: Found, ops: Ops) -> None:
    call = replace(random_call(rng, ops, EXTENTS), stream=None, is_vector=False)
    if call.alpha == 2:
        call = replace(call, alpha=rng.choice(SAME_AS_2))
    kind = rng.choices(("plain", "refused", "fault"), (70, 15, 15))[0]
    arrays = operands(call, rng.randrange(1 << 30))
    arrays[0].flags.writeable = rng.random() < 0.5
    try:
        trouble = _trouble(module, rng, kind, call, arrays)
    except Exception as error:  # nothing else may come out of a call
        trouble = f"{type(error).__name__}: {error} from {call}"
    found.add(kind, trouble)


def _trouble(module: ModuleType, rng: random.Random, kind: str, call: Call, arrays: list[Array]) -> str:
    """Make the call, plain or as it must not be, and return what was wrong; "" if nothing was."""
    if kind == "plain":
        check_on_host(module, call, arrays)
        return ""
    conj_a, conj_b = call.conjugates
    a, b, out = arrays
    named: dict[str, Any] = {"a": a, "b": b, "out": out if call.has_out else None, "conj_a": conj_a, "conj_b": conj_b}
    named |= {"alpha": rng.choice(list(FAULTS))} if kind == "fault" else refused(rng, a, b, call.has_out)
    before = [np.copy(whole_of(one)) for one in arrays]
    try:
        module.gemm(**named)
    except KernelFault as fault:
        return "" if kind == "fault" and "of block" in str(fault) else f"another fault, or without its place: {fault}"
    except (TypeError, ValueError, LookupError):
        same = all(x.tobytes() == whole_of(y).tobytes() for x, y in zip(before, arrays, strict=True))
        return "" if kind == "refused" and same else f"a refused call wrote, or a fault was refused: {call}"
    return f"nothing was raised: {call}"


def odd_calls(module: ModuleType, calls: int, threads: int, seed: int = 1, ops: Ops = OPS) -> Found:
    """The calls, divided among the threads, which begin at once."""
    found = [Found() for _ in range(threads)]
    at_once = threading.Barrier(threads)

    def work(thread: int) -> None:
        rng = random.Random(f"{seed} {thread}")
        at_once.wait()
        for _ in range(thread, calls, threads):
            one_call(module, rng, found[thread], ops_of(ops))

    in_threads([partial(work, thread) for thread in range(threads)])
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
