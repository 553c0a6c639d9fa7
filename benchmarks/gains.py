"""A program's speedup over cuBLAS, including the host's cost of each call, on tuned and on untuned shapes.

A program that multiplies in a loop waits for the longer of two times: the host's call, which launches a kernel, and
the kernel. So each product counts as the longer time. Our call is `gemm(a, b, out=c)` and the vendor's is
`torch.mm(a, b, out=c)`, with the times that `benchmarks.call_cost` measured for a small product. The vendor's kernel
time is that of the faster of cuBLAS and cuBLASLt. If the module calls cuBLAS for a product, the time is that of
cuBLAS's own routine, called through PyTorch. With `measure=True`, it is the time of the fastest choice that the
module found by timing.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.call_cost import LEFT, OUT, OWN, SPLIT, call_us
from benchmarks.plot import DOTS_PER_INCH, INCHES_WIDE, POINTS, matplotlib
from benchmarks.tables import Row, markdown, number, vendor_us
from benchmarks.unseen_tables import MARGIN, cublas_us, percent, plan_us, ranked
from tsm2_tune.tuner.packs.gains import mean

TUNED, UNSEEN, TIMED = "tuned", "not tuned", "not tuned, measure=True"
KINDS = (TUNED, UNSEEN, TIMED)
COLOURS = dict(zip(KINDS, ("C0", "C2", "C1"), strict=True))
NAMES = {
    "R": "R: a large matrix, few columns",
    "L": "L: a tall matrix, a small one",
    "T": "T: two tall ones, transposed",
}
WORDS = {  # labels of a picture's rows for readers who do not know the regimes
    "R": "large matrix x few columns",
    "L": "tall x small",
    "T": "tall^T x tall",
}
ROW_INCHES, FRAME_INCHES = 0.28, 0.9  # height of a row of the picture, and of the frame around the rows
RIGHTMOST = 16.0  # larger speedups are drawn at this one


@dataclass(frozen=True, slots=True)
class Calls:
    """The microseconds of a call: of our kernel, of the vendor's routine, and of that routine through our module."""

    ours_us: float
    vendors_us: float
    left_us: float

    @classmethod
    def of(cls, path: Path) -> Calls:
        """Return the call times with PyTorch tensors from a file of call_cost.

        Our time is the longer one of a kernel with split-k and one without.
        """
        found = json.loads(path.read_text(encoding="utf-8"))
        ours, split, vendors, left = (
            call_us(found, "torch", name) or 0.0 for name in (OUT, SPLIT, OWN["torch"], LEFT)
        )
        return cls(max(ours, split), vendors, left or ours + vendors)

    def gain(self, taken_us: float, vendors_us: float, *, falls_back: bool) -> float:
        """Return the vendor's time divided by the module's, each the longer of call and kernel."""
        return max(vendors_us, self.vendors_us) / max(taken_us, self.left_us if falls_back else self.ours_us)


NO_CALLS = Calls(0.0, 0.0, 0.0)  # calls without cost: only the kernels' times count


SMALL = 64  # extents up to this are small


def regime_of(m: int, n: int, k: int) -> str:
    """Return the regime R, L or T of a shape, which depends on which extents are small."""
    if max(n, k) <= SMALL < m:
        return "L"
    return "T" if max(m, n) <= SMALL < k else "R"


def tuned_gains(rows: Sequence[Row], calls: Calls) -> Iterator[tuple[str, float]]:
    """Yield the regime and the speedup of each winner for which the vendor's result was correct."""
    for row in rows:
        vendors_us = row["vendor_us"] if row["vendor_right"] else None
        own_us, ours_us = row["cublas_us"] if row["cublas_right"] else None, row["median_us"]
        if vendors_us is not None:
            falls_back = own_us is not None and own_us < ours_us
            taken_us = own_us if own_us is not None and falls_back else ours_us
            yield regime_of(row["m"], row["n"], row["k"]), calls.gain(taken_us, vendors_us, falls_back=falls_back)


def unseen_gains(rows: Sequence[Row], calls: Calls) -> Iterator[tuple[str, float]]:
    """Yield the regime and the speedup of each untuned shape. The module predicts whether to call cuBLAS."""
    for row in rows:
        vendors_us, falls_back = vendor_us(row), row["falls_back"]
        taken_us = cublas_us(row) if falls_back else row["ours_us"]
        if row["verified"] and falls_back is not None and vendors_us is not None and taken_us is not None:
            yield row["regime"], calls.gain(taken_us, vendors_us, falls_back=falls_back)


def timed_gains(rows: Sequence[Row], calls: Calls) -> Iterator[tuple[str, float]]:
    """Yield the regime and the speedup of each untuned shape. The module chose by timing."""
    for row in rows:
        vendors_us, own_us = vendor_us(row), plan_us(row)
        if own_us is not None and vendors_us is not None:
            falls_back = row["plan"].startswith("the vendor")
            yield row["regime"], calls.gain(own_us, vendors_us, falls_back=falls_back)


