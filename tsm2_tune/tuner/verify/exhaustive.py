"""The full verification of the fastest kernel of a problem. Other kernels do not run it, because it takes too long.

An exported kernel is used for every shape, with 32-bit and with 64-bit indices. So for each index width the compiled
kernel must pass the calls that `winner_calls.py` lists. It is also launched many times, and all results must be
identical, bit for bit.

On the CPU, which emulates CUDA, the kernel is also compiled with race detection and called on small problems: no two
threads may access the same bytes of shared memory without a barrier between the accesses
(`tuner/device/emulator/include/races.h`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.device.interface import Buffer, Device, KernelFault, LaunchFailed
from tsm2_tune.tuner.device.support_kernels import Support
from tsm2_tune.tuner.results.trial import Verdict
from tsm2_tune.tuner.verify.bound_kernel import BoundKernel, WorkspaceTooLarge
from tsm2_tune.tuner.verify.checks import Check, checks_of, overwriting
from tsm2_tune.tuner.verify.operands import Operands, needed_bytes
from tsm2_tune.tuner.verify.verdict import KernelCalls, inspect, prepare, right, verify_each
from tsm2_tune.tuner.worker.protocol import WATCHED, Call, FullVerification, Run

MOST_CONCURRENT = 0.25  # share of the device's memory for slow calls that run concurrently


def verify_in_full(
    device: Device, support: Support, request: FullVerification, tell: Callable[[str], None]
) -> Verdict:
    """Run all calls of the full verification. Return the verdict on the first wrong call, or a verdict on all calls.

    `tell` is called with the name of each group of calls. LaunchFailed and KernelFault are re-raised with the
    problem's name in the message.
    """
    worst_ratio = 0.0
    runners = [_KernelRunner(device, support, run, request.seed) for run in request.runs]
    with device.keeping_memory(), closing(_verdicts(device, runners, tell)) as verdicts:
        for verdict in verdicts:
            if not verdict.correct:
                return verdict
            worst_ratio = max(worst_ratio, verdict.worst_ratio)
    calls, too_large = sum(one.calls for one in runners), sum(one.too_large for one in runners)
    more = f", {too_large} calls do not fit in memory" if too_large else ""
    if any(run.how == WATCHED for run in request.runs):
        more += f", {WATCHED}"
    return right(calls, worst_ratio, more)


def _verdicts(
    device: Device, runners: Sequence[_KernelRunner], tell: Callable[[str], None]
) -> Generator[Verdict, None, None]:
    """Yield a verdict for each call.

    Large problems run last, after the slow concurrent calls have freed their memory. The largest of them, with 64-bit
    indices, come first: smaller ones reuse their memory, and the driver needs a second to allocate 50 GB.
    """
    with ExitStack() as used:
        tell("long extents, started")
        concurrent: list[_ConcurrentCall] = []
        for runner in runners:
            concurrent += runner.prepare_concurrent_calls(
                used, sum(needed_bytes(one.operands.problem) for one in concurrent)
            )
        beside = f" beside {', '.join(dict.fromkeys(one.what for one in concurrent))}" if concurrent else ""
        waits = device.start_concurrently([one.start for one in concurrent])
        for runner in runners:
            yield from runner.verdicts(tell, beside, are_large=False)
        for one, wait in zip(concurrent, waits, strict=True):
            tell("long extents, ended")
            with _named(one.what):
                wait()
                verdict = inspect(one.operands, one.check, one.bound)
            yield _prefixed(one.what, verdict)
    for runner in reversed(runners):
        yield from runner.verdicts(tell, "", are_large=True)


def _prefixed(what: str, verdict: Verdict) -> Verdict:
    return verdict if verdict.correct else replace(verdict, detail=f"{what}, {verdict.detail}")


@contextmanager
def _named(call: str) -> Iterator[None]:
    """Context manager that prefixes the message of LaunchFailed and KernelFault with the call's name."""
    try:
        yield
    except (LaunchFailed, KernelFault) as error:
        raise type(error)(f"{call}: {error}") from error


Numbered = tuple[int, Call]  # the call's index in its run, the call


@dataclass(frozen=True, slots=True)
class _ConcurrentCall:
    """A slow call that runs concurrently with the other calls."""

    what: str
    operands: Operands
    bound: BoundKernel
    check: Check

    def start(self) -> None:
        with _named(self.what):
            self.bound.start(self.operands.arguments(self.check.alpha, self.check.beta))


