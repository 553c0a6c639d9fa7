"""Data of the page's list of trials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tsm2_tune.html.bounds import MOST_TRIALS, cut, first_of_each, grouped, left_out
from tsm2_tune.html.contents import TrialRow

HEADS = {  # headings of the columns, and whether the columns contain numbers
    "trial": ("trial", True),
    "problem": ("problem", False),
    "device": ("device", False),
    "cache": ("L2", False),
    "config": ("configuration", False),
    "outcome": ("outcome", False),
    "us": ("us", True),
    "spread": ("spread %", True),
    "registers": ("registers", True),
    "spills": ("spilled bytes", True),
    "smem": ("shared bytes", True),
    "blocks": ("blocks per SM", True),
    "strategy": ("strategy", False),
    "why": ("reason", False),
}


def listed(trials: Sequence[TrialRow]) -> tuple[list[dict[str, Any]], str]:
    """Return the rows of the list, if needed only the fastest of each problem and outcome, and a note on the rest."""
    in_order = sorted(trials, key=lambda one: (one.median_us is None, one.median_us or 0.0, one.id))
    groups = grouped(in_order, lambda one: (one.device, one.problem, one.cache, one.outcome))
    kept = sorted(first_of_each(groups, MOST_TRIALS), key=lambda one: one.id)
    which = "the first trials of each problem and outcome, fastest first"
    note = left_out("trials are listed", len(kept), len(trials), which)
    return [_row(one) for one in kept], f"{note} tsm2-tune show lists all." if note else ""


def heads(rows: Sequence[dict[str, Any]]) -> dict[str, tuple[str, bool]]:
    """Return the columns to show: name -> heading, and whether it contains numbers.

    The device is shown only if there are several, the search strategy only if it is known for some trial.
    """
    is_shown = {"device": len({row["device"] for row in rows}) > 1, "strategy": any(row["strategy"] for row in rows)}
    return {name: head for name, head in HEADS.items() if is_shown.get(name, True)}


def _row(one: TrialRow) -> dict[str, Any]:
    spread = None
    if one.median_us is not None and one.low_us is not None and one.high_us is not None:
        spread = 100 * max(one.high_us / one.median_us - 1, 1 - one.low_us / one.median_us)
    return {
        "trial": one.id,
        "problem": one.problem.text,
        "device": one.device,
        "cache": one.cache,
        "config": one.config,
        "outcome": one.outcome.value,
        "us": one.median_us,
        "spread": spread,
        "registers": one.registers,
        "spills": one.spill_bytes,
        "smem": one.smem_bytes,
        "blocks": one.blocks_per_sm,
        "strategy": one.strategy,
        "why": cut(_why(one)),
    }


def _why(one: TrialRow) -> str:
    """Return the reasons why the trial's kernel cannot become the winner, as a text; "" if there are none."""
    reasons = [] if one.outcome == "ok" else [one.detail]
    if one.superseded:
        reasons.append("superseded: this version generates other code")
    if one.guideline_broken is not None:
        reasons.append(f"breaks the guideline {one.guideline_broken} by its real occupancy")
    return "; ".join(reasons)
