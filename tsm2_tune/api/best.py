"""The winners of a database."""

from __future__ import annotations

from os import PathLike

from tsm2_tune.api.parse import (
    DEFAULT_DATABASE,
    ElementTypes,
    Products,
    Texts,
    file_name,
)
from tsm2_tune.api.selection import selected
from tsm2_tune.tuner.results.records import BestRow
from tsm2_tune.tuner.results.store import Store


def best(
    db: str | PathLike[str] = DEFAULT_DATABASE,
    *,
    device: int | str | None = None,
    products: Products | None = None,
    dtype: ElementTypes | None = None,
    op: Texts | None = None,
    layout: str | None = None,
    cache: str | None = None,
) -> tuple[BestRow, ...]:
    """Return the winners in a database, by device, op, element type and shape. `tsm2-tune best` shows them.

    - `db`: the database.
    - `device`: only winners on "cpu", on a CUDA ordinal, or on the device with this stored name or part of it.
    - `products`, `dtype`, `op`, `layout`: only these shapes or problems, element types and ops, as for `problems`.
      `layout` without `op` selects by the layout of C.
    - `cache`: only winners in this state of the L2: "dirty", "clean" or "warm". The default is, for each problem, the
      first of these that it has.

    The result is empty if the database has no such winner; the command refuses that. Raise InputError for an invalid
    text, and for a device that the database does not have. Raise StoreError for a database that is missing or cannot
    be used.
    """
    selection = selected(device, products, dtype, op, cache, layout)
    with Store.open(file_name("db", db), create=False) as store:
        rows = store.best(device=selection.device_in(store), cache=selection.cache)
    return tuple(row for row in rows if row.problem in selection)
