"""Rendering of the CUDA source for a configuration's text, as in the command `tsm2-tune source`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tsm2_tune.api.parse import LARGE, LAYOUTS, canonical_dtype, canonical_op, check_named, dtype_with, op_in, op_of
from tsm2_tune.errors import InputError, nearest_name, shown
from tsm2_tune.generator.config import KernelConfig, family_name_in
from tsm2_tune.generator.configuration_text import format_value, tunable_words, unknown_word
from tsm2_tune.generator.dtypes import DTYPES, FULL_MATH, dtype_named
from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.families.family import Family
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.space.space import unfit
from tsm2_tune.generator.space.tunables import declared

OPS = ("nn", "tn", "nt", "tt", "gram", "nx")  # the ops to try if none is named, in this order
EXAMPLE = "tsm2:version=v3,threads=128,columns=16,prefetch=4"  # a configuration for error messages
MOST_LOOKED_AT = 400_000  # the most configurations that are enumerated for an error message


@dataclass(frozen=True, slots=True)
class Way:
    """A combination of Dtype, op and layout for which a kernel may be rendered."""

    dtype_name: str
    op: str  # as in --op
    layout: str

    def problem(self, size: int, batch: int = 1) -> Problem:
        op = op_in(self.layout, op_of(self.op, self.dtype_name))
        return Problem(size, size, size, self.dtype_name, op, batch)

    def options(self, *given: str | None) -> str:
        """Return the command-line options for this combination. Omit default values and `given` values."""
        dtype = dtype_named(self.dtype_name)
        values = (
            ("--dtype", dtype.element_name, "f32"),
            ("--math", dtype.math, FULL_MATH),
            ("--op", self.op, OPS[0]),
            ("--layout", self.layout, LAYOUTS[0]),
        )
        return " ".join(f"{name} {value}" for name, value, default in values if value not in (default, *given))


@dataclass(frozen=True, slots=True)
class Found:
    """The CUDA source of a configuration."""

    text: str
    options: str  # options besides the given ones that select this kernel


def source_of(
    configuration: str, *, dtype: str | None, math: str | None, op: str | None, layout: str | None
) -> Found:
    """Return the CUDA source of the configuration for the first matching element type, op and layout.

    An argument of None matches all values. Raise InputError if the family, the configuration or the kernel does not
    exist. The message suggests other options.
    """
    family_name = family_name_in(configuration)
    if not family_name:
        raise InputError(
            f"{shown(configuration)} is neither the number of a trial, such as 35, nor a configuration, such as"
            f" {EXAMPLE}: `tsm2-tune best --long` prints both"
        )
    check_named("family", family_name, list(FAMILIES))
    family = FAMILIES[family_name]
    if "*" in configuration:
        raise InputError(
            f"configuration {configuration!r}: * stands for any launch number, but source prints only one"
            " configuration: replace * by a number"
        )
    ways = list(_ways(family, dtype, math, op, layout))
    supported = {way: found for way in ways if (found := _supported(family, way)) is not None}
    if not supported:
        others = (way for way in _ways(family, None, None, None, None) if _supported(family, way) is not None)
        other = next((way.options() for way in others), "")
        raise InputError(
            f"{family.name} has no kernel for {ways[0].dtype_name} and op {ways[0].op} in {ways[0].layout} layout"
            + (f": try {other}" if other else f"; it computes {', '.join(family.dtypes)}")
        )
    config = family.config_type.parse(configuration)
    known = {} if config is None else {way: one for way, one in supported.items() if family.has(config, one)}
    if config is None or not known:
        raise InputError(
            f"{family.name} has no configuration {configuration!r}: {_what_is_wrong(family, config, configuration)}"
        )
    for way, problem in known.items():
        if unfit(family, config, problem) is None:
            given = (dtype and canonical_dtype(dtype), math, op and canonical_op(op), layout)
            return Found(render(problem, config).text, way.options(*given))
    way, problem = next(iter(known.items()))
    raise InputError(
        f"{config.text} has no kernel for {problem.dtype_name} and op {way.op},"
        f" because {unfit(family, config, problem)}: choose another configuration, --dtype, --math or --op"
    )


def _ways(
    family: Family[Any], dtype: str | None, math: str | None, op: str | None, layout: str | None
) -> Iterator[Way]:
    """Yield the combinations of element type, op and layout that match the arguments. None matches all."""
    if dtype is None and math is None:
        names = sorted(family.dtypes, key=list(DTYPES).index)
    else:
        names = [dtype_with(math or FULL_MATH, canonical_dtype(dtype or "f32"))]
    for name in names:
        for one in OPS if op is None else (canonical_op(op),):
            for one_layout in LAYOUTS if layout is None and op is None else (layout or LAYOUTS[0],):
                yield Way(name, one, one_layout)


def _supported(family: Family[Any], way: Way) -> Problem | None:
    """Return a problem with this type, op and layout that the family supports; None if there is none.

    It is enough to test a small and a large problem, since all shapes have the same source.
    """
    return next(filter(family.supports, (way.problem(1), way.problem(LARGE), way.problem(1, batch=2))), None)


def _what_is_wrong(family: Family[Any], config: KernelConfig | None, spelling: str) -> str:
    """Return the part of an error message that explains why the family has no configuration with this text."""
    if config is None:
        example = f"an example is {next(iter(family.configurations())).text}"
        _, has_words, words = spelling.partition(":")
        unknown = unknown_word(family.config_type, words) if has_words else ""
        if not unknown:
            return example
        near = nearest_name(unknown, tunable_words(family.config_type))
        return f"it has no tunable {unknown!r}{f', did you mean {near}' if near else ''}; {example}"
    every = list(islice(family.configurations(), MOST_LOOKED_AT))
    if len(every) == MOST_LOOKED_AT:  # there may be millions
        return "its values cannot be combined; tsm2-tune space --list prints all configurations"
    for one in declared(type(config)):
        known = sorted({*one.tunable.late, *(other.tunables[one.name] for other in every)})
        if config.tunables[one.name] not in known:
            name = one.word if one.word == one.name else f"{one.name} in {one.word}="
            return f"{name} is one of {', '.join(format_value(one, value) for value in known)}"
    return "each value is valid, but not their combination; tsm2-tune space --list prints all configurations"
