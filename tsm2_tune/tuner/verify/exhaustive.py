"""The full verification of a kernel: what takes too long for each configuration, and is done before one is a winner.

A winner is exported with its text, which serves every shape by either width of index. So for each width the compiled
kernel makes the calls that `full_calls` names, and is launched many times one after another: the results stay the
same, bit for bit.

On a host the kernel is compiled once more, so that its accesses to shared memory are watched, and called at the edges
of its configuration: no two threads may touch the same bytes without a barrier between them
(`tuner/device/emulator/include/races.h`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace

import numpy as np

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.device.interface import Device, KernelFault, LaunchFailed
from tsm2_tune.tuner.device.support_kernels import Support
from tsm2_tune.tuner.results.trial import Verdict
from tsm2_tune.tuner.verify.bound_kernel import LoadedKernel, WorkspaceTooLarge, load
from tsm2_tune.tuner.verify.checks import Check, checks_of, overwriting
from tsm2_tune.tuner.verify.operands import Operands, needed_bytes
from tsm2_tune.tuner.verify.verdict import Verification, inspect, prepare, verify_each
from tsm2_tune.tuner.worker.protocol import WATCHED, Call, FullVerification, Run

MOST_ASIDE = 0.25  # of the device's memory, for what is started aside
MOST_COMPARED_BYTES = 2**29  # of all launches of a kernel together


def verify_in_full(
    device: Device, support: Support, request: FullVerification, tell: Callable[[str], None]
) -> Verdict:
    """Return the verdict: the first call that went wrong, or how many there were. `tell` hears of each stage.

    LaunchFailed and KernelFault pass through, and say at which problems.
    """
    worst_ratio = 0.0
    with device.keeping_memory(), closing(_verdicts(device, support, request, tell)) as verdicts:
        for verdict in verdicts:
            if not verdict.correct:
                return verdict
            worst_ratio = max(worst_ratio, verdict.worst_ratio)
    calls = sum(run.launches + sum(len(call.checks) for call in run.calls) for run in request.runs)
    is_watched = any(run.how == WATCHED for run in request.runs)
    return Verdict(
        correct=True,
        worst_ratio=worst_ratio,
        detail=f"every element of {calls} calls right, worst error {worst_ratio:.2g} of its bound"
        + (f", {WATCHED}" if is_watched else ""),
    )


def _verdicts(
    device: Device, support: Support, request: FullVerification, tell: Callable[[str], None]
) -> Generator[Verdict, None, None]:
    """The verdicts on all calls: on large problems last, when what was started aside has given its memory back."""
    benches = [_Bench(device, support, run, request.seed) for run in request.runs]
    with ExitStack() as used:
        tell("long extents, started")
        aside: list[_Aside] = []
        for bench in benches:
            aside += bench.put_aside(used, sum(needed_bytes(one.operands.problem) for one in aside))
        beside = f" beside {', '.join(dict.fromkeys(one.what for one in aside))}" if aside else ""
        waits = device.aside([one.start for one in aside])
        for bench in benches:
            yield from bench.verdicts(tell, beside, are_large=False)
        for one, wait in zip(aside, waits, strict=True):
            tell("long extents, ended")
            with _named(one.what):
                wait()
                verdict = inspect(one.operands, one.check, one.loaded)
            yield _said_of(one.what, verdict)
    for bench in benches:
        yield from bench.verdicts(tell, "", are_large=True)


def _said_of(what: str, verdict: Verdict) -> Verdict:
    return verdict if verdict.correct else replace(verdict, detail=f"{what}, {verdict.detail}")


@contextmanager
def _named(call: str) -> Iterator[None]:
    """Prefix errors of the body with the name of the call."""
    try:
        yield
    except (LaunchFailed, KernelFault) as error:
        raise type(error)(f"{call}: {error}") from error


Numbered = tuple[int, Call]  # of a run's calls


@dataclass(frozen=True, slots=True)
class _Aside:
    """A call that is started beside the others."""

    what: str
    operands: Operands
    loaded: LoadedKernel
    check: Check

    def start(self) -> None:
        with _named(self.what):
            self.loaded.start(self.operands.arguments(self.check.alpha, self.check.beta))


class _Bench:
    """A kernel, loaded, to be called on one small problem after another."""

    def __init__(self, device: Device, support: Support, run: Run, seed: int) -> None:
        self._device, self._support, self._run, self._seed = device, support, run, seed
        self._kernel = load(device, run.entry)
        self._aside: set[int] = set()  # the numbers of calls that were started so

    def put_aside(self, used: ExitStack, taken_bytes: int) -> list[_Aside]:
        """Prepare the slow calls, those for which the device has room beside others. `used` ends what they take."""
        most_bytes = MOST_ASIDE * self._device.limits.memory_bytes
        prepared: list[_Aside] = []
        for number, call in enumerate(self._run.calls):
            if not call.is_slow:
                continue
            taken_bytes += len(call.checks) * needed_bytes(call.problem)
            if taken_bytes > most_bytes:
                break
            for place, check in enumerate(call.checks):
                loaded = self._loaded(call, used)
                if loaded is None:
                    return prepared
                prepare(loaded.operands, check, seed=self._seed_of(number) + 3 * place, loaded=loaded)
                prepared.append(_Aside(self._what(call), loaded.operands, loaded, check))
            self._aside.add(number)
        return prepared

    def verdicts(self, tell: Callable[[str], None], beside: str, *, are_large: bool) -> Iterator[Verdict]:
        """Yield the verdicts on calls that were not put aside, of large problems, or of others and on launches one
        after another. `beside` says what else runs.
        """
        calls = [one for one in enumerate(self._run.calls) if one[0] not in self._aside]
        for group in _groups([one for one in calls if one[1].is_large == are_large], self._device.calls_ahead):
            first, last = self._what(group[0][1]), self._what(group[-1][1])
            tell(f"{group[0][1].stage} {self._run.how}")
            with _named((f"{first} ... {last}" if len(group) > 1 else first) + beside):
                verdicts = self._verdicts(group)
            yield from verdicts
        if self._run.repeated is not None and not are_large:
            tell(f"launches one after another {self._run.how}")
            with _named(f"{self._run.repeated.text} {self._run.how}, launches one after another{beside}"):
                verdict = self._repeated(self._run.repeated, self._run.launches)
            yield _said_of(self._run.how, verdict)

    def _verdicts(self, group: Sequence[Numbered]) -> list[Verdict]:
        """Return the verdicts on a group, up to the first that is not right."""
        there: list[Call] = []
        verifications: list[Verification] = []
        with ExitStack() as used:
            for number, call in group:
                loaded = self._loaded(call, used)
                if loaded is not None:
                    there.append(call)
                    verifications.append(Verification(loaded.operands, loaded, call.checks, self._seed_of(number)))
            verdicts = verify_each(self._device, verifications)
        return [_said_of(self._what(call), verdict) for call, verdict in zip(there, verdicts, strict=False)]

    def _loaded(self, call: Call, used: ExitStack) -> LoadedKernel | None:
        """The kernel on the call's operands, which `used` frees; None where the device has no room for large ones."""
        entry = self._run.entry
        if call.splits:
            entry = replace(entry, launch=entry.launch.with_splits(call.splits))
        try:
            with ExitStack() as taken:
                operands = self._operands(call.problem, call.padding)
                taken.callback(operands.free)
                loaded = LoadedKernel(self._device, operands, entry, self._kernel)
                taken.callback(loaded.free)
                used.push(taken.pop_all())
        except (MemoryError, WorkspaceTooLarge):
            if not call.is_large:
                raise
            return None
        return loaded

    def _what(self, call: Call) -> str:
        return f"{call.problem.text} {self._run.how}" + (f", {call.splits} splits" if call.splits else "")

    def _seed_of(self, number: int) -> int:
        return self._seed + 1000 * number

    def _repeated(self, problem: Problem, launches: int) -> Verdict:
        """Return whether launches one after another, in turns with beta and without, give what the first of them
        gave.

        These two are compared with the reference, the others bit for bit, each or, of a large C, every few.
        """
        operands, general = self._operands(problem), checks_of(problem)[1]
        turns = (general, replace(overwriting(problem), padding=general.padding))
        loaded: LoadedKernel | None = None
        try:
            loaded = LoadedKernel(self._device, operands, self._run.entry, self._kernel)
            prepare(operands, general, seed=self._seed)
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
        return Operands(self._device, self._support, problem, index_bits=self._run.bits, padding=padding)

    def _bits_of_c(self, operands: Operands) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        bits = np.empty(operands.c.buffer.size_bytes, np.uint8)
        self._device.download(operands.c.buffer, bits)
        return bits


def _groups(calls: Sequence[Numbered], most: int) -> Iterator[list[Numbered]]:
    """The calls in groups: of large problems each alone, of others those of a stage with at most so many checks."""
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
