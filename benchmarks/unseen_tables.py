"""Tables of a file of `benchmarks.unseen`, for each kind of product and for all: pure functions of its rows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.tables import DIRTY, Row, is_dirty_too, markdown, number, right_us, runs_of, vendor_us
from tsm2_tune.tuner.packs.gains import mean

MARGIN = 0.03  # ours counts as slower if its time exceeds the library's by this fraction
KIND = ("regime", "dtype", "layout")
TIMED = (
    "ours",
    "plan",
    "search",
    "fallback",
    "cublas",
    "cublaslt",
)  # a row has these contestants' times with a clean and with a dirty L2
BY_KIND = "The next table has kernels that `gemm` chooses by prediction, by kind of product, with the L2 clean:"


def cublas_us(row: Row) -> float | None:
    """Return the time of cuBLAS's own routine, which programs call, or None if its result is wrong."""
    return right_us(row, "cublas")


def search_us(row: Row) -> float | None:
    """Return the time of the search's winner, from the same rounds, or None if there is none or it is wrong."""
    return right_us(row, "search")


def with_fallback_us(row: Row) -> float | None:
    """Return the time of the kernel, or of the library if the module would call it.

    Return None if it is unknown which the module would call.
    """
    if row["falls_back"] is None:
        return None
    us: float = row["fallback_us"] if row["falls_back"] else row["ours_us"]
    return us


def over(numerator: Callable[[Row], float | None], denominator: Callable[[Row], float | None]) -> Any:
    """Return a function that computes the ratio of two times for each row that has both."""

    def ratios(rows: Sequence[Row]) -> list[float]:
        pairs = ((numerator(row), denominator(row)) for row in rows)
        return [top / bottom for top, bottom in pairs if top is not None and bottom is not None]

    return ratios


def ours_us(row: Row) -> float | None:
    return right_us({**row, "ours_verified": row["verified"]}, "ours")


def plan_us(row: Row) -> float | None:
    """Return the time of the plan that the module made by timing."""
    return right_us(row, "plan")


def expected_us(row: Row) -> float | None:
    us: float | None = row["expected_us"]
    return us


X_VENDOR_WITH_FALLBACK = over(vendor_us, with_fallback_us)
X_CUBLAS_WITH_FALLBACK = over(cublas_us, with_fallback_us)
SEARCH_X_VENDOR = over(vendor_us, search_us)
X_EXPECTED = over(ours_us, expected_us)


def ranked(values: Sequence[float], share: float) -> float | None:
    """Return the quantile: the least value that this share of the values does not exceed. None without values."""
    if not values:
        return None
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary of rows; a field is None if no row has its value. A ratio above 1 means that ours is faster."""

    shapes: int
    x_vendor: float | None  # geometric mean of the vendor's time over ours
    worst: float | None  # the least of these ratios
    slower: float | None  # share of the shapes that take more than MARGIN longer than the vendor
    slower_with_fallback: float | None
    slower_than_cublas: float | None  # share that take more than MARGIN longer than cuBLAS's own routine
    search_x_vendor: float | None  # geometric mean of the vendor's time over that of the search's winner
    x_search: float | None  # geometric mean of the search's time over ours
    median_regret: float | None  # how much longer ours takes than the search's winner, negative if less
    regret_of_95: float | None  # regret that 95 % of the shapes do not exceed
    off: float | None  # median factor between measured and expected times, at least 1
    off_of_95: float | None  # factor that 95 % of the shapes do not exceed


def summary(rows: Sequence[Row], by_timing: bool = False) -> Summary:
    """Return the summary of rows, of the module's choices or, if `by_timing`, of its plans.

    A plan by timing may call cuBLAS.
    """
    taken_us = plan_us if by_timing else ours_us
    x_vendor, x_search = over(vendor_us, taken_us)(rows), over(search_us, taken_us)(rows)
    with_fallback = x_vendor if by_timing else X_VENDOR_WITH_FALLBACK(rows)
    x_cublas = over(cublas_us, plan_us)(rows) if by_timing else X_CUBLAS_WITH_FALLBACK(rows)
    regrets = [1 / ratio - 1 for ratio in x_search]
    factors = [max(ratio, 1 / ratio) for ratio in X_EXPECTED(rows)]
    return Summary(
        shapes=len(rows),
        x_vendor=mean(x_vendor),
        worst=min(x_vendor, default=None),
        slower=_slower(x_vendor),
        slower_with_fallback=_slower(with_fallback),
        slower_than_cublas=_slower(x_cublas),
        search_x_vendor=mean(SEARCH_X_VENDOR(rows)),
        x_search=mean(x_search),
        median_regret=statistics.median(regrets) if regrets else None,
        regret_of_95=ranked(regrets, 0.95),
        off=statistics.median(factors) if factors else None,
        off_of_95=ranked(factors, 0.95),
    )


def _slower(ratios: Sequence[float]) -> float | None:
    """Return the fraction of the ratios by which the library is faster than ours by more than MARGIN."""
    return sum(ratio * (1 + MARGIN) < 1 for ratio in ratios) / len(ratios) if ratios else None


def by_kind(rows: Sequence[Row]) -> dict[tuple[str, ...], list[Row]]:
    """Return the rows grouped by regime, element type and layout."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in KIND), []).append(row)
    return groups


