"""The table of `docs/coverage.md`: kinds and types of the included measurements, and gains over cuBLAS."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tsm2_tune.commands.predict import number_text
from tsm2_tune.generator.pack_shapes import DTYPES, KINDS, kind_of
from tsm2_tune.pretuned import PREFIX, Pretuned, pretuned
from tsm2_tune.tuner.packs.choice import included_kernels
from tsm2_tune.tuner.packs.gains import Gains, gains_of, mean, share_slower
from tsm2_tune.tuner.results.store import Store

HEADS = (
    "GPU", "kind", "type", "winners", "verified in full", "x gemm", "left out", "x gemm", "slower", "worst",
)  # fmt: skip


def table() -> str:
    """Return a Markdown table with a line for each GPU model, kind and type of which winners are included."""
    lines = ["| " + " | ".join(HEADS) + " |", "|---|---|---|" + "---:|" * (len(HEADS) - 3)]
    lines += ["| " + " | ".join(cells) + " |" for one in pretuned() for cells in rows(one)]
    return "\n".join(lines)


def rows(text: Pretuned) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each line of a GPU model."""
    with Store.open(PREFIX + text.name, create=False) as store:
        winners = [row for row in store.best(device=text.device_name) if not row.stale]
    tuned = Counter((kind_of(row.problem), row.dtype) for row in winners)
    whole = Counter((kind_of(row.problem), row.dtype) for row in winners if row.verified_in_full)
    gains = gains_of(included_kernels(text))
    for cell in sorted(tuned, key=lambda cell: ([*KINDS].index(cell[0]), DTYPES.index(cell[1]))):
        one = gains.get(cell, Gains())
        slower = share_slower(one.left_out)
        yield (
            text.name.upper(),
            *cell,
            str(tuned[cell]),
            str(whole[cell]),
            number_text(mean(one.tuned), 2),
            str(len(one.left_out) or "-"),
            number_text(mean(one.left_out), 2),
            "-" if slower is None else f"{slower:.0%}",
            number_text(min(one.left_out, default=None), 2),
        )
