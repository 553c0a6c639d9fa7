"""Winners' kernels at the other tuned shapes: which pairs are measured, and that it is once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.command import run
from tests.databases import dump
from tests.fabricated import measurement, plain_sql
from tests.on_host import has_compiler
from tests.processes import ROOT
from tests.simulated import DEVICE, KERNELS, RUN, SHAPES, TARGET, Simulated, Times, stored_trial
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.families.stream_a import StreamAFmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.measure import cross_timing
from tsm2_tune.tuner.measure.cross_timing import MOST_SHAPES, CrossTiming
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache, Outcome
from tsm2_tune.tuner.runs.events import FinalFailure, PairMeasured, TrialStored
from tsm2_tune.tuner.verify.operands import needed_bytes
from tsm2_tune.tuner.worker.client import AttemptResult, Worker

pytestmark = pytest.mark.slow

FIRST, SECOND, THIRD = KERNELS[:3]


@pytest.fixture(autouse=True)
def winners_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without kernels for shapes between, and those that are expected to be nearly the fastest: test_between.py."""
    monkeypatch.setattr(cross_timing, "kernels_between", lambda *_: {})
    monkeypatch.setattr(cross_timing, "contending", lambda *_: [])


Pairs = set[tuple[str, Problem]]


def won(store: Store, *winners: tuple[KernelConfig, Problem], **changes: Any) -> None:
    """Each was tuned by itself, and took 100 us."""
    for config, problem in winners:
        store.add_trial(RUN, stored_trial(config, problem, 100.0, **({"full_verdict": "right"} | changes)))


def times(
    configs: Iterable[KernelConfig], problems: Iterable[Problem] = SHAPES, median_us: float = 150.0
) -> dict[tuple[str, Problem], float]:
    at = list(problems)
    return {(config.text, problem): median_us for config in configs for problem in at}


THREE = list(zip(KERNELS[:3], SHAPES[:3], strict=True))
SLOWER = times(KERNELS) | {(one.text, at): 100.0 for one, at in THREE}  # at the shapes that others won


def crossed(device: Simulated, store: Store, asked: Iterable[Problem] = SHAPES, families: Any = ()) -> list[Any]:
    return list(CrossTiming(frozenset(asked), device, store, families).events())


def measured(store: Store, shapes: Iterable[Problem], taken: Times, **options: Any) -> Pairs:
    """Return the pairs that a run with these shapes measures."""
    device = Simulated(store, taken, **options)
    crossed(device, store, shapes)
    return set(device.tried)


def test_batches_are_measured_at_batches_alone(store: Store) -> None:
    first, second = (StreamAFmaConfig(128, 1, columns, 8, 4, 13, 1, 1) for columns in (8, 16))
    single = SHAPES[:2]
    batches = [replace(problem, batch=30) for problem in single]
    won(store, (first, single[0]), (second, single[1]), (first, batches[0]), (second, batches[1]))
    tried = measured(store, [*single, *batches], {})
    kernels = {(config.partition(",splits")[0], problem) for config, problem in tried}
    one, other = (config.text.partition(",splits")[0] for config in (first, second))
    assert kernels == {(one, single[1]), (other, single[0]), (one, batches[1]), (other, batches[0])}


def test_every_winners_kernel_is_measured_at_every_other_shape_once(store: Store) -> None:
    """Whatever the most trials and the budget are."""
    won(store, *THREE)
    before = [(row.problem, row.config, row.median_us) for row in store.best()]
    device = Simulated(store, SLOWER, max_trials=1, budget_seconds=1e-6)
    events = crossed(device, store, SHAPES[:3])
    assert (device.options.max_trials, device.options.budget_seconds) == (1, 1e-6)
    expected = {(one.text, at) for one, own in THREE for at in SHAPES[:3] if at is not own}
    assert sorted(device.tried) == sorted(expected)
    stored = {(one.config.text, one.problem): one.median_us for one in store.current(DEVICE)}
    assert stored == dict.fromkeys(expected, 150.0) | {(one.text, at): 100.0 for one, at in THREE}
    assert [(row.problem, row.config, row.median_us) for row in store.best()] == before
    counted = [(one.done, one.total) for one in events if isinstance(one, PairMeasured)]
    assert (counted[0], counted[-1]) == ((0, 6), (6, 6))
    assert counted == sorted(counted)
    retries = Simulated(store, {})
    assert (crossed(retries, store, SHAPES[:3]), retries.tried, retries.rounds) == ([], [], [])


