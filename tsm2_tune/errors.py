"""The errors that a user can cause, one class for each kind of remedy.

Every message is one sentence that names the thing, the value, the bound and the next step.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

SHOWN = 60  # characters of a value in a message


def shown(value: object) -> str:
    """Return the value's repr, cut to SHOWN characters."""
    try:
        text = repr(value[:SHOWN] if isinstance(value, str | bytes) else value)
    except ValueError:  # Python refuses to print an int of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= 2 * SHOWN else f"{text[:SHOWN]}..."


def nearest_name(name: object, known: Iterable[str]) -> str:
    """Return the known name that a misspelt one resembles most, or "" if none is near."""
    return next(iter(get_close_matches(str(name).lower(), list(known), 1)), "")


class TuneError(Exception):
    """Base of every error that a user can cause. Its text is written for the user."""


class InputError(TuneError):
    """The arguments are wrong, or ask for the impossible: change them."""


class DeviceError(TuneError):
    """The device asked for does not respond here: choose another."""


class ToolMissing(TuneError):
    """A compiler or a package that the work needs is not installed."""


class WorkerError(TuneError):
    """The device, or the process that uses it, failed in a way that no kernel explains: see what else runs there."""


class StoreError(TuneError):
    """The database cannot be used: it is another program's file, damaged, or of a newer version."""
