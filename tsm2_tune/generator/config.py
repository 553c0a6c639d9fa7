"""KernelConfig: one point of a search space, with its spellings; and what it costs on the device."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from itertools import groupby
from typing import Any, ClassVar, Self

from tsm2_tune.errors import InputError
from tsm2_tune.generator.tunables import declared
from tsm2_tune.runtime.launch import FLAT_SPLITS, GROUP_SPLITS, Launch

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

TunableValue = int | str
NAME = re.compile("[a-z][a-z0-9_]*")  # of a family
SPELT = {int: "0|[1-9][0-9]{0,9}", str: "[a-z][a-z0-9]*"}  # by the type of a tunable


def family_spelt(text: str) -> str:
    """The name of the family in the spelling of a configuration."""
    found = NAME.match(text)
    return found[0] if found else ""


@dataclass(frozen=True, slots=True, order=True)
class KernelConfig:
    """Every choice that a family's template needs. Each family extends it with one field a tunable, which says what
    the tunable is: tunables.py.
    """

    family: ClassVar[str]

    @classmethod
    def launch_tunables(cls) -> tuple[str, ...]:
        """Those that say how a kernel is started: its text has no such number."""
        return tuple(one.name for one in declared(cls) if one.tunable.is_launch)

    @classmethod
    def late_tunables(cls) -> dict[str, tuple[int, ...]]:
        """Those that a search moves only in its fastest configurations, with their values."""
        return {one.name: one.tunable.late for one in declared(cls) if one.tunable.late}

    @property
    def tunables(self) -> dict[str, TunableValue]:
        """Tunable -> value, in the order of the fields."""
        return {one.name: getattr(self, one.name) for one in declared(type(self))}

    @property
    def text(self) -> str:
        """The one spelling, such as tsm2:version=v3,threads=128,columns=8,prefetch=4."""
        return self._spelt(self.tunables)

    @property
    def kernel_text(self) -> str:
        """The spelling of all configurations that have the same kernel, such as ism2:optimisation=1,...,row_tiles=*.

        One that does not split k has another kernel than those that do.
        """
        launch_tunables = [name for name in self.launch_tunables() if name != "splits" or self.has_splits]
        return self._spelt(self.tunables | dict.fromkeys(launch_tunables, "*"))

    @property
    def early(self) -> Self:
        """The configuration of the space that this one is, or was made of."""
        return replace(self, **{name: values[0] for name, values in self.late_tunables().items()})

    @property
    def later(self) -> tuple[Self, ...]:
        """The others that are made of one of the space, by moving one tunable."""
        early = self.early
        return tuple(
            replace(early, **{name: value}) for name, values in self.late_tunables().items() for value in values[1:]
        )

    @property
    def has_splits(self) -> bool:
        """Whether blocks leave sums to be added up, of parts of k or of all work."""
        return int(getattr(self, "splits", 1)) > 1

    def _spelt(self, values: Mapping[str, TunableValue]) -> str:
        said = []
        for word, group in groupby(declared(type(self)), key=lambda one: one.said):
            together = list(group)
            if [values[one.name] for one in together] != [one.usual for one in together]:
                said.append(f"{word}={'x'.join(str(values[one.name]) for one in together)}")
        return f"{self.family}:{','.join(said)}"

    @property
    def json(self) -> str:
        """The tunables as canonical JSON: sorted keys, no spaces."""
        return json.dumps(self.tunables, sort_keys=True, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The configuration that is spelt so, its tunables in any order; None where none is.

        Older versions have a letter for each tunable: tsm2-v3-t128-c8-p4.
        """
        family, colon, rest = text.partition(":")
        if not colon:
            return cls._parse_letters(text)
        said = [one.partition("=") for one in rest.split(",")]
        values = {word: value for word, _, value in said}
        known = {word: list(group) for word, group in groupby(declared(cls), key=lambda one: one.said)}
        if family != cls.family or len(values) < len(said) or not values.keys() <= known.keys():
            return None
        found: dict[str, Any] = {}
        for word, together in known.items():
            if word not in values:
                found |= {one.name: one.usual for one in together}
                continue
            parts = values[word].split("x") if len(together) > 1 else [values[word]]
            if len(parts) != len(together):
                return None
            for one, part in zip(together, parts, strict=True):
                found[one.name] = one.type(part) if re.fullmatch(SPELT[one.type], part) else None
        return None if None in found.values() else cls(**found)

    @classmethod
    def _parse_letters(cls, text: str) -> Self | None:
        required = cls._required()
        values = (
            f"(?:-{one.tunable.letter}({SPELT[one.type]})){'' if one.name in required else '?'}"
            for one in declared(cls)
        )
        found = re.fullmatch("".join([cls.family, *values]), text)
        if found is None:
            return None
        spelt = zip(declared(cls), found.groups(), strict=True)
        return cls(**{one.name: one.type(value) for one, value in spelt if value is not None})

    @classmethod
    def _required(cls) -> set[str]:
        return {field.name for field in fields(cls) if field.default is MISSING}

    @classmethod
    def from_tunables(cls, values: dict[str, Any]) -> Self:
        """The configuration with these tunables; InputError where a name or a type is not this family's.

        Those may be missing that a search moves late: they have their first values.
        """
        expected = {one.name: one.type for one in declared(cls)}
        values = {name: options[0] for name, options in cls.late_tunables().items()} | values
        if set(values) != set(expected):
            raise InputError(
                f"configuration of {cls.family}: expected the tunables {', '.join(expected)},"
                f" got {', '.join(values) or 'none'}"
            )
        for name, value in values.items():
            if type(value) is not expected[name]:
                raise InputError(f"configuration of {cls.family}: {name} = {value!r} is no {expected[name].__name__}")
        return cls(**values)


@dataclass(frozen=True, slots=True, order=True)
class OtherConfig(KernelConfig):
    """A configuration of another version, whose family or tunables this one lacks, as it is stored."""

    family: str  # type: ignore[misc]  # there is no class for each
    spelling: str
    values: str  # of its tunables, as JSON

    @property
    def tunables(self) -> dict[str, TunableValue]:
        return dict(json.loads(self.values))

    @property
    def text(self) -> str:
        return self.spelling


@dataclass(frozen=True, slots=True)
class Resources:
    """What one block needs, as far as it can be known before compiling."""

    threads: int  # per block
    registers: int  # per thread, by the family's formula
    smem_bytes: int  # per block
    bytes_in_flight: int  # of A, that one thread has requested and not yet used
    reuse: float  # FMAs for each element of A that is loaded into a register


@dataclass(frozen=True, slots=True)
class Periods:
    """After how many rows, columns and products a kernel does the same again: of a tile, of what it loads ahead.

    What it does at the end of an extent depends on the remainder by its period, or by a length that is shorter.
    """

    m: int
    n: int
    k: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a launch moves through device memory, as the design predicts: re-reads included."""

    read_bytes: int
    written_bytes: int
