"""Exported modules that several tests share, each of which gets them as they are after their import."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from tests.recording_driver import lent


@contextmanager
def fresh(module: ModuleType) -> Iterator[ModuleType]:
    """Lend the module, without what earlier calls left in it but its core. Undo what its borrower replaces of it."""
    for name, kept in vars(module).items():
        if name.islower() and not name.startswith("__") and name != "_module_core" and isinstance(kept, dict | list):
            kept.clear()
    with lent(module):
        yield module
