"""The fewest kernels for all shapes: as few as by trying every choice, measured no more than needed, and in turns."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from tests.simulated import DEVICE, KERNELS, RUN, SHAPES, TARGET, Simulated, Times, stored_trial
from tsm2_tune.errors import InputError
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.families.stream_a import StreamAFmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.split_k import SPLITS, WIDE_SPLITS
from tsm2_tune.tuner.export.kernel_sets import set_cover
from tsm2_tune.tuner.export.kernel_sets.losses import Selected, Tuned
from tsm2_tune.tuner.export.kernel_sets.pair_timing import Bench, Narrowed, Search
from tsm2_tune.tuner.export.kernel_sets.set_cover import Costs, bought, fewest
from tsm2_tune.tuner.export.scale_launch import launches
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Outcome
from tsm2_tune.tuner.search.options import Options

pytestmark = pytest.mark.slow

# The smallest set, by a table of costs


EIGHT = [Problem(1000 * number, 8, 1000, "f32") for number in range(1, 9)]


def costs_of(seed: int, share: float) -> dict[str, dict[Problem, float]]:
    """Return the costs of kernels that serve this share of the shapes. k0 serves what no other one does."""
    numbers = random.Random(seed)
    costs = {
        f"k{number}": {shape: numbers.randrange(20) / 100 for shape in EIGHT if numbers.random() < share}
        for number in range(12)
    }
    served = {shape for of in costs.values() for shape in of}
    costs["k0"] |= {shape: 0.01 for shape in EIGHT if shape not in served}
    return costs


def cost_of(names: Sequence[str], costs: Costs) -> float | None:
    """Return the total cost of these kernels, or None if one of the shapes has no kernel of them."""
    every = {shape for of in costs.values() for shape in of}
    least = [min((costs[name][shape] for name in names if shape in costs[name]), default=None) for shape in every]
    return None if None in least else sum(one for one in least if one is not None)


def by_trying_all(costs: Costs) -> tuple[int, float]:
    """Return the least number of kernels for all shapes, and the least cost of so many."""
    for number in range(1, len(costs) + 1):
        found = [cost_of(names, costs) for names in itertools.combinations(sorted(costs), number)]
        if served := [one for one in found if one is not None]:
            return number, min(served)
    pytest.fail("a shape is served by none")


@pytest.mark.parametrize("share", [0.15, 0.3, 0.5])
@pytest.mark.parametrize("seed", range(25))
def test_no_fewer_kernels_serve_all_and_no_cheaper_ones_as_few(seed: int, share: float) -> None:
    costs = costs_of(seed, share)
    choice = fewest(costs, EIGHT)
    assert choice is not None
    assert choice.is_proven
    assert (len(choice.kernels), cost_of(choice.kernels, costs)) == pytest.approx(by_trying_all(costs))
    assert choice == fewest(dict(random.Random(1).sample(list(costs.items()), len(costs))), EIGHT)


def test_a_search_that_is_cut_short_says_that_nothing_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = costs_of(7, 0.2)
    monkeypatch.setattr(set_cover, "MOST_STEPS", 1)
    choice = fewest(costs, EIGHT)
    assert choice is not None
    assert (choice.is_proven, cost_of(choice.kernels, costs) is not None) == (False, True)


def test_a_shape_has_the_kernel_that_is_fastest_there_if_any() -> None:
    a, b, c = EIGHT[:3]
    costs = {"a": {a: 0.0, b: 0.02}, "b": {b: 0.01, c: 0.0}}
    choice = fewest(costs, [a, b, c])
    assert choice is not None
    assert [choice.serving(costs, shape) for shape in (a, b, c)] == ["a", "b", "b"]
    assert fewest({"k": {a: 0.0}}, [a, b]) is None
    assert fewest({}, [a]) is None


@pytest.mark.parametrize("seed", range(10))
def test_each_further_kernel_buys_something(seed: int) -> None:
    numbers = random.Random(seed)
    losses = {f"k{number}": {shape: numbers.random() for shape in EIGHT} for number in range(10)}
    least = {shape: min(of[shape] for of in losses.values()) for shape in EIGHT}
    losses = {name: {shape: loss - least[shape] for shape, loss in of.items()} for name, of in losses.items()}
    choice = fewest({name: {s: x for s, x in of.items() if x <= 0.2} for name, of in losses.items()}, EIGHT)
    assert choice is not None
    rows = bought(losses, EIGHT, choice.kernels)
    assert [len(row.kernels) for row in rows][: len(choice.kernels)] == list(range(1, len(choice.kernels) + 1))
    assert [row.kernels for row in rows if row.is_chosen] == [choice.kernels]
    assert all(row.served == len(EIGHT) for row in rows)
    assert all(after.worst <= before.worst for before, after in itertools.pairwise(rows))
    assert all(row.worst > 0.2 for row in rows if len(row.kernels) < len(choice.kernels))
    assert (rows[-1].worst, rows[-1].mean) == (0, 0)
    of_all = [max(of.values()) for of in losses.values()]
    assert rows[0].worst == min(of_all)


def test_what_serves_fewer_shapes_comes_after_what_serves_more() -> None:
    a, b, c = EIGHT[:3]
    losses = {"k": {a: 0.0, b: 3.0}, "l": {c: 0.0}, "m": {b: 0.0}}
    (first, *_) = bought(losses, [a, b, c], ("k", "l", "m"))
    assert (first.kernels, first.served, first.worst) == (("k",), 2, 3.0)


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.config_type.launch_tunables()])
def test_a_kernel_of_every_family_may_be_started_in_several_ways(name: str) -> None:
    every = islice(FAMILIES[name].configurations(), 0, 3000, 100)
    config = next(one for one in every if one.has_splits or "splits" not in one.launch_tunables())
    found = list(launches(config))
    assert config in found
    assert len(found) > 3
    assert {one.kernel_text for one in found} == {config.kernel_text}


# The smallest set, by trials


def searched(store: Store, device: Simulated, within: float, problems: list[Problem] = SHAPES) -> Selected:
    """Return the kernels that an export has after its measurements."""
    tuned = Tuned(store, DEVICE, problems, within)
    bench = Bench(TARGET, device.options, store, _tuner=device)
    tuned.keep_to(bench.basis)
    assert tuned.winners_count()
    search = Search(tuned, bench)
    assert list(search.events())
    selected = tuned.selected()
    assert len({*selected.kernels}) == search.least
    return selected


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


@pytest.mark.parametrize("seed", range(12))
def test_no_fewer_kernels_would_do_if_all_were_measured(seed: int, store: Store) -> None:
    times, numbers = drawn(seed), random.Random(-seed)
    for at in SHAPES:
        for config in numbers.sample(KERNELS, 3):
            store.add_trial(RUN, stored_trial(config, at, times[config.text, at]))
    device = Simulated(store, times)
    selected = searched(store, device, 0.03)
    best = {row.problem: row.median_us for row in store.best()}
    known = Tuned(store, DEVICE, SHAPES, 0.03).candidates()
    costs = {name: {at: 0.0 for at in SHAPES if times[name, at] <= best[at] * 1.03} for name in known}
    assert len({*selected.kernels}) == by_trying_all(costs)[0]
    assert len(device.tried) == len({*device.tried}) < len(KERNELS) * len(SHAPES) - 3 * len(SHAPES)
    for row, kernel in zip(selected.rows, selected.kernels, strict=True):
        assert (row.config, row.median_us) == (kernel, times[kernel, row.problem])
        assert row.median_us <= best[row.problem] * 1.03
        assert (row.verified_in_full, row.stale) == (1, 0)
    again = Simulated(store, times)
    assert searched(store, again, 0.03) == selected
    assert (again.tried, again.rounds, again.in_full) == ([], [], [])  # nothing is left to be known


def test_kernel_fast_everywhere_is_found_after_one_trial(store: Store) -> None:
    everywhere, *others = KERNELS
    times = {(everywhere.text, at): 102.0 for at in SHAPES}
    times |= {(one.text, at): 100.0 if number == place else 150.0
              for place, one in enumerate(others) for number, at in enumerate(SHAPES)}  # fmt: skip
    first = [(everywhere.text, SHAPES[0]), *((one.text, at) for one, at in zip(others, SHAPES, strict=False))]
    stored(store, {pair: times[pair] for pair in first})
    device = Simulated(store, times)
    selected = searched(store, device, 0.03)
    assert {*selected.kernels} == {everywhere.text}
    assert selected.losses == pytest.approx([0.02] * len(SHAPES))
    for at in SHAPES:  # beside the best, in one round
        (members,) = (members for problem, members in device.rounds if problem == at)
        assert everywhere.text in members
        assert Tuned(store, DEVICE, [at], 0.03).winners[at].config in members
    assert [row.round for row in selected.rows] == [1] * len(SHAPES)


def test_a_trial_that_was_lucky_is_seen_through_in_turns(store: Store) -> None:
    stored(store, at_two((FIRST, 100.0, 120.0), (SECOND, 102.0, 100.0)))
    times = at_two((FIRST, 100.0, 120.0), (SECOND, 100.0, 100.0))
    device = Simulated(store, times, in_turns={(SECOND.text, SHAPES[0]): 104.0})
    selected = searched(store, device, 0.03, SHAPES[:2])
    assert selected.kernels == (FIRST.text, SECOND.text)
    assert [row.median_us for row in selected.rows] == [100.0, 100.0]


def test_the_vendor_is_timed_beside_the_chosen_kernel(store: Store) -> None:
    """So that who imports the row knows whether the vendor is faster than that kernel."""
    stored(store, at_two((FIRST, 100.0, None), (SECOND, None, 100.0), (BOTH, 102.0, 102.0)), full_verdict="right")
    times = at_two((FIRST, 100.0, 300.0), (SECOND, 300.0, 100.0), (BOTH, 102.0, 102.0))
    selected = searched(store, Simulated(store, times, vendor=True), 0.03, SHAPES[:2])
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


@pytest.mark.parametrize("trouble", [Outcome.WRONG_RESULT, Outcome.INTERRUPTED, None])
def test_what_is_not_verified_in_full_is_not_chosen(store: Store, trouble: Outcome | None) -> None:
    """A wrong kernel is never chosen. The next run verifies a kernel whose verification was interrupted."""
    times = at_two((FIRST, 100.0, 200.0), (SECOND, 200.0, 100.0), (BOTH, 101.0, 101.0))
    known = times if trouble else at_two((FIRST, 100.0, None), (SECOND, None, 100.0))
    stored(store, known)
    device = Simulated(store, known)
    if trouble:  # else it does not run
        device.refuted[BOTH.text] = trouble
    selected = searched(store, device, 0.03, SHAPES[:2])
    assert selected.kernels == (FIRST.text, SECOND.text)
    again = searched(store, Simulated(store, known), 0.03, SHAPES[:2]).kernels
    assert again == ((BOTH.text, BOTH.text) if trouble is Outcome.INTERRUPTED else selected.kernels)


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
    whole = searched(store, device, 0.0)
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
    selected = searched(store, Simulated(store, times), 0.03, SHAPES[:2])
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
