"""Rules: the named reasons to drop a configuration before any compiler sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal

from tsm2_tune.errors import InputError
from tsm2_tune.generator.config import KernelConfig, Launch, Resources
from tsm2_tune.generator.limits import DeviceLimits
from tsm2_tune.generator.occupancy import Occupancy, occupancy
from tsm2_tune.generator.problem import Problem

if TYPE_CHECKING:  # the families import this module
    from tsm2_tune.generator.families.family import Family

NO_GUIDELINES = "none"  # as a user spells thresholds of 0
RuleKind = Literal["limit", "shape", "guideline"]


@dataclass(frozen=True, slots=True)
class Guidelines:
    """Thresholds of the guideline rules; the user's to set. A lower one keeps more configurations, 0 all of them.

    BACUGen's guidelines (section 5.3) for Fermi are 512 threads and 2 blocks a multiprocessor; those for a
    memory-bound kernel are weaker, since Little's law asks for bytes in flight and not for threads.
    """

    min_threads_per_sm: int = 256  # resident threads that hide latency
    min_blocks_per_sm: int = 1  # of more, one computes while another waits at a barrier; some winners are alone
    min_reuse: float = 4.0  # FMAs for each element of A loaded into a register, as far as n allows
    min_line_bytes: int = 0  # neighbours in memory that neighbouring threads read

    @property
    def text(self) -> str:
        """As a user spells them, such as min-threads-per-sm=256,min-blocks-per-sm=1."""
        values = ((spelt(field.name), getattr(self, field.name)) for field in fields(self))
        return ",".join(
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in values
        )

    def moved(self, thresholds: Thresholds) -> Guidelines:
        """The same but for these thresholds."""
        return replace(self, **dict[str, Any](thresholds))


# What a user moves: of Guidelines, by name. The others stay each family's own.
Thresholds = Mapping[str, float]


def spelt(name: str) -> str:
    """A field's name as a user spells it."""
    return name.replace("_", "-")


def parse_thresholds(text: str) -> dict[str, float]:
    """The thresholds that `name=value,...` sets (dashes or underscores), or `none`, which sets all of them to 0.

    What stands after `none` is set again. InputError for an unknown or a repeated name, and for no such value.
    """
    known = {field.name: field.type for field in fields(Guidelines)}
    items = [item for item in map(str.strip, text.split(",")) if item]
    if NO_GUIDELINES in items[1:]:
        raise InputError(f"guidelines {text!r}: {NO_GUIDELINES} takes all thresholds away, so it stands first")
    start = dict.fromkeys(known, 0) if NO_GUIDELINES in items else {}
    values: dict[str, float] = {}
    for item in items[1:] if start else items:
        name, _, value = item.partition("=")
        key = name.strip().replace("-", "_")
        if key not in known:
            names = ", ".join(map(spelt, known))
            raise InputError(f"unknown guideline {name.strip()!r}: expected one of {names}, or {NO_GUIDELINES}")
        if key in values:
            raise InputError(f"guideline {name.strip()} is set twice: say it once")
        values[key] = _threshold(name.strip(), value, whole=known[key] == "int")
    return start | values


def _threshold(name: str, value: str, *, whole: bool) -> float:
    """The number that `value` spells; InputError where it is none that the guideline can have."""
    try:
        number = int(value) if whole else float(value)
    except ValueError:
        expected = "whole number" if whole else "number"
        raise InputError(f"guideline {name}={value!r}: expected a {expected}") from None
    if not 0 <= number < float("inf"):
        raise InputError(f"guideline {name}={value}: expected a number of at least 0")
    return number


