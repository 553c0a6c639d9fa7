"""Exceptions for errors that a user can cause. There is one class for each kind of remedy.

Every message is one sentence with the argument, its value, its limit and what to do.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterable
from difflib import get_close_matches

SHOWN = 60  # characters of a value at each end that an error message shows


def shown(value: object) -> str:
    """Return the repr of a value for an error message, shortened if it is long."""
    if isinstance(value, str) and len(value) > 2 * SHOWN:
        return repr(f"{value[:SHOWN]}...{value[-SHOWN:]}")
    try:
        text = repr(value[:SHOWN] if isinstance(value, bytes) else value)
    except ValueError:  # Python refuses to print an int of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= 2 * SHOWN else f"{text[:SHOWN]}..."


EMULATION = "--device cpu emulates kernels where times do not matter"


def nearest_name(name: object, known: Iterable[str]) -> str:
    """Return the known name that is most similar to a misspelt name; "" if none is similar."""
    return next(iter(get_close_matches(str(name).lower(), list(known), 1)), "")


def pip_install(*packages: str) -> str:
    """Return the shell command that installs packages. It names the pip on PATH only if it is of this Python."""
    pip = shutil.which("pip") or ""
    is_own = bool(sys.executable) and os.path.dirname(pip) == os.path.dirname(sys.executable)
    return f"{'pip' if is_own else f'{sys.executable} -m pip'} install {shlex.join(packages)}"


class TuneError(Exception):
    """Base class of the errors that a user can cause. The message is written for the user."""


class InputError(TuneError):
    """An argument is invalid, or cannot be fulfilled. Change it."""


class DeviceError(TuneError):
    """The requested device does not respond or is in use. Choose another device."""


class ToolMissing(TuneError):
    """A required compiler or package is not installed. Install it."""


class WorkerError(TuneError):
    """The device, or the process that uses it, failed, but no tested kernel is the cause. Check the machine."""


class StoreError(TuneError):
    """The database cannot be used: it is damaged, another program's file, or from a newer version."""
