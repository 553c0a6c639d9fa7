"""`report`: write an HTML page that shows a database's results."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path

from tsm2_tune.api.export import Exported
from tsm2_tune.api.parse import DEFAULT_DATABASE, ElementTypes, Texts, file_name
from tsm2_tune.api.products import Products
from tsm2_tune.api.selection import Selection, selected
from tsm2_tune.errors import InputError, ToolMissing, pip_install
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.scalars import plain_text
from tsm2_tune.tuner.results.storage.addresses import tune_first
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.written_files import refuse_database, refuse_unwritable, write

EXPORTED = "window.vegaEmbed = vegaEmbed;"  # makes the name of the JavaScript bundle global
Databases = str | PathLike[str] | Iterable[str | PathLike[str]]


def report(
    db: str | PathLike[str] = DEFAULT_DATABASE, *, output: str | PathLike[str] | None = None,
    compare: Databases = (), device: int | str | None = None, products: Products | None = None,
    dtype: ElementTypes | None = None, op: Texts | None = None, layout: str | None = None, cache: str | None = None,
    title: str = "", note: str = "",
) -> Exported:  # fmt: skip
    """Write a page with charts and tables of stored results, as a single HTML file. `tsm2-tune report` does this.

    - `db`, `device`, `products`, `dtype`, `op`, `layout`, `cache`: the results to show, as for `best`.
    - `output`: the name of the file. If it is None, write no file; the result contains the text.
    - `compare`: another database, or several, whose winners are shown for comparison.
    - `title`, `note`: the heading of the page, and a text below it.

    The page needs no network. Raise InputError for invalid arguments, for a selection without results, and for a file
    that cannot be written. Raise StoreError for a database that cannot be used. Raise ToolMissing if the package for
    charts is not installed.
    """
    name, others = file_name("db", db), _names(compare)
    path = None if output is None else file_name("output", output)
    if path is not None:
        for one in (name, *others):
            refuse_database(path, one)
        refuse_unwritable(path)  # before the slow reading
    title, note = _page_text("title", title), _page_text("note", note)
    selection = selected(device, products, dtype, op, cache, layout)
    bundle = _bundle()
    text = _page(selection, name, others, bundle, title, note)
    if path is None:
        return Exported((), text)
    write(text, path)
    return Exported((Path(path),), text)


def _page_text(name: str, value: str) -> str:
    """Return the text as a str. Raise InputError for another value, and for characters that HTML cannot contain."""
    text = plain_text(name, value)
    if re.search(r"[\x00-\x08\x0b-\x1f\ud800-\udfff]", text):
        raise InputError(f"{name} = {text!r}: it contains characters that HTML cannot represent")
    return text


def _names(compare: Databases) -> tuple[str, ...]:
    several = [compare] if isinstance(compare, str | PathLike) else compare
    try:
        return tuple(file_name("compare", one) for one in several)
    except TypeError:
        raise InputError(f"compare = {compare!r}: expected the name of a file, or several") from None


def _bundle() -> Callable[[str], str]:
    """Return the function that bundles the charts' JavaScript. Raise ToolMissing if its package is not installed."""
    try:
        from vl_convert import javascript_bundle
    except ImportError:
        raise ToolMissing(
            f"a report needs the package vl-convert-python: {pip_install('vl-convert-python')}"
        ) from None
    bundle: Callable[[str], str] = javascript_bundle
    return bundle


def _page(
    selection: Selection, name: str, others: Iterable[str], bundle: Callable[[str], str], title: str, note: str
) -> str:
    from tsm2_tune import __version__
    from tsm2_tune.html.contents import contents
    from tsm2_tune.html.page import page

    chosen = selection.__contains__
    with Store.open(name, create=False) as store:
        device = selection.device_in(store)
        own = contents(store, device, chosen, selection.cache)
        if not own.trials:
            every = [line for line in store.listing() if device in (None, line.device)]
            stored = [(Problem.parse(line.problem), line.cache) for line in every]
            selection.refuse_all("trial", stored, store.path)
            raise InputError(f"{store.path} has no trial yet: {tune_first(str(store.path))}")
    beside = []
    for other in others:
        with Store.open(other, create=False) as store:
            beside.append(contents(store, None, chosen, selection.cache))
    written_at = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    library = bundle(EXPORTED)
    return page(own, beside, written_at=written_at, version=__version__, library=library, title=title, note=note)
