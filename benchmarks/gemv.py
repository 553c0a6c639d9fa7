"""Time four decompositions of a matrix-vector product from a lecture, and cuBLAS's gemv.

    python -m benchmarks.gemv --output gemv.json
    python -m benchmarks.gemv --dtype f64 --shapes-of grid --trials 4 --output gemv-f64.json

For each decomposition, the first choices of the family `gemv` are verified and timed. Then the fastest of each
decomposition and cuBLAS's gemv are verified and timed in turns in one process, with a clean and with a dirty L2
cache. Tables show the times with a clean L2. With several element types, the first one is timed on the whole grid of
shapes, and the others only on the largest shapes. The file is written after every shape. A decomposition is skipped
if the time model expects its first choice to be far too slow: for example one thread per row for 32 rows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import click

from benchmarks.cells import LAYOUTS, Layout, chosen
from benchmarks.contest import EXACT, Contest, Launch, opened, skipped_without_room, times
from benchmarks.gpu import gpu
from benchmarks.result_file import ResultFile, require_new
from benchmarks.tables import Row, fastest_in_bold, markdown, number, runs_of
from benchmarks.versus_cublas import refuse_less_precision
from benchmarks.winner import Prospects, Skipped, Winner, room_bytes, tuned
from tsm2_tune.commands.errors import Command
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.dtypes import dtype_named
from tsm2_tune.generator.families.gemv import DECOMPOSITIONS, GEMV, Decomposition
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.tuner.measure.timing import Effort
from tsm2_tune.tuner.measure.vendor.libraries import CublasError
from tsm2_tune.tuner.packs.candidate_times import candidate_times_us
from tsm2_tune.tuner.results.trial import Cache
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.verify.operands import needed_bytes
from tsm2_tune.tuner.verify.verdict import prepare

EXTENTS = (100, 1_000, 10_000, 100_000, 1_000_000)  # rows and columns of A
MOST_ELEMENTS = 400_000_000
LARGE = ((20_480, 20_480), (10_000_000, 32), (32, 10_000_000))  # at least 1.3 GB of f32
SHAPES = {
    "grid": tuple((m, k) for m in EXTENTS for k in EXTENTS if m * k <= MOST_ELEMENTS),
    "large": LARGE,
}
SHAPES["all"] = SHAPES["grid"] + LARGE
OPS: dict[Layout, str] = {"column": "nn", "row": "tn"}
HOPELESS, HOPELESS_US = 30, 1000.0  # skip a first choice expected to exceed both 30 * floor and 1000 us
TRIAL = Effort(spread=0.01, min_samples=7, max_samples=21, limit_seconds=0.05, warm_up_seconds=0.005)
FINAL = Effort(spread=0.005, min_samples=9, max_samples=31, limit_seconds=0.05, warm_up_seconds=0.005)
CONTEST = Effort(spread=0.003, min_samples=11, max_samples=41, limit_seconds=0.1, warm_up_seconds=0.005)
SHORT: dict[Decomposition, str] = {
    "one thread a row": "one",
    "several threads a row": "threads",
    "several rows a thread": "rows",
    "both": "both",
}


@dataclass(frozen=True, slots=True)
class Selection:
    """The cells and limits of one run."""

    dtype_names: tuple[str, ...]
    layouts: tuple[Layout, ...]
    shape_set: str
    trials: int  # for each decomposition

    @property
    def cells(self) -> tuple[tuple[Layout, Problem], ...]:
        """Return every layout and problem: all shapes for the first element type, the largest for the others.

        Raise InputError for an unknown element type.
        """
        return tuple(
            (layout, Problem(m, 1, k, name, OPS[layout]))
            for name in self.dtype_names
            if dtype_named(name)
            for layout in self.layouts
            for m, k in SHAPES[self.shape_set]
            if name == self.dtype_names[0] or (m, k) in LARGE
        )

    @property
    def command(self) -> str:
        """The command that repeats this run, without the name of the output file."""
        return (
            f"python -m benchmarks.gemv --dtype {','.join(self.dtype_names)} --layout {','.join(self.layouts)}"
            f" --shapes-of {self.shape_set} --trials {self.trials}"
        )


def candidates(
    problem: Problem, limits: DeviceLimits, trials: int, floor_us: float
) -> dict[Decomposition, tuple[Candidate, ...]]:
    """Return {decomposition: candidates}, without those whose first choice is expected to be far too slow."""
    found: dict[Decomposition, tuple[Candidate, ...]] = {}
    for name in DECOMPOSITIONS:
        configs = GEMV.corner(name, problem, limits)[:trials]
        every = tuple(Candidate(GEMV, config, problem, limits, Guidelines()) for config in configs)
        if every and candidate_times_us(every[:1])[0] <= max(HOPELESS * floor_us, HOPELESS_US):
            found[name] = every
    return found


def of_read(problem: Problem, us: float, read_gbytes_per_s: float) -> float:
    """Return the bandwidth in percent of the measured read rate, if A, B and C move once in `us` microseconds."""
    return 100 * problem.least_bytes / (us * 1e3 * read_gbytes_per_s)


def contest_row(contest: Contest, layout: Layout, problem: Problem, found: Mapping[Decomposition, Winner]) -> Row:
    """Measure a shape and return its row. Raise Skipped if the device lacks memory or cannot launch a kernel."""
    launches: dict[str, Launch] = {}
    verdicts: dict[str, bool] = {}
    with skipped_without_room(), ExitStack() as stack:
        operands = contest.operands(problem, stack)
        prepare(operands, EXACT, seed=1)
        for name, winner in found.items():
            launches[name] = partial(
                contest.loaded(operands, winner.config, stack).start, operands.arguments(1.0, 0.0)
            )
        if contest.libraries is not None:
            with suppress(CublasError):
                launches["cublas"] = contest.libraries[0].gemv_launch(operands)
        verdicts = {name: contest.verdict(operands, launch).correct for name, launch in launches.items()}
        measured = contest.in_turns(operands, launches)
    clean, dirty = measured[Cache.CLEAN], measured[Cache.DIRTY]
    share = {name: of_read(problem, one.median_us, contest.ceilings.read_gbytes_per_s) for name, one in clean.items()}
    return {
        "layout": layout,
        "dtype": problem.dtype_name,
        "op": problem.op,
        "m": problem.m,
        "k": problem.k,
        "decompositions": {
            name: {
                **times("ours", clean[name]),
                **times("ours_dirty", dirty[name]),
                "percent_of_read": share[name],
                "configuration": winner.config.text,
                "verified": verdicts[name],
                "trials": winner.outcomes,
            }
            for name, winner in found.items()
        },
        **times("cublas", clean.get("cublas")),
        **times("cublas_dirty", dirty.get("cublas")),
        "cublas_percent_of_read": share.get("cublas"),
        "cublas_verified": verdicts.get("cublas"),
    }


def fastest(row: Row) -> Decomposition:
    """Return the fastest decomposition of a row."""
    found = row["decompositions"]
    return min(found, key=lambda name: found[name]["ours_us"])


def line_of(row: Row) -> str:
    """Return a measured shape's line for the terminal."""
    found = row["decompositions"]
    parts = [
        f"{SHORT[name]} {found[name]['ours_us']:9.1f} us ({found[name]['percent_of_read']:5.1f} %)" if name in found
        else f"{SHORT[name]} {'–':>21}"
        for name in DECOMPOSITIONS
    ]  # fmt: skip
    cublas = f"cuBLAS {row['cublas_us']:9.1f} us" if row["cublas_us"] else "cuBLAS –"
    wrong = "".join(f"  WRONG: {name}" for name in found if not found[name]["verified"])
    shape = f"{row['m']}x{row['k']}:{row['dtype']}"
    return f"{row['layout']:6} {shape:22} {'  '.join(parts)}  {cublas}  {found[fastest(row)]['configuration']}{wrong}"


