"""The union of databases is a join: no order of imports matters, and twice is as once."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tsm2_tune.tuner.results import logical_clock
from tsm2_tune.tuner.results.fingerprint import superseded_basis
from tsm2_tune.tuner.results.merge.union import RUN, Part, Round, RunKey, Timed, TrialKey, Tried, part_of, union
from tsm2_tune.tuner.results.trial import Outcome

OUTCOMES = (Outcome.OK, Outcome.OK, Outcome.OK, Outcome.BEHIND, Outcome.TIMED_OUT, Outcome.CRASHED)
TRIPLES = int(os.environ.get("TRIPLES", "1000"))
STATES = ("clean", "warm")
UNTOLD = {"compile_limit_seconds": None, "total_seconds": 0.0}  # values that a text does not tell
YEAR_US = 365 * 24 * 3600 * 10**6


class History:
    """A database and its copies, on which runs, imports and people do what they do."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = 1_700_000_000_000_000
        self.parts = [Part()]
        for _ in range(self.rng.randint(8, 30)):
            at = self.rng.randrange(len(self.parts))
            changed = self.rng.choice(self.steps())(self.parts[at])
            if self.rng.random() < 0.3:
                self.parts.append(changed)
            else:
                self.parts[at] = changed

    def triple(self) -> tuple[Part, Part, Part]:
        one, two, three = (self.rng.choice(self.parts) for _ in range(3))
        return one, two, three

    def has_current_kernel(self, tried: Tried) -> bool:
        return bool(tried.values["source_digest"] == "k1")

    def steps(self) -> tuple[Callable[[Part], Part], ...]:
        return (self.tried, self.tried, self.tried, self.final, self.final, self.superseded, self.forgotten,
                self.refuted, self.verified, self.imported, self.text)  # fmt: skip

    def stamp(self, known: Iterator[int]) -> int:
        self.clock += self.rng.choice((1, 1000, 10**6, YEAR_US, -YEAR_US))
        return max(self.clock, 1 + max(known, default=0))

    def run(self) -> RunKey:
        values = dict.fromkeys(RUN, "x") | {"started_at": f"2026-01-0{self.rng.randint(1, 3)}T00:00:00+00:00"}
        return tuple(values.values())

    def timed(self, run: RunKey, state: str) -> Timed:
        us = self.rng.choice((1.0, 2.0, self.rng.random() + 1))
        values = {"cache": state, "median_us": us, "low_us": us, "high_us": us, "summary_of": None}
        return Timed(run, values, (us, us, us))

    def tried(self, part: Part) -> Part:
        """A new trial, or the same one again."""
        run, state = self.run(), self.rng.choice(STATES)
        outcome = self.rng.choice(OUTCOMES)
        values: dict[str, Any] = {
            "config": self.rng.choice("ab"), "basis": self.rng.choice(("old", "new")) + state, "first_basis": None,
            "source_digest": self.rng.choice(("k1", "k2", "k3")), "rows_per_block": None, "splits": None,
            "outcome": outcome.value, "is_between": self.rng.randint(0, 1), "superseded": 0, "cache": state,
            "compile_limit_seconds": self.rng.choice((None, 1.0, 2.0)), "run_limit_seconds": None,
            "full_verdict": None, "verified_code": None,
            "ended_at": "2026-01-05T00:00:00+00:00", "strategy": self.rng.choice("xy"), "total_seconds": 1.0,
            "stamp": self.stamp(tried.values["stamp"] for tried in part.trials.values()),
        }  # fmt: skip
        new = Tried(run, values, self.timed(run, state) if outcome in (Outcome.OK, Outcome.BEHIND) else None)
        rivals = [one for one in part.trials.values() if (one.values["config"], one.basis) == (new.key[0], new.basis)]
        others = {one.key: self.mark(one) if one in rivals else one for one in part.trials.values()}
        if new.key in others and self.rng.random() < 0.7:  # another run's, which had been forgotten here
            del others[new.key]
        return part_of((*others.values(), new), part.rounds)

    def mark(self, tried: Tried) -> Tried:
        if tried.values["superseded"]:
            return tried
        values = {**tried.values, "superseded": 1, "first_basis": tried.basis}
        return replace(tried, values=values | {"basis": superseded_basis(tried.values)})

    def final(self, part: Part) -> Part:
        run, state = self.run(), self.rng.choice(STATES)
        keys = [key for key, one in part.trials.items() if one.values["outcome"] == "ok"]
        timed = {key: self.timed(run, state) for key in keys if self.rng.random() < 0.7}
        vendor = {"cuBLAS": self.timed(run, state)} if self.rng.random() < 0.5 else {}
        stamp = self.stamp(one.stamp for one in part.rounds)
        new = Round(run, f"{self.rng.getrandbits(64):016x}", stamp, timed, vendor)
        return part_of(part.trials.values(), (*part.rounds, new) if timed else part.rounds)

    def one_of(self, part: Part) -> list[TrialKey]:
        return self.rng.sample(list(part.trials), k=min(1, len(part.trials)))

    def changed(self, part: Part, **changes: Any) -> Part:
        trials = dict(part.trials)
        for key in self.one_of(part):
            if trials[key].values["outcome"] == "ok":
                trials[key] = replace(trials[key], values={**trials[key].values, **changes})
        return Part(trials, part.rounds)

    def refuted(self, part: Part) -> Part:
        return self.changed(part, outcome=Outcome.WRONG_RESULT.value)

    def verified(self, part: Part) -> Part:
        return self.changed(
            part,
            full_verdict=self.rng.choice(("right", "right too")),
            verified_code=self.rng.choice((None, "a", "b")),
        )

    def superseded(self, part: Part) -> Part:
        gone = self.one_of(part)
        return Part({key: self.mark(one) if key in gone else one for key, one in part.trials.items()}, part.rounds)

    def forgotten(self, part: Part) -> Part:
        gone = self.one_of(part)
        trials = {key: tried for key, tried in part.trials.items() if key not in gone}
        left = (
            replace(one, timed={key: timed for key, timed in one.timed.items() if key in trials})
            for one in part.rounds
        )
        return Part(trials, [one for one in left if one.timed])

    def imported(self, part: Part) -> Part:
        return union(part, self.rng.choice(self.parts), self.has_current_kernel)

    def text(self, part: Part) -> Part:
        """Return what a text tells: summaries of what went well, and a part of each final."""

        def short(timed: Timed) -> Timed:
            return replace(timed, values={**timed.values, "summary_of": 3}, samples_us=())

        trials = {
            key: replace(one, first=short(one.first), others=(), values={**one.values, **UNTOLD})
            for key, one in part.trials.items()
            if one.first is not None and one.values["outcome"] == "ok" and not one.values["superseded"]
        }
        rounds = []
        for one in part.rounds:
            timed = {key: short(each) for key, each in one.timed.items() if key in trials and self.rng.random() < 0.8}
            if timed:
                rounds.append(
                    replace(one, timed=timed, vendor={name: short(two) for name, two in one.vendor.items()})
                )
        return Part(trials, rounds)


