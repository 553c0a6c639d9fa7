"""Write the constants and the worked example of docs/prediction.md, and check the example against the core.

    python docs/prediction.py

The formulas of the example are the strings in SHAPE_TERMS, BODY_TERMS, MEASURED_TERMS, VENDOR_TERMS and CHOICE_TERMS:
the page shows what this script evaluates.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tsm2_tune.generator.tiling import VECTOR_BYTES
from tsm2_tune.pretuned import pretuned
from tsm2_tune.runtime.choice.choose import Layout, core_record
from tsm2_tune.runtime.choice.core import CoreTime
from tsm2_tune.tuner.packs.choice import pretuned_kernels
from tsm2_tune.tuner.packs.core_pack import MeasuredKernel

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/prediction.md"
MODEL = ROOT / "tsm2_tune/core/model.h"
FAR_SHAPE, FAR_DTYPE = (22285, 16, 1), "f32"
CARD, SHAPE, DTYPE = "h100", (40000, 8, 10000), "f32"
CONSTANT = re.compile(r"#define ([A-Z_0-9]+) ([\d.]+) +/\* (.+?) \*/")
REGION = re.compile(r"(<!-- drawn: ([a-z-]+) -->\n\n).*?(\n\n<!-- end -->)", re.DOTALL)
TILING = ("resident", "tile_m", "tile_n", "k_step", "k_per_pass", "k_of_resident_b", "k_padding")
RATES = ("arithmetic_rate", "cached_rate", "without_vectors")

Terms = Sequence[tuple[str, str, str]]  # name, formula, unit
SHAPE_TERMS: Terms = (
    ("tiles_down", "ceil(m / tile_m)", "tiles"),
    ("tiles_across", "ceil(n / tile_n)", "tiles"),
    ("steps_along_k", "ceil(k / k_step)", "steps"),
    ("blocks", "ceil(m / rows_per_block) * ceil(n / columns_per_block) * splits", "blocks"),
    ("loading_blocks", "min(blocks / multiprocessors, resident) * m / (tiles_down * tile_m)", "per multiprocessor"),
    ("busy_blocks", "min(max(blocks / multiprocessors, 1), resident)", "per multiprocessor"),
)
BODY_TERMS: Terms = (
    ("us_of_read", "1e-3 / read_gbytes_per_s", "us per byte"),
    ("us_of_written", "max(2e-3 / copy_gbytes_per_s - us_of_read, us_of_read)", "us per byte"),
    ("memory_us", "element_bytes * ((m * k + k * n) * us_of_read + m * n * us_of_written)", "us"),
    ("least_arithmetic_us", "2 * m * n * k / gflops * 1e-3", "us"),
    ("partial_sums", "min(rows_per_block, m) * min(tile_n, n) * blocks", "elements"),
    ("sums_us", "SUMS_US + 2 / SUMS_RATE * element_bytes * us_of_read * partial_sums", "us"),
    ("b_reads", "ceil(m / rows_per_block) if k <= k_of_resident_b * splits else tiles_down", "times"),
    ("reread", "(tiles_across - 1) * m * k + (b_reads - 1) * k * n", "elements"),
    ("rewritten", "2 * floor((k - 1) / k_per_pass) * m * n", "elements"),
    (
        "traffic_us",
        "memory_us + element_bytes * us_of_read / cached_rate * (reread / CACHED_RATE + rewritten)",
        "us",
    ),
    (
        "padding",
        "tiles_down * tile_m * ceil(n / n_padding) * n_padding * ceil(k / k_padding) * k_padding / (m * n * k)",
        "",
    ),
    ("arithmetic_us", "least_arithmetic_us / arithmetic_rate * padding", "us"),
    ("longest_split", "ceil(steps_along_k / splits) * splits / steps_along_k", "over the mean"),
    ("waves", "ceil(blocks / (multiprocessors * resident))", ""),
    ("blocks_of_busiest", "waves * resident if waves > 1 else ceil(blocks / multiprocessors)", "blocks"),
    ("imbalance", "longest_split * blocks_of_busiest * multiprocessors / blocks", "over the mean"),
    ("idle", "1 + IDLE_LOSS * (imbalance - 1) if blocks > multiprocessors else 1", ""),
    ("memory_slowdown", "slowdown(own_loading_blocks / loading_blocks)", ""),
    ("arithmetic_slowdown", "slowdown(own_busy_blocks / busy_blocks)", ""),
    ("memory_part", "traffic_us * idle * memory_slowdown", "us"),
    ("arithmetic_part", "arithmetic_us * imbalance * arithmetic_slowdown", "us"),
    (
        "tiles_in_turn",
        "ceil(tiles_down * tiles_across * splits / min(blocks, multiprocessors * resident)) * ceil(k / k_per_pass)",
        "tiles",
    ),
    ("serial_part", "NEXT_TILE_US * (tiles_in_turn - 1)", "us"),
    ("body_us", "line_factor * sqrt(memory_part**2 + arithmetic_part**2 + serial_part**2)", "us"),
    ("rates_us", "START_US + sums_us + body_us", "us"),
)
MEASURED_TERMS: Terms = (
    ("ratio", "exp(sum(weights * log_ratios) / sum(weights))", ""),
    ("least_ratio", "max(LEAST_MEMORY_SHARE * memory_us, least_arithmetic_us) / rates_us", ""),
    ("predicted_us", "max(ratio, least_ratio) * rates_us", "us"),
)
VENDOR_TERMS: Terms = (
    ("is_vector", "min(m, n) == 1", ""),
    ("vendor_tile_m", "VENDOR_TILE_BYTES / element_bytes", ""),
    ("vendor_m", "m if is_vector else ceil(m / vendor_tile_m) * vendor_tile_m", ""),
    ("vendor_n", "n if is_vector else ceil(n / VENDOR_TILE_N) * VENDOR_TILE_N", ""),
    ("vendor_k", "k if is_vector else ceil(k / VENDOR_TILE_K) * VENDOR_TILE_K", ""),
    (
        "vendor_arithmetic_us",
        "least_arithmetic_us / VENDOR_RATE * vendor_m * vendor_n * vendor_k / (m * n * k)",
        "us",
    ),
    (
        "vendor_rates_us",
        "START_US + (VENDOR_UNALIGNED_LINES if lacks_vectors else 1) * sqrt(memory_us**2 + vendor_arithmetic_us**2)",
        "us",
    ),
)
CHOICE_TERMS: Terms = (
    ("vendor_ratio", "exp(sum(vendor_weights * vendor_log_ratios) / sum(vendor_weights))", ""),
    ("vendor_us", "vendor_ratio * vendor_rates_us", "us"),
    ("gain", "vendor_us / predicted_us", ""),
    ("distance_error", "DISTANCE_ERROR * max(nearest_distance, vendor_nearest_distance)", ""),
    ("error_factor", "sqrt(1 + distance_error**2)", ""),
    ("least_gain", "exp(CONFIDENCE * gain_error * error_factor)", ""),
)

Values = dict[str, Any]
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "ceil": math.ceil, "floor": math.floor, "exp": math.exp, "log": math.log, "sqrt": math.sqrt, "min": min,
    "max": max,
}  # fmt: skip


def constants() -> dict[str, tuple[float, str]]:
    """Return name -> value and meaning of the constants in model.h."""
    text = re.sub(r"\n {4,}", " ", MODEL.read_text(encoding="utf-8"))
    return {name: (float(value), meaning) for name, value, meaning in CONSTANT.findall(text)}


def evaluate(terms: Terms, values: Values) -> None:
    """Add the value of each term to `values`."""
    for name, formula, _ in terms:
        values[name] = eval(formula, dict(FUNCTIONS) | values)


def slowdown_with(constants: Values) -> Callable[[float], float]:
    """Return the function `slowdown` of a kernel that is not persistent."""

    c: dict[str, float] = dict(constants)

    def slowdown(block_ratio: float) -> float:
        ratio, enough = max(block_ratio, 1 / c["USEFUL_BLOCKS"]), c["ENOUGH_BLOCKS"]
        return max(ratio / c["SPARE_BLOCKS"], math.hypot(1, enough * ratio) / math.hypot(1, enough))

    return slowdown


class Example:
    """A prediction of one kernel of a pack, term by term."""

    def __init__(self) -> None:
        text = next(one for one in pretuned() if one.name == CARD)
        kernels = pretuned_kernels(text)
        self.device, self.chooser = text.device_name, kernels.chooser
        self.match = kernels.chooser.match(Layout.of_op(DTYPE, SHAPE, "nn").record, self.device)
        self.number = kernels.chooser.winners.index(self.match.winner)
        self.kernel, rates = kernels.kernels[self.number], kernels.device_rates[self.device]
        launch, tiling, core = self.match.launch, self.kernel.tiling, kernels.chooser.core
        assert tiling is not None, "times of the kernel are predicted"
        assert core is not None, "there is a C compiler"
        is_simple = launch.has_workspace and not launch.persistent and not tiling.is_pipelined
        assert is_simple, "the formulas are of a kernel that splits k"
        assert not self.match.is_transposed, "the product is not transposed"
        self.values: Values = {name: value for name, (value, _) in constants().items()}
        self.values |= {
            name: value if value or value is False else math.inf for name, value in asdict(tiling).items()
        }
        for name in ("tile_n", "k_step", "k_per_pass"):  # inf would give 0 tiles
            self.values[name] = getattr(tiling, name) or 2.0**60
        self.values["n_padding"] = tiling.n_padding or tiling.tile_n or 1
        self.values |= {
            "read_gbytes_per_s": rates.read_gbytes_per_s, "copy_gbytes_per_s": rates.copy_gbytes_per_s,
            "gflops": rates.gflops[DTYPE], "multiprocessors": rates.multiprocessors,
            "gain_error": self.kernel.gain_error,
            "element_bytes": DTYPES_BYTES[DTYPE], "slowdown": slowdown_with(self.values),
        }  # fmt: skip
        w = self.match.winner
        own = self._at((w.m, w.n, w.k), w.launch.rows_per_block, w.launch.splits, SHAPE_TERMS)
        self.values |= {f"own_{name}": own[name] for name in ("m", "n", "k", "loading_blocks", "busy_blocks")}
        self.values = self._at(SHAPE, launch.rows_per_block, launch.splits, (*SHAPE_TERMS, *BODY_TERMS))
        evaluate(VENDOR_TERMS, self.values)
        own_time = (w.m, w.n, w.k, w.batch, w.launch.rows_per_block, w.launch.splits, w.median_us)
        self.points = [self._point(*map(float, one)) for one in (own_time, *self.kernel.times)]
        self.vendor_points = [self._vendor_point(*map(float, one)) for one in self._vendor_times(kernels.kernels)]
        for prefix, points in (("", self.points), ("vendor_", self.vendor_points)):
            self.values[f"{prefix}weights"] = Vector(one["weight"] for one in points)
            self.values[f"{prefix}log_ratios"] = Vector(one["log_ratio"] for one in points)
            self.values[f"{prefix}nearest_distance"] = min(one["distance"] for one in points)
        evaluate((*MEASURED_TERMS, *CHOICE_TERMS), self.values)
        times = (CoreTime * len(self.points))(
            *(CoreTime(*map(int, one["shape"]), 1, 0.0, *map(int, one["launch"])) for one in self.points)
        )
        for one, us in zip(self.points, core.rates_us(self.number, times), strict=True):
            check(one["rates_us"], us)
        check(self.values["predicted_us"], self.match.expected_us or 0)
        check(self.values["vendor_us"], self.match.vendor_us or 0)
        assert (self.values["gain"] < self.values["least_gain"]) == self.match.is_vendor_chosen

    def _at(self, shape: tuple[float, ...], rows: float, splits: float, terms: Terms) -> Values:
        """Return the values at a shape with a launch."""
        m, n, k = shape
        columns = self.match.launch.columns_per_block or n
        values = self.values | {"m": m, "n": n, "k": k, "rows_per_block": rows, "splits": splits}
        values |= {"columns_per_block": columns, "lacks_vectors": self._lacks_vectors(m, k)}
        values["line_factor"] = values["without_vectors"] if values["lacks_vectors"] else 1
        evaluate(terms, values)
        return values

    def _lacks_vectors(self, m: float, k: float) -> bool:
        """Return whether columns of A, or of B or C, are not whole vectors. Columns of A and C have m elements."""
        bytes_, tiling = self.values["element_bytes"], self.kernel.tiling
        assert tiling is not None
        second = (m, tiling.c_vector_bytes) if tiling.c_vector_bytes else (k, tiling.vector_bytes)
        return any(length * bytes_ % vector_bytes != 0 for length, vector_bytes in ((m, tiling.vector_bytes), second))

    def _point(self, m: float, n: float, k: float, batch: float, rows: float, splits: float, us: float) -> Values:
        """Return the ratio of the measured to the predicted time at a measured shape, and its weight."""
        assert batch == 1, "the product is no batch"
        there = self._at((m, n, k), rows, splits, (*SHAPE_TERMS, *BODY_TERMS))
        return {"launch": (rows, splits), **self._ratio(there, us, there["rates_us"], self.values["rates_us"])}

    def _vendor_point(self, m: float, n: float, k: float, batch: float, us: float) -> Values:
        """Return the same of cuBLAS at a shape."""
        assert batch == 1, "the product is no batch"
        there = self._at((m, n, k), 1, 1, (*SHAPE_TERMS, *BODY_TERMS))
        there["lacks_vectors"] = any(length * there["element_bytes"] % VECTOR_BYTES != 0 for length in (m, k))
        evaluate(VENDOR_TERMS, there)
        return self._ratio(there, us, there["vendor_rates_us"], self.values["vendor_rates_us"], is_vendors=True)

    def _ratio(
        self, there: Values, us: float, rates_us: float, rates_us_here: float, *, is_vendors: bool = False
    ) -> Values:
        here = self.values
        extents = [there[name] for name in "mnk"]
        logs = [math.log(here["VENDOR_VECTOR_EXTENT"] if is_vendors and x == 1 and at < 2 else x)
                for at, x in enumerate(extents)]  # fmt: skip
        lacks_at_one = there["lacks_vectors"] != here["lacks_vectors"]
        squares = sum((x - math.log(y)) ** 2 for x, y in zip(logs, SHAPE, strict=True))
        if not is_vendors:
            squares += math.log(there["padding"] / here["padding"]) ** 2
        distance = math.sqrt(squares + here["NO_VECTORS_APART"] * lacks_at_one)
        without_start = rates_us - here["START_US"]
        share = without_start / (without_start + here["SHORT_BODY_US"])
        reduction = share + (1 - share) * min(rates_us / rates_us_here, 1)
        return {
            "shape": extents, "us": us, "rates_us": rates_us, "distance": distance,
            "weight": 1 / (distance + here["DISTANCE_OFFSET"]) ** 3, "log_ratio": math.log(us / rates_us) * reduction,
        }  # fmt: skip

    def _vendor_times(self, kernels: Sequence[MeasuredKernel]) -> Iterator[Sequence[float]]:
        """Yield m, n, k, products and microseconds of cuBLAS beside the kernels of this type and these orders."""
        for one in kernels:
            w, own = one.winner, self.match.winner
            if (w.dtype, w.orders, w.conjugates, w.is_gram) == (own.dtype, own.orders, own.conjugates, own.is_gram):
                if w.vendor_us is not None and w.vendor_right:
                    yield w.m, w.n, w.k, w.batch, w.vendor_us
                yield from one.vendor_times


DTYPES_BYTES = {"f32": 4, "f64": 8}


class Vector(tuple[float, ...]):
    """Numbers that are multiplied element by element."""

    def __mul__(self, other: Any) -> Vector:
        return Vector(x * y for x, y in zip(self, other, strict=True))


def check(own: float, of_core: float) -> None:
    """Raise AssertionError unless the script's time is the core's."""
    assert math.isclose(own, of_core, rel_tol=1e-12), f"the formulas give {own} us, the core {of_core} us"


def number(value: float) -> str:
    if value in (math.inf, 2.0**60):
        return "unbounded"
    if value == int(value) and abs(value) < 1e12:
        return f"{int(value):,}"
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.1f}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = (heads, ["---"] * len(heads), *rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def terms_table(terms: Terms, values: Values) -> str:
    rows = [(f"`{name}`", f"`{formula}`", number(values[name]), unit) for name, formula, unit in terms]
    return table(("term", "formula", "value", "unit"), rows)


def far_example(example: Example) -> str:
    """Return why cuBLAS computes a product for which a kernel is predicted to be faster."""
    match = example.chooser.match(Layout.of_op(FAR_DTYPE, FAR_SHAPE, "nn").record, example.device)
    us, vendor_us = match.expected_us or 0.0, match.vendor_us or 0.0
    assert match.is_vendor_chosen and vendor_us > us  # noqa: PT018
    needed = re.search(r"at least ([\d.]+) x", str(match))
    assert needed is not None
    m, n, k = FAR_SHAPE
    core = example.chooser.core
    assert core is not None, "there is a C compiler"
    record = core_record(*Layout.of_op(FAR_DTYPE, FAR_SHAPE, "nn"))
    factor = core.choose(record, example.device).error_factor
    distance = math.sqrt(factor**2 - 1) / example.values["DISTANCE_ERROR"]
    return (
        f"For {m}x{n}x{k} in {FAR_DTYPE} on the H100 the kernel is predicted to take {us:.1f} us, and cuBLAS's"
        f" routine {vendor_us:.1f} us, a gain of {vendor_us / us:.2f}. The kernel's nearest measured shape,"
        f" {'x'.join(map(str, match.measured_at))}, is at distance {match.distance:.2f} in m, n and k alone. D, in"
        f" which padding and cuBLAS's nearest shape count too, is {distance:.2f}. So the error factor is"
        f" {factor:.2f}, `least_gain` is {needed[1]}, and cuBLAS computes the product."
    )


def all_drawn() -> dict[str, str]:
    """Return the generated regions of the page, by name."""
    example = Example()
    v, match = example.values, example.match
    inputs = {
        "the product": ("m", "n", "k", "element_bytes", "lacks_vectors"),
        f"the device ({example.device}), measured": (
            "read_gbytes_per_s", "copy_gbytes_per_s", "gflops", "multiprocessors"),
        "the pack's predictions at shapes that were left out": ("gain_error",),
        "the kernel's tiling": (*TILING, "n_padding"),
        "the kernel's rates, fitted to its measured times": RATES,
        "the launch": ("rows_per_block", "columns_per_block", "splits"),
        "the kernel's own shape": ("own_m", "own_n", "own_k", "own_loading_blocks", "own_busy_blocks"),
    }  # fmt: skip
    by_weight = sorted(example.points, key=lambda one: -one["weight"])
    weights = sum(v["weights"])
    points = [
        ("x".join(str(int(x)) for x in one["shape"]), f"{one['us']:.1f}", f"{one['rates_us']:.1f}",
         f"{one['us'] / one['rates_us']:.3f}", f"{math.exp(one['log_ratio']):.3f}", f"{one['distance']:.2f}",
         f"{one['weight'] / weights:.1%}")
        for one in by_weight
    ]  # fmt: skip
    heads = ("shape", "measured us", "from rates us", "ratio", "ratio, reduced", "distance", "share of the weights")
    shown = [(source, ", ".join(f"`{name}` {number(v[name])}" for name in names)) for source, names in inputs.items()]
    side, compared = ("cuBLAS", "less") if match.is_vendor_chosen else ("the kernel", "more")
    return {
        "constants": table(
            ("constant", "value", "meaning"),
            [(f"`{name}`", number(value), meaning) for name, (value, meaning) in constants().items()],
        ),
        "kernel": f"The kernel is `{match.winner.config}`, with {match.launch.splits} splits here.",
        "inputs": table(("source", "values"), shown),
        "terms": terms_table((*SHAPE_TERMS, *BODY_TERMS), v),
        "points": table(heads, points),
        "measured": terms_table(MEASURED_TERMS, v),
        "vendor": f"{terms_table((*VENDOR_TERMS, *CHOICE_TERMS), v)}\n\n`vendor_ratio` averages"
        f" {len(example.vendor_points)} measured times of cuBLAS. `gain` is {compared} than"
        f" `least_gain`, so {side} computes the product.",
        "far": far_example(example),
        "printed": f"```\n{match}\n```",
    }


def drawn(page: str) -> str:
    """Return the page with its regions regenerated."""
    parts = all_drawn()
    return REGION.sub(lambda found: found[1] + parts[found[2]] + found[3], page)


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
