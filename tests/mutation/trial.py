"""A mutant compiled, verified and judged."""

from __future__ import annotations

import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

from tests.conftest import ONCE
from tests.mutation.arguments import argument, unseen
from tests.mutation.edits import PRELUDE
from tests.mutation.sample import Mutant
from tests.mutation.subjects import Subject, text_of
from tsm2_tune.generator.probes import edge_problems
from tsm2_tune.tuner.compiler import Toolchain, compile_text
from tsm2_tune.tuner.full import Extent, FullVerification
from tsm2_tune.tuner.loaded import Entry
from tsm2_tune.tuner.trial import Binary, Outcome
from tsm2_tune.tuner.worker import Attempt, AttemptResult, Worker

COMPILE_LIMIT_SECONDS = 60.0
EXTENT = Extent(products=4e6, long_products=3e7, launches=300, past_32_bits=False)
PATIENCE = 6.0  # times as long as the text itself takes: then it never ends
LEAST_PATIENCE_SECONDS = 8.0
BASELINE_LIMIT_SECONDS = 600.0
# Operators whose mutants the host may compile to the same code though a GPU does not.
FOR_A_GPU = ("barrier", "copy", "fence")


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


def verified(worker: Worker, subject: Subject, path: str) -> AttemptResult:
    """What verification says of a binary of the subject's: the one place where the product is asked."""
    source, problem, config = subject.source, subject.problem, subject.config
    entry = Entry(path, source.kernel, source.launch)
    tried = worker.attempt(Attempt(problem, entry, edge_problems(config, problem), seed=7, effort=ONCE))
    if tried.outcome is not Outcome.OK:
        return tried
    return worker.verify_in_full(FullVerification(problem, config, ((problem.index_bits, entry),), EXTENT, seed=11))


class Bench:
    """A worker for the mutants of one subject at a time, which waits as long as the subject itself asks for."""

    _patience: ClassVar[dict[str, float]] = {}  # seconds, of all benches

    def __init__(self, support_path: str, quick: Toolchain, optimised: Toolchain) -> None:
        self._support_path, self._quick, self._optimised = support_path, quick, optimised
        self._worker: Worker | None = None
        self._subject = ""

    def judge(self, mutant: Mutant) -> Result:
        """Compile the mutant and verify it; where it passes, ask whether it is one."""
        start = time.monotonic()
        judged, detail = self._judged(mutant)
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
        self._worker, self._subject = None, ""

    def _judged(self, mutant: Mutant) -> tuple[Judged, str]:
        binary = self._compiled(mutant.text, mutant.subject)
        if binary is None:
            return Judged.NOT_COMPILED, ""
        worker = self._worker_for(mutant.subject)
        result = verified(worker, mutant.subject, binary.path)
        Path(binary.path).unlink()
        if result.outcome is not Outcome.OK:
            return Judged.KILLED, f"{result.outcome.value}: {result.detail}"
        if self._same_code(mutant):
            if mutant.edit.operator in FOR_A_GPU:
                return Judged.UNSEEN, "the host compiles it to the same code; a GPU does not"
            return Judged.EQUIVALENT, "the same code at -O2"
        if because := unseen(mutant):
            return Judged.UNSEEN, because
        because = argument(mutant)
        return (Judged.EQUIVALENT, because) if because else (Judged.SURVIVED, "")

    def _compiled(self, text: str, subject: Subject) -> Binary | None:
        source = subject.source
        made = compile_text(
            PRELUDE + text,
            kernel=source.kernel,
            defines=source.defines,
            toolchain=self._quick,
            limit_seconds=COMPILE_LIMIT_SECONDS,
        )
        return made if isinstance(made, Binary) else None

    def _worker_for(self, subject: Subject) -> Worker:
        """One that has verified the subject itself, or knows how long another one took for it."""
        if self._subject != subject.name or self._worker is None:
            self.close()
            self._worker = Worker("cpu", self._support_path, limit_seconds=self._patience_for(subject))
            self._subject = subject.name
        return self._worker

    def _patience_for(self, subject: Subject) -> float:
        if subject.name not in self._patience:
            binary = self._compiled(text_of(subject).source, subject)
            assert binary is not None, f"{subject.name} does not compile"
            worker = Worker("cpu", self._support_path, limit_seconds=BASELINE_LIMIT_SECONDS)
            start = time.monotonic()
            result = verified(worker, subject, binary.path)
            worker.close()
            assert result.outcome is Outcome.OK, f"{subject.name} is wrong itself: {result.detail}"
            seconds = time.monotonic() - start
            self._patience[subject.name] = max(LEAST_PATIENCE_SECONDS, PATIENCE * seconds)
        return self._patience[subject.name]

    def _same_code(self, mutant: Mutant) -> bool:
        """Whether the mutant and the text are the same code when they are optimised."""
        texts = (mutant.text, text_of(mutant.subject).source)
        codes = [_code(PRELUDE + text, mutant.subject.source.defines, self._optimised) for text in texts]
        return codes[0] == codes[1]


def _code(text: str, defines: tuple[str, ...], toolchain: Toolchain) -> bytes:
    """The binary without its symbols."""
    with tempfile.TemporaryDirectory() as work:
        Path(work, "kernel.cpp").write_text(toolchain.wrap(text))
        definitions = [f"-D{define}" for define in defines]
        flags = [*toolchain.flags, *definitions, "-s", "-Wl,--build-id=none"]
        command = [toolchain.compiler, *flags, "-o", "kernel.so", "kernel.cpp"]
        subprocess.run(command, cwd=work, capture_output=True, check=True)
        return Path(work, "kernel.so").read_bytes()