def grid(rows: Sequence[Row]) -> str:
    """Return Markdown tables, one per element type and layout.

    A cell shows the fastest decomposition, its percentage of the read bandwidth, and cuBLAS's.
    """
    parts = []
    for dtype, layout in dict.fromkeys((row["dtype"], row["layout"]) for row in rows):
        found = {(row["m"], row["k"]): row for row in rows if (row["dtype"], row["layout"]) == (dtype, layout)}
        found = {shape: row for shape, row in found.items() if shape in SHAPES["grid"]}
        across = sorted({k for _, k in found})
        lines = [
            (f"{m:,}", *(cell_of(found[m, k]) if (m, k) in found else "" for k in across))
            for m in sorted({m for m, _ in found})
        ]
        if lines:
            heads = ("rows", *(f"{k:,} columns" for k in across))
            parts.append(f"{dtype}, {layout}-major:\n\n" + markdown(heads, lines))
    return "\n\n".join(parts)


def cell_of(row: Row) -> str:
    """Return a text such as `both 93 (88)`: the fastest decomposition, its percentage, and cuBLAS's percentage."""
    name = fastest(row)
    share, other = row["decompositions"][name]["percent_of_read"], row["cublas_percent_of_read"]
    return f"{SHORT[name]} {share:.0f}" + (f" ({other:.0f})" if other is not None else "")


