"""Which problem of a run is next, where several runs have the same ones: first those that no other run is at."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.runs.leases.configurations import WAIT_SECONDS, Claims
from tsm2_tune.tuner.runs.leases.problems import ProblemClaims
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.resume import ClaimResult

AWAITED_SECONDS = 600.0  # at the most, for a run that lives and has joined: longer than a trial takes
NOT_OF_A_SEARCH = ("seed", "sharing")  # options by which two searches of a problem are not told apart


def search_key(basis: str, options: Options, *others: object) -> str:
    """Return the key of a search of a problem. A run that ends a search ends all searches with the same key."""
    values = {one.name: getattr(options, one.name) for one in fields(options) if one.name not in NOT_OF_A_SEARCH}
    options_key = [(name, sorted(value) if isinstance(value, frozenset) else value) for name, value in values.items()]
    return hashlib.sha256(repr((basis, options_key, others)).encode()).hexdigest()


class ProblemOrder:
    """Gives the place of each problem that this run has a part in, in their order but for those others are at.

    A problem is left out whose search another run has ended since this was made. When only problems are left that
    others are at, the run joins them: a claim of each configuration divides a search. What it has joined it waits
    for, and takes over where the other run dies. So does the other one: where a run that has joined it is at some
    configurations yet, or any run is at some that this one asked for, the search has not ended, and comes again once
    that run has done these, has died, or has stood still for long.
    """

    def __init__(self, claims: Claims, problems: Sequence[Problem], search: str) -> None:
        self._claims, self._problem_claims, self._problems = claims, ProblemClaims(claims, search), problems
        self._chance = random.Random(claims.owner)  # else all that have no problem left would join the same one
        self._remaining, self._joined = list(range(len(problems))), set[int]()
        self._due = set[int]()  # joined places that come again once nobody is waited for
        self._awaited = dict[tuple[int, str], float]()  # by place and run: since when this one waits
        self.ended_elsewhere = 0  # problems that were left out

    def __iter__(self) -> Iterator[int]:
        while self._remaining:
            taken, others = self._taken()
            if taken is None and not others:
                if self._remaining:
                    time.sleep(WAIT_SECONDS)
                continue
            place = self._chance.choice(others) if taken is None else taken
            self._claims.contested.forget_all(self._problems[place])
            self._due.discard(place)
            yield place
            if any(self._others(place)):
                self._due.add(place)
            if taken is None or place in self._due:
                self._joined.add(place)
            else:
                self._remaining.remove(place)
                self._problem_claims.end(self._problems[place])

    def _others(self, place: int) -> tuple[bool, bool]:
        """Return whether other runs are at configurations of the problem, and are not waited for in vain; and whether
        some that this one left to them are nobody's now.
        """
        problem, now = self._problems[place], time.monotonic()
        at_wanted, is_free = self._claims.contested.state(problem)
        runs = self._problem_claims.others(problem) | at_wanted
        waits = [now - self._awaited.setdefault((place, run), now) for run in runs]
        return any(waited < AWAITED_SECONDS for waited in waits), is_free

    def _taken(self) -> tuple[int | None, list[int]]:
        """Return the first problem that no other run is at, claimed; else those to join.

        What is done is left no more.
        """
        others: list[int] = []
        for place in list(self._remaining):
            problem, is_joined = self._problems[place], place in self._joined
            awaits, is_free = self._others(place) if is_joined else (False, False)
            if awaits:
                continue
            answer = self._problem_claims.take(problem)
            if answer is ClaimResult.OURS:
                return place, []
            is_done = is_joined and place not in self._due
            if not is_free and (answer is ClaimResult.ENDED or (answer is ClaimResult.OTHER_OPTIONS and is_done)):
                self._remaining.remove(place)
                self.ended_elsewhere += not is_joined
            elif is_free or not is_joined or answer is ClaimResult.OTHER_OPTIONS:
                others.append(place)
        return None, others
