"""The charts of the HTML page as Vega-Lite specifications, in colours for light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Spec = dict[str, Any]

COUNTS: Spec = {"grid": False, "tickMinStep": 1, "format": ",d"}  # an axis of whole numbers

COLOURS = (
    "#3f86c9",
    "#d97f26",
    "#37a06c",
    "#b565cc",
    "#cf5050",
    "#8f8a2b",
    "#2aa1a8",
    "#808080",
)  # readable on light and on dark pages
PALE = "#8c8c8c"  # for marks that are numerous
INK = "currentColor"  # the page's text colour
WIDE = 12.0  # ratio of an axis's largest to its least value, above which ticks are sparse
MOST_BARS = 40  # most problems that get a bar each
CONFIG: Spec = {
    "font": "system-ui, sans-serif",
    "aria": False,  # the page itself has a text and a table for each chart
    "view": {"stroke": None},
    "axis": {
        "labelColor": INK, "titleColor": INK, "domainColor": INK, "tickColor": INK, "gridColor": INK,
        "gridOpacity": 0.13, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": 500, "labelLimit": 300,
    },
    "legend": {"labelColor": INK, "titleColor": INK, "labelFontSize": 12, "titleFontSize": 12, "labelLimit": 400,
               "symbolBaseFillColor": INK, "symbolBaseStrokeColor": INK},
    "range": {"category": list(COLOURS)},
    "point": {"filled": True, "size": 45},
}  # fmt: skip


def _field(name: str, title: str, kind: str = "quantitative", **more: Any) -> Spec:
    return {"field": name, "type": kind, "title": title, **more}


def _log(name: str, title: str) -> Spec:
    scale = {"type": "log", "nice": False, "padding": 12}
    return _field(name, title, scale=scale, axis={"format": ",~g", "tickCount": 6})


def _tooltip(*fields: tuple[str, str]) -> list[Spec]:
    """Return the Vega-Lite tooltip that shows these fields (name, title). Numbers have four digits."""
    texts = {
        "problem",
        "config",
        "other_config",
        "routine",
        "device",
        "what",
        "cache",
        "search",
        "other",
        "dtype",
        "x_value",
        "y_value",
    }
    return [
        {"field": name, "title": title, **({"type": "nominal"} if name in texts else {"format": ",.4~r"})}
        for name, title in fields
    ]


def _spec(height: int, **parts: Any) -> Spec:
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "background": None,
        "config": CONFIG,
        **parts,
    }


def _ratio(name: str, title: str, rows: Sequence[Spec]) -> Spec:
    """Return the encoding of a field that contains ratios: a logarithmic axis with ticks at round values."""
    least, most = min(row[name] for row in rows), max(row[name] for row in rows)
    steps = (1, 2, 5) if most / least > WIDE else (1, 1.1, 1.2, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)
    ticks = [float(f"{step * 10.0**power:.6g}") for power in range(-4, 7) for step in steps]
    return {**_log(name, title), "axis": {"values": [one for one in ticks if least <= one <= most], "format": ",~g"}}


def _chosen(name: str, label: str, options: Sequence[str]) -> Spec:
    """Return a chart's parameter with these options. If there are several, the reader chooses one from a list."""
    if len(options) == 1:
        return {"name": name, "value": options[0]}
    return {"name": name, "value": options[0], "bind": {"input": "select", "options": list(options), "name": label}}


_AT_ONE: Spec = {"mark": {"type": "rule", "color": INK, "strokeWidth": 1.5}}
_GAIN_TOOLTIP = _tooltip(
    ("problem", "problem"), ("device", "device"), ("x", "x cuBLAS"), ("us", "winner us"), ("vendor_us", "cuBLAS us"),
    ("config", "configuration"), ("routine", "routine"),
)  # fmt: skip


def gains(rows: Sequence[Spec]) -> Spec:
    """Return a chart of the winners' speed relative to cuBLAS: bars of few problems on one device, else dots."""
    several = len({row["device"] for row in rows}) > 1
    if several or len(rows) > MOST_BARS:
        dots: Spec = {
            "mark": "point",
            "encoding": {
                "x": _field("rank", "problems of a device, sorted by gain", axis=COUNTS),
                "y": _ratio("x", "x cuBLAS", rows),
                "color": _field("dtype", "element type", "nominal"),
                "tooltip": _GAIN_TOOLTIP,
            },
        }
        if several:
            above = {"orient": "top", "direction": "vertical"}  # names of devices are long
            dots["encoding"]["shape"] = _field("device", "device", "nominal", legend=above)
        return _spec(320, data={"name": "gains"}, layer=[{**_AT_ONE, "encoding": {"y": {"datum": 1}}}, dots])
    y = _field("problem", "", "nominal", sort=None)
    bar = {"y": y, "x": _ratio("x", "x cuBLAS", rows), "color": _field("dtype", "element type", "nominal")}
    layers: list[Spec] = [
        {**_AT_ONE, "encoding": {"x": {"datum": 1}}},
        {"mark": {"type": "rule", "strokeWidth": 3}, "encoding": {**bar, "x2": {"datum": 1}}},
        {"mark": {"type": "point", "size": 90}, "encoding": {**bar, "tooltip": _GAIN_TOOLTIP}},
    ]
    return _spec(20 * len(rows), data={"name": "gains"}, layer=layers)


