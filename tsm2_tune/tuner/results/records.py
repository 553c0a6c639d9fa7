"""Convert rows of the database to dataclass objects. The rows are untrusted, so each value is checked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from sqlalchemy import Column

from tsm2_tune.errors import InputError, StoreError
from tsm2_tune.generator.config import KernelConfig, Launch, OtherConfig
from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.source import KernelSource, index_defines
from tsm2_tune.generator.space.tunables import declared
from tsm2_tune.tuner.measure.timing import median_interval
from tsm2_tune.tuner.results import best_view
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.columns import record_of, values_of
from tsm2_tune.tuner.results.domains import MOST_SAMPLES, Row, checked, tunables
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.trial import Measurement, Outcome, Trial, TuningRun, in_a_line

SAMPLE = (schema.sample.c.ordinal, schema.sample.c.us)
CONFIGURATIONS_AT_HAND = 4096  # entries of the cache of `config_of`
EQUAL = 1e-9  # relative tolerance for a number that is computed twice
LAUNCH = tuple(field.name for field in fields(Launch) if field.name in schema.source.c)  # columns of `source`
PROBLEM_KEY = tuple(schema.problem.c[name] for name in ("op", "dtype", "m", "n", "k", "batch"))


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """A trial with its run and all its measurements."""

    id: int
    run: TuningRun
    trial: Trial  # its `measurement` is the first, round 0
    rounds: tuple[tuple[int, Measurement], ...]  # every measurement with its round, raw samples included
    ended_at: str  # ISO 8601, UTC
    current: bool  # it can win: unchanged code, and its family's newest compiler and flags
    unchanged: bool  # this program generates the same kernel: code, entry point and launch


@contextmanager
def reading(number: int, kind: str = "trial") -> Iterator[None]:
    """Convert errors in the `with` block to a StoreError that names the row: its kind (trial, run) and id."""
    try:
        yield
    except (InputError, ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise StoreError(
            f"{kind} {number} is not as this tsm2-tune stores it ({in_a_line(str(error))}):"
            " another version may have stored it; else restore a copy of the database, or tune into another with --db"
        ) from error


def value_of(row: Row, column: Column[Any], kind: str = "trial") -> Any:
    """Return the value of one column in a row that has an `id` too. Raise StoreError if it is invalid."""
    with reading(row["id"], kind):
        return checked(row, [column])[column.name]


def problem_of(row: Row) -> Problem:
    """Return the problem in a row that has the columns PROBLEM_KEY and an `id`. Raise StoreError if it is invalid."""
    with reading(row["id"]):
        return record_of(Problem, checked(row, PROBLEM_KEY))


def best_row(row: Row) -> BestRow:
    """Return the checked values of a row of the view `best`. Raise StoreError if a value is invalid."""
    with reading(row["trial_id"]):
        values = checked(row, best_view.best.columns)
        del values["is_between"]  # only used to choose rows
        best = BestRow(**values)
        config_of(best.family, best.config, best.parameters)
        check_interval(best.low_us, best.median_us, best.high_us)
        computed = (best.problem.least_bytes / best.median_us * 1e-3, 100 * best.floor_us / best.median_us)
        for value, expected in zip((best.gbytes_per_s, best.percent_of_floor), computed, strict=True):
            if not math.isclose(value, expected, rel_tol=EQUAL):
                raise ValueError(f"{value} where {expected} is computed")
        return best


def check_interval(low_us: float, median_us: float, high_us: float) -> None:
    """Raise ValueError if the median is not between the bounds of its confidence interval."""
    if not low_us <= median_us <= high_us:
        raise ValueError(f"median_us = {median_us} is not between {low_us} and {high_us}")


@lru_cache(maxsize=CONFIGURATIONS_AT_HAND)
def config_of(family_name: str, text: str, values: str) -> KernelConfig:
    """Return the family's configuration with the tunables in `values`, the text of a JSON object.

    If this version lacks the family or a tunable, return an OtherConfig. Raise InputError or ValueError if a tunable
    is invalid, or if `text` is not the text of these tunables.
    """
    found, family = tunables(values), FAMILIES.get(family_name)
    if family is None:
        return OtherConfig(family_name, text, values)
    if found.keys() != {one.name for one in declared(family.config_type)}:
        return OtherConfig(family_name, text, values)
    config: KernelConfig = family.config_type.from_tunables(found)
    if config.text != text:
        raise ValueError(f"tunables of {config.text}, but config {text!r}")
    return config


def config_in(values: Mapping[str, Any]) -> KernelConfig:
    """Return the configuration in checked values of a row of `trial`. Raise the errors of `config_of`."""
    return config_of(values["family"], values["config"], values["tunables"])


def is_of_this_version(config: KernelConfig, problem: Problem) -> bool:
    """Return whether this version of the program can generate the configuration's kernel for the problem."""
    family = FAMILIES.get(config.family)
    if family is None or isinstance(config, OtherConfig) or not family.supports(problem):
        return False
    return family.has(config, problem)


def current_kernel(
    problem: Problem, values: Mapping[str, Any], of_source: Mapping[str, Any] = MappingProxyType({})
) -> KernelSource | None:
    """Return the kernel that this program generates for a row of `trial`; None if it is not the stored kernel.

    `of_source` has the launch of its source, which the trial's row may change.
    """
    config = config_in(values)
    if not is_of_this_version(config, problem):
        return None
    made = render(problem, config)
    own = {name: values[name] for name in schema.LAUNCH_OF_TRIAL if values[name] is not None}
    is_same_launch = all(getattr(made.launch, name) == value for name, value in {**of_source, **own}.items())
    return made if made.digest == values["source_digest"] and is_same_launch else None


