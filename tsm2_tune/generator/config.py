"""KernelConfig: one point of a search space, with its spellings; and what it costs on the device."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from types import MappingProxyType
from typing import Any, ClassVar, Self

from tsm2_tune.errors import InputError
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
SPELT = {"int": "0|[1-9][0-9]{0,9}", "str": "[a-z][a-z0-9]*"}  # by the type of a tunable


@dataclass(frozen=True, slots=True, order=True)
class KernelConfig:
    """Every choice that a family's template needs. Each family extends it with one field a tunable."""

    family: ClassVar[str]
    letters: ClassVar[dict[str, str]]  # field -> the letter that stands before its value in the text form
    launch_tunables: ClassVar[
        tuple[str, ...]
    ] = ()  # those that say how a kernel is started: its text has no such number
    # Tunables that a search moves only in its fastest configurations: to their values. The space has the first one of
    # these alone, which a configuration's text leaves out.
    late_tunables: ClassVar[Mapping[str, tuple[int, ...]]] = MappingProxyType({})

    @property
    def tunables(self) -> dict[str, TunableValue]:
        """Tunable -> value, in the order of the fields."""
        return {name: getattr(self, name) for name in self.letters}  # asdict copies, which planning would feel

    @property
    def text(self) -> str:
        """The one short spelling, such as tsm2-v3-t128-c8-p4."""
        return self._spelt(self.tunables)

    @property
    def kernel_text(self) -> str:
        """The spelling of all configurations that have the same kernel, such as tsmr-t64-v1-c8-p16-s4-k*-r*-b6.

        One that does not split k has another kernel than those that do.
        """
        launch_tunables = [name for name in self.launch_tunables if name != "splits" or self.has_splits]
        return self._spelt(self.tunables | dict.fromkeys(launch_tunables, "*"))

    @property
    def early(self) -> Self:
        """The configuration of the space that this one is, or was made of."""
        return replace(self, **{name: values[0] for name, values in self.late_tunables.items()})

    @property
    def later(self) -> tuple[Self, ...]:
        """The others that are made of one of the space, by moving one tunable."""
        early = self.early
        return tuple(
            replace(early, **{name: value}) for name, values in self.late_tunables.items() for value in values[1:]
        )

    @property
    def has_splits(self) -> bool:
        """Whether blocks leave sums to be added up, of parts of k or of all work."""
        return int(self.tunables.get("splits", 1)) > 1

    def _spelt(self, values: Mapping[str, TunableValue]) -> str:
        unsaid = {name: options[0] for name, options in self.late_tunables.items()}
        said = (f"{self.letters[n]}{v}" for n, v in values.items() if n not in unsaid or v != unsaid[n])
        return "-".join([self.family, *said])

    @property
    def json(self) -> str:
        """The tunables as canonical JSON: sorted keys, no spaces."""
        return json.dumps(self.tunables, sort_keys=True, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The configuration that is spelt so; None where none is.

        A text of before a tunable was there, which has a default, may leave it out.
        """
        expected = {field.name: field for field in fields(cls)}
        values = (
            f"(?:-{letter}({SPELT[str(expected[name].type)]})){'' if expected[name].default is MISSING else '?'}"
            for name, letter in cls.letters.items()
        )
        found = re.fullmatch("".join([cls.family, *values]), text)
        if found is None:
            return None
        spelt = {name: value for name, value in zip(cls.letters, found.groups(), strict=True) if value is not None}
        return cls(**{name: int(value) if value.isdigit() else value for name, value in spelt.items()})

    @classmethod
    def from_tunables(cls, values: dict[str, Any]) -> Self:
        """The configuration with these tunables; InputError where a name or a type is not this family's.

        Those may be missing that a search moves late: they have their first values.
        """
        expected = {field.name: field.type for field in fields(cls)}
        values = {name: options[0] for name, options in cls.late_tunables.items()} | values
        if set(values) != set(expected):
            raise InputError(
                f"configuration of {cls.family}: expected the tunables {', '.join(expected)},"
                f" got {', '.join(values) or 'none'}"
            )
        for name, value in values.items():
            if type(value).__name__ != expected[name]:
                raise InputError(f"configuration of {cls.family}: {name} = {value!r} is no {expected[name]}")
        return cls(**values)


@dataclass(frozen=True, slots=True, order=True)
class OtherConfig(KernelConfig):
    """A configuration of another version, whose family or tunables this one lacks, as it is stored."""

    letters: ClassVar[dict[str, str]] = {}

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
