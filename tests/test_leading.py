"""Tests of the variants that a search makes of its fastest candidates: cache policies of their loads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.families import FAMILIES, family_named, parse_config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.order import ordered
from tsm2_tune.generator.space.space import search_space
from tsm2_tune.tuner.packs.candidate_times import candidate_times_us
from tsm2_tune.tuner.results.records import config_of
from tsm2_tune.tuner.search import session
from tsm2_tune.tuner.search.candidates import Search
from tsm2_tune.tuner.search.resume import NO_PRIOR_TRIALS, PriorTrials
from tsm2_tune.tuner.search.strategies.model import FIRST, LEADING, Model
from tsm2_tune.tuner.search.strategies.strategy import InOrder, TrialResult

pytestmark = pytest.mark.slow

R = Problem(20480, 5, 20480, "f32")
SPACE = search_space(R, PROFILES["h200"], families=["stream_a_fma"])
ORDERED = list(ordered(SPACE, 0, candidate_times_us)[: 3 * FIRST])
LATE = [name for name, family in FAMILIES.items() if family.config_type.late_tunables()]


def tried(
    candidates: list[Candidate],
    time_us: Callable[[KernelConfig], float] = lambda config: 100.0,
    *,
    past: PriorTrials = NO_PRIOR_TRIALS,
    is_skipped: Callable[[Candidate], bool] = lambda _: False,
    most: int | None = None,
    ahead: int = 0,
) -> list[KernelConfig]:
    """The configurations in the order in which a search tries them, which compiles some ahead."""
    search, pending = Search(Model(candidates), past, is_skipped, most=most), list[Candidate]()
    found: list[KernelConfig] = []
    while True:
        while len(pending) <= ahead and (candidate := next(search, None)) is not None:
            pending.append(candidate)
        if not pending:
            return found
        found.append(pending.pop(0).config)
        search.tell(TrialResult(found[-1], time_us(found[-1]), is_right=True))


def plain(config: KernelConfig) -> KernelConfig:
    return replace(config, evict_first=0)  # type: ignore[call-arg]


def test_search_tries_the_other_load_policy_for_leaders() -> None:
    """Also for whoever comes among the fastest later."""
    assert all(candidate.config == candidate.config.early for candidate in SPACE.kept)
    times = {candidate.config: 100.0 + place for place, candidate in enumerate(ORDERED)}
    found = tried(ORDERED, lambda config: times[config.early])
    enumerated = [candidate.config for candidate in ORDERED]
    assert found[:FIRST] == enumerated[:FIRST]
    assert found[FIRST : FIRST + LEADING] == [plain(config) for config in enumerated[:LEADING]]
    assert found[FIRST + LEADING :] == enumerated[FIRST:]
    late = ORDERED[2 * FIRST].config
    times[late] = 1.0
    found = tried(ORDERED, lambda config: times[config.early])
    assert found[found.index(late) + 1] == plain(late)
    assert len(found) == len(ORDERED) + LEADING + 1


def test_a_fast_policy_does_not_keep_others_from_it() -> None:
    """If a policy is always faster, only candidates without one are compared."""
    times = {candidate.config: 200.0 - place for place, candidate in enumerate(ORDERED)}
    found = tried(ORDERED, lambda config: times[config.early] * (1.0 if config == config.early else 0.5))
    assert plain(ORDERED[-1].config) in found
    assert len(found) == 2 * len(ORDERED) - FIRST + LEADING


@pytest.mark.parametrize("ahead", [0, 3, 30])
def test_few_candidates_are_enough_once_none_is_left(ahead: int) -> None:
    few = ORDERED[:2]
    times = {one.config: 100.0 + place for place, one in enumerate(few)}
    found = tried(few, lambda config: times[config.early], ahead=ahead)
    assert found == [one.config for one in few] + [plain(one.config) for one in few]


def test_what_was_tried_before_counts() -> None:
    done = [one.config for one in ORDERED[:FIRST]]
    told = tuple(TrialResult(config, 100.0 + place, is_right=True) for place, config in enumerate(done))
    past = PriorTrials(frozenset(config.text for config in done), 1.0, (), frozenset(), results=told)
    found = tried(ORDERED[:FIRST], past=past)
    assert found == [plain(config) for config in done[:LEADING]]
    again = replace(past, tried=past.tried | {config.text for config in found})
    assert tried(ORDERED[:FIRST], past=again) == []


def test_quarantine_failures_and_the_most_trials_hold_for_them() -> None:
    assert len(tried(ORDERED, most=FIRST + 1)) == FIRST + 1
    found = tried(ORDERED, is_skipped=lambda one: one.config != one.config.early)
    assert found == [one.config for one in ORDERED]
    assert tried(ORDERED, most=0) == []
    search = Search(Model(ORDERED[:1]))
    search.tell(TrialResult(next(search).config, None, is_right=False))
    assert next(search, None) is None, "something is made of what failed"


@pytest.mark.parametrize("name", LATE)
def test_late_configuration_is_stored_beside_its_origin(name: str) -> None:
    family = family_named(name)
    some = next(one for one in family.configurations() if family.later(one))
    (other,) = family.later(some)
    assert other.text == f"{some.text},evict_first=0"
    assert parse_config(other.text) == other
    assert parse_config(some.text) == parse_config(f"{some.text},evict_first=1") == some
    assert parse_config(f"{some.text},evict_first=7") not in family.later(some)
    assert family.has(some, R) == family.has(other, R)
    assert not family.has(replace(some, evict_first=7), R)
    for config in (some, other):
        assert config_of(name, config.text, config.json) == config
    if name == "inner_mma16":  # copies in the background have no load that a policy could change
        copied = next(one for one in family.configurations() if one.stages > 2)
        assert family.later(copied) == ()
        assert not family.has(replace(copied, evict_first=0), Problem(16, 16, 10**6, "bf16", "tn"))


def test_the_policies_differ_in_loads_alone() -> None:
    some = ORDERED[0].config
    ours, theirs = (render(R, config).text.splitlines() for config in (some, plain(some)))
    different = [(a, b) for a, b in zip(ours, theirs, strict=True) if a != b]
    loads = [(a, b) for a, b in different if not a.lstrip().startswith("//")]
    assert loads
    assert all(b == a.replace("__ldcs(from)", "*from").replace("__ldcs", "__ldg") != a for a, b in loads)
    assert len(different) == len(loads) + 2  # the head, and the comment on the loads


def test_a_late_winner_of_before_is_tried_first() -> None:
    texts = (f"{SPACE.kept[5].config.text},evict_first=0", "stream_a_fma-of-another-time", SPACE.kept[3].config.text)
    found = list(Search(InOrder(SPACE.kept), first=session.candidates_for(texts, SPACE)))
    assert [one.config.text for one in found[:2]] == [texts[0], texts[2]]
    assert [one.config for one in found[2:]] == [one.config for one in SPACE.kept if one.config.text != texts[2]]
