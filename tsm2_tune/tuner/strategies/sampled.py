"""Strategies of Optuna's samplers, which is imported only where one is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tsm2_tune.errors import ToolMissing
from tsm2_tune.generator.candidate import Candidate
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.tuner.strategies.strategy import Strategy, Told

FAMILY = "family"  # the parameter that the others depend on


def _tpe(seed: int) -> Any:
    from optuna.samplers import TPESampler

    return TPESampler(seed=seed, multivariate=True, group=True, warn_independent_sampling=False)


def _nsgaii(seed: int) -> Any:
    from optuna.samplers import NSGAIISampler

    return NSGAIISampler(seed=seed)


SAMPLERS: dict[str, Callable[[int], Any]] = {"tpe": _tpe, "nsgaii": _nsgaii}


def require_optuna() -> None:
    """ToolMissing where Optuna is not installed."""
    try:
        import optuna
    except ImportError:
        raise ToolMissing(
            "Optuna is not installed: pip install 'tsm2-tune[optuna]', or name another --strategy"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)


class Members:
    """The candidates of one family as a grid: of each tunable that varies its values, in order."""

    def __init__(self, family: str, candidates: Sequence[Candidate]) -> None:
        self.candidates = candidates
        columns = {name: [one.config.tunables[name] for one in candidates] for name in candidates[0].config.tunables}
        self.values = {
            f"{family}.{name}": sorted(set(column)) for name, column in columns.items() if len(set(column)) > 1
        }
        names = [name for name in columns if f"{family}.{name}" in self.values]
        self.points = np.array(
            [[self._place(f"{family}.{name}", one.config.tunables[name]) for name in names] for one in candidates]
        ).reshape(len(candidates), len(names))
        self.is_left = np.ones(len(candidates), bool)

    def _place(self, name: str, value: Any) -> float:
        """Where the value is among those of its tunable, from 0 to 1."""
        values = self.values[name]
        return values.index(value) / (len(values) - 1)

    def nearest(self, point: Sequence[float]) -> Candidate | None:
        """The candidate nearest to the point of those that are left, which it is not now; None where none is."""
        away = np.abs(self.points - np.array(point)).sum(axis=1)
        place = int(np.where(self.is_left, away, np.inf).argmin())
        return self._taken(place)

    def next(self) -> Candidate | None:
        """The first of those that are left, which it is not now; None where none is."""
        return self._taken(int(self.is_left.argmax()))

    def _taken(self, place: int) -> Candidate | None:
        if not self.is_left[place]:
            return None
        self.is_left[place] = False
        return self.candidates[place]


class Sampled(Strategy):
    """The candidates nearest to the points that a sampler asks for; the sampler is told the time of its point."""

    def __init__(self, sampler: str, candidates: Sequence[Candidate], seed: int) -> None:
        import optuna

        self._study = optuna.create_study(sampler=SAMPLERS[sampler](seed))
        of_family = dict[str, list[Candidate]]()
        for one in candidates:
            of_family.setdefault(one.config.family, []).append(one)
        self._members = {name: Members(name, of) for name, of in of_family.items()}
        self._place = {one.config: (name, place) for name, of in of_family.items() for place, one in enumerate(of)}
        self._asked = dict[KernelConfig, Any]()  # Optuna's trials that were not told of

    def ask(self) -> Candidate | None:
        trial = self._study.ask()
        members = self._members[trial.suggest_categorical(FAMILY, list(self._members))]
        point = [
            trial.suggest_int(name, 0, len(values) - 1) / (len(values) - 1) for name, values in members.values.items()
        ]
        candidate = members.nearest(point)
        if candidate is not None:
            self._asked[candidate.config] = trial
            return candidate
        self._end(trial, None)  # all of the family are tried
        return next(filter(None, (members.next() for members in self._members.values())), None)

    def tell(self, told: Told) -> None:
        if told.config in self._asked:
            self._end(self._asked.pop(told.config), told.us)
        elif told.config in self._place:
            self._study.add_trial(self._trial_of(told))

    def _end(self, trial: Any, us: float | None) -> None:
        from optuna.trial import TrialState

        if us is None:
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._study.tell(trial, us)

    def _trial_of(self, told: Told) -> Any:
        """Optuna's trial of a configuration that was tried by an earlier run."""
        from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
        from optuna.trial import TrialState, create_trial

        family, place = self._place[told.config]
        members = self._members[family]
        members.is_left[place] = False
        params: dict[str, Any] = {FAMILY: family}
        distributions: dict[str, BaseDistribution] = {FAMILY: CategoricalDistribution(list(self._members))}
        for name, values in members.values.items():
            params[name] = values.index(told.config.tunables[name.partition(".")[2]])
            distributions[name] = IntDistribution(0, len(values) - 1)
        state = TrialState.FAIL if told.us is None else TrialState.COMPLETE
        return create_trial(params=params, distributions=distributions, value=told.us, state=state)