Gains = Mapping[tuple[str, str], Sequence[float]]  # (regime, kind of shapes) -> speedups


def gains_of(tuned: Sequence[Row], unseen: Sequence[Row], calls: Calls) -> Gains:
    """Return {(regime, kind of shapes): speedups in ascending order}."""
    found: dict[tuple[str, str], list[float]] = {}
    of_kinds: tuple[tuple[str, Callable[..., Iterator[tuple[str, float]]], Sequence[Row]], ...] = (
        (TUNED, tuned_gains, tuned),
        (UNSEEN, unseen_gains, unseen),
        (TIMED, timed_gains, unseen),
    )
    for kind, gains, rows in of_kinds:
        for regime, gain in gains(rows, calls):
            found.setdefault((regime, kind), []).append(gain)
    return {place: sorted(values) for place, values in found.items()}


def table(gains: Gains, of_kernels: Gains) -> str:
    """Return a Markdown table by regime and kind of shapes.

    Its columns are the geometric mean speedup of the kernels alone, that with the cost of the call, and quantiles.
    """
    heads = (
        "regime", "shapes", "count", "kernels alone", "with the call", "median", "10th percentile", "least",
        "over 3 % slower",
    )  # fmt: skip
    lines = []
    for regime in NAMES:
        for kind in KINDS:
            if values := gains.get((regime, kind)):
                ratios = (
                    mean(of_kernels[regime, kind]), mean(values), statistics.median(values),
                    ranked(values, 0.1), values[0],
                )  # fmt: skip
                slower = percent(share_slower(values))
                lines.append((NAMES[regime], kind, str(len(values)), *(number(x, 2) for x in ratios), slower))
    return markdown(heads, lines, texts=("regime", "shapes"))


def short_table(gains: Gains) -> str:
    """Return a Markdown table by regime and kind of shapes, without choices by timing.

    Its columns are the geometric mean speedup with the cost of the call, and its spread.
    """
    heads = ("regime", "shapes", "count", "speed-up", "10th percentile", "over 3 % slower")
    lines = [
        (
            NAMES[regime], kind, str(len(values)), number(mean(values), 2), number(ranked(values, 0.1), 2),
            percent(share_slower(values)),
        )
        for regime in NAMES
        for kind in (TUNED, UNSEEN)
        if (values := gains.get((regime, kind)))
    ]  # fmt: skip
    return markdown(heads, lines, texts=("regime", "shapes"))


def share_slower(values: Sequence[float]) -> float:
    """Return the fraction of the speedups that are below 1 by more than MARGIN."""
    return sum(value * (1 + MARGIN) < 1 for value in values) / len(values)


def title(device: str) -> str:
    """Return the picture's heading."""
    return f"{device}, L2 clean, the cost of the call included"


def draw(gains: Gains, heading: str, path: Path, kinds: Sequence[str] = KINDS) -> None:
    """Draw one row for each regime and kind of shapes: a dot per product, and a bar at the geometric mean.

    If the picture has only one kind, its labels name the products in words.
    """
    plt = matplotlib()
    places = [(regime, kind) for regime in NAMES for kind in kinds if gains.get((regime, kind))]
    labels = [WORDS[regime] if len(kinds) == 1 else f"{regime}, {kind}" for regime, kind in reversed(places)]
    row_inches = ROW_INCHES * (2 if len(kinds) == 1 else 1)
    with plt.rc_context({"font.size": POINTS}):
        figure, axis = plt.subplots(figsize=(INCHES_WIDE, FRAME_INCHES + row_inches * len(places)))
        for line, place in enumerate(reversed(places)):
            values, colour = gains[place], COLOURS[place[1]]
            # Spread dots vertically, so that neighbours do not hide each other.
            heights = [line + 0.5 * ((at * 0.618) % 1 - 0.5) for at in range(len(values))]
            shown = [min(value, RIGHTMOST) for value in values]
            axis.plot(shown, heights, ".", color=colour, markersize=4, alpha=0.5)
            beyond = sum(value > RIGHTMOST for value in values)
            if beyond:
                most = f"{beyond} more, up to {values[-1]:.0f} x"
                axis.text(RIGHTMOST * 1.06, line, most, va="center", color=colour)
            bar = float(mean(values) or 1.0)
            axis.plot([bar] * 2, [line - 0.4, line + 0.4], color=colour, linewidth=3)
            box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
            axis.text(bar * 1.04, line, f"{bar:.2f} x", va="center", fontweight="bold", bbox=box)
        axis.set_xscale("log", base=2)
        axis.set_xlim(right=RIGHTMOST * 2.4)
        axis.xaxis.set_major_formatter(lambda x, _: f"{x:g} x")
        axis.axvline(1, color="grey", linewidth=0.8)
        axis.set_yticks(range(len(places)), labels)
        axis.set_xlabel("times as fast as cuBLAS; a dot is a product, a bar their geometric mean")
        axis.set_title(heading, fontsize=POINTS, loc="left")
        figure.tight_layout()
        figure.savefig(path, dpi=DOTS_PER_INCH, format="png")
        plt.close(figure)
