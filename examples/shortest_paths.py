"""Shortest paths between all pairs of nodes of a road map, by squaring its matrix in the semiring (min, +).

    python examples/shortest_paths.py --device 0 --nodes 4096
    python examples/shortest_paths.py --device cpu --nodes 144

With D[i, j] the length of the road from i to j, infinite where there is none and 0 on the diagonal, the product of D
with itself, min over l of D[i, l] + D[l, j], has the shortest paths of up to two roads; squared once more those of up
to four. So ceil(log2(nodes - 1)) products are enough for every path. The lengths are whole numbers of metres: sums of
them are exact, and so the result is the very one of SciPy's Dijkstra.

It tunes the product first, or imports a module that `tsm2-tune export` has written. It needs SciPy, and on a GPU
PyCUDA.
"""

from __future__ import annotations

import importlib.util
import math
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import numpy as np
import numpy.typing as npt

import tsm2_tune

try:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import shortest_path
except ImportError:
    sys.exit("SciPy is not installed, whose shortest paths these are compared with: pip install scipy")

METRES, JITTER = 1000, 350  # from crossing to crossing, and how far each is moved at most
CLOSED, ONE_WAY = 0.3, 0.1  # shares of the roads
HIGHWAYS, EXIT, PACE = 4, 5, 0.4  # rows that have one; crossings from exit to exit; time of a metre on it

ON_HOST = "--device cpu --nodes 144"  # which emulates kernels: the default has too many nodes for that

Lengths = npt.NDArray[np.float32]


def road_map(side: int, seed: int) -> Lengths:
    """Lengths of the roads between side**2 crossings: a grid pulled about, some roads of it closed, and highways."""
    random = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid(np.arange(side), np.arange(side), indexing="ij"), axis=-1) * METRES
    places = (grid + random.uniform(-JITTER, JITTER, grid.shape)).reshape(-1, 2)
    node = np.arange(side * side).reshape(side, side)
    lengths = np.full((side * side, side * side), np.inf, np.float32)
    np.fill_diagonal(lengths, 0)

    def build(start: npt.NDArray[Any], end: npt.NDArray[Any], pace: float = 1.0) -> None:
        start, end = start.ravel(), end.ravel()
        metres = np.ceil(pace * np.hypot(*(places[start] - places[end]).T))
        lengths[start, end] = np.minimum(lengths[start, end], metres)

    for start, end in ((node[:, :-1], node[:, 1:]), (node[:-1], node[1:])):
        is_open = random.random(start.shape) >= CLOSED
        both_ways = is_open & (random.random(start.shape) >= ONE_WAY)
        build(start[is_open], end[is_open])
        build(end[both_ways], start[both_ways])
    for row in random.choice(side, min(HIGHWAYS, side), replace=False):
        exits = node[row, ::EXIT]
        build(exits[:-1], exits[1:], PACE)
        build(exits[1:], exits[:-1], PACE)
    return lengths


def tuned_module(device: str, nodes: int, trials: int, folder: Path) -> Path:
    """The product of this size, tuned on the device and exported."""
    database, module = folder / "results.db", folder / "best_kernels.py"
    try:
        tsm2_tune.tune(
            f"{nodes}x{nodes}x{nodes}", math="minplus", device=device, max_trials=trials, db=database, on_event=print
        )
        tsm2_tune.export(database, format="module", output=module, on_event=print)
    except tsm2_tune.TuneError as error:  # whose advice is the command's
        advice = str(error).partition(", or --help")[0].replace("--device cpu", ON_HOST)
        raise click.ClickException(advice) from None
    return module


def imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise click.ClickException(f"{path} is no Python module: export one with --format module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def all_distances(kernels: ModuleType, lengths: Lengths, device: str) -> tuple[Lengths, list[float]]:
    """The lengths of the shortest paths, and the seconds that each product took."""
    squared: Any = np.asfortranarray(lengths)
    into: Any = np.empty_like(squared)
    if device != "cpu":
        try:
            import pycuda.autoprimaryctx  # the first GPU's
            from pycuda import gpuarray
        except ImportError:
            raise click.ClickException(
                f"PyCUDA is not installed: pip install pycuda, or use {ON_HOST} without --module"
            ) from None

        squared, into = gpuarray.to_gpu(squared), gpuarray.to_gpu(into)
    kernels.gemm(squared, squared, out=into, math="minplus")  # compiles the kernel
    seconds = []
    for _ in range(math.ceil(math.log2(max(2, len(lengths) - 1)))):
        if device != "cpu":
            pycuda.autoprimaryctx.context.synchronize()
        start = time.perf_counter()
        kernels.gemm(squared, squared, out=into, math="minplus")
        if device != "cpu":
            pycuda.autoprimaryctx.context.synchronize()
        seconds.append(time.perf_counter() - start)
        squared, into = into, squared
    return np.asarray(squared if device == "cpu" else squared.get()), seconds


@click.command()
@click.option(
    "--device", type=click.Choice(["0", "cpu"]), default="0", show_default=True, help="The first GPU, or cpu."
)
@click.option("--nodes", type=click.IntRange(4, 2**15), default=1024, show_default=True, help="Rounded to a square.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the map.")
@click.option("--trials", type=click.IntRange(1), default=8, show_default=True, help="Configurations that are tried.")
@click.option("--module", type=click.Path(exists=True, dir_okay=False), help="Exported kernels, in place of tuning.")
def main(device: str, nodes: int, seed: int, trials: int, module: str | None) -> None:
    """Find all shortest paths, compare them with SciPy's, and say how long both took."""
    lengths = road_map(round(math.sqrt(nodes)), seed)
    nodes, roads = len(lengths), int(np.isfinite(lengths).sum()) - len(lengths)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(module) if module else tuned_module(device, nodes, trials, Path(folder))
        kernels = imported(path)
    try:
        found, seconds = all_distances(kernels, lengths, device)
    except LookupError as error:
        raise click.ClickException(f"{path} cannot do it: {error}") from None

    start = time.perf_counter()
    expected = shortest_path(csr_array(np.where(np.isfinite(lengths), lengths, 0)), method="D")
    scipy_seconds = time.perf_counter() - start
    if not np.array_equal(found, expected):
        raise SystemExit(f"{(found != expected).sum()} of {found.size} distances differ from SciPy's")
    finite = found[np.isfinite(found)]
    click.echo(f"{nodes} crossings, {roads} roads; of the pairs {finite.size / found.size:.1%} are connected")
    click.echo(f"longest of the shortest paths: {finite.max() / 1000:.0f} km")
    best = min(seconds)
    rate = 2 * nodes**3 / best * 1e-12
    click.echo(f"{len(seconds)} products: {sum(seconds):.4f} s, the fastest {best * 1e6:.0f} us, {rate:.3g} TFLOP/s")
    click.echo(f"SciPy's Dijkstra: {scipy_seconds:.3g} s; all distances are equal")


if __name__ == "__main__":
    main()
