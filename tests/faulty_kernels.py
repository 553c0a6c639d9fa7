"""Kernels that hang or fault, planted into configurations, and what two runs make of them: for any device."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.conftest import ONCE
from tests.fabricated import plain_sql
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.space import SearchSpace
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Outcome
from tsm2_tune.tuner.runs.events import ProblemEnded, TrialStored
from tsm2_tune.tuner.runs.problem_queue import tune_problems
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.session import candidate_of
from tsm2_tune.tuner.search.strategies import exhaustive

BODY = "scalar *staged ="  # before which a kernel does what is planted
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
    """Fault that a kernel has when it starts, and the outcome of its trial."""

    name: str
    statement: str
    outcome: Outcome
    said: str


def planted(toolchain: Toolchain, faults: Mapping[KernelConfig, Fault]) -> Toolchain:
    """The compiler, but these configurations' kernels do what is planted. Caches tell its binaries from others."""

    def wrap(text: str) -> str:
        for config, fault in faults.items():
            if text.startswith(f"// {config.kernel_text}\n"):
                text = text.replace('\nextern "C" __global__', DEEP).replace(BODY, f"{fault.statement}\n    {BODY}")
        return toolchain.wrap(text)

    made = [toolchain.extra_digest, *((config.text, fault.statement) for config, fault in faults.items())]
    return replace(toolchain, wrap=wrap, extra_digest=hashlib.sha256(repr(made).encode()).hexdigest())


@dataclass(slots=True)
class Found:
    """Stored trials and events of two successive runs."""

    trials: list[tuple[object, ...]] = field(default_factory=list)
    told: list[tuple[object, ...]] = field(default_factory=list)
    ended: list[ProblemEnded] = field(default_factory=list)

    def outcomes(self, config: KernelConfig) -> list[tuple[object, ...]]:
        """Outcome and detail of each trial of the configuration."""
        return [row[2:] for row in self.trials if row[0] == config.text]


def tuned_twice(
    target: Target, problems: Sequence[Problem], configs: Sequence[KernelConfig], path: Path, options: Options
) -> Found:
    """A run for the first problem, and one for all, each of these configurations in their order."""
    found = Found()
    spaces = [
        SearchSpace(one, target.limits, ("tsm2",), [candidate_of(c, one, target.limits) for c in configs], (), ())
        for one in problems
    ]
    options = replace(options, effort=ONCE, final_effort=ONCE)
    for searched in (spaces[:1], spaces):
        with Tuner(target, options) as tuner, Store.open(path, create=True) as store:
            for event in tune_problems(searched, tuner, store, make_strategy=exhaustive, families=("tsm2",)):
                if isinstance(event, TrialStored):
                    found.told.append((event.trial.config.text, event.trial.problem.m))
                elif isinstance(event, ProblemEnded):
                    found.ended.append(event)
    columns = "config, m, outcome, detail"
    found.trials = plain_sql(path, f"SELECT {columns} FROM trial JOIN problem ON problem_id = problem.id")
    return found


def check(
    found: Found, faults: Mapping[KernelConfig, Fault], right: Sequence[KernelConfig], problems: Sequence[Problem]
) -> None:
    """Each fault was met once, and left out afterwards; what is right was tried everywhere; all is stored once."""
    for config, fault in faults.items():
        ((outcome, detail),) = found.outcomes(config)
        assert outcome == fault.outcome, f"{fault.name}: {outcome}: {detail}"
        assert fault.said in str(detail), f"{fault.name}: {detail}"
    for config in right:
        assert [outcome for outcome, _ in found.outcomes(config)] == ["ok"] * len(problems), config.text
    assert [one.quarantined for one in found.ended] == [0, 0, *[len(faults)] * (len(problems) - 1)]
    assert [one.untried for one in found.ended] == [0] * (1 + len(problems))
    assert all(one.winner is not None for one in found.ended)
    stored = sorted(row[:2] for row in found.trials)
    assert stored == sorted(found.told)
    assert len(stored) == len(set(stored)) == len(faults) + len(right) * len(problems)
