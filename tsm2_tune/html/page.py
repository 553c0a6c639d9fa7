"""Render the HTML page from the contents of databases."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from tsm2_tune.html import charts, convergence, gains, side_by_side, trials
from tsm2_tune.html.bounds import grouped
from tsm2_tune.html.contents import Contents
from tsm2_tune.html.table_data import Table, columnar
from tsm2_tune.tuner.results.trial import Outcome

EMULATED = "Kernels are emulated on the CPU: times mean nothing."
REGIMES = (
    "Regime R is a large A times a B of few columns: m and k are thousands, n is at most 64.",
    "Regime L is a tall A times a small B: m is large, n and k are at most 64.",
    "Regime T is the transpose of a tall matrix times a tall matrix: k is large, m and n are at most 64.",
)
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of the page, with a text for screen readers."""

    name: str
    label: str  # text for screen readers
    spec: charts.Spec
    data: Mapping[str, Any]  # name of a data set -> its columns


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the page: a heading, sentences, a chart and tables."""

    name: str
    title: str
    sentences: tuple[str, ...]
    chart: Chart | None = None
    tables: tuple[Table, ...] = ()
    rest: Mapping[str, Any] = field(default_factory=dict)  # data for the page's script

    @property
    def is_list(self) -> bool:
        """Whether the page's script shows the section's data as a searchable table."""
        return "rows" in self.rest


def page(
    own: Contents, others: Sequence[Contents], *, written_at: str, version: str, library: str, title: str = "",
    note: str = "",
) -> str:  # fmt: skip
    """Return the HTML page about the database `own`, compared with `others`. `library` is the charts' JavaScript."""
    sections = tuple(one for one in sections_of(own, others) if one is not None)
    drawn = {
        one.chart.name: {"spec": one.chart.spec, "data": one.chart.data} for one in sections if one.chart is not None
    }
    rest = {one.name: one.rest for one in sections if one.rest}
    scripts = [_safe(library), _safe(_file("page.js"))]
    return (
        _environment()
        .get_template("page.html.jinja")
        .render(
            name=own.name,
            title=title,
            note=note,
            others=[one.name for one in others],
            written_at=written_at,
            version=version,
            sections=sections,
            style=Markup(_file("page.css")),
            data=htmlsafe_json_dumps({"charts": drawn, **rest}, dumps=_compact),
            scripts=[Markup(one) for one in scripts],
            digests=[_digest(one) for one in scripts],
        )
    )


def sections_of(own: Contents, others: Sequence[Contents]) -> list[Section | None]:
    """Return the page's sections in order, with None in place of an empty section."""
    return [
        _summary(own),
        _best(own),
        _roofline(own),
        _convergence(own),
        _heat_maps(own),
        _comparison(own, others),
        _trials(own),
    ]


def _summary(own: Contents) -> Section:
    by_device = grouped(own.winners, lambda row: row.device)
    sentences = [gains.sentence(group[0].device, gains.gain_of(group)) for group in by_device]
    sentences = sentences or ["No configuration gave a right result that was measured: there is no winner."]
    if any(not run.identity.compute_capability for run in own.runs):
        sentences.insert(0, EMULATED)
    in_part = sum(not row.verified_in_full for row in own.winners)
    stale = sum(row.stale for row in own.winners)
    if in_part or stale:
        sentences.append(
            f"Of {len(own.winners):,} winners {in_part:,} are verified in part only, {stale:,} are stale."
        )
    rows = gains.dots(own.winners)
    names = ("problem", "device", "dtype", "rank", "x", "us", "vendor_us", "config", "routine")
    label = f"How many times as fast as cuBLAS each of {len(rows):,} winners is, on a logarithmic scale"
    chart = Chart("gains", label, charts.gains(rows), {"gains": columnar(rows, names)}) if rows else None
    ended = {
        group[0].device: [one.ended_at for one in group] for group in grouped(own.trials, lambda one: one.device)
    }
    tables = [gains.devices(own.runs, own.winners, ended), gains.outcomes(Counter(one.outcome for one in own.trials))]
    if rows:
        tables = [gains.by_type(own.winners), gains.lost(own.winners), *tables]
    return Section("summary", "Summary", tuple(sentences), chart, tuple(one for one in tables if one.rows))


def _best(own: Contents) -> Section | None:
    if not own.winners:
        return None
    about = (
        "x cuBLAS is the vendor's time over the winner's: below 1 the vendor is faster. % of floor is the least time"
    )
    about += " that the device's measured ceilings allow, over the winner's."
    return Section("best", "Best by shape", (about, *REGIMES), tables=(gains.best_by_shape(own.winners),))