def percent(share: float | None, digits: int = 0) -> str:
    return "–" if share is None else f"{100 * share:.{digits}f} %"


# Columns: head, value, and whether the table of plans by timing has it too.
COLUMNS: tuple[tuple[str, Callable[[Summary], str], bool], ...] = (
    ("shapes", lambda s: str(s.shapes), True),
    ("x cuBLAS", lambda s: number(s.x_vendor, 2), True),
    ("worst", lambda s: number(s.worst, 2), True),
    ("slower than cuBLAS by over 3 %", lambda s: percent(s.slower), True),
    ("so with the fallback", lambda s: percent(s.slower_with_fallback), False),
    ("slower than its own routine", lambda s: percent(s.slower_than_cublas), True),
    ("search x cuBLAS", lambda s: number(s.search_x_vendor, 2), True),
    ("x search", lambda s: number(s.x_search, 3), True),
    ("median regret", lambda s: percent(s.median_regret, 1), True),
    ("95 % regret at most", lambda s: percent(s.regret_of_95, 1), True),
    ("expected times off by", lambda s: number(s.off, 2), False),
    ("95 % by at most", lambda s: number(s.off_of_95, 2), False),
)


def table(rows: Sequence[Row], *, by_timing: bool) -> str:
    """Return a Markdown table of the rows by kind, and of all rows."""
    columns = [(head, text_of) for head, text_of, of_plans in COLUMNS if of_plans or not by_timing]
    groups = [*sorted(by_kind(rows).items()), (("all", "", ""), list(rows))]
    summaries = [(kind, summary(of, by_timing)) for kind, of in groups]
    lines = [(*kind, *(text_of(found) for _, text_of in columns)) for kind, found in summaries]
    return markdown((*KIND, *(head for head, _ in columns)), lines)


# Goals over all shapes: head of the column, test of a sufficient value, decimals of the percents (0: a ratio).
GOALS: tuple[tuple[str, Callable[[Summary], float | None], Callable[[float], bool], int], ...] = (
    ("of the search's speed (goal: 0.95)", lambda s: s.x_search, lambda value: value >= 0.95, 0),
    ("median regret (2 %)", lambda s: s.median_regret, lambda value: value <= 0.02, 1),
    ("95 % regret at most (10 %)", lambda s: s.regret_of_95, lambda value: value <= 0.10, 1),
    ("slower than cuBLAS by over 3 % (none)", lambda s: s.slower_with_fallback, lambda value: value == 0, 1),
    ("slower than its own routine (none)", lambda s: s.slower_than_cublas, lambda value: value == 0, 1),
)


def goals(rows: Sequence[Row]) -> str:
    """Return a Markdown table of goals and reached values, by way of choosing and by L2 state.

    Reached goals are in bold. If the module calls cuBLAS for a product, the time is cuBLAS's.
    """
    timed = [row for row in rows if row["plan_us"] is not None]
    started = [as_started(row) for row in rows]
    lines = []
    for way, by_timing, of in (("`gemm`", False, started), ("`measure=True`", True, timed)):
        for state, seen in (("clean", of), ("dirty", [with_dirty_l2(row) for row in of if is_dirty_too(row)])):
            if seen:
                found = summary(seen, by_timing)
                lines.append((way, state, str(found.shapes), *(_goal_text(found, *goal[1:]) for goal in GOALS)))
    return markdown(("kernels by", "L2", "shapes", *(head for head, *_ in GOALS)), lines, texts=("kernels by", "L2"))


def _goal_text(
    found: Summary, value_of: Callable[[Summary], float | None], reached: Callable[[float], bool], digits: int
) -> str:
    value = value_of(found)
    text = percent(value, digits) if digits else number(value, 3)
    return f"**{text}**" if value is not None and reached(value) else text


def as_started(row: Row) -> Row:
    """Return the row with the library's times instead of the kernel's if the module calls the library."""
    if not row["falls_back"]:
        return row
    times = {f"ours{state}_us": row.get(f"fallback{state}_us") for state in ("", DIRTY)}
    return row | times | {"verified": row["fallback_verified"]}


def with_dirty_l2(row: Row) -> Row:
    """Return the row with the times of a dirty L2 instead of those of a clean one; None without such times."""
    return row | {f"{who}_us": row.get(f"{who}{DIRTY}_us") for who in TIMED}


def wrong_results(rows: Sequence[Row]) -> list[str]:
    """Return a sentence for the kernels with a wrong result and one for the vendor's, if there are any."""
    wrong = [row["configuration"] for row in rows if not row["verified"]]
    wrong += [row["plan"] for row in rows if row["plan_verified"] is False and not left_to_vendor(row)]
    inexact = [shape_of(row) for row in rows if row["fallback_verified"] is False]
    ours = [f"wrong results: {', '.join(wrong)}"] if wrong else []
    return ours + (
        [f"The vendor's results are wrong at {len(inexact)} shapes: {', '.join(inexact)}"] if inexact else []
    )


