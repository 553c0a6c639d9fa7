"""`tune`: search the fastest kernel of each problem, store all trials, and report progress as events."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike

from tsm2_tune.api.devices import Devices, names_of, targets_of
from tsm2_tune.api.parse import (
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
    positive,
    thresholds_of,
)
from tsm2_tune.api.plan import problems
from tsm2_tune.api.products import Products
from tsm2_tune.generator.scalars import plain_text, truth, whole
from tsm2_tune.generator.space.guidelines import Thresholds
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.results.storage.addresses import Address, place_of
from tsm2_tune.tuner.results.trial import Cache
from tsm2_tune.tuner.runs.events import Event
from tsm2_tune.tuner.runs.fleet import DevicePool, Fleet, LocalDevices
from tsm2_tune.tuner.runs.run import Run, TuningResult
from tsm2_tune.tuner.runs.signals import interruptible
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.strategies import strategy_named


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
    """Search the fastest kernel of each problem, and store all trials. `tsm2-tune --shapes` does this.

    - `products`, `dtype`, `op`, `layout`, `math`: the problems, as for `problems`.
    - `device`: a CUDA ordinal, "cpu" for this host, or the target of an earlier result. None means GPU 0, or this
      host if there is no GPU. Give several devices as a list, as a text with commas, or as "all" for all GPUs. The
      devices share the problems, each in a process of its own.
    - `cluster`: the address of a Dask scheduler. Each Dask worker runs on the first GPU that it has, or on its host
      without a GPU or with `device` "cpu".
    - `db`: the database, created if it is missing. The same call again continues an earlier run.
    - `budget`, `max_trials`: the most seconds, and the most configurations, for each problem. Seconds and
      configurations of earlier runs count, too. None, or a budget of 0, means no limit.
    - `compile_limit`, `run_limit`: the most seconds for compiling one configuration, and for each stage of its trial.
    - `cache`: the state of the GPU's L2 cache before each timed launch: "dirty" (it contains lines to write back),
      "clean" (it contains other data) or "warm" (it contains the operands).
    - `family`, `guidelines`: the kernel families to search, and thresholds of guidelines, as for `plan_space`.
    - `retry`: stored outcomes whose configurations are tried again, such as "timed-out". "failed" means all failures.
    - `seed`: the random seed of input matrices and of the order of trials.
    - `full_trials`: whether to verify and time also configurations that cannot win. If False, a trial on a GPU ends
      with the outcome "behind" if each of its first launches takes over 6 % longer than the fastest correct kernel so
      far.
    - `strategy`: the order in which configurations are tried, by a name of `--strategy` such as "random". The
      samplers of Optuna, such as "optuna:tpe", need Optuna.
    - `gain`: end a problem's search if the expected gain of more trials is less than this share of the best time,
      such as 0.005 or "0.5%". None means no such condition.
    - `vendor`: whether to time cuBLAS and cuBLASLt along with the fastest kernels.
    - `pairs`: whether to time kernels also at the other tuned shapes. `budget` and `max_trials` do not limit these
      measurements.
    - `wait`: whether to wait until another run on the device ends.
    - `on_event`: called in this thread with each event, after its results are stored. An exception from it ends the
      run.

    Ctrl-C raises KeyboardInterrupt. Every completed trial is stored, unless the database server is unreachable.

    Raise InputError for invalid arguments, before the first trial. Raise DeviceError if the device does not respond
    or is in use. Raise ToolMissing if the device's compiler is missing, or Optuna if `strategy` needs it. Raise
    StoreError for a database that cannot be used. Raise WorkerError if the device fails.
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
        asked, dict(thresholds_of(guidelines)), names, options, truth("pairs", pairs), truth("wait", wait), name
    )
    tell = on_event or (lambda _: None)
    if cluster is not None:
        from tsm2_tune.tuner.runs.dask_cluster import Cluster  # slow to import

        with interruptible():
            there = device if device is None or isinstance(device, Target) else device_name(device)
            return _of_several(Cluster(plain_text("cluster", cluster), there), run, tell)
    targets = targets_of(device)
    with interruptible():
        if len(targets) == 1:
            return run.result(targets[0], tell)
        for kind in {target.identity.name: target for target in targets}.values():
            run.spaces(kind)  # raises for problems that cannot be tuned, before anything starts
        return _of_several(LocalDevices(names_of(targets)), run, tell)


def options_of(
    *, budget: float | None, max_trials: int | None, compile_limit: float, run_limit: float, cache: str,
    retry: Texts | None, seed: int, vendor: bool = False, reach: float | None = None, strategy: str = "model",
    gain: float | str | None = None,
) -> Options:  # fmt: skip
    """Return the options of a run. Raise InputError for an invalid argument, ToolMissing if Optuna is missing."""
    check_named("strategy", strategy, STRATEGIES)
    strategy_named(strategy)
    return Options(
        seed=whole("seed", seed, 0, MOST_SEED),
        max_trials=None if max_trials is None else whole("max_trials", max_trials, 1),
        budget_seconds=positive("budget", 0.0 if budget is None else budget, MOST_BUDGET_SECONDS, may_be_zero=True)
        or None,
        compile_limit_seconds=positive("compile_limit", compile_limit, MOST_LIMIT_SECONDS),
        run_limit_seconds=positive("run_limit", run_limit, MOST_LIMIT_SECONDS),
        retried=outcomes_of(retry, FAILURES),
        vendor=vendor,
        reach=reach,
        strategy=plain_text("strategy", strategy),
        gain=checked_share("gain", gain, MOST_GAIN),
        cache=cache_named(cache) or Cache.DIRTY,
    )


def _of_several(devices: DevicePool, run: Run, tell: Callable[[Event], object]) -> TuningResult:
    """Execute a run on several devices, and return its result. Raise an error if all of them fail.

    Raise StoreError if the database server is unreachable at the start. Runs wait for a server that becomes
    unreachable later.
    """
    place = place_of(run.db)
    if isinstance(place, Address):
        from tsm2_tune.tuner.results.storage.postgresql import schema_at  # imported only for a server

        schema_at(place)
    return Fleet(run, devices, tell).result()