def large(rows: Sequence[Row]) -> str:
    """Return a Markdown table of the largest shapes: times of all, percentages of the read rate, the fastest."""
    heads = (
        "layout", "dtype", "m x k", *(f"{SHORT[name]} us" for name in DECOMPOSITIONS), "cuBLAS us",
        "% of read", "configuration",
    )  # fmt: skip
    lines = []
    for row in rows:
        if (row["m"], row["k"]) in LARGE:
            found = row["decompositions"]
            values = [
                *(found[name]["ours_us"] if name in found else None for name in DECOMPOSITIONS),
                row["cublas_us"],
            ]
            best = found[fastest(row)]
            lines.append(
                (
                    *(row["layout"], row["dtype"], f"{row['m']} x {row['k']}"),
                    *fastest_in_bold([number(value) for value in values], values),
                    f"{best['percent_of_read']:.0f}",
                    f"`{best['configuration']}`",
                )
            )
    return markdown(heads, lines, texts=("m x k", "configuration"))


def drawn(found: Mapping[str, Any]) -> dict[str, str]:
    """Return {name of a region in docs: Markdown}."""
    return {"gemv-runs": runs_of(dict(found)), "gemv-grid": grid(found["rows"]), "gemv-large": large(found["rows"])}


def measure(tuner: Tuner, contest: Contest, selection: Selection, result: ResultFile) -> None:
    """Measure every shape of the selection, write the file, and print each row."""
    limits = tuner.target.limits
    cells = [
        (layout, problem, candidates(problem, limits, selection.trials, contest.ceilings.floor_us(problem)))
        for layout, problem in selection.cells
    ]
    for _, _, tried in cells:
        tuner.compile_ahead([candidate for every in tried.values() for candidate in every])
    for layout, problem, tried in cells:
        try:
            if needed_bytes(problem) > room_bytes(limits):
                raise Skipped("no room for it in the device's memory")
            found = {name: tuned(tuner, Prospects(problem, len(every), every)) for name, every in tried.items()}
            if not found:
                raise Skipped("hopeless in every decomposition")
            row = contest_row(contest, layout, problem, found)
        except Skipped as reason:
            result.skip({"layout": layout, "problem": problem.text}, str(reason))
            click.echo(f"{layout} {problem.text}  skipped: {reason}")
            continue
        result.add(row)
        click.echo(line_of(row))
    result.facts["complete"] = True
    result.write()


@click.command(cls=Command)
@click.option("--device", "spec", default="0", show_default=True, help="CUDA ordinal.")
@click.option("--dtype", default="f32,f64", show_default=True, help="The grid is measured in the first one.")
@click.option("--layout", default=",".join(LAYOUTS), show_default=True, help="Of A.")
@click.option("--shapes-of", "shape_set", type=click.Choice(tuple(SHAPES)), default="all", show_default=True)
@click.option("--trials", type=click.IntRange(1), default=3, show_default=True, help="Of each decomposition.")
@click.option("--output", default="gemv.json", show_default=True, type=click.Path(dir_okay=False, path_type=Path))
def main(spec: str, dtype: str, layout: str, shape_set: str, trials: int, output: Path) -> None:
    """Time the four decompositions of a matrix-vector product and cuBLAS's gemv, and print the tables."""
    refuse_less_precision(dict(os.environ))
    names = tuple(dict.fromkeys(name.strip() for name in dtype.split(",")))
    selection = Selection(names, cast(tuple[Layout, ...], chosen(layout, LAYOUTS, "layout")), shape_set, trials)
    _ = selection.cells  # raises for an unknown type before the device is opened
    require_new(output)
    target, options = gpu(spec), Options(effort=TRIAL, final_effort=FINAL, cache=Cache.CLEAN, final_caches=())
    with Tuner(target, options) as tuner, opened(target, CONTEST, tuner.phases) as contest:
        result = ResultFile(output, contest.facts(selection.command))
        measure(tuner, contest, selection, result)
    click.echo("\n" + "\n\n".join(drawn(result.content).values()))
    if not result.rows or any(not one["verified"] for row in result.rows for one in row["decompositions"].values()):
        raise SystemExit("a kernel gave a wrong result, or nothing was measured")


if __name__ == "__main__":
    main()
