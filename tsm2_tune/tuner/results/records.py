"""Convert rows of the database to dataclass objects. The rows are untrusted, so each value is checked."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from tsm2_tune.errors import InputError, StoreError
from tsm2_tune.generator.config import KernelConfig, Launch, OtherConfig
from tsm2_tune.generator.device.roofline import Ceilings, rate_text
from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.scalars import plain
from tsm2_tune.generator.source import KernelSource, index_defines
from tsm2_tune.generator.space.tunables import declared
from tsm2_tune.tuner.measure.timing import median_interval
from tsm2_tune.tuner.results.columns import record_of
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.trial import (
    Cache,
    DeviceIdentity,
    Measurement,
    Outcome,
    Trial,
    TuningRun,
    in_a_line,
)
from tsm2_tune.tuner.results.validation import MOST_SAMPLES, Row, checked, rates, tunables

SAMPLE = (schema.sample.c.ordinal, schema.sample.c.us)
CONFIGURATIONS_AT_HAND = 4096  # entries of the cache of `config_of`
EQUAL = 1e-9  # relative tolerance for a number that is computed twice
LAUNCH = tuple(field.name for field in fields(Launch) if field.name in schema.source.c)  # columns of `source`
PROBLEM_KEY = tuple(schema.problem.c[name] for name in ("op", "dtype", "m", "n", "k"))


@dataclass(frozen=True, slots=True)
@plain
class BestRow:
    """The fastest kernel (winner) of one problem on one device: a row of the view `best`.

    best_view.py defines the rules for winners.
    """

    device: str  # the driver's name of it
    family: str  # the kernel family, such as stream_a_fma
    op: str  # transposition and layout of the matrices, as in Problem
    dtype: str  # element type, as in Problem
    m: int  # rows of C
    n: int  # columns of C
    k: int  # the inner dimension: length of each dot product
    parameters: str  # the tunables as a JSON object
    median_us: float  # median of the newest measurement
    low_us: float  # lower end of the median's 95 % confidence interval
    high_us: float  # upper end
    floor_us: float  # the least time that the measured ceilings allow
    gbytes_per_s: float  # least bytes over the median
    percent_of_floor: float  # floor_us in percent of the median
    ties: int  # number of configurations within the noise of the fastest, including it
    stale: int  # 1: the family has newer trials of another toolkit, or the kernel's code has changed
    verified_in_full: int  # 1: the kernel was also correct for other shapes, long extents and both index widths
    round: int  # number of the final comparison; 0 if it took part in none
    config: str  # the configuration, such as tsm2:version=v3,threads=128,columns=16,prefetch=4
    registers: int | None  # per thread, as the driver reports them; None if it does not
    smem_bytes: int | None  # shared memory per block
    source_digest: str  # SHA-256 of the kernel's code: its text without comments
    trial_id: int  # the trial's number, for `tsm2-tune show`
    run_id: int  # the run that measured it
    compute_capability: str  # "" for the host
    driver: str  # version of the GPU's driver, or the host's emulation
    toolkit: str  # the compiler and its version
    flags: str  # the compiler's flags, as one line
    version: str  # tsm2-tune's version
    tuned_at: str  # start of the run, ISO 8601, UTC
    cache: str  # the L2 cache state in which it is the fastest
    strategy: str | None  # strategy of the search; None if no search tried it, or if it was not stored
    vendor_us: float | None = None  # time of the vendor's fastest correct routine; if none is correct, of the fastest
    vendor_right: int | None = None  # 1: within the error bounds for our kernels
    vendor_routine: str | None = None  # such as cublasSgemm, or cublasLtMatmul #3
    vendor_version: int | None = None  # version of the routine's library: 130100 is 13.1.0
    x_cublas: float | None = None  # vendor_us / median_us; None if the vendor's result is not correct
    # Time of cuBLAS's gemm, which PyTorch and CuPy use; None if only a faster syrk or gemv was measured.
    cublas_us: float | None = None
    cublas_right: int | None = None  # 1: within the error bounds for our kernels
    cublas_routine: str | None = None  # such as cublasSgemm
    cublas_version: int | None = None  # 130100 is 13.1.0
    clean_us: float | None = None  # median with a clean L2 in the last final comparison; None if not measured
    clean_vendor_us: float | None = None  # the vendor's median in the same final comparison
    clean_x_cublas: float | None = None  # the vendor's median over ours
    dirty_us: float | None = None  # median with a dirty L2 in the last final comparison; None if not measured
    dirty_vendor_us: float | None = None  # the vendor's median in the same final comparison
    dirty_x_cublas: float | None = None  # the vendor's median over ours

    @property
    def problem(self) -> Problem:
        """The problem for which the kernel is fastest."""
        return Problem(self.m, self.n, self.k, self.dtype, self.op)

    @property
    def tunables(self) -> dict[str, Any]:
        """The values of the tunable parameters, by name."""
        return dict(json.loads(self.parameters))

    @property
    def summary(self) -> str:
        """One line of text: the kernel family, its time, its bandwidth, the floor (least possible time) as a
        percentage of its time, and the comparison with cuBLAS.
        """
        state = f" {self.cache}" if self.compute_capability else ""
        beside_vendor = f", {self.x_cublas:.2f} x cuBLAS" if self.x_cublas is not None else ""
        ties = f", ties with {self.ties - 1} more" if self.ties > 1 else ""
        return (
            f"{self.family} {self.median_us:.1f} us{state}, {rate_text(self.gbytes_per_s)},"
            f" {self.percent_of_floor:.0f} % of the floor{beside_vendor}{ties}"
        )

    def __str__(self) -> str:
        return f"{self.problem.text} on {self.device}: {self.summary}"


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


def best_row(row: Row) -> BestRow:
    """Return the checked values of a row of the view `best`. Raise StoreError if a value is invalid."""
    with reading(row["trial_id"]):
        values = checked(row, schema.best.columns)
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
    """Return the kernel family's configuration with the tunables in `values`, the text of a JSON object.

    If this version lacks the family or a tunable, return an OtherConfig with the stored text. Raise InputError or
    ValueError if a tunable is invalid, or if `text` is not the text of these tunables.
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


