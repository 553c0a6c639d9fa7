"""The exported module under threads: every call is right or raises, and a fault is nobody else's.

Each random call is one of three kinds. A plain one has the exact result, and touches nothing beside `out`; one that
is to be refused raises TypeError, ValueError or LookupError; a kernel that faults raises KernelFault. The last two
leave their operands as they were, a refused call its `out` too.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.calls import Array, Call, Ops, check_on_host, operands, ops_of, random_call, whole_of
from tests.fabricated import exported, handmade, host_run, imported, trial, winners
from tests.on_host import ON_HOST, STUCK
from tests.threads_on_gpu import in_threads
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.tuner.device.emulator import entry_point, run_on_host
from tsm2_tune.tuner.device.interface import KernelFault

pytestmark = ON_HOST

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
CALLS, SEED = (int(os.environ.get(f"TSM2_ODD_{name}", given)) for name, given in (("CALLS", "400"), ("SEED", "1")))
SAME_AS_2 = (2, 2.0, np.float32(2), np.float64(2), np.int64(2))


Found = list[tuple[str, str]]  # kind of each call, and what was wrong with it; "" if nothing was


def planted(problem: Problem) -> KernelSource:
    """The plain kernel for the problem, which faults where alpha is one of FAULTS."""
    source = handmade(problem)
    faults = "".join(f"    if (alpha == {alpha}) {{ {fault} }}\n" for alpha, fault in FAULTS.items())
    return replace(
        source, text=source.text.replace("    __shared__ bool last;\n", f"    __shared__ bool last;\n{faults}")
    )


def odd_module(folder: Path, ops: Ops) -> ModuleType:
    problems = [Problem(40, 6, 90, dtype, op) for dtype, of_type in ops.items() for op in of_type]
    return imported(
        exported("module", winners(folder, *((host_run(), trial(problem=p, source=planted(p))) for p in problems))),
        folder,
    )


def refused(a: Array, b: Array, has_out: bool) -> list[dict[str, Any]]:
    """Return arguments of every kind that no kernel may be given."""
    read_only = np.array(b[:1].repeat(a.shape[0], 0), order="F")
    read_only.flags.writeable = False
    same = np.array(a, order="F", dtype=a.dtype)
    one = np.lib.stride_tricks.as_strided(same, (9, 9), (0, 0))  # an element, again and again
    return [
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


def one_call(module: ModuleType, rng: random.Random, found: Found, ops: Ops) -> None:
    call = replace(random_call(rng, ops, EXTENTS), stream=None, is_vector=False)
    if call.alpha == 2:
        call = replace(call, alpha=rng.choice(SAME_AS_2))
    kind = rng.choices(("plain", "refused", "fault"), (70, 15, 15))[0]
    arrays = operands(call, rng.randrange(1 << 30))
    arrays[0].flags.writeable = rng.random() < 0.5
    try:
        if kind == "plain":
            check_on_host(module, call, arrays)
            trouble = ""
        elif kind == "fault":
            trouble = _trouble(module, call, arrays, {"alpha": rng.choice(list(FAULTS))}, is_fault=True)
        else:
            changes = rng.choice(refused(arrays[0], arrays[1], call.has_out))
            trouble = _trouble(module, call, arrays, changes)
    except Exception as error:  # nothing else may come out of a call
        trouble = f"{type(error).__name__}: {error} from {call}"
    found.append((kind, trouble))


def _trouble(
    module: ModuleType, call: Call, arrays: list[Array], changes: dict[str, Any], *, is_fault: bool = False
) -> str:
    """Make the call as it must not be, and return what was wrong; "" if nothing was."""
    conj_a, conj_b = call.conjugates
    a, b, out = arrays
    named: dict[str, Any] = {"a": a, "b": b, "out": out if call.has_out else None, "conj_a": conj_a, "conj_b": conj_b}
    named |= changes
    before = [np.copy(whole_of(one)) for one in arrays]
    try:
        module.gemm(**named)
    except KernelFault as fault:
        return "" if is_fault and "of block" in str(fault) else f"another fault, or without its place: {fault}"
    except (TypeError, ValueError, LookupError):
        same = all(x.tobytes() == whole_of(y).tobytes() for x, y in zip(before, arrays, strict=True))
        return "" if not is_fault and same else f"a refused call wrote, or a fault was refused: {call}"
    return f"nothing was raised: {call}"


def odd_calls(module: ModuleType, calls: int, threads: int, ops: Ops) -> Found:
    """The calls, divided among the threads, which begin at once."""
    found = [Found() for _ in range(threads)]
    at_once = threading.Barrier(threads)

    def work(thread: int) -> None:
        rng = random.Random(f"{SEED} {thread}")
        at_once.wait()
        for _ in range(thread, calls, threads):
            one_call(module, rng, found[thread], ops_of(ops))

    in_threads([partial(work, thread) for thread in range(threads)])
    return [one for of_thread in found for one in of_thread]


@pytest.fixture(scope="module")
def of_all_types(tmp_path_factory: pytest.TempPathFactory, session_cache: None) -> ModuleType:
    return odd_module(tmp_path_factory.mktemp("module"), OPS)


def test_calls_of_many_threads_with_faults_among_them(of_all_types: ModuleType) -> None:
    """TSM2_ODD_CALLS is how many, and TSM2_ODD_SEED draws others."""
    found = odd_calls(of_all_types, calls=CALLS, threads=8, ops=OPS)
    assert [one for one in found if one[1]] == []
    counts = Counter(kind for kind, _ in found)
    assert min(counts[kind] for kind in ("plain", "refused", "fault")) > 0.075 * CALLS


@pytest.mark.parametrize("dtype", OPS)
def test_each_call_that_must_not_be_is_refused(of_all_types: ModuleType, dtype: str) -> None:
    """With `out` and without, and even if an extent is 1."""
    rng = random.Random(SEED)
    for _ in range(20):
        call = replace(random_call(rng, ops_of({dtype: OPS[dtype]}), EXTENTS), stream=None, is_vector=False)
        arrays = operands(call, rng.randrange(1 << 30))
        for at, changes in enumerate(refused(arrays[0], arrays[1], call.has_out)):
            assert _trouble(of_all_types, call, arrays, changes) == "", at


def test_a_fault_leaves_nothing_behind(tmp_path: Path) -> None:
    """In one thread: after each kind of fault the next call is right."""
    module = odd_module(tmp_path, {"f64": ("nt",)})
    a, b = np.ones((33, 7), order="F"), np.ones((7, 5))
    for alpha in FAULTS:
        with pytest.raises(KernelFault, match=r"of block \("):
            module.gemm(a, b, alpha=alpha)
        assert (module.gemm(a, b) == 7).all()


def test_a_child_process_does_not_wait_for_a_thread_of_its_parent() -> None:
    run_on_host(STUCK, "k", (), [np.int32(9)], blocks=1, threads=64)
    with entry_point._launching:  # held as if by another thread, which the child does not have
        child = os.fork()
        if child == 0:
            signal.alarm(30)  # ends a child that waits for ever
            run_on_host(STUCK, "k", (), [np.int32(9)], blocks=1, threads=64)
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
