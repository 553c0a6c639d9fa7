"""Tables of commands that measure nothing, or little: search spaces, performance models, devices, the ladder.

The ladder is a sequence of kernels from a published article, each with one optimization more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tsm2_tune.console.tables import print_line, print_table
from tsm2_tune.generator.device.architecture import HOST
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.device.roofline import Modelled, rate_text
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.tunables import declared
from tsm2_tune.tuner.results.trial import TuningRun

if TYPE_CHECKING:
    from rich.console import Console

    from tsm2_tune.generator.paper_model import ModelChoice
    from tsm2_tune.generator.space.rules import Rule
    from tsm2_tune.generator.space.space import SearchSpace
    from tsm2_tune.tuner.search.ladder import Rung

GIB = 1 << 30
TSM2_LINES = (
    "",
    "The choice of the TSM2 paper's model (Algorithm 5): t1 threads per block, t2 columns and t3 prefetched",
    "elements per thread. It expects memory to bound kernels with t2 below the limit; the second limit counts an FMA",
    "as two operations. The last columns are the expected shares of peak bandwidth and peak FLOP/s, and the time.",
)


def space_counts(space: SearchSpace) -> dict[str, Any]:
    """Return a dictionary for JSON with the numbers of configurations that were kept and dropped, by rule."""
    return {
        "problem": space.problem.text,
        "device": space.limits.name,
        "families": list(space.families),
        "guidelines": {
            name: asdict(in_force) for name, in_force in zip(space.families, space.guidelines, strict=True)
        },
        "total": space.total,
        "kept": len(space.kept),
        "dropped": {rule.name: count for rule, count in space.dropped},
    }


def print_space(space: SearchSpace, console: Console, *, explain: bool) -> None:
    """Print how many configurations each rule dropped; with `explain` also reasons, and the families' tunables."""
    from tsm2_tune.generator.space.space import last_rule  # imported late: NumPy is slow to import

    kept = f"{len(space.kept)} of {space.total} configurations kept"
    print_line(console, f"{space.problem.text} on {space.limits.name}: {kept}")
    dropped = [(rule, count) for rule, count in space.dropped if count or explain]
    columns: dict[str, Callable[[tuple[Rule, int]], str]] = {
        "dropped": lambda row: str(row[1]),
        "rule": lambda row: row[0].name,
        "kind": lambda row: row[0].kind,
    }
    if explain:
        columns["because"] = lambda row: row[0].because
    if dropped:
        print_table(console, columns, dropped)
    if not space.kept and (rule := last_rule(space)) is not None:
        print_line(console, f"the last were dropped by {rule.name}: {rule.because}")
    idle = len(space.dropped) - len(dropped)
    if idle:
        print_line(console, f"{idle} more rules drop nothing here: --explain lists them")
    for in_force in dict.fromkeys(space.guidelines):
        names = [name for name, own in zip(space.families, space.guidelines, strict=True) if own == in_force]
        print_line(console, f"guidelines of {', '.join(names)}: {in_force.text}")
    if explain:
        from tsm2_tune.generator.families import FAMILIES, family_named

        kept_of = Counter(candidate.config.family for candidate in space.kept)
        for name in space.families:
            family = family_named(name)
            print_line(console, f"{name}, {kept_of[name] or 'none'} kept: {family.summary}")
            for one in declared(family.config_type) if kept_of[name] else ():
                symbol = f" [{one.tunable.symbol}]" if one.tunable.symbol else ""
                name = one.word if one.word == one.name else f"{one.word} ({one.name})"
                print_line(console, f"  {name}{symbol}: {one.tunable.about}")
        for name, other in FAMILIES.items():
            if lacking := other.lacks(space.problem):
                print_line(console, f"{name} computes none: {lacking}")


def print_devices(found: Sequence[tuple[str, str, DeviceLimits]], console: Console) -> None:
    """Print a table of devices: `found` contains each device's short name, its kind and its limits."""
    columns: dict[str, Callable[[tuple[str, str, DeviceLimits]], str]] = {
        "device": lambda row: row[0],
        "kind": lambda row: row[1],
        "name": lambda row: row[2].name,
        "capability": lambda row: _capability(row[2]),
        "SMs": lambda row: str(row[2].sms),
        "GiB": lambda row: f"{row[2].memory_bytes / GIB:.1f}",
        "GB/s": lambda row: f"{row[2].dram_gbytes_per_s:.0f}",
    }
    print_table(console, columns, found)


def _capability(limits: DeviceLimits) -> str:
    return "-" if limits.compute_capability == HOST else ".".join(map(str, limits.compute_capability))


def data_sheet_text(limits: DeviceLimits) -> str:
    """Return a text with the device's clock, its memory bandwidth and their source: data sheet, driver or guess."""
    clock_and_memory = f"at {limits.sm_clock_mhz:g} MHz, {rate_text(limits.dram_gbytes_per_s)}"
    if limits.compute_capability == HOST:
        return f"assumed, since nothing was measured: {limits.sms} cores {clock_and_memory}"
    source = "data sheet" if limits.name in PROFILES else "driver"
    return f"{source}: {limits.sms} multiprocessors {clock_and_memory}"


