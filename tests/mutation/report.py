"""Results of the mutation test: kept line by line, counted and told."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.mutation.trial import Judged, Result

COLUMNS = tuple(Judged)


def stored(path: Path) -> dict[str, Result]:
    """Results of an earlier run; a last line that was cut off is left out."""
    found = dict[str, Result]()
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            result = Result(**json.loads(line))
        except ValueError:
            continue
        found[result.key] = result
    return found


def score(results: Iterable[Result]) -> float:
    """Killed mutants in a hundred of those that could be."""
    counts = Counter(one.judged for one in results)
    could = counts[Judged.KILLED] + counts[Judged.SURVIVED]
    return 100 * counts[Judged.KILLED] / could if could else 100.0


def table(results: Iterable[Result], by: str = "operator") -> str:
    """Return the number of mutants and of each result, by operator or by another field of the results."""
    results = list(results)
    rows = [(by, "mutants", *(one.value for one in COLUMNS), "score", "seconds")]
    names = sorted({str(getattr(one, by)) for one in results})
    for name in (*names, "all"):
        of_name = [one for one in results if name == "all" or str(getattr(one, by)) == name]
        counts = Counter(one.judged for one in of_name)
        seconds = sum(one.seconds for one in of_name)
        cells = (str(counts[column]) for column in COLUMNS)
        rows.append((name, str(len(of_name)), *cells, f"{score(of_name):.2f} %", f"{seconds:.0f}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def report(results: Iterable[Result]) -> str:
    """The survivors, how the killed ones were told and by which device, and tables by operator and by family."""
    results = list(results)
    killed = Counter(
        f"{one.detail.partition(':')[0]}, {one.device}" for one in results if one.judged == Judged.KILLED
    )
    same = Counter(f"{one.detail}, {one.device}" for one in results if one.judged == Judged.EQUIVALENT)
    parts = (
        f"survivors:\n{survivors(results)}",
        _counted("killed", killed),
        _counted("equivalent", same),
        table(results, "device"),
        table(results, "dtype"),
        table(results, "family"),
        table(results),
    )
    return "\n\n".join(parts)


def _counted(what: str, counts: Counter[str]) -> str:
    return "\n".join((f"{what}:", *(f"{number:6}  {name}" for name, number in counts.most_common())))


def survivors(results: Iterable[Result]) -> str:
    """Each mutant that passed, with what was changed."""
    found = sorted(
        (one for one in results if one.judged == Judged.SURVIVED), key=lambda one: (one.operator, one.family)
    )
    return "\n".join(
        f"{one.operator}: {one.config} {one.dtype} {one.op}, line {one.line} ({one.key})"
        f"{f'; {one.detail}' if one.detail else ''}\n"
        f"    - {one.before}\n    + {one.after}"
        for one in found
    )
