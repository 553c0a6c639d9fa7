"""Build the pack for `benchmarks.unseen`: an exported module of winners, tuned now or read from a result file."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import click

from benchmarks.cells import Cell, Layout, Regime, in_set, op_of
from benchmarks.contest import COMPILE_SECONDS
from benchmarks.result_file import read
from benchmarks.versus_cublas import seconds_text
from benchmarks.winner import Prospects, Skipped, planned, planners
from tsm2_tune.errors import InputError
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.families import family_named, parse_config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.source import INDEX_BITS, index_defines
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.generator.space.space import SearchSpace
from tsm2_tune.tuner.compile.compiler import compile_text
from tsm2_tune.tuner.compile.pool import cores
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.export.cubins import compiled_cubins
from tsm2_tune.tuner.export.gathered import gathered
from tsm2_tune.tuner.export.kernel_sets.intermediate_winners import rows_between
from tsm2_tune.tuner.export.module import module_text
from tsm2_tune.tuner.measure.cross_timing import CrossTiming
from tsm2_tune.tuner.measure.timing import Effort
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache, Outcome
from tsm2_tune.tuner.runs.events import PairMeasured, ProblemEnded
from tsm2_tune.tuner.runs.problem_queue import tune_problems
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.worker.protocol import AttemptResult
from tsm2_tune.tuner.written_files import write

MOST_TUNED = 12  # limit of the shapes per regime, element type and layout
# A dozen shapes (m, n, k) per regime: many small extents, with and without rows that are whole vectors.
PACK_SHAPES: dict[Regime, tuple[tuple[int, int, int], ...]] = {
    "R": (
        (20480, 1, 20480), (6007, 1, 4003), (4001, 2, 9001), (2503, 4, 20011), (16384, 6, 16384), (7001, 8, 3001),
        (5120, 12, 10240), (12007, 16, 12007), (3001, 24, 6007), (8192, 32, 8192), (2503, 48, 15013),
        (20011, 64, 5003),
    ),
    "L": (
        (10_000_000, 1, 2), (300_007, 2, 16), (2_000_003, 3, 48), (60_013, 1, 20), (5_000_000, 8, 8),
        (100_003, 12, 32), (3_000_000, 16, 3), (40_009, 24, 12), (1_500_007, 27, 39), (6_000_011, 40, 1),
        (200_003, 48, 6), (500_000, 64, 64),
    ),
    "T": (
        (1, 2, 10_000_000), (2, 16, 300_007), (3, 48, 2_000_003), (4, 4, 30_011), (6, 1, 1_000_000),
        (8, 8, 5_000_011), (12, 32, 100_003), (16, 1, 300_007), (24, 12, 40_009), (32, 32, 1_000_000),
        (48, 6, 200_003), (64, 64, 500_000),
    ),
}  # fmt: skip
FINAL = Effort(spread=0.003, min_samples=15, max_samples=45, limit_seconds=0.3)  # for timing a winner beside cuBLAS
Tuned = tuple[Problem, str]  # problem, text of its winner's configuration


@dataclass(frozen=True, slots=True)
class Kinds:
    """Selected regimes, element types and layouts."""

    regimes: tuple[Regime, ...]
    layouts: tuple[Layout, ...]
    dtype_names: tuple[str, ...]


def pack_cells(kinds: Kinds) -> tuple[Cell, ...]:
    """Return the cells of a pack: PACK_SHAPES shapes for each regime, element type and layout."""
    return tuple(
        Cell(regime, layout, Problem(*shape, dtype_name, op_of(regime, layout, dtype_name)))
        for regime, dtype_name, layout in product(kinds.regimes, kinds.dtype_names, kinds.layouts)
        for shape in PACK_SHAPES[regime]
    )


def winners_in(path: Path, kinds: Kinds) -> tuple[Tuned, ...]:
    """Return the winners at headline shapes in a result file of versus_cublas.

    Raise InputError if a regime, element type and layout has none, or more than MOST_TUNED.
    """
    places = product(kinds.regimes, kinds.layouts, kinds.dtype_names)
    found: dict[tuple[str, str, str], list[Tuned]] = {place: [] for place in places}
    for row in read(path)["rows"]:
        winners = found.get((row["regime"], row["layout"], row["dtype"]))
        if winners is not None and row["verified"] and in_set(row, "headline"):
            problem = Problem(row["m"], row["n"], row["k"], row["dtype"], row["op"])
            winners.append((problem, row["configuration"]))
    for place, winners in found.items():
        if not 1 <= len(winners) <= MOST_TUNED:
            raise InputError(
                f"{path} has {len(winners)} winners of the headline's shapes of {' '.join(place)}, expected 1 to"
                f" {MOST_TUNED}: name another --pack-from, or other regimes, layouts and types"
            )
    return tuple(winner for winners in found.values() for winner in winners)


def spaces_of(tuned: Iterable[Tuned], limits: DeviceLimits) -> tuple[SearchSpace, ...]:
    """Return each problem's space with only its winner. Raise InputError if this version lacks the configuration."""
    found = []
    for problem, text in tuned:
        config = parse_config(text)
        if config is None or not (family := family_named(config.family)).has(config, problem):
            raise InputError(
                f"{text} is no configuration for {problem.text} in this version: name a --pack-from that it measured,"
                " or leave it out, which tunes"
            )
        candidate = Candidate(family, config, problem, limits, Guidelines())
        space = SearchSpace(problem, limits, (family.name,), [candidate], (), (Guidelines(),))
        found.append(space)
    return tuple(found)


