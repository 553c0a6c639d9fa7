"""The loop of a search on the host: when it ends, what it compiles, and where its time goes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import wait
from dataclasses import replace
from typing import Any

import pytest

from tests.call_log import logged
from tests.fabricated import measurement
from tests.workers import Disturbed
from tsm2_tune.console.heartbeat import PHASES
from tsm2_tune.generator.device.roofline import Ceilings
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.families.published import Tsm2Config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.source import INDEX_BITS, index_defines
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.compile.pool import Compiled
from tsm2_tune.tuner.device.target import Target, find_target
from tsm2_tune.tuner.results.trial import Outcome, Verdict
from tsm2_tune.tuner.runs.events import FinalFailure
from tsm2_tune.tuner.search.candidates import Search
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.phase_timer import PhaseTimer
from tsm2_tune.tuner.search.resume import NO_PRIOR_TRIALS, FinalCandidate
from tsm2_tune.tuner.search.strategies.strategy import InOrder, TrialResult
from tsm2_tune.tuner.worker.client import Attempt, AttemptResult

pytestmark = pytest.mark.slow

PROBLEM = Problem(64, 2, 64, "f32")


@pytest.fixture
def target(quick: Toolchain) -> Target:
    return replace(find_target("cpu"), toolchain=quick)


@pytest.fixture
def tuner(target: Target) -> Iterator[Tuner]:
    with Tuner(target, Options()) as tuner:
        yield tuner


def candidates(target: Target, count: int) -> list[Candidate]:
    configs = [Tsm2Config("v2", 32, columns, 4) for columns in range(1, count + 1)]
    return [Candidate(family_named("tsm2"), config, PROBLEM, target.limits, Guidelines()) for config in configs]


def test_a_spent_budget_leaves_the_least_trials(tuner: Tuner) -> None:
    three = candidates(tuner.target, 3)
    trials = list(tuner.tune(Search(InOrder(three), budget_seconds=0.0, least=2)))
    assert [(trial.config, trial.outcome) for trial in trials] == [(one.config, Outcome.OK) for one in three[:2]]
    taken = tuner.phases.taken()
    assert min(taken.values()) >= 0
    assert {"compilers", "operands", "verification on probes", "verification", "timing"} <= {*taken} <= {*PHASES}
    tuner.worker.release()
    assert "release" in tuner.phases.taken()
    assert next(tuner.tune(Search(InOrder(three)))).outcome is Outcome.OK
    longer = replace(PROBLEM, k=65)  # of equal text, which waits for the same compiler
    futures = {tuner._compilers.begin(render(problem, three[0].config)) for problem in (PROBLEM, longer)}
    assert len(futures) == 1


def test_trials_take_all_of_the_time_of_a_search(tuner: Tuner, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a budget lasts as long in one run as in several: waiting for compilers and storing count in both."""
    monkeypatch.setattr("tsm2_tune.tuner.search.loop.wait", lambda futures: time.sleep(0.3))
    _ = tuner.ceilings
    start, trials = time.monotonic(), []
    for trial in tuner.tune(Search(InOrder(candidates(tuner.target, 2)))):
        trials.append(trial)
        elapsed = time.monotonic() - start
        time.sleep(0.3)
    assert len(trials) == 2
    assert sum(trial.total_seconds for trial in trials) == pytest.approx(elapsed, abs=0.3)
    assert elapsed > 0.9


