"""Tune kernels and time them beside cuBLAS and cuBLASLt, in all regimes, layouts and element types.

    python -m benchmarks.versus_cublas --output versus-cublas.json --plot versus-cublas.png
    python -m benchmarks.versus_cublas --quick
    python -m benchmarks.versus_cublas --device 1 --part 2/4 --output part2.json

Each cell is tuned for `--seconds`; its kernels are compiled while earlier cells are measured. Then the winner, cuBLAS
with its default algorithm, and the fastest algorithm that cuBLASLt's heuristic suggests are verified and timed in
turns in one process, with a clean and with a dirty L2 cache. So clock drift affects all equally. The file is written
after every cell; `--resume` continues it. With several GPUs, each can measure a part of the cells, and `python -m
benchmarks.join` joins the files.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from benchmarks.cells import LAYOUTS, REGIMES, SHAPE_SETS, Cell, Layout, Regime, ShapeSet, cells, chosen
from benchmarks.claims import summary
from benchmarks.contest import opened
from benchmarks.gpu import gpu
from benchmarks.plot import draw, matplotlib
from benchmarks.result_file import ResultFile, read, require_folder, require_new
from benchmarks.winner import Skipped, planned, planners, tuned
from tsm2_tune.commands.errors import Command
from tsm2_tune.commands.options import cache_option
from tsm2_tune.errors import InputError
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.measure.timing import Effort
from tsm2_tune.tuner.results.trial import Cache
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.phase_timer import PhaseTimer

# Each of these environment variables allows cuBLAS to compute f32 or f64 products with less precision.
LESS_PRECISE = ("NVIDIA_TF32_OVERRIDE", "CUBLAS_EMULATE_SINGLE_PRECISION", "CUBLAS_EMULATE_DOUBLE_PRECISION")
LEAST_TRIALS = 4  # least trials per cell, however long they take
LEAST_SECONDS = 0.005  # shorter phases are not printed
RECENT_CELLS = 8  # the slowest of these predicts whether another cell fits in the time limit

P = TypeVar("P")  # what a cell's measurement needs


@dataclass(frozen=True, slots=True)
class Plan:
    """Default search and timing limits of a shape set."""

    seconds: float
    layouts: str
    effort: Effort
    final_effort: Effort  # for the tuner's finalists

    def options(self, seconds: float, cache: Cache) -> Options:
        """Return the tuner's options for a search of this many seconds per cell.

        They limit the time of each measurement to a share of these seconds.
        """
        trial, final = Effort(), self.final_effort
        return Options(
            budget_seconds=seconds,
            least_trials=LEAST_TRIALS,
            cache=cache,
            final_caches=(),
            effort=replace(trial, limit_seconds=min(trial.limit_seconds, TRIAL_SHARE * seconds)),
            final_effort=replace(final, limit_seconds=min(final.limit_seconds, FINAL_SHARE * seconds)),
        )


PATIENT = Plan(
    seconds=20.0,
    layouts="column,row",
    effort=Effort(spread=0.002, min_samples=21, max_samples=51, limit_seconds=0.5),
    final_effort=Effort(spread=0.002, min_samples=21, max_samples=101, limit_seconds=1.0),
)
QUICK = Plan(
    seconds=2.5,
    layouts="column",
    effort=Effort(spread=0.005, min_samples=11, max_samples=31, limit_seconds=0.5),
    final_effort=Effort(spread=0.005, min_samples=11, max_samples=31, limit_seconds=0.2),
)
TRIAL_SHARE, FINAL_SHARE = 0.1, 0.05  # limits of timing one trial and one finalist, as fractions of the tuning time


@dataclass(frozen=True, slots=True)
class Selection:
    """The cells and limits of one run."""

    regimes: tuple[Regime, ...]
    layouts: tuple[Layout, ...]
    dtype_names: tuple[str, ...]
    shape_set: ShapeSet
    seconds: float  # tuning time of each cell
    time_limit: float | None  # seconds, for the whole run
    part: tuple[int, int] = (1, 1)  # (number of this part, number of parts)
    cache: Cache = Cache.DIRTY  # L2 state of searches

    @property
    def cells(self) -> tuple[Cell, ...]:
        every = cells(self.regimes, self.layouts, self.dtype_names, self.shape_set)
        number, parts = self.part
        return every[number - 1 :: parts]

    @property
    def command(self) -> str:
        """The command that repeats this run, without the name of the output file."""
        return (
            f"python -m benchmarks.versus_cublas --regime {','.join(self.regimes)} --layout {','.join(self.layouts)}"
            f" --dtype {','.join(self.dtype_names)} --shapes-of {self.shape_set} --seconds {self.seconds:g}"
            f" --cache {self.cache}" + (f" --part {self.part[0]}/{self.part[1]}" if self.part != (1, 1) else "")
        )


def line_of(row: dict[str, Any]) -> str:
    """Return a measured cell's line for the terminal."""
    shape = f"{row['m']}x{row['n']}x{row['k']}:{row['dtype']}"
    others = [
        f"{label} {us:9.1f} us ({us / row['ours_us']:5.2f})" if us is not None else f"{label} {'none':>20}"
        for label, us in (("cuBLAS", row["cublas_us"]), ("Lt", row["cublaslt_us"]))
    ]
    dirty = f"dirty {row['ours_dirty_us']:9.1f} us" if row.get("ours_dirty_us") else ""
    if dirty and row["cublas_dirty_us"] is not None:
        dirty += f" ({row['cublas_dirty_us'] / row['ours_dirty_us']:5.2f})"
    wrong = "" if row["verified"] else f"  WRONG: {row['verdict']}"
    wrong += "".join(f"  {name} differs" for name in ("cublas", "cublaslt") if row[f"{name}_verified"] is False)
    return (
        f"{row['regime']} {row['layout']:6} {shape:26} {row['ours_us']:9.1f} us  {'  '.join([*others, dirty])}"
        f"  {row['percent_of_floor']:5.1f} % of the floor  {row['configuration']}{wrong}"
    )


