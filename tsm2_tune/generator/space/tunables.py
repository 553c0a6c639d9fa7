"""Declarations of tunables, each beside its field of a configuration: `columns: Annotated[int, Tunable("...")]`.

A tunable has its field's name. The declaration decides a configuration's text, which tunables are launch data, the
constants of a kernel's text, and what `space --explain` and error messages print.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

TunableValue = int | str
KERNEL_NAMES = {"strips": "m_tiles", "octets": "n_tiles"}  # in CUDA, where a kernel calls a tunable by another name


@dataclass(frozen=True, slots=True)
class Tunable:
    """One axis of a family's space."""

    about: str  # its meaning
    symbol: str = ""  # its symbol in the paper
    # Its word in a configuration's text, if that is not its name. Neighbours with the same word share it:
    # block=128x64x32.
    word: str = ""
    unit: int = 1  # factor from its value to the number in a configuration's text
    values: tuple[str, ...] = ()  # names of the values 0, 1, ... in a configuration's text
    default: int | None = None  # the value that a configuration's text leaves out
    is_launch: bool = False  # whether it only affects the launch, and not the kernel's text
    is_constant: bool = True  # whether the kernel's text has a constant of its name; False if it selects code
    late: tuple[
        int, ...
    ] = ()  # values that a search tries only in its fastest configurations; the space has the first


@dataclass(frozen=True, slots=True)
class Declared:
    """A tunable beside its field's name and type."""

    name: str
    type: type[int] | type[str]
    tunable: Tunable

    @property
    def word(self) -> str:
        """The word for the tunable, alone or with its neighbours, in a configuration's text."""
        return self.tunable.word or self.name

    @property
    def default(self) -> int | None:
        """The default value. A configuration's text omits a tunable that has it."""
        return self.tunable.late[0] if self.tunable.late else self.tunable.default

    @property
    def is_constant(self) -> bool:
        """Whether a kernel's text has a constant of its name."""
        return self.type is int and self.tunable.is_constant and not self.tunable.is_launch

    @property
    def comment(self) -> str:
        """The comment about the tunable in a kernel's text."""
        return f"{self.tunable.symbol}: {self.tunable.about}" if self.tunable.symbol else self.tunable.about


@dataclass(slots=True)
class Constants:
    """The lines of a kernel's text that define tunables, each printed once: `{{ constants() }}` in a template.

    A call prints the named ones in this order, or without names all remaining ones in the order of the fields.
    """

    remaining: dict[str, tuple[int, str]]  # tunable -> its value and its comment

    @classmethod
    def of(cls, config_type: type[Any], values: Mapping[str, Any]) -> Constants:
        """Return the constants with these values. A tunable of value 0 has no line, such as a bound that is off."""
        shown = [one for one in declared(config_type) if one.is_constant and values[one.name]]
        return cls({KERNEL_NAMES.get(one.name, one.name): (values[one.name], one.comment) for one in shown})

    def __call__(self, *names: str) -> str:
        return "\n".join(self.in_one_line(name) for name in names or tuple(self.remaining))

    def in_one_line(self, *names: str) -> str:
        """Return a line that defines all named constants."""
        values, comments = zip(*(self.remaining.pop(name) for name in names), strict=True)
        numbers = ", ".join(f"{name} = {value}" for name, value in zip(names, values, strict=True))
        return f"constexpr int {numbers};  // {'; '.join(comments)}"


_DECLARED: dict[Any, tuple[Declared, ...]] = {}


def declared(config_type: type[Any]) -> tuple[Declared, ...]:
    """Return the tunables of a configuration, in the order of its fields."""
    if config_type not in _DECLARED:
        hints = get_type_hints(config_type, include_extras=True)
        _DECLARED[config_type] = tuple(
            Declared(name, *get_args(hint)) for name, hint in hints.items() if get_origin(hint) is Annotated
        )
    return _DECLARED[config_type]


# Tunables of several kernels.
Threads = Annotated[int, Tunable("threads of a block")]
BlockM = Annotated[int, Tunable("rows of C that one block computes", word="block")]
BlockN = Annotated[int, Tunable("columns of C that one block computes", word="block")]
ThreadRows = Annotated[int, Tunable("rows of C that one thread accumulates in registers", word="thread")]
ThreadColumns = Annotated[int, Tunable("columns of C that one thread accumulates in registers", word="thread")]
WarpStrips = Annotated[int, Tunable("m16 tiles of C that one warp accumulates in registers", word="warp", unit=16)]
WarpStripsOf8 = Annotated[int, Tunable("m8 tiles of C that one warp accumulates in registers", word="warp", unit=8)]
WarpOctets = Annotated[int, Tunable("n8 tiles of C that one warp accumulates in registers", word="warp", unit=8)]
RingStages = Annotated[int, Tunable("stages of the ring, in flight or arrived")]
PartsOfK = Annotated[int, Tunable("splits of k, each with its own block", default=1, is_launch=True)]
RowTiles = Annotated[
    int, Tunable("tiles of rows for each block of the grid", symbol="tcf", default=1, is_launch=True)
]
MinBlocks = Annotated[int, Tunable("blocks that a multiprocessor must hold, which bounds the registers", default=1)]
# Evict-first loads of A keep other lines in the L2: B and C, which helps, and the previous kernel's dirty lines,
# which does not. Loads without the policy evict those lines once.
EvictFirst = Annotated[
    int,
    Tunable(
        "1: loads of A evict first; 0: loads have no eviction policy",
        is_constant=False,
        late=(1, 0),
    ),
]
