"""Tuning: products in, winners out, everything that happens as events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike

from tsm2_tune.api.planning import problems, spec_of
from tsm2_tune.errors import InputError
from tsm2_tune.generator.guidelines import Thresholds
from tsm2_tune.generator.problem import Problem
from tsm2_tune.options import (
    DEFAULT_BUDGET_SECONDS,
    DEFAULT_COMPILE_LIMIT_SECONDS,
    DEFAULT_DATABASE,
    DEFAULT_RUN_LIMIT_SECONDS,
    FAILURES,
    MOST_BUDGET_SECONDS,
    MOST_GAIN,
    MOST_LIMIT_SECONDS,
    MOST_SEED,
    REACH,
    ElementTypes,
    Products,
    Texts,
    cache_named,
    check_callable,
    check_named,
    checked_share,
    computable,
    family_names,
    file_name,
    outcomes_of,
    thresholds_of,
)
from tsm2_tune.tuner import job
from tsm2_tune.tuner.crossing import Crossing
from tsm2_tune.tuner.events import Event, Noted, PairsStarted, ProblemEnded, RunStarted, is_interruption
from tsm2_tune.tuner.locks import device_lock
from tsm2_tune.tuner.stopping import interruptible
from tsm2_tune.tuner.store import Store
from tsm2_tune.tuner.stored import BestRow
from tsm2_tune.tuner.strategies import STRATEGIES, strategy_named
from tsm2_tune.tuner.target import Target, find_target
from tsm2_tune.tuner.trial import Cache, shown
from tsm2_tune.tuner.tune import Options, Tuner


@dataclass(frozen=True, slots=True)
class TuningResult:
    """What a run has come to. Everything else is in the database."""

    target: Target  # the device, which later runs can be given
    ended: tuple[ProblemEnded, ...]  # of each problem, in the order in which they were tuned
    winners: tuple[BestRow, ...]  # of what was asked for, as `best` has them
    interrupted: int  # trials and finals that the machine kept from being judged: the same call tries them again

    @property
    def unsolved(self) -> tuple[Problem, ...]:
        """The problems of which no configuration gave a right result."""
        return tuple(one.problem for one in self.ended if one.winner is None)

    @property
    def changed(self) -> tuple[Problem, ...]:
        """The problems for which a kernel of another one has won since their searches ended."""
        before = {one.problem: one.winner.config for one in self.ended if one.winner is not None}
        return tuple(row.problem for row in self.winners if before.get(row.problem, row.config) != row.config)

    @property
    def is_complete(self) -> bool:
        """Whether all problems have a winner, and nothing was kept from being judged."""
        return not (self.unsolved or self.interrupted)


def tune(
    products: Products, *, dtype: ElementTypes = "f32", op: Texts = "nn", layout: str = "column", math: str = "full",
    device: int | str | Target | None = None, db: str | PathLike[str] = DEFAULT_DATABASE,
    budget: float | None = DEFAULT_BUDGET_SECONDS, max_trials: int | None = None,
    compile_limit: float = DEFAULT_COMPILE_LIMIT_SECONDS, run_limit: float = DEFAULT_RUN_LIMIT_SECONDS,
    cache: str = "dirty", family: Texts | None = None, guidelines: str | Thresholds | None = None,
    retry: Texts | None = None, seed: int = 0, full_trials: bool = False, vendor: bool = True, pairs: bool = True,
    strategy: str = "model", gain: float | str | None = None, wait: bool = False,
    on_event: Callable[[Event], object] | None = None,
) -> TuningResult:  # fmt: skip
    """Tune products: enumerate, prune, generate, compile, verify, time and store. `tsm2-tune --shapes` does this.

    - `products`, `dtype`, `op`, `layout`, `math`: what to tune, as `problems` takes it.
    - `device`: a CUDA ordinal, "cpu" for this host, or the target of an earlier result; None is GPU 0, or this host.
    - `db`: the database, made where it is missing. The same call again goes on where the last one stopped.
    - `budget`, `max_trials`: seconds and configurations for each problem, those of earlier runs included; None is
      no limit, and so is a budget of 0.
    - `compile_limit`, `run_limit`: seconds for compiling one configuration, and for each stage of its trial.
    - `cache`: what is in a GPU's L2 before a trial is timed: "dirty", "clean" or "warm".
    - `family`, `guidelines`: the kernel families that are searched, and by which thresholds, as of `plan_space`.
    - `retry`: outcomes that are tried again, such as "timed-out"; "failed" is all but ok.
    - `seed`: of inputs and order.
    - `full_trials`: whether on a GPU also what cannot win is verified and timed in full: otherwise a trial ends as
      "behind" whose first launches all take over 10 % longer than the fastest so far.
    - `strategy`: in which order configurations are tried: "model", "exhaustive", "random", or a sampler of Optuna's,
      such as "optuna:tpe".
    - `gain`: a problem's search ends once less than this share of the best time is expected to be gained by going on:
      0.005, or "0.5%"; None is no such end.
    - `vendor`: whether cuBLAS and cuBLASLt are measured beside the fastest kernels.
    - `pairs`: whether kernels are measured at the other tuned shapes too, beyond `budget` and `max_trials`.
    - `wait`: whether to wait for another run on the device.
    - `on_event`: called with each event in this thread, once what it tells is stored. What it raises ends the run.

    Ctrl-C ends it, too, by KeyboardInterrupt: every trial that ended is stored. InputError, before anything is tried,
    for what cannot be asked for; DeviceError where the device does not answer or is in use; ToolMissing without its
    compiler, or without Optuna where that is asked for; StoreError for a database that cannot be used; WorkerError
    where the device fails.
    """
    name = file_name("db", db)
    check_callable("on_event", on_event)
    names = family_names(family)
    asked = computable(problems(products, dtype=dtype, op=op, layout=layout, math=math), names)
    options = options_of(
        budget=budget, max_trials=max_trials, compile_limit=compile_limit, run_limit=run_limit, cache=cache,
        retry=retry, seed=seed, vendor=vendor, reach=None if full_trials else REACH, strategy=strategy, gain=gain,
    )  # fmt: skip
    thresholds = thresholds_of(guidelines)
    target = device if isinstance(device, Target) else find_target(spec_of(device))
    spaces = job.spaces(asked, target, guidelines=thresholds, families=names)
    run = _Run(target, options, names, pairs=pairs, wait=wait, tell=on_event)
    with interruptible():
        return run.result(spaces, name)


def options_of(
    *, budget: float | None, max_trials: int | None, compile_limit: float, run_limit: float, cache: str,
    retry: Texts | None, seed: int, vendor: bool = False, reach: float | None = None, strategy: str = "model",
    gain: float | str | None = None,
) -> Options:  # fmt: skip
    """The options of a run, from the arguments of `tune`. InputError for what none can have; ToolMissing where Optuna
    is asked for and not installed.
    """
    check_named("strategy", strategy, STRATEGIES)
    strategy_named(strategy)
    return Options(
        seed=_whole("seed", seed, 0, MOST_SEED),
        max_trials=None if max_trials is None else _whole("max_trials", max_trials, 1),
        budget_seconds=None if budget in (None, 0) else _seconds("budget", budget, MOST_BUDGET_SECONDS),
        compile_limit_seconds=_seconds("compile_limit", compile_limit, MOST_LIMIT_SECONDS),
        run_limit_seconds=_seconds("run_limit", run_limit, MOST_LIMIT_SECONDS),
        retried=outcomes_of(retry, FAILURES),
        vendor=vendor,
        reach=reach,
        strategy=strategy,
        gain=checked_share("gain", gain, MOST_GAIN),
        cache=cache_named(cache) or Cache.DIRTY,
    )


@dataclass(slots=True)
class _Run:
    """A run on a device."""

    target: Target
    options: Options
    families: tuple[str, ...]
    pairs: bool
    wait: bool
    tell: Callable[[Event], object] | None
    interrupted: int = 0

    def result(self, spaces: job.Spaces, db: str) -> TuningResult:
        """Search these, and then measure pairs; what came of it."""
        target, asked = self.target, frozenset(spaces.problems)
        ended = []
        with (
            device_lock(target, self._note if self.wait else None),
            Tuner(target, self.options) as tuner,
            Store.open(db, create=True) as store,
        ):
            self._told(RunStarted(target, spaces.problems, self.options, tuner.phases))
            for event in job.run(spaces, tuner, store):
                if isinstance(event, ProblemEnded):
                    ended.append(event)
                self._told(event)
            if self.pairs:
                self._told(PairsStarted())
                for crossed in Crossing(asked, tuner, store, self.families).events():
                    self._told(crossed)
            rows = store.best(device=target.identity.name, cache=tuner.cache)
        winners = tuple(row for row in rows if row.problem in asked)
        return TuningResult(target, tuple(ended), winners, self.interrupted)

    def _note(self, sentence: str) -> None:
        self._told(Noted(sentence))

    def _told(self, event: Event) -> None:
        self.interrupted += is_interruption(event)
        if self.tell is not None:
            self.tell(event)


def _seconds(name: str, value: float, most: float) -> float:
    """The value, if it is a time that may be asked for. InputError for another."""
    if not isinstance(value, int | float) or not 0 < value <= most:
        raise InputError(f"{name} = {shown(value)}: expected seconds, above 0 and at most {most:g}")
    return float(value)


def _whole(name: str, value: int, least: int, most: int | None = None) -> int:
    """The value, if it is a number that may be asked for. InputError for another."""
    if not isinstance(value, int) or value < least or (most is not None and value > most):
        raise InputError(
            f"{name} = {shown(value)}: expected a whole number of at least {least}"
            + ("" if most is None else f", at most {most}")
        )
    return value
