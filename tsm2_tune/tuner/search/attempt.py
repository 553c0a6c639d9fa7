"""One trial of a candidate: wait for its binary, have the worker process verify and time it, return the Trial."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from tsm2_tune.generator.device.roofline import Ceilings
from tsm2_tune.generator.probes import edge_problems
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.rules import GUIDELINE_RULES
from tsm2_tune.tuner.compile.pool import Compiled
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.results.trial import Binary, CompileFailure, LoadedResources, Outcome, Trial
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.quarantine import HAZARDS, small_problems
from tsm2_tune.tuner.verify.bound_kernel import Entry
from tsm2_tune.tuner.worker.client import Attempt, AttemptResult, Worker
from tsm2_tune.tuner.worker.time_limit import RunningClock


@dataclass(frozen=True, slots=True)
class CompiledCandidate:
    """A candidate after its compilation.

    `request` asks the worker process to verify and time the kernel. It is None if the kernel did not compile.
    """

    candidate: Candidate
    source: KernelSource
    binary: Binary | CompileFailure
    request: Attempt | None


class TrialMaker:
    """Maker of trials on one device. A trial compiles, verifies and times one candidate."""

    def __init__(
        self,
        target: Target,
        options: Options,
        worker: Callable[[], Worker],
        ceilings: Callable[[], Ceilings],
        clock: RunningClock,
    ) -> None:
        self._target, self._options, self._worker = target, options, worker
        self._ceilings, self._clock = ceilings, clock
        self._cache = target.cache(options.cache)

    def prepare(
        self, candidate: Candidate, source: KernelSource, compiling: Compiled, fastest_us: float | None
    ) -> CompiledCandidate:
        """Wait for the candidate's binary. Return the candidate with the request for the worker process.

        `fastest_us` is the time of the fastest kernel so far. If the candidate's first launches take much longer than
        this time, its trial will end early.
        """
        binary = compiling.result()
        problem, config = candidate.problem, candidate.config
        if isinstance(binary, CompileFailure):
            return CompiledCandidate(candidate, source, binary, None)
        reach = None if self._target.is_host else self._options.reach  # the host's first launches say little
        request = Attempt(
            problem,
            Entry(binary.code, source.kernel, source.launch),
            probes=edge_problems(config, problem),
            seed=trial_seed(self._options.seed, problem, config.text),
            effort=self._options.effort,
            cache=self._cache,
            within_us=None if reach is None or fastest_us is None else reach * fastest_us,
        )
        return CompiledCandidate(candidate, source, binary, request)

    def send_ahead(self, prepared: CompiledCandidate) -> None:
        """Send the candidate's request to the worker process, while it executes an earlier request."""
        if prepared.request is not None:
            self._worker().send_ahead(prepared.request)

    def run(self, prepared: CompiledCandidate, *, since: float) -> Trial:
        """Verify and time the candidate. Return its trial.

        `since` is the time in seconds, on the run's clock, at which the previous trial ended.
        """
        candidate, source, binary = prepared.candidate, prepared.source, prepared.binary
        compiled = None if isinstance(binary, CompileFailure) else binary
        if isinstance(binary, CompileFailure):
            result = AttemptResult(binary.outcome, binary.detail)
        else:
            assert prepared.request is not None  # because the candidate is compiled
            result = self._worker().attempt(prepared.request)
        is_late = result.outcome is Outcome.TIMED_OUT
        hung = is_late and compiled is not None and self._hangs(candidate, source, compiled)
        return Trial(
            problem=candidate.problem,
            config=candidate.config,
            basis=self._target.basis(self._cache),
            source=source,
            outcome=result.outcome,
            detail=result.detail,
            resources=result.resources,
            spill_bytes=compiled.spill_bytes if compiled else None,
            guideline_broken=broken_guideline(candidate, result.resources),
            verdict=result.verdict,
            measurement=result.measurement,
            floor_us=self._ceilings().floor_us(candidate.problem),
            compile_seconds=compiled.compile_seconds if compiled else 0.0,
            total_seconds=self._clock.seconds() - since,
            limits=self._options.limits,
            cache=self._cache,
            hung=hung,
        )

    def _hangs(self, candidate: Candidate, source: KernelSource, binary: Binary) -> bool:
        """Return whether a kernel that timed out also times out or faults on small problems."""
        entry = Entry(binary.code, source.kernel, source.launch)
        request = small_problems(candidate.problem, candidate.config, entry, seed=self._options.seed)
        return self._worker().verify_in_full(request).outcome in HAZARDS


def broken_guideline(candidate: Candidate, resources: LoadedResources | None) -> str | None:
    """Return the name of the first guideline (heuristic rule of the search space) that the compiled kernel breaks.

    Return None if the kernel breaks no guideline.
    """
    if resources is None:
        return None
    real = replace(candidate.resources, registers=resources.registers, smem_bytes=resources.smem_bytes)
    compiled = replace(candidate, compiled=real)
    return next((rule.name for rule in GUIDELINE_RULES if not rule.keeps(compiled)), None)


def trial_seed(seed: int, problem: Problem, text: str) -> int:
    """Return the seed of a trial's random inputs, a hash of the run's seed, the problem and the configuration."""
    digest = hashlib.sha256(f"{seed} {problem.text} {text}".encode()).digest()
    return int.from_bytes(digest[:7], "big")
