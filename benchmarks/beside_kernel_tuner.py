"""Compare tsm2-tune with Kernel Tuner on the same kernels: configurations per second, and the fastest found.

    pip install kernel_tuner cupy-cuda13x
    python -m benchmarks.beside_kernel_tuner --output benchmarks/results/h100-beside-kernel-tuner.json

Both tuners get the same source texts, launches and problem, and an empty cache of kernels. Both try all
configurations. Kernel Tuner compiles with NVRTC through CuPy, compares C with NumPy's result, and uses the mean of 7
launches of each kernel. tsm2-tune verifies and times as in any search. Then the fastest kernel of each tuner is timed
in turns with the other's.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.result_file import device_facts, write_json
from tsm2_tune.api.parse import REACH
from tsm2_tune.commands.errors import Command
from tsm2_tune.generator.config import Launch
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.space import SearchSpace, search_space
from tsm2_tune.tuner.device.target import Target, find_target
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Final
from tsm2_tune.tuner.runs.events import TrialStored
from tsm2_tune.tuner.runs.problem_queue import tune_problems
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.resume import NO_PRIOR_TRIALS, FinalCandidate
from tsm2_tune.tuner.search.strategies.strategy import InOrder

# Families by problem. All kernels of the last problem need a workspace; those chosen for the others need none.
CASES = {
    "1000000x8x8:f32": ("resident_b_fma",),
    "4096x8x4096:f32": ("tsm2", "ism2"),
    "8x8x1000000:f64:tn": ("inner_fma",),
}
Floats = np.ndarray[Any, np.dtype[np.floating[Any]]]
CACHE, CUPY_CACHE = "XDG_CACHE_HOME", "CUPY_CACHE_DIR"  # variables that name the folders of cached kernels
ITERATIONS = 7  # default of Kernel Tuner
NAME, NUMBER = "tried_kernel", "tried_number"  # name of every kernel, and of the parameter that numbers it


def chosen(space: SearchSpace, most: int) -> list[Candidate]:
    """Return `most` configurations spread over the space, preferably all without split-k: these need no workspace."""
    every = [one for one in space.kept if not one.config.has_splits] or list(space.kept)
    return every[:: max(1, len(every) // most)][:most]


def operands(problem: Problem) -> tuple[list[Floats], Floats]:
    """Return A and B as stored, and their product C in its storage order, all as flat arrays."""
    rng = np.random.default_rng(0)
    stored = [
        rng.standard_normal(problem.stored[name][::-1]).astype(problem.dtype_name.replace("f", "float"))
        for name in ("A", "B")
    ]
    along_a, along_b, _ = problem.contiguous
    a, b = (
        one.T if along == first else one for one, along, first in zip(stored, (along_a, along_b), "mk", strict=True)
    )
    return [one.ravel() for one in stored], np.ascontiguousarray((a @ b).T).ravel()


def workspace(launches: Sequence[Launch], problem: Problem, dtype: np.dtype[Any]) -> list[np.ndarray[Any, Any]]:
    """Return arrays for the partial sums and counters of the largest launch. Kernels leave the counters 0."""
    sums = max(one.partial_elements(problem.m, problem.n) for one in launches)
    counters = max(one.counters(problem.m, problem.n) for one in launches)
    return [np.zeros(sums, dtype), np.zeros(counters, np.uint32)] if counters else []


def tuned_here(space: SearchSpace, candidates: Sequence[Candidate], target: Target) -> dict[str, Any]:
    """Return each kernel's result by tsm2-tune."""
    outcomes, start = Counter[str](), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder, "r.db"), create=True) as store:
        options = Options(reach=REACH)
        with Tuner(target, options) as tuner:
            first = ended = 0.0
            for event in tune_problems(
                [space], tuner, store, make_strategy=lambda *_: InOrder(candidates), families=space.families
            ):
                if isinstance(event, TrialStored):
                    ended = time.perf_counter() - start
                    first = first or ended
                    outcomes[event.trial.outcome.value] += 1
            verified = time.perf_counter() - start
            (winner,) = store.best(device=target.identity.name, problem=space.problem, cache=tuner.cache)
    return {
        "trials": outcomes.total(),
        "outcomes": dict(outcomes),
        "seconds": ended,
        "first_after_seconds": first,
        "verified_after_seconds": verified,  # includes the final and the full verification of the winner
        "winner": winner.config,
    }


