"""click classes that report a user's errors as one sentence with exit status 2, never as a traceback."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

import click
from click.core import ParameterSource

from tsm2_tune.console.printable import printable
from tsm2_tune.errors import ToolMissing, TuneError
from tsm2_tune.tuner.results.storage.addresses import is_address, is_pretuned, shown_name
from tsm2_tune.tuner.runs.signals import stoppable

F = TypeVar("F", bound=Callable[..., Any])
SEVERAL = ",..."  # ends the metavar of each option whose value is a comma-separated list
OF_A_SIGNAL = 128  # exit status after a signal is this plus the signal's number, as in shells
STOPPED = 130  # exit status after Ctrl-C, as in shells
INSTEAD = {"--pretuned": "--db pretuned:CARD"}  # an option of other commands -> what does the same here
MOST_CHARACTERS = 2000  # limit of the length of an error message
_SECRET = re.compile(r"(://[^\s:/@]*):[^\s@]*@")  # a password in a database URL
_LONG_WORD = re.compile(r"(\S{150})\S{100,}(\S{50})")  # longer than configurations and usual paths
_ITEM = r"DIM(xDIM){1,3}(:\w+){0,2}".replace("DIM", r"([\d.e+:/*]+|[mnk])")  # one item of --shapes
_SHAPES = re.compile(rf"@.+|{_ITEM}(,{_ITEM})*", re.ASCII | re.IGNORECASE)
_LINE_ENDS = re.compile(r"\s*[\n\r]\s*")  # names typed by a user and messages of click can contain line ends


class Option(click.Option):
    """A click option that may not be given twice, except that the values of a list option are joined.

    click itself would silently use the last value. An option of the same command is no value: it was forgotten.
    """

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        own, self.multiple = self.multiple, True  # makes click's parser keep all values
        super().add_to_parser(parser, ctx)
        self.multiple = own

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> Any:
        name = self.name or ""
        if not self.multiple and name in opts:
            opts = {**opts, name: self._one_of(opts[name], ctx)}
        value, source = super().consume_value(ctx, opts)
        if source is ParameterSource.COMMANDLINE and isinstance(value, str) and value in _options(ctx):
            raise click.UsageError(f"{max(self.opts, key=len)} lacks its value, before {value}", ctx)
        return value, source

    def _one_of(self, values: Sequence[Any], ctx: click.Context) -> Any:
        if len(values) > 1 and (self.metavar or "").endswith(SEVERAL):
            return ",".join(values)
        if len(values) > 1 and not ctx.resilient_parsing and not (self.is_flag and len(set(values)) == 1):
            names = " and ".join([*self.opts, *self.secondary_opts] if self.is_flag else [max(self.opts, key=len)])
            raise click.UsageError(f"{names} given {len(values)} times: it takes one value", ctx)
        return values[-1]


def _options(ctx: click.Context) -> set[str]:
    """Return the names of the command's options, such as -o and --output."""
    return {name for one in ctx.command.params for name in (*one.opts, *one.secondary_opts) if name.startswith("-")}


def option(*names: str, **facts: Any) -> Callable[[F], F]:
    """Return `click.option` with the class Option."""
    return click.option(*names, cls=Option, **facts)


def is_shape(word: str) -> bool:
    """Return whether the word looks like a value of --shapes."""
    return _SHAPES.fullmatch(word) is not None


def stray(ctx: click.Context, word: str) -> click.UsageError:
    """Return the error for an unexpected argument. Its text suggests the option that was probably meant."""
    if word in getattr(ctx.find_root().command, "commands", ()):
        meant = f": put the options after the command {word!r}"
    else:
        is_database = Path(word).suffix == ".db" or is_address(word) or is_pretuned(word)
        option = "--shapes" if is_shape(word) else "--db" if is_database else "--output"
        takes = any(option in one.opts for one in ctx.command.params)
        meant = f": name it with {option}, as {option} {word}" if takes else ""
    return click.UsageError(f"Got unexpected extra argument ({word}){meant}", ctx)


