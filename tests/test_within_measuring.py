"""Tests, by fabricated times, that an export measures no more than decides the fewest kernels, and in turns."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.simulated import DEVICE, KERNELS, RUN, SHAPES, TARGET, Simulated, Times, stored_trial
from tsm2_tune.errors import InputError
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families.stream_a import StreamAFmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.split_k import SPLITS, WIDE_SPLITS
from tsm2_tune.tuner.export.kernel_sets.losses import Selected, Tuned
from tsm2_tune.tuner.export.kernel_sets.pair_timing import Bench, Narrowed, Search
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.search.options import Options

pytestmark = pytest.mark.slow


def searched(
    store: Store, device: Simulated, within: float, problems: list[Problem] = SHAPES
) -> tuple[Selected, list[Any]]:
    """Return the kernels that an export would carry, and the events of the search."""
    tuned = Tuned(store, DEVICE, problems, within)
    bench = Bench(TARGET, device.options, store, _tuner=device)
    tuned.keep_to(bench.basis)
    assert tuned.winners_count()
    search = Search(tuned, bench)
    events = list(search.events())
    selected = tuned.selected()
    assert len({*selected.kernels}) == search.least
    return selected, events


def stored(store: Store, times: Times, **changes: Any) -> None:
    """Store a trial of each kernel and problem."""
    configs = {one.text: one for one in KERNELS}
    for (text, at), us in times.items():
        store.add_trial(RUN, stored_trial(configs[text], at, us, **changes))


def at_two(*rows: tuple[KernelConfig, float | None, float | None]) -> dict[tuple[str, Problem], float]:
    """Times of kernels at the first two shapes."""
    every = {(config.text, at): us for config, *of in rows for at, us in zip(SHAPES, of, strict=False)}
    return {pair: us for pair, us in every.items() if us is not None}


FIRST, SECOND, BOTH = KERNELS[:3]
SPLIT = StreamAFmaConfig(128, 1, 8, 8, 2, 6, 1, 1)
LARGE, SMALL = Problem(40960, 8, 20480, "f32"), Problem(5120, 8, 20480, "f32")


def drawn(seed: int) -> dict[tuple[str, Problem], float]:
    """Times of all kernels at all shapes, of which some are as fast as the best one."""
    numbers = random.Random(seed)
    slower = (0, 0.01, 0.02, 0.1, 0.3, 0.7)
    return {(one.text, at): 100 * (1 + numbers.choice(slower)) for one in KERNELS for at in SHAPES}


def by_trying_all(times: Times, kernels: set[str], within: float, best: Mapping[Problem, float]) -> int:
    """The least number of these kernels that keep all shapes so."""
    for number in range(1, len(kernels) + 1):
        for names in itertools.combinations(sorted(kernels), number):
            if all(min(times[name, at] for name in names) <= best[at] * (1 + within) for at in SHAPES):
                return number
    pytest.fail("the best ones are among them")


@pytest.mark.parametrize("seed", range(12))
def test_no_fewer_kernels_would_do_if_all_were_measured(seed: int, store: Store) -> None:
    times, numbers = drawn(seed), random.Random(-seed)
    for at in SHAPES:
        for config in numbers.sample(KERNELS, 3):
            store.add_trial(RUN, stored_trial(config, at, times[config.text, at]))
    device = Simulated(store, times)
    selected, _ = searched(store, device, 0.03)
    best = {row.problem: row.median_us for row in store.best()}
    assert len({*selected.kernels}) == by_trying_all(
        times, {*Tuned(store, DEVICE, SHAPES, 0.03).candidates()}, 0.03, best
    )
    assert len(device.tried) == len({*device.tried}) < len(KERNELS) * len(SHAPES) - 3 * len(SHAPES)
    for row, kernel in zip(selected.rows, selected.kernels, strict=True):
        assert (row.config, row.median_us) == (kernel, times[kernel, row.problem])
        assert row.median_us <= best[row.problem] * 1.03
        assert (row.verified_in_full, row.stale) == (1, 0)
    again = Simulated(store, times)
    assert searched(store, again, 0.03)[0] == selected
    assert (again.tried, again.rounds, again.in_full) == ([], [], [])  # nothing is left to be known


def test_kernel_fast_everywhere_is_found_after_one_trial(store: Store) -> None:
    everywhere, *others = KERNELS
    times = {(everywhere.text, at): 102.0 for at in SHAPES}
    times |= {(one.text, at): 100.0 if number == place else 150.0
              for place, one in enumerate(others) for number, at in enumerate(SHAPES)}  # fmt: skip
    first = [(everywhere.text, SHAPES[0]), *((one.text, at) for one, at in zip(others, SHAPES, strict=False))]
    stored(store, {pair: times[pair] for pair in first})
    device = Simulated(store, times)
    selected, events = searched(store, device, 0.03)
    assert {*selected.kernels} == {everywhere.text}
    assert selected.losses == pytest.approx([0.02] * len(SHAPES))
    for at in SHAPES:  # beside the best, in one round
        (members,) = (members for problem, members in device.rounds if problem == at)
        assert everywhere.text in members
        assert Tuned(store, DEVICE, [at], 0.03).winners[at].config in members
    assert [row.round for row in selected.rows] == [1] * len(SHAPES)
    assert events


def test_a_trial_that_was_lucky_is_seen_through_in_turns(store: Store) -> None:
    stored(store, at_two((FIRST, 100.0, 120.0), (SECOND, 102.0, 100.0)))
    times = at_two((FIRST, 100.0, 120.0), (SECOND, 100.0, 100.0))
    device = Simulated(store, times, in_turns={(SECOND.text, SHAPES[0]): 104.0})
    selected, _ = searched(store, device, 0.03, SHAPES[:2])
    assert selected.kernels == (FIRST.text, SECOND.text)
    assert [row.median_us for row in selected.rows] == [100.0, 100.0]


def test_a_kernel_that_no_final_would_have_is_timed_beside_the_best(store: Store) -> None:
    """Far behind five others that were as fast as the best, and verified in full before."""
    slow, *others = KERNELS
    times = {(one.text, SHAPES[0]): 100.0 + number / 10 for number, one in enumerate(others)}
    times |= at_two((slow, 115.0, 100.0))
    stored(store, times, full_verdict="right")
    times |= {(one.text, SHAPES[1]): 300.0 for one in others}
    device = Simulated(store, times, in_turns={(slow.text, SHAPES[0]): 116.0})
    selected, _ = searched(store, device, 0.2, SHAPES[:2])
    assert selected.kernels == (slow.text, slow.text)
    assert device.rounds == [(SHAPES[0], frozenset({slow.text, *(one.text for one in others[:5])}))]
    assert [(row.median_us, row.round) for row in selected.rows] == [(116.0, 1), (100.0, 0)]
    assert selected.losses == pytest.approx([0.16, 0.0])


def test_the_vendor_is_timed_beside_the_chosen_kernel(store: Store) -> None:
    """So that who imports the row knows whether the vendor is faster than that kernel."""
    stored(store, at_two((FIRST, 100.0, None), (SECOND, None, 100.0), (BOTH, 102.0, 102.0)), full_verdict="right")
    times = at_two((FIRST, 100.0, 300.0), (SECOND, 300.0, 100.0), (BOTH, 102.0, 102.0))
    selected, _ = searched(store, Simulated(store, times, vendor=True), 0.03, SHAPES[:2])
    assert selected.kernels == (BOTH.text, BOTH.text)
    assert [row.vendor_us for row in selected.rows] == [101.0, 101.0]
    assert [row.x_cublas for row in selected.rows] == pytest.approx([101 / 102, 101 / 102])
    assert [row.x_cublas for row in store.best()] == pytest.approx([1.01, 1.01])


def test_a_kernel_that_is_too_slow_once_is_tried_no_further(store: Store) -> None:
    best = {(FIRST.text, SHAPES[0]): 100.0} | {(SECOND.text, at): 100.0 for at in SHAPES[1:]}
    stored(store, best)
    device = Simulated(store, {(one.text, at): 200.0 for one in (FIRST, SECOND) for at in SHAPES} | best)
    search = Search(Tuned(store, DEVICE, SHAPES, 0.03), Bench(TARGET, device.options, store, _tuner=device))
    list(itertools.takewhile(lambda one: not (isinstance(one, Narrowed) and one.kernels == 2), search.events()))
    assert sorted(text for text, _ in device.tried) == sorted([FIRST.text, SECOND.text])


@pytest.mark.parametrize("trouble", ["wrong", "interrupted", "does not run"])
def test_what_is_not_verified_in_full_is_not_chosen(store: Store, trouble: str) -> None:
    """A wrong kernel is never chosen. The next run verifies a kernel whose verification was interrupted."""
    times = at_two((FIRST, 100.0, 200.0), (SECOND, 200.0, 100.0), (BOTH, 101.0, 101.0))
    runs = trouble != "does not run"
    known = times if runs else at_two((FIRST, 100.0, None), (SECOND, None, 100.0))
    stored(store, known)
    device = Simulated(store, known)
    if runs:
        setattr(device, trouble, {BOTH.text})
    selected, _ = searched(store, device, 0.03, SHAPES[:2])
    assert selected.kernels == (FIRST.text, SECOND.text)
    again = searched(store, Simulated(store, known), 0.03, SHAPES[:2])[0].kernels
    assert again == ((BOTH.text, BOTH.text) if trouble == "interrupted" else selected.kernels)


def test_a_stop_loses_nothing(store: Store) -> None:
    times = drawn(3)
    stored(store, {(one.text, at): times[one.text, at]
                   for number, at in enumerate(SHAPES) for one in KERNELS[number : number + 2]})  # fmt: skip
    before, device = len(store.listing()), Simulated(store, times)
    search = Search(Tuned(store, DEVICE, SHAPES, 0.0), Bench(TARGET, device.options, store, _tuner=device))
    events = search.events()
    while not device.tried:
        next(events)
    next(events)
    del events  # Ctrl-C closes the generator so
    assert len(store.listing()) == before + len(device.tried)
    whole, _ = searched(store, device, 0.0)
    assert len(device.tried) == len({*device.tried})  # none twice
    assert whole.losses == pytest.approx([0.0] * len(SHAPES))


def test_a_kernel_that_splits_k_is_tried_as_it_suits_the_shape(store: Store) -> None:
    store.add_trial(RUN, stored_trial(SPLIT, LARGE, 100.0))
    store.add_trial(RUN, stored_trial(SPLIT, SMALL, 150.0))  # with the splits of the other shape
    stored(store, {(FIRST.text, SMALL): 100.0, (FIRST.text, LARGE): 200.0})
    times = {(replace(SPLIT, splits=splits).text, SMALL): 101.0 for splits in (*SPLITS, *WIDE_SPLITS)}
    device = Simulated(store, times)
    search = Search(Tuned(store, DEVICE, [LARGE, SMALL], 0.03), Bench(TARGET, device.options, store, _tuner=device))
    list(itertools.takewhile(lambda _: not device.tried, search.events()))
    ((text, at),) = device.tried
    found = StreamAFmaConfig.parse(text)
    assert found is not None
    assert (found.kernel_text, at) == (SPLIT.kernel_text, SMALL)
    assert found.splits > 2 * SPLIT.splits  # so that an eighth of the rows has as many blocks


def test_what_was_not_measured_or_verified_counts_as_not_served(store: Store) -> None:
    right = {(FIRST.text, 0): 100.0, (FIRST.text, 1): 101.0, (SECOND.text, 1): 100.0, (SECOND.text, 2): 101.0}
    unverified = {(BOTH.text, 0): 100.5, (BOTH.text, 1): 100.5, (BOTH.text, 2): 100.0}
    for verdict, of in (("right", right), (None, unverified)):
        stored(store, {(text, SHAPES[at]): us for (text, at), us in of.items()}, full_verdict=verdict)
    selected = Tuned(store, DEVICE, SHAPES[:3], 0.03).selected()
    assert selected.kernels == (FIRST.text, SECOND.text, SECOND.text)
    assert [row.median_us for row in selected.rows] == [100.0, 100.0, 101.0]
    assert selected.unmeasured == 5  # one of first, one of second, three of the third
    assert [(len(row.kernels), row.is_chosen) for row in selected.table][1] == (2, True)
    with pytest.raises(InputError, match=r"no kernel that was verified in full for 12288x16x4096:f32 on NVIDIA H200"):
        Tuned(store, DEVICE, SHAPES[:3], 0.005).selected()


def test_kernels_of_another_compiler_take_no_part(store: Store) -> None:
    """Their times at one shape say nothing of what they would take at another, compiled now."""
    of_before = replace(SPLIT, splits=1)
    for at in SHAPES[:2]:
        store.add_trial(RUN, stored_trial(of_before, at, 101.0, basis="nvcc of before"))
    tuned = Tuned(store, DEVICE, SHAPES[:1], 0.03)
    assert tuned.winners_count()
    tuned.keep_to(Bench(TARGET, Options(), store).basis)
    assert (tuned.winners_count(), tuned.candidates()) == (False, {})
    stored(store, at_two((FIRST, 100.0, None), (SECOND, None, 100.0)))
    times = at_two((FIRST, 100.0, 150.0), (SECOND, 150.0, 100.0))
    selected, _ = searched(store, Simulated(store, times), 0.03, SHAPES[:2])
    assert selected.kernels == (FIRST.text, SECOND.text)
    store.add_trial(RUN, stored_trial(FIRST, SHAPES[2], 100.0, basis="newer"))
    with pytest.raises(InputError, match=f"stale winner for {SHAPES[0].text}"):
        Tuned(store, DEVICE, SHAPES[:2], 0.03)


def test_kernels_of_equal_text_are_one(store: Store) -> None:
    for at, splits in ((LARGE, 6), (SMALL, 24)):
        store.add_trial(RUN, stored_trial(replace(SPLIT, splits=splits), at, 100.0, full_verdict="right"))
    selected = Tuned(store, DEVICE, [LARGE, SMALL], 0.0).selected()
    assert {*selected.kernels} == {SPLIT.kernel_text}
    assert [row.config for row in selected.rows] == [replace(SPLIT, splits=splits).text for splits in (24, 6)]
    assert len({row.source_digest for row in selected.rows}) == 1
