"""Tuning: products in, winners out, everything that happens as events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from os import PathLike

from tsm2_tune.api.devices import Devices, names_of, targets_of
from tsm2_tune.api.planning import problems
from tsm2_tune.errors import InputError, shown
from tsm2_tune.generator.guidelines import Thresholds
from tsm2_tune.generator.plain import plain, plain_text, real, truth, whole
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
    STRATEGIES,
    ElementTypes,
    Products,
    Texts,
    cache_named,
    check_callable,
    check_named,
    checked_share,
    computable,
    device_name,
    family_names,
    file_name,
    outcomes_of,
    thresholds_of,
)
from tsm2_tune.tuner.addresses import Address, place_of
from tsm2_tune.tuner.cluster import Cluster
from tsm2_tune.tuner.events import Event, FleetStarted, ProblemEnded
from tsm2_tune.tuner.fleet import Fleet, Members, Merged
from tsm2_tune.tuner.patience import Options
from tsm2_tune.tuner.running import Run, awaited, winners
from tsm2_tune.tuner.stopping import interruptible
from tsm2_tune.tuner.stored import BestRow
from tsm2_tune.tuner.strategies import strategy_named
from tsm2_tune.tuner.target import Target
from tsm2_tune.tuner.trial import Cache


@dataclass(frozen=True, slots=True)
@plain
class TuningResult:
    """The result of a tuning run. All trials are in the database."""

    targets: tuple[Target, ...]  # the devices, which later runs can be given
    ended: tuple[ProblemEnded, ...]  # of each problem and kind of device, in the order in which these ended
    winners: tuple[BestRow, ...]  # of what was asked for, as `best` has them
    interrupted: int  # trials and finals that the machine kept from being judged: the same call tries them again
    left: tuple[Problem, ...] = ()  # of several runs: whose tuning did not end, as runs ended early

    @property
    def target(self) -> Target:
        """The device, or the first of several."""
        return self.targets[0]

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
        return not (self.unsolved or self.interrupted or self.left)


def tune(
    products: Products, *, dtype: ElementTypes = "f32", op: Texts = "nn", layout: str = "column", math: str = "full",
    device: Devices = None, cluster: str | None = None, db: str | PathLike[str] = DEFAULT_DATABASE,
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
      Several, as a list or a text with commas, and "all" GPUs divide the work, each in a process of its own.
    - `cluster`: the address of a Dask scheduler. Each of its workers has a run, on the first GPU that it sees, or
      on its host where it sees none or `device` is "cpu". `db` must be a database that all of them reach.
    - `db`: the database, made where it is missing. The same call again goes on where the last one stopped.
    - `budget`, `max_trials`: seconds and configurations for each problem, those of earlier runs included; None is
      no limit, and so is a budget of 0.
    - `compile_limit`, `run_limit`: seconds for compiling one configuration, and for each stage of its trial.
    - `cache`: what is in a GPU's L2 before a trial is timed: "dirty", "clean" or "warm".
    - `family`, `guidelines`: the kernel families that are searched, and by which thresholds, as of `plan_space`.
    - `retry`: outcomes that are tried again, such as "timed-out"; "failed" is all but ok.
    - `seed`: of inputs and order.
    - `full_trials`: whether on a GPU also what cannot win is verified and timed in full: otherwise a trial ends as
      "behind" if each of its first launches takes over 6 % longer than the fastest right kernel so far.
    - `strategy`: in which order configurations are tried: "model", "exhaustive", "random", or a sampler of Optuna's,
      such as "optuna:tpe".
    - `gain`: a problem's search ends once less than this share of the best time is expected to be gained by going on:
      0.005, or "0.5%"; None is no such end.
    - `vendor`: whether cuBLAS and cuBLASLt are measured beside the fastest kernels.
    - `pairs`: whether kernels are measured at the other tuned shapes too, beyond `budget` and `max_trials`.
    - `wait`: whether to wait for another run on the device.
    - `on_event`: called with each event in this thread, once what it tells is stored. What it raises ends the run.

    Ctrl-C ends it, too, by KeyboardInterrupt: every trial that ended is stored, unless a server is away. InputError,
    before anything is tried, for what cannot be asked for. Raise DeviceError if the device does not answer or is in
    use; ToolMissing without its compiler, or without Optuna where that is asked for. Raise StoreError for a database
    that cannot be used. Raise WorkerError if the device fails.
    """
    name = file_name("db", db)
    check_callable("on_event", on_event)
    names = family_names(family)
    asked = computable(problems(products, dtype=dtype, op=op, layout=layout, math=math), names)
    options = options_of(
        budget=budget, max_trials=max_trials, compile_limit=compile_limit, run_limit=run_limit, cache=cache,
        retry=retry, seed=seed, vendor=vendor, reach=None if full_trials else REACH, strategy=strategy, gain=gain,
    )  # fmt: skip
    run = Run(
        None, asked, dict(thresholds_of(guidelines)), names, options, truth("pairs", pairs), truth("wait", wait), name
    )
    tell = on_event or (lambda _: None)
    if cluster is not None:
        with interruptible():
            there = device if device is None or isinstance(device, Target) else device_name(device)
            return _of_several(Cluster(plain_text("cluster", cluster), run.on(there)), run, tell)
    targets = targets_of(device)
    with interruptible():
        if len(targets) == 1:
            return _of_one(run.on(targets[0]), tell)
        for kind in {target.identity.name: target for target in targets}.values():
            run.on(kind).planned()  # refuses what cannot be tuned before anything starts
        runs = {name: run.on(target, sharing=len(targets)) for name, target in names_of(targets).items()}
        return _of_several(Fleet(runs), run, tell)


