"""What a user can cause ends in one sentence and exit status 2, never in a traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click

from tsm2_tune.display import printable
from tsm2_tune.errors import TuneError


class Group(click.Group):
    """Every error that a user can cause becomes one sentence and exit status 2."""

    def make_context(self, *arguments: Any, **named: Any) -> click.Context:
        with _one_sentence():  # --help and --version print already here
            return super().make_context(*arguments, **named)

    def invoke(self, ctx: click.Context) -> Any:
        with _one_sentence():
            return super().invoke(ctx)


@contextmanager
def _one_sentence() -> Iterator[None]:
    """What a user can cause becomes a usage error. A closed pipe does not: click ends quietly."""
    try:
        yield
    except TuneError as error:
        raise click.UsageError(printable(str(error)), ctx=None) from None
    except BrokenPipeError:
        raise
    except OSError as error:
        _drop_unwritten()
        what = error.filename if error.filename is not None else "the output"
        raise click.UsageError(
            f"{what} cannot be read or written ({error.strerror or error}): mend that, then run this again", ctx=None
        ) from None


def _drop_unwritten() -> None:
    """Close a standard output that takes nothing, or Python would try it again at exit and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            sys.stdout.close()
