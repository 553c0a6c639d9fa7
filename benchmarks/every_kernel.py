"""Time every kernel of an exported module on untuned shapes: how much time is lost by the module's choice?

    python -m benchmarks.every_kernel --pack unseen_pack.py --output every-kernel.jsonl
    python -m benchmarks.every_kernel --table every-kernel.jsonl --pack unseen_pack.py

The shapes are those of `benchmarks.unseen`. Each kernel is launched with the splits and rows per block that the
module's time model expects to be fastest, and with a few others. Times are with a clean L2 cache, and no result is
verified. The output file has one line per shape; the same command continues it. `--table` recomputes the expected
times with the model in the module.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import numpy as np

from benchmarks.call_cost import imported
from benchmarks.cells import LAYOUTS, Cell
from benchmarks.gpu import gpu
from benchmarks.headline import geometric_mean, markdown
from benchmarks.module_calls import TYPES, arrays_of
from benchmarks.pack import Kinds
from benchmarks.turns import TIMED, Turns, compiled_support
from benchmarks.unseen_run import Selection
from benchmarks.unseen_shapes import UNSEEN_REGIMES, Ranges
from benchmarks.versus_cublas import part_of
from tsm2_tune.commands.errors import Command
from tsm2_tune.errors import InputError
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.device.cuda import CudaDevice
from tsm2_tune.tuner.measure.timing import Effort, measure
from tsm2_tune.tuner.search.phase_timer import PhaseTimer
from tsm2_tune.tuner.verify.verdict import prepare

EFFORT = Effort(spread=0.01, min_samples=5, max_samples=7, limit_seconds=0.08, warm_up_seconds=0.003)
FIELDS = {"regime", "layout", "dtype", "text", "orders", "lines", "times"}  # fields of a line in the file
STARTS = 4  # limit of the launches that are timed per kernel
Row = dict[str, Any]


class Pack:
    """An exported module with its time model."""

    def __init__(self, module: ModuleType, device: str) -> None:
        self.module, self._device = module, device

    def contest(self, cell: Cell, lds: Any, orders: Any) -> tuple[Any, Any]:
        """Return the kernels that can compute the cell, and its work (flops and bytes) for the time model."""
        problem, module = cell.problem, self.module
        winners, _ = module._candidates(problem.dtype_name, orders, problem.conjugated, False, False)
        if not winners:
            raise LookupError("its kernels are for the transposed product alone")
        contest = module._contest(winners, self._device, None)
        if contest.kernels is None:
            raise LookupError("too little is known of its kernels to expect times")
        return contest, module._work(contest, (problem.m, problem.n, problem.k), lds)

    def starts(self, contest: Any, work: Any) -> list[list[tuple[float, Any]]]:
        """Return, for each kernel, its launches with their expected times, the fastest first."""
        kernels = contest.kernels
        tiles = kernels._tiles(work)
        rows, splits = kernels._options(tiles, work)
        plain = kernels._us(tiles, work, rows, splits)
        times = kernels.interpolated.at(work, plain.min(axis=1)[:, None])[0] * plain
        rows, splits, times = np.broadcast_arrays(rows, splits, times)
        found = []
        for place, winner in enumerate(contest.winners):
            of_kernel = zip(times[place], rows[place], splits[place], strict=True)
            ways = {(int(r), int(s)): us for us, r, s in sorted(of_kernel, reverse=True)}
            launches = [(float(us), launched(winner.launch, r, s)) for (r, s), us in ways.items()]
            found.append(sorted(launches, key=lambda one: one[0]))
        return found


def launched(launch: Any, rows: int, splits: int) -> Any:
    """Return the launch with these rows per block and this number of split-k slices."""
    if rows != launch.rows_per_block:
        launch = replace(launch, rows_per_block=rows)
    return launch if splits == launch.splits else launch.with_splits(splits)


def some(starts: Sequence[tuple[float, Any]]) -> list[tuple[float, Any]]:
    """Return the two launches with the least expected times, one in the middle and the last."""
    if len(starts) <= STARTS:
        return list(starts)
    return [*starts[:2], starts[len(starts) // 2], starts[-1]]


def measured(cell: Cell, pack: Pack, turns: Turns[Any]) -> Row:
    """Return a cell's line for the file: the expected and the measured time of each kernel and launch."""
    module = pack.module
    with ExitStack() as stack:
        operands = turns.operands(cell.problem, stack)
        prepare(operands, TIMED, seed=2)
        arrays = arrays_of(operands, on_host=False)
        product = module.Product.of(*arrays, conjugates=cell.problem.conjugated, math=None)
        orders = tuple(tuple(x.ld) for x in product.given)
        contest, work = pack.contest(cell, tuple(dict(x.ld) for x in product.given[:2]), orders)
        times = []
        for winner, starts in zip(contest.winners, pack.starts(contest, work), strict=True):
            for expected, launch in some(starts):
                match = module.Match(winner, launch, 1.0, None, None, expected, None)
                module.plans.clear()  # the module caches one plan per product, but each launch needs its own
                given, plan, handle = module.prepare_launch(product, match, None)
                addresses = [x.address for x in given.given]

                def start(plan: Any = plan, addresses: Any = addresses, handle: int = handle) -> None:
                    plan.start(*addresses, None, None, handle, product.a.array)

                us = measure(turns.device, start, EFFORT).median_us
                place = (winner.config, winner.m, winner.n, winner.k, launch.rows_per_block, launch.splits)
                times.append([*place, round(us, 2)])
    p = cell.problem
    lines = [dict(x.ld) for x in product.given[:2]]
    return cell.record | {"text": p.text, "orders": orders, "lines": lines, "times": times}


