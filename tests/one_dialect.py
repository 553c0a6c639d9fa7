"""Statements that are compiled once a test run: each database that a test opens would compile its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy
from sqlalchemy import Dialect, Engine
from sqlalchemy.util import LRUCache

from tsm2_tune.tuner.results.storage import sqlite

COMPILED: LRUCache[Any, Any] = LRUCache(500)


def compile_once(setattr: Callable[[object, str, object], None]) -> None:
    """Have all files of databases share what statements are compiled to, from now on."""
    created, shared = sqlalchemy.create_engine, dict[type[Dialect], Dialect]()

    def create_engine(*arguments: Any, **options: Any) -> Engine:
        engine = created(*arguments, **options)
        engine.dialect = shared.setdefault(type(engine.dialect), engine.dialect)
        engine.update_execution_options(compiled_cache=COMPILED)
        return engine

    setattr(sqlite, "create_engine", create_engine)
