"""Tune from Python, look at the winners, and call the fastest kernels: what the command does, as functions.

    python examples/api.py --device 0 --shapes 20480x8x20480,1e7x8x8
    python examples/api.py --device cpu --shapes 2048x4x512 --trials 2

The kernels multiply arrays of NumPy where they were tuned for the host, and PyTorch's on a GPU, which it needs there.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import tsm2_tune


def tuned(database: Path, shapes: str, device: str | None, trials: int) -> tsm2_tune.TuningResult:
    """The winners for row-major f32 products A B of these shapes; every event is a line."""
    for problem in tsm2_tune.problems(shapes, layout="row"):
        space = tsm2_tune.plan_space(problem, device=device)
        print(f"{problem.text}: {len(space.kept)} of {space.total} configurations are worth a trial")
    return tsm2_tune.tune(
        shapes, layout="row", device=device, db=database, budget=60, max_trials=trials, on_event=print
    )


def module_of(database: Path, folder: Path) -> ModuleType:
    """The winners as a module, imported."""
    tsm2_tune.export(database, format="module", output=folder / "best_kernels.py", on_event=print)
    sys.path.insert(0, str(folder))
    return import_module("best_kernels")


def largest_error(kernels: ModuleType, problem: tsm2_tune.Problem, *, on_gpu: bool) -> float:
    """Of a product of small whole numbers, which is exact."""
    random = np.random.default_rng(1)
    a: Any = random.integers(-4, 5, (problem.m, problem.k)).astype(np.float32)
    b: Any = random.integers(-4, 5, (problem.k, problem.n)).astype(np.float32)
    if not on_gpu:
        return float(abs(kernels.gemm(a, b) - a @ b).max())
    import torch

    c = kernels.gemm(torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda())
    return float(abs(c.cpu().numpy() - a @ b).max())


def main() -> None:
    """Tune, say who won, and multiply."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", help="a CUDA ordinal, or cpu; GPU 0 where there is one, if not given")
    parser.add_argument("--shapes", default="2048x4x512", help="MxNxK, separated by commas")
    parser.add_argument("--trials", type=int, default=8, help="configurations that are tried of each shape")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder, "results.db")
        try:
            result = tuned(database, given.shapes, given.device, given.trials)
            kernels = module_of(database, Path(folder))
        except tsm2_tune.TuneError as error:
            sys.exit(f"{error}")
        for winner in tsm2_tune.best(database):
            print(f"{winner.problem.text}: {winner.config}, {winner.median_us:.1f} us on {winner.device}")
            error = largest_error(kernels, winner.problem, on_gpu=not result.target.is_host)
            print(f"{winner.problem.text}: the largest error is {error:g}")


if __name__ == "__main__":
    main()
