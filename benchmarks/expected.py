"""Check how accurately a kernel's time on one shape predicts its time on another, from a result file's winners.

    python -m benchmarks.expected benchmarks/results/h200-versus-cublas.json

If one kernel was the fastest at several shapes of an element type and op, its time at each shape is predicted from
the nearest other shape, with the launch that was measured, and compared with the measured time. The number of blocks
per multiprocessor is estimated, since the file does not contain it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.result_file import read
from tsm2_tune.commands.errors import Command
from tsm2_tune.errors import InputError
from tsm2_tune.generator.config import family_name_in
from tsm2_tune.generator.device.cards import profile_named
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.device.occupancy import occupancy
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.tiling import Tiling
from tsm2_tune.runtime.choice.choose import core_record
from tsm2_tune.runtime.choice.core import CoreTime
from tsm2_tune.runtime.choice.launch import Launch
from tsm2_tune.runtime.choice.winners import Winner
from tsm2_tune.tuner.packs.core_pack import DeviceRates, MeasuredKernel, core_of

QUANTILES = (0.5, 0.75, 0.9, 0.95, 1.0)


@dataclass(frozen=True)
class Won:
    """A kernel and a shape at which it was the fastest."""

    family: str
    kernel: str
    problem: Problem
    launch: Launch
    tiling: Tiling
    measured_us: float

    def measured_kernel(self) -> MeasuredKernel:
        p = self.problem
        of_trial = (
            "a GPU",
            "9.0",
            "",
            "",
            "",
            p.dtype_name,
            p.op,
            p.m,
            p.n,
            p.k,
            p.batch,
            self.kernel,
            self.measured_us,
        )
        winner = Winner(*of_trial, 0.0, 0.0, "clean", None, None, None, None, None, "", "", self.launch)
        return MeasuredKernel(winner, self.tiling)

    def distance(self, other: Won) -> float:
        here, there = ((one.problem.m, one.problem.n, one.problem.k) for one in (self, other))
        return math.dist([math.log(x) for x in here], [math.log(x) for x in there])


def won(row: dict[str, Any], limits: DeviceLimits) -> Won | None:
    """Return the winner of a row in the file, or None if this version does not know its configuration."""
    family = family_named(family_name_in(row["configuration"]))
    config = family.config_type.parse(row["configuration"])
    if config is None:
        return None
    problem = Problem(row["m"], row["n"], row["k"], row["dtype"], row["op"])
    resources, launch = family.resources(config, problem), family.launch(config, problem)
    resident = occupancy(
        limits, threads=launch.threads, registers=resources.registers, smem_bytes=launch.smem_bytes
    ).blocks_per_sm
    resident = max(resident, int(config.tunables.get("min_blocks", 1)))
    tiling = family.tiling(config, problem, resident)
    return Won(family.name, config.kernel_text, problem, launch, tiling, row["ours_us"])


def errors(found: Sequence[Won], rates: DeviceRates) -> dict[str, list[float]]:
    """Return {family: ratios of predicted to measured time}, for kernels that won at two or more shapes."""
    alike = defaultdict[tuple[str, str, str], list[Won]](list)
    for one in found:
        alike[one.problem.dtype_name, one.problem.op, one.kernel].append(one)
    ratios = defaultdict[str, list[float]](list)
    for one in found:
        others = [other for other in alike[one.problem.dtype_name, one.problem.op, one.kernel] if other is not one]
        if others:
            at = min(others, key=one.distance)
            p, core = one.problem, core_of([at.measured_kernel()], {"a GPU": rates})
            record = core_record(p.dtype_name, (p.m, p.n, p.k), 3 * ((0, 0),), (False, False), is_gram=False)
            us, *best = core.predict(0, record)
            launches = (one.launch.rows_per_block, one.launch.splits), best
            times = (CoreTime * 2)(*(CoreTime(p.m, p.n, p.k, p.batch, 0, *launch) for launch in launches))
            own_us, best_us = core.rates_us(0, times)
            ratios[one.family].append(us * own_us / best_us / one.measured_us)
    return ratios


@click.command(cls=Command, help=__doc__)
@click.argument("path", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--profile", default="h200", help="Limits of the card that the file is of.")
def main(path: Path, profile: str) -> None:
    limits, facts = profile_named(profile), read(path)
    rates = DeviceRates(limits.sms, facts["read_gbytes_per_s"], facts["copy_gbytes_per_s"], facts["gflops"])
    found = [one for one in (won(row, limits) for row in facts["rows"]) if one is not None]
    ratios = errors(found, rates)
    if not ratios:
        raise InputError(f"{path} has no kernel that won several shapes: name another of versus_cublas")
    print(f"{'family':16} pairs  |log(expected / measured)| at " + ", ".join(f"{q:.0%}" for q in QUANTILES))
    for family, values in (*sorted(ratios.items()), ("all", [x for of in ratios.values() for x in of])):
        at = np.quantile(np.abs(np.log(values)), QUANTILES)
        print(f"{family:16} {len(values):5}  " + "  ".join(f"{value:.3f}" for value in at))


if __name__ == "__main__":
    main()
