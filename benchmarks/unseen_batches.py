"""Time a module's choices for random batches that it was not tuned for, beside `torch.bmm`.

    tsm2-tune export --db batches.db -o best_kernels.py
    python -m benchmarks.unseen_batches --module best_kernels.py --output unseen-batches.json

The module leaves a batch to PyTorch if it expects cuBLAS to be faster. Each product of a batch is compared with its
exact result. Times alternate between the two, each after the L2 was filled with dirty lines.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from benchmarks.call_cost import imported
from benchmarks.gpu import gpu
from benchmarks.result_file import device_facts, require_new, write_json
from tsm2_tune.commands.errors import Command
from tsm2_tune.generator.dtypes import dtype_named
from tsm2_tune.generator.problem import Problem

KINDS = {  # kind -> ranges of m, n and k, and the ops. The regimes are those of `benchmarks.batches`
    "small": ((1, 32), (1, 32), (1, 32), ("ttt",)),
    "R": ((500, 10_000), (1, 32), (100, 1_000), ("nn", "ttt")),
    "L": ((5_000, 50_000), (1, 32), (1, 32), ("nn", "ttt")),
    "T": ((1, 32), (1, 32), (2_000, 50_000), ("tn", "ntt")),
}
DTYPES = ("f32", "f64")
BYTES = (2e7, 4e8)  # of a batch
LARGEST_VALUE = 3  # of elements, which are integers: sums are exact
ROUNDS = 11
FILLS = 10  # of the L2 before a call: they take longer than the host needs for the call


def drawn(each: int, seed: int) -> Iterator[tuple[str, Problem]]:
    """Yield `each` random batches of every kind and element type, with their kinds."""
    numbers = random.Random(seed)

    def uniform(low: float, high: float) -> int:  # of the logarithm
        return round(math.exp(numbers.uniform(math.log(low), math.log(high))))

    for kind, (*ranges, ops) in KINDS.items():
        for dtype in DTYPES:
            for number in range(each):
                m, n, k = (uniform(*extents) for extents in ranges)
                product_bytes = (m * k + k * n + m * n) * dtype_named(dtype).element_bytes
                count = max(2, round(uniform(*BYTES) / product_bytes))
                yield kind, Problem(m, n, k, dtype, ops[number % len(ops)], batch=count)


def is_tuned(best: ModuleType, problem: Problem) -> bool:
    own = problem.m, problem.n, problem.k, problem.batch, problem.dtype_name
    return any((w.m, w.n, w.k, w.batch, w.dtype) == own for w in best.WINNERS)


def tensors(problem: Problem) -> tuple[Any, Any, Any]:
    """Return A and B of random integers and an empty C, in the problem's storage orders."""
    import torch

    dtype = {"f32": torch.float32, "f64": torch.float64}[problem.dtype_name]
    m, n, k, orders = problem.m, problem.n, problem.k, problem.op.ljust(3, "n")

    def made(rows: int, columns: int, order: str) -> Any:
        shape = (rows, columns) if order == "t" else (columns, rows)
        found = torch.randint(-LARGEST_VALUE, LARGEST_VALUE + 1, (problem.batch, *shape), device="cuda").to(dtype)
        return found if order == "t" else found.mT

    return made(m, k, orders[0]), made(k, n, orders[1]), made(m, n, orders[2])


def median_us(calls: tuple[Callable[[], Any], ...], dirty: Any) -> list[float]:
    """Return the median microseconds of each call, in alternating rounds. `dirty` is twice as large as the L2."""
    import torch

    times: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, own in zip(calls, times, strict=True):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            for _ in range(FILLS):
                dirty.add_(1)
            start.record()
            call()
            end.record()
            end.synchronize()
            own.append(1e3 * start.elapsed_time(end))
    return [statistics.median(own) for own in times]


def row_of(best: ModuleType, kind: str, problem: Problem, dirty: Any) -> dict[str, Any]:
    """Return the row of a batch: the choice, whether each element is right, both times and their ratio."""
    import torch

    a, b, out = tensors(problem)
    choice = best.choice(a, b, out)
    best.gemm(a, b, out=out.fill_(math.nan))
    is_right = torch.equal(out, torch.bmm(a.double(), b.double()).to(out.dtype))
    ours, theirs = median_us((lambda: best.gemm(a, b, out=out), lambda: torch.bmm(a, b, out=out)), dirty)
    return {
        "kind": kind, "problem": problem.text, "right": is_right, "choice": str(choice),
        "left_to_pytorch": isinstance(choice, best.Vendor), "us": ours, "torch_us": theirs, "x_torch": theirs / ours,
    }  # fmt: skip


def summary(rows: list[dict[str, Any]]) -> str:
    ratios = [row["x_torch"] for row in rows]
    mean, slower = statistics.geometric_mean(ratios), sum(ratio < 0.97 for ratio in ratios)
    mean_text = f"{mean:.2f} times torch.bmm in the geometric mean"
    return f"{mean_text}, {slower} of {len(rows)} below 0.97, the least {min(ratios):.2f}"


@click.command(cls=Command)
@click.option("--module", "path", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--each", type=click.IntRange(1, 1000), default=13, show_default=True, help="Of every kind and type.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--output", required=True, type=click.Path(dir_okay=False, path_type=Path))
def main(path: Path, each: int, seed: int, output: Path) -> None:
    """Draw, check and time the batches, and write a row for each."""
    require_new(output)
    target = gpu("0")
    import torch

    best, rows = imported(path), []
    dirty = torch.zeros(target.limits.l2_bytes // 2, dtype=torch.int32, device="cuda")
    for kind, problem in drawn(each, seed):
        if is_tuned(best, problem):
            continue
        rows.append(row_of(best, kind, problem, dirty))
        click.echo(
            f"{kind:5} {problem.text:28} {rows[-1]['us']:9.1f} us  x {rows[-1]['x_torch']:.2f}  {rows[-1]['choice']}"
        )
    facts = device_facts(f"python -m benchmarks.unseen_batches --each {each} --seed {seed}", target)
    write_json(output, {**facts, "torch": torch.__version__, "rows": rows})
    click.echo(summary(rows))
    if wrong := [row["problem"] for row in rows if not row["right"]]:
        raise SystemExit(f"wrong results: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
