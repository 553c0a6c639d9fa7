"""The order in which a search tries candidates: first choices of the families, then by expected time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import Any

import numpy as np

from tsm2_tune.generator.candidate import Candidate
from tsm2_tune.generator.expected import expected_us
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.first_choices import first_choices
from tsm2_tune.generator.space import SearchSpace
from tsm2_tune.generator.tables import Chosen, Joined, Rows, parts_of, places

Floats = np.ndarray[Any, np.dtype[np.float64]]
FAR_BEHIND = 2.0  # times as long as the fastest candidate of all: no first choice; winners on an H200 are below 1.6


def ordered(space: SearchSpace, seed: int) -> Sequence[Candidate]:
    """The kept candidates: what the families prefer, then the others by expected time; ties by the seed.

    The families take turns, that first whose first choice is expected to be fastest. One whose first choice is far
    behind what any candidate is expected to take is preferred for nothing: its candidates stand among the others.
    """
    preferred = [first_choices(family_named(name), space.problem, space.limits) for name in space.families]
    at = places(space.kept, frozenset(chain.from_iterable(preferred)))
    times_us = expected_times_us(space.kept)
    alone = len(space.families) == 1  # whatever it prefers is all that is asked for
    far_us = np.inf if alone else FAR_BEHIND * float(times_us.min(initial=np.inf))
    choices = [[at[config] for config in configs if config in at] for configs in preferred]
    worth_it = (choice for choice in choices if choice and times_us[choice[0]] <= far_us)
    turns = zip_longest(*sorted(worth_it, key=lambda choice: float(times_us[choice[0]])))
    first = list(dict.fromkeys(place for turn in turns for place in turn if place is not None))
    rest = np.delete(np.arange(len(space.kept)), first).tolist()
    random.Random(seed).shuffle(rest)
    by_time = np.array(rest, int)[np.argsort(times_us[rest], kind="stable")]
    return Joined([[space.kept[place] for place in first], Chosen(space.kept, by_time)])


def expected_times_us(candidates: Sequence[Candidate]) -> Floats:
    """The expected time of each, in microseconds."""
    return np.concatenate([np.empty(0), *(_times_us(part) for _, part in parts_of(candidates))])


def _times_us(part: Sequence[Candidate]) -> Floats:
    if isinstance(part, Rows):
        times_us: Floats = expected_us(part.wide)
        return times_us
    return np.array([expected_us(candidate) for candidate in part], float)