def roofline(rows: Sequence[Spec]) -> Spec:
    """Return a roofline chart: arithmetic rates over arithmetic intensities, and the device's peak rates."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["dtype"]] = counts.get(row["dtype"], 0) + 1
    dtypes = sorted(counts, key=lambda name: -counts[name])
    devices = list(dict.fromkeys(row["device"] for row in rows))
    kinds = [kind for kind in ("trial", "winner", "cuBLAS") if any(row["what"] == kind for row in rows)]
    looks = {"trial": (PALE, "circle"), "winner": (COLOURS[0], "circle"), "cuBLAS": (COLOURS[1], "triangle-up")}
    colours, shapes = ([looks[kind][place] for kind in kinds] for place in (0, 1))
    chosen = [{"filter": "datum.device === device && datum.dtype === dtype"}]
    at = {"x": _log("intensity", "flop/byte"), "y": _log("gflops", "GFLOP/s")}
    tooltip = _tooltip(
        ("problem", "problem"), ("what", "what"), ("device", "device"), ("config", "configuration or routine"),
        ("us", "us"), ("gflops", "GFLOP/s"), ("intensity", "flop/byte"), ("cache", "L2"),
    )  # fmt: skip
    points = {
        **at,
        "color": _field("what", "", "nominal", scale={"domain": kinds, "range": colours}),
        "shape": _field("what", "", "nominal", scale={"domain": kinds, "range": shapes}),
        "opacity": {"condition": {"test": "datum.what === 'trial'", "value": 0.45}, "value": 1},
        "size": {"condition": {"test": "datum.what === 'trial'", "value": 22}, "value": 60},
        "tooltip": tooltip,
    }
    layers: list[Spec] = [
        {
            "data": {"name": "ceilings"},
            "transform": chosen,
            "mark": {"type": "line", "color": INK, "strokeWidth": 2, "strokeDash": [6, 3]},
            "encoding": at,
        },
        {"data": {"name": "points"}, "transform": chosen, "mark": "point", "encoding": points},
    ]
    params = [_chosen("device", "device ", devices), _chosen("dtype", "element type ", dtypes)]
    return _spec(380, params=params, layer=layers)


def convergence(names: Sequence[str]) -> Spec:
    """Return a chart with a line for each search: the best time so far over trials or seconds."""
    at = {
        "x": _field("at", "trials, or seconds", axis=COUNTS),
        "y": _log("over", "best so far / best of the search"),
        "detail": {"field": "search"},
    }
    tooltip = _tooltip(("search", "search"), ("trial", "trials"), ("seconds", "seconds"), ("us", "best so far us"))
    line = {"type": "line", "interpolate": "step-after"}
    layers: list[Spec] = [
        {"mark": {**line, "color": PALE, "opacity": 0.5, "strokeWidth": 1}, "encoding": at},
        {
            "transform": [{"filter": "datum.search === search"}],
            "mark": {**line, "color": COLOURS[0], "strokeWidth": 3, "point": {"color": COLOURS[0], "size": 60}},
            "encoding": {**at, "tooltip": tooltip},
        },
    ]
    params = [_chosen("search", "search ", names), _chosen("against", "over ", ("trial", "seconds"))]
    transform = [{"calculate": "datum[against]", "as": "at"}]
    return _spec(320, data={"name": "lines"}, params=params, transform=transform, layer=layers)


def heat_map() -> Spec:
    """Return a heat map of the least time for each pair of values of two tunables, which the page's script fills."""
    axis = {"labelAngle": 0, "labelOverlap": True}
    at = {
        "x": _field("x_value", "", "ordinal", sort={"field": "x_place"}, axis=axis),
        "y": _field("y_value", "", "ordinal", sort={"field": "y_place"}),
        "tooltip": _tooltip(("x_value", ""), ("y_value", ""), ("us", "least us"), ("trials", "trials")),
    }
    scale = {"type": "log", "scheme": "viridis", "reverse": True}
    colour = _field("us", "least us", scale=scale, legend={"format": ",.3~r"})
    ink = {"condition": {"test": "datum.is_light", "value": "#000000"}, "value": "#ffffff"}
    layers: list[Spec] = [
        {"mark": "rect", "encoding": {**at, "color": colour}},
        {
            "mark": {"type": "text", "fontSize": 11},
            "encoding": {**at, "text": {"field": "us", "format": ",.3~r"}, "color": ink},
        },
    ]
    return _spec(28, data={"name": "cells"}, layer=layers)


def comparison(rows: Sequence[Spec]) -> Spec:
    """Return a chart of the winners' times on other devices or in other databases, divided by those of the first."""
    tooltip = _tooltip(
        ("problem", "problem"),
        ("cache", "L2"),
        ("other", "other"),
        ("x", "other / first"),
        ("us", "first us"),
        ("other_us", "other us"),
        ("config", "first configuration"),
        ("other_config", "other configuration"),
    )
    dots: Spec = {
        "mark": "point",
        "encoding": {
            "x": _field("rank", "shared problems, sorted by the gain of the first", axis=COUNTS),
            "y": _ratio("x", "time on the other / on the first", rows),
            "color": _field("other", "other", "nominal", legend={"orient": "top"}),
            "tooltip": tooltip,
        },
    }
    return _spec(300, data={"name": "compared"}, layer=[{**_AT_ONE, "encoding": {"y": {"datum": 1}}}, dots])
