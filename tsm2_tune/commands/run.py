"""`tsm2-tune run`: run a program with a library that replaces cuBLAS's GEMM functions (LD_PRELOAD)."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import click

from tsm2_tune.commands.errors import Command, option
from tsm2_tune.commands.options import database_option, is_given
from tsm2_tune.console import tables
from tsm2_tune.console.printable import tell
from tsm2_tune.errors import InputError
from tsm2_tune.interpose.preload import Standing, become, journal_folder, path_of_program, ran
from tsm2_tune.tuner.results.trial import count_text

if TYPE_CHECKING:
    from rich.console import Console

    from tsm2_tune.interpose.journal import Seen, Written

VERIFIED = 3  # calls per shape whose results --verify compares with cuBLAS's
MOST_LEFT = 10  # limit of the shapes in a report's table of calls that cuBLAS computed
TROUBLES = {  # reason recorded for calling cuBLAS -> its text in a report; a user can fix these
    "no library of kernels is loaded": "the library of kernels cannot be used",
    "the kernel could not be started": "kernels could not be started",
}
ELF = b"\x7fELF"  # first bytes of a shared library
FUNCTION = b"\0tsm2_gemm_f32\0"  # a symbol that every exported library contains
PROGRAM = {"ignore_unknown_options": True, "allow_interspersed_args": False}


def _given(ctx: click.Context, param: click.Parameter, program: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command line of the program to run. Raise UsageError if it is empty."""
    if not program and not ctx.resilient_parsing:
        raise click.UsageError(
            f"no program to run: name it after --, such as tsm2-tune {ctx.info_name} -- python simulation.py"
        )
    return program


program_argument = click.argument("program", nargs=-1, metavar="PROGRAM...", callback=_given, type=click.UNPROCESSED)


@click.command(cls=Command, context_settings=PROGRAM)
@database_option(reads=True)
@option("--library", metavar="FILE", help="Use the kernels of this exported C library instead of a database's.")
@option(
    "--pretuned",
    is_flag=True,
    help="Use the pretuned kernels for this GPU, or for its compute capability.",
)
@option(
    "--report",
    is_flag=True,
    help="At the end, list the products with their times by cuBLAS and by the kernels. Both compute the first"
    " products of each shape in turns. A shape whose kernel is slower then goes back to cuBLAS.",
)
@option(
    "--verify",
    is_flag=True,
    help=f"Compare the first {VERIFIED} products of each shape with cuBLAS. A kernel with a wrong result is not used"
    " again.",
)
@program_argument
@click.pass_context
def run(
    ctx: click.Context,
    database: str,
    library: str | None,
    pretuned: bool,
    report: bool,
    verify: bool,
    program: tuple[str, ...],
) -> None:
    """Run a program with tuned kernels for cuBLAS calls.

    A tuned kernel computes a product if it is faster than cuBLAS.

    \b
    tsm2-tune run -- python simulation.py
    tsm2-tune run --pretuned -- python simulation.py
    tsm2-tune run --report --verify -- ./simulation input.txt

    The program does not change: LD_PRELOAD puts a library in front of cuBLAS, in the program and in the programs that
    it starts. cuBLAS computes the other products. This does not work for a program that links cuBLAS statically.
    """
    from tsm2_tune.interpose.build import standin_path
    from tsm2_tune.interpose.journal import written_in

    given = [f"--{name}" for name in ("db", "library") if is_given(ctx, name.replace("db", "database"))]
    if pretuned and given:
        raise click.UsageError(f"--pretuned and {given[0]} each choose the kernels: name one of them")
    path_of_program(program[0])  # raises if missing; compiling kernels below may take minutes
    pack = _library(library) if library is not None else _made_pack(database, pretuned)
    if pack is None and not report:  # _made_pack printed why there are no kernels
        become(program, None)
    standing = Standing(standin_path(), pack, has_times=report, compared=VERIFIED if verify else 0)
    if not report and not verify:
        become(program, standing)
    with journal_folder() as journal:
        status = ran(program, standing, journal)
        print_products(written_in(journal), status, has_times=report)
    ctx.exit(status)


def _made_pack(database: str, pretuned: bool) -> Path | None:
    """Compile the kernels to use, and return the library's path. Without any, print why and return None."""
    from tsm2_tune.interpose.pack_library import pack_path, pretuned_path  # slow to import

    return pretuned_path(tell) if pretuned else pack_path(database, tell)


