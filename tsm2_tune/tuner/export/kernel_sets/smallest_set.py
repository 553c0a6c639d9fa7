"""Choice of the fewest kernels so that no shape's time exceeds the shape's best time by more than a given share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby

from tsm2_tune.errors import TuneError
from tsm2_tune.generator.scalars import plain
from tsm2_tune.tuner.device.target import find_target, spec_of
from tsm2_tune.tuner.export.kernel_sets.losses import Selected, Tuned, refuse_stale
from tsm2_tune.tuner.export.kernel_sets.pair_timing import Bench, Narrowed, Search
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache
from tsm2_tune.tuner.runs.events import Noted, ProblemEvent
from tsm2_tune.tuner.search.options import Options


@dataclass(frozen=True, slots=True)
@plain
class ChoiceStarted:
    """Event: measurements begin, after which the kernels of one device, element type and op are chosen."""

    device: str  # device name
    dtype: str  # element type
    op: str  # storage orders of the matrices

    def __str__(self) -> str:
        return f"{self.dtype} {self.op}: looking for the fewest kernels"


@dataclass(frozen=True, slots=True)
@plain
class KernelsChosen:
    """Event: the kernels for the shapes of one device, element type and op are chosen."""

    selected: Selected  # the chosen kernels and their losses
    unmeasured_because: str  # why nothing could be measured; "" if it could

    def __str__(self) -> str:
        kernels, shapes = len(set(self.selected.kernels)), len(self.selected.rows)
        return f"{self.selected.dtype} {self.selected.op}: kernels: {kernels}, for shapes: {shapes}"


ExportEvent = ProblemEvent | Narrowed | ChoiceStarted | KernelsChosen | Noted


@dataclass(frozen=True, slots=True)
class Fewest:
    """Function object that replaces the fastest kernels by fewer kernels.

    Each replacement's time exceeds the fastest kernel's time by at most the share `within`.
    """

    store: Store
    within: float
    options: Options
    measures: bool
    wait: Callable[[str], object] | None
    tell: Callable[[ExportEvent], object]

    def __call__(self, winners: Sequence[BestRow]) -> list[BestRow]:
        """Return, for each winner in order, the trial of the kernel that is chosen for its shape.

        Raise InputError if the code of a winner's kernel has changed, or if some shape has no kernel that is fast
        enough.
        """
        for row in winners:
            refuse_stale(row, self.store)
        found: list[KernelsChosen] = []
        ordered = sorted(winners, key=lambda row: (row.device, row.cache, row.dtype, row.op))
        for (device, cache), of_device in groupby(ordered, key=lambda row: (row.device, Cache(row.cache))):
            with self._bench(device, cache) as (bench, why):
                for _, group in groupby(of_device, key=lambda row: (row.dtype, row.op)):
                    found.append(self._chosen(device, list(group), bench, why))
        for chosen in found:
            self.tell(chosen)
        rows = {(row.device, row.problem): row for chosen in found for row in chosen.selected.rows}
        return [rows[row.device, row.problem] for row in winners]

    @contextmanager
    def _bench(self, device: str, cache: Cache) -> Iterator[tuple[Bench | None, str]]:
        """Context manager that returns a Bench for the device and the L2 state, and the text "".

        If nothing can be measured, it returns None and a text with the reason.
        """
        target, why = None, "the device is not here" if self.measures else "--no-measure"
        try:
            spec = spec_of(device) if self.measures else None
            target = None if spec is None else find_target(spec)
        except TuneError as error:  # for example ToolMissing
            why = str(error)
        if target is None:
            yield None, why
        else:
            with Bench(target, replace(self.options, cache=cache), self.store, self.wait) as bench:
                yield bench, ""

    def _chosen(self, device: str, winners: Sequence[BestRow], bench: Bench | None, why: str) -> KernelsChosen:
        problems, cache = [row.problem for row in winners], Cache(winners[0].cache)
        tuned = Tuned(self.store, device, problems, self.within, cache)
        tuned.keep_to(bench.basis if bench is not None else None)
        if bench is not None and not tuned.winners_count():
            bench, why = None, "another compiler or version than this machine's compiled the winners"
            tuned.keep_to(None)
        if bench is None:
            return KernelsChosen(tuned.selected(), why)
        search = Search(tuned, bench)
        self.tell(ChoiceStarted(device, winners[0].dtype, winners[0].op))
        for event in search.events():
            self.tell(event)
        selected = tuned.selected()
        is_proven = len({*selected.kernels}) == search.least
        return KernelsChosen(replace(selected, is_proven=is_proven), why)
