"""Export of trials as text: the fastest kernels, and other trials that an exported module or library needs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from sqlalchemy import select

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.export.kernel_sets.intermediate_winners import rows_between
from tsm2_tune.tuner.export.measured_times import trials_elsewhere
from tsm2_tune.tuner.results import records
from tsm2_tune.tuner.results.best_view import Among, BestRow, ties
from tsm2_tune.tuner.results.merge.reader import parts_of
from tsm2_tune.tuner.results.merge.serializer import Entry, has_line, text_of
from tsm2_tune.tuner.results.merge.union import KERNEL, Part, TrialKey, Tried, key_of
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache

KEYED = tuple(
    schema.trial.c[name] for name in ("config", "basis", "first_basis", *KERNEL)
)  # the columns that key_of needs
Place = tuple[str, str, Problem]  # device, L2 state, problem


def trials_text(store: Store, winners: Sequence[BestRow]) -> str:
    """Return the text of all trials that an export of these winners (fastest kernels) needs.

    It contains the trials of the winners, of kernels that tie with the winners, and of kernels for shapes between the
    winners' shapes. It also contains these kernels' trials at other shapes, and cuBLAS's times at the shapes of the
    winners and at other shapes. Only the winners' shapes count as tuned in the text: of other tuned shapes the text
    lacks most trials. Raise StoreError if a row is corrupt.
    """
    known = [*winners, *rows_between(store, winners), *_beside_vendor(store, winners, between=True)]
    tuned = frozenset(map(_place, winners))
    others = [row for row in _beside_vendor(store, winners, between=False) if _place(row) not in tuned]
    places = set(map(_place, (*known, *others)))
    wanted = {row.trial_id for row in (*known, *others)}
    for kind in _kinds(known):
        wanted.update(one for one, problem in _ties(store, kind) if (kind.device, kind.cache, problem) in places)
    for _, elsewhere in trials_elsewhere(store, store.trials([row.trial_id for row in known])):
        wanted.update(one.id for one in elsewhere)
    of_vendor = frozenset((device, problem) for device, _, problem in places)
    return text_of(_entries(store, wanted, of_vendor, tuned))


def _place(row: BestRow) -> Place:
    return row.device, row.cache, row.problem


def _kinds(rows: Sequence[BestRow]) -> list[BestRow]:
    """Return one row of each combination of device, L2 state, element type and op, for batches another one."""
    found = {(row.device, row.cache, row.dtype, row.op, row.problem.is_batched): row for row in rows}
    return [found[key] for key in sorted(found)]


def _beside_vendor(store: Store, winners: Sequence[BestRow], *, between: bool) -> Iterator[BestRow]:
    """Yield the fastest trial at each shape at which cuBLAS was also timed.

    The shapes are tuned shapes, or untuned shapes if `between` is true. They have the winners' types, ops and states.
    """
    for kind in _kinds(winners):
        rows = store.best(device=kind.device, cache=Cache(kind.cache), alike=kind.problem, between=between)
        yield from (row for row in rows if row.cublas_us is not None)


def _ties(store: Store, kind: BestRow) -> Iterator[tuple[int, Problem]]:
    """Yield (trial id, problem) of each winner, and of each trial that ties with a winner.

    The trials have the same device, L2 state, element type and op as `kind`.
    """
    view = ties(is_alike=True).c
    query = select(view.trial_id, *(view[column.name] for column in records.PROBLEM_KEY))
    values = Among((kind.device,), kind.problem, is_alike=True).values
    for row in store.database.rows(query.where(view.cache == kind.cache), values):
        yield row["trial_id"], records.problem_of({**row, "id": row["trial_id"]})


def _places(store: Store, trials: Collection[int]) -> dict[tuple[str, Problem], list[TrialKey]]:
    """Return the keys of these trials, grouped: (device, problem) -> keys."""
    trial = schema.trial.c
    query = select(trial.id, trial.device_name, *KEYED, *records.PROBLEM_KEY).join(schema.problem)
    found = defaultdict[tuple[str, Problem], list[TrialKey]](list)
    for row in store.database.rows(query.order_by(trial.id)):
        if row["id"] in trials:
            place = (records.value_of(row, trial.device_name), records.problem_of(row))
            found[place].append(key_of({**row, "config": records.value_of(row, trial.config)}))
    return found


def _entries(
    store: Store, wanted: set[int], of_vendor: frozenset[tuple[str, Problem]], tuned: frozenset[Place]
) -> Iterator[Entry]:
    """Yield the stored facts of the trials with the ids in `wanted`. Only the places in `tuned` count as tuned.

    The vendor's times are included only for the pairs of a device and a problem in `of_vendor`.
    """
    keys = _places(store, wanted)
    for (device, problem), part in parts_of(store.database, sorted(keys)):
        trials = dict[TrialKey, Tried]()
        for key in keys[device, problem]:
            tried = part.trials[key]
            if has_line(tried):
                is_between = (device, tried.values["cache"], problem) not in tuned
                trials[key] = replace(tried, values={**tried.values, "is_between": int(is_between)})
        last = _last(part, trials) if (device, problem) in of_vendor else frozenset()
        rounds = [one if one.final in last else replace(one, vendor={}) for one in part.rounds]
        yield problem, Part(trials, rounds)


def _last(part: Part, trials: Collection[TrialKey]) -> frozenset[str]:
    """Return the names of the finals (repeated timings) that contain a trial's last time in some L2 state."""
    found = dict[tuple[TrialKey, str], str]()
    for one in part.rounds:
        found |= {(key, timed.values["cache"]): one.final for key, timed in one.timed.items() if key in trials}
    return frozenset(found.values())
