"""`confirm`: time the fastest stored kernels again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from os import PathLike

from tsm2_tune.api.parse import (
    DEFAULT_DATABASE,
    ElementTypes,
    Texts,
    check_callable,
    file_name,
)
from tsm2_tune.api.plan import spec_of
from tsm2_tune.api.products import Products
from tsm2_tune.api.selection import Selection, selected
from tsm2_tune.errors import DeviceError
from tsm2_tune.tuner.device import target
from tsm2_tune.tuner.device.lock import device_lock
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.storage.addresses import place_of
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache, Final, Measurement, Outcome
from tsm2_tune.tuner.runs.events import Confirmed, Event, FinalFailure, FinalStored, Noted, WinnerVerified
from tsm2_tune.tuner.runs.signals import interruptible
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.session import counted, problem_session

CHANGED = "this version or its compiler changed the kernel's code: tune again"


def confirm(
    db: str | PathLike[str] = DEFAULT_DATABASE, *, device: int | str | None = None, products: Products | None = None,
    dtype: ElementTypes | None = None, op: Texts | None = None, layout: str | None = None, cache: str | None = None,
    wait: bool = False, on_event: Callable[[Event], object] | None = None,
) -> tuple[Confirmed, ...]:  # fmt: skip
    """Time the fastest kernels of stored problems again, in a new process. `tsm2-tune confirm` does this.

    For each problem the fastest few kernels are compiled, verified in full and timed in alternation. cuBLAS is timed,
    too, if the search timed it. The new times are stored in addition to the earlier ones. A kernel with a wrong
    result can no longer win.

    - `db`, `device`, `products`, `dtype`, `op`, `layout`, `cache`: the winners to confirm, as for `best`. The device
      must be in this machine. The default is GPU 0, or this host if there is no GPU.
    - `wait`: whether to wait until another run on the device ends.
    - `on_event`: called in this thread with each event, after its results are stored. An exception from it ends the
      run.

    The result is empty if the database has no winner that these arguments select. Raise DeviceError if the device is
    not in this machine or is in use. Raise StoreError for a database that is missing or cannot be used. Raise other
    errors like `tune`.
    """
    check_callable("on_event", on_event)
    tell: Callable[[Event], object] = on_event or (lambda event: None)
    selection = selected(device, products, dtype, op, cache, layout)
    found: list[Confirmed] = []
    place = file_name("db", db)
    place_of(place)  # raises if it can only be read
    with Store.open(place, create=False) as store, interruptible():
        here = _target(selection, store)
        every = store.best(device=here.identity.name, cache=selection.cache)
        rows = [row for row in every if row.problem in selection]
        if not rows:
            return ()
        with device_lock(here, (lambda sentence: tell(Noted(sentence))) if wait else None):
            for state in Cache:
                of_state = tuple(row for row in rows if row.cache == state.value)
                if not of_state:
                    continue
                with Tuner(here, Options(vendor=True, cache=state)) as tuner:
                    for event in confirmations(of_state, tuner, store):
                        if isinstance(event, Confirmed):
                            found.append(event)
                        tell(event)
    return tuple(found)


def _target(selection: Selection, store: Store) -> target.Target:
    """Return the selected device. Raise DeviceError if it is not in this machine."""
    asked = selection.device
    if asked is None or asked == target.HOST or target.is_ordinal(asked):
        return target.find_target(spec_of(asked))
    name = selection.device_in(store)
    spec = target.spec_of(name or asked)
    if spec is None:
        raise DeviceError(f"the device {name!r} is not in this machine: run this on the machine that has it")
    return target.find_target(spec)


def confirmations(rows: tuple[BestRow, ...], tuner: Tuner, store: Store) -> Iterator[Event]:
    """Verify and time the fastest kernels of tuned problems again. Yield each event after it is stored.

    Each row is the winner (fastest kernel) of a problem on the tuner's device and in its L2 state. The problem's
    other fastest kernels are verified and timed again too. The last event of each problem is Confirmed.
    """
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    with store.leases(tuner.target.identity.name) as leases:
        for row in rows:
            if leases.take(row.problem):
                yield from _events(row, tuner, store, started_at)
                leases.release(row.problem)
            else:
                yield Confirmed(row, row, None, (), f"it is left to {leases.holder(row.problem)}, which is tuning it")


def _events(row: BestRow, tuner: Tuner, store: Store, started_at: str) -> Iterator[Event]:
    """Verify and time the fastest kernels of the problem of `row`, the previous winner, again."""
    session = problem_session(row.problem, counted((), (row.family,)), tuner, store, started_at)
    if row.config not in {one.config.text for one in session.prior.contenders}:
        yield Confirmed(row, row, None, (), CHANGED)
        return
    again: Measurement | None = None
    wrong, trouble = list[WinnerVerified](), ""
    for event in session.finals(tuner, {row.config}, again=True):
        if isinstance(event, FinalStored):
            again = _measured(row, event.final, tuner.cache) or again
        elif isinstance(event, FinalFailure) or event.outcome is Outcome.INTERRUPTED:
            trouble = event.detail
        elif event.outcome is not Outcome.OK:
            wrong.append(event)
        yield event
    yield Confirmed(row, session.winner(), again, tuple(wrong), trouble)


def _measured(row: BestRow, final: Final, cache: Cache) -> Measurement | None:
    """Return the previous winner's measurement in the L2 state; None if it was not timed in it."""
    times = (one for config, one in final.measurements if config.text == row.config)
    return next((one for one in times if one.cache is cache), None)