def is_of_this_version(config: KernelConfig, problem: Problem) -> bool:
    """Return whether this version of the program can generate the configuration's kernel for the problem."""
    family = FAMILIES.get(config.family)
    if family is None or isinstance(config, OtherConfig) or not family.supports(problem):
        return False
    return family.has(config, problem)


def current_kernel(problem: Problem, values: Mapping[str, Any]) -> KernelSource | None:
    """Return the kernel that this program generates for a row of `trial`; None if it is not the stored kernel."""
    config = config_of(values["family"], values["config"], values["tunables"])
    if not is_of_this_version(config, problem):
        return None
    made = render(problem, config)
    launch = {name: values[name] for name in schema.LAUNCH_OF_TRIAL if values[name] is not None}
    is_same = made.digest == values["source_digest"] and all(
        getattr(made.launch, name) == value for name, value in launch.items()
    )
    return made if is_same else None


def is_unchanged(trial: Trial) -> bool:
    """Return whether this program still generates the stored kernel: equal code, entry point, launch and element
    type.

    An unchanged kernel is safe to execute, although the database is untrusted.
    """
    of_this_version = is_of_this_version(trial.config, trial.problem)
    return of_this_version and render(trial.problem, trial.config).is_same_kernel(trial.source)


# The columns of `source`, with the text for its paragraphs.
SOURCE = tuple(schema.paragraph.c.text if one is schema.source.c.paragraphs else one for one in schema.source.columns)


def kernel_source(row: Row, defines: tuple[str, ...] = ()) -> KernelSource:
    """Return the kernel in a row of `source` with its text. Raise ValueError if the stored digest is not the digest
    of the stored text.
    """
    values = checked(row, SOURCE)
    launch = {name: values[name] for name in LAUNCH}
    found = KernelSource(
        kernel=values["kernel"],
        text=values["text"],
        defines=defines,
        launch=Launch(**launch | {"persistent": bool(values["persistent"])}),
        dtype_name=values["dtype"],
    )
    if found.digest != values["digest"]:
        raise ValueError(f"the kernel's text does not match its digest {values['digest']}")
    return found


