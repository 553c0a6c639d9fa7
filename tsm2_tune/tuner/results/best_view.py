"""The SQL view `best`, which contains the fastest kernel of each problem on each device."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any

from sqlalchemy import Column, Integer, MetaData, Subquery, Table, Text, TextClause, bindparam, text

from tsm2_tune.generator.device.roofline import rate_text
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.scalars import plain
from tsm2_tune.tuner.results import domains
from tsm2_tune.tuner.results.domains import domain_of
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.trial import PREFERRED, Cache


@dataclass(frozen=True, slots=True)
@plain
class BestRow:
    """The fastest kernel (winner) of one problem on one device: a row of the view `best`.

    The fields with a default are no columns of the view. The store adds them.
    """

    device: str  # the driver's name of it
    family: str  # the kernel family, such as stream_a_fma
    op: str  # transposition and layout of the matrices, as in Problem
    dtype: str  # element type, as in Problem
    m: int  # rows of C
    n: int  # columns of C
    k: int  # the inner dimension: length of each dot product
    batch: int  # number of products; 1: a single product, and no batch
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
        return Problem(self.m, self.n, self.k, self.dtype, self.op, self.batch)

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


# The columns that the view selects, by name. The view computes the columns in _COMPUTED.
_TRIAL, _RUN, _MEASURED = schema.trial.c, schema.run.c, schema.measurement.c
_SELECTED: dict[str, Column[Any]] = {
    **{one.name: one for table in (_MEASURED, _RUN, schema.problem.c, _TRIAL) for one in table},
    "device": _TRIAL.device_name,
    "parameters": _TRIAL.tunables,
    "floor_us": _MEASURED.floor_us,
    "trial_id": _TRIAL.id,
    "run_id": _MEASURED.run_id,
    "tuned_at": _RUN.started_at,
}
_COMPUTED = {
    **dict.fromkeys(("gbytes_per_s", "percent_of_floor"), domains.QUANTITY),
    "ties": domains.COUNT,
    **dict.fromkeys(("stale", "verified_in_full"), domains.FLAG),
}


def _column(name: str) -> Column[Any]:
    if name in _COMPUTED:
        return schema.column(name, _COMPUTED[name])
    return schema.column(name, domain_of(_SELECTED[name]), nullable=bool(_SELECTED[name].nullable))


# The view as a table: the fields of BestRow without a default, and `is_between`. It has its own MetaData, since it
# must not be created as a table.
best = Table(
    "best",
    MetaData(),
    *(_column(one.name) for one in fields(BestRow) if one.default is MISSING),
    _column("is_between"),
)

# The winners: one row for each device name, problem and L2 cache state (column `cache`).
#
# known      trials that are not superseded and have the family's newest basis for the device, problem and state. The
#            newest basis is the basis of the trial with the greatest stamp (logical_clock.py). If the compiler or a
#            kernel's code changes, older trials stay in the table but can no longer win.
# contender  a known trial with a correct result, with each of its measurements in its L2 cache state.
# racing     the newest measurement of each contender: from its last final comparison, or else its first. The
#            leader has the least median. The median of a trial that took part in no final counts 1.05 times, because
#            times of a search are some percent shorter than those of a final.
# placed     the ties: trials measured in the leader's round whose confidence interval overlaps the leader's
#            interval, and whose median is at most 5 % over the leader's. The winner is the first of them by
#            registers, then by shared memory, then by the configuration's text.
#
# `is_between` is 1 if the problem was not tuned: no search made any of its trials in the state. Kernels of tuned
# shapes were timed there. The problem's shape lies between tuned shapes, or an export to a text did not select it.
#
# `stale` is 1 if the winner's basis is not the family's newest basis on the device in the state, over all problems.
#
# SQLite and PostgreSQL give the same rows: text is ordered by its bytes, and NULL comes first.
#
# Window functions read every trial of every problem. A query for one problem, or for one type and op, has its
# condition inside the view (`among`), since SQLite does not push a condition on the rows down through windows. The
# condition names the devices, since the index of trials by device and problem begins with the device.
_WINNERS = """
WITH known AS (
  SELECT trial.*,
         first_value(basis) OVER
         (PARTITION BY device_name, problem_id, family, cache ORDER BY stamp DESC, basis DESC) AS current_basis,
         min(is_between) OVER (PARTITION BY device_name, problem_id, cache) AS untuned
  FROM trial WHERE {among}
), contender AS (
  SELECT known.*, measurement.run_id AS timed_in, measurement.floor_us AS least_us, round, median_us, low_us, high_us,
         max(round) OVER (PARTITION BY known.id) AS last_round
  FROM known JOIN measurement ON measurement.trial_id = known.id AND measurement.cache = known.cache
  WHERE basis = current_basis AND outcome = 'ok' AND verdict_correct = 1
), racing AS (
  SELECT *, first_value(high_us) OVER in_order AS leader_high_us, first_value(median_us) OVER in_order AS leader_us,
         first_value(round) OVER in_order AS leader_round
  FROM contender
  WHERE round = last_round
  WINDOW in_order AS (
    PARTITION BY device_name, problem_id, cache
    ORDER BY CASE round WHEN 0 THEN 1.05 * median_us ELSE median_us END, high_us, config
  )
), placed AS (
  SELECT *, count(*) OVER (PARTITION BY device_name, problem_id, cache) AS ties,
         row_number() OVER
         (PARTITION BY device_name, problem_id, cache ORDER BY registers NULLS FIRST, smem_bytes NULLS FIRST, config)
         AS place
  FROM racing
  WHERE low_us <= leader_high_us AND median_us <= 1.05 * leader_us AND round = leader_round
)
SELECT placed.device_name AS device, placed.family, op, dtype, m, n, k, batch, tunables AS parameters,
       median_us, low_us, high_us, least_us AS floor_us,
       least_bytes / median_us * 1e-3 AS gbytes_per_s,
       100 * least_us / median_us AS percent_of_floor,
       ties, CAST(placed.basis <> (
         SELECT latest.basis FROM trial AS latest
         WHERE latest.device_name = placed.device_name AND latest.family = placed.family
               AND latest.cache = placed.cache AND latest.superseded = 0
         ORDER BY latest.stamp DESC, latest.basis DESC LIMIT 1
       ) AS INTEGER) AS stale,
       CAST(full_verdict IS NOT NULL AS INTEGER) AS verified_in_full, round,
       config, registers, smem_bytes, source_digest,
       placed.id AS trial_id, timed_in AS run_id,
       compute_capability, driver, toolkit, flags, version, started_at AS tuned_at, placed.cache,
       placed.strategy, untuned AS is_between
