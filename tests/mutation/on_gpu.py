"""Mutants on GPUs: compiled by nvcc, to the same code where they are none, and verified as winners are."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from tests.conftest import compiled
from tests.mutation.arguments import argument
from tests.mutation.baseline import Baseline, Baselines, Paths, Tools
from tests.mutation.sample import Mutant
from tests.mutation.subjects import Subject
from tests.mutation.trial import GPU, INDEXING, Bench, Judged
from tsm2_tune.generator.problem import PADDING_ROWS
from tsm2_tune.generator.render import INDEX_BITS, support_source
from tsm2_tune.tuner.full import ON_GPU, Extent, FullVerification, _calls
from tsm2_tune.tuner.operands import GUARD_ELEMENTS
from tsm2_tune.tuner.target import Target
from tsm2_tune.tuner.trial import Outcome

LEAST_IN_FULL_SECONDS = 40.0  # a stage takes less than 1 s; a dozen processes have their turns on a GPU
OF_MEMORY = 0.95  # that operands may take together, beside what each process has
BYTES_OF_A_PROCESS = 2 * 2**30  # its context, operands of a trial, scratch memory of comparisons in each type
SAME = "the same code of a GPU"
FEWER = 100  # launches, of which a mutant needs no more that keeps nothing from one to the next


@dataclass
class Room:
    """Memory of a GPU, for several processes: each waits until there is as much as it takes at most.

    For the full verification leaves out what there is no room for, as if it were right.
    """

    memory_bytes: int
    free_bytes: int
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _all_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self._all_bytes = self.free_bytes

    @contextmanager
    def taken(self, size_bytes: int) -> Iterator[None]:
        """Have so many bytes, or all of them."""
        size_bytes = min(size_bytes, self._all_bytes)
        with self._changed:
            self._changed.wait_for(lambda: self.free_bytes >= size_bytes)
            self.free_bytes -= size_bytes
        try:
            yield
        finally:
            with self._changed:
                self.free_bytes += size_bytes
                self._changed.notify_all()


def room_of(target: Target, processes: int) -> Room:
    """Of a GPU that so many processes share."""
    memory_bytes = target.limits.memory_bytes
    return Room(memory_bytes, int(OF_MEMORY * memory_bytes) - processes * BYTES_OF_A_PROCESS)


@cache
def most_bytes(subject: Subject, extent: Extent, memory_bytes: int) -> int:
    """That the operands and the workspace of a call of the subject's full verification take, as far as they fit."""
    request = FullVerification(subject.problem, subject.config, (), extent, seed=11)
    dtype, launch, most = subject.problem.dtype, subject.source.launch, 0
    for bits in INDEX_BITS:
        for call in _calls(request, bits):
            padding = call.padding or {}
            elements = sum(
                2 * GUARD_ELEMENTS + (contiguous + PADDING_ROWS + padding.get(name, 0)) * lines
                for name, (contiguous, lines) in call.problem.stored.items()
            )
            partial = launch.partial_elements(call.problem.m, call.problem.n) * dtype.sum.element_bytes
            needed = elements * dtype.element_bytes + partial
            most = max(most, needed if needed <= memory_bytes else 0)
    return most


def gpu_tools(target: Target) -> Tools:
    support = compiled(support_source(), "", target.toolchain).path
    return Tools(support, target.toolchain, widths=INDEX_BITS, least_in_full_seconds=LEAST_IN_FULL_SECONDS)


def extent_for(mutant: Mutant, whole: Extent) -> Extent:
    """What of the full verification may find such a change. What is left out can only let a mutant pass."""
    if mutant.edit.operator in INDEXING:
        return replace(whole, launches=FEWER)
    launches = whole.launches if mutant.edit.operator == "state" else FEWER
    return replace(whole, long_products=0, large_offsets=False, launches=launches)


class GpuBench(Bench):
    """One of a GPU's processes."""

    device = GPU
    extent = ON_GPU

    def __init__(self, baselines: Baselines, spec: str, room: Room, *, only_trials: bool = False) -> None:
        super().__init__(baselines, spec)
        self._room, self._only_trials = room, only_trials

    def judged(self, mutant: Mutant, baseline: Baseline) -> tuple[Judged, str]:
        """Equivalent where the code is the same for both widths of index; else verified with those that differ."""
        first, other = INDEX_BITS
        assert mutant.subject.problem.index_bits == first
        paths, path = list[tuple[int, str]](), self.compiled(mutant, first)
        if Path(path).read_bytes() != baseline.quick_code:
            paths.append((first, path))
            result = self.tried(mutant, path, baseline)
            if result.outcome is not Outcome.OK:
                return Judged.KILLED, f"{result.outcome.value}: {result.detail}"
        if mutant.edit.operator in INDEXING or not paths:
            path = self.compiled(mutant, other)
            if Path(path).read_bytes() != self.baselines.code_of_width(mutant.subject, other):
                paths.append((other, path))
        if not paths:
            return Judged.EQUIVALENT, SAME
        if because := argument(mutant):
            return Judged.EQUIVALENT, because
        if self._only_trials:
            return Judged.SURVIVED, "a trial"
        return self._verified_with_room(mutant, tuple(paths), baseline)

    def _verified_with_room(self, mutant: Mutant, paths: Paths, baseline: Baseline) -> tuple[Judged, str]:
        extent = extent_for(mutant, self.extent)
        with self._room.taken(most_bytes(mutant.subject, extent, self._room.memory_bytes)):
            return self.verified_in_full(mutant, paths, extent, baseline)
