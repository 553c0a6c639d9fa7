"""Tests of the vendor's times, by fabricated ones: which finals measure them, what is stored and shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.databases import C128, C256, beside_vendor, sources_of
from tests.fabricated import (
    BASIS,
    GPU,
    PROBLEM,
    configuration,
    exported,
    final,
    imported,
    plain_sql,
    trial,
    tuning_run,
    vendor_measurement,
)
from tests.simulated import RUN, TARGET, A, B, Replay, tried
from tsm2_tune.console.search_progress import SearchProgress
from tsm2_tune.console.tables import console
from tsm2_tune.generator.families.published import Tsm2Config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.space import SearchSpace
from tsm2_tune.tuner.export.measured_times import known_of
from tsm2_tune.tuner.measure.vendor.finalists import VendorLibraries
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache, Outcome
from tsm2_tune.tuner.runs.events import FinalFailure, FinalStored, ProblemEvent, ProblemStarted, VendorLeftOut
from tsm2_tune.tuner.runs.problem_queue import tune_problems
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.phase_timer import PhaseTimer
from tsm2_tune.tuner.search.strategies import exhaustive
from tsm2_tune.tuner.worker.protocol import AttemptResult, FinalRound, FinalTimes

pytestmark = pytest.mark.slow

TODAY = ("tsm2", "ism2"), BASIS
VERSIONS = (("cuBLAS", 130100), ("cuBLASLt", 130100))
GEMM, LT = vendor_measurement(480), vendor_measurement(470, "cublasLtMatmul #3")


class WithVendor(Replay):
    """A run with a vendor that takes 90 us, or that fails so."""

    def __init__(
        self,
        store: Store,
        libraries: VendorLibraries = VendorLibraries(VERSIONS),  # noqa: B008
        *,
        driver: str = RUN.identity.driver,
        trouble: str = "",
        crashes: bool = False,
    ) -> None:
        super().__init__(store)
        changes = {"identity": replace(TARGET.identity, driver=driver), "is_host": False}
        self.target = cast(Any, SimpleNamespace(**vars(TARGET) | changes))
        self.options = Options(vendor=True)
        self.asked: list[bool] = []  # whether each final was to measure the vendor
        self._trouble, self._crashes = trouble, crashes
        self._version = dict(libraries.versions).get("cuBLAS", 0)
        self._worker = cast(Any, SimpleNamespace(time_finalists=self._time_finalists, vendor=lambda: libraries))

    def _time_finalists(self, request: FinalRound) -> FinalTimes | AttemptResult:
        self.asked.append(request.vendor)
        if request.vendor and self._crashes:
            return AttemptResult(Outcome.CRASHED, self._trouble)
        found = super()._time_finalists(request)
        if not request.vendor:
            return found
        theirs = () if self._trouble else (vendor_measurement(90, version=self._version),)
        return replace(cast(FinalTimes, found), vendor=theirs, vendor_trouble=self._trouble)


def turn(store: Store, tuner: Replay) -> list[ProblemEvent]:
    space = cast(SearchSpace, SimpleNamespace(problem=PROBLEM, kept=(), families=("tsm2",)))
    return list(tune_problems([space], tuner, store, make_strategy=exhaustive, families=("tsm2",)))


def measured(store: Store, tuner: WithVendor) -> list[bool]:
    turn(store, tuner)
    return tuner.asked


def test_one_finalist_is_measured_beside_the_vendor_once_and_others_again(store: Store) -> None:
    tried(store, {A: 100})
    assert measured(store, WithVendor(store)) == [True]
    (row,) = store.best()
    assert (row.round, row.vendor_us, row.vendor_routine, row.vendor_version) == (1, 90, "cublasSgemm", 130100)
    assert row.x_cublas == pytest.approx(90 / row.median_us)
    assert measured(store, WithVendor(store)) == []
    tried(store, {B: 99})
    assert measured(store, WithVendor(store)) == [True]
    (row,) = store.best()
    assert (row.round, row.vendor_us) == (2, 90)


@pytest.mark.parametrize(
    "changes", [{"driver": "999"}, {"libraries": VendorLibraries((("cuBLAS", 130200), ("cuBLASLt", 130200)))}]
)
def test_another_driver_or_library_is_measured_again(store: Store, changes: Mapping[str, Any]) -> None:
    tried(store, {A: 100, B: 101})
    assert measured(store, WithVendor(store)) == [True]
    assert measured(store, WithVendor(store, **changes)) == [True]
    assert measured(store, WithVendor(store, **changes)) == []


def left_out(events: list[ProblemEvent]) -> list[tuple[Problem | None, str]]:
    return [(event.problem, event.detail) for event in events if isinstance(event, VendorLeftOut)]


@pytest.mark.parametrize("times", [{A: 100}, {A: 100, B: 101}])
def test_without_libraries_or_on_a_host_finals_are_as_without_a_vendor(
    store: Store, times: Mapping[Tsm2Config, float]
) -> None:
    host = WithVendor(store)
    cast(Any, host.target).is_host = True
    assert (host.vendor, left_out(turn(store, host))) == (None, [])
    tried(store, times)
    tuner = WithVendor(store, VendorLibraries((), "libcublas not found: looked everywhere"))
    assert left_out(turn(store, tuner)) == [(None, "libcublas not found: looked everywhere")]
    assert tuner.asked == [False] * (len(times) > 1)


@pytest.mark.parametrize("crashes", [False, True])
def test_a_vendor_that_declines_or_crashes_is_told_and_asked_once(store: Store, crashes: bool) -> None:
    tried(store, {A: 100, B: 101})
    tuner = WithVendor(store, trouble="it failed", crashes=crashes)
    events = turn(store, tuner)
    assert left_out(events) == [(PROBLEM, "it failed")]
    assert tuner.asked == [True, *[False] * crashes]
    assert [type(event) for event in events if isinstance(event, FinalStored | FinalFailure)] == [FinalStored]
    assert [(row.round, row.vendor_us) for row in store.best()] == [(1, None)]


def test_what_blas_lacks_is_told_and_the_libraries_are_not_asked(store: Store) -> None:
    tuner = WithVendor(store)
    assert tuner.vendor is not None
    assert not tuner.vendor.is_wanted(Problem(5, 3, 7, "minplus_f32"))
    assert not tuner.vendor.is_wanted(Problem(5, 3, 7, "c64", "jn"))
    assert tuner.vendor.is_wanted(Problem(5, 3, 7, "c64", "cn"))
    assert list(tuner.vendor.troubles.values()) == [
        "BLAS has no product of minplus_f32",
        "BLAS has no product jn: it conjugates only what it transposes",
    ]


WRONG = vendor_measurement(300, "cublasLtMatmul #3", right=False)
NEWER = vendor_measurement(470, "cublasLtMatmul #3", version=130200)


IN_MODULE = (480, "cublasSgemm", 130100)


@pytest.mark.parametrize(
    ("vendor", "beside", "in_a_module"),
    [
        ((GEMM, LT), (470, 1, 0.94), IN_MODULE),  # cuBLASLt's routine is none of a module
        ((GEMM, NEWER), (470, 1, 0.94), IN_MODULE),
        ((GEMM, WRONG), (480, 1, 0.96), IN_MODULE),
        ((WRONG,), (300, 0, None), (None, None, None)),
        ((LT,), (470, 1, 0.94), (None, None, None)),
        ((vendor_measurement(480, "cublasSgemv"),), (480, 1, 0.96), (None, None, None)),
        ((vendor_measurement(480, "cublasSsyrk"),), (480, 1, 0.96), (None, None, None)),
    ],
)
def test_the_fastest_right_routine_stands_beside_the_winner(
    store: Store, tmp_path: Path, vendor: tuple[Any, ...], beside: tuple[Any, ...], in_a_module: tuple[Any, ...]
) -> None:
    row = beside_vendor(store, *vendor)
    assert (row.vendor_us, row.vendor_right, row.x_cublas) == beside
    (winner,) = imported(exported("module", ((row,), sources_of(store, [row]))), tmp_path).WINNERS
    assert (winner.vendor_us, winner.vendor_routine, winner.vendor_version) == in_a_module


def test_vendor_times_of_tuned_shapes_without_an_exported_winner_count(store: Store) -> None:
    """Such a winner is not verified in full, say. A winner's own shape is not repeated."""
    beside_vendor(store, GEMM)
    elsewhere = replace(PROBLEM, m=2 * PROBLEM.m)
    for config in (C128, C256):
        store.add_trial(RUN, trial(900, config, problem=elsewhere))
    timed = final((C128, 900), (C256, 950), problem=elsewhere, vendor=(vendor_measurement(960.0),))
    store.add_final(RUN, timed, *TODAY)
    here = {row.trial_id: store.trial(row.trial_id) for row in store.best() if row.problem == PROBLEM}
    every = {row.trial_id: store.trial(row.trial_id) for row in store.best()}
    assert len(every) == 2
    assert list(known_of(store, here).vendor.values()) == [((elsewhere.m, elsewhere.n, elsewhere.k, 1, 960.0),)]
    assert known_of(store, every).vendor == {}


