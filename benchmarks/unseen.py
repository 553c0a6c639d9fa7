"""Untuned shapes: time the choices of a module with few tuned shapes beside cuBLAS and a search of each shape.

    python -m benchmarks.unseen --pack pack.py --pack-only
    python -m benchmarks.unseen --pack pack.py --part 1/4 --output unseen-1.json
    python -m benchmarks.join unseen-*.json --output unseen.json
    python -m benchmarks.unseen --table unseen.json

The first command builds the module, with a dozen tuned shapes for each regime, element type and layout. Then random
shapes are drawn log-uniformly. For each, the kernel that the module chooses is verified, and timed in turns with
cuBLAS, the fastest algorithm of cuBLASLt and the winner of a search of the shape, in one process, with a clean L2
cache. The file is written after every shape; `--resume` continues it. With `--device cpu`, kernels are emulated and
cuBLAS is left out.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, cast

import click

from benchmarks.cells import LAYOUTS, REGIMES, Layout, Regime, chosen
from benchmarks.gpu import gpu
from benchmarks.module_calls import TYPES
from benchmarks.pack import Fill, Kinds
from benchmarks.result_file import read, require_folder, require_new
from benchmarks.unseen_run import Selection, run
from benchmarks.unseen_run import searched_in as winners_of_searches
from benchmarks.unseen_shapes import UNSEEN_REGIMES, Ranges, range_of, spelt
from benchmarks.unseen_tables import tables
from benchmarks.versus_cublas import part_of, refuse_less_precision, troubles
from tsm2_tune.commands.errors import Command
from tsm2_tune.tuner.device.target import HOST, find_target


@click.command(cls=Command)
@click.option("--device", "spec", default="0", show_default=True, help=f"CUDA ordinal, or {HOST}.")
@click.option("--regime", default=",".join(UNSEEN_REGIMES), show_default=True)
@click.option("--layout", default=",".join(LAYOUTS), show_default=True)
@click.option("--dtype", default="f32,f64,c64", show_default=True)
@click.option(
    "--each",
    type=click.IntRange(1, 1000),
    default=14,
    show_default=True,
    help="Shapes drawn for every regime, element type and layout.",
)
@click.option("--seed", type=click.IntRange(0, 2**32), default=0, show_default=True, help="Of the draw.")
@click.option("--large", default=spelt(Ranges().large), show_default=True, help="m and k in R.")
@click.option("--long", default=spelt(Ranges().long), show_default=True, help="m in L, k in T.")
@click.option("--small", default=spelt(Ranges().small), show_default=True, help="The other extents.")
@click.option(
    "--search-seconds",
    type=click.FloatRange(0, 3600),
    default=5.0,
    show_default=True,
    help="Of a search of each shape, whose winner is timed beside the choice; 0 leaves it out.",
)
@click.option(
    "--searched-in",
    default=None,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Search nothing: time the winners in this file, of an earlier run, at its shapes.",
)
@click.option(
    "--pack",
    default="unseen_pack.py",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The module: used where it exists, else made first.",
)
@click.option("--pack-only", is_flag=True, help="Make the module, or go on with it, and measure nothing else.")
@click.option(
    "--pack-from",
    default=None,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Take the headline's shapes and winners from a file of versus_cublas; without it a dozen others are tuned.",
)
@click.option(
    "--budget",
    type=click.FloatRange(0, 3600, min_open=True),
    default=10.0,
    show_default=True,
    help="Seconds of tuning for each of the pack's shapes, without --pack-from.",
)
@click.option(
    "--db",
    "database",
    default="unseen.db",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Of the pack: the same command goes on from it.",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(0, min_open=True),
    default=None,
    help="Seconds after which no other shape, and no other pair of the pack, is begun.",
)
@click.option("--part", default="1/1", show_default=True, help="Such as 2/4: of four runs, the second.")
@click.option("--verbose", is_flag=True, help="Say where the seconds of the pack and of each shape went.")
@click.option("--resume", is_flag=True, help="Keep the rows that --output has, and measure the others.")
@click.option("--output", default="unseen.json", show_default=True, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--table",
    "to_show",
    default=None,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Print the tables of a file, and measure nothing.",
)
def main(
    spec: str,
    pack: Path,
    pack_only: bool,
    pack_from: Path | None,
    budget: float,
    database: Path,
    verbose: bool,
    resume: bool,
    output: Path,
    to_show: Path | None,
    searched_in: Path | None,
    **asked: Any,
) -> None:
    """Time a module's choices for shapes that it was not tuned for, and print the loss."""
    start = time.monotonic()
    if to_show is not None:
        click.echo(tables(read(to_show)))
        return
    selection = selected(**asked)
    if pack_only:
        require_folder(pack)
    elif resume and output.exists():
        read(output)  # raises now, not after the run
    else:
        require_new(output, "name another --output, or go on with --resume")
    refuse_less_precision(dict(os.environ))
    searched = None if searched_in is None else winners_of_searches(searched_in)
    target = find_target(HOST) if spec == HOST else gpu(spec)
    if not pack.exists() or (pack_only and database.exists()):
        end = start + (selection.time_limit or float("inf"))
        fill = Fill(pack, selection.kinds, database, pack_from, budget, verbose)
        if not fill.made(target, end=end):
            raise SystemExit("the pack is not made yet: the same command goes on")
    if pack_only:
        click.echo(f"{pack}: {pack.stat().st_size} bytes")
        return
    result = run(target, selection, pack, output, start=start, resume=resume, verbose=verbose, searched=searched)
    click.echo(f"\n{tables(result.content)}")
    if trouble := troubles(result.rows):
        raise SystemExit(trouble)


def selected(
    *,
    regime: str,
    layout: str,
    dtype: str,
    each: int,
    seed: int,
    large: str,
    long: str,
    small: str,
    search_seconds: float,
    time_limit: float | None,
    part: str,
) -> Selection:
    """Return the selection from the command line. Raise InputError for an unknown word."""
    kinds = Kinds(
        cast(tuple[Regime, ...], chosen(regime, REGIMES, "regime")),
        cast(tuple[Layout, ...], chosen(layout, LAYOUTS, "layout")),
        chosen(dtype, tuple(TYPES), "type"),
    )
    ranges = Ranges(range_of("large", large), range_of("long", long), range_of("small", small))
    return Selection(kinds, ranges, each, seed, search_seconds, time_limit, part_of(part))


if __name__ == "__main__":
    main()
