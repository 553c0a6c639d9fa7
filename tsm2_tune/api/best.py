"""`best`: read the winners from a database."""

from __future__ import annotations

from os import PathLike

from tsm2_tune.api.parse import DEFAULT_DATABASE, ElementTypes, Texts, file_name
from tsm2_tune.api.products import Products
from tsm2_tune.api.selection import selected
from tsm2_tune.tuner.results.best_view import BestRow
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
    """Return the fastest kernel of each problem in a database. `tsm2-tune best` shows them.

    - `db`: the database.
    - `device`: select winners on "cpu", on the GPU with this CUDA ordinal, or on the device with this name. A part of
      the name suffices, such as "h100".
    - `products`, `dtype`, `op`, `layout`: select these shapes or problems, element types and ops, as for `problems`.
      `layout` without `op` selects by the layout of C.
    - `cache`: select winners that were timed with this state of the L2 cache: "dirty", "clean" or "warm". The default
      is, for each problem, the first of these states with a winner.

    The rows are ordered by device, op, element type and shape. The result is empty if the database has no winner that
    these arguments select. Raise InputError for an invalid argument, and for a device that the database does not
    contain. Raise StoreError for a database that is missing or cannot be used.
    """
    selection = selected(device, products, dtype, op, cache, layout)
    with Store.open(file_name("db", db), create=False) as store:
        rows = store.best(device=selection.device_in(store), cache=selection.cache)
    return tuple(row for row in rows if row.problem in selection)
