"""Fit of a kernel's arithmetic rate and cached bandwidth to its measured times at several shapes.

At some shapes a kernel does additional work: it computes partly filled tiles, or reads an operand several times. The
rate of this work differs between kernels, and can be measured only at such shapes.
"""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np

from tsm2_tune.generator.config import family_name_in
from tsm2_tune.runtime.choice.choose import measured_of
from tsm2_tune.runtime.choice.interpolation import START_US
from tsm2_tune.runtime.choice.predict import CACHED_RATE, Division, Kernels
from tsm2_tune.runtime.choice.winners import Winner
from tsm2_tune.runtime.choice.work import Card

FITTED = ("arithmetic_rate", "cached_rate", "odd_lines")  # fitted fields of Division
# Values that are tried: arithmetic rate as a multiple of the GPU's rate (tensor cores exceed 1), bandwidth of cached
# reads as a multiple of the memory's, and the time factor for lines that are not a multiple of vector loads.
ARITHMETIC_RATES = (4.0, 2.5, 1.6, 1.0, 0.7, 0.5, 0.33, 0.25, 0.17, 0.11, 0.07)
CACHED_RATES = (8.0, 4.0, 2.0, CACHED_RATE, 0.7, 0.35, 0.17)
ODD_LINES = (1.0, 1.15, 1.4, 1.8, 2.4)
# Kernel family -> usual share of the GPU's arithmetic rate; 1 for other families. They are the means for 276 winners
# on an H100. Families whose threads read most operands from shared memory have lower rates.
USUAL_ARITHMETIC = {
    "tsm2": 0.5,
    "ism2": 0.5,
    "resident_b_dmma": 0.6,
    "resident_b_fma_ring": 0.6,
    "row_lanes_register_b": 0.35,
    "inner_fma_ring": 0.4,
}
USUAL = 0.1  # weight of a rate's squared log-ratio to its usual value; times have weight 1
FAR = 4.0  # ratio of a time to the least possible time beyond which its weight is small


def fitted(winner: Winner, card: Card) -> Division:
    """Return the winner's Division (its model parameters) with rates fitted to its measured times.

    A rate that differs from its usual value is penalised. If the winner was timed only at its own shape, its rates
    are the usual values.
    """
    division = winner.division
    assert division is not None
    if winner.on_host:
        return division
    division = replace(division, arithmetic_rate=USUAL_ARITHMETIC.get(family_name_in(winner.config), 1.0))
    if not winner.elsewhere:
        return division
    measured = measured_of(winner, card)
    odd = {bool(one.work.has_odd_lines) for one in measured}
    odd_lines = sorted({*ODD_LINES, division.odd_lines}) if len(odd) > 1 else [division.odd_lines]
    tried = list(product(ARITHMETIC_RATES, CACHED_RATES, odd_lines))
    facts = {field.name: getattr(division, field.name) for field in fields(division)}
    divisions: Any = [SimpleNamespace(**{**facts, **dict(zip(FITTED, rates, strict=True))}) for rates in tried]
    kernels = Kernels(divisions, [winner.launch], [measured[0].work], [measured], card)  # launch and times are shared
    us = np.array([one.us for one in measured])
    least_us = START_US + np.array([one.work.least_us for one in measured])
    weights = 1 / (1 + (us / (FAR * least_us)) ** 2)
    unexplained = (weights * np.log(us / kernels.unmeasured_us([measured])) ** 2).sum(axis=1)
    usual = np.array([division.arithmetic_rate, CACHED_RATE, division.odd_lines])
    unusual = (np.log(np.array(tried) / usual) ** 2).sum(axis=1)
    arithmetic, cached, longer = tried[int((unexplained + USUAL * unusual).argmin())]
    return replace(division, arithmetic_rate=arithmetic, cached_rate=cached, odd_lines=longer)
