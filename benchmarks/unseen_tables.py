"""What a file of `benchmarks.unseen` says: of every kind of product, and in all. Pure functions of its rows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.headline import Row, geometric_mean, markdown, number, right_us, runs_of

MARGIN = 0.03  # over the vendor's time, past which a product is slower
KIND = ("regime", "dtype", "layout")


def vendor_us(row: Row) -> float | None:
    """The faster one of cuBLAS's and cuBLASLt's right answers; None without any."""
    return min(filter(None, (right_us(row, "cublas"), right_us(row, "cublaslt"))), default=None)


def search_us(row: Row) -> float | None:
    """The time of the search's winner, in the same rounds; None without one that is right."""
    return right_us(row, "search")


def with_fallback_us(row: Row) -> float | None:
    """What a program waits for where the module may leave the product to the vendor; None where nobody can tell."""
    if row["falls_back"] is None:
        return None
    us: float = row["fallback_us"] if row["falls_back"] else row["ours_us"]
    return us


def over(numerator: Callable[[Row], float | None], denominator: Callable[[Row], float | None]) -> Any:
    """The ratio of the two for each row that has both."""

    def ratios(rows: Sequence[Row]) -> list[float]:
        pairs = ((numerator(row), denominator(row)) for row in rows)
        return [top / bottom for top, bottom in pairs if top is not None and bottom is not None]

    return ratios


def ours_us(row: Row) -> float | None:
    return right_us({**row, "ours_verified": row["verified"]}, "ours")


def expected_us(row: Row) -> float | None:
    us: float | None = row["expected_us"]
    return us


X_VENDOR = over(vendor_us, ours_us)
X_VENDOR_WITH_FALLBACK = over(vendor_us, with_fallback_us)
X_SEARCH = over(search_us, ours_us)
SEARCH_X_VENDOR = over(vendor_us, search_us)
X_EXPECTED = over(ours_us, expected_us)


def ranked(values: Sequence[float], share: float) -> float | None:
    """The least of the values that so large a share of them does not exceed; None without any."""
    if not values:
        return None
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


@dataclass(frozen=True, slots=True)
class Summary:
    """Of some rows; None where no row has what it is of. Ratios are times over ours: above 1 ours is faster."""

    shapes: int
    x_vendor: float | None  # geometric mean of the vendor's time over ours
    worst: float | None  # the least of these
    slower: float | None  # share of the shapes that take more than MARGIN longer than the vendor
    slower_with_fallback: float | None
    search_x_vendor: float | None  # geometric mean of the vendor's time over that of the search's winner
    x_search: float | None  # geometric mean of the search's time over ours
    median_regret: float | None  # of how much longer ours takes than the search's winner: negative where less
    regret_of_95: float | None  # that 95 % of the shapes do not exceed
    off: float | None  # how far measured times are from expected ones: a factor, the median's
    off_of_95: float | None  # that 95 % of the shapes do not exceed


def summary(rows: Sequence[Row]) -> Summary:
    """The numbers of these rows."""
    x_vendor, with_fallback = X_VENDOR(rows), X_VENDOR_WITH_FALLBACK(rows)
    regrets = [1 / ratio - 1 for ratio in X_SEARCH(rows)]
    factors = [max(ratio, 1 / ratio) for ratio in X_EXPECTED(rows)]
    return Summary(
        shapes=len(rows),
        x_vendor=geometric_mean(x_vendor),
        worst=min(x_vendor, default=None),
        slower=_slower(x_vendor),
        slower_with_fallback=_slower(with_fallback),
        search_x_vendor=geometric_mean(SEARCH_X_VENDOR(rows)),
        x_search=geometric_mean(X_SEARCH(rows)),
        median_regret=statistics.median(regrets) if regrets else None,
        regret_of_95=ranked(regrets, 0.95),
        off=statistics.median(factors) if factors else None,
        off_of_95=ranked(factors, 0.95),
    )


def _slower(ratios: Sequence[float]) -> float | None:
    """The share of these whose vendor's time, with MARGIN, is still less than ours."""
    return sum(ratio * (1 + MARGIN) < 1 for ratio in ratios) / len(ratios) if ratios else None


