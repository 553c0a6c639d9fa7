"""A mutant compiled, verified and judged, beside its subject: the text without a change."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from tests.conftest import ONCE
from tests.fake_compilers import cached_file
from tests.mutation.equivalent import argument, refused, unseen
from tests.mutation.operators import synchronises
from tests.mutation.sample import PRELUDE, Mutant
from tests.mutation.subjects import Subject, text_of
from tsm2_tune.generator.probes import edge_problems, products_of
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.source import INDEX_BITS, index_defines
from tsm2_tune.tuner.compile.compiler import Toolchain, compile_text
from tsm2_tune.tuner.device.target import HOST
from tsm2_tune.tuner.results.trial import CompileFailure, Outcome
from tsm2_tune.tuner.search.phase_timer import PhaseTimer
from tsm2_tune.tuner.verify.bound_kernel import Entry
from tsm2_tune.tuner.verify.winner_calls import EMULATED, ON_GPU, calls_for, full_verification
from tsm2_tune.tuner.worker.client import Attempt, AttemptResult, Worker
from tsm2_tune.tuner.worker.protocol import Call, FullVerification, Run

COMPILE_LIMIT_SECONDS = 120.0
SHORT = replace(
    EMULATED, products=4e6, long_products=0, launches=64, every_call=True, deep_products=1e8, watched_products=0
)
# Nothing but whether threads of a block may touch the same bytes at the same time.
WATCHED = replace(SHORT, products=0, launches=0, every_call=False, watched_products=1e8)
PATIENCE, PATIENCE_IN_FULL = 6.0, 20.0  # times as long as a trial's longest stage takes: then it never ends
LEAST_PATIENCE_SECONDS, LEAST_IN_FULL_SECONDS = 10.0, 120.0
LIMIT_SECONDS = 600.0  # for a stage of the text itself
LIMIT_SECONDS_WHERE_LONG = 300.0
LONG_STAGES = ("long extents", "long lines")
LONG_PRODUCTS = (3e6, 3e7, 3e8, ON_GPU.long_products)  # of a call: of fewer, where extents have fewer bits
LONG_PRODUCTS_IN_ALL = 2e9  # limit of all such calls of a mutant: minutes on a host
PRODUCTS_OF_A_THREAD = 500  # that a host computes while it emulates one that computes none
PRODUCTS_OF_AN_ELEMENT = 2  # while it fills one
# Operators whose mutants the host may compile to the same code though a GPU does not.
FOR_A_GPU = ("barrier", "copy", "fence")
CUTTING = ("early stop", "narrower", "rounding")  # operators that shorten numbers, or stop loops late
OF_THE_KERNEL = (Outcome.WRONG_RESULT, Outcome.LAUNCH_FAILED, Outcome.CRASHED, Outcome.TIMED_OUT)
Ask = Callable[[Worker, bytes], AttemptResult]  # a question about a binary


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


class SubjectIsWrong(Exception):
    """The text itself is refused, so nothing can be said of its mutants."""


class MachineFailed(Exception):
    """A compiler or a worker was killed from outside, twice: nothing can be said of the mutant."""


class NotCompiled(Exception):
    """The compiler refuses the mutant."""


@dataclass(frozen=True, slots=True)
class Tools:
    """Compilers and support kernels for mutants."""

    support_code: bytes  # the support kernels
    quick: Toolchain  # with little optimisation
    optimised: Toolchain  # with more
    watching: Toolchain  # so that races are told


@dataclass(frozen=True, slots=True)
class Baseline:
    """A subject that a trial finds right: its code, and how long a stage may take."""

    quick_code: bytes
    limit_seconds: float
    limit_seconds_in_full: float


def compiled(text: str, subject: Subject, toolchain: Toolchain, bits: int) -> bytes:
    binary = compile_text(
        PRELUDE + text, kernel=subject.source.kernel, defines=index_defines(bits), toolchain=toolchain,
        limit_seconds=COMPILE_LIMIT_SECONDS,
    )  # fmt: skip
    if isinstance(binary, CompileFailure):
        raise MachineFailed(binary.detail) if binary.outcome is Outcome.INTERRUPTED else NotCompiled(binary.detail)
    return binary.code


def code(text: str, subject: Subject, toolchain: Toolchain) -> bytes:
    """The binary without its symbols."""
    with tempfile.TemporaryDirectory() as work:
        Path(work, "kernel.cpp").write_text(toolchain.wrap(PRELUDE + text))
        definitions = [f"-D{define}" for define in subject.source.defines]
        flags = [*toolchain.flags, *definitions, "-s", "-Wl,--build-id=none"]
        command = [toolchain.compiler, *flags, "-o", "kernel.so", "kernel.cpp", *toolchain.libraries]
        subprocess.run(command, cwd=work, capture_output=True, check=True)
        return Path(work, "kernel.so").read_bytes()


def entry(subject: Subject, binary: bytes) -> Entry:
    return Entry(binary, subject.source.kernel, subject.source.launch)


def tried(worker: Worker, subject: Subject, binary: bytes) -> AttemptResult:
    """Return the result of a trial of a binary of the subject."""
    probes = edge_problems(subject.config, subject.problem)
    return worker.attempt(Attempt(subject.problem, entry(subject, binary), probes, seed=7, effort=ONCE))


def verified(worker: Worker, subject: Subject, binary: bytes, *, is_watched: bool = False) -> AttemptResult:
    """Return the result of the full verification of a binary; of one in which races are told, their detection."""
    entries = () if is_watched else ((subject.problem.index_bits, entry(subject, binary)),)
    watched, coverage = (entry(subject, binary), WATCHED) if is_watched else (None, SHORT)
    request = full_verification(subject.problem, subject.config, entries, coverage, seed=11, watched=watched)
    return worker.verify_in_full(request)


def verified_at(worker: Worker, subject: Subject, binary: bytes, call: Call) -> AttemptResult:
    """Return the result of one call of the full verification of a binary of the subject."""
    run = Run("where it is long", entry(subject, binary), subject.problem.index_bits, (call,))
    return worker.verify_in_full(FullVerification(subject.problem, (run,), seed=11))


def long_calls(subject: Subject, most_products: float) -> Iterator[Call]:
    """Calls with long extents or lines, from the cheapest on: a GPU's, and those with extents of fewer bits.

    They end where all together take a host as long as so many products.
    """
    calls = dict[tuple[Problem, int], Call]()
    for most in LONG_PRODUCTS:
        coverage = replace(SHORT, long_products=most)
        for call in calls_for(subject.problem, subject.config, coverage, subject.problem.index_bits):
            if call.stage in LONG_STAGES:
                calls[call.problem, call.padding.get("A", 0)] = call
    cost = 0.0
    for call in sorted(calls.values(), key=lambda call: _cost(subject, call)):
        cost += _cost(subject, call)
        if cost > most_products:
            return
        yield call


def _cost(subject: Subject, call: Call) -> float:
    """Products of real numbers that take a host about as long as the call."""
    launch, problem = subject.source.launch, call.problem
    threads = launch.tiles(problem.m, problem.n) * launch.splits * launch.threads
    elements = sum(lines * (line + call.padding.get(name, 0)) for name, (line, lines) in problem.stored.items())
    products = problem.dtype.parts**2 * products_of(subject.config, problem)
    return products + PRODUCTS_OF_A_THREAD * threads + PRODUCTS_OF_AN_ELEMENT * elements


class Baselines:
    """Facts about subjects, which mutants of one subject share."""

    def __init__(self, tools: Tools) -> None:
        self.tools = tools
        self._known = dict[tuple[str, object], object]()

    def _once(self, subject: Subject, fact: object, find: Callable[[], object]) -> object:
        """Return what `find` returned for the fact first, or raise its SubjectIsWrong."""
        key = subject.name, fact
        if key not in self._known:
            try:
                self._known[key] = find()
            except SubjectIsWrong as wrong:
                self._known[key] = wrong
        if isinstance(found := self._known[key], SubjectIsWrong):
            raise found
        return found

    def of(self, subject: Subject) -> Baseline:
        """SubjectIsWrong where a trial refuses the text itself."""
        found = self._once(subject, "baseline", lambda: self._measured(subject))
        assert isinstance(found, Baseline)
        return found

    def optimised_code(self, subject: Subject) -> object:
        """Return the machine code of the text with more optimisation."""
        text = text_of(subject).source
        return self._once(subject, "code", lambda: code(text, subject, self.tools.optimised))

    def see(
        self,
        subject: Subject,
        question: object,
        toolchain: Toolchain,
        bits: int,
        ask: Callable[[bytes], AttemptResult],
    ) -> None:
        """SubjectIsWrong where `ask` refuses the text itself: asked where it refuses a mutant."""

        def find() -> None:
            if detail := ask(self._right(subject, toolchain, bits)).detail:
                raise SubjectIsWrong(f"{subject.name} is wrong itself: {detail}")

        self._once(subject, question, find)

    def _right(self, subject: Subject, toolchain: Toolchain, bits: int) -> bytes:
        try:
            return compiled(text_of(subject).source, subject, toolchain, bits)
        except (MachineFailed, NotCompiled) as why:
            raise SubjectIsWrong(f"{subject.name} does not compile: {why}") from why

    def _measured(self, subject: Subject) -> Baseline:
        phases = PhaseTimer()
        binary = self._right(subject, self.tools.quick, subject.problem.index_bits)
        worker = Worker(HOST, lambda _: self.tools.support_code, limit_seconds=LIMIT_SECONDS, phases=phases)
        try:
            result = tried(worker, subject, binary)
        finally:
            worker.close()
        if result.outcome is not Outcome.OK:
            raise SubjectIsWrong(f"{subject.name} is wrong itself: {result.detail}")
        longest = max(seconds for phase, seconds in phases.taken().items() if phase.startswith("verification"))
        return Baseline(
            binary,
            max(LEAST_PATIENCE_SECONDS, PATIENCE * longest),
            max(LEAST_IN_FULL_SECONDS, PATIENCE_IN_FULL * longest),
        )


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
            mutant.key, subject.config.family, problem.dtype_name, problem.op, subject.config.text,
            mutant.edit.operator, mutant.line, mutant.before, mutant.after, judged.value, detail[:400],
            round(time.monotonic() - start, 3),
        )  # fmt: skip

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._worker = None

    def _judged(self, mutant: Mutant, baseline: Baseline) -> tuple[Judged, str]:
        subject, bits = mutant.subject, mutant.subject.problem.index_bits
        binary = self._compiled(mutant, self.tools.quick, bits)
        if binary == baseline.quick_code:
            return self._same(mutant, "the same code at -O1")
        result = self._asked(lambda worker: tried(worker, subject, binary), baseline.limit_seconds)
        if result.outcome is not Outcome.OK:
            return Judged.KILLED, f"{result.outcome.value}: {result.detail}"
        is_same = code(mutant.text, subject, self.tools.optimised) == self.baselines.optimised_code(subject)
        same = self._same(mutant, "the same code at -O2") if is_same else None
        if same and same[0] is Judged.EQUIVALENT:
            return same
        in_full = baseline.limit_seconds_in_full

        def watched(worker: Worker, binary: bytes) -> AttemptResult:
            return verified(worker, subject, binary, is_watched=True)

        if races := self._wrong(mutant, "watched", watched, in_full, self.tools.watching, INDEX_BITS[0]):
            return Judged.KILLED, races
        if because := argument(mutant):
            return Judged.EQUIVALENT, because
        if because := refused(mutant):
            raise NotCompiled(because)
        if same:
            return same
        if because := unseen(mutant):
            return Judged.SURVIVED, because
        for call in long_calls(subject, self.long_products) if mutant.edit.operator in CUTTING else ():

            def at(worker: Worker, binary: bytes, call: Call = call) -> AttemptResult:
                return verified_at(worker, subject, binary, call)

            if wrong := self._wrong(
                mutant, "where long", at, LIMIT_SECONDS_WHERE_LONG, of=call.problem, binary=binary
            ):
                return Judged.KILLED, wrong
        wrong = self._wrong(
            mutant, "in full", lambda worker, binary: verified(worker, subject, binary), in_full, binary=binary
        )
        return (Judged.KILLED, wrong) if wrong else (Judged.SURVIVED, "")

    def _wrong(
        self, mutant: Mutant, where: str, ask: Ask, limit_seconds: float, toolchain: Toolchain | None = None,
        bits: int = 0, *, of: Problem | None = None, binary: bytes = b"",
    ) -> str:  # fmt: skip
        """Return what a question finds wrong with the mutant and not with its subject, or ""."""
        toolchain, bits = toolchain or self.tools.quick, bits or mutant.subject.problem.index_bits

        def found(binary: bytes) -> AttemptResult:
            return self._asked(lambda worker: ask(worker, binary), limit_seconds)

        result = found(binary or self._compiled(mutant, toolchain, bits))
        if result.outcome is Outcome.OK:
            return ""
        self.baselines.see(mutant.subject, (where, of), toolchain, bits, found)
        return f"{result.outcome.value} {where}: {result.detail}"

    def _compiled(self, mutant: Mutant, toolchain: Toolchain, bits: int) -> bytes:
        """The binary, which is in the cache while the mutant is judged."""
        binary = compiled(mutant.text, mutant.subject, toolchain, bits)
        self._made.append(cached_file(PRELUDE + mutant.text, index_defines(bits), toolchain))
        return binary

    def _asked(self, question: Callable[[Worker], AttemptResult], limit_seconds: float) -> AttemptResult:
        """The verdict. What a mutant before may have done to the process counts against no other.

        A mutant that writes past an array can make the next one crash or hang: then that is asked in a new process.
        """
        is_new = self._worker is None
        self._worker = self._worker or Worker(HOST, lambda _: self.tools.support_code, limit_seconds=limit_seconds)
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

    def _same(self, mutant: Mutant, how: str) -> tuple[Judged, str]:
        if mutant.edit.operator in FOR_A_GPU or synchronises(mutant.before):
            return Judged.SURVIVED, f"{how}; a GPU's is not"
        return Judged.EQUIVALENT, how
