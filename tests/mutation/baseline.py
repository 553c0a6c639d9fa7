"""Baselines of unmutated kernels: whether they are right, how long they take, and their machine code."""

from __future__ import annotations

import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.conftest import ONCE
from tests.mutation.edits import PRELUDE
from tests.mutation.subjects import Subject, text_of
from tsm2_tune.generator.probes import edge_problems, products_of
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.source import index_defines
from tsm2_tune.tuner.compile.compiler import Toolchain, compile_text
from tsm2_tune.tuner.device.target import HOST
from tsm2_tune.tuner.results.trial import Binary, CompileFailure, Outcome
from tsm2_tune.tuner.search.phase_timer import PhaseTimer
from tsm2_tune.tuner.verify.bound_kernel import Entry
from tsm2_tune.tuner.verify.winner_calls import EMULATED, ON_GPU, Coverage, calls_for, full_verification
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
LONG_STAGES = ("long extents", "long lines")
LONG_PRODUCTS = (3e6, 3e7, 3e8, ON_GPU.long_products)  # of a call: of fewer, where extents have fewer bits
LONG_PRODUCTS_IN_ALL = 2e9  # limit of all such calls of a mutant: minutes on a host
PRODUCTS_OF_A_THREAD = 500  # that a host computes while it emulates one that computes none
PRODUCTS_OF_AN_ELEMENT = 2  # while it fills one
LIMIT_SECONDS_WHERE_LONG = 300.0
Paths = tuple[tuple[int, str], ...]  # bits of the index, and the binary with it
Question = Coverage | Problem  # how much of the full verification, or one call of it


@dataclass(frozen=True, slots=True)
class Tools:
    """Compilers and support kernels for mutants."""

    support_path: str  # the support kernels
    quick: Toolchain  # with little optimisation
    optimised: Toolchain  # with more
    watching: Toolchain  # so that races are told


@dataclass(frozen=True, slots=True)
class Baseline:
    """A subject that a trial finds right: its code, and how long a stage may take."""

    quick_code: bytes
    limit_seconds: float
    limit_seconds_in_full: float


class SubjectIsWrong(Exception):
    """The text itself is refused, so nothing can be said of its mutants."""


def compiled(text: str, subject: Subject, toolchain: Toolchain, bits: int) -> Binary | CompileFailure:
    return compile_text(
        PRELUDE + text,
        kernel=subject.source.kernel,
        defines=index_defines(bits),
        toolchain=toolchain,
        limit_seconds=COMPILE_LIMIT_SECONDS,
    )


def tried(worker: Worker, subject: Subject, path: str) -> AttemptResult:
    """Return the result of a trial of a binary of the subject."""
    entry = Entry(path, subject.source.kernel, subject.source.launch)
    probes = edge_problems(subject.config, subject.problem)
    return worker.attempt(Attempt(subject.problem, entry, probes, seed=7, effort=ONCE))


def verified(
    worker: Worker, subject: Subject, paths: Paths, coverage: Coverage, watched: str | None = None
) -> AttemptResult:
    """Return the result of the full verification of the subject, compiled for each width of index.

    `watched`: the binary in which races are told.
    """
    source = subject.source
    entries = tuple((bits, Entry(path, source.kernel, source.launch)) for bits, path in paths)
    in_watched = Entry(watched, source.kernel, source.launch) if watched else None
    request = full_verification(subject.problem, subject.config, entries, coverage, seed=11, watched=in_watched)
    return worker.verify_in_full(request)


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


def verified_at(worker: Worker, subject: Subject, path: str, call: Call) -> AttemptResult:
    """Return the result of one call of the full verification of a binary of the subject."""
    source, bits = subject.source, subject.problem.index_bits
    run = Run("where it is long", Entry(path, source.kernel, source.launch), bits, (call,))
    return worker.verify_in_full(FullVerification(subject.problem, (run,), seed=11))