def by_kind(rows: Sequence[Row]) -> dict[tuple[str, ...], list[Row]]:
    """The rows by regime, element type and layout."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in KIND), []).append(row)
    return groups


def percent(share: float | None, digits: int = 0) -> str:
    return "–" if share is None else f"{100 * share:.{digits}f} %"


HEADS = (
    *KIND,
    "shapes",
    "x cuBLAS",
    "worst",
    "slower than cuBLAS by over 3 %",
    "with the fallback",
    "search x cuBLAS",
    "x search",
    "median regret",
    "95 % regret at most",
    "expected times off by",
    "95 % by at most",
)


def line_of(kind: Sequence[str], found: Summary) -> tuple[str, ...]:
    """A line of the table."""
    return (
        *kind,
        str(found.shapes),
        number(found.x_vendor, 2),
        number(found.worst, 2),
        percent(found.slower),
        percent(found.slower_with_fallback),
        number(found.search_x_vendor, 2),
        number(found.x_search, 3),
        percent(found.median_regret, 1),
        percent(found.regret_of_95, 1),
        number(found.off, 2),
        number(found.off_of_95, 2),
    )


# What is to be reached in all: the words, the number, and whether that is enough.
TARGETS: tuple[tuple[str, Callable[[Summary], float | None], Callable[[float], bool]], ...] = (
    ("geometric mean at least 0.95 of the search's", lambda s: s.x_search, lambda value: value >= 0.95),
    ("median regret at most 2 %", lambda s: s.median_regret, lambda value: value <= 0.02),
    ("regret at most 10 % of 95 % of the shapes", lambda s: s.regret_of_95, lambda value: value <= 0.10),
    (
        "none slower than cuBLAS by over 3 % with the fallback",
        lambda s: s.slower_with_fallback,
        lambda value: value == 0,
    ),
)


def targets_text(found: Summary) -> str:
    """Which of the targets are reached, a line each."""
    lines = []
    for words, value_of, reached in TARGETS:
        value = value_of(found)
        said = "not measured" if value is None else f"{'reached' if reached(value) else 'missed'}, at {value:.4g}"
        lines.append(f"- {words}: {said}")
    return "\n".join(lines)


def slowest(rows: Sequence[Row], count: int = 10) -> str:
    """Markdown of the shapes with the largest regret, and what each was given."""
    pairs = [(search / ours, row) for row in rows if (search := search_us(row)) and (ours := ours_us(row))]
    heads = ("problem", "ours us", "search us", "regret", "expected us", "configuration", "the search's")
    lines = [
        (
            f"{row['regime']} {row['layout']} {row['m']}x{row['n']}x{row['k']}:{row['dtype']}",
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
    """What was measured, in words."""
    rows = found["rows"]
    pack, draw = found["pack_facts"], found["draw"]
    vendor = "cuBLAS is the faster one of cuBLAS and cuBLASLt" if found["cublas"] else "no vendor was measured"
    fallback = found["fallback_library"]
    left = f"the fallback is to {fallback}" if fallback else "no library was there to fall back to"
    seconds = found["search_seconds"]
    search = f"beside them the winner of a search of {seconds:g} s each" if seconds else "no search beside them"
    search += f", made until {found['searched_at']}" if "searched_at" in found else ""
    return (
        f"{len(rows)} shapes of {draw['each']} drawn for each regime, element type and layout (seed {draw['seed']}),"
        f" given a pack of {pack['winners']} tuned shapes and {pack['kernels']} kernels; {search}."
        f" {vendor}, {left}. {len(found['skipped'])} more shapes were left out."
    )


def tables(found: Row) -> str:
    """All that is printed of a file, as Markdown."""
    rows = found["rows"]
    kinds = by_kind(rows)
    lines = [line_of(kind, summary(kinds[kind])) for kind in sorted(kinds)]
    every = summary(rows)
    lines.append(line_of(("all", "", ""), every))
    parts = [runs_of(found), what_it_is(found), markdown(HEADS, lines), targets_text(every), slowest(rows)]
    wrong = [row["configuration"] for row in rows if not row["verified"]]
    parts.append(f"wrong results: {', '.join(wrong)}" if wrong else "")
    return "\n\n".join(part for part in parts if part)
