"""The table of `docs/coverage.md`: kinds and types of the pretuned kernels, and gains over cuBLAS."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tsm2_tune.generator.pack_shapes import DTYPES, KINDS, part_of
from tsm2_tune.pretuned import PREFIX, Pretuned, pretuned
from tsm2_tune.tuner.measure.vendor.table_cells import number_text
from tsm2_tune.tuner.packs.choice import pretuned_kernels
from tsm2_tune.tuner.packs.gains import Gains, gains_of, mean, share_slower
from tsm2_tune.tuner.results.store import Store

HEADS = (
    "GPU", "kind", "type", "winners", "verified in full", "x gemm (tuned)", "leave-one-out",
    "x gemm (leave-one-out)", "slower", "worst",
)  # fmt: skip


def table() -> str:
    """Return a Markdown table with a line for each GPU model, kind and type that has pretuned winners."""
    lines = ["| " + " | ".join(HEADS) + " |", "|---|---|---|" + "---:|" * (len(HEADS) - 3)]
    lines += ["| " + " | ".join(cells) + " |" for one in pretuned() for cells in rows(one)]
    return "\n".join(lines)


def rows(text: Pretuned) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each line of a GPU model."""
    with Store.open(PREFIX + text.name, create=False) as store:
        winners = [row for row in store.best(device=text.device_name) if not row.stale]
    tuned = Counter(part_of(row.problem) for row in winners)
    whole = Counter(part_of(row.problem) for row in winners if row.verified_in_full)
    gains = gains_of(pretuned_kernels(text))
    for part in sorted(tuned, key=lambda part: ([*KINDS].index(part[0]), DTYPES.index(part[1]))):
        one = gains.get(part, Gains())
        slower = share_slower(one.leave_one_out)
        yield (
            text.name.upper(),
            *part,
            str(tuned[part]),
            str(whole[part]),
            number_text(mean(one.tuned), 2),
            str(len(one.leave_one_out) or "-"),
            number_text(mean(one.leave_one_out), 2),
            "-" if slower is None else f"{slower:.0%}",
            number_text(min(one.leave_one_out, default=None), 2),
        )
