"""What the database gives back: typed records, made from rows that are checked as data from outside."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Float, Integer, RowMapping

from tsm2_tune.errors import InputError, StoreError
from tsm2_tune.generator.config import KernelConfig, Launch, OtherConfig
from tsm2_tune.generator.families import FAMILIES, family_named
from tsm2_tune.generator.problem import INT32_MAX, Problem
from tsm2_tune.generator.render import KernelSource, index_defines
from tsm2_tune.generator.roofline import Ceilings
from tsm2_tune.tuner import schema
from tsm2_tune.tuner.trial import (
    DeviceIdentity,
    LoadedResources,
    Measurement,
    Outcome,
    TimeLimits,
    Trial,
    TuningRun,
    Verdict,
)

Row = RowMapping | Mapping[str, Any]
MEDIAN_US = Column("median_us", Float)  # NULL where the trial was not measured
NEWEST = (Column("newest_us", Float), Column("newest_high_us", Float), Column("is_new", Integer))  # the same
LAUNCH_BOUNDS = {  # of each field of Launch: the least and the most that a device could start
    "threads": (1, 1024),  # per block, on every CUDA device
    "rows_per_block": (1, INT32_MAX),
    "smem_bytes": (0, 232448),  # per block: 227 KiB, the most of any CUDA device
    "columns_per_block": (0, INT32_MAX),
    "splits": (1, 65536),
    "flat_splits": (1, INT32_MAX),
    "persistent": (0, 1),
}
PROBLEM_KEY = tuple(schema.problem.c[name] for name in ("op", "dtype", "m", "n", "k"))


@dataclass(frozen=True, slots=True)
class BestRow:
    """One row of the view `best`: the winner of one problem on one device, by the rules of schema.BEST_VIEW."""

    device: str
    family: str
    op: str
    dtype: str
    m: int
    n: int
    k: int
    parameters: str  # the tunables as a JSON object
    median_us: float
    low_us: float
    high_us: float
    floor_us: float
    gbytes_per_s: float  # least bytes over the median
    percent_of_floor: float  # 100 is the least time that the device's measured ceilings allow
    ties: int  # configurations within the noise, the winner included
    stale: int  # 1: made by a template, Python or toolkit that the family has since left behind on this device
    round: int  # of finals; 0 where it was measured only once
    config: str
    registers: int | None
    smem_bytes: int | None
    source_digest: str
    trial_id: int
    run_id: int  # the run that measured it
    compute_capability: str  # "" for the host
    driver: str
    toolkit: str
    flags: str
    version: str  # of tsm2-tune
    tuned_at: str  # when that run started, ISO 8601, UTC

    @property
    def problem(self) -> Problem:
        return Problem(self.m, self.n, self.k, self.dtype, self.op)

    @property
    def tunables(self) -> dict[str, Any]:
        return dict(json.loads(self.parameters))


@dataclass(frozen=True, slots=True)
class StoredTrial:
    """What the tuning loop needs of a trial that is already stored."""

    id: int
    config: KernelConfig
    outcome: Outcome
    median_us: float | None  # of its first measurement
    newest_us: float | None  # the median of its newest measurement, and the end of its interval
    newest_high_us: float | None
    is_new: bool  # first measured after the last final of those that are given together
    total_seconds: float
    limits: TimeLimits | None  # None where they were not stored
    source_digest: str
    version: str  # of the tsm2-tune that tried it


@dataclass(frozen=True, slots=True)
class CurrentTrial:
    """What an audit needs of a trial whose basis is its family's newest for the device and problem."""

    id: int
    problem: Problem
    config: KernelConfig
    compiled: LoadedResources | None  # None where it was not loaded
    spill_bytes: int | None
    median_us: float | None  # of its newest measurement; None where it gave no right result, or was not measured


@dataclass(frozen=True, slots=True)
class TrialLine:
    """One line of the list of all trials: texts as they are stored, so that any family's can be listed."""

    id: int
    device: str
    problem: str
    config: str
    outcome: str
    median_us: float | None  # of its first measurement
    detail: str


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """Everything that is known of one trial."""

    id: int
    run: TuningRun
    trial: Trial  # its `measurement` is the first, round 0
    rounds: tuple[tuple[int, Measurement], ...]  # every measurement with its round, raw samples included
    ended_at: str  # ISO 8601, UTC
    current: bool  # it still competes: its basis is its family's newest for this device and problem


