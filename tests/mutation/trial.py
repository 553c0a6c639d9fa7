"""A mutant compiled, verified and judged."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

from tests.mutation.arguments import argument, unseen
from tests.mutation.baseline import (
    LONG,
    SHORT,
    Baseline,
    Baselines,
    code,
    compiled,
    tried,
    verified,
)
from tests.mutation.sample import Mutant
from tsm2_tune.tuner.trial import CompileFailure, Outcome
from tsm2_tune.tuner.worker import AttemptResult, Worker

# Operators whose mutants the host may compile to the same code though a GPU does not.
FOR_A_GPU = ("barrier", "copy", "fence")
CUTTING = ("early stop", "narrower", "rounding")  # those that make numbers shorter, or stop late
OF_THE_KERNEL = (Outcome.WRONG_RESULT, Outcome.LAUNCH_FAILED, Outcome.CRASHED, Outcome.TIMED_OUT)


class Judged(StrEnum):
    """What became of a mutant."""

    KILLED = "killed"
    NOT_COMPILED = "not compiled"
    EQUIVALENT = "equivalent"
    UNSEEN = "unseen"  # by a host, to which what was changed is nothing
    SURVIVED = "survived"


@dataclass(frozen=True, slots=True)
class Result:
    """A mutant and what became of it, as it is stored."""

    key: str
    family: str
    dtype: str
    op: str
    config: str
    operator: str
    line: int
    before: str
    after: str
    judged: str
    detail: str
    seconds: float

    @property
    def json(self) -> dict[str, object]:
        return asdict(self)


class MachineFailed(Exception):
    """A compiler or a worker was killed from outside, twice: nothing can be said of the mutant."""


class Bench:
    """A worker for one mutant after another, each of which may take as long as its subject asks for."""

    def __init__(self, baselines: Baselines) -> None:
        self._baselines, self._tools = baselines, baselines.tools
        self._worker: Worker | None = None

    def judge(self, mutant: Mutant) -> Result:
        """Compile the mutant and verify it; where it passes, ask whether it is one.

        SubjectIsWrong and MachineFailed where that cannot be told.
        """
        baseline = self._baselines.of(mutant.subject)
        start = time.monotonic()
        judged, detail = self._judged(mutant, baseline)
        subject, problem = mutant.subject, mutant.subject.problem
        return Result(
            key=mutant.key,
            family=subject.config.family,
            dtype=problem.dtype_name,
            op=problem.op,
            config=subject.config.text,
            operator=mutant.edit.operator,
            line=mutant.line,
            before=mutant.before,
            after=mutant.after,
            judged=judged.value,
            detail=detail[:400],
            seconds=round(time.monotonic() - start, 3),
        )

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._worker = None

    def _judged(self, mutant: Mutant, baseline: Baseline) -> tuple[Judged, str]:
        subject = mutant.subject
        binary = compiled(mutant.text, subject, self._tools.quick)
        if isinstance(binary, CompileFailure):
            if binary.outcome is Outcome.INTERRUPTED:
                raise MachineFailed(binary.detail)
            return Judged.NOT_COMPILED, binary.detail
        if Path(binary.path).read_bytes() == baseline.quick_code:
            return self._same(mutant, "the same code at -O1")
        try:
            result = self._asked(partial(tried, subject=subject, path=binary.path), baseline.limit_seconds)
            if result.outcome is not Outcome.OK:
                return Judged.KILLED, f"{result.outcome.value}: {result.detail}"
            if code(mutant.text, subject, self._tools.optimised) == self._baselines.optimised_code(subject):
                return self._same(mutant, "the same code at -O2")
            if because := unseen(mutant):
                return Judged.UNSEEN, because
            if because := argument(mutant):
                return Judged.EQUIVALENT, because
            extent = LONG if mutant.edit.operator in CUTTING else SHORT
            ask = partial(verified, subject=subject, path=binary.path, extent=extent)
            in_full = self._asked(ask, baseline.limit_seconds_in_full)
        finally:
            Path(binary.path).unlink()
        if in_full.outcome is Outcome.OK:
            return Judged.SURVIVED, ""
        self._baselines.see_in_full(subject, extent)
        return Judged.KILLED, f"{in_full.outcome.value} in full: {in_full.detail}"

    def _same(self, mutant: Mutant, how: str) -> tuple[Judged, str]:
        if mutant.edit.operator in FOR_A_GPU:
            return Judged.UNSEEN, f"{how}; a GPU's is not"
        return Judged.EQUIVALENT, how

    def _asked(self, question: Callable[[Worker], AttemptResult], limit_seconds: float) -> AttemptResult:
        """The verdict. What a mutant before may have done to the process counts against no other.

        A mutant that writes past an array can make the next one crash or hang: then that is asked in a new process.
        """
        is_new = self._worker is None
        self._worker = self._worker or Worker("cpu", self._tools.support_path, limit_seconds=limit_seconds)
        self._worker.limit_seconds = limit_seconds
        result = question(self._worker)
        if result.outcome in (Outcome.OK, Outcome.WRONG_RESULT):
            return result
        if not is_new or result.outcome not in OF_THE_KERNEL:
            self._worker.close()
            result = question(self._worker)
        self.close()
        if result.outcome not in (Outcome.OK, *OF_THE_KERNEL):
            raise MachineFailed(result.detail)
        return result
