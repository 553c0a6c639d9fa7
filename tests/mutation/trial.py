"""A mutant compiled, verified and judged."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

from tests.mutation.arguments import argument
from tests.mutation.baseline import (
    LIMIT_SECONDS_WHERE_LONG,
    LONG_PRODUCTS_IN_ALL,
    SHORT,
    WATCHED,
    Baseline,
    Baselines,
    Paths,
    code,
    compiled,
    long_calls,
    tried,
    verified,
    verified_at,
)
from tests.mutation.operators import synchronises
from tests.mutation.sample import Mutant
from tests.mutation.subjects import text_of
from tests.mutation.unseen import refused, unseen
from tsm2_tune.generator.source import INDEX_BITS
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.target import HOST
from tsm2_tune.tuner.results.trial import Binary, CompileFailure, Outcome
from tsm2_tune.tuner.verify.winner_calls import Coverage
from tsm2_tune.tuner.worker.client import AttemptResult, Worker
from tsm2_tune.tuner.worker.protocol import Call

# Operators whose mutants the host may compile to the same code though a GPU does not.
FOR_A_GPU = ("barrier", "copy", "fence")
CUTTING = ("early stop", "narrower", "rounding")  # operators that shorten numbers, or stop loops late
OF_THE_KERNEL = (Outcome.WRONG_RESULT, Outcome.LAUNCH_FAILED, Outcome.CRASHED, Outcome.TIMED_OUT)


class Judged(StrEnum):
    """Outcome of a mutant."""

    KILLED = "killed"
    NOT_COMPILED = "not compiled"
    EQUIVALENT = "equivalent"
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
    device: str = HOST  # or "gpu", in results that were found on one

    @property
    def json(self) -> dict[str, object]:
        return asdict(self)


class MachineFailed(Exception):
    """A compiler or a worker was killed from outside, twice: nothing can be said of the mutant."""


class NotCompiled(Exception):
    """The compiler refuses the mutant."""


class Bench:
    """A worker on the host for one mutant after another, each of which may take as long as its subject asks for."""

    def __init__(self, baselines: Baselines, long_products: float = LONG_PRODUCTS_IN_ALL) -> None:
        self.baselines, self.tools, self.long_products = baselines, baselines.tools, long_products
        self._worker: Worker | None = None
        self._made: list[Path] = []  # binaries of the mutant at hand

    def judge(self, mutant: Mutant) -> Result:
        """Compile the mutant and verify it; where it passes, ask whether it is one.

        SubjectIsWrong and MachineFailed where that cannot be told.
        """
        baseline = self.baselines.of(mutant.subject)
        start = time.monotonic()
        try:
            judged, detail = self._judged(mutant, baseline)
        except NotCompiled as why:
            judged, detail = Judged.NOT_COMPILED, str(why)
        finally:
            while self._made:
                self._made.pop().unlink(missing_ok=True)
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

    def _compiled(self, mutant: Mutant, bits: int, toolchain: Toolchain | None = None) -> str:
        """The binary with an index of so many bits, which is there while the mutant is judged."""
        binary = compiled(mutant.text, mutant.subject, toolchain or self.tools.quick, bits)
        if isinstance(binary, CompileFailure):
            if binary.outcome is Outcome.INTERRUPTED:
                raise MachineFailed(binary.detail)
            raise NotCompiled(binary.detail)
        self._made.append(Path(binary.path))
        return binary.path

    def _tried(self, mutant: Mutant, path: str, baseline: Baseline) -> AttemptResult:
        """Return the result of a trial of the mutant's binary."""
        return self._asked(partial(tried, subject=mutant.subject, path=path), baseline.limit_seconds)

    def _verified_in_full(
        self, mutant: Mutant, paths: Paths, coverage: Coverage, baseline: Baseline
    ) -> tuple[Judged, str]:
        """Return the outcome of a mutant that passed everything else, by the full verification."""

        def ask(paths: Paths) -> AttemptResult:
            question = partial(verified, subject=mutant.subject, paths=paths, coverage=coverage)
            return self._asked(question, baseline.limit_seconds_in_full)

        in_full = ask(paths)
        if in_full.outcome is Outcome.OK:
            self.baselines.passed_in_full(mutant.subject, coverage)
            return Judged.SURVIVED, ""
        self.baselines.see_in_full(mutant.subject, coverage, ask)
        return Judged.KILLED, f"{in_full.outcome.value} in full: {in_full.detail}"

    def _asked(self, question: Callable[[Worker], AttemptResult], limit_seconds: float) -> AttemptResult:
        """The verdict. What a mutant before may have done to the process counts against no other.

        A mutant that writes past an array can make the next one crash or hang: then that is asked in a new process.
        """
        is_new = self._worker is None
        self._worker = self._worker or Worker(HOST, lambda: self.tools.support_path, limit_seconds=limit_seconds)
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

    def _judged(self, mutant: Mutant, baseline: Baseline) -> tuple[Judged, str]:
        subject = mutant.subject
        path = self._compiled(mutant, subject.problem.index_bits)
        if Path(path).read_bytes() == baseline.quick_code:
            return self._same(mutant, "the same code at -O1")
        result = self._tried(mutant, path, baseline)
        if result.outcome is not Outcome.OK:
            return Judged.KILLED, f"{result.outcome.value}: {result.detail}"
        is_same = code(mutant.text, subject, self.tools.optimised) == self.baselines.optimised_code(subject)
        same = self._same(mutant, "the same code at -O2") if is_same else None
        if same and same[0] is Judged.EQUIVALENT:
            return same
        if races := self._races(mutant, baseline):
            return Judged.KILLED, races
        if because := argument(mutant):
            return Judged.EQUIVALENT, because
        if because := refused(mutant):
            raise NotCompiled(because)
        if same:
            return same
        if because := unseen(mutant):
            return Judged.SURVIVED, because
        if mutant.edit.operator in CUTTING and (wrong := self._wrong_where_long(mutant, path)):
            return Judged.KILLED, wrong
        return self._verified_in_full(mutant, ((subject.problem.index_bits, path),), SHORT, baseline)

    def _wrong_where_long(self, mutant: Mutant, path: str) -> str:
        """Return what is wrong in calls with long extents of a mutant that may truncate numbers, or ""."""
        subject = mutant.subject
        for call in long_calls(subject, self.long_products):

            def ask(paths: Paths, call: Call = call) -> AttemptResult:
                ((_, path),) = paths
                return self._asked(
                    partial(verified_at, subject=subject, path=path, call=call), LIMIT_SECONDS_WHERE_LONG
                )

            result = ask(((subject.problem.index_bits, path),))
            if result.outcome is not Outcome.OK:
                self.baselines.see_in_full(subject, call.problem, ask)
                return f"{result.outcome.value} where long: {result.detail}"
        return ""

    def _races(self, mutant: Mutant, baseline: Baseline) -> str:
        """Return the races that the full verification finds in the mutant, or "" if it finds none."""
        watching, subject = self.tools.watching, mutant.subject

        def ask(path: str) -> AttemptResult:
            question = partial(verified, subject=subject, paths=(), coverage=WATCHED, watched=path)
            return self._asked(question, baseline.limit_seconds_in_full)

        def ask_of_text(paths: Paths) -> AttemptResult:
            binary = compiled(text_of(subject).source, subject, watching, INDEX_BITS[0])
            assert isinstance(binary, Binary), binary.detail
            return ask(binary.path)

        result = ask(self._compiled(mutant, INDEX_BITS[0], watching))
        if result.outcome is Outcome.OK:
            return ""
        self.baselines.see_in_full(subject, WATCHED, ask_of_text)
        return f"{result.outcome.value} watched: {result.detail}"

    def _same(self, mutant: Mutant, how: str) -> tuple[Judged, str]:
        if mutant.edit.operator in FOR_A_GPU or synchronises(mutant.before):
            return Judged.SURVIVED, f"{how}; a GPU's is not"
        return Judged.EQUIVALENT, how