OTHER_TYPE, OTHER_OP = Problem(8192, 16, 4096, "f64"), Problem(8192, 16, 4096, "f32", "nt")
OF_BEFORE, OF_SPLITS = (StreamAFmaConfig(128, 1, 8, 8, 2, splits, 1, 1) for splits in (1, 6))


@pytest.mark.parametrize(
    ("winners", "asked"),
    [
        ([(FIRST, SHAPES[0])], SHAPES),  # a shape alone
        ([(FIRST, at) for at in SHAPES], SHAPES),  # one kernel that won all
        ([(FIRST, SHAPES[0]), (SECOND, OTHER_TYPE), (THIRD, OTHER_OP)], [SHAPES[0], OTHER_TYPE, OTHER_OP]),
        (THREE, [SHAPES[3]]),  # which was not tuned here
    ],
)
def test_there_are_no_pairs(store: Store, winners: list[tuple[KernelConfig, Problem]], asked: list[Problem]) -> None:
    won(store, *winners)
    assert crossed(Simulated(store, {}), store, asked) == []


def test_only_pairs_with_a_requested_shape_are_measured(store: Store) -> None:
    won(store, *THREE)
    assert measured(store, [SHAPES[0]], SLOWER) == {
        (FIRST.text, SHAPES[1]), (FIRST.text, SHAPES[2]), (SECOND.text, SHAPES[0]), (THIRD.text, SHAPES[0]),
    }  # fmt: skip
    assert measured(store, SHAPES[:2], SLOWER) == {(SECOND.text, SHAPES[2]), (THIRD.text, SHAPES[1])}


def test_stale_winners_and_those_of_another_compiler_take_no_part(store: Store) -> None:
    """A trial of a family made otherwise would make the family's others there stale."""
    won(store, (THIRD, SHAPES[3]), basis="nvcc of before")
    won(store, (FIRST, SHAPES[0]), (SECOND, SHAPES[1]))
    won(store, (OF_BEFORE, SHAPES[2]), basis="nvcc of before")
    stale = {SHAPES[0]: 0, SHAPES[1]: 0, SHAPES[2]: 0, SHAPES[3]: 1}
    assert {row.problem: row.stale for row in store.best()} == stale
    assert measured(store, SHAPES[:4], SLOWER) == {(FIRST.text, SHAPES[1]), (SECOND.text, SHAPES[0])}
    assert {row.problem: row.stale for row in store.best()} == stale


def test_states_of_the_l2_are_apart(store: Store) -> None:
    won(store, (FIRST, SHAPES[0]))
    times = replace(measurement(100.0), cache=Cache.DIRTY)
    won(store, (SECOND, SHAPES[1]), basis=TARGET.basis(Cache.DIRTY), cache=Cache.DIRTY, measurement=times)
    assert [row.cache for row in store.best()] == [Cache.CLEAN, Cache.DIRTY]
    assert measured(store, SHAPES[:2], SLOWER) == set()


def test_kernel_counts_once_whatever_its_launch(store: Store) -> None:
    large, small, smaller = (Problem(m, 8, 20480, "f32") for m in (40960, 5120, 2560))
    won(store, (OF_SPLITS, large), (FIRST, small), (FIRST, smaller))
    store.add_trial(RUN, stored_trial(replace(OF_SPLITS, splits=3), smaller, 400.0))
    device = Simulated(store, times([FIRST], [large]))
    crossed(device, store, [large, small, smaller])
    (text,) = {text for text, at in device.tried if at == small}
    found = StreamAFmaConfig.parse(text)
    assert found is not None
    assert found.kernel_text == OF_SPLITS.kernel_text
    assert found.splits > 2 * OF_SPLITS.splits  # so that an eighth of the rows has as many blocks
    assert not any(at == smaller for _, at in device.tried)
    assert measured(store, [large, small, smaller], {}) == set()  # though it had crashed