@pytest.mark.parametrize(("spec", "reach"), [("0", 1.1), ("0", None), ("cpu", 1.1)])
def test_a_trial_on_a_gpu_may_take_little_longer_than_the_fastest_so_far(
    target: Target, support_path: str, spec: str, reach: float | None
) -> None:
    times = iter([200.0, 100.0, 300.0, 150.0, 290.0])
    asked: list[float | None] = []

    def attempt(request: Attempt) -> AttemptResult:
        asked.append(request.within_us)
        us = next(times)
        outcome = Outcome.OK if us < 300 else Outcome.BEHIND
        return AttemptResult(outcome, "", verdict=Verdict(True, 0.1, "right"), measurement=measurement(us))

    four = candidates(target, 4)
    worker = Disturbed(lambda: support_path, attempt)
    with Tuner(replace(target, spec=spec), Options(reach=reach), worker) as tuner:
        wait(tuner.compile_ahead(four))  # the first compiled kernel is tried first
        prior = replace(NO_PRIOR_TRIALS, contenders=(FinalCandidate(four[0].config, 250.0),))
        outcomes = [trial.outcome for trial in tuner.tune(Search(InOrder(four), prior))]
        assert outcomes == [Outcome.OK, Outcome.OK, Outcome.BEHIND, Outcome.OK]
        fastest = [250.0, 250.0, 200.0, 100.0]  # a request is made before the trial before it has ended
        assert asked == ([pytest.approx(1.1 * us) for us in fastest] if spec == "0" and reach else [None] * 4)
        tuner.options = tuner.options.unbounded  # as where kernels are timed at other shapes
        assert [trial.outcome for trial in tuner.tune(Search(InOrder(four[:1]), prior))] == [Outcome.OK]
        assert asked[4] is None


@pytest.mark.parametrize(("spec", "compiling"), [("0", 1), ("cpu", 0)])
def test_the_first_kernel_compiles_while_a_gpu_is_measured(
    target: Target, support_path: str, spec: str, compiling: int
) -> None:
    begun: list[Candidate] = []
    then: list[int] = []

    class Measuring(Disturbed):
        def ceilings(self) -> Ceilings:
            return logged(then, len(begun), super().ceilings())

    class CompilingAhead(Tuner):
        def compile_ahead(self, candidates: Sequence[Candidate]) -> list[Compiled]:
            begun.extend(candidates)
            return []

    worker = Measuring(lambda: support_path, lambda _: None)
    with CompilingAhead(replace(target, spec=spec), Options(), worker) as tuner:
        (trial,) = tuner.tune(Search(InOrder(candidates(target, 1))))
    assert (trial.outcome, then) == (Outcome.OK, [compiling])


@pytest.mark.parametrize(("spec", "widths"), [("0", INDEX_BITS), ("cpu", ())])
def test_new_leader_gets_both_index_widths(
    target: Target, support_path: str, spec: str, widths: tuple[int, ...]
) -> None:
    begun, then = list[Any](), list[Any]()
    failed = AttemptResult(Outcome.TIMED_OUT, "")
    worker = Disturbed(lambda: support_path, lambda _: logged(then, list(begun), failed))
    second, fastest = (Tsm2Config("v2", 32, columns, 4) for columns in (1, 2))
    prior = replace(NO_PRIOR_TRIALS, contenders=(FinalCandidate(second, 260.0), FinalCandidate(fastest, 250.0)))
    with Tuner(replace(target, spec=spec), Options(vendor=False), worker) as tuner:
        compilers: Any = tuner._compilers
        compilers.begin = lambda source: begun.append((source.text, source.defines))
        assert isinstance(tuner.final(PROBLEM, prior), FinalFailure)
    assert then == [[(render(PROBLEM, fastest).text, index_defines(bits)) for bits in widths]]


def test_candidates_that_come_late_do_not_count_as_trials(target: Target, support_path: str) -> None:
    """The least number of trials is made even if a strategy gives a candidate only after the last one's result."""

    class AfterEach(InOrder):
        told = True

        def ask(self) -> Candidate | None:
            told, self.told = self.told, False
            return super().ask() if told else None

        def tell(self, told: TrialResult) -> None:
            self.told = True

    result = AttemptResult(Outcome.OK, "", verdict=Verdict(True, 0.1, "right"), measurement=measurement(9.0))
    four = candidates(target, 4)
    with Tuner(replace(target, spec="0"), Options(), Disturbed(lambda: support_path, lambda _: result)) as tuner:
        trials = list(tuner.tune(Search(AfterEach(four), budget_seconds=0.0, least=3)))
    assert [trial.config for trial in trials] == [one.config for one in four[:3]]


def test_phases_are_as_long_as_the_whole() -> None:
    phases = PhaseTimer()
    for name in ("a", "b", "a"):
        phases.enter(name)
    seconds = phases.taken()
    assert set(seconds) == {"start", "a", "b"}
    assert min(seconds.values()) >= 0
    assert set(phases.taken()) == {"a"}
