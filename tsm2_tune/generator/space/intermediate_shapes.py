"""Intermediate shapes: shapes between the tuned ones, and the kernels that a search would try first for them.

Kernels for intermediate shapes are exported too, since a program also multiplies shapes that nobody tuned. The
kernels are derived from measurements of similar shapes. At the intermediate shape itself nothing is measured.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import log
from typing import Any

import numpy as np

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate, Predictor
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.generator.space.order import MOST_PREDICTED
from tsm2_tune.generator.space.seeds import first_choices
from tsm2_tune.generator.space.space import search_space

KERNELS_OF_A_SHAPE = 2  # kernels exported for an intermediate shape
MOST_SHAPES = 48  # the most intermediate shapes of one element type and op
# Least distance of an intermediate shape from every other shape, in logarithms: a factor of 1.3 in one extent.
LEAST_DISTANCE = log(1.3)


def shapes_between(tuned: Collection[Problem], most: int | None = None) -> list[Problem]:
    """Return at most `most` intermediate shapes. All problems in `tuned` must have the same element type and op.

    A midpoint is the geometric mean of two tuned shapes, unless a third tuned shape is nearer to the mean than these
    two. Each next shape is the midpoint farthest from the tuned shapes and the shapes chosen so far. If `most` is
    None, the limit is the number of tuned shapes, but at most MOST_SHAPES.
    """
    shapes = sorted(tuned)
    logs = _logs(shapes)
    squares = ((logs[:, None] - logs[None]) ** 2).sum(axis=2)
    firsts, seconds = np.triu_indices(len(shapes), 1)
    # By Thales' theorem, a third shape is inside the ball around the mean if its angle to the two shapes is obtuse.
    is_between = [
        bool((squares[i] + squares[j] >= squares[i, j]).all()) for i, j in zip(firsts, seconds, strict=True)
    ]
    means = np.exp((logs[firsts[is_between]] + logs[seconds[is_between]]) / 2).round().astype(int).tolist()
    between = list(dict.fromkeys(replace(shapes[0], m=m, n=n, k=k) for m, n, k in means))
    places, found = _logs(between), list[Problem]()
    away = ((places[:, None] - logs[None]) ** 2).sum(axis=2).min(axis=1, initial=np.inf)
    most = min(len(shapes), MOST_SHAPES) if most is None else most
    while len(found) < most and away.max(initial=0.0) >= LEAST_DISTANCE**2:
        farthest = int(away.argmax())
        found.append(between[farthest])
        away = np.minimum(away, ((places - places[farthest]) ** 2).sum(axis=1))
    return found


def _logs(shapes: Collection[Problem]) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = np.log(np.array([(one.m, one.n, one.k) for one in shapes], float).reshape(-1, 3))
    return found


def kernels_between(
    tuned: Collection[Problem], limits: DeviceLimits, predict: Predictor
) -> dict[str, dict[Problem, KernelConfig]]:
    """Return kernels for the intermediate shapes: kernel text -> problem -> configuration.

    Each intermediate shape gets at most KERNELS_OF_A_SHAPE kernels: the first choices of a search with the package's
    measurements. A kernel is left out if it is predicted to take more than MOST_PREDICTED times as long as the first
    choice. Configurations of different shapes have the same kernel text if they have the same kernel.
    """
    found: dict[str, dict[Problem, KernelConfig]] = {}
    for problem in shapes_between(tuned):
        for config in _first_choices(problem, limits, predict):
            found.setdefault(config.kernel_text, {})[problem] = config
    return found


def _first_choices(problem: Problem, limits: DeviceLimits, predict: Predictor) -> list[KernelConfig]:
    kernels: dict[str, KernelConfig] = {}
    for config in first_choices(search_space(problem, limits), predict):
        kernels.setdefault(config.kernel_text, config)
    chosen = list(kernels.values())[:KERNELS_OF_A_SHAPE]
    times_us = predict([Candidate(FAMILIES[one.family], one, problem, limits, Guidelines()) for one in chosen])
    return [config for config, us in zip(chosen, times_us, strict=True) if us <= MOST_PREDICTED * times_us[0]]
