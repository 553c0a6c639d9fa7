"""The kernel of a search space that is nearest to a measured configuration, and the launches of it to try first.

A configuration that was measured for another problem or device may not suit this one: its tile may exceed the matrix,
or its blocks may not fit. The kernels that a search space keeps suit both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.space.candidate import Candidate, Floats, Predictor, tunable
from tsm2_tune.generator.split_k import LEAST_SHARE, splits_to_prefer

MEASURED_SMS = 132  # multiprocessors of the measured cards


class Kernels:
    """The kernels of one family in a search space. Candidates with the same kernel differ only in their launch."""

    def __init__(self, candidates: Iterable[Candidate]) -> None:
        self._launches: dict[tuple[int | str, ...], list[Candidate]] = {}
        for candidate in candidates:
            self._launches.setdefault(_of_kernel(candidate.config), []).append(candidate)
        self._points = _logs(list(self._launches))

    def nearest(self, config: KernelConfig, predict: Predictor) -> tuple[list[Candidate], float]:
        """Return the launches of the nearest kernel, fastest first, and the kernel's distance from `config`.

        The distance is between the binary logarithms of the tunables. Of several nearest kernels, take the one with
        the least predicted time.
        """
        squares = ((self._points - _logs([_of_kernel(config)])) ** 2).sum(axis=1)
        least = squares.min()
        every = list(self._launches.values())
        nearest = [one for place in np.flatnonzero(squares == least) for one in every[place]]
        by_time = [nearest[place] for place in np.argsort(predict(nearest), kind="stable")]
        kernel = _of_kernel(by_time[0].config)
        return [one for one in by_time if _of_kernel(one.config) == kernel], float(np.sqrt(least))


def _of_kernel(config: KernelConfig) -> tuple[int | str, ...]:
    """Return the tunables that determine the CUDA text."""
    launch = config.launch_tunables()
    return tuple(value for name, value in config.tunables.items() if name not in launch)


def _logs(kernels: Sequence[tuple[int | str, ...]]) -> Floats:
    """Return the binary logarithms of the kernels' numeric tunables. That of 0 is one less than that of 1."""
    points = [[value for value in kernel if isinstance(value, int)] for kernel in kernels]
    logs: Floats = np.log2(np.maximum(np.array(points, float), 0.5))
    return logs


def preferred(launches: Sequence[Candidate], config: KernelConfig) -> Sequence[Candidate]:
    """Return the launches to try first of the kernel that is nearest to the measured configuration, best first.

    `launches` are all launches of this kernel, fastest first. None returned has more row tiles per block, or more
    blocks per multiprocessor, than the measured configuration, if there are others.
    """
    problem, limits = launches[0].problem, launches[0].limits
    names, row_tiles = set(config.launch_tunables()), int(config.tunables.get("row_tiles", 1))
    if {"splits", "row_tiles"} <= names and row_tiles == 1 and problem.k >= 2 * LEAST_SHARE:
        whole = [one for one in launches if tunable(one, "row_tiles") == 1]
        if whole:
            return _by_splits(whole)
    blocks = max(int(config.tunables.get("splits", 1)) // MEASURED_SMS, 1)
    most = {"row_tiles": row_tiles, "splits": blocks * limits.sms}
    limited = names & most.keys()
    return [one for one in launches if all(tunable(one, name) <= most[name] for name in limited)] or launches


def _by_splits(launches: Sequence[Candidate]) -> list[Candidate]:
    """Return the launches of a kernel with the splits to prefer, best first. They differ only in splits."""
    of_splits = {tunable(one, "splits"): one for one in launches}
    problem = launches[0].problem
    unsplit = replace(launches[0], config=replace(launches[0].config, splits=1))  # type: ignore[call-arg]
    splits = splits_to_prefer(
        unsplit.limits,
        problem,
        resources=unsplit.resources,
        min_blocks=tunable(unsplit, "min_blocks"),
        tiles=unsplit.launch.tiles(problem.m, problem.n),
        prefetch=tunable(unsplit, "prefetch"),
        options=sorted(of_splits),
    )
    return [of_splits[number] for number in splits]
