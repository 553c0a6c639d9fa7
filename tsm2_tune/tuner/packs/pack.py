"""A pack without its texts and binaries: the data from which an exported module chooses a kernel."""

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
    """The winners and cards that an exported module of one device has.

    The module compares its kernels with cuBLAS's gemm, which a program would call otherwise. Tables compare them
    with the faster of cuBLAS and cuBLASLt: `beside` has the same winners with the times of that library.
    """

    winners: tuple[Winner, ...]
    beside: tuple[Winner, ...]
    cards: dict[str, Card]

    @classmethod
    def of_json(cls, text: bytes) -> Pack:
        """Return the pack from a text that `json` returned."""
        read = json.loads(text)
        winners, beside = (tuple(map(_winner, read[name])) for name in ("winners", "beside"))
        return cls(winners, beside, {name: Card(**card) for name, card in read["cards"].items()})

    @property
    def json(self) -> bytes:
        """Return the pack as a JSON text."""
        return json.dumps(asdict(self), allow_nan=False).encode()

    @cached_property
    def module(self) -> ModuleType:
        """The runtime's module that chooses among the winners."""
        return _choosing(self.winners, self.cards)

    @cached_property
    def module_beside(self) -> ModuleType:
        """The runtime's module that chooses among `beside`, with the times of the faster of cuBLAS and cuBLASLt."""
        return _choosing(self.beside, self.cards)


def _winner(values: dict[str, Any]) -> Winner:
    division = values["division"] and Division(**values["division"])
    return Winner(**{**values, "launch": Launch(**values["launch"]), "division": division})


def _choosing(winners: tuple[Winner, ...], cards: dict[str, Card]) -> ModuleType:
    """Return a new instance of the module that chooses, with these winners and cards."""
    spec = choose.__spec__
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module).update(WINNERS=winners, CARDS=cards)
    return module
