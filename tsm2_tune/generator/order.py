"""The order in which a search tries candidates: first choices of the families, then by the model's time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import Any

import numpy as np

from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.model import predicted_us
from tsm2_tune.generator.rules import Candidate
from tsm2_tune.generator.space import SearchSpace
from tsm2_tune.generator.tables import Chosen, Joined, Rows, parts_of, places

Floats = np.ndarray[Any, np.dtype[np.float64]]
HOPELESS = 2.5  # times as long as the fastest family's first choice, by the model, which is off by 2 at most


def ordered(space: SearchSpace, seed: int) -> Sequence[Candidate]:
    """The kept candidates: what the families prefer, then the others by predicted time; ties by the seed.

    The families take turns, that first whose first choice the model says is fastest. Those come after the others
    whose first choice it says is hopeless.
    """
    preferred = [family_named(name).preferred(space.problem, space.limits) for name in space.families]
    at = places(space.kept, frozenset(chain.from_iterable(preferred)))
    choices = [[space.kept[at[config]] for config in configs if config in at] for configs in preferred]
    turns = sorted(filter(None, choices), key=lambda choice: predicted_time_us(choice[0]))
    least_us = predicted_time_us(turns[0][0]) if turns else 0.0
    hopeful = [choice for choice in turns if predicted_time_us(choice[0]) <= HOPELESS * least_us]
    in_turns = [turn for group in (hopeful, turns) for turn in zip_longest(*group)]
    first = list(dict.fromkeys(candidate for turn in in_turns for candidate in turn if candidate))
    of_first = [at[candidate.config] for candidate in first]
    rest = np.delete(np.arange(len(space.kept)), of_first).tolist()
    random.Random(seed).shuffle(rest)
    times_us = np.concatenate([np.empty(0), *(_predicted_times_us(part) for _, part in parts_of(space.kept))])
    by_time = np.array(rest, int)[np.argsort(times_us[rest], kind="stable")]
    return Joined([first, Chosen(space.kept, by_time)])


def _predicted_times_us(candidates: Sequence[Candidate]) -> Floats:
    """The model's time for each."""
    if isinstance(candidates, Rows):
        times_us: Floats = predicted_time_us(candidates.wide)
        return times_us
    return np.array([predicted_time_us(candidate) for candidate in candidates], float)


def predicted_time_us(candidate: Candidate) -> Any:
    """The model's time for the candidate, in microseconds; of a table of candidates an array."""
    family, problem = family_named(candidate.config.family), candidate.problem
    traffic = family.traffic(candidate.config, problem)
    launch = candidate.launch
    return predicted_us(
        limits=candidate.limits,
        dtype_name=problem.dtype_name,
        read_bytes=traffic.read_bytes,
        written_bytes=traffic.written_bytes,
        flops=problem.flops,
        threads_per_sm=candidate.occupancy.threads_per_sm,
        bytes_in_flight_per_thread=candidate.resources.bytes_in_flight,
        blocks=launch.blocks(problem.m, problem.n),
        threads_per_block=launch.threads,
        blocks_per_sm=candidate.occupancy.blocks_per_sm,
    )