@dataclass(frozen=True)
class Candidate:
    """A configuration beside everything a rule may ask about it, computed when it is asked."""

    family: Family[Any]
    config: KernelConfig
    problem: Problem
    limits: DeviceLimits
    guidelines: Guidelines
    compiled: Resources | None = None  # what the compiler made of it, where that is known

    @cached_property
    def resources(self) -> Resources:
        return self.compiled or self.family.resources(self.config, self.problem)

    @cached_property
    def launch(self) -> Launch:
        return self.family.launch(self.config, self.problem)

    @cached_property
    def occupancy(self) -> Occupancy:
        if self.compiled is None:
            return self.family.occupancy(self.resources, self.limits)
        return occupancy(
            self.limits,
            threads=self.resources.threads,
            registers=self.resources.registers,
            smem_bytes=self.resources.smem_bytes,
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """A reason to drop: `keeps` is false for a configuration that the rule drops."""

    name: str
    kind: RuleKind
    because: str
    keeps: Callable[[Candidate], bool]


def covering_rule(
    name: str, because: str, *, tunable: str, options: tuple[int, ...], extent: Callable[[Problem], int]
) -> Rule:
    """A shape rule: drop a value of the tunable where a smaller one of its options already covers the extent."""

    @lru_cache  # of candidates by the hundred thousand, most are of one problem
    def largest_useful(wanted: int) -> int:
        return min((option for option in options if option >= wanted), default=max(options))

    def keeps(candidate: Candidate) -> bool:
        return int(getattr(candidate.config, tunable)) <= largest_useful(extent(candidate.problem))

    return Rule(name, "shape", because, keeps)


def columns_within_n(options: tuple[int, ...]) -> Rule:
    """For the options of a tunable `columns`: of C, that one thread or warp accumulates."""
    return covering_rule(
        "columns-within-n",
        "a column group wider than needed for n computes columns that nobody asked for",
        tunable="columns",
        options=options,
        extent=lambda problem: problem.n,
    )


def prefetch_within_k(options: tuple[int, ...]) -> Rule:
    """For the options of a tunable `prefetch`: columns of A that one thread or warp loads ahead."""
    return covering_rule(
        "prefetch-within-k",
        "a row of A has only k elements to load ahead",
        tunable="prefetch",
        options=options,
        extent=lambda problem: problem.k,
    )


VECTOR_HOLDS_AN_ELEMENT = Rule(
    "vector-holds-an-element",
    "limit",
    "a load moves whole elements",
    lambda c: int(c.config.tunables["vector_bytes"]) >= c.problem.dtype.element_bytes,
)

HARDWARE_RULES = (
    Rule(
        "threads-per-block",
        "limit",
        "a block may not have more threads than the device allows",
        lambda c: c.resources.threads <= c.limits.threads_per_block,
    ),
    Rule(
        "registers-per-thread",
        "limit",
        "a thread that needs more registers than the architecture has would spill to memory",
        lambda c: c.resources.registers <= c.occupancy.registers_per_thread_limit,
    ),
    Rule(
        "shared-memory",
        "limit",
        "a block may not have more shared memory than the device grants, opt-in included",
        lambda c: c.resources.smem_bytes <= c.limits.smem_bytes_per_block_optin,
    ),
    Rule(
        "block-fits",
        "limit",
        "a multiprocessor must hold at least one block: registers, threads and shared memory together",
        lambda c: c.occupancy.blocks_per_sm >= 1,
    ),
)

GUIDELINE_RULES = (
    Rule(
        "min-threads-per-sm",
        "guideline",
        "enough resident threads on a multiprocessor hide the latency of loads",
        lambda c: c.occupancy.threads_per_sm >= c.guidelines.min_threads_per_sm,
    ),
    Rule(
        "min-blocks-per-sm",
        "guideline",
        "with several blocks resident, one computes while another waits at a barrier",
        lambda c: c.occupancy.blocks_per_sm >= c.guidelines.min_blocks_per_sm,
    ),
    Rule(
        "min-reuse",
        "guideline",
        "an element of A in a register should feed several columns of C, as far as n has them",
        lambda c: c.resources.reuse >= min(c.guidelines.min_reuse, c.problem.n),
    ),
)
