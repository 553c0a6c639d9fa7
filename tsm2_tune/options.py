"""The options that several commands share, and how their texts become records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click

from tsm2_tune.errors import InputError
from tsm2_tune.generator.families import FAMILIES, family_named
from tsm2_tune.generator.problem import DTYPES, Problem, dtype_named
from tsm2_tune.generator.profiles import PROFILES
from tsm2_tune.generator.rules import Guidelines
from tsm2_tune.generator.shapes import SPELLING, parse_shapes

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_DATABASE = "results.db"


def family_names(text: str | None) -> tuple[str, ...]:
    return tuple(family_named(name.strip()).name for name in text.split(",")) if text else ()


def problems_of(shapes: str, dtypes: str) -> tuple[Problem, ...]:
    """The problems that the options spell: every shape in every dtype."""
    names = tuple(dict.fromkeys(dtype_named(name.strip()).name for name in dtypes.split(",")))
    if shapes.startswith("@"):
        try:
            lines = Path(shapes[1:]).read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise InputError(f"shapes file {shapes[1:]!r} cannot be read: {reason}") from None
        name, shapes = shapes[1:], ",".join(line.partition("#")[0] for line in lines)
        if not shapes.strip(", \t"):
            raise InputError(f"shapes file {name!r} holds no shape: expected MxNxK items, such as 20480x16x20480")
    return tuple(Problem(m, n, k, name) for m, n, k in parse_shapes(shapes) for name in names)


def shapes_options(required: bool) -> Callable[[F], F]:
    """--shapes and --dtype, together."""

    def decorate(function: F) -> F:
        function = click.option(
            "--dtype",
            "dtypes",
            default="f32",
            show_default=True,
            help=f"Element types, separated by commas: {', '.join(DTYPES)}.",
        )(function)
        return click.option("--shapes", required=required, metavar="MxNxK,...", help=SPELLING)(function)

    return decorate


def family_options(function: F) -> F:
    """--family and --guidelines, together."""
    function = click.option(
        "--guidelines",
        metavar="NAME=VALUE,...",
        default="",
        help="Other thresholds for the guideline rules."
        f" [default: {','.join(f'{f.name}={f.default}' for f in fields(Guidelines)).replace('_', '-')}]",
    )(function)
    return click.option(
        "--family", "families", metavar="NAME,...", help=f"Only these kernel families: {', '.join(FAMILIES)}."
    )(function)


database_option = click.option(
    "--db",
    "database",
    default=DEFAULT_DATABASE,
    show_default=True,
    type=click.Path(dir_okay=False),
    help="The tuning database.",
)
planning_device_option = click.option(
    "--device",
    "spec",
    help=f"CUDA ordinal, cpu, or a card: {', '.join(PROFILES)}. [default: GPU 0, else cpu]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
