"""The full verification of a kernel: what takes too long for each configuration, and is done before one is a winner.

A winner is exported with its text, which serves every shape by either width of index. So for each width the compiled
kernel is tried

- on small problems with every remainder of m, n and k by the lengths into which it divides them, with more turns
  along k than it has stages, with more tiles than blocks where their number is fixed, and with a single product,
  whose error is the least;
- at the edges of its configuration, with all calls, of which a trial does some;
- where an extent is 1 and a host has nothing before the operands that may be read;
- on extents, blocks, turns along k and leading dimensions of more than 16 bits, as far as memory goes;
- at the largest offsets for which a program calls a kernel with an index of 32 bits, and at larger ones with 64;
- many times one after another: the results stay the same, bit for bit.

On a host the kernel is compiled once more, so that its accesses to shared memory are watched, and called at the edges
of its configuration: no two threads may touch the same bytes without a barrier between them (`tuner/host/races.h`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.probes import (
    deep_problems,
    edge_problems,
    least_problems,
    long_line_problems,
    long_problems,
    many_tile_problems,
    precise_problems,
    remainder_problems,
    within,
)
from tsm2_tune.generator.problem import LARGEST_32_BIT_OFFSET, PADDING_ROWS, Problem
from tsm2_tune.generator.render import INDEX_BITS
from tsm2_tune.tuner.checks import (
    LONG_LINES,
    LONG_WHOLE_LINES,
    Check,
    checks_of,
    every_check,
    first_checks,
    long_checks,
    overwriting,
    precise_checks,
    probe_checks,
    sweep_checks,
    with_padding,
)
from tsm2_tune.tuner.device import Device, KernelFault, LaunchFailed
from tsm2_tune.tuner.loaded import Entry, LoadedKernel, WorkspaceTooLarge, load
from tsm2_tune.tuner.operands import Operands, Support
from tsm2_tune.tuner.trial import Verdict
from tsm2_tune.tuner.verify import inspect, prepare, verify

MOST_COMPARED_BYTES = 2**29  # of all launches of a kernel together
PAST_32_BITS = 2**32  # elements from the first line of an operand to its last one
WHOLE = 4  # lines that are longer by a multiple of it are made whole vectors, others of an odd number of elements


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of it is done: where kernels are emulated, a thousand times slower, less."""

    products: float  # of all problems with remainders, in whole tiles, for each width of index
    long_products: float  # of each problem with a long extent
    repeated_products: float  # of the problem that is repeated
    launches: int  # one after another
    large_offsets: bool  # for each width of index
    every_call: bool  # of the edges: else those of a trial, for the width of index that was not timed
    deep_products: float  # of the problem with many turns along k, of that with many tiles, and of one product
    watched_products: float = 0.0  # of all problems at the edges, in whole tiles, on which the kernel is watched


ON_GPU = Extent(
    products=1e12,
    long_products=1e11,
    repeated_products=1e11,
    launches=2000,
    large_offsets=True,
    every_call=True,
    deep_products=1e11,
)
EMULATED = Extent(
    products=3e6,
    long_products=3e6,
    repeated_products=1e4,
    launches=40,
    large_offsets=False,
    every_call=False,
    deep_products=3e6,
    watched_products=4e7,
)


@dataclass(frozen=True, slots=True)
class FullVerification:
    """A request: verify the kernel of a configuration that may win, compiled for each width of index."""

    problem: Problem
    config: KernelConfig
    entries: tuple[tuple[int, Entry], ...]  # bits of the index, and the kernel with it
    extent: Extent
    seed: int
    watched: Entry | None = None  # of a host: the kernel in which races are told


@dataclass(frozen=True, slots=True)
class Call:
    """A small problem with its checks."""

    stage: str
    problem: Problem
    checks: tuple[Check, ...]
    padding: Mapping[str, int] = field(default_factory=dict)  # of lines longer than other problems' checks make them
    is_large: bool = False  # so that a device may have no room for it


def verify_in_full(
    device: Device, support: Support, request: FullVerification, tell: Callable[[str], None]
) -> Verdict:
    """The verdict: the first call that went wrong, or how many there were. `tell` hears of each stage.

    LaunchFailed and KernelFault pass through, and say at which problem.
    """
    extent = request.extent
    calls, worst_ratio = 0, 0.0
    for bits, entry in request.entries:
        how = f"with an index of {bits} bits"
        bench = _Bench(device, support, entry, bits)
        for number, call in enumerate(calls_for(request, bits)):
            tell(f"{call.stage} {how}")
            with _named(f"{call.problem.text} {how}"):
                verdict = bench.verdict(call, request.seed + 1000 * number)
            if not verdict.correct:
                return replace(verdict, detail=f"{call.problem.text} {how}, {verdict.detail}")
            calls, worst_ratio = calls + len(call.checks), max(worst_ratio, verdict.worst_ratio)
        tell(f"launches one after another {how}")
        repeated = _repeated_problem(request)
        with _named(f"{repeated.text} {how}, launches one after another"):
            verdict = bench.repeated(repeated, extent.launches, request.seed)
        if not verdict.correct:
            return replace(verdict, detail=f"{how}, {verdict.detail}")
        calls += extent.launches
    if request.watched is not None:
        bench = _Bench(device, support, request.watched, INDEX_BITS[0])
        for call in _watched_calls(request):
            tell("races")
            with _named(f"{call.problem.text}, watched for races"):
                verdict = bench.verdict(call, request.seed)
            if not verdict.correct:
                return replace(verdict, detail=f"{call.problem.text}, watched for races, {verdict.detail}")
            calls += len(call.checks)
    return Verdict(
        correct=True,
        worst_ratio=worst_ratio,
        detail=f"every element of {calls} calls right, worst error {worst_ratio:.2g} of its bound"
        + (", watched for races" if request.watched is not None else ""),
    )


