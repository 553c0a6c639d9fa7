"""What a user can cause ends in one sentence and exit status 2, never in a traceback."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

import click

from tsm2_tune.errors import ToolMissing, TuneError
from tsm2_tune.tuner.addresses import is_address, shown_name
from tsm2_tune.tuner.stopping import stoppable
from tsm2_tune.tuner.trial import in_a_line

OF_A_SIGNAL = 128  # and its number: the exit status after it, as shells have it
STOPPED = 130  # the exit status after Ctrl-C, as shells have it
MOST_CHARACTERS = 2000  # of a sentence
_SECRET = re.compile(r"(://[^\s:/@]*):[^\s@]*@")  # of a database's address that stands where none belongs
_LONG_WORD = re.compile(r"(\S{150})\S{100,}(\S{50})")  # no configuration, and no usual path, is so long
_LINE_ENDS = re.compile(r"\s*[\n\r]\s*")  # in names that a user gives, and in what click says


class Command(click.Command):
    """Every error that a user can cause becomes one sentence and exit status 2."""

    def make_context(self, *arguments: Any, **named: Any) -> click.Context:
        with _one_sentence():  # --help and --version print already here
            return super().make_context(*arguments, **named)

    def invoke(self, ctx: click.Context) -> Any:
        with _one_sentence():
            return super().invoke(ctx)


class Group(Command, click.Group):
    """The same of commands with a name each. Without one it says that it is missing; click would print all help."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **{"no_args_is_help": False, **named})


@contextmanager
def _one_sentence() -> Iterator[None]:
    """What a user can cause becomes a usage error. A closed pipe does not: click ends quietly."""
    try:
        yield
    except ToolMissing as error:  # with a compiler's messages, line by line
        raise _refusal(str(error)) from None
    except TuneError as error:
        raise _refusal(_LINE_ENDS.sub(" ", str(error))) from None
    except click.UsageError as error:  # which click would show below two lines of usage
        raise _refusal(_in_a_line(error)) from None
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        raise click.exceptions.Exit(STOPPED) from None
    except OSError as error:
        _drop_unwritten()
        what = error.filename if error.filename is not None else "the output"
        raise _refusal(
            f"{what} cannot be read or written ({error.strerror or error}): mend that, then run this again"
        ) from None


class Refusal(click.UsageError):
    """A sentence in the encoding of standard error, where click would write UTF-8 to a terminal that has none."""

    def show(self, file: IO[Any] | None = None) -> None:
        super().show(sys.stderr if file is None else file)


@contextmanager
def ended_by_signals(ctx: click.Context, database: str, *, stderr: bool = False) -> Iterator[None]:
    """Ctrl-C, SIGTERM or SIGHUP ends what tunes into the database with a sentence, on standard error if `stderr`."""
    try:
        with stoppable():
            yield
    except KeyboardInterrupt as stop:
        name = shown_name(database)
        if is_address(database) or os.path.exists(database):
            lost = getattr(stop, "unstored", 0)
            but = f", but for the last {lost}, for which it is away" if lost else ""
            text = f"stopped; every trial that ended is in {name}{but}: the same command goes on from there"
        else:
            text = f"stopped; no trial had ended, and {name} is not made yet: the same command starts again"
        from tsm2_tune.display import console, print_line  # completion in a shell waits for what is imported above

        with suppress(OSError):  # the terminal may be what is gone
            print_line(console(stderr=stderr), text)
        ctx.exit(OF_A_SIGNAL + getattr(stop, "number", signal.SIGINT))


def tell(sentence: str) -> None:
    """Say it on standard error, in a line."""
    click.echo(in_a_line(sentence), err=True)


def _refusal(sentence: str) -> Refusal:
    from tsm2_tune.display import printable

    sentence = _LONG_WORD.sub(r"\1...\2", _SECRET.sub(r"\1:***@", sentence))
    if len(sentence) > MOST_CHARACTERS:  # it quotes an argument
        sentence = f"{sentence[: MOST_CHARACTERS // 2]} ... {sentence[-MOST_CHARACTERS // 2 :]}"
    return Refusal(printable(sentence), ctx=None)


def _in_a_line(error: click.UsageError) -> str:
    """Click's message as one sentence, with what to do next."""
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        return f"No such option: {error.option_name}; did you mean {error.possibilities[0]}?"
    text = _LINE_ENDS.sub(" ", error.format_message()).strip().rstrip(".")
    text = re.sub(r"\. ([A-Z])", lambda found: f"; {found[1].lower()}", text)
    end = "" if text.endswith("?") else ";"
    return text if error.ctx is None or "--help" in text else f"{text}{end} --help says more"


def _drop_unwritten() -> None:
    """Close a standard output that takes nothing, or Python would try it again at exit and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            sys.stdout.close()
