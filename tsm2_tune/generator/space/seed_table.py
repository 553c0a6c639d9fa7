"""Problems that were measured, each with its fastest configurations: tsm2_tune/pretuned/first_choices.txt.

    h200 f32 nn 20480 16 20480 stream_a_fma:threads=128,columns=8,prefetch=8,stages=4,splits=12@377.2 ...

A line has the card, the problem, and its fastest kernels, the fastest first, each as it was started there and with
the microseconds that it took. `python -m benchmarks.measured` makes the file of result files.
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
from tsm2_tune.generator.families import config_spelt, family_named
from tsm2_tune.generator.predict.expected_time import expected_us
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.guidelines import Guidelines

FILE = Path(__file__).parents[2] / "pretuned" / "first_choices.txt"
# Whose kernels compute the same: elements as wide, or TF32 in registers, where the family gives f32's accuracy.
SIMILAR_DTYPES = {"bf16": ("f16",), "f16": ("bf16",), "tf32": ("f32",), "3xtf32": ("f32",)}

# Distances: an extent of e times another's is so far away. Tiles are chosen by the small ones.
SMALL_EXTENT = 128
PER_SMALL_EXTENT, PER_LARGE_EXTENT = 2.0, 0.2
OTHER_STORAGE = (0.45, 0.3, 0.15)  # of A, of B and of C
OTHER_LINES = 0.3  # whole vectors, or not
OTHER_TYPE = 0.3


@dataclass(frozen=True, slots=True)
class Choice:
    """A configuration, and the microseconds that it took."""

    config: KernelConfig
    us: float


@dataclass(frozen=True)
class Measured:
    """A problem that was measured on a device, and its fastest kernels, the fastest first."""

    limits: DeviceLimits  # of the device; in the file a card of PROFILES
    problem: Problem
    choices: tuple[Choice, ...]

    @cached_property
    def families(self) -> frozenset[str]:
        """The names of the choices' families."""
        return frozenset(one.config.family for one in self.choices)

    @property
    def line(self) -> str:
        """As the file has it."""
        problem = self.problem
        extents = (problem.m, problem.n, problem.k)
        choices = (f"{one.config.text}@{one.us:.4g}" for one in self.choices)
        return " ".join([self.limits.name, problem.dtype_name, problem.op, *map(str, extents), *choices])


def read_line(line: str) -> Measured:
    """Return the line's problem, with those configurations that this version has.

    Raise ValueError if it is no such line.
    """
    card, dtype_name, op, *fields = line.split(" ")
    m, n, k, *spelt = fields
    if card not in PROFILES or not spelt:
        raise ValueError
    choices = [(config_spelt(text), float(us)) for text, us in (one.split("@") for one in spelt)]
    known = tuple(Choice(config, us) for config, us in choices if config is not None)
    if not all(0 < one.us < float("inf") for one in known):
        raise ValueError
    return Measured(PROFILES[card], Problem(int(m), int(n), int(k), dtype_name, op), known)


@cache
def lines_of(file: Path) -> dict[str, tuple[tuple[int, str], ...]]:
    """Return a type -> its lines, with their numbers.

    A file that is missing has none: a search goes by the model alone.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {file} ({error}): install tsm2-tune anew") from None
    found: dict[str, list[tuple[int, str]]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if line and not line.startswith("#"):
            found.setdefault(line.partition(" ")[2].partition(" ")[0], []).append((number, line))
    return {name: tuple(lines) for name, lines in found.items()}


@cache
def measured(dtype_name: str, file: Path = FILE) -> tuple[Measured, ...]:
    """Return the problems of a type and of those alike, in the file's order.

    Raise InputError for a line that is none.
    """
    found = []
    for name in (dtype_name, *SIMILAR_DTYPES.get(dtype_name, ())):
        for number, line in lines_of(file).get(name, ()):
            try:
                found.append(read_line(line))
            except (ValueError, InputError):
                raise InputError(
                    f"{file}, line {number}: expected a card, type, op, m, n, k and configurations with their times:"
                    " install tsm2-tune anew"
                ) from None
    return tuple(found)


@cache
def times_the_model(one: Measured, choice: Choice) -> float:
    """Return how many times as long as expected the configuration took."""
    family = family_named(choice.config.family)
    return choice.us / float(expected_us(Candidate(family, choice.config, one.problem, one.limits, Guidelines())))


def distance(problem: Problem, other: Problem) -> float:
    """Between problems, in what matters to the choice of a kernel."""
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
    """Return how far one extent is away from the other."""
    smaller = one if one < other else other
    return abs(log(one / other)) * (PER_SMALL_EXTENT if smaller <= SMALL_EXTENT else PER_LARGE_EXTENT)


@cache
def _lines(problem: Problem) -> tuple[tuple[str, str, str], bool]:
    """The extents along lines of A, of B and of C, and whether lines of a matrix are not whole 16-byte vectors."""
    along = problem.contiguous
    extents = (int(getattr(problem, extent)) for extent in along)
    return along, any(extent > 1 and extent * problem.dtype.element_bytes % 16 for extent in extents)
