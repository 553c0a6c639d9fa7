"""The basis of a trial: a SHA-256 digest of the compiler, its flags and the L2 cache state.

Only times of trials with the same basis are compared.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from tsm2_tune.tuner.results.trial import Cache

if TYPE_CHECKING:
    from tsm2_tune.tuner.results.domains import Row

OF_SUPERSEDED = (
    "basis",
    "source_digest",
    "rows_per_block",
    "splits",
    "stamp",
)  # columns that identify a superseded trial


def basis(toolkit: str, flags: str, cache: Cache, extra_digest: str = "") -> str:
    """Return the basis of a trial. `extra_digest` is Toolchain's digest of all else that determines the binary.

    The kernel's code is not included: each trial stores its own digest of the code.
    """
    return hashlib.sha256(json.dumps([toolkit, flags, extra_digest, cache.value]).encode()).hexdigest()


def tools(toolkit: str, flags: str, driver: str, extra_digest: str = "") -> str:
    """Return the digest of the compiler, its flags and the driver, with which a kernel that hung may work again."""
    return hashlib.sha256(json.dumps([toolkit, flags, driver, extra_digest]).encode()).hexdigest()


def superseded_basis(row: Row) -> str:
    """Return the new value of the column `basis` for a trial that is superseded: its kernel code has changed."""
    return hashlib.sha256(json.dumps([row[name] for name in OF_SUPERSEDED]).encode()).hexdigest()
