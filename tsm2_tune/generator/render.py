"""Rendering of CUDA kernels from Jinja templates: `render` returns the `KernelSource` of a configuration."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from tsm2_tune.errors import InputError
from tsm2_tune.generator.config import KernelConfig, Launch
from tsm2_tune.generator.dtypes import DTYPES
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.source import (
    MOST_CACHED_KERNELS,
    MOST_CACHED_TEXTS,
    MOST_PLACED,
    REFERENCE_BLOCKS_PER_SM,
    SPARSE_TERMS,
    SUPPORT_THREADS,
    KernelSource,
    index_defines,
)
from tsm2_tune.generator.space.tunables import Constants

# Characters allowed in values that a template prints. In CUDA they are those of names, numbers and words, so that a
# value ends no comment and no line. In other languages a value is one line of printable ASCII, as a literal is.
OF_KERNELS = re.compile(r"[\w .,:;='()+*%-]*", re.ASCII)
OF_LITERALS = re.compile(r"[ -~]*")
HEADERS_OF_TYPES = ("complex.cuh", "bfloat16.cuh", "float16.cuh")  # inserted before constants of these types
BEGIN, END = "\n// Shared device headers; this kernel is at the end.\n", "// This kernel.\n\n"
_INCLUDE = re.compile(r'#(?<!.#)include "([\w/]+\.cuh)"\n')  # a whole line; searches for # are fast
_FOLDER = files("tsm2_tune") / "kernels"


@cache
def environment() -> Environment:
    return Environment(
        loader=PackageLoader("tsm2_tune"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        auto_reload=False,  # it would check every template file for changes at each rendering
    )


def filled(template: str, values: Mapping[str, Any], allowed: re.Pattern[str]) -> str:
    """Return the text of the template, rendered with these values.

    Raise InputError if a string in `values`, or in a value nested in them, does not match `allowed`.
    """
    _refuse_others(values, allowed, template)
    return environment().get_template(template).render(values)


def render(problem: Problem, config: KernelConfig) -> KernelSource:
    """Return the CUDA text and the launch of a configuration. The text is the same for every shape."""
    text, launch = _kernel(_Key(config, problem.op, problem.dtype_name, problem.is_batched, config, problem))
    return KernelSource(config.family, text, index_defines(problem.index_bits), launch, problem.dtype_name)


@dataclass(frozen=True, slots=True)
class _Key:
    """Key of the caches of kernels and their texts. `config` and `problem` are not compared."""

    kernel: KernelConfig | str  # the configuration, or its text without tunables of the launch
    op: str
    dtype_name: str
    is_batched: bool
    config: KernelConfig = field(compare=False)
    problem: Problem = field(compare=False)


@lru_cache(maxsize=MOST_CACHED_KERNELS)
def _kernel(key: _Key) -> tuple[str, Launch]:
    """Return the CUDA text and the launch of the configuration. They are cached for all shapes."""
    config, problem = key.config, key.problem
    family = family_named(config.family)
    _refuse_others(config.text, OF_KERNELS, family.template)  # before the family uses the values
    return _text(replace(key, kernel=config.kernel_text)), family.launch(config, problem).of_batch(problem.batch)


@lru_cache(maxsize=MOST_CACHED_TEXTS)
def _text(key: _Key) -> str:
    """Return the rendered template of the kernel's family. It is cached for all shapes and launches."""
    config, problem = key.config, key.problem
    family = family_named(config.family)
    values = {
        "about": family.summary,
        **{name: value for name, value in config.tunables.items() if name not in config.launch_tunables()},
        **family.context(config, problem),
        "several_splits": config.has_splits,
        "batched": problem.is_batched,
        "config": key.kernel,
        "kernel": config.family,
        "op": problem.op,
        "dtype": problem.dtype,
        "conjugated_a": problem.conjugated[0],
        "conjugated_b": problem.conjugated[1],
    }
    values["constants"] = Constants.of(family.config_type, values)
    return with_headers(filled(family.template, values, OF_KERNELS))


def support_source(dtype_names: Collection[str] = tuple(DTYPES)) -> str:
    """Return the CUDA text of the tuner's own kernels.

    They flush the L2 cache, measure peak rates, and fill and compare matrices of these element types.
    """
    verified = [DTYPES[name] for name in dtype_names]
    components, references = {one.component.name for one in verified}, {one.reference_name for one in verified}
    values = {
        "dtypes": tuple(DTYPES.values()),
        "components": tuple(one for one in DTYPES.values() if one.name in components),
        "references": tuple(one for one in DTYPES.values() if one.name in references),
        "threads": SUPPORT_THREADS,
        "reference_blocks_per_sm": REFERENCE_BLOCKS_PER_SM,
        "sparse_terms": SPARSE_TERMS,
        "most_placed": MOST_PLACED,
    }
    return with_headers(filled("support.cu.jinja", values, OF_KERNELS))


def _refuse_others(value: Any, allowed: re.Pattern[str], template: str) -> None:
    """Raise InputError if the value, or a value nested in it, is a string that does not match `allowed`.

    Raise TypeError for objects that are neither numbers, strings, records nor collections.
    """
    if isinstance(value, str):
        if not allowed.fullmatch(value):
            raise InputError(
                f"{value[:40]!r} cannot be inserted into {template}, which accepts one line of plain characters:"
                " use a text that `tsm2-tune space --list` or `best` prints"
            )
    elif value is None or isinstance(value, int | float):
        return
    elif isinstance(value, Mapping):
        _refuse_others(tuple(value.values()), allowed, template)
    elif is_dataclass(value):
        _refuse_others(tuple(getattr(value, field.name) for field in fields(value)), allowed, template)
    elif isinstance(value, Iterable):
        for one in value:
            _refuse_others(one, allowed, template)
    else:
        raise TypeError(f"{template}: a template accepts no value of type {type(value).__name__}")


# Headers: each `#include` is replaced, so that a kernel is a single CUDA text


def with_headers(text: str) -> str:
    """Return the CUDA text with each header that it includes, directly or indirectly, inserted once.

    The header of the element type replaces the `#include` that names it. All other headers are inserted together, at
    the first of the other `#include`s.
    """
    pieces = _INCLUDE.split(text)  # names of headers alternate with the text around them
    names = pieces[1::2]
    shared = iter([_shared(tuple(name for name in names if name not in HEADERS_OF_TYPES))])
    pieces[1::2] = [header(name) if name in HEADERS_OF_TYPES else next(shared, "") for name in names]
    text = "".join(pieces)
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return text


@cache
def _shared(names: tuple[str, ...]) -> str:
    """Return the texts of these headers and of the headers that they include, each once."""
    needed = dict.fromkeys(one for name in names for one in _needed_by(name))
    return "\n".join((BEGIN, *(f"// {name.rpartition('/')[2]}\n{header(name)}" for name in needed), END))


@cache
def header(name: str) -> str:
    """Return the text of a header without its `#include`s."""
    return _INCLUDE.sub("", _read(name).removeprefix("#pragma once\n"))


@cache
def _needed_by(name: str) -> tuple[str, ...]:
    """Return the names of the headers that the header `name` includes, directly or indirectly, and then `name`.

    The headers that a header includes come before it.
    """
    included = _INCLUDE.findall(_read(name))
    return tuple(dict.fromkeys((*(one for other in included for one in _needed_by(other)), name)))


@cache
def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
