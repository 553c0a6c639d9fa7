"""The errors that a user can cause, one class for each kind of remedy.

Every message is one sentence that names the thing, the value, the bound and the next step.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterable
from difflib import get_close_matches

SHOWN = 60  # characters of a value in a message


def shown(value: object) -> str:
    """Return the value's repr: the ends of a long text, the first characters of another long value."""
    if isinstance(value, str) and len(value) > 2 * SHOWN:
        return repr(f"{value[:SHOWN]}...{value[-SHOWN:]}")
    try:
        text = repr(value[:SHOWN] if isinstance(value, bytes) else value)
    except ValueError:  # Python refuses to print an int of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= 2 * SHOWN else f"{text[:SHOWN]}..."


def nearest_name(name: object, known: Iterable[str]) -> str:
    """Return the known name that a misspelt one resembles most, or "" if none is near."""
    return next(iter(get_close_matches(str(name).lower(), list(known), 1)), "")


def pip_install(*packages: str) -> str:
    """Return the command that installs packages for the Python that runs: the pip on PATH may be another one's."""
    pip = shutil.which("pip") or ""
    is_own = bool(sys.executable) and os.path.dirname(pip) == os.path.dirname(sys.executable)
    return f"{'pip' if is_own else f'{sys.executable} -m pip'} install {shlex.join(packages)}"


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
