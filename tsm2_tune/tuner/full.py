"""The full verification of a kernel: what takes too long for each configuration, and is done before one is a winner.

A winner is exported with its text, which serves every shape by either width of index. So for each width the compiled
kernel makes the calls that `full_calls` names, and is launched many times one after another: the results stay the
same, bit for bit.

On a host the kernel is compiled once more, so that its accesses to shared memory are watched, and called at the edges
of its configuration: no two threads may touch the same bytes without a barrier between them (`tuner/host/races.h`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.checks import checks_of, overwriting
from tsm2_tune.tuner.device import Device, KernelFault, LaunchFailed
from tsm2_tune.tuner.loaded import Entry, LoadedKernel, WorkspaceTooLarge, load
from tsm2_tune.tuner.operands import Operands
from tsm2_tune.tuner.requests import WATCHED, Call, FullVerification
from tsm2_tune.tuner.support import Support
from tsm2_tune.tuner.trial import Verdict
from tsm2_tune.tuner.verify import inspect, prepare, verify

MOST_COMPARED_BYTES = 2**29  # of all launches of a kernel together


def verify_in_full(
    device: Device, support: Support, request: FullVerification, tell: Callable[[str], None]
) -> Verdict:
    """The verdict: the first call that went wrong, or how many there were. `tell` hears of each stage.

    LaunchFailed and KernelFault pass through, and say at which problem.
    """
    calls, worst_ratio = 0, 0.0
    for run in request.runs:
        bench = _Bench(device, support, run.entry, run.bits)
        for number, call in enumerate(run.calls):
            tell(f"{call.stage} {run.how}")
            what = f"{call.problem.text} {run.how}" + (f", {call.splits} splits" if call.splits else "")
            with _named(what):
                verdict = bench.verdict(call, request.seed + 1000 * number)
            if not verdict.correct:
                return replace(verdict, detail=f"{what}, {verdict.detail}")
            calls, worst_ratio = calls + len(call.checks), max(worst_ratio, verdict.worst_ratio)
        if run.repeated is None:
            continue
        tell(f"launches one after another {run.how}")
        with _named(f"{run.repeated.text} {run.how}, launches one after another"):
            verdict = bench.repeated(run.repeated, run.launches, request.seed)
        if not verdict.correct:
            return replace(verdict, detail=f"{run.how}, {verdict.detail}")
        calls += run.launches
    is_watched = any(run.how == WATCHED for run in request.runs)
    return Verdict(
        correct=True,
        worst_ratio=worst_ratio,
        detail=f"every element of {calls} calls right, worst error {worst_ratio:.2g} of its bound"
        + (f", {WATCHED}" if is_watched else ""),
    )


@contextmanager
def _named(call: str) -> Iterator[None]:
    """What goes wrong within says in which call."""
    try:
        yield
    except (LaunchFailed, KernelFault) as error:
        raise type(error)(f"{call}: {error}") from error


class _Bench:
    """A kernel, loaded, to be called on one small problem after another."""

    def __init__(self, device: Device, support: Support, entry: Entry, bits: int) -> None:
        self._device, self._support, self._entry, self._bits = device, support, entry, bits
        self._kernel = load(device, entry)

    def verdict(self, call: Call, seed: int) -> Verdict:
        """Of the call's checks; of a problem that the device has no room for, right without a call."""
        operands: Operands | None = None
        loaded: LoadedKernel | None = None
        try:
            operands = self._operands(call.problem, call.padding)
            entry = self._entry
            if call.splits:
                entry = replace(entry, launch=entry.launch.with_splits(call.splits))
            loaded = LoadedKernel(self._device, operands, entry, self._kernel)
            return verify(self._device, operands, loaded, checks=call.checks, seed=seed)
        except (MemoryError, WorkspaceTooLarge):
            if not call.is_large or loaded is not None:
                raise
            return Verdict(True, 0.0, "")
        finally:
            if loaded is not None:
                loaded.free()
            if operands is not None:
                operands.free()

    def repeated(self, problem: Problem, launches: int, seed: int) -> Verdict:
        """Whether launches one after another, in turns with beta and without, give what the first of them gave.

        These two are compared with the reference, the others bit for bit, each or, of a large C, every few.
        """
        operands, general = self._operands(problem), checks_of(problem)[1]
        turns = (general, replace(overwriting(problem), padding=general.padding))
        loaded: LoadedKernel | None = None
        try:
            loaded = LoadedKernel(self._device, operands, self._entry, self._kernel)
            prepare(operands, general, seed=seed)
            loaded.prepare()
            every = 1 + launches * operands.c.buffer.size_bytes // MOST_COMPARED_BYTES
            firsts: list[np.ndarray[tuple[int], np.dtype[np.uint8]]] = []
            for launch in range(launches):
                check = turns[launch % 2]
                operands.c.fill(operands.c.filling)
                loaded.start(operands.arguments(check.alpha, check.beta))
                if launch < 2:
                    verdict = inspect(operands, check, loaded)
                    if not verdict.correct:
                        return replace(verdict, detail=f"{problem.text}, {verdict.detail}")
                    firsts.append(self._bits_of_c(operands))
                elif (launch // 2 % every == 0 or launch >= launches - 2) and not np.array_equal(
                    firsts[launch % 2], self._bits_of_c(operands)
                ):
                    detail = f"launch {launch + 1} of the same product gives other bits than the first one"
                    return Verdict(False, math.inf, f"{problem.text}: {detail}")
            verdict = inspect(operands, turns[(launches - 1) % 2], loaded)
            return verdict if verdict.correct else replace(verdict, detail=f"{problem.text}, {verdict.detail}")
        finally:
            if loaded is not None:
                loaded.free()
            operands.free()

    def _operands(self, problem: Problem, padding: Mapping[str, int] | None = None) -> Operands:
        return Operands(self._device, self._support, problem, index_bits=self._bits, padding=padding)

    def _bits_of_c(self, operands: Operands) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        bits = np.empty(operands.c.buffer.size_bytes, np.uint8)
        self._device.download(operands.c.buffer, bits)
        return bits
