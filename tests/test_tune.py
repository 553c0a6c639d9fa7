"""The loop of a search on the host: when it ends, what it compiles, and where its time goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import wait
from dataclasses import replace

import pytest

from tests.call_log import logged
from tests.fabricated import measurement
from tsm2_tune.console.heartbeat import PHASES
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.families.published import Tsm2Config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.source import INDEX_BITS, index_defines
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.target import find_target
from tsm2_tune.tuner.results.trial import Outcome, Verdict
from tsm2_tune.tuner.runs.events import FinalFailure
from tsm2_tune.tuner.search.candidates import Search
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.phase_timer import PhaseTimer
from tsm2_tune.tuner.search.resume import NO_PRIOR_TRIALS, FinalCandidate
from tsm2_tune.tuner.search.strategies.strategy import InOrder, TrialResult
from tsm2_tune.tuner.worker.client import Attempt, AttemptResult

pytestmark = pytest.mark.host

PROBLEM = Problem(64, 2, 64, "f32")


@pytest.fixture
def tuner(quick: Toolchain) -> Iterator[Tuner]:
    target = replace(find_target("cpu"), toolchain=quick)
    with Tuner(target, Options()) as tuner:
        yield tuner


def test_a_spent_budget_leaves_the_least_trials(tuner: Tuner) -> None:
    configs = [Tsm2Config("v2", 32, columns, 4) for columns in (1, 2, 3)]
    candidates = [
        Candidate(family_named("tsm2"), config, PROBLEM, tuner.target.limits, Guidelines()) for config in configs
    ]
    trials = list(tuner.tune(Search(InOrder(candidates), budget_seconds=0.0, least=2)))
    assert [(trial.config, trial.outcome) for trial in trials] == [(config, Outcome.OK) for config in configs[:2]]
    taken = set(tuner.phases.taken())
    assert {"compilers", "operands", "verification on probes", "verification", "timing"} <= taken <= set(PHASES)
    tuner.worker.release()
    assert "release" in tuner.phases.taken()
    assert next(tuner.tune(Search(InOrder(candidates)))).outcome is Outcome.OK


def test_trials_take_all_of_the_time_of_a_search(tuner: Tuner, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a budget lasts as long in one run as in several: waiting for compilers and storing count in both."""
    monkeypatch.setattr("tsm2_tune.tuner.search.loop.wait", lambda futures: time.sleep(0.3))
    _ = tuner.ceilings
    configs = [Tsm2Config("v2", 32, columns, 4) for columns in (1, 2)]
    candidates = [
        Candidate(family_named("tsm2"), config, PROBLEM, tuner.target.limits, Guidelines()) for config in configs
    ]
    start, trials = time.monotonic(), []
    for trial in tuner.tune(Search(InOrder(candidates))):
        trials.append(trial)
        elapsed = time.monotonic() - start
        time.sleep(0.3)
    assert len(trials) == 2
    assert sum(trial.total_seconds for trial in trials) == pytest.approx(elapsed, abs=0.3)
    assert elapsed > 0.9


@pytest.mark.parametrize(("spec", "reach"), [("0", 1.1), ("0", None), ("cpu", 1.1)])
def test_a_trial_on_a_gpu_may_take_little_longer_than_the_fastest_so_far(
    tuner: Tuner, monkeypatch: pytest.MonkeyPatch, spec: str, reach: float | None
) -> None:
    times = iter([200.0, 100.0, 300.0, 150.0, 290.0])
    asked: list[float | None] = []

    def attempt(request: Attempt) -> AttemptResult:
        asked.append(request.within_us)
        us = next(times)
        outcome = Outcome.OK if us < 300 else Outcome.BEHIND
        return AttemptResult(outcome, "", verdict=Verdict(True, 0.1, "right"), measurement=measurement(us))

    _ = tuner.ceilings
    monkeypatch.setattr(tuner.worker, "attempt", attempt)
    monkeypatch.setattr(tuner.worker, "send_ahead", lambda _: None)
    tuner.options = replace(tuner.options, reach=reach)
    tuner.target = replace(tuner.target, spec=spec)
    configs = [Tsm2Config("v2", 32, columns, 4) for columns in (1, 2, 3, 4)]
    candidates = [
        Candidate(family_named("tsm2"), config, PROBLEM, tuner.target.limits, Guidelines()) for config in configs
    ]
    wait(tuner.compile_ahead(candidates))  # the first compiled kernel is tried first
    prior = replace(NO_PRIOR_TRIALS, contenders=(FinalCandidate(configs[0], 250.0),))
    outcomes = [trial.outcome for trial in tuner.tune(Search(InOrder(candidates), prior))]
    assert outcomes == [Outcome.OK, Outcome.OK, Outcome.BEHIND, Outcome.OK]
    fastest = [250.0, 250.0, 200.0, 100.0]  # a request is made before the trial before it has ended
    assert asked == ([pytest.approx(1.1 * us) for us in fastest] if spec == "0" and reach else [None] * 4)
    tuner.options = tuner.options.unbounded  # as where kernels are timed at other shapes
    assert [trial.outcome for trial in tuner.tune(Search(InOrder(candidates[:1]), prior))] == [Outcome.OK]
    assert asked[4] is None


