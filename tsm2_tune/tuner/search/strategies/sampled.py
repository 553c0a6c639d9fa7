"""Search strategies that use the samplers of Optuna. Optuna is imported only when such a strategy is used."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tsm2_tune.errors import ToolMissing, pip_install
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.tuner.search.strategies.grid import Grid
from tsm2_tune.tuner.search.strategies.strategy import Strategy, TrialResult

FAMILY = "family"  # the Optuna parameter for the kernel family
SAMPLERS: dict[str, Callable[[Any, int], Any]] = {  # name in --strategy -> function of optuna.samplers and the seed
    "tpe": lambda samplers, seed: samplers.TPESampler(seed=seed, multivariate=True, group=True),
    "nsgaii": lambda samplers, seed: samplers.NSGAIISampler(seed=seed),
}


def require_optuna() -> None:
    """Raise ToolMissing if Optuna is not installed."""
    try:
        import optuna
    except ImportError:
        raise ToolMissing(f"Optuna is not installed: {pip_install('optuna')}, or name another --strategy") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)


class Sampled(Strategy):
    """A strategy that tries the candidate nearest to each point that an Optuna sampler suggests."""

    def __init__(self, sampler: str, candidates: Sequence[Candidate], seed: int) -> None:
        import optuna

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna warns about `group`, which gives each family its own model
            self._study = optuna.create_study(sampler=SAMPLERS[sampler](optuna.samplers, seed))
        self._candidates, self._grids = candidates, Grid.of_families(candidates)
        self._place = {one.config: place for place, one in enumerate(candidates)}
        self._is_remaining = np.ones(len(candidates), bool)
        self._asked = dict[KernelConfig, Any]()  # Optuna's trials without a result

    def ask(self) -> Candidate | None:
        if not self._is_remaining.any():
            return None
        trial = self._study.ask()
        name = trial.suggest_categorical(FAMILY, list(self._grids))
        grid = self._grids[name]
        point = [
            trial.suggest_int(f"{name}.{tunable}", 0, len(values) - 1) / (len(values) - 1)
            for tunable, values in grid.values.items()
        ]
        away = np.abs(grid.points - np.array(point)).sum(axis=1)
        place = int(grid.places[np.where(self._is_remaining[grid.places], away, np.inf).argmin()])
        if not self._is_remaining[place]:  # all candidates of the family were tried
            self._end(trial, None)
            return self._taken(int(self._is_remaining.argmax()))
        candidate = self._taken(place)
        self._asked[candidate.config] = trial
        return candidate

    def tell(self, result: TrialResult) -> None:
        place = self._place.get(result.config)
        if result.config in self._asked:
            self._end(self._asked.pop(result.config), result.us)
        elif place is not None:
            self._taken(place)
            self._study.add_trial(self._trial_of(result))

    def _taken(self, place: int) -> Candidate:
        self._is_remaining[place] = False
        return self._candidates[place]

    def _end(self, trial: Any, us: float | None) -> None:
        from optuna.trial import TrialState

        if us is None:
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._study.tell(trial, us)

    def _trial_of(self, result: TrialResult) -> Any:
        """Return an Optuna trial for a configuration that the sampler did not suggest."""
        from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
        from optuna.trial import TrialState, create_trial

        name = result.config.family
        params: dict[str, Any] = {FAMILY: name}
        distributions: dict[str, BaseDistribution] = {FAMILY: CategoricalDistribution(list(self._grids))}
        for tunable, values in self._grids[name].values.items():
            params[f"{name}.{tunable}"] = values.index(result.config.tunables[tunable])
            distributions[f"{name}.{tunable}"] = IntDistribution(0, len(values) - 1)
        state = TrialState.FAIL if result.us is None else TrialState.COMPLETE
        return create_trial(params=params, distributions=distributions, value=result.us, state=state)