def test_only_the_vendor_of_the_winners_run_and_round_counts(store: Store, path: Path) -> None:
    beside_vendor(store, GEMM)
    store.add_trial(tuning_run(seed=2), trial(700, configuration(64)))
    plain_sql(path, "UPDATE vendor_measurement SET run_id = 2")  # a file may have such a row
    assert [row.vendor_us for row in store.best()] == [None]
    plain_sql(path, "UPDATE vendor_measurement SET run_id = 1")
    assert [row.vendor_us for row in store.best()] == [480]
    store.add_final(RUN, final((C128, 510), (C256, 600)), *TODAY)
    assert [(row.round, row.vendor_us) for row in store.best()] == [(2, None)]
    assert store.history(GPU, PROBLEM, *TODAY).vendor_of_last_final() == frozenset()


def test_turn_begins_with_the_vendors_last_right_time(store: Store) -> None:
    def known_us() -> float | None:
        return next(event.vendor_us for event in turn(store, Replay(store)) if isinstance(event, ProblemStarted))

    assert known_us() is None
    beside_vendor(store, GEMM, LT)
    assert known_us() == 470
    both = (vendor_measurement(520), vendor_measurement(515, "cublasLtMatmul #3"))
    store.add_final(RUN, final((C128, 510), vendor=both), *TODAY)
    assert known_us() == 515
    store.add_final(RUN, final((C128, 510), vendor=(vendor_measurement(530),)), *TODAY)
    assert known_us() == 530
    store.add_final(RUN, final((C128, 510), vendor=(vendor_measurement(90, right=False),)), *TODAY)
    store.add_final(RUN, final((C128, 510)), *TODAY)
    assert known_us() == 530
    assert store.vendor_us(GPU, PROBLEM, Cache.DIRTY) is None
    assert store.vendor_us("another", PROBLEM, Cache.CLEAN) is None
    assert store.vendor_us(GPU, replace(PROBLEM, n=8), Cache.CLEAN) is None


def test_the_vendor_is_forgotten_with_the_last_trial_of_its_final(store: Store, path: Path) -> None:
    beside_vendor(store, GEMM, LT)
    counts = "SELECT (SELECT count(*) FROM vendor_measurement), (SELECT count(*) FROM vendor_sample)"
    store.forget([2], (), lambda _: None)
    assert plain_sql(path, counts) == [(2, 6)]
    store.forget([1], (), lambda _: None)
    assert plain_sql(path, counts) == [(0, 0)]
    assert plain_sql(path, "SELECT count(*) FROM run") == [(0,)]
    assert plain_sql(path, "PRAGMA foreign_key_check") == []
    assert beside_vendor(store).vendor_us is None  # the same round, measured without


def test_what_kept_the_vendor_out_is_told_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with SearchProgress(console(), Options(), 2, PhaseTimer()) as shown:
        for problem, detail in ((None, "libcublas not found"), (PROBLEM, "no such\nproduct"), (None, "again")):
            shown.show(VendorLeftOut(problem, detail))
    assert capsys.readouterr().out.splitlines() == [
        "cuBLAS not measured: libcublas not found, or leave it out with --no-vendor",
        f"{PROBLEM.text}: cuBLAS not measured: no such",
    ]