@contextmanager
def reading(number: int, kind: str = "trial") -> Iterator[None]:
    """Whatever in this trial's or run's rows is not as it was stored becomes a StoreError that names it."""
    try:
        yield
    except (InputError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise StoreError(
            f"{kind} {number} is not as this tsm2-tune stores it ({error}):"
            " another version may have stored it; else restore a copy of the database, or tune into another with --db"
        ) from error


def checked(row: Row, columns: Iterable[Column[Any]]) -> dict[str, Any]:
    """The row's values of these columns; TypeError where one is not of its column's type.

    SQLite stores any type in any column, so the file alone promises nothing.
    """
    values = {}
    for column in columns:
        value, kind = row[column.name], column.type.python_type
        allowed = (float, int) if kind is float else (kind,)
        if not isinstance(value, allowed) and not (value is None and column.nullable):
            raise TypeError(f"{column.name} = {value!r} is no {kind.__name__}")
        values[column.name] = value
    return values


def best_row(row: Row) -> BestRow:
    """The winner in a row of the view."""
    with reading(row["trial_id"]):
        values = checked(row, schema.best.columns)
        best = BestRow(**values)
        json_object(best.parameters)
        Problem(best.m, best.n, best.k, best.dtype, best.op)  # InputError where it cannot be
        if not all(math.isfinite(value) for value in values.values() if isinstance(value, float)):
            raise ValueError("a time or a rate is not finite")
        _check_median(best.median_us)
        return best


def json_object(text: str) -> dict[str, Any]:
    """The JSON object that `text` spells; ValueError where it is anything else."""
    values = json.loads(text, parse_constant=_finite, parse_float=_finite)
    if not isinstance(values, dict):
        raise ValueError(f"{text!r} is no JSON object")
    return values


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no finite number")
    return value


def _check_median(median_us: float | None) -> None:
    """ValueError where a measured time is none."""
    if median_us is not None and not (math.isfinite(median_us) and median_us > 0):
        raise ValueError(f"median_us = {median_us} is no time")


def _launch(values: Mapping[str, Any]) -> Launch:
    """The launch in a row of `source`; ValueError where no device could start it."""
    for name, (least, most) in LAUNCH_BOUNDS.items():
        if not least <= values[name] <= most:
            raise ValueError(f"{name} = {values[name]} is not between {least} and {most}")
    return Launch(**{**{name: values[name] for name in LAUNCH_BOUNDS}, "persistent": bool(values["persistent"])})


def kernel_config(row: Row) -> KernelConfig:
    """The configuration of a row of `trial`; InputError or ValueError where its tunables are not its family's."""
    config: KernelConfig = family_named(row["family"]).config_type.from_tunables(json_object(row["tunables"]))
    if config.text != row["config"]:
        raise ValueError(f"tunables of {config.text}, but config {row['config']!r}")
    return config


def shown_config(row: Row) -> KernelConfig:
    """The same, or what another version has stored whose family or tunables this one lacks."""
    family, tunables = FAMILIES.get(row["family"]), json_object(row["tunables"])
    if family is None or tunables.keys() != family.config_type.letters.keys():
        return OtherConfig(row["family"], row["config"], row["tunables"])
    return kernel_config(row)


def kernel_source(row: Row, defines: tuple[str, ...] = ()) -> KernelSource:
    """The kernel in a row of `source`; ValueError where the text is not the one that its digest was made of."""
    values = checked(row, schema.source.columns)
    if hashlib.sha256(values["text"].encode(errors="surrogatepass")).hexdigest() != values["digest"]:
        raise ValueError(f"the kernel's text does not match its digest {values['digest']}")
    if not values["kernel"].isidentifier() or not values["kernel"].isascii():
        raise ValueError(f"kernel {values['kernel']!r} is no name")
    return KernelSource(
        kernel=values["kernel"],
        text=values["text"],
        defines=defines,
        launch=_launch(values),
        dtype_name=values["dtype"],
    )


def tuning_run(row: Row) -> TuningRun:
    """The run in a row of `run`."""
    values = checked(row, schema.run.columns)
    gflops = tuple((name, float(rate)) for name, rate in json_object(values["gflops"]).items())
    return TuningRun(
        identity=DeviceIdentity(
            name=values["device_name"],
            uuid=values["device_uuid"],
            compute_capability=values["compute_capability"],
            driver=values["driver"],
            toolkit=values["toolkit"],
            flags=values["flags"],
        ),
        ceilings=Ceilings(values["read_gbytes_per_s"], values["copy_gbytes_per_s"], gflops),
        seed=values["seed"],
        version=values["version"],
        started_at=values["started_at"],
    )


def run_with_rates(row: Row) -> TuningRun:
    """The run in a row of `run`, whose rates something is to be divided by."""
    with reading(row["id"], "run"):
        run = tuning_run(row)
        rates = (run.ceilings.read_gbytes_per_s, run.ceilings.copy_gbytes_per_s, *dict(run.ceilings.gflops).values())
        if not all(math.isfinite(rate) and rate > 0 for rate in rates):
            raise ValueError("a rate is not above 0")
        return run


def measurement(row: Row, samples_us: tuple[float, ...]) -> Measurement:
    """The measurement in a row of `measurement`, with its samples."""
    values = checked(row, schema.measurement.columns)
    _check_median(values["median_us"])
    return Measurement(samples_us, values["median_us"], values["low_us"], values["high_us"], values["sm_clock_mhz"])


def trial(row: Row, *, problem: Row, source: Row, first: Measurement | None) -> Trial:
    """The trial in a row of `trial`, with its rows of `problem` and `source` and its first measurement."""
    values = checked(row, schema.trial.columns)
    asked = checked(problem, schema.problem.columns)
    shape = Problem(asked["m"], asked["n"], asked["k"], asked["dtype"], asked["op"])
    verdict = None
    if values["verdict_correct"] is not None:
        verdict = Verdict(bool(values["verdict_correct"]), values["verdict_worst_ratio"], values["verdict_detail"])
    return Trial(
        problem=shape,
        config=shown_config(values),
        basis=values["basis"],
        source=kernel_source(source, defines=index_defines(shape.index_bits)),
        outcome=Outcome(values["outcome"]),
        detail=values["detail"],
        resources=_resources(values),
        spill_bytes=values["spill_bytes"],
        guideline_broken=values["guideline_broken"],
        verdict=verdict,
        measurement=first,
        floor_us=values["floor_us"],
        compile_seconds=values["compile_seconds"],
        total_seconds=values["total_seconds"],
        limits=limits(values),
    )


def _resources(values: Mapping[str, Any]) -> LoadedResources | None:
    """What the driver loaded, by the values of a row of `trial`."""
    if values["registers"] is None:
        return None
    return LoadedResources(
        **{name: values[name] for name in ("registers", "local_bytes", "smem_bytes", "blocks_per_sm")}
    )


def limits(values: Mapping[str, Any]) -> TimeLimits | None:
    """Under which a trial was tried, by the values of a row of `trial`."""
    found = (values["compile_limit_seconds"], values["run_limit_seconds"])
    return None if None in found else TimeLimits(*found)


def current_trial(row: Row) -> CurrentTrial:
    """The trial in a row of `trial` that also has its problem, and the `median_us` of its newest measurement.

    Its configuration may be one that another version has stored.
    """
    with reading(row["id"]):
        values = checked(row, [*schema.trial.columns, *PROBLEM_KEY, MEDIAN_US])
        _check_median(values["median_us"])
        is_right = Outcome(values["outcome"]) is Outcome.OK and values["verdict_correct"] == 1
        return CurrentTrial(
            id=values["id"],
            problem=Problem(values["m"], values["n"], values["k"], values["dtype"], values["op"]),
            config=shown_config(values),
            compiled=_resources(values),
            spill_bytes=values["spill_bytes"],
            median_us=values["median_us"] if is_right else None,
        )


def trial_line(row: Row) -> TrialLine:
    """The line of a row of `trial` that also has its problem, and the `median_us` of its first measurement."""
    with reading(row["id"]):
        values = checked(row, [*schema.trial.columns, *PROBLEM_KEY, MEDIAN_US])
        problem = Problem(values["m"], values["n"], values["k"], values["dtype"], values["op"])
        return TrialLine(
            id=values["id"],
            device=values["device_name"],
            problem=problem.text,
            config=values["config"],
            outcome=values["outcome"],
            median_us=values["median_us"],
            detail=values["detail"],
        )


def stored_trial(row: Row) -> StoredTrial:
    """The trial in a row of `trial` that also has its run's `version`, its first `median_us`, and NEWEST."""
    with reading(row["id"]):
        values = checked(row, [*schema.trial.columns, MEDIAN_US, *NEWEST, schema.run.c.version])
        _check_median(values["median_us"])
        _check_median(values["newest_us"])
        return StoredTrial(
            id=values["id"],
            config=kernel_config(values),
            outcome=Outcome(values["outcome"]),
            median_us=values["median_us"],
            newest_us=values["newest_us"],
            newest_high_us=values["newest_high_us"],
            is_new=bool(values["is_new"]),
            total_seconds=values["total_seconds"],
            limits=limits(values),
            source_digest=values["source_digest"],
            version=values["version"],
        )