def tuned_by_kernel_tuner(problem: Problem, candidates: Sequence[Candidate], target: Target) -> dict[str, Any]:
    """Return each kernel's result by Kernel Tuner.

    Kernel Tuner gets two parameters: the number of a configuration, and its threads per block.
    """
    import kernel_tuner

    sources = [render(problem, one.config) for one in candidates]
    texts = [source.text.replace(f" {source.kernel}(", f" {NAME}(") for source in sources]
    launches = [source.launch for source in sources]
    grids = [launch.grid(problem.m, problem.n) for launch in launches]
    (a, b), product = operands(problem)
    index, real = np.int32 if problem.index_bits == 32 else np.int64, a.dtype.type
    extents = [index(extent) for extent in (problem.m, problem.n, problem.k)]
    lines = {name: index(length) for name, (length, _) in problem.stored.items()}  # leading dimensions
    arguments: list[Any] = [*extents, real(1), a, lines["A"], b, lines["B"]]
    arguments += [real(0), np.zeros_like(product), lines["C"]]
    answer = [None] * 9 + [product, None]
    added = workspace(launches, problem, a.dtype)
    arguments, answer = arguments + added, answer + [None] * len(added)
    start, found = time.perf_counter(), list[dict[str, Any]]()
    for threads in sorted({one.threads for one in launches}):  # one search for each number of threads
        of_block = [number for number, one in enumerate(launches) if one.threads == threads]
        tried, _ = kernel_tuner.tune_kernel(
            NAME,
            lambda given: texts[given[NUMBER]],
            lambda given: grids[given[NUMBER]],
            arguments,
            {NUMBER: of_block, "block_size_x": [threads]},
            grid_div_x=[],
            grid_div_y=[],
            answer=answer,
            atol=1e-3,
            lang="CUPY",
            iterations=ITERATIONS,
            smem_args={"size": lambda given: launches[given[NUMBER]].smem_bytes},
            compiler_options=["-std=c++17", "-default-device", *(f"-D{define}" for define in sources[0].defines)],
            quiet=True,
        )
        found += tried
    seconds = time.perf_counter() - start
    right = [one for one in found if isinstance(one["time"], float)]
    best = min(right, key=lambda one: float(one["time"]))
    return {
        "trials": len(found),
        "outcomes": {"ok": len(right), "failed": len(found) - len(right)},
        "seconds": seconds,
        "winner": candidates[best[NUMBER]].config.text,
    }


def in_turns(
    space: SearchSpace, candidates: Sequence[Candidate], texts: Sequence[str], target: Target
) -> list[float]:
    """Return the median microseconds of these configurations, timed in turns."""
    by_text = {one.config.text: one.config for one in candidates}
    contenders = tuple(FinalCandidate(by_text[text], 1.0) for text in dict.fromkeys(texts))
    with Tuner(target, Options()) as tuner:
        final = tuner.final(
            space.problem, replace(NO_PRIOR_TRIALS, contenders=contenders), frozenset(texts), repeat=True
        )
    if not isinstance(final, Final):
        raise click.ClickException(f"no final of {texts}: {final}")
    measured = {one.text: us.median_us for one, us in final.measurements if us.cache is Options().cache}
    return [measured[text] for text in texts]


def row_of(text: str, families: Sequence[str], target: Target, most: int) -> dict[str, Any]:
    """Return the results of both tuners for one problem."""
    problem = Problem.parse(text)
    space = search_space(problem, target.limits, families=families)
    candidates = chosen(space, most)
    here = tuned_here(space, candidates, target)
    there = tuned_by_kernel_tuner(problem, candidates, target)
    times = in_turns(space, candidates, (here["winner"], there["winner"]), target)
    for one, us in zip((here, there), times, strict=True):
        one |= {"per_second": one["trials"] / one["seconds"], "median_us": us}
    click.echo(
        f"{text}: {len(candidates)} configurations: here {here['per_second']:.1f} a second, {here['winner']}"
        f" {times[0]:.2f} us; Kernel Tuner {there['per_second']:.1f} a second, {there['winner']} {times[1]:.2f} us"
    )
    return {"problem": text, "families": list(families), "tsm2_tune": here, "kernel_tuner": there}


@click.command(cls=Command)
@click.option("--device", default="0", show_default=True, help="CUDA ordinal.")
@click.option("--most", default=300, show_default=True, help="Configurations of each problem.")
@click.option("--output", required=True, type=click.Path(dir_okay=False, path_type=Path))
def main(device: str, most: int, output: Path) -> None:
    """Tune the same kernels with tsm2-tune and with Kernel Tuner."""
    target = find_target(device)
    with tempfile.TemporaryDirectory() as cache:
        os.environ[CACHE] = os.environ[CUPY_CACHE] = cache  # must be set before CuPy is imported
        import kernel_tuner

        rows = [row_of(text, families, target, most) for text, families in CASES.items()]
    facts = device_facts("python -m benchmarks.beside_kernel_tuner", target)
    write_json(output, {**facts, "kernel_tuner": kernel_tuner.__version__, "rows": rows})


if __name__ == "__main__":
    main()