class _KernelRunner:
    """Runner that calls one loaded kernel on many problems."""

    def __init__(self, device: Device, support: Support, run: Run, seed: int) -> None:
        self._device, self._support, self._run, self._seed = device, support, run, seed
        self._kernel = device.load(run.entry.code, run.entry.kernel)
        self._concurrent: set[int] = set()  # indices of the calls that run concurrently with the others
        self.calls = 0  # launches that were checked
        self.too_large = 0  # that were left out, since their operands do not fit in memory

    def prepare_concurrent_calls(self, used: ExitStack, taken_bytes: int) -> list[_ConcurrentCall]:
        """Prepare slow calls that run concurrently with the other calls, as long as their operands fit in memory."""
        most_bytes = MOST_CONCURRENT * self._device.limits.memory_bytes
        prepared: list[_ConcurrentCall] = []
        for number, call in enumerate(self._run.calls):
            if not call.is_slow:
                continue
            taken_bytes += len(call.checks) * needed_bytes(call.problem)
            if taken_bytes > most_bytes:
                break
            for place, check in enumerate(call.checks):
                bound = self._bound(call, used)
                if bound is None:
                    return prepared
                prepare(bound.operands, check, seed=self._seed_of(number) + 3 * place, bound=bound)
                prepared.append(_ConcurrentCall(self._what(call), bound.operands, bound, check))
            self._concurrent.add(number)
            self.calls += len(call.checks)
        return prepared

    def verdicts(self, tell: Callable[[str], None], beside: str, *, are_large: bool) -> Iterator[Verdict]:
        """Yield the verdicts on calls that do not run concurrently.

        With `are_large`, run only the calls on large problems, the largest first. Without it, run all other calls and
        the repeated launches. The text `beside` names the concurrent calls, for error messages.
        """
        calls = [
            (number, call)
            for number, call in enumerate(self._run.calls)
            if call.is_large == are_large and number not in self._concurrent
        ]
        if are_large:
            calls.sort(key=lambda one: needed_bytes(one[1].problem, one[1].padding), reverse=True)
        for group in _groups(calls, self._device.calls_ahead):
            first, last = self._what(group[0][1]), self._what(group[-1][1])
            tell(f"{group[0][1].stage} {self._run.how}")
            with _named((f"{first} ... {last}" if len(group) > 1 else first) + beside):
                verdicts = self._verdicts(group)
            yield from verdicts
        if self._run.repeated is not None and not are_large:
            tell(f"launches one after another {self._run.how}")
            with _named(f"{self._run.repeated.text} {self._run.how}, launches one after another{beside}"):
                verdict = self._repeated(self._run.repeated, self._run.launches)
            self.calls += self._run.launches
            yield _prefixed(self._run.how, verdict)

    def _verdicts(self, group: Sequence[Numbered]) -> list[Verdict]:
        """Run a group of calls. Return their verdicts, up to and including the first wrong one."""
        there: list[Call] = []
        verifications: list[KernelCalls] = []
        with ExitStack() as used:
            for number, call in group:
                bound = self._bound(call, used)
                if bound is None:
                    self.too_large += len(call.checks)
                else:
                    self.calls += len(call.checks)
                    there.append(call)
                    verifications.append(KernelCalls(bound.operands, bound, call.checks, self._seed_of(number)))
            verdicts = verify_each(self._device, verifications)
        return [_prefixed(self._what(call), verdict) for call, verdict in zip(there, verdicts, strict=False)]

    def _bound(self, call: Call, used: ExitStack) -> BoundKernel | None:
        """Bind the kernel to new operands, which `used` frees. Return None if a large problem does not fit."""
        entry = self._run.entry
        if call.splits:
            entry = replace(entry, launch=entry.launch.with_splits(call.splits))
        try:
            with ExitStack() as taken:
                operands = self._operands(call.problem, call.padding)
                taken.callback(operands.free)
                bound = BoundKernel(self._device, operands, entry, self._kernel)
                taken.callback(bound.free)
                used.push(taken.pop_all())
        except (MemoryError, WorkspaceTooLarge):
            if not call.is_large:
                raise
            return None
        return bound

    def _what(self, call: Call) -> str:
        return f"{call.problem.text} {self._run.how}" + (f", {call.splits} splits" if call.splits else "")

    def _seed_of(self, number: int) -> int:
        return self._seed + 1000 * number

    def _repeated(self, problem: Problem, launches: int) -> Verdict:
        """Launch the kernel `launches` times. Return a wrong verdict if results differ between launches.

        Launches alternate between beta = 0 and another beta. The first launch with each beta is compared with the
        reference. Later launches are compared bit for bit with that first launch.
        """
        operands, general = self._operands(problem), checks_of(problem)[1]
        turns = (general, replace(overwriting(problem), padding=general.padding))
        result, support = operands.c.buffer, self._support
        firsts: list[Buffer] = []
        bound: BoundKernel | None = None
        try:
            bound = BoundKernel(self._device, operands, self._run.entry, self._kernel)
            prepare(operands, general, seed=self._seed)
            bound.prepare()
            for launch in range(launches):
                check = turns[launch % len(turns)]
                support.fill([operands.c.placed])
                bound.start(operands.arguments(check.alpha, check.beta))
                if launch >= len(turns):
                    support.compare_bits(result, firsts[launch % len(turns)], launch)
                    continue
                verdict = inspect(operands, check, bound)
                if not verdict.correct:
                    return replace(verdict, detail=f"{problem.text}, {verdict.detail}")
                firsts.append(self._device.allocate(result.size_bytes))
                support.compare_bits(result, firsts[-1], None)
                support.begin_reports()
            if (differing := support.differing_launch()) is not None:
                detail = f"launch {differing + 1} of the same product differs bitwise from the first launch"
                return Verdict(False, math.inf, f"{problem.text}: {detail}")
            verdict = inspect(operands, turns[(launches - 1) % len(turns)], bound)
            return verdict if verdict.correct else replace(verdict, detail=f"{problem.text}, {verdict.detail}")
        finally:
            if bound is not None:
                bound.free()
            operands.free()
            for buffer in firsts:
                buffer.free()

    def _operands(self, problem: Problem, padding: Mapping[str, int] | None = None) -> Operands:
        return Operands(self._device, self._support, problem, index_bits=self._run.bits, padding=padding)


def _groups(calls: Sequence[Numbered], most: int) -> Iterator[list[Numbered]]:
    """Yield consecutive calls of one kind in groups of at most `most` checks. A large problem is its own group."""
    group: list[Numbered] = []
    checks = 0
    for number, call in calls:
        checks += len(call.checks)
        if group and (checks > most or call.is_large or group[0][1].is_large or call.stage != group[0][1].stage):
            yield group
            group, checks = [], len(call.checks)
        group.append((number, call))
    if group:
        yield group
