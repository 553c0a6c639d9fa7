"""`confirm`: time the fastest stored kernels again."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike

from tsm2_tune.api.parse import (
    DEFAULT_COMPILE_LIMIT_SECONDS,
    DEFAULT_DATABASE,
    DEFAULT_RUN_LIMIT_SECONDS,
    ElementTypes,
    Texts,
    check_callable,
    file_name,
)
from tsm2_tune.api.plan import spec_of
from tsm2_tune.api.products import Products
from tsm2_tune.api.selection import Selection, selected
from tsm2_tune.api.tune import options_of
from tsm2_tune.errors import DeviceError
from tsm2_tune.tuner.device import target
from tsm2_tune.tuner.device.lock import device_lock
from tsm2_tune.tuner.results.storage.addresses import place_of
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
    """Return the selected device. Raise DeviceError if it is not in this machine."""
    asked = selection.device
    if asked is None or asked == target.HOST or target.is_ordinal(asked):
        return target.find_target(spec_of(asked))
    name = selection.device_in(store)
    spec = target.spec_of(name or asked)
    if spec is None:
        raise DeviceError(f"the device {name!r} is not in this machine: run this on the machine that has it")
    return target.find_target(spec)