def shape_of(row: Row) -> str:
    """Return the shape with its regime, layout and element type."""
    return f"{row['regime']} {row['layout']} {row['m']}x{row['n']}x{row['k']}:{row['dtype']}"


def left_to_vendor(row: Row) -> bool:
    """Return whether the plan calls the vendor."""
    return bool(row["plan"]) and row["plan"].startswith("the vendor")


def slowest(rows: Sequence[Row], count: int = 10) -> str:
    """Return a Markdown table of the shapes with the largest regret, with the chosen and the best configuration."""
    pairs = [(search / ours, row) for row in rows if (search := search_us(row)) and (ours := ours_us(row))]
    heads = ("problem", "ours us", "search us", "regret", "expected us", "configuration", "the search's")
    lines = [
        (
            shape_of(row),
            number(row["ours_us"]),
            number(row["search_us"]),
            percent(1 / ratio - 1, 1),
            number(row["expected_us"]),
            f"`{row['configuration']}`",
            f"`{row['search_configuration']}`",
        )
        for ratio, row in sorted(pairs, key=lambda pair: pair[0])[:count]
    ]
    return markdown(heads, lines, texts=("problem", "configuration", "the search's")) if lines else ""


def what_it_is(found: Row) -> str:
    """Return a paragraph that describes what was measured."""
    rows = found["rows"]
    pack, draw = found["pack_facts"], found["draw"]
    vendor = "No vendor was measured"
    if found["cublas"]:
        vendor = "*cuBLAS* is cublas<t>gemm, its *own routine*, or an algorithm of cuBLASLt if that is faster"
    fallback = found["fallback_library"]
    left = f"The *fallback* passes a product to {fallback}" if fallback else "There was no library to fall back to"
    seconds = found["search_seconds"]
    search = f"The search of each shape took {seconds:g} s" if seconds else "No shape was searched"
    search += f", and the last search ended by {found['searched_at']}" if "searched_at" in found else ""
    return (
        f"{len(rows)} shapes were measured. The draw has {draw['each']} shapes for each regime, element type and"
        f" layout (seed {draw['seed']}). The pack has {pack['winners']} tuned shapes and {pack['kernels']} kernels."
        f" {search}. {vendor}. {left}. {len(found['skipped'])} shapes could not be measured."
    )


def summed_up(found: Row) -> str:
    """Return a description of what was measured and the overall results, as Markdown."""
    return "\n\n".join((runs_of(found), what_it_is(found), goals(found["rows"])))


def tables(found: Row) -> str:
    """Return all printed tables of a file, as Markdown."""
    rows = found["rows"]
    parts = [summed_up(found), BY_KIND, table(rows, by_timing=False)]
    timed = [row for row in rows if row["plan_us"] is not None]
    if timed:
        parts += [of_plans(timed), table(timed, by_timing=True)]
    parts.append(slowest(rows))
    parts += wrong_results(rows)
    return "\n\n".join(part for part in parts if part)


def gain_as_called(row: Row, state: str = "") -> float | None:
    """Return the time of cuBLAS's own routine over that of `gemm`: 1 if `gemm` leaves the product to the library.

    Return None if the result of cuBLAS's own routine is wrong. `state` is DIRTY for times with a dirty L2.
    """
    if row["falls_back"]:
        return 1.0
    vendor_us: float | None = row[f"cublas{state}_us"]
    return vendor_us / row[f"ours{state}_us"] if vendor_us and row["cublas_verified"] else None


def as_called(rows: Sequence[Row]) -> str:
    """Return a Markdown table of what `gemm` gains over cuBLAS's own routine, by regime and element type."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["regime"], row["dtype"]), []).append(row)
    groups["all", ""] = list(rows)
    lines = []
    for name, group in groups.items():
        in_states = [[gain for row in group if (gain := gain_as_called(row, state))] for state in ("", DIRTY)]
        slower = [[sum(gain * x < 1 for gain in gains) for gains in in_states] for x in (1.03, 1.1)]
        left = sum(bool(row["falls_back"]) for row in group)
        worst = min((gain for gains in in_states for gain in gains), default=None)
        clean = mean(in_states[0])
        lines.append((*name, str(len(group)), str(left), number(clean, 2),
                      *(" / ".join(map(str, both)) for both in slower), number(worst, 2)))  # fmt: skip
    heads = (
        "regime",
        "dtype",
        "shapes",
        "left to cuBLAS",
        "x cuBLAS",
        "over 3 % slower",
        "over 10 % slower",
        "worst",
    )
    return markdown(heads, lines, texts=("regime", "dtype"))


def of_plans(rows: Sequence[Row]) -> str:
    """Return the caption of the table of plans."""
    seconds = [row["plan_seconds"] for row in rows]
    to_vendor = sum(map(left_to_vendor, rows))
    return (
        "The next table has kernels that `plan(a, b, out, measure=True)` chooses by timing up to twenty launches and"
        f" the vendor on the arrays. Of {len(rows)} shapes the vendor was fastest for {to_vendor}. Making a plan took"
        f" {1e3 * statistics.median(seconds):.0f} ms (median) and {max(seconds):.2f} s at most."
    )