def options_of(
    *, budget: float | None, max_trials: int | None, compile_limit: float, run_limit: float, cache: str,
    retry: Texts | None, seed: int, vendor: bool = False, reach: float | None = None, strategy: str = "model",
    gain: float | str | None = None,
) -> Options:  # fmt: skip
    """Return the options of a run, from the arguments of `tune`. Raise InputError for what none can have. Raise
    ToolMissing if Optuna is asked for and not installed.
    """
    check_named("strategy", strategy, STRATEGIES)
    strategy_named(strategy)
    return Options(
        seed=whole("seed", seed, 0, MOST_SEED),
        max_trials=None if max_trials is None else whole("max_trials", max_trials, 1),
        budget_seconds=_seconds("budget", 0.0 if budget is None else budget, MOST_BUDGET_SECONDS, may_be_zero=True)
        or None,
        compile_limit_seconds=_seconds("compile_limit", compile_limit, MOST_LIMIT_SECONDS),
        run_limit_seconds=_seconds("run_limit", run_limit, MOST_LIMIT_SECONDS),
        retried=outcomes_of(retry, FAILURES),
        vendor=vendor,
        reach=reach,
        strategy=plain_text("strategy", strategy),
        gain=checked_share("gain", gain, MOST_GAIN),
        cache=cache_named(cache) or Cache.DIRTY,
    )


def _of_one(run: Run, tell: Callable[[Event], object]) -> TuningResult:
    result = run.result(tell)
    return TuningResult((result.target,), result.ended, result.winners, result.interrupted)


def _of_several(members: Members, run: Run, tell: Callable[[Event], object]) -> TuningResult:
    """Return the joint result of several runs on one database. If none of them succeeds, raise the first one's error.

    Raise StoreError if the server is unreachable now. A run waits for a server that goes away later.
    """
    place = place_of(run.db)
    if isinstance(place, Address):
        from tsm2_tune.tuner.server import schema_at  # a file does not wait for what speaks to one

        schema_at(place)
    merged = Merged(run.problems)
    with members:
        tell(FleetStarted(members.names, run.problems))
        for name, heard in members.events():
            tell(merged.told(name, heard))
    merged.refuse_failure()
    targets = tuple(merged.targets.values())
    by_name = {target.identity.name: target for target in targets}
    with awaited(run.db, create=False) as store:
        won = [winners(store, one, one.cache(run.options.cache), run.problems) for one in by_name.values()]
    left = merged.left
    return TuningResult(targets, merged.ended, tuple(chain.from_iterable(won)), merged.interrupted, left)


def _seconds(name: str, value: float, most: float, *, may_be_zero: bool = False) -> float:
    """Return the time in seconds. Raise InputError for what is none, and outside these bounds."""
    expected = f"seconds, above 0 and at most {most:g}"
    seconds = real(name, value, expected)
    if not (0 < seconds <= most or (may_be_zero and seconds == 0)):
        raise InputError(f"{name} = {shown(value)}: expected {expected}")
    return seconds