def test_what_failed_is_tried_again_only_if_asked_for(store: Store) -> None:
    won(store, *THREE[:2])
    assert len(measured(store, SHAPES[:2], {})) == 2
    assert [one.outcome for one in store.listing()][2:] == [Outcome.CRASHED] * 2
    assert measured(store, SHAPES[:2], SLOWER) == set()
    assert len(measured(store, SHAPES[:2], SLOWER, retried=frozenset({Outcome.CRASHED}))) == 2
    assert [one.outcome for one in store.listing()] == [Outcome.OK] * 4


def test_only_kernels_of_the_families_that_were_named_are_measured(store: Store) -> None:
    won(store, (THIRD, SHAPES[0]), (OF_BEFORE, SHAPES[1]))
    own = {(THIRD.text, SHAPES[0]): 100.0, (OF_BEFORE.text, SHAPES[1]): 100.0}
    device = Simulated(store, times([THIRD, OF_BEFORE]) | own)
    crossed(device, store, SHAPES[:2], families=("tsm2",))
    assert device.tried == [(THIRD.text, SHAPES[1])]
    crossed(device, store, SHAPES[:2])
    assert device.tried[1:] == [(OF_BEFORE.text, SHAPES[0])]


def test_of_many_shapes_each_kernel_is_measured_at_the_nearest(store: Store) -> None:
    shapes = [Problem(2048 * 2**number, 16, 4096, "f32") for number in range(MOST_SHAPES + 4)]
    won(store, (FIRST, shapes[0]), *((SECOND, at) for at in shapes[1:]))
    pairs = measured(store, shapes, times(KERNELS, shapes))
    assert {at for text, at in pairs if text == FIRST.text} == set(shapes[1 : 1 + MOST_SHAPES])
    assert {at for text, at in pairs if text == SECOND.text} == {shapes[0]}
    assert measured(store, shapes, {}) == set()


