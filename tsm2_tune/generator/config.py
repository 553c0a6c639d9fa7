"""`KernelConfig`, one point of a search space, and records of its resources and tile."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from tsm2_tune.errors import InputError
from tsm2_tune.generator.configuration_text import format_tunables, parse_tunables
from tsm2_tune.generator.space.tunables import TunableValue, declared
from tsm2_tune.runtime.choice.launch import FLAT_SPLITS, GROUP_SPLITS, ONE_EACH, SHARED, Launch

__all__ = [
    "FLAT_SPLITS",
    "GROUP_SPLITS",
    "ONE_EACH",
    "SHARED",
    "KernelConfig",
    "Launch",
    "OtherConfig",
    "Periods",
    "Resources",
    "TunableValue",
]  # fmt: skip

NAME = re.compile("[a-z][a-z0-9_]*")  # the name of a family


def family_name_in(text: str) -> str:
    """Return the name of the kernel family at the start of a configuration's text; "" if there is none."""
    return _parts(text)[0]


def _parts(text: str) -> tuple[str, str]:
    """Return the name of the family at the start of a configuration's text, and the rest of the text."""
    found = NAME.match(text)
    name = found[0] if found else ""
    return name, text[len(name) :]


class _CachedText:
    """Base class of configurations, with a slot that caches a configuration's text.

    The slot is no dataclass field, so comparisons of configurations ignore it.
    """

    __slots__ = ("_text",)
    _text: str


@dataclass(frozen=True, slots=True)
class KernelConfig(_CachedText):
    """The values of a family's tunables. Each family has a subclass with one field for each tunable."""

    family: ClassVar[str]

    def __lt__(self, other: object) -> bool:
        """Compare the tunables in the order of the fields.

        `dataclass(order=True)` would add four methods to each subclass, which would slow down the import.
        """
        if type(other) is not type(self):
            return NotImplemented
        return tuple(self.tunables.values()) < tuple(other.tunables.values())

    @classmethod
    def launch_tunables(cls) -> tuple[str, ...]:
        """Return the names of the tunables that affect only the launch, and not the CUDA text."""
        return tuple(one.name for one in declared(cls) if one.tunable.is_launch)

    @classmethod
    def late_tunables(cls) -> dict[str, tuple[int, ...]]:
        """Return name -> values of the tunables that a search varies only in its fastest configurations."""
        return {one.name: one.tunable.late for one in declared(cls) if one.tunable.late}

    @property
    def tunables(self) -> dict[str, TunableValue]:
        """The values of the tunables by name, in the order of the fields."""
        return {one.name: getattr(self, one.name) for one in declared(type(self))}

    @property
    def text(self) -> str:
        """The canonical text of the configuration, such as tsm2:version=v3,threads=128,columns=8,prefetch=4."""
        try:
            return self._text
        except AttributeError:
            text = f"{self.family}:{format_tunables(type(self), self.tunables)}"
            object.__setattr__(self, "_text", text)
            return text

    @property
    def kernel_text(self) -> str:
        """The configuration's text with * for launch tunables, such as ism2:optimisation=1,...,row_tiles=*.

        Configurations with equal `kernel_text` have the same CUDA kernel. The number of splits is * only if it
        exceeds 1, since a kernel without splits has other code.
        """
        launch_tunables = [name for name in self.launch_tunables() if name != "splits" or self.has_splits]
        values = self.tunables | dict.fromkeys(launch_tunables, "*")
        return f"{self.family}:{format_tunables(type(self), values)}"

    @property
    def early(self) -> Self:
        """This configuration as the search space contains it: with the first value of each of the `late_tunables`."""
        late = self.late_tunables()
        return replace(self, **{name: values[0] for name, values in late.items()}) if late else self

    @property
    def later(self) -> tuple[Self, ...]:
        """Variants of `early` outside the search space, tried later: each changes one of the `late_tunables`.

        In the search space each of the `late_tunables` has only its first value.
        """
        early = self.early
        return tuple(
            replace(early, **{name: value}) for name, values in self.late_tunables().items() for value in values[1:]
        )

    @property
    def has_splits(self) -> bool:
        """Whether blocks write partial sums to a workspace, because they divide k or all of the work among them."""
        return int(getattr(self, "splits", 1)) > 1

    @property
    def json(self) -> str:
        """The tunables as canonical JSON: sorted keys, no spaces."""
        return json.dumps(self.tunables, sort_keys=True, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the configuration with this text; None if the text is invalid. The tunables may have any order."""
        family, values = _parts(text)
        found = parse_tunables(cls, values[1:]) if family == cls.family and values.startswith(":") else None
        return None if found is None else cls(**dict[str, Any](found))

    @classmethod
    def from_tunables(cls, values: dict[str, Any]) -> Self:
        """Return the configuration with these tunables.

        Raise InputError if a tunable is missing or unknown, or if a value has the wrong type.
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
    """A configuration that another version of the program stored.

    This version of the program lacks the configuration's family or one of its tunables.
    """

    family: str  # type: ignore[misc]  # a field here, a class variable in other configurations
    spelling: str
    values: str  # the values of its tunables, as JSON

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
    """The resources of one thread block, estimated before compilation or reported by the compiler."""

    threads: int  # per block
    registers: int  # per thread
    smem_bytes: int  # per block
    bytes_in_flight: int  # bytes of A that one thread has loads in flight for
    reuse: float  # FMAs per element of A loaded into a register


@dataclass(frozen=True, slots=True)
class Periods:
    """The extents m, n and k of a kernel's tile.

    If the kernel's work repeats only after a group of tiles, these are the extents of the group. The remainder of m,
    n or k modulo its period determines which code path the kernel uses at the matrix's end.
    """

    m: int
    n: int
    k: int
