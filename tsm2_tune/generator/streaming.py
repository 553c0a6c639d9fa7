"""What the families have in common that stream A through registers: their tunables and the rules on these."""

from __future__ import annotations

from types import MappingProxyType

from tsm2_tune.generator.families.family import Tunable
from tsm2_tune.generator.rules import Rule, columns_within_n, prefetch_within_k
from tsm2_tune.generator.split_k import SPLITTING_RULES

# Loads of A that are first to evict leave the L2 to whatever else is there: to B and C, which is of use, and to the
# dirty lines of the kernel before, which is not. Others push those out once.
EVICT_FIRST = Tunable("evict_first", "", "1 where loads of A are first to evict, 0 where they have no policy")
POLICIES = MappingProxyType({EVICT_FIRST.name: (1, 0)})


def streaming_tunables(height: Tunable, holder: str) -> tuple[Tunable, ...]:
    """`height` is how many rows of A the holder has: one thread, or one warp on the tensor cores."""
    return (
        Tunable("threads", "t1", "threads of a block"),
        height,
        Tunable("columns", "t2", f"columns of C that {holder} accumulates in registers"),
        Tunable("prefetch", "t3", f"columns of A that {holder} has in registers, on their way or arrived"),
        Tunable("stages", "", "groups in which these are used and loaded anew"),
        Tunable("splits", "", "parts of k, each a block of its own"),
        Tunable("row_tiles", "tcf", "tiles of rows for each block of the grid"),
        Tunable("min_blocks", "", "blocks that a multiprocessor must hold, which bounds the registers"),
        EVICT_FIRST,
    )


def streaming_rules(
    columns: tuple[int, ...], prefetch_stages: tuple[tuple[int, int], ...], *own: Rule
) -> tuple[Rule, ...]:
    """For the options of columns, and of prefetch with stages; `own` are the family's."""
    return (
        columns_within_n(columns),
        prefetch_within_k(tuple(sorted({prefetch for prefetch, _ in prefetch_stages}))),
        *own,
        *SPLITTING_RULES,
    )
