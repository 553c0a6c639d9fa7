"""How test files are imported: by each process in another order, and without a search for garbage."""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


@pytest.hookimpl(hookwrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Import the test files in another order in each process that collects all of them.

    A file that one process has compiled to bytecode is only read by the others. All that is imported stays, so that
    searches for garbage would find none.
    """
    gc.disable()
    number = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    if number and FOLDER in map(Path.absolute, map(Path, session.config.args)):
        files = sorted(FOLDER.rglob("test_*.py"))
        first = int(number) * len(files) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        for file in files[first:] + files[:first]:
            with suppress(Exception, pytest.skip.Exception):  # pytest reports the error when it collects the file
                importlib.import_module(".".join(file.relative_to(FOLDER.parent).with_suffix("").parts))
    yield
    gc.enable()
