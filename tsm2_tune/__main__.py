"""Entry point of `tsm2-tune` and `python -m tsm2_tune`. Ctrl-C prints no traceback, even during imports."""

import io
import os
import sys
from contextlib import suppress


def main() -> None:
    """Run the command line. Characters that the encoding of standard output lacks are printed as Python escapes."""
    _open_streams()
    if os.environ.get("TSM2_TUNE_DEBUG"):
        import logging

        logging.basicConfig(format="%(name)s: %(message)s")
        logging.getLogger("tsm2_tune").setLevel(logging.DEBUG)
    if isinstance(sys.stdout, io.TextIOWrapper):  # Python already does this for standard error
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.unraisablehook = _ignored
    try:
        from tsm2_tune.cli import main as command

        command()
    except KeyboardInterrupt:
        sys.exit(130)  # the exit status that shells use for Ctrl-C
    finally:
        _flush()


def _ignored(swallowed: "sys.UnraisableHookArgs") -> None:
    """Print an exception that a destructor raised, as Python does, unless it is KeyboardInterrupt."""
    if not isinstance(swallowed.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(swallowed)


def _open_streams() -> None:
    """Replace standard streams that the caller closed by the null device.

    Otherwise the next opened file would get the file descriptor of the closed stream.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, which is the closed stream's
            os.set_inheritable(number, True)  # so that child processes do not reuse the descriptor
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w"))


def _flush() -> None:
    """Flush standard output. Close it if that fails: Python would try again at exit, and change the exit status."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            sys.stdout.close()
    except (AttributeError, ValueError):  # there is no standard output, or it is closed
        pass


if __name__ == "__main__":
    main()
