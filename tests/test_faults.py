"""The loop of a search on the host. Past kernels with faults it goes on with the next configuration, and leaves them
out for the next problem: no trial is lost or doubled, and no process stays.

docs/trust.md has the table of all faults with their tests.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from tests import quick_worker
from tests.command import TUNE, run
from tests.conftest import ONCE
from tests.fabricated import measurement, plain_sql
from tests.faulty_kernels import Fault, check, planted, tuned_twice
from tests.on_host import ON_HOST
from tests.workers import Disturbed
from tsm2_tune.console.heartbeat import PHASES
from tsm2_tune.errors import DeviceError
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.families.published import Tsm2Config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.emulator.device import HostDevice, HostKernel
from tsm2_tune.tuner.device.interface import DeviceLost
from tsm2_tune.tuner.device.target import Target, find_target
from tsm2_tune.tuner.results.trial import Outcome, Verdict
from tsm2_tune.tuner.search.candidates import Search
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.resume import NO_PRIOR_TRIALS, FinalCandidate
from tsm2_tune.tuner.search.session import candidate_of
from tsm2_tune.tuner.search.strategies.strategy import InOrder, TrialResult
from tsm2_tune.tuner.worker import client as workers
from tsm2_tune.tuner.worker import server
from tsm2_tune.tuner.worker.client import Attempt, AttemptResult

pytestmark = ON_HOST

PROBLEMS = (Problem(64, 2, 64, "f32"), Problem(96, 2, 64, "f32"))  # their kernels have the same texts and launches
FAULTS = (
    Fault("endless", "for (volatile int i = 0;; ++i) {}", Outcome.TIMED_OUT, "verification on probes took more than"),
    Fault("illegal address", "*(volatile int *)8 = 1;", Outcome.CRASHED, "address 0x8, which is not near a buffer"),
    Fault("read before an operand", "A = A - 2000000;", Outcome.CRASHED, "bytes before the start of a buffer"),
    Fault("trap", "__trap();", Outcome.CRASHED, "reached __trap()"),
    Fault("stack overflow", "if (deep(0, nullptr) == 7) C[0] = 1;", Outcome.CRASHED, "overflowed its stack"),
)
# One for each fault, and two that are right: the second and the last.
CONFIGS = tuple(Tsm2Config("v2", 32, 1, prefetch) for prefetch in (1, 2, 4, 6, 8, 12, 16))
PLANTED: dict[KernelConfig, Fault] = dict(zip((CONFIGS[0], *CONFIGS[2:-1]), FAULTS, strict=True))
RIGHT = (CONFIGS[1], CONFIGS[-1])


@pytest.mark.usefixtures("known_ceilings")
def test_a_run_goes_on_past_kernels_that_hang_or_fault(quick: Toolchain, path: Path) -> None:
    target = replace(find_target("cpu"), toolchain=planted(quick, PLANTED))
    before = set(multiprocessing.active_children())
    found = tuned_twice(target, PROBLEMS, CONFIGS, path, Options(run_limit_seconds=2.0))
    check(found, PLANTED, RIGHT, PROBLEMS)
    ((seconds,),) = plain_sql(path, "SELECT total_seconds FROM trial WHERE outcome = 'timed-out'")
    assert cast(float, seconds) > 3.6, "a budget is to know of both limits, of the problem and of small ones"
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.usefixtures("known_ceilings")
def test_what_is_endless_at_a_large_shape_alone_is_tried_at_others(quick: Toolchain) -> None:
    problem, config = PROBLEMS[0], Tsm2Config("v3", 32, 1, 8)
    statement = "for (volatile int i = 0; m == 64 && n == 2 && k == 64; ++i) {}"
    endless = Fault("endless at one shape", statement, Outcome.TIMED_OUT, "")
    target = replace(find_target("cpu"), toolchain=planted(quick, {config: endless}))
    with Tuner(target, Options(effort=ONCE, run_limit_seconds=2.0)) as tuner:
        (trial,) = tuner.tune(Search(InOrder([candidate_of(config, problem, PROFILES["h200"])])))
    assert trial.outcome is Outcome.TIMED_OUT
    assert trial.detail == "verification took more than 2 s"
    assert not trial.hung


# A device that is gone


class Lost(HostDevice):
    """The host, lost when it loads a second kernel under test, and from then on."""

    gone: Path  # there when it is lost
    loaded = 0

    def load(self, code: bytes, kernel: str) -> HostKernel:
        self.loaded += kernel == "tsm2"
        if self.loaded > 1:
            self.gone.touch()
            raise DeviceLost("GPU is lost (CUDA error 719)")
        return super().load(code, kernel)


def serving_until_lost(gone: Path, *arguments: Any) -> None:
    """Serve as a worker process on a device that is lost."""

    def opened(spec: str, support_code: bytes) -> HostDevice:
        if gone.exists():
            raise DeviceError("CUDA device 0 does not open (no device): is another process using it?")
        device = Lost(support_code=support_code)
        device.gone = gone
        return device

    server.open_device = opened  # type: ignore[attr-defined]
    quick_worker.serve(*arguments)


@pytest.mark.usefixtures("known_ceilings")
def test_a_device_that_is_gone_ends_the_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = (*TUNE[:-1], "3", "--db", str(path))
    with monkeypatch.context() as patch:
        patch.setattr(workers, "serve", partial(serving_until_lost, tmp_path / "gone"))
        result = run(*command)
    assert result.exit_code == 2
    assert "Error: CUDA device 0 does not open (no device): is another process using it?" in result.output
    assert "Traceback" not in result.output
    query = "SELECT config, outcome FROM trial ORDER BY id"
    before = plain_sql(path, query)
    assert [outcome for _, outcome in before] == ["ok"]
    assert run(*command).exit_code == 0  # once it is back
    after = plain_sql(path, query)
    assert after[:1] == before
    assert [outcome for _, outcome in after] == ["ok"] * 3


# The loop of a search


@pytest.fixture
def target(quick: Toolchain) -> Target:
    return replace(find_target("cpu"), toolchain=quick)


@pytest.fixture
def tuner(target: Target) -> Iterator[Tuner]:
    with Tuner(target, Options()) as tuner:
        yield tuner


def candidates(target: Target, count: int) -> list[Candidate]:
    configs = [Tsm2Config("v2", 32, columns, 4) for columns in range(1, count + 1)]
    return [Candidate(family_named("tsm2"), config, PROBLEMS[0], target.limits, Guidelines()) for config in configs]


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
    target: Target, support_code: bytes, spec: str, reach: float | None
) -> None:
    times = iter([200.0, 100.0, 300.0, 150.0, 290.0])
    asked: list[float | None] = []

    def attempt(request: Attempt) -> AttemptResult:
        asked.append(request.within_us)
        us = next(times)
        outcome = Outcome.OK if us < 300 else Outcome.BEHIND
        return AttemptResult(outcome, "", verdict=Verdict(True, 0.1, "right"), measurement=measurement(us))

    four = candidates(target, 4)
    worker = Disturbed(lambda _: support_code, attempt)
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


def test_candidates_that_come_late_do_not_count_as_trials(target: Target, support_code: bytes) -> None:
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
    with Tuner(replace(target, spec="0"), Options(), Disturbed(lambda _: support_code, lambda _: result)) as tuner:
        trials = list(tuner.tune(Search(AfterEach(four), budget_seconds=0.0, least=3)))
    assert [trial.config for trial in trials] == [one.config for one in four[:3]]