def broken(seed: int) -> list[str]:
    """The laws of a join that the union of three copies of a history breaks."""
    history = History(seed)
    parts, found = history.triple(), []

    def join(one: Part, other: Part) -> Part:
        return union(one, other, history.has_current_kernel)

    def facts(part: Part) -> object:
        return dict(part.trials), list(part.rounds)

    ends = []
    for one, two, three in itertools.permutations(parts):
        if facts(join(one, two)) != facts(join(two, one)):
            found.append("commutative")
        ends += [join(join(one, two), three), join(one, join(two, three))]
    if any(facts(end) != facts(ends[0]) for end in ends):
        found.append("associative")
    if any(join(ends[0], part) is not ends[0] for part in (*parts, ends[0])):
        found.append("idempotent")
    live = [(key[0], one.basis) for key, one in ends[0].trials.items() if not one.values["superseded"]]
    if len(live) > len(set(live)):
        found.append("two kernels of one configuration and basis compete")
    return found


@pytest.mark.slow
def test_union_is_commutative_associative_and_idempotent() -> None:
    assert {seed: laws for seed in range(TRIPLES) if (laws := broken(seed))} == {}


def test_samples_from_another_database_do_not_change_which_try_is_kept() -> None:
    """Two texts and a database: the second text's copy of the kernel also has the samples of the first one's time."""
    full = next(one for seed in itertools.count() for one in History(seed).parts[0].trials.values() if one.first)
    assert full.first is not None
    own, sampled = (replace(full.first, values={**full.first.values, "median_us": us}) for us in (7.0, 8.0))
    summary = replace(sampled, values={**sampled.values, "summary_of": len(sampled.samples_us)}, samples_us=())
    told = {**full.values, **UNTOLD, "outcome": "ok"}
    one = replace(full, values={**told, "ended_at": "1"}, first=summary, others=())
    two = replace(full, values={**told, "ended_at": "2"}, first=replace(own, samples_us=()), others=(sampled,))
    three = replace(full, values={**told, "total_seconds": 1.0, "ended_at": "3"}, others=())
    first, second, third = (Part({tried.key: tried}) for tried in (one, two, three))

    def joined(one: Part, other: Part) -> Part:
        return union(one, other, lambda tried: False)

    assert joined(joined(first, second), third).trials == joined(first, joined(second, third)).trials


def test_stamps_go_on_after_a_clock_that_was_ahead() -> None:
    ahead = logical_clock.after(None) + YEAR_US
    assert logical_clock.after(ahead) == ahead + 1