def seconds_text(seconds: dict[str, float]) -> str:
    """Return a text with the time of each phase, the longest first."""
    longest_first = sorted(seconds.items(), key=lambda item: -item[1])
    phases = (f"{name} {taken:.2f}" for name, taken in longest_first if taken >= LEAST_SECONDS)
    return f"{sum(seconds.values()):.2f} s: {', '.join(phases)}"


def measure_cells(
    phases: PhaseTimer,
    measured: Callable[[Cell, P], dict[str, Any]],
    result: ResultFile,
    cells: Iterator[tuple[Cell, P | Skipped]],
    *,
    time_limit: float | None,
    start: float,
    verbose: bool = False,
    line: Callable[[dict[str, Any]], str] = line_of,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Measure the cells with the function `measured`, until the time limit in seconds since `start`.

    The fact `complete` says whether all cells were measured.
    """
    recent: deque[float] = deque(maxlen=RECENT_CELLS)
    whole: dict[str, float] = defaultdict(float)
    for cell, prospects in cells:
        begun = clock()
        if time_limit is not None and begun - start + max(recent, default=0.0) > time_limit:
            click.echo(f"stopped by the time limit before {cell.text}: --resume goes on")
            break
        try:
            if isinstance(prospects, Skipped):
                raise prospects
            row = measured(cell, prospects)
        except Skipped as reason:
            result.skip(cell.record, str(reason))
            click.echo(f"{cell.text}  skipped: {reason}")
            continue
        phases.enter("file")
        result.add(row)
        click.echo(line(row))
        recent.append(clock() - begun)
        seconds = phases.taken()
        for name, taken in seconds.items():
            whole[name] += taken
        if verbose:
            click.echo(f"    {seconds_text(seconds)}")
    else:
        result.facts["complete"] = True
    result.write()
    if verbose:
        click.echo(f"in all: {seconds_text(whole)}")


def run(target: Target, selection: Selection, plan: Plan, output: Path, *, resume: bool, verbose: bool) -> ResultFile:
    """Run the whole benchmark on one device."""
    start = time.monotonic()
    with (
        Tuner(target, plan.options(selection.seconds, selection.cache)) as tuner,
        planners() as pool,
        opened(target, plan.effort, tuner.phases, selection.cache) as contest,
    ):
        result = ResultFile(output, contest.facts(selection.command))
        if resume and output.exists():
            result.go_on()
        _ = tuner.ceilings  # measured here, so that it does not take time from the first search
        measure_cells(
            tuner.phases,
            lambda cell, prospects: contest.row(cell, tuned(tuner, prospects)),
            result,
            planned(tuner, [cell for cell in selection.cells if not result.measured(cell.record)], pool),
            time_limit=selection.time_limit,
            start=start,
            verbose=verbose,
        )
    return result


def part_of(text: str) -> tuple[int, int]:
    """Parse a part such as `1/4`. Raise InputError for another text."""
    found = re.fullmatch(r"([1-9]\d{0,3})/([1-9]\d{0,3})", text)
    if found is None or int(found[1]) > int(found[2]):
        raise InputError(f"part {text!r}: expected such as 1/4, the first of four")
    return int(found[1]), int(found[2])


def selected(
    regime: str,
    layout: str,
    dtype: str,
    shape_set: str,
    seconds: float,
    time_limit: float | None,
    part: str,
    cache: Cache = Cache.DIRTY,
) -> Selection:
    """Return the selection from the command line. Raise InputError for an unknown word."""
    selection = Selection(
        regimes=cast(tuple[Regime, ...], chosen(regime, REGIMES, "regime")),
        layouts=cast(tuple[Layout, ...], chosen(layout, LAYOUTS, "layout")),
        dtype_names=tuple(dict.fromkeys(name.strip() for name in dtype.split(","))),
        shape_set=cast(ShapeSet, shape_set),
        seconds=seconds,
        time_limit=time_limit,
        part=part_of(part),
        cache=cache,
    )
    if not (math.isfinite(seconds) and seconds > 0):
        raise InputError(f"--seconds {seconds:g}: expected a number above 0")
    if time_limit is not None and not time_limit > 0:
        raise InputError(f"--time-limit {time_limit:g}: expected a number above 0")
    if not selection.cells:  # raises for a wrong selection before the device is opened
        raise InputError(f"part {part} of the selection has no cell: name fewer parts or other shapes")
    return selection


def refuse_less_precision(environment: dict[str, str]) -> None:
    """Raise InputError if an environment variable allows cuBLAS less precision than the element type's."""
    for name in LESS_PRECISE:
        if environment.get(name, "0") != "0":
            raise InputError(f"{name} = {environment[name]} lets cuBLAS compute less precisely: unset it")


def troubles(rows: Sequence[dict[str, Any]]) -> str:
    """Return why the run failed, or "" if it did not."""
    wrong = [
        f"{row['regime']} {row['m']}x{row['n']}x{row['k']}:{row['dtype']}" for row in rows if not row["verified"]
    ]
    if wrong:
        return f"wrong results of {len(wrong)} winners: {', '.join(wrong)}"
    return "" if rows else "no cell was measured"


@click.command(cls=Command)
@click.option("--device", "spec", default="0", show_default=True, help="CUDA ordinal.")
@click.option("--regime", default=",".join(REGIMES), show_default=True)
@click.option("--layout", default=None, help=f"[default: {PATIENT.layouts}; {QUICK.layouts} with --quick]")
@click.option("--dtype", default="f32,f64", show_default=True)
@click.option("--shapes-of", "shape_set", type=click.Choice(SHAPE_SETS), default="full", show_default=True)
@click.option("--quick", is_flag=True, help="The shapes of quick, in about two minutes.")
@click.option(
    "--seconds",
    type=float,
    default=None,
    help=f"Of tuning, for each cell.  [default: {PATIENT.seconds:g}; {QUICK.seconds:g} with --quick]",
)
@click.option("--time-limit", type=float, default=None, help="Seconds after which no other cell is begun.")
@click.option(
    "--part", default="1/1", show_default=True, help="Such as 2/4: of four runs on as many GPUs, the second."
)
@cache_option(Cache.DIRTY, "The state of the L2 in which winners are found; all are timed in clean and dirty.")
@click.option("--verbose", is_flag=True, help="Say where the seconds of each cell went.")
@click.option("--resume", is_flag=True, help="Keep the rows that --output has, and measure the others.")
@click.option(
    "--output",
    default="versus-cublas.json",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
)
@click.option("--plot", default=None, type=click.Path(dir_okay=False, path_type=Path), help="PNG; needs matplotlib.")
def main(
    spec: str,
    regime: str,
    layout: str | None,
    dtype: str,
    shape_set: str,
    quick: bool,
    seconds: float | None,
    time_limit: float | None,
    part: str,
    cache: Cache,
    verbose: bool,
    resume: bool,
    output: Path,
    plot: Path | None,
) -> None:
    """Tune every cell of the selection, and time the winners beside cuBLAS and cuBLASLt."""
    shape_set = "quick" if quick else shape_set
    plan = QUICK if shape_set == "quick" else PATIENT
    refuse_less_precision(dict(os.environ))
    seconds = plan.seconds if seconds is None else seconds
    selection = selected(regime, layout or plan.layouts, dtype, shape_set, seconds, time_limit, part, cache)
    if resume and output.exists():
        read(output)  # raises now, not after the run
    else:
        require_new(output, "name another --output, or go on with --resume")
    if plot is not None:
        require_folder(plot)
        matplotlib()  # raises before the run if matplotlib is missing
    target = gpu(spec)
    result = run(target, selection, plan, output, resume=resume, verbose=verbose)
    if plot is not None and result.rows:
        draw(result.content, plot)
    click.echo(f"\n{summary(result.rows)}")
    if trouble := troubles(result.rows):
        raise SystemExit(trouble)


if __name__ == "__main__":
    main()