def tuning_run(row: Row) -> TuningRun:
    """Return the tuning run in a row of `run`."""
    values = checked(row, schema.run.columns)
    gflops = tuple(rates(values["gflops"]).items())
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
        sms=values["sms"],
    )


def measurement(row: Row, samples: Sequence[Row]) -> Measurement:
    """Return the measurement in a row of `measurement`, with its time samples in order.

    Raise ValueError if the samples contradict the stored median or confidence interval.
    """
    return timed(checked(row, schema.measurement.columns), samples)


def timed(values: Mapping[str, Any], samples: Sequence[Row]) -> Measurement:
    """Return the measurement in the checked values of a row of `measurement` or `vendor_measurement`.

    Raise ValueError if the samples contradict the stored median or confidence interval.
    """
    found = [checked(sample, SAMPLE) for sample in samples[: MOST_SAMPLES + 1]]
    stored = (values["median_us"], values["low_us"], values["high_us"])
    if values["summary_of"] is not None:
        if found:
            raise ValueError(f"samples of round {values['round']}, which is of a summary")
        check_interval(values["low_us"], values["median_us"], values["high_us"])
        return Measurement((), *stored, values["sm_clock_mhz"], Cache(values["cache"]), values["summary_of"])
    if not 1 <= len(found) <= MOST_SAMPLES or [one["ordinal"] for one in found] != list(range(len(found))):
        raise ValueError(f"samples of round {values['round']} are missing, or are too many")
    samples_us = tuple(one["us"] for one in found)
    for value, expected in zip(stored, median_interval(samples_us), strict=True):
        if not math.isclose(value, expected, rel_tol=EQUAL):
            raise ValueError(f"round {values['round']}: {value} us where the samples have {expected}")
    slowed = values["slowed"]
    if slowed is not None and slowed > len(samples_us):
        raise ValueError(f"round {values['round']}: {slowed} of {len(samples_us)} samples at a dropped clock")
    return Measurement(samples_us, *stored, values["sm_clock_mhz"], Cache(values["cache"]), slowed=slowed)


def trial(row: Row, *, problem: Row, source: Row, first: Measurement | None) -> Trial:
    """Return the trial in a row of `trial`.

    `problem` and `source` are the rows of these tables to which the row refers. `first` is the trial's first
    measurement.
    """
    values = checked(row, schema.trial.columns)
    asked = _problem(problem)
    return record_of(
        Trial,
        values,
        problem=asked,
        config=config_of(values["family"], values["config"], values["tunables"]),
        source=_as_started(kernel_source(source, defines=index_defines(asked.index_bits)), values),
        measurement=first,
    )


def _as_started(source: KernelSource, values: Mapping[str, Any]) -> KernelSource:
    """Return the kernel with the launch parameters in the row of `trial`.

    A parameter that is NULL in the row keeps the kernel's own value.
    """
    own = {name: values[name] for name in schema.LAUNCH_OF_TRIAL if values[name] is not None}
    return replace(source, launch=replace(source.launch, **own))


def is_verified(trial: Trial) -> bool:
    """Return whether the trial has a correct result and a measured time. A winner must have both."""
    right = trial.verdict is not None and trial.verdict.correct
    return trial.outcome is Outcome.OK and right and trial.measurement is not None


def _problem(row: Row) -> Problem:
    """Return the problem in a row of `problem`. Raise InputError or ValueError if the row is invalid."""
    values = checked(row, schema.problem.columns)
    problem = Problem(values["m"], values["n"], values["k"], values["dtype"], values["op"])
    if (values["flops"], values["least_bytes"]) != (problem.flops, problem.least_bytes):
        raise ValueError(f"{problem.text} has other operations or bytes")
    return problem
