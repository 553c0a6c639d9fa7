"""A database with other bytes, or another text of a kernel: every command gives a result or a sentence.

Each case is a function of its seed. `TAMPERED=100 python -m pytest tests/test_tampered.py` makes 100 times as many.
test_hostile_rows.py has every value of every column.
"""

from __future__ import annotations

import os
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.command import run
from tests.fabricated import (
    GPU,
    configuration,
    downgrade,
    imported,
    measurement,
    plain_sql,
    source_text,
    vendor_measurement,
)
from tests.hostile import refusal_of
from tests.reported import Page
from tests.simulated import COMPILES_NOTHING, RUN, TARGET
from tests.tampering import EVIL, FAMILIES, SKINNY, SMALL, good_database, plant, planted
from tsm2_tune.errors import TuneError
from tsm2_tune.generator.config import KernelConfig, Launch, family_name_in
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.families import FAMILIES as EVERY
from tsm2_tune.generator.families import family_named, parse_config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.generator.space.space import search_space
from tsm2_tune.tuner.compile.pool import Compilers
from tsm2_tune.tuner.measure.vendor.finalists import VendorLibraries
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Binary, LoadedResources, Outcome, Verdict
from tsm2_tune.tuner.runs.events import FinalStored, ProblemEnded
from tsm2_tune.tuner.runs.problem_queue import tune_problems
from tsm2_tune.tuner.search.finals import by_width
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.phase_timer import PhaseTimer
from tsm2_tune.tuner.worker.client import Attempt, AttemptResult, FinalRound, FinalTimes, Worker
from tsm2_tune.tuner.worker.time_limit import RunningClock

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_driver")]
WITHIN = ("export", "--output", "-", "--within", "20%", "--no-measure", "--dtype", "f32")
MODULE = ("export", "--output", "-", "--no-binaries", "--format", "module")
READS: tuple[tuple[str, ...], ...] = (
    *((command, "--json") for command in ("best", "show", "quarantine")),
    *(("show", number) for number in "12347"),
    *(("export", "--output", "-", "--format", form) for form in ("csv", "json", "markdown", "latex")),
    *(MODULE, MODULE, (*MODULE, "--device", GPU)),
    *((*WITHIN, "--no-binaries", "--format", form) for form in ("csv", "json", "markdown", "module", "module")),
    ("space", "--audit", "--device", GPU, "--json"),
    ("model", "--shapes", "20480x16x20480", "--device", GPU, "--json"),
    ("db", "check", "--json"),
    ("db", "vacuum"),
    ("report", "--output", "-"),
)
LIBRARIES = VendorLibraries((("cuBLAS", 130100), ("cuBLASLt", 130100)))
MOST_SECONDS = 20.0  # of the processor, for a read


def read(path: Path, rng: random.Random) -> str:
    """One command on the database; returns how it ended. AssertionError where that is not a result or a sentence."""
    command = rng.choice(READS)
    started = time.process_time()
    result = run(*command, "--db", str(path))
    seconds = time.process_time() - started
    assert seconds < MOST_SECONDS, f"{command} took {seconds:.0f} s"
    if refusal_of(command, result):
        return "refused"
    if "module" in command:
        check_module(result.stdout, path.parent)
    if "report" in command:
        Page(result.stdout)
    return "read"


def check_module(text: str, folder: Path) -> None:
    """AssertionError where the exported module has a kernel, or a launch, that this program does not render."""
    module = imported(text, folder)
    for row in module.WINNERS:
        problem, config = Problem(row.m, row.n, row.k, row.dtype, row.op), parse_config(row.config)
        assert config is not None
        assert family_named(config.family).has(config, problem)
        source = render(problem, config)
        own = (source.text, source.kernel, asdict(source.launch))
        assert (module.text_of(row), row.kernel, asdict(row.launch)) == own
    assert len(module.KERNELS) <= len(module.WINNERS)


