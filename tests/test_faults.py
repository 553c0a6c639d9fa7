"""A run on the host that meets kernels with faults goes on with the next configuration, and leaves them out for the
next problem: no trial is lost or doubled, and no process stays.

docs/trust.md has the table of all faults with their tests.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.command import TUNE, run
from tests.conftest import ONCE
from tests.fabricated import plain_sql, tuning_run
from tests.on_host import ON_HOST
from tsm2_tune.errors import DeviceError
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families.published import Tsm2Config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.profiles import PROFILES
from tsm2_tune.generator.space import SearchSpace
from tsm2_tune.tuner import job, serving
from tsm2_tune.tuner import worker as workers
from tsm2_tune.tuner.compiler import Toolchain
from tsm2_tune.tuner.device import DeviceLost, Kernel
from tsm2_tune.tuner.host.device import HostDevice
from tsm2_tune.tuner.past import NOTHING_PAST
from tsm2_tune.tuner.store import Store
from tsm2_tune.tuner.suggested import candidate_of
from tsm2_tune.tuner.target import find_target
from tsm2_tune.tuner.trial import Outcome
from tsm2_tune.tuner.tune import Options, Tuner
from tsm2_tune.tuner.worker import Worker

pytestmark = ON_HOST

PROBLEMS = (Problem(64, 2, 64, "f32"), Problem(96, 2, 64, "f32"))  # whose kernels have the same texts and launches
BODY = "scalar *staged ="
DEEP = """
__device__ __noinline__ int deep(int depth, volatile int *above)
{
    volatile int frame[64];
    frame[depth % 64] = above ? above[0] + depth : 1;
    return depth < 0 ? 0 : deep(depth + 1, frame) + frame[depth % 64];
}
extern "C" __global__"""


@dataclass(frozen=True, slots=True)
class Fault:
    """What a kernel does when it starts, and how its trial ends."""

    statement: str
    outcome: Outcome
    said: str


FAULTS = (
    Fault("for (volatile int i = 0;; ++i) {}", Outcome.TIMED_OUT, "verification on probes took more than"),
    Fault("*(volatile int *)8 = 1;", Outcome.CRASHED, "address 0x8, which is near no buffer"),
    Fault("A = A - 2000000;", Outcome.CRASHED, "bytes before the start of a buffer"),
    Fault("__trap();", Outcome.CRASHED, "reached __trap()"),
    Fault("if (deep(0, nullptr) == 7) C[0] = 1;", Outcome.CRASHED, "filled its stack"),
)
# One for each fault, and two that are right: the second and the last.
CONFIGS = tuple(Tsm2Config("v2", 32, 1, prefetch) for prefetch in (1, 2, 4, 6, 8, 12, 16))
PLANTED = dict(zip((CONFIGS[0], *CONFIGS[2:-1]), FAULTS, strict=True))
RIGHT = (CONFIGS[1], CONFIGS[-1])


def planted(toolchain: Toolchain, faults: Mapping[KernelConfig, Fault]) -> Toolchain:
    """The compiler, but these configurations' kernels do what is planted."""

    def wrap(text: str) -> str:
        for config, fault in faults.items():
            if text.startswith(f"// {config.kernel_text}\n"):
                text = text.replace('\nextern "C" __global__', DEEP).replace(BODY, f"{fault.statement}\n    {BODY}")
        return toolchain.wrap(text)

    return replace(toolchain, wrap=wrap)


@dataclass(slots=True)
class Found:
    """What two runs, one after the other, stored and told."""

    trials: list[tuple[object, ...]] = field(default_factory=list)
    told: list[tuple[object, ...]] = field(default_factory=list)
    ended: list[job.ProblemEnded] = field(default_factory=list)


