"""The fastest configuration for a cell, by a search as long as the bench allows."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from benchmarks.cells import Cell
from tsm2_tune.errors import DeviceError
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.limits import DeviceLimits
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space import SearchSpace, search_space
from tsm2_tune.tuner.operands import needed_bytes
from tsm2_tune.tuner.trial import Final, Outcome
from tsm2_tune.tuner.tune import Past, Tuner

CELLS_AHEAD, CONFIGURATIONS_AHEAD = 3, 16  # that are compiled while a cell is measured
RESERVE_BYTES = 6 * 2**30  # for two contexts, their flush buffers and reports, and the kernels' workspaces


class Skipped(Exception):
    """Why a cell cannot be measured."""


@dataclass(frozen=True, slots=True)
class Winner:
    """The fastest configuration that gave right results, and how the search went."""

    config: KernelConfig
    kept: int  # configurations in the space
    outcomes: dict[str, int]  # how many trials ended how


def planned(tuner: Tuner, cells: Iterable[Cell]) -> Iterator[tuple[Cell, SearchSpace | Skipped]]:
    """Each cell with what to search, or why not, while compilers work for the cells that follow it."""
    ahead: deque[tuple[Cell, SearchSpace | Skipped]] = deque()
    for cell in cells:
        try:
            space = space_of(cell.problem, tuner.target.limits)
        except Skipped as reason:
            ahead.append((cell, reason))
        else:
            tuner.compile_ahead(space, CONFIGURATIONS_AHEAD)
            ahead.append((cell, space))
        if len(ahead) > CELLS_AHEAD:
            yield ahead.popleft()
    yield from ahead


def tuned(tuner: Tuner, space: SearchSpace) -> Winner:
    """The winner of a search within the tuner's options, finalists measured again in turns.

    Skipped where there is none.
    """
    problem = space.problem
    outcomes: Counter[str] = Counter()
    medians: list[tuple[KernelConfig, float]] = []
    try:
        for trial in tuner.tune(space, past()):
            outcomes[trial.outcome.value] += 1
            if trial.outcome is Outcome.OK and trial.measurement is not None:
                medians.append((trial.config, trial.measurement.median_us))
        final = tuner.final(problem, past(medians)) if medians else None
    except DeviceError as error:
        raise Skipped(str(error)) from None
    if not medians:
        raise Skipped(f"no configuration ran and was right: {dict(outcomes)}")
    if isinstance(final, Final):
        medians = [(config, measured.median_us) for config, measured in final.measurements]
    # The worker keeps the operands: it must end where this process has no room for its own beside them.
    if 2 * needed_bytes(problem) > room_bytes(tuner.target.limits):
        tuner.worker.close()
    config, _ = min(medians, key=lambda item: (item[1], item[0].text))
    return Winner(config, len(space.kept), dict(outcomes))


def past(medians: list[tuple[KernelConfig, float]] | None = None) -> Past:
    """That nothing was tried before but for these."""
    return Past(frozenset(), 0.0, tuple(medians or ()), frozenset())


def space_of(problem: Problem, limits: DeviceLimits) -> SearchSpace:
    """What to search. Skipped where there is nothing, or A, B and C do not fit into the device's memory."""
    needed, room = needed_bytes(problem), room_bytes(limits)
    if needed > room:
        raise Skipped(f"needs {needed / 2**30:.1f} GiB of device memory, of which {room / 2**30:.1f} GiB can be had")
    space = search_space(problem, limits)
    if not space.families:
        raise Skipped("no kernel family computes this product")
    if not space.kept:
        raise Skipped(f"no configuration left of the {space.total} in {', '.join(space.families)}")
    return space


def room_bytes(limits: DeviceLimits) -> int:
    """Device memory for operands."""
    return max(limits.memory_bytes - RESERVE_BYTES, 0)