class Compiling(Tuner):
    """Tunes without a compiler and a device, and lets no text pass that this program does not render."""

    def __init__(self, problem: Problem) -> None:
        self.target, self.options, self.phases = TARGET, Options(max_trials=9, vendor=True), PhaseTimer()
        self.clock, self._ceilings, self._problem = RunningClock(), RUN.ceilings, problem
        own = {"begin": self._begun_text, "finish": self._binary}
        self._compilers = cast(Compilers, SimpleNamespace(**vars(COMPILES_NOTHING) | own))
        asked = {"attempt": self._attempt, "time_finalists": self._time_finalists}
        told = {"send_ahead": lambda _: None, "vendor": lambda: LIBRARIES}
        self._worker = cast(Worker, SimpleNamespace(**asked, **told))
        self.compiled: dict[str, set[tuple[str, Launch]]] = {}  # by digest: entry points and launches

    def _begun_text(self, source: KernelSource, *_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(self._binary(source))
        return future

    def verify_in_full(self, problem: Problem, config: KernelConfig) -> AttemptResult:
        self._binary(render(problem, config))
        return AttemptResult(Outcome.OK, "", verdict=Verdict(True, 0.1, "right"))

    def _binary(self, source: KernelSource, *_: Any, **__: Any) -> Binary:
        spelt = source.text.partition("\n")[0].removeprefix("// ")
        family = EVERY.get(family_name_in(spelt))
        every = family.configurations() if family else ()
        if not any(c.kernel_text == spelt and source in by_width(self._problem, c) for c in every):
            raise AssertionError(f"compiled {source.text[:200]!r}")
        self.compiled.setdefault(source.digest, set()).add((source.kernel, source.launch))
        return Binary(source.digest.encode(), source.kernel, 0, 0.0)

    def _started(self, entry: Any) -> None:
        if (entry.kernel, entry.launch) not in self.compiled[entry.code.decode()]:
            raise AssertionError(f"started with {entry}")

    def _attempt(self, request: Attempt) -> AttemptResult:
        self._started(request.entry)
        found = measurement(random.Random(request.seed).uniform(400, 600))
        return AttemptResult(Outcome.OK, "", LoadedResources(64, 0, 4096, 8), Verdict(True, 0.1, ""), found)

    def _time_finalists(self, request: FinalRound) -> FinalTimes:
        for entry in request.entries:
            self._started(entry)
        found = tuple(measurement(500.0 + place) for place, _ in enumerate(request.entries))
        return FinalTimes((found,), (vendor_measurement(480.0),) if request.vendor else ())


def other_bytes(rng: random.Random, content: bytearray) -> None:
    """Change bytes anywhere, let pages change places or repeat, cut the end off, or change a page's cell pointers."""
    size = int.from_bytes(content[16:18], "big") or 4096
    one, other = (slice(page * size, (page + 1) * size) for page in rng.sample(range(1, len(content) // size), 2))
    kind = rng.randrange(6)
    if kind == 0:
        for _ in range(rng.choice((1, 3, 20))):
            content[rng.randrange(len(content))] = rng.randrange(256)
    elif kind == 1:
        content[one], content[other] = content[other], content[one]
    elif kind == 2:
        content[one] = content[other]
    elif kind == 3:
        del content[rng.randrange(len(content)) :]
    else:
        content[rng.randrange(100) if kind == 4 else one.start + rng.randrange(32)] = rng.randrange(256)


def tampered(seed: int, path: Path) -> random.Random:
    """Make a database of which bytes, or the text of a kernel, are others. A few have an older schema."""
    rng = random.Random(seed)
    for suffix in ("", "-journal", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    good_database(path)
    kind = rng.random()
    if kind < 0.05:
        downgrade(path)
    if kind > 0.75:
        digest = rng.choice(plain_sql(path, "SELECT digest FROM source"))[0]
        plant(path, digest, rng.choice((EVIL, f"{source_text(path, digest)}\n{EVIL}", "", "\x00")))
    else:
        other_bytes(rng, content := bytearray(path.read_bytes()))
        path.write_bytes(content)
    return rng


def tune_on(path: Path, rng: random.Random) -> str:
    """Tune on with the database; returns how that ended. AssertionError where a text of the file is compiled."""
    problem = rng.choice((SKINNY, SMALL))
    space = search_space(problem, PROFILES["h200"], families=FAMILIES)
    try:
        with Store.open(path, create=True) as store:
            list(tune_problems([space], Compiling(problem), store, families=rng.choice(((), FAMILIES))))
            store.best()
    except TuneError as error:
        if "\n" in str(error) or len(str(error)) > 1000:
            raise AssertionError(f"no sentence, but {str(error)[:2000]!r}") from error
        return "refused"
    return "read"


@pytest.mark.parametrize(("act", "count"), [(read, 50), (tune_on, 8)])
def test_a_tampered_database_gives_a_result_or_a_sentence(
    act: Callable[[Path, random.Random], str], count: int, path: Path
) -> None:
    ended, failed = Counter[str](), dict[int, str]()
    for seed in range(int(os.environ.get("TAMPERED", "1")) * count):
        try:
            ended[act(path, tampered(seed, path))] += 1
        except Exception:
            failed[seed] = traceback.format_exc()[-3000:]
    assert failed == {}
    assert ended.keys() == {"refused", "read"}


def test_tuning_on_compiles_no_text_of_the_file(path: Path) -> None:
    good_database(path)
    plant(path, render(SKINNY, configuration(128)).digest, planted(SKINNY))
    space, tuner = search_space(SKINNY, PROFILES["h200"], families=FAMILIES), Compiling(SKINNY)
    with Store.open(path, create=True) as store:
        *events, ended = tune_problems([space], tuner, store)
        assert isinstance(ended, ProblemEnded)
        assert [event for event in events if isinstance(event, FinalStored)]
        assert [row.stale for row in store.best(device=GPU, problem=SKINNY)] in ([0], [1])
    assert tuner.compiled
