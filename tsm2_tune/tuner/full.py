"""The full verification of a kernel: what takes too long for each configuration, and is done before one is a winner.

A winner is exported with its text, which serves every shape by either width of index. So for each width the compiled
kernel is tried

- on small problems with every remainder of m, n and k by the lengths into which it divides them;
- at the edges of its configuration, with all calls, of which a trial does some;
- on extents and leading dimensions of more than 16 bits, and at offsets past 32 bits, as far as memory goes;
- many times one after another: the results stay the same, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.probes import edge_problems, long_problems, remainder_problems
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.checks import (
    LONG_LINES,
    Check,
    checks_of,
    every_check,
    long_checks,
    overwriting,
    sweep_checks,
    with_padding,
)
from tsm2_tune.tuner.device import Device
from tsm2_tune.tuner.loaded import Entry, LoadedKernel, load
from tsm2_tune.tuner.operands import Operands, Support
from tsm2_tune.tuner.trial import Verdict
from tsm2_tune.tuner.verify import inspect, prepare, run_once, verify

PAST_32_BITS = 2**32  # elements from the first line of an operand to its last one
FEW_LINES = (5, 4, 3)  # m, n and k where lines are very long: no operand has one line alone
LINES_OF_GRAM = (4, 4, 3)


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of it is done: where kernels are emulated, a thousand times slower, less."""

    products: float  # of all problems with remainders, in whole tiles, for each width of index
    long_products: float  # of each problem with a long extent
    repeated_products: float  # of the problem that is repeated
    launches: int  # one after another
    past_32_bits: bool  # whether offsets are


ON_GPU = Extent(products=1e12, long_products=1e11, repeated_products=1e11, launches=2000, past_32_bits=True)
EMULATED = Extent(products=3e6, long_products=3e6, repeated_products=1e4, launches=40, past_32_bits=False)


@dataclass(frozen=True, slots=True)
class FullVerification:
    """A request: verify the kernel of a configuration that may win, compiled for each width of index."""

    problem: Problem
    config: KernelConfig
    entries: tuple[tuple[int, Entry], ...]  # bits of the index, and the kernel with it
    extent: Extent
    seed: int


@dataclass(frozen=True, slots=True)
class _Call:
    """A small problem with its checks."""

    stage: str
    problem: Problem
    checks: tuple[Check, ...]
    padding: Mapping[str, int] | None = None  # of lines that are longer than checks of other problems make them
    is_large: bool = True  # so that a device may have no room for it


def verify_in_full(
    device: Device, support: Support, request: FullVerification, tell: Callable[[str], None]
) -> Verdict:
    """The verdict: the first call that went wrong, or how many there were. `tell` hears of each stage.

    LaunchFailed and KernelFault pass through.
    """
    extent = request.extent
    calls, worst_ratio = 0, 0.0
    for bits, entry in request.entries:
        bench = _Bench(device, support, entry, bits)
        for number, call in enumerate(_calls(request, bits)):
            tell(f"{call.stage} with an index of {bits} bits")
            verdict = bench.verdict(call, request.seed + 1000 * number)
            if not verdict.correct:
                return replace(verdict, detail=f"{call.problem.text} with an index of {bits} bits, {verdict.detail}")
            calls, worst_ratio = calls + len(call.checks), max(worst_ratio, verdict.worst_ratio)
        tell(f"launches one after another with an index of {bits} bits")
        verdict = bench.repeated(_repeated_problem(request), extent.launches, request.seed)
        if not verdict.correct:
            return replace(verdict, detail=f"with an index of {bits} bits, {verdict.detail}")
        calls += extent.launches
    return Verdict(
        correct=True,
        worst_ratio=worst_ratio,
        detail=f"every element of {calls} calls right, worst error {worst_ratio:.2g} of its bound",
    )


def _calls(request: FullVerification, bits: int) -> Iterator[_Call]:
    config, asked, extent = request.config, request.problem, request.extent
    for problem in long_problems(config, asked, most_products=extent.long_products):
        yield _Call("long extents", problem, long_checks(problem))
    m, n, k = LINES_OF_GRAM if asked.is_gram else FEW_LINES
    few = replace(asked, m=m, n=n, k=k)
    yield _Call("long lines", few, (with_padding(overwriting(few), LONG_LINES),), LONG_LINES)
    if bits == 64 and extent.past_32_bits:
        for name, (_, lines) in few.stored.items():
            padding = dict.fromkeys("ABC", 0) | {name: PAST_32_BITS // (lines - 1)}
            yield _Call("offsets past 32 bits", few, (with_padding(overwriting(few), padding),), padding)
    for problem in edge_problems(config, asked):
        yield _Call("edges", problem, every_check(problem), is_large=False)
    for number, problem in enumerate(remainder_problems(config, asked, most_products=extent.products)):
        yield _Call("remainders", problem, sweep_checks(problem, number), is_large=False)


def _repeated_problem(request: FullVerification) -> Problem:
    """The largest of those at the edges that is not too large, or the smallest."""
    edges = sorted(edge_problems(request.config, request.problem), key=lambda one: one.m * one.n * one.k)
    fitting = [one for one in edges if one.m * one.n * one.k <= request.extent.repeated_products]
    return (fitting or edges[:1])[-1]


class _Bench:
    """A kernel, loaded, to be called on one small problem after another."""

    def __init__(self, device: Device, support: Support, entry: Entry, bits: int) -> None:
        self._device, self._support, self._entry, self._bits = device, support, entry, bits
        self._kernel = load(device, entry)

    def verdict(self, call: _Call, seed: int) -> Verdict:
        """Of the call's checks; of a problem that the device has no room for, right without a call."""
        try:
            operands = self._operands(call.problem, call.padding)
        except MemoryError:
            if not call.is_large:
                raise
            return Verdict(True, 0.0, "")
        loaded: LoadedKernel | None = None
        try:
            loaded = LoadedKernel(self._device, operands, self._entry, self._kernel)
            return verify(self._device, operands, loaded, checks=call.checks, seed=seed)
        finally:
            if loaded is not None:
                loaded.free()
            operands.free()

    def repeated(self, problem: Problem, launches: int, seed: int) -> Verdict:
        """Whether the last of so many launches gives what the first one gave, and that is right."""
        operands, check = self._operands(problem), checks_of(problem)[-1]
        loaded: LoadedKernel | None = None
        try:
            loaded = LoadedKernel(self._device, operands, self._entry, self._kernel)
            prepare(operands, check, seed=seed)
            verdict = run_once(self._device, operands, loaded, check)
            first = self._bits_of_c(operands)
            for _ in range(launches - 1):
                loaded.start(operands.arguments())
            self._device.synchronise()
            trouble = loaded.trouble()
            if trouble:
                return Verdict(False, math.inf, f"{problem.text}, launch {launches}: {trouble}")
            if verdict.correct:
                verdict = inspect(operands, check)
            if verdict.correct and not np.array_equal(first, self._bits_of_c(operands)):
                detail = f"launch {launches} of the same product gives other bits than the first one"
                return Verdict(False, math.inf, f"{problem.text}: {detail}")
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
