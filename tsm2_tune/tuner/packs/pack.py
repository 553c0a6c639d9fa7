"""The data from which an exported module chooses a kernel, without the kernels' sources and binaries."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any

from tsm2_tune.runtime.choice import choose
from tsm2_tune.runtime.choice.launch import Launch
from tsm2_tune.runtime.choice.predict import Division
from tsm2_tune.runtime.choice.winners import Winner
from tsm2_tune.runtime.choice.work import Card


@dataclass(frozen=True)
class Pack:
    """The fastest kernels (winners) and the device data of an exported module.

    `winners` contains the times of cuBLAS's gemm: the module calls gemm if it is faster than the kernel. `beside`
    contains the same kernels with the times of the faster of cuBLAS and cuBLASLt, which tables show.
    """

    winners: tuple[Winner, ...]
    beside: tuple[Winner, ...]
    cards: dict[str, Card]
    notes: tuple[str, ...] = ()  # sentences about excluded winners

    @classmethod
    def of_json(cls, text: bytes) -> Pack:
        """Return a pack from JSON text, the value of the property `json`."""
        read = json.loads(text)
        winners, beside = (tuple(map(_winner, read[name])) for name in ("winners", "beside"))
        return cls(
            winners, beside, {name: Card(**card) for name, card in read["cards"].items()}, tuple(read["notes"])
        )

    @property
    def json(self) -> bytes:
        """The pack as JSON text."""
        return json.dumps(asdict(self), allow_nan=False).encode()

    @cached_property
    def module(self) -> ModuleType:
        """A copy of the module `runtime.choice.choose` that chooses among `winners`."""
        return _choosing(self.winners, self.cards)

    @cached_property
    def module_beside(self) -> ModuleType:
        """A copy of the module `runtime.choice.choose` that chooses among `beside`."""
        return _choosing(self.beside, self.cards)


def _winner(values: dict[str, Any]) -> Winner:
    division = values["division"] and Division(**values["division"])
    return Winner(**{**values, "launch": Launch(**values["launch"]), "division": division})


def _choosing(winners: tuple[Winner, ...], cards: dict[str, Card]) -> ModuleType:
    """Return a new instance of the module `runtime.choice.choose` with its globals WINNERS and CARDS set."""
    spec = choose.__spec__
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module).update(WINNERS=winners, CARDS=cards)
    return module