def test_what_would_take_absurdly_long_or_cannot_be_computed_is_left_out(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    won(store, *THREE[:2])
    slow = {SECOND: 2000.1, FIRST: 100.0}
    with monkeypatch.context() as patch:
        patch.setattr(cross_timing, "candidate_times_us", lambda every: np.array([slow[one.config] for one in every]))
        assert measured(store, SHAPES[:2], SLOWER) == {(FIRST.text, SHAPES[1])}
        slow[SECOND] = 1999.9
        patch.setattr(cross_timing, "configuration_for", lambda at, problem, *_: None)
        assert measured(store, SHAPES[:2], SLOWER) == set()
    monkeypatch.setattr(
        cross_timing, "candidate_times_us", lambda every: np.array([slow[one.config] for one in every])
    )
    assert measured(store, SHAPES[:2], SLOWER) == {(SECOND.text, SHAPES[0])}


@pytest.mark.parametrize(("deepest", "count"), [(0, 2), (8192, 2), (8191, 1), (4096, 1), (4095, 2)])
def test_kernel_is_not_measured_at_a_k_beyond_its_partial_sums(
    store: Store, monkeypatch: pytest.MonkeyPatch, deepest: int, count: int
) -> None:
    short, long = SHAPES[0], replace(SHAPES[1], k=8192)
    won(store, (FIRST, short), (SECOND, long))
    of_family = type(FAMILIES["tsm2"])
    block_plan = of_family.block_plan
    monkeypatch.setattr(of_family, "block_plan", lambda *given: replace(block_plan(*given), k_per_pass=deepest))
    pairs = measured(store, [short, long], times([FIRST, SECOND], [short, long]))
    assert len(pairs) == count
    assert (SECOND.text, short) in pairs


def test_what_does_not_fit_the_devices_memory_is_left_out(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    large, small = Problem(40960, 8, 20480, "f32"), Problem(5120, 8, 20480, "f32")
    won(store, (OF_SPLITS, large), (THIRD, small))
    with monkeypatch.context() as patch:  # room for the operands, but none for the workspace
        patch.setattr(TARGET, "limits", replace(TARGET.limits, memory_bytes=needed_bytes(small)))
        assert measured(store, [large, small], {}) == set()
    assert {at for _, at in measured(store, [large, small], {})} == {large, small}


@pytest.mark.parametrize(("once", "in_turns", "winner"), [(80.0, 85.0, SECOND), (99.0, 130.0, FIRST)])
def test_a_pair_that_is_faster_wins_by_finals_alone(
    store: Store, once: float, in_turns: float, winner: KernelConfig
) -> None:
    """One that was lucky once does not win."""
    won(store, *THREE[:2])
    pair = (SECOND.text, SHAPES[0])
    device = Simulated(store, SLOWER | {pair: once, (FIRST.text, SHAPES[0]): 100.0}, in_turns={pair: in_turns})
    crossed(device, store, SHAPES[:2])
    assert (SHAPES[0], frozenset({FIRST.text, SECOND.text})) in device.rounds
    assert device.in_full == []  # it was verified in full where it won before
    (row,) = store.best(device=DEVICE, problem=SHAPES[0])
    assert (row.config, row.median_us) == (winner.text, min(in_turns, 100.0))
    assert (row.round, row.verified_in_full) == (1, 1)
    assert crossed(Simulated(store, {}), store, SHAPES[:2]) == []


@pytest.mark.parametrize("is_ended", [False, True], ids=["", "by the next run, where the first one was ended"])
def test_a_pair_that_leads_where_nothing_was_asked_for_is_settled_too(is_ended: bool, store: Store) -> None:
    won(store, *THREE[:2])
    faster = SLOWER | {(FIRST.text, SHAPES[1]): 80.0, (SECOND.text, SHAPES[1]): 100.0}
    device = Simulated(store, faster)
    if is_ended:
        events = CrossTiming(frozenset(SHAPES[:1]), device, store).events()
        next(one for one in events if isinstance(one, TrialStored) and one.trial.problem == SHAPES[1])
        events.close()
        assert [row.verified_in_full for row in store.best(problem=SHAPES[1])] == [0]
    crossed(device, store, SHAPES[:1])
    assert device.tried[0] == (FIRST.text, SHAPES[1])
    assert len(device.tried) == (1 if is_ended else 2)  # the other kernel is no winner's any more
    (row,) = store.best(device=DEVICE, problem=SHAPES[1])
    assert (row.config, row.round, row.verified_in_full) == (FIRST.text, 1, 1)


def test_finals_of_what_was_not_asked_for_are_left_to_its_own_run(store: Store) -> None:
    won(store, *THREE[:2])
    near = times(KERNELS, median_us=102.0) | {(one.text, at): 100.0 for one, at in THREE[:2]}
    device = Simulated(store, near)
    crossed(device, store, SHAPES[:1])
    assert [at for at, _ in device.rounds] == [SHAPES[0]]


def test_what_another_run_has_taken_on_is_left_to_it(store: Store) -> None:
    won(store, *THREE[:2])
    device = Simulated(store, SLOWER)
    timing = CrossTiming(frozenset(SHAPES[:2]), device, store, hold=lambda at: nullcontext(at != SHAPES[1]))
    events = list(timing.events())
    assert device.tried == [(SECOND.text, SHAPES[0])]
    assert [one for one in events if isinstance(one, PairMeasured)][-1] == PairMeasured(2, 2)
    assert not any(isinstance(one, FinalFailure) for one in events)


# The command, on this host

ASKED = "64x2x64,33x3x17"
FEW = "tsm2,stream_a_fma,inner_fma"  # families, as the spaces of all take a second each
TRIALS = (
    "SELECT p.dtype, p.op, p.m, t.config, t.outcome FROM trial t JOIN problem p ON p.id = t.problem_id ORDER BY t.id"
)
WINNERS = "SELECT m, verified_in_full FROM best ORDER BY 1"
SAID = "cross-checked kernels at shapes that they did not win: "


def command(path: Path, *options: str, shapes: str = ASKED, families: str = FEW) -> tuple[str, ...]:
    named = ("--family", families) if families else ()
    return ("--device", "cpu", "--shapes", shapes, *named, "--max-trials", "1", "--db", str(path), *options)


def tuned(path: Path, *options: str, status: int = 0, **named: str) -> str:
    """Run the command, and return what it prints."""
    result = run(*command(path, *options, **named))
    assert result.exit_code == status, result.output
    return result.output


def of_families(path: Path, families: dict[str, str]) -> Path:
    """The database, with each of these shapes tuned by one family, so that others lack its kernel."""
    for shape, family in families.items():
        tuned(path, "--no-pairs", shapes=shape, families=family)
    assert plain_sql(path, "SELECT count(*) FROM trial") == [(len(families),)]
    return path


@pytest.fixture
def two_kernels(session_cache: None, known_ceilings: None, path: Path) -> Path:
    return of_families(path, dict(zip(ASKED.split(","), ("tsm2", "stream_a_fma"), strict=True)))


@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")
def test_pairs_are_measured_after_the_last_problem_and_once(
    two_kernels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, untouched = plain_sql(two_kernels, TRIALS), dump(two_kernels)
    assert SAID not in tuned(two_kernels, "--no-pairs")
    assert dump(two_kernels) == untouched
    with monkeypatch.context() as patch:
        lost = AttemptResult(Outcome.INTERRUPTED, "the worker died during timing (SIGKILL)")
        patch.setattr(Worker, "attempt", lambda *_: lost)
        said = tuned(two_kernels, status=1)
    assert f"{SAID}0 measured, 2 interrupted\n" in said
    assert "2 interrupted by the machine" in said
    said = tuned(two_kernels, families="")
    assert said.index("2/2 33x3x17") < said.index(f"{SAID}2 measured\n") < said.index("% floor")
    after = plain_sql(two_kernels, TRIALS)
    (*first_at, first, _), (*second_at, second, _) = before
    assert after[:2] == before
    assert sorted(after[2:]) == sorted([(*second_at, first, "ok"), (*first_at, second, "ok")])
    assert plain_sql(two_kernels, WINNERS) == [(33, 1), (64, 1)]
    stored = dump(two_kernels)
    assert SAID not in tuned(two_kernels)
    assert dump(two_kernels) == stored


@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")
@pytest.mark.usefixtures("session_cache", "known_ceilings")
def test_gram_shapes_have_pairs_of_their_own_and_types_are_not_mixed(path: Path) -> None:
    families = {"33x3x17:f64": "stream_a_fma", "4x4x64:f32:tx": "inner_fma", "6x6x80:f32:tx": "inner_fma"}
    before = plain_sql(of_families(path, families), TRIALS)
    assert f"{SAID}2 measured\n" in tuned(path, shapes=",".join(families))
    (_, _, _, small, _), (_, _, _, large, _) = before[1:]
    after = {tuple(row[:4]) for row in plain_sql(path, TRIALS)[len(before) :]}
    assert after == {("f32", "tx", 6, small), ("f32", "tx", 4, large)}


KILLED = """
import os, signal
from tests.quick_command import make_quick
from tsm2_tune.__main__ import main
from tsm2_tune.tuner.worker.client import Worker
make_quick(setattr)
attempt, attempts = Worker.attempt, []
def second_kills(worker, request, *meanwhile):
    attempts.append(request)
    if len(attempts) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return attempt(worker, request, *meanwhile)
Worker.attempt = second_kills
main()
"""


@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")
def test_a_run_that_is_killed_among_pairs_goes_on(two_kernels: Path) -> None:
    before = set(plain_sql(two_kernels, TRIALS))
    done = subprocess.run([sys.executable, "-c", KILLED, *command(two_kernels)], cwd=ROOT, stdout=subprocess.DEVNULL)
    assert done.returncode == -signal.SIGKILL
    killed = set(plain_sql(two_kernels, TRIALS))
    assert before < killed
    assert len(killed) == 3
    tuned(two_kernels)
    ended = plain_sql(two_kernels, TRIALS)
    assert killed <= set(ended)
    assert len(ended) == len(set(ended))
    assert plain_sql(two_kernels, "SELECT owner FROM lease WHERE owner <> ''") == []
    with Store.open(two_kernels, create=False) as store:
        rows = store.best()
        right = [one for one in store.current(rows[0].device) if one.median_us is not None]
    timed = {(one.config.kernel_text, one.problem) for one in right}
    winning = {one.config.kernel_text for one in right if one.id in {row.trial_id for row in rows}}
    assert {(kernel, row.problem) for kernel in winning for row in rows} <= timed