@contextmanager
def _named(call: str) -> Iterator[None]:
    """What goes wrong within says in which call."""
    try:
        yield
    except (LaunchFailed, KernelFault) as error:
        raise type(error)(f"{call}: {error}") from error


def calls_for(request: FullVerification, bits: int) -> Iterator[Call]:
    """Those for which a program would call the kernel with an index of so many bits."""
    return (call for call in _calls(request, bits) if call.problem.index_bits_of(call.padding) <= bits)


def _calls(request: FullVerification, bits: int) -> Iterator[Call]:
    config, asked, extent = request.config, request.problem, request.extent
    for number, problem in enumerate(edge_problems(config, asked)):
        if extent.every_call:
            yield Call("edges", problem, every_check(problem))
        elif bits != asked.index_bits:
            yield Call("edges", problem, probe_checks(problem, number))
    for problem in least_problems(config, asked):
        yield Call("first in memory", problem, first_checks(problem))
    for problem in deep_problems(config, asked, most_products=extent.deep_products):
        yield Call("many turns", problem, sweep_checks(problem, 0)[:2])
    for problem in many_tile_problems(config, asked, most_products=extent.deep_products):
        yield Call("many tiles", problem, sweep_checks(problem, 0)[:2])
    for problem in precise_problems(config, asked, most_products=extent.deep_products):
        yield Call("one product", problem, precise_checks(problem))
    for number, problem in enumerate(remainder_problems(config, asked, most_products=extent.products)):
        yield Call("remainders", problem, sweep_checks(problem, number))
    for problem in long_problems(config, asked, most_products=extent.long_products):
        yield Call("long extents", problem, long_checks(problem), is_large=True)
    few, whole, both, deep = long_line_problems(config, asked)
    most_elements = min(extent.long_products, PAST_32_BITS)
    for problem, lengths in product((few, whole, both, deep), (LONG_LINES, LONG_WHOLE_LINES)):
        if sum(lines * lengths[name] for name, (_, lines) in problem.stored.items()) <= most_elements:
            check = with_padding(overwriting(problem), lengths)
            yield Call("long lines", problem, (check,), lengths, is_large=problem is deep)
    if extent.large_offsets:
        for problem in (few, whole, both):
            yield from _at_large_offsets(problem, bits)


def _watched_calls(request: FullVerification) -> Iterator[Call]:
    """Calls at the edges, in whole vectors and in none in turns: the numbers do not matter."""
    problems = edge_problems(request.config, request.problem)
    for number, problem in enumerate(within(request.config, problems, most_products=request.extent.watched_products)):
        check = overwriting(problem) if number % 2 == 0 else checks_of(problem)[1]
        yield Call("races", problem, (check,))


def _at_large_offsets(problem: Problem, bits: int) -> Iterator[Call]:
    """Calls with lines of one operand so far apart that only an index of so many bits reaches the last one."""
    for name, (contiguous, lines) in problem.stored.items():
        if lines == 1:
            continue
        if bits == 32:
            apart = (LARGEST_32_BIT_OFFSET // lines - contiguous - PADDING_ROWS - 1) // WHOLE * WHOLE
        else:
            apart = (PAST_32_BITS // (lines - 1) // WHOLE + 1) * WHOLE
        for others, more in ((WHOLE, 0), (0, 1)):  # lines of whole vectors, and of none
            padding = dict.fromkeys("ABC", others) | {name: apart + more}
            check = with_padding(overwriting(problem), padding)
            yield Call("large offsets", problem, (check,), padding, is_large=True)


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

    def verdict(self, call: Call, seed: int) -> Verdict:
        """Of the call's checks; of a problem that the device has no room for, right without a call."""
        operands: Operands | None = None
        loaded: LoadedKernel | None = None
        try:
            operands = self._operands(call.problem, call.padding)
            loaded = LoadedKernel(self._device, operands, self._entry, self._kernel)
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
                    self._device.synchronise()
                    verdict = inspect(operands, check, loaded.workspace)
                    if not verdict.correct:
                        return replace(verdict, detail=f"{problem.text}, {verdict.detail}")
                    firsts.append(self._bits_of_c(operands))
                elif (launch // 2 % every == 0 or launch >= launches - 2) and not np.array_equal(
                    firsts[launch % 2], self._bits_of_c(operands)
                ):
                    detail = f"launch {launch + 1} of the same product gives other bits than the first one"
                    return Verdict(False, math.inf, f"{problem.text}: {detail}")
            self._device.synchronise()
            if trouble := loaded.trouble():
                return Verdict(False, math.inf, f"{problem.text}, launches: {trouble}")
            verdict = inspect(operands, turns[(launches - 1) % 2], loaded.workspace)
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
