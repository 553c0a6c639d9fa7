"""Declarations of tunables, as annotations of a configuration's fields: `columns: Annotated[int, Tunable("...")]`.

The field's name is the tunable's name. The declaration determines how the tunable appears in a configuration's text,
in the CUDA text as a constant, in `space --explain` and in error messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, get_args, get_origin, get_type_hints

TunableValue = int | str
KERNEL_NAMES = {"strips": "m_tiles", "octets": "n_tiles"}  # tunable -> its constant in CUDA, if the name differs


@dataclass(frozen=True, slots=True)
class Tunable:
    """The declaration of one tunable: a parameter of a kernel family that searches vary, such as a tile size."""

    about: str  # its meaning
    symbol: str = ""  # its symbol in the paper
    # Its key in a configuration's text, if that is not its name. Adjacent tunables with the same key are printed
    # together: block=128x64x32.
    word: str = ""
    unit: int = 1  # the number in a configuration's text is the value times this
    values: tuple[str, ...] = ()  # names of the values 0, 1, ... in a configuration's text
    default: int | None = None  # a configuration's text omits this value
    is_launch: bool = False  # whether it affects only the launch, and not the CUDA text
    is_constant: bool = True  # whether the CUDA text has a constant for it; False if it selects code
    late: tuple[
        int, ...
    ] = ()  # the first value is in the search space; a search tries the others only in its fastest configurations


@dataclass(frozen=True)
class Declared:
    """A tunable with the name and the type of its field."""

    name: str
    type: type[int] | type[str]
    tunable: Tunable

    @cached_property
    def word(self) -> str:
        """The key of the tunable in a configuration's text. Adjacent tunables may share a key."""
        return self.tunable.word or self.name

    @cached_property
    def default(self) -> int | None:
        """The default value, which a configuration's text omits; None if there is none."""
        return self.tunable.late[0] if self.tunable.late else self.tunable.default

    @property
    def is_constant(self) -> bool:
        """Whether the CUDA text defines a constant for the tunable."""
        return self.type is int and self.tunable.is_constant and not self.tunable.is_launch

    @property
    def comment(self) -> str:
        """The comment that describes the tunable in the CUDA text."""
        return f"{self.tunable.symbol}: {self.tunable.about}" if self.tunable.symbol else self.tunable.about


@dataclass(slots=True)
class Constants:
    """The definitions of tunables as CUDA constants. Templates contain `{{ constants() }}`.

    A call with names of tunables returns the lines that define them. A call without names returns the lines of all
    tunables that no call has returned yet.
    """

    remaining: dict[str, tuple[int, str]]  # tunable -> its value and its comment

    @classmethod
    def of(cls, config_type: type[Any], values: Mapping[str, Any]) -> Constants:
        """Return the constants of a configuration with these values. A tunable with the value 0 has no constant."""
        shown = [one for one in declared(config_type) if one.is_constant and values[one.name]]
        return cls({KERNEL_NAMES.get(one.name, one.name): (values[one.name], one.comment) for one in shown})

    def __call__(self, *names: str) -> str:
        return "\n".join(self.in_one_line(name) for name in names or tuple(self.remaining))

    def in_one_line(self, *names: str) -> str:
        """Return a line of CUDA text that defines all named constants, and count them as printed."""
        values, comments = zip(*(self.remaining.pop(name) for name in names), strict=True)
        numbers = ", ".join(f"{name} = {value}" for name, value in zip(names, values, strict=True))
        return f"constexpr int {numbers};  // {'; '.join(comments)}"


_DECLARED: dict[Any, tuple[Declared, ...]] = {}


def declared(config_type: type[Any]) -> tuple[Declared, ...]:
    """Return the tunables that a configuration class declares, in the order of its fields."""
    if config_type not in _DECLARED:
        hints = get_type_hints(config_type, include_extras=True)
        _DECLARED[config_type] = tuple(
            Declared(name, *get_args(hint)) for name, hint in hints.items() if get_origin(hint) is Annotated
        )
    return _DECLARED[config_type]


# Tunables that several kernel families have.
Threads = Annotated[int, Tunable("threads of a block")]
BlockM = Annotated[int, Tunable("rows of C that one block computes", word="block")]
BlockN = Annotated[int, Tunable("columns of C that one block computes", word="block")]
ThreadRows = Annotated[int, Tunable("rows of C that one thread accumulates in registers", word="thread")]
ThreadColumns = Annotated[int, Tunable("columns of C that one thread accumulates in registers", word="thread")]
WarpStrips = Annotated[int, Tunable("m16 tiles of C that one warp accumulates in registers", word="warp", unit=16)]
WarpStripsOf8 = Annotated[int, Tunable("m8 tiles of C that one warp accumulates in registers", word="warp", unit=8)]
WarpOctets = Annotated[int, Tunable("n8 tiles of C that one warp accumulates in registers", word="warp", unit=8)]
RingStages = Annotated[int, Tunable("pipeline stages in shared memory")]
PartsOfK = Annotated[int, Tunable("split-k slices, each computed by its own block", default=1, is_launch=True)]
RowTiles = Annotated[
    int, Tunable("row tiles that each block computes, one after another", symbol="tcf", default=1, is_launch=True)
]
MinBlocks = Annotated[
    int, Tunable("minimum resident blocks per multiprocessor, which limits registers per thread", default=1)
]
# With evict-first loads of A, other lines stay in the L2 cache: those of B and C, which helps, and dirty lines of the
# previous kernel, which does not help. Loads without the policy evict the dirty lines once.
EvictFirst = Annotated[
    int,
    Tunable(
        "1: loads of A have the L2 policy evict-first; 0: loads have no policy",
        is_constant=False,
        late=(1, 0),
    ),
]
