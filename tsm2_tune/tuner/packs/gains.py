"""Gains of an exported module over cuBLAS's GEMM: at tuned shapes, and by leave-one-out."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from tsm2_tune.generator.pack_shapes import Part, part_of
from tsm2_tune.generator.problem import Problem
from tsm2_tune.runtime.choice.winners import Winner
from tsm2_tune.tuner.packs.exported_kernels import ExportedKernels
from tsm2_tune.tuner.packs.left_out import left_out, vendor_us

SLOWER = 1 / 1.03  # with a smaller gain a kernel is slower than cuBLAS


@dataclass(slots=True)
class Gains:
    """Gains of a module: the time of cuBLAS's GEMM divided by the kernel's, or 1 if the module calls cuBLAS."""

    tuned: list[float] = field(default_factory=list)  # at tuned shapes
    # At tuned shapes, without the kernels and times of the shape; only where the chosen kernel was measured.
    leave_one_out: list[float] = field(default_factory=list)


def gains_of(kernels: ExportedKernels) -> dict[Part, Gains]:
    """Return the gains of each part.

    A tuned shape is skipped if cuBLAS was not measured there or its result was wrong.
    """
    found = defaultdict[Part, Gains](Gains)
    fastest = dict[tuple[str, Problem], Winner]()
    for winner in sorted((kernel.winner for kernel in kernels.kernels), key=lambda one: one.median_us):
        fastest.setdefault((winner.device, _problem(winner)), winner)
    for winner in fastest.values():
        us = vendor_us(winner)
        if us is not None and not winner.on_host:
            found[part_of(_problem(winner))].tuned.append(max(us / winner.median_us, 1.0))
    for one in left_out(kernels.kernels, kernels.device_rates):
        gain = 1.0 if one.is_vendor_chosen else one.gain
        found[part_of(_problem(one.winner))].leave_one_out.append(gain)
    return dict(found)


def mean(gains: Sequence[float]) -> float | None:
    """Return the geometric mean; None without gains."""
    return math.exp(math.fsum(map(math.log, gains)) / len(gains)) if gains else None


def share_slower(gains: Sequence[float]) -> float | None:
    """Return the share of gains below SLOWER; None without gains."""
    return sum(gain < SLOWER for gain in gains) / len(gains) if gains else None


def _problem(winner: Winner) -> Problem:
    return Problem(winner.m, winner.n, winner.k, winner.dtype, winner.op, winner.batch)
