"""What the families have in common that stream A through registers: the rules on their tunables."""

from __future__ import annotations

from tsm2_tune.generator.rules import Rule, columns_within_n, prefetch_within_k
from tsm2_tune.generator.split_k import SPLITTING_RULES


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
