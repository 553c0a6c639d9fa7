"""A tunable is declared once, beside its field of a configuration: `columns: Annotated[int, Tunable("...")]`.

Its name is the field's. How a configuration is spelt, which of its tunables are launch data, the constants of a
kernel's text, what `space --explain` prints and what an error says come from there.
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
    symbol: str = ""  # the paper's
    # What a spelling calls it, where that is not its name. Neighbours with the same word are spelt as one:
    # block=128x64x32.
    word: str = ""
    unit: int = 1  # factor from its value to the number in a configuration's text
    values: tuple[str, ...] = ()  # how a spelling names the values 0, 1, ...
    usual: int | None = None  # the value that a spelling leaves out
    is_launch: bool = False  # whether it says how a kernel is started: the kernel's text has no such number
    # Whether a line of the kernel's text defines a constant of its name: not where it decides what the text is.
    is_constant: bool = True
    # The values to which a search moves it in its fastest configurations alone. The space has the first one of these.
    late: tuple[int, ...] = ()


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
    def usual(self) -> int | None:
        """The value that a spelling leaves out."""
        return self.tunable.late[0] if self.tunable.late else self.tunable.usual

    @property
    def is_constant(self) -> bool:
        """Whether a kernel's text has a constant of it."""
        return self.type is int and self.tunable.is_constant and not self.tunable.is_launch

    @property
    def comment(self) -> str:
        """The comment about the tunable in a kernel's text."""
        return f"{self.tunable.symbol}: {self.tunable.about}" if self.tunable.symbol else self.tunable.about


@dataclass(slots=True)
class Constants:
    """The lines of a kernel's text that define tunables, each printed once: `{{ constants() }}` in a template.

    Those named, in this order; without names all that are left, in the order of the fields.
    """

    left: dict[str, tuple[int, str]]  # tunable -> its value, and what it is

    @classmethod
    def of(cls, config_type: type[Any], values: Mapping[str, Any]) -> Constants:
        """With these values; a tunable of value 0 has no line, such as a bound that a kernel does without."""
        shown = [one for one in declared(config_type) if one.is_constant and values[one.name]]
        return cls({KERNEL_NAMES.get(one.name, one.name): (values[one.name], one.comment) for one in shown})

    def __call__(self, *names: str) -> str:
        return "\n".join(self.in_one_line(name) for name in names or tuple(self.left))

    def in_one_line(self, *names: str) -> str:
        """Return the line that defines all those named."""
        values, comments = zip(*(self.left.pop(name) for name in names), strict=True)
        numbers = ", ".join(f"{name} = {value}" for name, value in zip(names, values, strict=True))
        return f"constexpr int {numbers};  // {'; '.join(comments)}"


_DECLARED: dict[Any, tuple[Declared, ...]] = {}


def declared(config_type: type[Any]) -> tuple[Declared, ...]:
    """Return the tunables of a configuration, in the order of its fields; each class is looked at once."""
    if config_type not in _DECLARED:
        hints = get_type_hints(config_type, include_extras=True)
        _DECLARED[config_type] = tuple(
            Declared(name, *get_args(hint)) for name, hint in hints.items() if get_origin(hint) is Annotated
        )
    return _DECLARED[config_type]


# What several kernels have alike.
Threads = Annotated[int, Tunable("threads of a block")]
BlockM = Annotated[int, Tunable("rows of C that one block computes", word="block")]
BlockN = Annotated[int, Tunable("columns of C that one block computes", word="block")]
ThreadRows = Annotated[int, Tunable("rows of C that one thread accumulates in registers", word="thread")]
ThreadColumns = Annotated[int, Tunable("columns of C that one thread accumulates in registers", word="thread")]
WarpStrips = Annotated[
    int, Tunable("strips of 16 rows of C that one warp accumulates in registers", word="warp", unit=16)
]
WarpStripsOf8 = Annotated[
    int, Tunable("strips of 8 rows of C that one warp accumulates in registers", word="warp", unit=8)
]
WarpOctets = Annotated[
    int, Tunable("octets of columns of C that one warp accumulates in registers", word="warp", unit=8)
]
RingStages = Annotated[int, Tunable("places of the ring, on their way or arrived")]
PartsOfK = Annotated[int, Tunable("parts of k, each a block of its own", usual=1, is_launch=True)]
RowTiles = Annotated[int, Tunable("tiles of rows for each block of the grid", symbol="tcf", usual=1, is_launch=True)]
MinBlocks = Annotated[int, Tunable("blocks that a multiprocessor must hold, which bounds the registers", usual=1)]
# Loads of A that are first to evict leave the L2 to whatever else is there: to B and C, which is of use, and to the
# dirty lines of the kernel before, which is not. Others push those out once.
EvictFirst = Annotated[
    int,
    Tunable(
        "1 where loads of A are first to evict, 0 where they have no policy",
        is_constant=False,
        late=(1, 0),
    ),
]