@pytest.fixture(scope="module")
def tuned(own_cache: None, quick: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """A run for the first problem, and one for both."""
    path = tmp_path_factory.mktemp("faults") / "results.db"
    target, limits, found = replace(find_target("cpu"), toolchain=planted(quick, PLANTED)), PROFILES["h200"], Found()
    spaces = [
        SearchSpace(one, limits, ("tsm2",), [candidate_of(config, one, limits) for config in CONFIGS], (), ())
        for one in PROBLEMS
    ]
    options = Options(effort=ONCE, final_effort=ONCE, run_limit_seconds=5.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Worker, "ceilings", lambda _: tuning_run().ceilings)
        for searched in (spaces[:1], spaces):
            with Tuner(target, options) as tuner, Store.open(path, create=True) as store:
                for event in job.run(searched, tuner, store, order=lambda space, _: space.kept, families=("tsm2",)):
                    if isinstance(event, job.TrialStored):
                        found.told.append((event.trial.config.text, event.trial.problem.m))
                    elif isinstance(event, job.ProblemEnded):
                        found.ended.append(event)
    found.trials = plain_sql(
        path, "SELECT config, m, outcome, detail FROM trial JOIN problem ON problem_id = problem.id"
    )
    return found


@pytest.mark.parametrize("config", PLANTED, ids=lambda config: PLANTED[config].statement)
def test_each_is_a_trial_that_says_what_happened(config: KernelConfig, tuned: Found) -> None:
    ((outcome, detail),) = [row[2:] for row in tuned.trials if row[0] == config.text]
    assert outcome == PLANTED[config].outcome
    assert PLANTED[config].said in str(detail)


def test_the_run_goes_on_with_the_others(tuned: Found) -> None:
    right = sorted((row[0], row[1]) for row in tuned.trials if row[2] == "ok")
    assert right == sorted((config.text, problem.m) for config in RIGHT for problem in PROBLEMS)
    assert all(one.winner is not None for one in tuned.ended)


def test_each_is_met_once_and_left_out_for_the_next_problem(tuned: Found) -> None:
    assert [one.quarantined for one in tuned.ended] == [0, 0, len(FAULTS)]
    assert [one.untried for one in tuned.ended] == [0, 0, 0]


def test_no_trial_is_lost_or_doubled(tuned: Found) -> None:
    stored = sorted(row[:2] for row in tuned.trials)
    assert stored == sorted(tuned.told)
    assert len(stored) == len(set(stored)) == len(CONFIGS) + len(RIGHT)


@pytest.mark.usefixtures("tuned")
def test_no_process_stays() -> None:
    assert [one for one in multiprocessing.active_children() if one.name == "tsm2-tune worker"] == []


@pytest.mark.usefixtures("own_cache", "known_ceilings")
def test_what_is_endless_at_a_large_shape_alone_is_tried_at_others(quick: Toolchain) -> None:
    problem, config = PROBLEMS[0], Tsm2Config("v3", 32, 1, 8)
    endless = Fault("for (volatile int i = 0; m == 64 && n == 2 && k == 64; ++i) {}", Outcome.TIMED_OUT, "")
    target = replace(find_target("cpu"), toolchain=planted(quick, {config: endless}))
    with Tuner(target, Options(effort=ONCE, run_limit_seconds=3.0)) as tuner:
        (trial,) = tuner.tune([candidate_of(config, problem, PROFILES["h200"])], NOTHING_PAST)
    assert trial.outcome is Outcome.TIMED_OUT
    assert trial.detail == "verification took more than 3 s"
    assert not trial.hung


# A device that is gone


class Lost(HostDevice):
    """The host, lost when it loads a second kernel under test, and from then on."""

    gone: Path  # there when it is lost
    loaded = 0

    def load(self, path: str, kernel: str) -> Kernel:
        self.loaded += kernel == "tsm2"
        if self.loaded > 1:
            self.gone.touch()
            raise DeviceLost("GPU is lost (CUDA error 719)")
        return super().load(path, kernel)


def serving_until_lost(gone: Path, *arguments: Any) -> None:
    """What a worker process runs, on a device that is lost."""

    def opened(_: str, support_path: str) -> HostDevice:
        if gone.exists():
            raise DeviceError("CUDA device 0 does not open (no device): is another process using it?")
        device = Lost(support_path=support_path)
        device.gone = gone
        return device

    serving.open_device = opened  # type: ignore[attr-defined]
    serving.serve(*arguments)


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
