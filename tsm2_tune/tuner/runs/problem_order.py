"""Choose the next problem of a tuning run: first problems that no other run on the same database is tuning."""

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

AWAITED_SECONDS = 600.0  # longest wait for another living run; longer than a trial
NOT_OF_A_SEARCH = ("seed", "sharing")  # options that are not in a search's key


def search_key(basis: str, options: Options, *others: object) -> str:
    """Return a SHA-256 digest of the search's settings.

    If a run completes the search of a problem, other runs with the same digest skip this problem.
    """
    values = {one.name: getattr(options, one.name) for one in fields(options) if one.name not in NOT_OF_A_SEARCH}
    options_key = [(name, sorted(value) if isinstance(value, frozenset) else value) for name, value in values.items()]
    return hashlib.sha256(repr((basis, options_key, others)).encode()).hexdigest()


class ProblemOrder:
    """Iterator over the indices of the problems that this run tunes. Problems that other runs are tuning come last.

    A problem is skipped if another run has completed its search since this object was created. If other runs are
    tuning all remaining problems, this run joins one of them: both runs share the problem's configurations. A joined
    problem is yielded again when the other run has finished its configurations, has died, or has made no progress for
    AWAITED_SECONDS. A problem that this run has searched is yielded again in the same way if other runs still try
    configurations that this run wanted to try.
    """

    def __init__(self, claims: Claims, problems: Sequence[Problem], search: str) -> None:
        self._claims, self._problem_claims, self._problems = claims, ProblemClaims(claims, search), problems
        self._chance = random.Random(claims.owner)  # random, since otherwise all runs would join the same problem
        self._remaining, self._joined = list(range(len(problems))), set[int]()
        self._due = set[int]()  # joined problems to yield again when no run is awaited
        self._awaited = dict[tuple[int, str], float]()  # problem and run -> start of the wait
        self.ended_elsewhere = 0  # skipped problems

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
        """Return (is_waiting, is_free) for the problem with this index.

        `is_waiting` tells whether to wait for other runs at the problem. `is_free` tells whether this run can now
        claim a configuration that it could not claim before.
        """
        problem, now = self._problems[place], time.monotonic()
        at_wanted, is_free = self._claims.contested.state(problem)
        runs = self._problem_claims.others(problem) | at_wanted
        waits = [now - self._awaited.setdefault((place, run), now) for run in runs]
        return any(waited < AWAITED_SECONDS for waited in waits), is_free

    def _taken(self) -> tuple[int | None, list[int]]:
        """Claim the first problem that no other run is tuning, and return (index, []).

        If there is no such problem, return (None, indices of the problems that this run can join). Completed problems
        are removed from the remaining problems.
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