FROM placed JOIN problem ON problem.id = placed.problem_id JOIN run ON run.id = timed_in
WHERE {which}
"""
_CURRENT, _FIRST = "superseded = 0", "place = 1"
BEST_VIEW = f"CREATE VIEW best AS{_WINNERS.format(among=_CURRENT, which=_FIRST)}"
_AMONG = "device_name IN :devices AND problem_id {problems}"
_AT = (
    "= (SELECT id FROM problem WHERE op = :op AND dtype = :dtype AND m = :m AND n = :n AND k = :k AND batch = :batch)"
)
_ALIKE = "IN (SELECT id FROM problem WHERE op = :op AND dtype = :dtype AND (batch = 1) = (:batch = 1))"


@dataclass(frozen=True, slots=True)
class Among:
    """A filter for trials by device and problem.

    If `is_alike` is true, problems pass that differ only in shape (m, n, k), and batches that differ in number too.
    """

    devices: tuple[str, ...]
    problem: Problem
    is_alike: bool = False

    @property
    def values(self) -> dict[str, Any]:
        """The bound parameters of the queries of `winners`, `ties` and `condition`."""
        one = self.problem
        shape = {} if self.is_alike else {"m": one.m, "n": one.n, "k": one.k}
        kind = {"op": one.op, "dtype": one.dtype_name, "batch": one.batch}
        return {"devices": list(self.devices), **kind, **shape}

    def contains(self, row: BestRow) -> bool:
        """Return whether a winner passes the filter."""
        one = self.problem
        is_like = (row.op, row.dtype, row.batch > 1) == (one.op, one.dtype_name, one.is_batched)
        return is_like and row.device in self.devices and (self.is_alike or row.problem == one)


def condition(is_alike: bool) -> TextClause:
    """Return the condition that a row of `trial` passes an `Among` filter, whose `values` are the parameters."""
    return _bound(_among(is_alike), is_alike)


def winners(is_alike: bool | None) -> Subquery:
    """Return a subquery with the rows of the view `best`: those that pass an `Among` filter, or all if it is None.

    It repeats the view's SQL, since another program may have altered the view in the file.
    """
    return _selected(is_alike, _FIRST)


def ties(is_alike: bool) -> Subquery:
    """Return a subquery with each problem's fastest kernel and the kernels within the measurement noise of it."""
    return _selected(is_alike, "place >= 1")


def of_trial() -> Subquery:
    """Return a subquery with the row of the trial `trial_id`, which has a right result, in the format of the view."""
    query = text(_WINNERS.format(among="id = :trial_id", which=_FIRST))
    return _with_columns(query.bindparams(bindparam("trial_id", type_=Integer())))


def _among(is_alike: bool) -> str:
    return _AMONG.format(problems=_ALIKE if is_alike else _AT)


def _bound(query: str, is_alike: bool) -> TextClause:
    extents = () if is_alike else ("m", "n", "k")
    types: dict[str, Any] = {"op": Text(), "dtype": Text(), **dict.fromkeys((*extents, "batch"), Integer())}
    given = (bindparam(name, type_=of) for name, of in types.items())
    return text(query).bindparams(bindparam("devices", type_=Text(), expanding=True), *given)


def _selected(is_alike: bool | None, which: str) -> Subquery:
    if is_alike is None:
        return _with_columns(text(_WINNERS.format(among=_CURRENT, which=which)))
    among = f"{_CURRENT} AND {_among(is_alike)}"
    return _with_columns(_bound(_WINNERS.format(among=among, which=which), is_alike))


def _with_columns(query: TextClause) -> Subquery:
    return query.columns(*(Column(one.name, one.type) for one in best.columns)).subquery(best.name)


def preferred(found: Sequence[BestRow]) -> list[BestRow]:
    """Return one winner for each device and problem: in the L2 cache state that comes first in PREFERRED."""
    by_place: dict[tuple[str, Problem], BestRow] = {}
    for row in sorted(found, key=lambda row: PREFERRED.index(Cache(row.cache))):
        by_place.setdefault((row.device, row.problem), row)
    return [row for row in found if by_place[row.device, row.problem] is row]
