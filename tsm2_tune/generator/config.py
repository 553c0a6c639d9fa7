"""KernelConfig, one point of a search space, with its text forms; and its resources and memory traffic."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from tsm2_tune.errors import InputError
from tsm2_tune.generator.configuration_text import format_tunables, parse_tunables
from tsm2_tune.generator.space.tunables import TunableValue, declared
from tsm2_tune.runtime.choice.launch import FLAT_SPLITS, GROUP_SPLITS, Launch

__all__ = [
    "FLAT_SPLITS",
    "GROUP_SPLITS",
    "KernelConfig",
    "Launch",
    "OtherConfig",
    "Periods",
    "Resources",
    "Traffic",
    "TunableValue",
]  # fmt: skip

NAME = re.compile("[a-z][a-z0-9_]*")  # the name of a family


def family_name_in(text: str) -> str:
    """Return the family's name in the text of a configuration; "" if it begins with none."""
    return _parts(text)[0]


def _parts(text: str) -> tuple[str, str]:
    """Return the name of the family, and what follows it."""
    found = NAME.match(text)
    name = found[0] if found else ""
    return name, text[len(name) :]


class _CachedText:
    """Holds the text of a configuration once it was asked for. It is no field and takes no part in comparisons."""

    __slots__ = ("_text",)
    _text: str


@dataclass(frozen=True, slots=True)
class KernelConfig(_CachedText):
    """The values of a family's tunables. Each family extends it with one field for each tunable: see tunables.py."""

    family: ClassVar[str]

    def __lt__(self, other: object) -> bool:
        """Compare the tunables in order.

        Defined once here: four methods for each class would slow down every start.
        """
        if type(other) is not type(self):
            return NotImplemented
        return tuple(self.tunables.values()) < tuple(other.tunables.values())

    @classmethod
    def launch_tunables(cls) -> tuple[str, ...]:
        """Return the tunables that affect only the launch: the kernel's text does not depend on them."""
        return tuple(one.name for one in declared(cls) if one.tunable.is_launch)

    @classmethod
    def late_tunables(cls) -> dict[str, tuple[int, ...]]:
        """Return the tunables, with their values, that a search varies only in its fastest configurations."""
        return {one.name: one.tunable.late for one in declared(cls) if one.tunable.late}

    @property
    def tunables(self) -> dict[str, TunableValue]:
        """The values of the tunables by name, in the order of the fields."""
        return {one.name: getattr(self, one.name) for one in declared(type(self))}

    @property
    def text(self) -> str:
        """The canonical text, such as tsm2:version=v3,threads=128,columns=8,prefetch=4."""
        try:
            return self._text
        except AttributeError:
            text = f"{self.family}:{format_tunables(type(self), self.tunables)}"
            object.__setattr__(self, "_text", text)
            return text

    @property
    def kernel_text(self) -> str:
        """The text of all configurations with the same kernel, such as ism2:optimisation=1,...,row_tiles=*.

        A configuration that does not split k has another kernel than those that do.
        """
        launch_tunables = [name for name in self.launch_tunables() if name != "splits" or self.has_splits]
        values = self.tunables | dict.fromkeys(launch_tunables, "*")
        return f"{self.family}:{format_tunables(type(self), values)}"

    @property
    def early(self) -> Self:
        """The configuration of the space that this one is, or of which it is a variant."""
        late = self.late_tunables()
        return replace(self, **{name: values[0] for name, values in late.items()}) if late else self

    @property
    def later(self) -> tuple[Self, ...]:
        """Its variants that are not in the space: one of the late tunables has another value."""
        early = self.early
        return tuple(
            replace(early, **{name: value}) for name, values in self.late_tunables().items() for value in values[1:]
        )

    @property
    def has_splits(self) -> bool:
        """Whether blocks write partial sums to be added up, for parts of k or of all work."""
        return int(getattr(self, "splits", 1)) > 1

    @property
    def json(self) -> str:
        """The tunables as canonical JSON: sorted keys, no spaces."""
        return json.dumps(self.tunables, sort_keys=True, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the configuration with this text, its tunables in any order; None if there is none."""
        family, values = _parts(text)
        found = parse_tunables(cls, values[1:]) if family == cls.family and values.startswith(":") else None
        return None if found is None else cls(**dict[str, Any](found))

    @classmethod
    def from_tunables(cls, values: dict[str, Any]) -> Self:
        """Return the configuration with these tunables. Raise InputError if one is missing, or has a name or
        a type that is not this family's.
        """
        expected = {one.name: one.type for one in declared(cls)}
        if set(values) != set(expected):
            raise InputError(
                f"configuration of {cls.family}: expected the tunables {', '.join(expected)},"
                f" got {', '.join(values) or 'none'}"
            )
        for name, value in values.items():
            if type(value) is not expected[name]:
                raise InputError(f"configuration of {cls.family}: {name} = {value!r} is no {expected[name].__name__}")
        return cls(**values)


@dataclass(frozen=True, slots=True)
class OtherConfig(KernelConfig):
    """A stored configuration of another version, whose family or tunables this version lacks."""

    family: str  # type: ignore[misc]  # there is no class for each
    spelling: str
    values: str  # of its tunables, as JSON

    def __lt__(self, other: object) -> bool:
        return self.spelling < other.spelling if isinstance(other, OtherConfig) else NotImplemented

    @property
    def tunables(self) -> dict[str, TunableValue]:
        return dict(json.loads(self.values))

    @property
    def text(self) -> str:
        return self.spelling


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of one block, estimated before compiling."""

    threads: int  # per block
    registers: int  # per thread, by the family's formula
    smem_bytes: int  # per block
    bytes_in_flight: int  # bytes of A that one thread has requested and not yet used
    reuse: float  # FMAs per element of A loaded into a register


@dataclass(frozen=True, slots=True)
class Periods:
    """The numbers of rows, columns and products after which a kernel repeats its pattern, such as a tile's.

    The remainder of an extent by its period, or by a shorter length, decides how a kernel ends there.
    """

    m: int
    n: int
    k: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """The bytes that a launch moves through device memory, re-reads included, as the design predicts."""

    read_bytes: int
    written_bytes: int
