"""Intermediate shapes: shapes between the tuned ones, and the kernels that the time model predicts to be fastest.

Kernels for intermediate shapes are exported too, since a program also multiplies shapes that nobody tuned. These
kernels are chosen by predictions, without measurements. That suffices: in searches of 216 shapes on an H200, the
faster of the first two trials took 1.3 % longer than the winner in the median over the shapes, and 4.9 % longer in
the geometric mean.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate, Predictor
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.generator.space.order import FAR_BEHIND
from tsm2_tune.generator.space.seeds import first_choices

KERNELS_OF_A_SHAPE = 2  # kernels exported for an intermediate shape
MOST_SHAPES = 48  # the most intermediate shapes of one element type and op
APART = 1.3  # least ratio of an intermediate shape's extent to that of any other shape


def shapes_between(tuned: Collection[Problem], most: int | None = None) -> list[Problem]:
    """Return at most `most` intermediate shapes. All problems in `tuned` must have the same element type and op.

    A candidate is the geometric mean of two tuned shapes, unless a third tuned shape is nearer to the mean than these
    two. Each next shape is the candidate farthest from the tuned shapes and the shapes chosen so far. If `most` is
    None, the limit is the number of tuned shapes, but at most MOST_SHAPES.
    """
    shapes = sorted(tuned)
    logs = _logs(shapes)
    squares = ((logs[:, None] - logs[None]) ** 2).sum(axis=2)
    firsts, seconds = np.triu_indices(len(shapes), 1)
    # By Thales' theorem, a third shape is inside the ball around the mean if its angle to the two shapes is obtuse.
    alone = [bool((squares[i] + squares[j] >= squares[i, j]).all()) for i, j in zip(firsts, seconds, strict=True)]
    means = np.exp((logs[firsts[alone]] + logs[seconds[alone]]) / 2).round().astype(int).tolist()
    between = list(dict.fromkeys(replace(shapes[0], m=m, n=n, k=k) for m, n, k in means))
    places, found = _logs(between), list[Problem]()
    away = ((places[:, None] - logs[None]) ** 2).sum(axis=2).min(axis=1, initial=np.inf)
    most = min(len(shapes), MOST_SHAPES) if most is None else most
    while len(found) < most and away.max(initial=0.0) >= np.log(APART) ** 2:
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

    Each intermediate shape gets the kernels that a search would try first for it. Configurations of different shapes
    have the same kernel text if they have the same kernel.
    """
    found: dict[str, dict[Problem, KernelConfig]] = {}
    for problem in shapes_between(tuned):
        for config in _first_choices(problem, limits, predict):
            found.setdefault(config.kernel_text, {})[problem] = config
    return found


def _first_choices(problem: Problem, limits: DeviceLimits, predict: Predictor) -> list[KernelConfig]:
    families = [one for one in FAMILIES.values() if not one.only_by_name]
    kernels: dict[str, KernelConfig] = {}
    for config in first_choices(families, problem, limits, predict):
        kernels.setdefault(config.kernel_text, config)
    chosen = list(kernels.values())[:KERNELS_OF_A_SHAPE]
    times_us = predict([Candidate(FAMILIES[one.family], one, problem, limits, Guidelines()) for one in chosen])
    return [config for config, us in zip(chosen, times_us, strict=True) if us <= FAR_BEHIND * times_us[0]]