class Command(click.Command):
    """A click command that prints a user's error as one sentence and exits with status 2."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        takes_more, ctx.allow_extra_args = ctx.allow_extra_args, True
        rest = super().parse_args(ctx, args)
        if rest and not takes_more and not ctx.resilient_parsing:
            raise stray(ctx, rest[0])
        return rest

    def make_context(self, *arguments: Any, **named: Any) -> click.Context:
        with _one_sentence():  # --help and --version print here, and standard output may be closed
            return super().make_context(*arguments, **named)

    def invoke(self, ctx: click.Context) -> Any:
        with _one_sentence():
            return super().invoke(ctx)


class Group(Command, click.Group):
    """A group of commands. If no command is given, it prints one sentence instead of the whole help."""

    command_class = Command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)  # list commands above options
        click.Command.format_options(self, ctx, formatter)

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **{"no_args_is_help": False, **named})

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not self.invoke_without_command and not ctx.resilient_parsing:
            raise click.UsageError(f"Missing command: name one of {', '.join(self.list_commands(ctx))}", ctx)
        return super().parse_args(ctx, args)


@contextmanager
def _one_sentence() -> Iterator[None]:
    """Convert a user's errors to usage errors, except BrokenPipeError: click exits quietly after it."""
    try:
        yield
    except ToolMissing as error:  # keep line ends: the text may quote a compiler
        raise _refusal(str(error)) from None
    except TuneError as error:
        raise _refusal(_LINE_ENDS.sub(" ", str(error))) from None
    except click.UsageError as error:  # click itself would also print two lines of usage
        raise _refusal(_in_a_line(error)) from None
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        raise click.exceptions.Exit(STOPPED) from None
    except OSError as error:
        what = error.filename if error.filename is not None else "the output"
        raise _refusal(
            f"{what} cannot be read or written ({error.strerror or error}): fix that, then run this again"
        ) from None


class Refusal(click.UsageError):
    """A usage error printed in the encoding of standard error. click itself would always print UTF-8."""

    def show(self, file: IO[Any] | None = None) -> None:
        super().show(sys.stderr if file is None else file)


@contextmanager
def ended_by_signals(ctx: click.Context, database: str | None, *, stderr: bool = False) -> Iterator[None]:
    """If Ctrl-C, SIGTERM or SIGHUP ends the block, print which trials are stored and exit with 128 + the signal.

    `database` is None if the command stores nothing, unless the exception names a database. The text is printed on
    standard output, or on standard error if `stderr`.
    """
    try:
        with stoppable():
            yield
    except KeyboardInterrupt as stop:
        stored_in: str = getattr(stop, "stored_in", "") if database is None else database
        name = shown_name(stored_in)
        if not stored_in:
            text = "stopped; nothing is stored"
        elif is_address(stored_in) or os.path.exists(stored_in):
            lost = getattr(stop, "unstored", 0)
            but = f", but for the last {lost}, since it is unreachable" if lost else ""
            text = f"stopped; every trial that ended is in {name}{but}: run the same command again to continue"
        else:
            text = f"stopped; no trial had ended, and {name} does not exist yet: run the same command to start again"
        from tsm2_tune.console.tables import (  # imported late: a slow import would delay shell completion
            console,
            print_line,
        )

        with suppress(OSError):  # after SIGHUP the terminal is closed
            print_line(console(stderr=stderr), text)
        ctx.exit(OF_A_SIGNAL + getattr(stop, "number", signal.SIGINT))


def _refusal(sentence: str) -> Refusal:
    sentence = _LONG_WORD.sub(r"\1...\2", _SECRET.sub(r"\1:***@", sentence))
    if len(sentence) > MOST_CHARACTERS:  # happens if a long argument is quoted
        sentence = f"{sentence[: MOST_CHARACTERS // 2]} ... {sentence[-MOST_CHARACTERS // 2 :]}"
    return Refusal(printable(sentence), ctx=None)


def _in_a_line(error: click.UsageError) -> str:
    """Return click's error message as one sentence that names the next step, such as --help."""
    if isinstance(error, click.NoSuchOption):
        meant = next(iter(error.possibilities or ()), "")
        if error.option_name in INSTEAD and error.ctx is not None and "--db" in _options(error.ctx):
            meant = INSTEAD[error.option_name]
        if meant:
            return f"No such option: {error.option_name}; did you mean {meant}?"
    text = _LINE_ENDS.sub(" ", error.format_message()).strip().rstrip(".")
    text = re.sub(r"\. ([A-Z])", lambda found: f"; {found[1].lower()}", text)
    end = "" if text.endswith("?") else ";"
    return text if error.ctx is None or "--help" in text else f"{text}{end} --help says more"