def measured_text(run: TuningRun, database: str) -> str:
    """Return a text with the memory bandwidths that a run measured, the run's date and the database's name."""
    read, copy = run.ceilings.read_gbytes_per_s, run.ceilings.copy_gbytes_per_s
    return f"measured {run.started_at}, {database}: read {rate_text(read)}, copy {rate_text(copy)}"


def model_facts(one: Modelled, limits: DeviceLimits, source: str) -> dict[str, Any]:
    """Return a problem's roofline and TSM2 model for JSON. `source` says where the device's rates come from."""
    return {
        "problem": one.problem.text,
        "device": limits.name,
        "rates": source,
        **asdict(one.roofline),
        "fits_memory": one.roofline.least_bytes <= limits.memory_bytes,
        "tsm2": asdict(one.tsm2) if one.tsm2 is not None else None,
        "unmodelled": one.unmodelled,
    }


def print_model(found: Sequence[Modelled], limits: DeviceLimits, source: str, console: Console) -> None:
    """Print each problem's roofline, then the parameters that the TSM2 paper's model chooses."""
    print_line(console, f"{limits.name}, {source}")
    columns: dict[str, Callable[[Modelled], str]] = {
        "problem": lambda one: one.problem.text,
        "least bytes": lambda one: f"{one.roofline.least_bytes:.4g}",
        "flops": lambda one: f"{one.roofline.flops:.4g}",
        "flops/byte": lambda one: f"{one.roofline.intensity:.4g}",
        "balance": lambda one: f"{one.roofline.balance:.4g}",
        "unit": lambda one: one.roofline.unit,
        "TFLOP/s": lambda one: f"{one.roofline.gflops / 1e3:.4g}",
        "bound": lambda one: one.roofline.bound,
        "least us": lambda one: f"{one.roofline.least_us:.4g}",
    }
    print_table(console, columns, found)
    for one in found:
        if one.roofline.least_bytes > limits.memory_bytes:
            gib = f"{one.roofline.least_bytes / GIB:.1f} GiB, {limits.name} has {limits.memory_bytes / GIB:.1f} GiB"
            print_line(console, f"{one.problem.text} does not fit the memory: {gib}")
    _print_tsm2(found, console)


def _print_tsm2(found: Sequence[Modelled], console: Console) -> None:
    """Print the parameters that the TSM2 paper's model chooses, and the problems to which it does not apply."""
    chosen = [(one.problem.text, one.tsm2) for one in found if one.tsm2 is not None]
    columns: dict[str, Callable[[tuple[str, ModelChoice]], str]] = {
        "problem": lambda row: row[0],
        "t1": lambda row: str(row[1].t1),
        "t2": lambda row: str(row[1].t2),
        "t3": lambda row: str(row[1].t3),
        "threads/SM": lambda row: str(row[1].threads_per_sm),
        "t2 limit": lambda row: f"{row[1].t2_threshold:.4g}",
        "with FMA": lambda row: f"{row[1].t2_threshold_fma:.4g}",
        "bound": lambda row: row[1].bound,
        "% memory": lambda row: f"{100 * row[1].memory_utilisation:.0f}",
        "% arithmetic": lambda row: f"{100 * row[1].arithmetic_utilisation:.0f}",
        "us": lambda row: f"{row[1].time_us:.4g}",
    }
    if chosen:
        for line in TSM2_LINES:
            print_line(console, line)
        print_table(console, columns, chosen)
    below = [one.problem.text for one in found if one.tsm2 and one.tsm2.time_us < one.roofline.least_us]
    if below:
        print_line(
            console, f"below the least time for {', '.join(below)}: TSM2's model counts reads of A, not of B and C"
        )
    for one in found:
        if one.unmodelled is not None:
            print_line(console, f"TSM2's model does not cover {one.problem.text}: {one.unmodelled}")


def print_ladder(problem: Problem, device: str, rungs: Sequence[Rung], console: Console) -> None:
    """Print a table of the ladder, kernels with one more optimization each: times, speedups, published numbers."""
    from tsm2_tune.generator.families.ladder import PUBLISHED_ON, PUBLISHED_SHAPE

    print_line(console, f"{problem.text} on {device}; published: {PUBLISHED_SHAPE} in f32 on {PUBLISHED_ON}")
    rates = [rung.step.published_gflops for rung in rungs]
    columns: dict[str, Callable[[tuple[Rung, float, float | None]], str]] = {
        "step": lambda row: row[0].step.name,
        "configuration": lambda row: row[0].best.trial.config.text if row[0].best else _not_right(row[0].tried),
        "us": lambda row: _number(row[0].median_us),
        "GFLOP/s": lambda row: _number(row[0].gflops),
        "x before": lambda row: _number(row[0].speedup_over_previous),
        "x first": lambda row: _number(row[0].speedup_over_first),
        "% of floor": lambda row: _number(row[0].percent_of_floor),
        "published GFLOP/s": lambda row: _number(row[1]),
        "published x before": lambda row: _number(row[2] and row[1] / row[2]),
        "published x first": lambda row: _number(row[1] / rates[0]),
    }
    print_table(console, columns, zip(rungs, rates, [None, *rates[:-1]], strict=True))


def _not_right(tried: int) -> str:
    return f"none of {tried} right" if tried else "not tried"


def _number(value: float | None) -> str:
    """Return the number as text with at least three digits and no exponent; "" for None."""
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"