def _roofline(own: Contents) -> Section | None:
    rows, note = trials.points(own.trials, own.winners)
    if not rows:
        return None
    names = ("what", "device", "dtype", "problem", "config", "cache", "intensity", "gflops", "us")
    ceilings = columnar(trials.ceilings(own.runs, rows), ("device", "dtype", "intensity", "gflops"))
    data = {"points": columnar(rows, names), "ceilings": ceilings}
    label = (
        f"Arithmetic intensity and rate of {len(rows):,} trials, winners and cuBLAS routines, and measured ceilings"
    )
    about = (
        "Each dot is a trial by its first measurement. The dashed line is what the device's measured read bandwidth"
    )
    about += " and arithmetic rate allow. Products that fit the L2 can lie above it."
    chart = Chart("roofline", label, charts.roofline(rows), data)
    return Section("roofline", "Roofline", _non_empty(about, note), chart)


def _convergence(own: Contents) -> Section | None:
    groups, unordered = convergence.by_search(own.trials)
    found = convergence.searches(groups)
    drawn, note = convergence.drawn(found)
    tables = (convergence.table(found),) if found else ()
    sentences = _non_empty(unordered, convergence.completeness(found, len(groups)))
    if not drawn:
        return Section("convergence", "Searches", sentences, tables=tables) if sentences else None
    names = tuple(one.name for one in drawn)
    data = {"lines": columnar(convergence.lines(drawn), ("search", "trial", "seconds", "us", "over"))}
    label = f"The best time so far of {len(drawn)} searches over the number of trials, or over seconds"
    about = (
        "Each line is a search: its best time so far over the best that it found, by first measurements. The chosen"
    )
    about += " search is drawn bold."
    chart = Chart("convergence", label, charts.convergence(names), data)
    return Section("convergence", "Searches", (*sentences, *_non_empty(about, note)), chart, tables=tables)


def _heat_maps(own: Contents) -> Section | None:
    found, note = trials.maps(own.trials)
    if not found:
        return None
    about = "The least time of all trials with a pair of values, over all other tunables. Choose a family and"
    about += " two of its tunables. An empty cell was not tried, or gave no right result."
    label = "The least time for each pair of values of the two chosen tunables"
    chart = Chart("heat-map", label, charts.heat_map(), {})
    return Section("maps", "Time over two tunables", _non_empty(about, note), chart, rest={"maps": found})


def _comparison(own: Contents, others: Sequence[Contents]) -> Section | None:
    sides = [one for each in (own, *others) for one in side_by_side.sides(each.name, each.winners)]
    found = side_by_side.comparisons(sides)
    if not found:
        about = "Nothing can be compared: no problem has a winner on both sides."
        return Section("comparison", "Comparison of devices and databases", (about,)) if others else None
    sentences = tuple(map(side_by_side.sentence, found))
    rows = side_by_side.dots(found)
    if not rows:
        return Section("comparison", "Comparison of devices and databases", sentences)
    names = ("other", "problem", "cache", "rank", "x", "us", "other_us", "config", "other_config")
    data = {"compared": columnar(rows, names)}
    label = "Times on the other device or database divided by times on the first"
    chart = Chart("comparison", label, charts.comparison(rows), data)
    return Section("comparison", "Comparison of devices and databases", sentences, chart)


def _trials(own: Contents) -> Section | None:
    rows, note = trials.listed(own.trials)
    if not rows:
        return None
    about = (
        "Times are those of the search, in microseconds. The spread is how far the 95 % confidence interval of the"
        " median reaches."
    )
    heads = trials.heads(rows)
    rest = {"rows": columnar(rows, tuple(heads)), "heads": heads, "outcomes": [one.value for one in Outcome]}
    return Section("trials", "Each trial", _non_empty(about, note), rest=rest)


def _non_empty(*sentences: str) -> tuple[str, ...]:
    return tuple(one for one in sentences if one)


@cache
def _environment() -> Environment:
    loader = PackageLoader("tsm2_tune", "html")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["breakable"] = _breakable
    return environment


def _breakable(text: str) -> Markup:
    """Return the text as HTML with optional line breaks after colons and commas. page.js has the same function."""
    return Markup("<wbr>").join(re.split("(?<=[,:])(?!$)", text))


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _compact(value: Any, **_: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _safe(script: str) -> str:
    """Escape the sequences in the script that would end a <script> element. The script's meaning does not change."""
    return script.replace("\r\n", "\n").replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _digest(script: str) -> str:
    """Return the script's SHA-256 in base64, by which the page's Content-Security-Policy allows the script."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