@dataclass
class Baselines:
    """Baselines of all subjects, each made when it is first asked for. Several threads may ask."""

    tools: Tools
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _locks: dict[str, threading.Lock] = field(default_factory=dict)
    _known: dict[str, Baseline | SubjectIsWrong] = field(default_factory=dict)
    _in_full: dict[tuple[str, Question], str] = field(default_factory=dict)
    _codes: dict[str, bytes] = field(default_factory=dict)

    def of(self, subject: Subject) -> Baseline:
        """SubjectIsWrong where a trial refuses the text itself."""
        with self._lock_of(subject):
            if subject.name not in self._known:
                try:
                    self._known[subject.name] = _measured(self.tools, subject)
                except SubjectIsWrong as wrong:
                    self._known[subject.name] = wrong
            found = self._known[subject.name]
        if isinstance(found, SubjectIsWrong):
            raise found
        return found

    def see_in_full(self, subject: Subject, question: Question, ask: Callable[[Paths], AttemptResult]) -> None:
        """SubjectIsWrong where the full verification refuses the text itself: asked where it refuses a mutant.

        `ask` says what it says of binaries.
        """
        place = subject.name, question
        with self._lock_of(subject):
            if place not in self._in_full:
                bits = subject.problem.index_bits
                self._in_full[place] = ask(((bits, _right(subject, self.tools, bits).path),)).detail
            if self._in_full[place]:
                raise SubjectIsWrong(f"{subject.name} is wrong itself: {self._in_full[place]}")

    def passed_in_full(self, subject: Subject, question: Question) -> None:
        """A mutant of the subject did, so the full verification has nothing against the text itself."""
        self._in_full.setdefault((subject.name, question), "")

    def optimised_code(self, subject: Subject) -> bytes:
        """Return the machine code of the text with more optimisation."""
        with self._lock_of(subject):
            if subject.name not in self._codes:
                self._codes[subject.name] = code(text_of(subject).source, subject, self.tools.optimised)
            return self._codes[subject.name]

    def _lock_of(self, subject: Subject) -> threading.Lock:
        with self._lock:
            return self._locks.setdefault(subject.name, threading.Lock())


def _measured(tools: Tools, subject: Subject) -> Baseline:
    phases = PhaseTimer()
    binary = _right(subject, tools, subject.problem.index_bits)
    worker = Worker(HOST, lambda: tools.support_path, limit_seconds=LIMIT_SECONDS, phases=phases)
    try:
        result = tried(worker, subject, binary.path)
    finally:
        worker.close()
    if result.outcome is not Outcome.OK:
        raise SubjectIsWrong(f"{subject.name} is wrong itself: {result.detail}")
    longest = max(seconds for phase, seconds in phases.taken().items() if phase.startswith("verification"))
    return Baseline(
        Path(binary.path).read_bytes(),
        max(LEAST_PATIENCE_SECONDS, PATIENCE * longest),
        max(LEAST_IN_FULL_SECONDS, PATIENCE_IN_FULL * longest),
    )


def _right(subject: Subject, tools: Tools, bits: int) -> Binary:
    binary = compiled(text_of(subject).source, subject, tools.quick, bits)
    if isinstance(binary, CompileFailure):
        raise SubjectIsWrong(f"{subject.name} does not compile: {binary.detail}")
    return binary


def code(text: str, subject: Subject, toolchain: Toolchain) -> bytes:
    """The binary without its symbols."""
    with tempfile.TemporaryDirectory() as work:
        Path(work, "kernel.cpp").write_text(toolchain.wrap(PRELUDE + text))
        definitions = [f"-D{define}" for define in subject.source.defines]
        flags = [*toolchain.flags, *definitions, "-s", "-Wl,--build-id=none"]
        command = [toolchain.compiler, *flags, "-o", "kernel.so", "kernel.cpp", *toolchain.libraries]
        subprocess.run(command, cwd=work, capture_output=True, check=True)
        return Path(work, "kernel.so").read_bytes()
