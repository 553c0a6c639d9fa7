"""Confirm stored winners by repeating their finals."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike

from tsm2_tune.api.parse import (
    DEFAULT_COMPILE_LIMIT_SECONDS,
    DEFAULT_DATABASE,
    DEFAULT_RUN_LIMIT_SECONDS,
    ElementTypes,
    Products,
    Texts,
    check_callable,
    file_name,
)
from tsm2_tune.api.plan import spec_of
from tsm2_tune.api.selection import Selection, selected
from tsm2_tune.api.tune import options_of
from tsm2_tune.errors import DeviceError
from tsm2_tune.tuner.device import target
from tsm2_tune.tuner.device.lock import device_lock
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache
from tsm2_tune.tuner.runs.events import Confirmed, Event, Noted
from tsm2_tune.tuner.runs.signals import interruptible
from tsm2_tune.tuner.search import confirm as finals
from tsm2_tune.tuner.search.loop import Tuner


def confirm(
    db: str | PathLike[str] = DEFAULT_DATABASE, *, device: int | str | None = None, products: Products | None = None,
    dtype: ElementTypes | None = None, op: Texts | None = None, layout: str | None = None, cache: str | None = None,
    wait: bool = False, on_event: Callable[[Event], object] | None = None,
) -> tuple[Confirmed, ...]:  # fmt: skip
    """Repeat the finals of stored winners, in a new process on this device. `tsm2-tune confirm` does this.

    The finalists, the fastest few, are compiled, verified in full, and timed in turns, with cuBLAS if the earlier
    final had it. The new times are stored as the problem's next rounds; earlier ones stay. A kernel that gives a
    wrong result now no longer competes.

    - `db`, `device`, `products`, `dtype`, `op`, `layout`, `cache`: which winners, as for `best`. The device must be
      in this machine; the default is GPU 0, or this host.
    - `wait`: whether to wait for another run on the device.
    - `on_event`: called in this thread with each event, after its facts are stored. An exception from it ends the
      run.

    The result is empty if the database has no such winner; the command refuses that. Raise DeviceError if the device
    is not here or is in use. Raise StoreError for a database that is missing or cannot be used, and other errors as
    `tune`.
    """
    check_callable("on_event", on_event)
    tell: Callable[[Event], object] = on_event or (lambda event: None)
    selection = selected(device, products, dtype, op, cache, layout)
    found: list[Confirmed] = []
    with Store.open(file_name("db", db), create=False) as store, interruptible():
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
                options = options_of(
                    budget=None, max_trials=None, compile_limit=DEFAULT_COMPILE_LIMIT_SECONDS,
                    run_limit=DEFAULT_RUN_LIMIT_SECONDS, cache=state.value, retry=None, seed=0, vendor=True,
                )  # fmt: skip
                with Tuner(here, options) as tuner:
                    for event in finals.confirm(of_state, tuner, store):
                        if isinstance(event, Confirmed):
                            found.append(event)
                        tell(event)
    return tuple(found)


def _target(selection: Selection, store: Store) -> target.Target:
    """Return the selected device, which must be in this machine."""
    asked = selection.device
    if asked is None or asked == target.HOST or target.is_ordinal(asked):
        return target.find_target(spec_of(asked))
    name = selection.device_in(store)
    spec = target.spec_of(name or asked)
    if spec is None:
        raise DeviceError(f"the device {name!r} is not in this machine: run this where it is")
    return target.find_target(spec)
