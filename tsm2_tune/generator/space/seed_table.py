"""Reader of tsm2_tune/pretuned/first_choices.txt: measured problems, each with its fastest configurations.

    h200 f32 nn 20480 16 20480 stream_a_fma:threads=128,columns=8,prefetch=8,stages=4,splits=12@377.2 ...

A line contains the GPU, element type, op, m, n and k, then the fastest configurations, each with its measured time in
microseconds. The fastest is first. `python -m benchmarks.measured` writes the file from result files.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from math import hypot, log
from pathlib import Path

from tsm2_tune.errors import InputError
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.families import parse_config
from tsm2_tune.generator.problem import Problem

FILE = Path(__file__).parents[2] / "pretuned" / "first_choices.txt"
# Element type -> other types whose fastest kernels are likely to be fast for it too.
SIMILAR_DTYPES = {"bf16": ("f16",), "f16": ("bf16",), "tf32": ("f32",), "3xtf32": ("f32",)}

# Terms of the distance between two problems. An m, n or k that differs by a factor of e counts as
# PER_SMALL_EXTENT up to SMALL_EXTENT, since tiles depend on small extents, and as PER_LARGE_EXTENT above it.
SMALL_EXTENT = 128
PER_SMALL_EXTENT, PER_LARGE_EXTENT = 2.0, 0.2
OTHER_STORAGE = (0.45, 0.3, 0.15)  # if the storage order of A, of B or of C differs
OTHER_LINES = 0.3  # if only one problem has rows or columns that are whole 16-byte vectors
OTHER_TYPE = 0.3  # if the element type differs


@dataclass(frozen=True, slots=True)
class Choice:
    """A configuration and its measured time in microseconds."""

    config: KernelConfig
    us: float


@dataclass(frozen=True)
class Measured:
    """A problem measured on a device. `choices` contains its fastest configurations, the fastest first."""

    limits: DeviceLimits  # the device; in the file one of PROFILES
    problem: Problem
    choices: tuple[Choice, ...]

    @cached_property
    def families(self) -> frozenset[str]:
        """The names of the kernel families of the fastest configurations."""
        return frozenset(one.config.family for one in self.choices)

    @property
    def line(self) -> str:
        """The text of this problem's line in first_choices.txt."""
        problem = self.problem
        extents = (problem.m, problem.n, problem.k)
        choices = (f"{one.config.text}@{one.us:.4g}" for one in self.choices)
        return " ".join([self.limits.name, problem.dtype_name, problem.op, *map(str, extents), *choices])


def read_line(line: str) -> Measured:
    """Parse a line of first_choices.txt. Omit configurations that this version does not have.

    Raise ValueError for an invalid line.
    """
    card, dtype_name, op, *fields = line.split(" ")
    m, n, k, *texts = fields
    if card not in PROFILES or not texts:
        raise ValueError
    choices = [(parse_config(text), float(us)) for text, us in (one.split("@") for one in texts)]
    known = tuple(Choice(config, us) for config, us in choices if config is not None)
    if not all(0 < one.us < float("inf") for one in known):
        raise ValueError
    return Measured(PROFILES[card], Problem(int(m), int(n), int(k), dtype_name, op), known)


@cache
def lines_of(file: Path) -> dict[str, tuple[tuple[int, str], ...]]:
    """Return element type -> (line number, line) pairs of the file, without comments and empty lines.

    Return an empty mapping if the file does not exist. Raise InputError if it cannot be read.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {file} ({error}): reinstall tsm2-tune") from None
    found: dict[str, list[tuple[int, str]]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if line and not line.startswith("#"):
            found.setdefault(line.partition(" ")[2].partition(" ")[0], []).append((number, line))
    return {name: tuple(lines) for name, lines in found.items()}


@cache
def measured(dtype_name: str, file: Path = FILE) -> tuple[Measured, ...]:
    """Return the measured problems of an element type, then of its SIMILAR_DTYPES, in the order of the file.

    Raise InputError for an invalid line.
    """
    found = []
    for name in (dtype_name, *SIMILAR_DTYPES.get(dtype_name, ())):
        for number, line in lines_of(file).get(name, ()):
            try:
                found.append(read_line(line))
            except (ValueError, InputError):
                raise InputError(
                    f"{file}, line {number}: expected a card, type, op, m, n, k and configurations with their times:"
                    " reinstall tsm2-tune"
                ) from None
    return tuple(found)


def distance(problem: Problem, other: Problem) -> float:
    """Return a distance between two problems: the smaller it is, the more likely both have the same fastest kernel.

    It compares m, n, k, storage orders, alignment of rows and columns to 16 bytes, and element types.
    """
    (mine, is_odd), (its, other_is_odd) = _lines(problem), _lines(other)
    storage = 0.0
    if mine != its:
        storage = sum(far for a, b, far in zip(mine, its, OTHER_STORAGE, strict=True) if a != b)
    return hypot(
        _apart(problem.m, other.m),
        _apart(problem.n, other.n),
        _apart(problem.k, other.k),
        storage,
        OTHER_LINES * (is_odd != other_is_odd),
        OTHER_TYPE * (problem.dtype_name != other.dtype_name),
    )


def _apart(one: int, other: int) -> float:
    """Return the contribution of one extent (m, n or k) to the distance of two problems."""
    smaller = one if one < other else other
    return abs(log(one / other)) * (PER_SMALL_EXTENT if smaller <= SMALL_EXTENT else PER_LARGE_EXTENT)


@cache
def _lines(problem: Problem) -> tuple[tuple[str, str, str], bool]:
    """Return two properties of a problem's matrices.

    The first is the extents ("m", "n" or "k") along which A, B and C are contiguous. The second is whether the
    contiguous rows or columns of some matrix are not a multiple of 16 bytes long.
    """
    along = problem.contiguous
    extents = (int(getattr(problem, extent)) for extent in along)
    return along, any(extent > 1 and extent * problem.dtype.element_bytes % 16 for extent in extents)
