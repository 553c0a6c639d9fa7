"""Finals, by fabricated times: which kernels and vendor's routines are measured again, how often, and who wins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from tests.simulated import MANY, RUN, TARGET, A, B, C, D, E, F, G, Simulated, store_trials
from tsm2_tune.errors import StoreError
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.families.published import Tsm2Config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.order import ordered
from tsm2_tune.generator.space.space import SearchSpace, search_space
from tsm2_tune.tuner.export.measured_times import vendor_elsewhere
from tsm2_tune.tuner.export.module import exported_module
from tsm2_tune.tuner.export.tables import markdown_text
from tsm2_tune.tuner.measure.vendor.finalists import VendorLibraries
from tsm2_tune.tuner.packs.candidate_times import candidate_times_us
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache, Outcome
from tsm2_tune.tuner.runs.events import (
    FinalFailure,
    FinalStored,
    ProblemEnded,
    ProblemEvent,
    ProblemStarted,
    VendorLeftOut,
    WinnerVerified,
)
from tsm2_tune.tuner.runs.problem_queue import tune_problems
from tsm2_tune.tuner.search import session
from tsm2_tune.tuner.search.candidates import Search
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.session import problem_session
from tsm2_tune.tuner.search.strategies import exhaustive
from tsm2_tune.tuner.search.strategies.strategy import InOrder
from tsm2_tune.tuner.worker.protocol import AttemptResult, FinalRound, FinalTimes

TODAY = ("tsm2", "ism2"), BASIS


def test_what_won_under_an_older_basis_is_tried_first() -> None:
    space = search_space(PROBLEM, PROFILES["h200"], families=["tsm2", "ism2"])
    candidates = ordered(space, 0, candidate_times_us)
    last, before = candidates[len(candidates) - 1], candidates[len(candidates) - 2]
    first = session.candidates_for((last.config.text, "tsm2-of-another-time", before.config.text), space)
    found = list(Search(InOrder(candidates), first=first))
    assert [candidate.config for candidate in found[:2]] == [last.config, before.config]
    assert [candidate.config for candidate in found[2:]] == [candidate.config for candidate in candidates][:-2]


def turn(store: Store, device: Simulated) -> list[ProblemEvent]:
    """The events of a run that has nothing new to try."""
    space = cast(SearchSpace, SimpleNamespace(problem=PROBLEM, kept=(), families=("tsm2",)))
    return list(tune_problems([space], device, store, make_strategy=exhaustive, families=("tsm2",)))


def winner_of(store: Store, device: Simulated) -> Any:
    *_, ended = turn(store, device)
    assert isinstance(ended, ProblemEnded)
    assert ended.winner is not None
    return ended.winner


def finals(store: Store, again: Mapping[Tsm2Config, float] | None = None, change: float = 1.0) -> Any:
    """The configurations of each round that a run measures, and the winner after them."""
    in_turns = {(config.text, PROBLEM): us for config, us in (again or {}).items()}
    device = Simulated(store, in_turns=in_turns, change=change)
    winner = winner_of(store, device)
    return [members for _, members in device.rounds], winner


def texts(*rounds: Sequence[Tsm2Config]) -> list[set[str]]:
    return [{config.text for config in members} for members in rounds]


def test_what_was_behind_is_tried_again_where_it_may_win_by_now(store: Store) -> None:
    store_trials(store, {A: 100, B: 104})
    store_trials(store, {C: 111, D: 120}, outcome=Outcome.BEHIND, verdict=None)
    device = Simulated(store)

    def untried(reach: float | None, *contenders: Tsm2Config) -> set[str]:
        device.options = replace(device.options, reach=reach)
        turn = problem_session(PROBLEM, ("tsm2",), device, store, "")
        prior = turn.history.prior(turn.retries, ("tsm2",))
        assert tuple(one.config for one in prior.contenders) == contenders
        return {one.text for one in (A, B, C, D)} - prior.tried

    assert untried(1.1, A, B) == set()
    assert untried(None, A, B) == {C.text, D.text}  # where every trial is to be in full
    fastest = store.history(RUN.identity.name, PROBLEM, ("tsm2",), TARGET.basis(Cache.CLEAN)).tried()[0]
    assert fastest.config == A
    store.refute(fastest.id, Outcome.WRONG_RESULT, "C[0, 0] = 1")
    assert untried(1.1, B) == {C.text}


@pytest.mark.parametrize(
    ("before", "again", "rounds", "winner", "median_us"),
    [
        (  # the sixth seems fastest now, until it is timed beside the others
            dict(zip((A, B, C, D, E, F, G), (100, 101, 102, 103, 104, 104.5, 200), strict=True)),
            dict(zip((A, B, C, D, E, F), (108, 109, 110, 111, 112, 115), strict=True)),
            [(A, B, C, D, E), (F, A, B)], A, 108,
        ),
        ({A: 100, B: 150, C: 160}, {A: 155, B: 151}, [(A, B)], B, 151),  # nobody is near
    ],
)  # fmt: skip
def test_rounds_go_on_until_the_fastest_was_in_the_last(
    store: Store, before: Any, again: Any, rounds: Any, winner: Tsm2Config, median_us: float
) -> None:
    store_trials(store, before)
    found, won = finals(store, again)
    assert found == texts(*rounds)
    assert (won.config, won.median_us, won.round) == (winner.text, median_us, len(rounds))
    assert finals(store)[0] == []  # the same again has nothing to do


@pytest.mark.slow
def test_rounds_end_also_where_every_one_is_slower_than_the_last(store: Store) -> None:
    store_trials(store, {config: 100 + i / 10 for i, config in enumerate(MANY)})
    rounds, winner = finals(store, change=1.1)
    assert rounds == texts(MANY[:5], MANY[5:10], MANY[10:15])
    assert winner.config == MANY[15].text


def test_new_trials_near_the_winner_are_measured_beside_it(store: Store) -> None:
    store_trials(store, {A: 100, B: 101})
    assert finals(store)[0] == texts((A, B))
    store_trials(store, {C: 120})
    assert finals(store)[0] == []
    store_trials(store, {D: 104})
    rounds, winner = finals(store, {D: 99})
    assert rounds == texts((A, B, D))
    assert (winner.config, winner.round) == (D.text, 2)


def test_a_round_that_fails_is_the_last_and_a_winner_is_verified_once(store: Store) -> None:
    store_trials(store, {A: 100, B: 101})
    device = Simulated(store)
    device.failure = AttemptResult(Outcome.LAUNCH_FAILED, "it does not start")
    events = turn(store, device)
    assert [type(event) for event in events] == [ProblemStarted, FinalFailure, WinnerVerified, ProblemEnded]
    device.failure = None
    turn(store, device)
    turn(store, device)
    assert device.in_full == [(A.text, PROBLEM)]


@pytest.mark.parametrize("outcome", [Outcome.WRONG_RESULT, Outcome.CRASHED, Outcome.TIMED_OUT])
def test_what_is_wrong_in_the_full_verification_does_not_win(store: Store, outcome: Outcome) -> None:
    store_trials(store, {A: 100, B: 101, C: 150})
    device = Simulated(store)
    device.refuted = {A.text: outcome}
    winner = winner_of(store, device)
    assert (winner.config, winner.verified_in_full) == (B.text, 1)
    assert device.in_full == [(A.text, PROBLEM), (B.text, PROBLEM)]
    (refuted,) = (one for one in store.listing() if one.config == A.text)
    assert (refuted.outcome, refuted.detail) == (outcome, "full verification: it was so")
    assert store.trial(refuted.id).trial.outcome is outcome  # its row contradicts nothing


def test_what_the_machine_ended_is_verified_by_the_next_run(store: Store) -> None:
    store_trials(store, {A: 100, B: 101})
    device = Simulated(store)
    device.refuted = {A.text: Outcome.INTERRUPTED}
    winner = winner_of(store, device)
    assert (winner.config, winner.verified_in_full) == (A.text, 0)
    with pytest.raises(StoreError) as caught:
        exported_module(store, store.best())
    assert str(caught.value) == (
        f"{store.path} has a winner on NVIDIA H200 that was not verified in full, {A.text} for {PROBLEM.text}:"
        f" to verify it, run `tsm2-tune --db {store.path} --cache clean --shapes {PROBLEM.text}` on that device, then"
        " this again; or export only another device with --device"
    )
    assert "in part" in markdown_text(store.best(), "results.db")
    device.refuted = {}
    turn(store, device)
    assert A.text in exported_module(store, store.best())


# The vendor's routines in finals

VERSIONS = (("cuBLAS", 130100), ("cuBLASLt", 130100))
NEWER_VERSIONS = (("cuBLAS", 130200), ("cuBLASLt", 130200))
GEMM, LT = vendor_measurement(480), vendor_measurement(470, "cublasLtMatmul #3")
NEWER = vendor_measurement(470, "cublasLtMatmul #3", version=130200)
WRONG = vendor_measurement(300, "cublasLtMatmul #3", right=False)


class WithVendor(Simulated):
    """A GPU with a vendor that takes 90 us, or that fails so."""

    def __init__(
        self,
        store: Store,
        libraries: VendorLibraries | None = None,
        *,
        driver: str = RUN.identity.driver,
        trouble: str = "",
        crashes: bool = False,
    ) -> None:
        super().__init__(store)
        changed = {"identity": replace(TARGET.identity, driver=driver)}
        self.target = cast(Any, SimpleNamespace(**vars(TARGET) | changed))
        self.options = Options(vendor=True)
        self.asked: list[bool] = []  # whether each final was to measure the vendor
        self._trouble, self._crashes, self._libraries = trouble, crashes, libraries or VendorLibraries(VERSIONS)
        cast(Any, self._worker).vendor = lambda: self._libraries

    def time_finalists(self, request: FinalRound) -> FinalTimes | AttemptResult:
        self.asked.append(request.vendor)
        if request.vendor and self._crashes:
            return AttemptResult(Outcome.CRASHED, self._trouble)
        found = cast(FinalTimes, super().time_finalists(request))
        version = dict(self._libraries.versions).get("cuBLAS", 0)
        theirs = () if self._trouble or not request.vendor else (vendor_measurement(90, version=version),)
        return replace(found, vendor=theirs, vendor_trouble=self._trouble)


def measured(store: Store, device: WithVendor) -> list[bool]:
    turn(store, device)
    return device.asked


def left_out(events: list[ProblemEvent]) -> list[tuple[Problem | None, str]]:
    return [(event.problem, event.detail) for event in events if isinstance(event, VendorLeftOut)]


def test_one_finalist_is_measured_beside_the_vendor_once_and_others_again(store: Store) -> None:
    store_trials(store, {A: 100})
    assert measured(store, WithVendor(store)) == [True]
    (row,) = store.best()
    assert (row.round, row.vendor_us, row.vendor_routine, row.vendor_version) == (1, 90, "cublasSgemm", 130100)
    assert row.x_cublas == pytest.approx(90 / row.median_us)
    assert measured(store, WithVendor(store)) == []
    store_trials(store, {B: 99})
    assert measured(store, WithVendor(store)) == [True]
    (row,) = store.best()
    assert (row.round, row.vendor_us) == (2, 90)


@pytest.mark.parametrize("changes", [{"driver": "999"}, {"libraries": VendorLibraries(NEWER_VERSIONS)}])
def test_another_driver_or_library_is_measured_again(store: Store, changes: Mapping[str, Any]) -> None:
    store_trials(store, {A: 100, B: 101})
    assert measured(store, WithVendor(store)) == [True]
    assert measured(store, WithVendor(store, **changes)) == [True]
    assert measured(store, WithVendor(store, **changes)) == []


@pytest.mark.parametrize("times", [{A: 100}, {A: 100, B: 101}])
def test_without_libraries_or_on_a_host_finals_are_as_without_a_vendor(
    store: Store, times: Mapping[Tsm2Config, float]
) -> None:
    host = WithVendor(store)
    cast(Any, host.target).is_host = True
    assert (host.vendor, left_out(turn(store, host))) == (None, [])
    store_trials(store, times)
    device = WithVendor(store, VendorLibraries((), "libcublas not found: looked everywhere"))
    assert left_out(turn(store, device)) == [(None, "libcublas not found: looked everywhere")]
    assert device.asked == [False] * (len(times) > 1)


@pytest.mark.parametrize("crashes", [False, True])
def test_a_vendor_that_declines_or_crashes_is_told_and_asked_once(store: Store, crashes: bool) -> None:
    store_trials(store, {A: 100, B: 101})
    device = WithVendor(store, trouble="it failed", crashes=crashes)
    events = turn(store, device)
    assert left_out(events) == [(PROBLEM, "it failed")]
    assert device.asked == [True, *[False] * crashes]
    assert [type(event) for event in events if isinstance(event, FinalStored | FinalFailure)] == [FinalStored]
    assert [(row.round, row.vendor_us) for row in store.best()] == [(1, None)]


def test_what_blas_lacks_is_told_and_the_libraries_are_not_asked(store: Store) -> None:
    vendor = WithVendor(store).vendor
    assert vendor is not None
    kinds = (("minplus_f32", "nn"), ("c64", "jn"), ("c64", "cn"))
    assert [vendor.is_wanted(Problem(5, 3, 7, *kind)) for kind in kinds] == [False, False, True]
    assert list(vendor.troubles.values()) == [
        "BLAS has no product of minplus_f32",
        "BLAS has no product jn: it conjugates only what it transposes",
    ]


@pytest.mark.parametrize(
    ("vendor", "beside", "is_in_a_module"),
    [
        ((GEMM, LT), (470, 1, 0.94), True),  # cuBLASLt's routine is none of a module, but cuBLAS's is
        ((GEMM, NEWER), (470, 1, 0.94), True),
        ((GEMM, WRONG), (480, 1, 0.96), True),
        ((WRONG,), (300, 0, None), False),
        ((LT,), (470, 1, 0.94), False),
        ((vendor_measurement(480, "cublasSgemv"),), (480, 1, 0.96), False),
        ((vendor_measurement(480, "cublasSsyrk"),), (480, 1, 0.96), False),
    ],
)
def test_the_fastest_right_routine_stands_beside_the_winner(
    store: Store, tmp_path: Path, vendor: tuple[Any, ...], beside: tuple[Any, ...], is_in_a_module: bool
) -> None:
    row = beside_vendor(store, *vendor)
    assert (row.vendor_us, row.vendor_right, row.x_cublas) == beside
    (winner,) = imported(exported("module", ((row,), sources_of(store, [row]))), tmp_path).WINNERS
    expected = (480, "cublasSgemm", 130100) if is_in_a_module else (None, None, None)
    assert (winner.vendor_us, winner.vendor_routine, winner.vendor_version) == expected


def test_vendor_times_of_tuned_shapes_without_an_exported_winner_count(store: Store) -> None:
    """Such a winner is not verified in full, say. A winner's own shape is not repeated."""
    beside_vendor(store, GEMM)
    elsewhere = replace(PROBLEM, m=2 * PROBLEM.m)
    for config in (C128, C256):
        store.add_trial(RUN, trial(900, config, problem=elsewhere))
    timed = final((C128, 900), (C256, 950), problem=elsewhere, vendor=(vendor_measurement(960.0),))
    store.add_final(RUN, timed, *TODAY)
    every = {row.problem: {row.trial_id: store.trial(row.trial_id)} for row in store.best()}
    assert list(vendor_elsewhere(store, every[PROBLEM], of_gemm=True).values()) == [
        ((elsewhere.m, elsewhere.n, elsewhere.k, 1, 960.0),)
    ]
    assert vendor_elsewhere(store, every[PROBLEM] | every[elsewhere], of_gemm=True) == {}


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
        return next(event.vendor_us for event in turn(store, Simulated(store)) if isinstance(event, ProblemStarted))

    assert known_us() is None
    beside_vendor(store, GEMM, LT)
    assert known_us() == 470
    both = (vendor_measurement(520), vendor_measurement(515, "cublasLtMatmul #3"))
    for vendor, us in ((both, 515), ((vendor_measurement(530),), 530)):
        store.add_final(RUN, final((C128, 510), vendor=vendor), *TODAY)
        assert known_us() == us
    store.add_final(RUN, final((C128, 510), vendor=(vendor_measurement(90, right=False),)), *TODAY)
    store.add_final(RUN, final((C128, 510)), *TODAY)
    assert known_us() == 530
    for device, problem, cache in (
        (GPU, PROBLEM, Cache.DIRTY), ("another", PROBLEM, Cache.CLEAN), (GPU, replace(PROBLEM, n=8), Cache.CLEAN)
    ):  # fmt: skip
        assert store.vendor_us(device, problem, cache) is None


def test_the_vendor_is_forgotten_with_the_last_trial_of_its_final(store: Store, path: Path) -> None:
    beside_vendor(store, GEMM, LT)
    counts = "SELECT (SELECT count(*) FROM vendor_measurement), (SELECT count(*) FROM vendor_sample)"
    for trial_id, left in ((2, (2, 6)), (1, (0, 0))):
        store.forget([trial_id], (), lambda _: None)
        assert plain_sql(path, counts) == [left]
    assert plain_sql(path, "SELECT count(*) FROM run") == [(0,)]
    assert plain_sql(path, "PRAGMA foreign_key_check") == []
    assert beside_vendor(store).vendor_us is None  # the same round, measured without