def is_unchanged(trial: Trial) -> bool:
    """Return whether this program makes the stored kernel: it is then safe to run, though the database is not."""
    of_this_version = is_of_this_version(trial.config, trial.problem)
    return of_this_version and render(trial.problem, trial.config).is_same_kernel(trial.source)


# The columns of `source`, with the text for its paragraphs.
SOURCE = tuple(schema.paragraph.c.text if one is schema.source.c.paragraphs else one for one in schema.source.columns)


def kernel_source(row: Row) -> KernelSource:
    """Return the kernel in a row of `source` with its text, without definitions. Raise ValueError if the stored
    digest is not the digest of the stored text.
    """
    values = checked(row, SOURCE)
    launch = record_of(Launch, values)
    found = KernelSource(values["kernel"], values["text"], (), launch, values["dtype"])
    if found.digest != values["digest"]:
        raise ValueError(f"the kernel's text does not match its digest {values['digest']}")
    return found


def source_values(source: KernelSource) -> dict[str, Any]:
    """Return the values of a row of `source`, with the text for its paragraphs."""
    own = {"digest": source.digest, "kernel": source.kernel, "text": source.text, "dtype": source.dtype_name}
    return own | values_of(source.launch, schema.source)


def tuning_run(row: Row) -> TuningRun:
    """Return the tuning run in a row of `run`."""
    return record_of(TuningRun, checked(row, schema.run.columns))


def measurement(row: Row, samples: Sequence[Row]) -> Measurement:
    """Return the measurement in a row of `measurement`, with its samples. Raise ValueError if they contradict it."""
    return timed(checked(row, schema.measurement.columns), samples)


def timed(values: Mapping[str, Any], samples: Sequence[Row]) -> Measurement:
    """Return the measurement in checked values of a row. Raise ValueError if its samples contradict it."""
    found = [checked(sample, SAMPLE) for sample in samples[: MOST_SAMPLES + 1]]
    if values["summary_of"] is not None:
        if found:
            raise ValueError(f"samples of round {values['round']}, which is of a summary")
        check_interval(values["low_us"], values["median_us"], values["high_us"])
        return record_of(Measurement, values, samples_us=(), slowed=None)
    if not 1 <= len(found) <= MOST_SAMPLES or [one["ordinal"] for one in found] != list(range(len(found))):
        raise ValueError(f"samples of round {values['round']} are missing, or are too many")
    samples_us = tuple(one["us"] for one in found)
    for name, expected in zip(("median_us", "low_us", "high_us"), median_interval(samples_us), strict=True):
        if not math.isclose(values[name], expected, rel_tol=EQUAL):
            raise ValueError(f"round {values['round']}: {values[name]} us where the samples have {expected}")
    slowed = values["slowed"]
    if slowed is not None and slowed > len(samples_us):
        raise ValueError(f"round {values['round']}: {slowed} of {len(samples_us)} samples at a dropped clock")
    return record_of(Measurement, values, samples_us=samples_us)


def trial(values: Mapping[str, Any], *, problem: Problem, source: KernelSource, first: Measurement | None) -> Trial:
    """Return the trial with checked values of a row, with its problem, its kernel and its first measurement."""
    own = {name: values[name] for name in schema.LAUNCH_OF_TRIAL if values[name] is not None}  # else the kernel's
    launch = replace(source.launch, **own) if own else source.launch
    return record_of(
        Trial,
        values,
        problem=problem,
        config=config_in(values),
        source=replace(source, defines=index_defines(problem.index_bits), launch=launch),
        measurement=first,
    )


def trial_values(trial: Trial) -> dict[str, Any]:
    """Return the values of a row of `trial`, by column, except the columns for its run, device and problem."""
    return {
        **values_of(trial, schema.trial),
        **kernel_values(trial.config, trial.source),
        "superseded": 0,
        "search_ended": None,
        "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def kernel_values(config: KernelConfig, source: KernelSource) -> dict[str, Any]:
    """Return the values of the columns of `trial` for a configuration and its kernel."""
    return {
        "family": config.family,
        "config": config.text,
        "tunables": config.json,
        "source_digest": source.digest,
        **{name: getattr(source.launch, name) for name in schema.LAUNCH_OF_TRIAL},
    }


def is_verified(trial: Trial) -> bool:
    """Return whether the trial has a correct result and a measured time. A winner must have both."""
    right = trial.verdict is not None and trial.verdict.correct
    return trial.outcome is Outcome.OK and right and trial.measurement is not None


def problem_key(problem: Problem) -> dict[str, Any]:
    """Return the values of the columns PROBLEM_KEY, which identify a row of `problem`."""
    extents = {"m": problem.m, "n": problem.n, "k": problem.k, "batch": problem.batch}
    return {"op": problem.op, "dtype": problem.dtype_name, **extents}


def problem_values(problem: Problem) -> dict[str, Any]:
    """Return the values of a row of `problem`."""
    return problem_key(problem) | {"flops": problem.flops, "least_bytes": problem.least_bytes}


def stored_problem(row: Row) -> Problem:
    """Return the problem in a row of `problem`. Raise InputError or ValueError if the row is invalid."""
    values = checked(row, schema.problem.columns)
    problem = record_of(Problem, values)
    if problem_values(problem).items() - values.items():
        raise ValueError(f"{problem.text} has other operations or bytes")
    return problem
