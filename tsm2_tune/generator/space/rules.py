"""Rules: named conditions that drop configurations from a search space before they are compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from tsm2_tune.generator.problem import Extent, Problem
from tsm2_tune.generator.scalars import plain
from tsm2_tune.generator.space.candidate import Candidate, tunable

RuleKind = Literal["limit", "shape", "guideline"]
RESOURCES = "resources"  # in `Rule.of`: all tunables that determine a block's registers, shared memory and threads
REGISTERS_SPARED = 1.15  # estimated registers of a kernel, over the least with which its inner loop does not spill


@lru_cache  # hundreds of thousands of candidates share a problem
def _covering(options: tuple[int, ...], wanted: int) -> int:
    return min((option for option in options if option >= wanted), default=max(options))


@dataclass(frozen=True, slots=True)
@plain
class Rule:
    """A condition on configurations. A search space drops a configuration for which `keeps` returns false."""

    name: str  # such as "registers-per-thread"
    kind: RuleKind  # "limit" of the device or template, "shape" of the problem, or "guideline"
    because: str  # the reason, in one sentence
    keeps: Callable[[Candidate], bool]  # returns false for a configuration that the rule drops
    of: tuple[str, ...] | None = None  # the tunables that `keeps` reads, or RESOURCES; None: perhaps all


def covering_rule(
    tunable: str, extent: Extent, options: Sequence[int], least: Callable[[Problem], int] = lambda problem: 1
) -> Rule:
    """Return the rule that drops a value of the tunable if a smaller option already covers the extent.

    An option covers the extent if it is at least the extent, and at least `least(problem)`.
    """
    sizes = tuple(options)

    def keeps(candidate: Candidate) -> bool:
        wanted = max(getattr(candidate.problem, extent), least(candidate.problem))
        return int(getattr(candidate.config, tunable)) <= _covering(sizes, wanted)

    because = f"a smaller {tunable} already covers {extent}, so a larger one only adds idle threads or zeros"
    return Rule(f"{tunable}-within-{extent}", "shape", because, keeps, (tunable,))


def rows_within_m(*of: str, **smallest: int) -> Rule:
    """Return the rule that drops a tile of more rows than m, unless it is the smallest tile.

    `smallest` has the least option of tunables. `of` names the other tunables that determine a tile's rows.
    """

    def keeps(candidate: Candidate) -> bool:
        is_smallest = all(tunable(candidate, name) == value for name, value in smallest.items())
        return is_smallest or candidate.block_plan.tile.m <= candidate.problem.m

    return Rule("rows-within-m", "shape", "a tile of more rows than m leaves threads idle", keeps, (*of, *smallest))


VECTOR_HOLDS_AN_ELEMENT = Rule(
    "vector-holds-an-element",
    "limit",
    "a load moves whole elements",
    lambda c: tunable(c, "vector_bytes") >= c.problem.dtype.element_bytes,
    of=("vector_bytes",),
)


def strides_fill_device(*of: str) -> Rule:
    """Return the rule that a block computes several row tiles only if every multiprocessor still has a block.

    `of` contains the tunables that determine the rows of a tile.
    """
    return Rule(
        "grid-fills-device",
        "shape",
        "a block should compute several row tiles only if every multiprocessor still has a block",
        lambda c: tunable(c, "row_tiles") == 1 or c.problem.m >= c.launch.rows_per_block * c.limits.sms,
        of=(*of, "row_tiles"),
    )


HARDWARE_RULES = (
    Rule(
        "threads-per-block",
        "limit",
        "a block may not have more threads than the device allows",
        lambda c: c.resources.threads <= c.limits.threads_per_block,
        of=(RESOURCES,),
    ),
    Rule(
        "registers-per-thread",
        "limit",
        "a thread that needs more registers than the architecture has would spill to memory",
        lambda c: c.resources.registers <= c.occupancy.registers_per_thread_limit,
        of=(RESOURCES,),
    ),
    Rule(
        "shared-memory",
        "limit",
        "a block may not have more shared memory than the device grants, opt-in included",
        lambda c: c.resources.smem_bytes <= c.limits.smem_bytes_per_block_optin,
        of=(RESOURCES,),
    ),
    Rule(
        "block-fits",
        "limit",
        "a multiprocessor must hold at least one block: registers, threads and shared memory together",
        lambda c: c.occupancy.blocks_per_sm >= 1,
        of=(RESOURCES,),
    ),
)

GUIDELINE_RULES = (
    Rule(
        "min-threads-per-sm",
        "guideline",
        "enough resident threads on a multiprocessor hide the latency of loads",
        lambda c: c.occupancy.threads_per_sm >= c.guidelines.min_threads_per_sm,
        of=(RESOURCES,),
    ),
    Rule(
        "min-blocks-per-sm",
        "guideline",
        "with several blocks resident, one computes while another waits at a barrier",
        lambda c: c.occupancy.blocks_per_sm >= c.guidelines.min_blocks_per_sm,
        of=(RESOURCES,),
    ),
    Rule(
        "min-reuse",
        "guideline",
        "an element of A in a register should feed several columns of C, or all n",
        lambda c: c.resources.reuse >= min(c.guidelines.min_reuse, c.problem.n),
        of=(RESOURCES,),
    ),
)


def _registers_reachable(candidate: Candidate) -> bool:
    """Return whether the bound on registers that `min_blocks` sets is useful.

    The bound is useless if the kernel would spill registers, or if the compiler would use fewer registers without a
    bound. Return True if `min_blocks` is 1, which sets no bound.
    """
    min_blocks, resources = tunable(candidate, "min_blocks"), candidate.resources
    if min_blocks <= 1:
        return True
    bound = candidate.limits.registers_per_sm // (resources.threads * min_blocks)
    return resources.registers <= REGISTERS_SPARED * bound and bound <= 2 * resources.registers


REGISTERS_REACHABLE = Rule(
    "registers-reachable",
    "shape",
    "a bound on registers is useless if the compiler spills to meet it, or meets it anyway",
    _registers_reachable,
    of=(RESOURCES, "min_blocks"),
)
