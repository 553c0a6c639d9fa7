"""The command line: the names of all commands and the first line of each command's help.

The module of a command is imported when the command runs. It imports slow libraries after checking the arguments. So
--help, shell completion and errors in arguments are fast.
"""

from __future__ import annotations

from importlib import import_module
from keyword import iskeyword

import click
from click.shell_completion import CompletionItem

import tsm2_tune
from tsm2_tune.commands.errors import Group, Option, is_shape

# Command -> the first line of its help. Its module and its function have the same name, except `import_` for import.
COMMANDS = {
    "tune": "Find the fastest kernel for each shape",
    "best": "Show the fastest kernel of each problem",
    "show": "Show one trial, or list all trials",
    "pack": "Tune a GPU model for all products",
    "export": "Write the winners as a module, library or table",
    "report": "Write an HTML page with charts and tables",
    "predict": "Predict the gain over cuBLAS, without a GPU",
    "compare": "Time kernels against cuBLAS without tuning",
    "run": "Run a program with tuned kernels for cuBLAS calls",
    "record": "List the cuBLAS products of a program",
    "confirm": "Time stored winners again on this device",
    "doctor": "Check this machine and explain how to fix it",
    "devices": "List this machine's devices and the bundled cards",
    "space": "Count configurations, and what each rule drops",
    "model": "Show what bounds each problem, and its least time",
    "source": "Print the CUDA source of a kernel",
    "ladder": "Show the speedup of each step of a six-step GEMM",
    "import": "Add trials from another database or file",
    "db": "Check, merge, clean or migrate a database",
    "cache": "Show or clear the cache of compiled kernels",
    "forget": "Remove trials, so that they are tried again",
    "quarantine": "List or forgive kernels that hung or faulted",
}
# Commands of a database of trials, whose modules are in commands/results/.
RESULTS = frozenset({"best", "show", "report", "import", "db", "forget", "quarantine"})
DEFAULT = "tune"  # the command if the first argument is an option or a shape
EXAMPLES = """\
tsm2-tune tunes, verifies and exports CUDA kernels for tall-and-skinny matrix products.

  tsm2-tune --shapes 20480x16x20480 --budget 60s    tune a shape, into results.db
  tsm2-tune best                                    show the winners
  tsm2-tune export -o best_kernels.py               write them as a Python module
  tsm2-tune run --pretuned -- python program.py     no tuning: use pretuned kernels

tsm2-tune --help lists all commands, and tsm2-tune COMMAND --help the options of one."""


def imported(name: str) -> click.Command:
    """Import a command."""
    own = f"{name}_" if iskeyword(name) else name
    folder = "commands.results" if name in RESULTS else "commands"
    command: click.Command = getattr(import_module(f"tsm2_tune.{folder}.{own}"), own)
    return command


class Main(Group):
    """The click group of all commands. It imports a command when click asks for it."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return imported(cmd_name) if cmd_name in COMMANDS else None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = [name for one in self.get_params(ctx) for name in one.opts]
        if args and (is_shape(args[0]) or (args[0].startswith("-") and args[0] not in own)):
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if not incomplete.startswith("-"):
            return [
                CompletionItem(name, help=summary)
                for name, summary in COMMANDS.items()
                if name.startswith(incomplete)
            ]
        tuning = imported(DEFAULT)
        own = click.Command.shell_complete(self, ctx, incomplete)
        return [*tuning.shell_complete(click.Context(tuning, ctx, DEFAULT), incomplete), *own]


@click.group(
    cls=Main,
    commands=dict.fromkeys(COMMANDS),  # only names, for suggestions
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(
    tsm2_tune.__version__, cls=Option, message="tsm2-tune, version %(version)s", help="Show the version."
)
@click.pass_context
def main(ctx: click.Context) -> None:
    """Find the fastest CUDA kernel for tall-and-skinny matrix products.

    \b
    tsm2-tune --device 0 --shapes 20480x16x20480,1e7x8x8 --dtype f32,f64 --budget 60s
    tsm2-tune best
    tsm2-tune export -o best_kernels.py

    Without a command, tsm2-tune tunes: `tsm2-tune tune --help` lists the options of tuning.
    """
    if ctx.invoked_subcommand is None:
        click.echo(EXAMPLES)