@pytest.mark.parametrize(("spec", "compiling"), [("0", 1), ("cpu", 0)])
def test_the_first_kernel_compiles_while_a_gpu_is_measured(
    tuner: Tuner, monkeypatch: pytest.MonkeyPatch, spec: str, compiling: int
) -> None:
    begun: list[Candidate] = []
    then: list[int] = []
    ceilings = tuner.ceilings
    monkeypatch.setattr(tuner, "_ceilings", None)
    monkeypatch.setattr(tuner.worker, "ceilings", lambda: logged(then, len(begun), ceilings))
    monkeypatch.setattr(tuner, "compile_ahead", lambda candidates: begun.extend(candidates))
    tuner.target = replace(tuner.target, spec=spec)
    config = Tsm2Config("v2", 32, 1, 4)
    candidate = Candidate(family_named("tsm2"), config, PROBLEM, tuner.target.limits, Guidelines())
    (trial,) = tuner.tune(Search(InOrder([candidate])))
    assert (trial.outcome, then) == (Outcome.OK, [compiling])


@pytest.mark.parametrize(("spec", "widths"), [("0", INDEX_BITS), ("cpu", ())])
def test_new_leader_gets_both_index_widths(
    tuner: Tuner, monkeypatch: pytest.MonkeyPatch, spec: str, widths: tuple[int, ...]
) -> None:
    begun: list[tuple[str, tuple[str, ...]]] = []
    then: list[list[tuple[str, tuple[str, ...]]]] = []
    worker, failed = tuner.worker, AttemptResult(Outcome.TIMED_OUT, "")
    monkeypatch.setattr(tuner._compilers, "begin", lambda source: begun.append((source.text, source.defines)))
    monkeypatch.setattr(worker, "time_finalists", lambda _: logged(then, list(begun), failed))
    tuner.options = replace(tuner.options, vendor=False)
    tuner.target = replace(tuner.target, spec=spec)
    second, fastest = Tsm2Config("v2", 32, 1, 4), Tsm2Config("v2", 32, 2, 4)
    prior = replace(NO_PRIOR_TRIALS, contenders=(FinalCandidate(second, 260.0), FinalCandidate(fastest, 250.0)))
    assert isinstance(tuner.final(PROBLEM, prior), FinalFailure)
    assert then == [[(render(PROBLEM, fastest).text, index_defines(bits)) for bits in widths]]


def test_candidates_that_come_late_do_not_count_as_trials(tuner: Tuner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The least number of trials is made even if a strategy gives a candidate only after the last one's result."""

    class AfterEach(InOrder):
        told = True

        def ask(self) -> Candidate | None:
            told, self.told = self.told, False
            return super().ask() if told else None

        def tell(self, told: TrialResult) -> None:
            self.told = True

    _ = tuner.ceilings
    result = AttemptResult(Outcome.OK, "", verdict=Verdict(True, 0.1, "right"), measurement=measurement(9.0))
    monkeypatch.setattr(tuner.worker, "attempt", lambda _: result)
    monkeypatch.setattr(tuner.worker, "send_ahead", lambda _: None)
    tuner.target = replace(tuner.target, spec="0")
    configs = [Tsm2Config("v2", 32, columns, 4) for columns in (1, 2, 3, 4)]
    candidates = [
        Candidate(family_named("tsm2"), config, PROBLEM, tuner.target.limits, Guidelines()) for config in configs
    ]
    trials = list(tuner.tune(Search(AfterEach(candidates), budget_seconds=0.0, least=3)))
    assert [trial.config for trial in trials] == configs[:3]


def test_equal_texts_wait_for_one_compiler(tuner: Tuner) -> None:
    config = Tsm2Config("v2", 32, 1, 4)
    tuner.compile_ahead([Candidate(family_named("tsm2"), config, PROBLEM, tuner.target.limits, Guidelines())])
    longer = replace(PROBLEM, k=65)
    futures = {tuner._compilers.begin(render(problem, config)) for problem in (PROBLEM, longer)}
    assert len(futures) == 1


def test_phases_are_as_long_as_the_whole() -> None:
    phases = PhaseTimer()
    for name in ("a", "b", "a"):
        phases.enter(name)
    seconds = phases.taken()
    assert set(seconds) == {"start", "a", "b"}
    assert min(seconds.values()) >= 0
    assert set(phases.taken()) == {"a"}