def _space(found: Prospects | Skipped, limits: DeviceLimits) -> SearchSpace:
    """Return the search space. Raise Skipped if it is empty."""
    if isinstance(found, Skipped):
        raise found
    families = tuple(sorted({candidate.config.family for candidate in found.candidates}))
    return SearchSpace(found.problem, limits, families, found.candidates, (), (Guidelines(),))


@dataclass(frozen=True, slots=True)
class Fill:
    """The parameters for building a pack: the module is written to `path`, and its trials are stored in `database`.

    The same call continues an interrupted one. With a result file `source`, each winner in that file is verified and
    timed beside cuBLAS. Without it, PACK_SHAPES shapes are tuned for `budget_seconds` each, as `tsm2-tune` does,
    without the full verification. Then each winner's kernel is timed at the other shapes. So are kernels for shapes
    between them; the module contains those that are expected to be faster there.
    """

    path: Path
    kinds: Kinds
    database: Path
    source: Path | None
    budget_seconds: float
    verbose: bool = False  # print the time of each phase

    def made(self, target: Target, *, end: float) -> bool:
        """Build the pack. Return whether all shapes were started before `end`, a value of time.monotonic().

        If `end` comes while kernels are timed at other shapes, the module contains the kernels measured until then.
        """
        options = Options(vendor=not target.is_host, final_effort=FINAL, cache=Cache.CLEAN)
        options = replace(options, final_caches=())  # unseen shapes are timed with a clean L2 alone
        if self.source is None:
            options = replace(options, budget_seconds=self.budget_seconds)
        else:  # each space contains only the winner
            options = replace(options, strategy="exhaustive")
        with ExitStack() as stack:
            tuner = stack.enter_context(InPart(target, options))
            store = stack.enter_context(Store.open(str(self.database), create=True))
            problems, spaces = self._spaces(tuner, store, stack)
            for space in spaces:
                place = f"{problems.index(space.problem) + 1}/{len(problems)}"
                if time.monotonic() > end:
                    click.echo(f"stopped by the time limit before {space.problem.text}, {place}")
                    return False
                for event in tune_problems([space], tuner, store):
                    if isinstance(event, ProblemEnded):
                        found = "no winner" if event.winner is None else event.winner.summary
                        click.echo(f"pack {place} {space.problem.text}: {found}")
            self._say_seconds("winners", tuner)
            self._cross(CrossTiming(frozenset(problems), tuner, store), end)
            self._say_seconds("pairs", tuner)
            self._write(store, target, frozenset(problems))
        return True

    def _say_seconds(self, what: str, tuner: Tuner) -> None:
        seconds = tuner.phases.taken()
        if self.verbose:
            click.echo(f"{what}: {seconds_text(seconds)}")

    @staticmethod
    def _cross(crossing: CrossTiming, end: float) -> None:
        """Time kernels at the other shapes until `end`."""
        done = "none"
        for event in crossing.events():
            if isinstance(event, PairMeasured):
                done = f"{event.done} of {event.total}"
            if time.monotonic() > end:
                click.echo(f"stopped by the time limit among the pairs, {done} tried: --pack-only goes on with them")
                return

    def _spaces(self, tuner: Tuner, store: Store, stack: ExitStack) -> tuple[list[Problem], Iterator[SearchSpace]]:
        """Return the pack's problems, and the search spaces of those without a final.

        The stack ends the processes that plan the searches.
        """
        target = tuner.target
        done = {row.problem for row in store.best(device=target.identity.name) if row.round > 0}
        if self.source is not None:
            chosen = spaces_of(winners_in(self.source, self.kinds), target.limits)
            left = [space for space in chosen if space.problem not in done]
            compile_all([(space.problem, space.kept[0].config) for space in left], target)
            return [space.problem for space in chosen], iter(left)
        cells = pack_cells(self.kinds)
        pool = stack.enter_context(planners())
        todo = [cell for cell in cells if cell.problem not in done]
        spaces = (_space(found, target.limits) for _, found in planned(tuner, todo, pool))
        return [cell.problem for cell in cells], spaces

    def _write(self, store: Store, target: Target, problems: frozenset[Problem]) -> None:
        """Export the winners of these problems and the kernels for shapes between, also without full verification."""
        winners = [row for row in store.best(device=target.identity.name) if row.problem in problems]
        rows = [*winners, *rows_between(store, winners)]
        kernels, rates = gathered(store, rows, store.trials([row.trial_id for row in rows]))
        cubins, missing = compiled_cubins(kernels, click.echo)
        for why in missing:
            click.echo(f"no binary: {why}")
        text = module_text(kernels, rates, str(self.database), cubins)
        write(text, self.path)


class InPart(Tuner):
    """A tuner without the full verification of winners, which takes 3 to 16 s per kernel on an H200.

    `benchmarks.unseen` checks the results of the pack's kernels for each shape.
    """

    def verify_in_full(self, problem: Problem, config: KernelConfig) -> AttemptResult:
        """Return a result which says that the full verification was left out."""
        return AttemptResult(Outcome.INTERRUPTED, "the full verification is left out")


def compile_all(kernels: Iterable[tuple[Problem, KernelConfig]], target: Target) -> None:
    """Compile the kernels for both index widths in parallel, to fill the cache. A search compiles one by one."""
    sources = {source.digest: source for problem, config in kernels if (source := render(problem, config))}

    def compiled(job: tuple[Any, int]) -> object:
        source, bits = job
        return compile_text(
            source.text,
            kernel=source.kernel,
            defines=index_defines(bits),
            toolchain=target.toolchain,
            limit_seconds=COMPILE_SECONDS,
        )

    with ThreadPoolExecutor(cores()) as pool:
        list(pool.map(compiled, product(sources.values(), INDEX_BITS)))
