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
)  # columns that distinguish superseded trials


def basis(toolkit: str, flags: str, cache: Cache, extra_digest: str = "") -> str:
    """Return the digest of what makes all trials on a device incomparable with new ones when it changes.

    By the compiler's version and flags, as a run has them: where the compiler lies plays no part. `extra_digest` is
    of whatever else decides the binary, as Toolchain has it: "" on a GPU. Nor is a kernel that is made otherwise now
    a part of it: that is told for each trial, by its code.
    """
    return hashlib.sha256(json.dumps([toolkit, flags, extra_digest, cache.value]).encode()).hexdigest()


def tools(toolkit: str, flags: str, driver: str, extra_digest: str = "") -> str:
    """Return the digest of the tools that may make a kernel hang or fault, without the state of the L2."""
    return hashlib.sha256(json.dumps([toolkit, flags, driver, extra_digest]).encode()).hexdigest()


def superseded_basis(row: Row) -> str:
    """Return what the trial in a row of `trial` has in the place of its basis when it is superseded."""
    return hashlib.sha256(json.dumps([row[name] for name in OF_SUPERSEDED]).encode()).hexdigest()
