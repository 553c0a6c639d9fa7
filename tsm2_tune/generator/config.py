"""KernelConfig: one point of a search space, with its spellings; and what it costs on the device."""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, ClassVar, Self

from tsm2_tune.errors import InputError
from tsm2_tune.generator.former_names import FORMER_NAMES
from tsm2_tune.generator.spelling import read, read_letters, spelt
from tsm2_tune.generator.tunables import TunableValue, declared
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

NAME = re.compile("[a-z][a-z0-9_]*")  # of a family


def family_spelt(text: str) -> str:
    """Return the name of the family in the spelling of a configuration, also of one by an older version."""
    return _parts(text)[0]


def _parts(text: str) -> tuple[str, str]:
    """Return the name of the family, and what follows it."""
    found = NAME.match(text)
    name = found[0] if found else ""
    return FORMER_NAMES.get(name, name), text[len(name) :]


class _Spelt:
    """Where a configuration keeps its spelling, once it is asked for: no field, and nothing that is compared."""

    __slots__ = ("_text",)
    _text: str


@dataclass(frozen=True, slots=True)
class KernelConfig(_Spelt):
    """Every choice that a family's template needs. Each family extends it with one field a tunable, which says what
    the tunable is: tunables.py.
    """

    family: ClassVar[str]

    def __lt__(self, other: object) -> bool:
        """By their tunables, in order. Defined once: four methods of each class would take time at every start."""
        if type(other) is not type(self):
            return NotImplemented
        return tuple(self.tunables.values()) < tuple(other.tunables.values())

    @classmethod
    def launch_tunables(cls) -> tuple[str, ...]:
        """Those that say how a kernel is started: its text has no such number."""
        return tuple(one.name for one in declared(cls) if one.tunable.is_launch)

    @classmethod
    def late_tunables(cls) -> dict[str, tuple[int, ...]]:
        """Those that a search moves only in its fastest configurations, with their values."""
        return {one.name: one.tunable.late for one in declared(cls) if one.tunable.late}

    @classmethod
    def later_tunables(cls) -> dict[str, TunableValue]:
        """Those that were added later, whose fields have defaults: the values of trials from before."""
        return {field.name: field.default for field in fields(cls) if field.default is not MISSING}

    @property
    def tunables(self) -> dict[str, TunableValue]:
        """Tunable -> value, in the order of the fields."""
        return {one.name: getattr(self, one.name) for one in declared(type(self))}

    @property
    def text(self) -> str:
        """The one spelling, such as tsm2:version=v3,threads=128,columns=8,prefetch=4."""
        try:
            return self._text
        except AttributeError:
            text = f"{self.family}:{spelt(type(self), self.tunables)}"
            object.__setattr__(self, "_text", text)
            return text

    @property
    def kernel_text(self) -> str:
        """The spelling of all configurations that have the same kernel, such as ism2:optimisation=1,...,row_tiles=*.

        One that does not split k has another kernel than those that do.
        """
        launch_tunables = [name for name in self.launch_tunables() if name != "splits" or self.has_splits]
        values = self.tunables | dict.fromkeys(launch_tunables, "*")
        return f"{self.family}:{spelt(type(self), values)}"

    @property
    def early(self) -> Self:
        """The configuration of the space that this one is, or was made of."""
        late = self.late_tunables()
        return replace(self, **{name: values[0] for name, values in late.items()}) if late else self

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

    @property
    def json(self) -> str:
        """The tunables as canonical JSON: sorted keys, no spaces."""
        return json.dumps(self.tunables, sort_keys=True, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the configuration that is spelt so, its tunables in any order; None if none is.

        Older versions have a letter for each tunable: tsm2-v3-t128-c8-p4.
        """
        family, values = _parts(text)
        found = None
        if family == cls.family and values.startswith(":"):
            found = read(cls, values[1:])
        elif family == cls.family and values.startswith("-"):
            found = read_letters(cls, cls.later_tunables(), values[1:])
        return None if found is None else cls(**dict[str, Any](found))

    @classmethod
    def from_tunables(cls, values: dict[str, Any]) -> Self:
        """Return the configuration with these tunables. Raise InputError if a name or a type is not this family's.

        Later ones may be missing.
        """
        expected = {one.name: one.type for one in declared(cls)}
        values = cls.later_tunables() | values
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
    """A configuration of another version, whose family or tunables this one lacks, as it is stored."""

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
