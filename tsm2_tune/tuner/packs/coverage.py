"""How much faster than cuBLAS a pack is: at the shapes that were tuned, and at shapes that were left out."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from tsm2_tune.generator.pack_shapes import kind_of
from tsm2_tune.generator.problem import Problem
from tsm2_tune.runtime.choice.winners import Winner
from tsm2_tune.tuner.packs.exported_kernels import ExportedKernels
from tsm2_tune.tuner.packs.left_out import left_out

SLOWER = 1 / 1.03  # a gain below this is a loss


@dataclass(slots=True)
class Coverage:
    """Gains over cuBLAS's gemm of a module with the pack's kernels. A gain is 1 if the module calls cuBLAS."""

    tuned: list[float] = field(default_factory=list)  # at tuned shapes
    left_out: list[float] = field(default_factory=list)  # at tuned shapes that were left out of the pack


def coverage(kernels: ExportedKernels) -> dict[tuple[str, str], Coverage]:
    """Return (kind, element type) -> gains. Kinds are those of `generator/pack_shapes.py`.

    A tuned shape without a measured time of cuBLAS is left out.
    """
    found = defaultdict[tuple[str, str], Coverage](Coverage)
    for winner in {_shape(kernel.winner): kernel.winner for kernel in kernels.kernels}.values():
        if winner.vendor_us is not None and not winner.on_host:
            found[_cell(winner)].tuned.append(max(winner.vendor_us / winner.median_us, 1.0))
    for one in left_out(kernels.kernels, kernels.device_rates):
        gain = 1.0 if one.is_vendor_chosen else one.vendor_us / one.kernel_us
        found[_cell(one.winner)].left_out.append(gain)
    return dict(found)


def mean(gains: Sequence[float]) -> float | None:
    """Return the geometric mean; None without gains."""
    return math.exp(math.fsum(map(math.log, gains)) / len(gains)) if gains else None


def share_slower(gains: Sequence[float]) -> float | None:
    """Return the share of gains below SLOWER; None without gains."""
    return sum(gain < SLOWER for gain in gains) / len(gains) if gains else None


def _shape(winner: Winner) -> tuple[str, str, str, int, int, int]:
    return winner.device, winner.dtype, winner.op, winner.m, winner.n, winner.k


def _cell(winner: Winner) -> tuple[str, str]:
    return kind_of(Problem(winner.m, winner.n, winner.k, winner.dtype, winner.op)), winner.dtype