def measure_all(spec: str, pack: Path, selection: Selection, output: Path) -> None:
    """Add a line to the file for each cell that it lacks."""
    start, target = time.monotonic(), gpu(spec)
    module, support = imported(pack), compiled_support(target.toolchain)
    turns = Turns(CudaDevice(int(spec), support), target, support, EFFORT, PhaseTimer())
    done = {(row["regime"], row["layout"], row["text"]) for row in lines_of(output)} if output.exists() else set()
    for cell in selection.cells(target):
        if (cell.regime, cell.layout, cell.problem.text) in done:
            continue
        if selection.time_limit is not None and time.monotonic() - start > selection.time_limit:
            click.echo(f"stopped by the time limit before {cell.problem.text}: the same command goes on")
            break
        row = measured(cell, Pack(module, target.identity.name), turns)
        with output.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    turns.device.close()


def lines_of(path: Path) -> Iterator[Row]:
    """Return the rows of a file. Raise InputError if a line was not written by this bench."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
                Problem.parse(row["text"])
                usable = all(0 < us < math.inf and r > 0 and s > 0 for *_, r, s, us in row["times"]) and row["times"]
                usable = usable and row.keys() >= FIELDS
            except (ValueError, TypeError, KeyError, AttributeError, InputError):
                usable = False
            if not usable:
                raise InputError(f"{path} has no usable line {number}: name a file of every_kernel")
            yield row


def losses(rows: Sequence[Row], pack: Pack) -> dict[tuple[str, ...], list[tuple[float, float]]]:
    """Return, by regime, element type and layout, two ratios for each shape.

    They are the chosen kernel's time divided by the least time, and by its expected time.
    """
    found = defaultdict[tuple[str, ...], list[tuple[float, float]]](list)
    for row in rows:
        problem = Problem.parse(row["text"])
        orders = tuple(map(tuple, row["orders"]))
        try:
            contest, work = pack.contest(Cell(row["regime"], row["layout"], problem), tuple(row["lines"]), orders)
        except (LookupError, ValueError, TypeError) as error:
            raise InputError(
                f"{row['text']}: the pack has no kernel for it ({error}): name the pack of the file"
            ) from None
        of = {(w.config, w.m, w.n, w.k): place for place, w in enumerate(contest.winners)}
        kernels, best = contest.kernels, (math.inf, 0.0)
        for *winner, r, s, us in row["times"]:
            if tuple(winner) not in of:
                raise InputError(f"{winner[0]} is not in the pack: name the one that {row['text']} was measured with")
            place = of[tuple(winner)]
            launches = [w.launch for w in contest.winners]
            launches[place] = launched(launches[place], r, s)
            best = min(best, (kernels.us(launches, work)[place], us))
        least = min(us for *_, us in row["times"])
        found[row["regime"], row["dtype"], row["layout"]].append((best[1] / least, best[1] / best[0]))
    return found


def table(found: dict[tuple[str, ...], list[tuple[float, float]]]) -> str:
    """Return the loss of the choice as a Markdown table."""
    everything = [one for of in found.values() for one in of]
    cells = []
    for kind, of in (*sorted(found.items()), (("all", "", ""), everything)):
        over = sorted(one[0] for one in of)
        off = statistics.median(math.exp(abs(math.log(one[1]))) for one in of)
        worst = over[math.ceil(0.95 * len(over)) - 1]
        numbers = (geometric_mean(over), statistics.median(over), worst, off)
        cells.append((*kind, str(len(of)), *(f"{number:.3f}" for number in numbers)))
    heads = ("regime", "dtype", "layout", "shapes", "choice over best", "median", "95 % within", "expected off by")
    return markdown(heads, cells)


@click.command(cls=Command, help=__doc__)
@click.option("--device", "spec", default="0", show_default=True, help="CUDA ordinal.")
@click.option("--pack", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True)
@click.option("--each", type=click.IntRange(1, 1000), default=14, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the draw.")
@click.option("--part", default="1/1", show_default=True, help="Such as 2/4: of four runs, the second.")
@click.option("--time-limit", type=click.FloatRange(0, min_open=True), default=None)
@click.option(
    "--output", default="every-kernel.jsonl", show_default=True, type=click.Path(dir_okay=False, path_type=Path)
)
@click.option("--table", "to_show", default=None, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(
    spec: str,
    pack: Path,
    each: int,
    seed: int,
    part: str,
    time_limit: float | None,
    output: Path,
    to_show: Path | None,
) -> None:
    if to_show is not None:
        module = imported(pack)
        device = next((w.device for w in module.WINNERS if not w.on_host), "")
        click.echo(table(losses(list(lines_of(to_show)), Pack(module, device))))
        return
    kinds = Kinds(UNSEEN_REGIMES, LAYOUTS, tuple(name for name in TYPES if name != "c128"))
    measure_all(spec, pack, Selection(kinds, Ranges(), each, seed, 0, time_limit, part_of(part)), output)


if __name__ == "__main__":
    main()
