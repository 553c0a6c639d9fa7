"""`tsm2-tune`, and `python -m tsm2_tune`: the command, with an early Ctrl-C as quiet as a late one."""

import io
import os
import sys
from contextlib import suppress


def main() -> None:
    """Run the command. What standard output's encoding lacks is written as it is escaped in Python."""
    _open_streams()
    if os.environ.get("TSM2_TUNE_DEBUG"):
        import logging

        logging.basicConfig(format="%(name)s: %(message)s")
        logging.getLogger("tsm2_tune").setLevel(logging.DEBUG)
    if isinstance(sys.stdout, io.TextIOWrapper):  # standard error does so already
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.unraisablehook = _ignored
    try:
        from tsm2_tune.cli import main as command

        command()
    except KeyboardInterrupt:
        sys.exit(130)  # the exit status of shells after Ctrl-C
    finally:
        _flush()


def _ignored(swallowed: "sys.UnraisableHookArgs") -> None:
    """Tell what a destructor swallows, but no signal: that one is sent again until it ends the run."""
    if not isinstance(swallowed.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(swallowed)


def _open_streams() -> None:
    """Open the null device in place of streams that the caller closed: another file would have such a number."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)  # the lowest that is free, which is the stream's
            os.set_inheritable(number, True)  # programs that are started would open their files there
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w"))


def _flush() -> None:
    """Write what waits, or leave it where it cannot be written: Python would change the exit status for it."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            sys.stdout.close()
    except (AttributeError, ValueError):  # there is no standard output, or it was closed
        pass


if __name__ == "__main__":
    main()
