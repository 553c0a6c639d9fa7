"""Kernels that are the fastest at no tuned shape, but are predicted to be the fastest between tuned shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from tsm2_tune.errors import InputError
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.intermediate_shapes import shapes_between
from tsm2_tune.runtime.choice.choose import core_record
from tsm2_tune.tuner.export.gathered import gathered
from tsm2_tune.tuner.export.kernel_sets.losses import Comparable, fastest
from tsm2_tune.tuner.packs.core_pack import DeviceRates, MeasuredKernel, core_of
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.loader import commands_that_verify
from tsm2_tune.tuner.results.records import is_of_this_version
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache, count_text
from tsm2_tune.tuner.results.trial_summaries import CurrentTrial

Floats = np.ndarray[Any, Any]

MEASURED = 4  # least number of tuned shapes at which a kernel must have been timed
MOST_PROBES = 96  # number of shapes between tuned shapes at which times are predicted
GAIN = 1.03  # least predicted speedup at some shape for which a kernel is added


def of_single_products(rows: Sequence[BestRow], tell: Callable[[str], None]) -> list[BestRow]:
    """Return the rows (fastest kernels) of single products. Call `tell` with a sentence if batches are left out.

    Raise InputError if all rows are batches.
    """
    found = [row for row in rows if not row.problem.is_batched]
    if rows and not found:
        raise InputError(
            f"only batches match, such as {rows[0].problem.text}, and --within compares kernels of single products:"
            " name another shape, or export without --within"
        )
    if count := len(rows) - len(found):
        tell(
            f"left out: {count} batch{'es' if count > 1 else ''} of products, since --within compares kernels of"
            " single products"
        )
    return found


def verified_in_full(store: Store, tell: Callable[[str], None], rows: Sequence[BestRow]) -> Sequence[BestRow]:
    """Return the rows (fastest kernels) that were verified in full. Call `tell` with a sentence if rows are excluded.

    Return all rows if none was verified in full: the export then raises an error with advice.
    """
    found = [row for row in rows if row.verified_in_full]
    if not found or len(found) == len(rows):
        return rows
    missing = [row for row in rows if not row.verified_in_full]
    first, count = missing[0], len(missing)
    tell(
        f"left out: {count_text(count, 'winner')}, not verified in full,"
        f" {'such as ' if count > 1 else ''}{first.config} for {first.problem.text} on {first.device}:"
        f" to verify {'them' if count > 1 else 'it'}, run {commands_that_verify(str(store.path), missing)}"
    )
    return found


def exportable(
    store: Store, rows: Sequence[BestRow], tell: Callable[[str], None], *, between: bool = True
) -> Sequence[BestRow]:
    """Return the rows verified in full and, if `between`, rows of kernels for shapes between theirs."""
    found = verified_in_full(store, tell, rows)
    return with_between(store, tell, found) if between else found


def with_between(store: Store, tell: Callable[[str], None], winners: Sequence[BestRow]) -> list[BestRow]:
    """Return the winners, then rows of the kernels that `rows_between` adds for shapes between the winners' shapes.

    The added kernels depend on all stored winners of the same element types and ops, not only on `winners`. Kernels
    that were not verified in full are excluded, and `tell` is called with the number of excluded kernels.
    """
    every = list(winners)
    kinds = {(row.device, row.cache, row.dtype, row.op) for row in every}
    given = {(row.device, row.cache, row.problem) for row in every}
    for cache in sorted({row.cache for row in winners}):
        known = {(device, problem) for device, state, problem in given if state == cache}
        every += store.best(cache=Cache(cache), omit=known)
    alike = [row for row in every if (row.device, row.cache, row.dtype, row.op) in kinds]
    wanted = [row for row in rows_between(store, alike) if (row.device, row.cache, row.problem) in given]
    verified = [row for row in wanted if row.verified_in_full]
    if missing := [row for row in wanted if not row.verified_in_full]:
        device = missing[0].device
        of_each_kind = {(row.device, row.cache, row.dtype, row.op): row for row in missing}
        commands = commands_that_verify(str(store.path), [*of_each_kind.values()])
        tell(
            f"left out: {count_text(len(missing), 'kernel')} that may be faster between the tuned"
            f" shapes on {device}, not verified in full (winners are used there): to verify them, run {commands}"
        )
    return [*winners, *verified]


def rows_between(store: Store, winners: Sequence[BestRow]) -> list[BestRow]:
    """Return kernels that are predicted to be faster than all winners at some shape between the tuned shapes.

    A kernel is added if it is predicted to be at least GAIN times faster at some shape than all winners and than the
    kernels added before it. Kernels with a larger total gain are added first. The row of an added kernel is its trial
    at the tuned shape at which its time is nearest to the winner's time. No kernel is added for batches, on the CPU,
    or on a GPU with an unknown number of multiprocessors.
    """
    single = [row for row in winners if row.compute_capability and not (row.stale or row.problem.is_batched)]
    ordered = sorted(single, key=lambda row: (row.device, row.cache, row.dtype, row.op, row.problem))
    groups = []
    for _, same in groupby(ordered, key=lambda row: (row.device, row.cache, row.dtype, row.op)):
        group = tuple(same)
        between = shapes_between([row.problem for row in group], MOST_PROBES)
        others = store.rows([trial.id for trial in _others(store, group)]) if between else []
        if others:
            groups.append((group, others, between))
    rows = [row for group, others, _ in groups for row in (*group, *others)]
    found, rates = gathered(store, rows, store.trials([row.trial_id for row in rows]), vendor=False)
    kernels = {one.row.trial_id: one.measured for one in found}
    wanted = []
    for group, others, between in groups:
        of_device, own = rates.get(group[0].device), [kernels[row.trial_id] for row in (*group, *others)]
        if of_device is not None and all(one.tiling is not None for one in own):
            times, _ = expected(own, between, of_device)
            least = times[: len(group)].min(axis=0)
            wanted += [others[place] for place in _gaining(times[len(group) :], least)]
    return wanted


def _others(store: Store, winners: Sequence[BestRow]) -> list[CurrentTrial]:
    """Return one trial of each kernel that won no shape and was timed at MEASURED or more of the winners' shapes.

    The trial is from the shape at which the kernel's time is nearest to the winner's time. All winners have the same
    device, L2 state, element type and op.
    """
    best_us, won = {row.problem: row.median_us for row in winners}, {row.trial_id for row in winners}
    measured: dict[str, list[CurrentTrial]] = {}
    for one in store.current(winners[0].device, alike=winners[0].problem):
        known = one.resources is not None and one.resources.blocks_per_sm
        if (
            known
            and one.problem in best_us
            and one.cache == winners[0].cache
            and is_of_this_version(one.config, one.problem)
        ):
            measured.setdefault(one.config.kernel_text, []).append(one)
    found, counts = [], Comparable()
    for _, trials in sorted(measured.items()):
        if len(trials) >= MEASURED and won.isdisjoint(one.id for one in trials):
            for at in fastest(filter(counts, trials)).values():
                if len(at) >= MEASURED:
                    found.append(
                        min(at.values(), key=lambda one: ((one.median_us or 0) / best_us[one.problem], one.id))
                    )
    return found


def expected(
    kernels: Sequence[MeasuredKernel], problems: Sequence[Problem], rates: DeviceRates
) -> tuple[Floats, Floats]:
    """Return two arrays with a row for each kernel and a column for each shape: predicted times and thread blocks.

    The first array contains the predicted time in microseconds of the kernel with its best launch at the shape. The
    second array contains the number of thread blocks of this launch. No kernel's `tiling` may be None.
    """
    core = core_of(kernels, {kernels[0].winner.device: rates})
    times, blocks = (np.empty((len(kernels), len(problems))) for _ in range(2))
    for place, p in enumerate(problems):
        record = core_record(p.dtype_name, (p.m, p.n, p.k), 3 * ((0, 0),), (False, False), is_gram=False)
        for at, kernel in enumerate(kernels):
            times[at, place], rows, splits = core.predict(at, record)
            blocks[at, place] = kernel.winner.launch.resized(rows, splits).blocks(p.m, p.n)
    return times, blocks


def _gaining(times: Floats, least: Floats) -> Iterator[int]:
    """Yield the row indices of kernels to add, the kernel with the largest total gain first.

    `times` contains the kernels' predicted times. `least` contains the least predicted time of the winners at each
    shape. The iteration ends if no remaining kernel is, at any shape, GAIN times faster than the winners and than the
    kernels that were already added.
    """
    candidates = dict(enumerate(times))
    while True:
        gains = {place: np.log(np.maximum(least / own, 1.0)) for place, own in candidates.items()}
        enough = [place for place, gain in gains.items() if gain.max() >= np.log(GAIN)]
        if not enough:
            return
        place = max(enough, key=lambda one: (float(gains[one].sum()), -one))
        yield place
        least = np.minimum(least, candidates.pop(place))
