"""The basis of a trial: the facts, besides its kernel, on which its time and its outcome depend."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from tsm2_tune.tuner.results.trial import Cache

if TYPE_CHECKING:
    from tsm2_tune.tuner.results.validation import Row

OF_SUPERSEDED = (
    "basis",
    "source_digest",
    "rows_per_block",
    "splits",
    "stamp",
)  # columns that identify a superseded trial


def basis(toolkit: str, flags: str, cache: Cache, extra_digest: str = "") -> str:
    """Return the digest of the facts whose change makes all older trials on a device incomparable with new trials.

    These are the compiler's version and flags, not its path, and the state of the L2. `extra_digest` covers whatever
    else determines the binary, as in Toolchain; it is "" on a GPU. A kernel's code is no part of the basis: each
    trial has its own digest of it.
    """
    return hashlib.sha256(json.dumps([toolkit, flags, extra_digest, cache.value]).encode()).hexdigest()


def tools(toolkit: str, flags: str, driver: str, extra_digest: str = "") -> str:
    """Return the digest of the tools on which it depends whether a kernel hangs or faults."""
    return hashlib.sha256(json.dumps([toolkit, flags, driver, extra_digest]).encode()).hexdigest()


def superseded_basis(row: Row) -> str:
    """Return the value that replaces the basis in a row of `trial` when the trial is superseded."""
    return hashlib.sha256(json.dumps([row[name] for name in OF_SUPERSEDED]).encode()).hexdigest()