def _library(name: str) -> Path:
    """Return the path of an exported C library, or raise InputError. Print a note if this machine has no GPU."""
    if not name:
        raise InputError("the name of the library is empty: name the file with --library")
    if "$" in str(Path(name).absolute()):
        raise InputError(f"{name}: the loader treats $ in the name of a library as a variable: rename it")
    if Path(name).is_dir():
        raise InputError(f"{name} is a folder: name the library in it with --library")
    if not Path(name).is_file():
        raise InputError(
            f"no library {name}: tsm2-tune export --format library --output {shlex.quote(name)} creates it"
        )
    with open(name, "rb") as file:
        content = file.read(len(ELF))
        if content != ELF or FUNCTION not in file.read():
            raise InputError(f"{name} is not a library of kernels: tsm2-tune export --format library creates one")
    from tsm2_tune.interpose.build import gpu_here

    gpu_here(tell)
    return Path(name)


def failed(status: int) -> str:
    return f"the program failed with status {status}"


def print_products(written: Written, status: int, *, has_times: bool) -> None:
    """Print on standard error which GEMM calls of a program the tuned kernels computed, with times if `has_times`."""

    console, seen = tables.console(stderr=True), written.seen
    calls, taken = sum(one.calls for one in seen), sum(one.taken for one in seen)
    if written.is_empty:
        tell(f"no product was seen: {failed(status)}" if status else written.none_seen)
        return
    compared = sum(one.calls - one.taken - one.lost for one in seen)
    others = f"{calls - taken} left to cuBLAS" + (f", {compared} of these to compare with it" if compared else "")
    tell(f"{count_text(calls, 'product')} seen, {taken} computed by tuned kernels, {others}")
    for sentence in (*written.besides, *_troubles(seen)):
        tell(sentence)
    of_taken = [one for one in seen if one.taken and not one.went_back]
    if has_times:
        both = [one for one in of_taken if one.cublas_us and one.taken_us]
        if both:
            cublas_us = sum(one.calls * median(one.cublas_us) for one in both)
            kernels_us = sum(one.calls * median(one.taken_us) for one in both)
            tell(
                f"time of the shapes that tuned kernels computed: {cublas_us / 1e3:.2f} ms by cuBLAS,"
                f" {kernels_us / 1e3:.2f} ms by the kernels, {cublas_us / kernels_us:.2f} times as fast"
            )
        _print_table(console, of_taken, "taken:")
    lost = sorted((one for one in seen if one.lost), key=lambda one: (-one.us * one.lost, -one.lost))
    _print_table(
        console,
        lost[:MOST_LEFT],
        "left to cuBLAS:" if len(lost) <= MOST_LEFT else f"left to cuBLAS, {MOST_LEFT} of {len(lost)}:",
    )
    for one in seen:
        if one.compared:
            product = f"{one.shape_text} {one.dtype} {one.op}"
            tell(f"verified: {product}, {one.compared} times, worst {one.worst:.3g} of the bound")


def _troubles(seen: Sequence[Seen]) -> Iterator[str]:
    from tsm2_tune.interpose.journal import REASONS, SLOWER

    back = [one for one in seen if one.went_back]
    if back:
        count = sum(one.left[REASONS.index(SLOWER)] for one in back)
        shapes = count_text(len(back), "shape")
        yield f"{count_text(count, 'product')} of {shapes} went back to cuBLAS, because {SLOWER}"
    for reason, why in TROUBLES.items():
        count = sum(one.left[REASONS.index(reason)] for one in seen)
        if count:
            hint = "a message above says more; the CUDA driver may be older than the toolkit that compiled them"
            yield f"{count_text(count, 'product')} left to cuBLAS because {why}: {hint}"


def _print_table(console: Console, seen: Sequence[Seen], title: str) -> None:
    """Print a table of GEMM calls, one row per shape. Print nothing if `seen` is empty."""
    columns: dict[str, Callable[[Seen], str]] = {
        "routine": lambda one: one.routine,
        "type": lambda one: one.dtype,
        "op": lambda one: one.op,
        "m x n x k": lambda one: one.shape_text,
        "calls": lambda one: str(one.calls),
        "taken": lambda one: str(one.taken),
        "cuBLAS us": lambda one: f"{median(one.cublas_us):.1f}" if one.cublas_us else "-",
        "kernel us": lambda one: f"{median(one.taken_us):.1f}" if one.taken_us else "-",
        "why left": lambda one: one.reason if one.lost else "",
    }
    if seen:
        tables.print_line(console, title)
        tables.print_table(console, columns, seen)
