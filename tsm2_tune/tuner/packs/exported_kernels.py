"""The data from which an exported module chooses a kernel, without the kernels' sources and binaries."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.tiling import Tiling
from tsm2_tune.runtime.choice.choose import Chooser
from tsm2_tune.runtime.choice.launch import Launch
from tsm2_tune.runtime.choice.winners import Winner
from tsm2_tune.tuner.packs.core_pack import DeviceRates, MeasuredKernel, core_of
from tsm2_tune.tuner.results.storage.addresses import command_on


@dataclass(frozen=True)
class ExportedKernels:
    """The fastest kernels and the device data of an exported module.

    `kernels` contains the times of cuBLAS's gemm: the module calls gemm if it is faster than the kernel.
    `kernels_with_fastest_vendor` contains the same kernels with the times of the faster of cuBLAS and cuBLASLt, which
    tables show.
    """

    kernels: tuple[MeasuredKernel, ...]
    kernels_with_fastest_vendor: tuple[MeasuredKernel, ...]
    device_rates: dict[str, DeviceRates]

    @classmethod
    def of_json(cls, text: bytes) -> ExportedKernels:
        """Return the kernels from JSON text, the value of the property `json`."""
        values = json.loads(text)
        return cls(
            tuple(map(_kernel, values["kernels"])),
            tuple(map(_kernel, values["kernels_with_fastest_vendor"])),
            {name: DeviceRates(**rates) for name, rates in values["device_rates"].items()},
        )

    @property
    def json(self) -> bytes:
        """The kernels as JSON text."""
        return json.dumps(asdict(self), allow_nan=False).encode()

    @cached_property
    def chooser(self) -> Chooser:
        """Chooses among `kernels`."""
        return _chooser(self.kernels, self.device_rates)

    @cached_property
    def chooser_with_fastest_vendor(self) -> Chooser:
        """Chooses among `kernels_with_fastest_vendor`."""
        return _chooser(self.kernels_with_fastest_vendor, self.device_rates)


def _kernel(values: dict[str, Any]) -> MeasuredKernel:
    winner = Winner(**{**values["winner"], "launch": Launch(**values["winner"]["launch"])})
    tiling = values["tiling"] and Tiling(**values["tiling"])
    stages, padding = values["matrices_in_smem"]
    return MeasuredKernel(
        winner, tiling, values["times"], values["vendor_times"], (stages, padding), values["gain_error"]
    )


def _chooser(kernels: tuple[MeasuredKernel, ...], device_rates: dict[str, DeviceRates]) -> Chooser:
    return Chooser([kernel.winner for kernel in kernels], core_of(kernels, device_rates))


def no_kernel(place: str, problem: Problem) -> str:
    """Return a sentence: the database called `place` has no kernel for the problem, and the next steps."""
    from tsm2_tune.generator.families import computed_by_none, families_for  # slow to import

    if not families_for(problem):
        return computed_by_none(problem)
    return (
        f"{place} has no kernel for {problem.text} that is verified in full: {command_on('best', place)} shows what"
        f" it has, tsm2-tune {problem.text} tunes one"
    )
