"""The data from which an exported module chooses a kernel, without the kernels' sources and binaries."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from tsm2_tune.generator.tiling import Tiling
from tsm2_tune.runtime.choice.choose import Chooser
from tsm2_tune.runtime.choice.launch import Launch
from tsm2_tune.runtime.choice.winners import Winner
from tsm2_tune.tuner.packs.core_pack import DeviceRates, MeasuredKernel, core_of


@dataclass(frozen=True)
class Pack:
    """The fastest kernels and the device data of an exported module.

    `kernels` contains the times of cuBLAS's gemm: the module calls gemm if it is faster than the kernel. `beside`
    contains the same kernels with the times of the faster of cuBLAS and cuBLASLt, which tables show.
    """

    kernels: tuple[MeasuredKernel, ...]
    beside: tuple[MeasuredKernel, ...]
    rates: dict[str, DeviceRates]
    notes: tuple[str, ...] = ()  # sentences about excluded winners

    @classmethod
    def of_json(cls, text: bytes) -> Pack:
        """Return a pack from JSON text, the value of the property `json`."""
        read = json.loads(text)
        kernels, beside = (tuple(map(_kernel, read[name])) for name in ("kernels", "beside"))
        rates = {name: DeviceRates(**of) for name, of in read["rates"].items()}
        return cls(kernels, beside, rates, tuple(read["notes"]))

    @property
    def json(self) -> bytes:
        """The pack as JSON text."""
        return json.dumps(asdict(self), allow_nan=False).encode()

    @cached_property
    def chooser(self) -> Chooser:
        """Chooses among `kernels`."""
        return _chooser(self.kernels, self.rates)

    @cached_property
    def chooser_beside(self) -> Chooser:
        """Chooses among `beside`."""
        return _chooser(self.beside, self.rates)


def _kernel(values: dict[str, Any]) -> MeasuredKernel:
    winner = Winner(**{**values["winner"], "launch": Launch(**values["winner"]["launch"])})
    tiling = values["tiling"] and Tiling(**values["tiling"])
    return MeasuredKernel(winner, tiling, values["times"], values["vendor_times"])


def _chooser(kernels: tuple[MeasuredKernel, ...], rates: dict[str, DeviceRates]) -> Chooser:
    return Chooser([one.winner for one in kernels], core_of(kernels, rates))
