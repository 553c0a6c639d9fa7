"""`Selection`: a filter of stored results by device, shape, element type, op and state of the L2 cache."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from tsm2_tune.api.parse import (
    GRAM,
    LAYOUTS,
    ElementTypes,
    Texts,
    cache_named,
    canonical_op,
    check_named,
    device_name,
    dtype_name,
    dtype_texts,
    gram_ops,
    op_in,
    texts,
)
from tsm2_tune.api.products import Products, parsed
from tsm2_tune.errors import InputError
from tsm2_tune.generator.problem import OP_LETTERS, SAME, Problem
from tsm2_tune.generator.shapes import Shape
from tsm2_tune.tuner.device.target import HOST, is_ordinal, limits_of
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache

MOST_NAMED = 8  # the most values that an error message lists


@dataclass(frozen=True, slots=True)
class Selection:
    """A filter of stored results. A field that is None or an empty set selects all."""

    device: str | None
    problems: frozenset[Problem]
    shapes: frozenset[Shape]
    dtypes: frozenset[str]  # names of Dtypes; the name of an element type includes its Dtypes with other arithmetic
    ops: frozenset[str]
    cache: Cache | None = None  # state of the L2 cache

    def __contains__(self, problem: Problem) -> bool:
        is_named = problem in self.problems or Shape(problem.m, problem.n, problem.k, problem.batch) in self.shapes
        return (
            (is_named or not (self.problems or self.shapes))
            and (not self.dtypes or not self.dtypes.isdisjoint((problem.dtype_name, problem.dtype.element_name)))
            and (not self.ops or problem.op in self.ops)
        )

    @property
    def is_of_problems(self) -> bool:
        """Whether the selection has a condition on problems, so that it may leave some out."""
        return bool(self.problems or self.shapes or self.dtypes or self.ops)

    def none_of(self, what: str, stored: Collection[tuple[Problem, str]], place: object) -> str:
        """Return the error message for a selection without results. It names options that would select results.

        `what` names a result, such as "winner". `stored` contains the (problem, cache state) of all results. `place`
        is the database.
        """
        kinds: dict[str, tuple[Selection, Callable[[Problem, str], str]]] = {}
        if self.shapes or self.problems:
            others = replace(self, shapes=frozenset(), problems=frozenset())
            kinds["--shapes"] = others, lambda problem, _: problem.text if self.problems else problem.shape
        if self.dtypes:
            kinds["--dtype"] = replace(self, dtypes=frozenset()), lambda problem, _: problem.dtype_name
        if self.ops:
            kinds["--op"] = replace(self, ops=frozenset()), lambda problem, _: problem.op
        if self.cache is not None:
            kinds["--cache"] = replace(self, cache=None), lambda _, cache: cache
        there = {
            name: {value(*one) for one in stored if one[0] in others and others.cache in (None, one[1])}
            for name, (others, value) in kinds.items()
        }
        rest = " if the other options stay the same" if len(kinds) > 1 and any(there.values()) else ""
        if not any(there.values()):
            there = {name: {value(*one) for one in stored} for name, (_, value) in kinds.items()}
        known = (f"{name} {_few(values)}" for name, values in there.items() if values)
        return f"no {what} of {len(stored)} matches: {place} has {' or '.join(known)}{rest}"

    def refuse_all(self, what: str, stored: Collection[tuple[Problem, str]], place: object) -> None:
        """Raise InputError if conditions exclude all results. The arguments are those of `none_of`."""
        if stored and (self.is_of_problems or self.cache is not None):
            raise InputError(self.none_of(what, stored, place))

    def device_in(self, store: Store) -> str | None:
        """Return the stored name of the selected device; None for all. Raise InputError if none or several match."""
        if self.device is None:
            return None
        is_here = self.device == HOST or is_ordinal(self.device)
        name = limits_of(self.device).name if is_here else self.device
        devices = store.devices()
        if name in devices:
            return name
        parts_of = [known for known in devices if name and re.search(rf"\b{re.escape(name)}\b", known, re.IGNORECASE)]
        if len(parts_of) == 1:
            return parts_of[0]  # such as NVIDIA H100 80GB HBM3 if h100 is selected
        if parts_of:
            raise InputError(
                f"the device {name!r} may be {' or '.join(map(repr, parts_of))} in {store.path}: use a longer name"
            )
        raise InputError(
            f"no trial of the device {name!r} in {store.path}: it has {', '.join(map(repr, devices)) or 'none'}"
        )


def _few(values: Collection[str]) -> str:
    """Return the first MOST_NAMED values in sorted order as text, with the number of further values."""
    first = sorted(values)[:MOST_NAMED]
    return ", ".join(first) + (f" and {len(values) - MOST_NAMED} more" if len(values) > MOST_NAMED else "")


def selected(
    device: str | int | None = None,
    products: Products | None = None,
    dtype: ElementTypes | None = None,
    op: Texts | None = None,
    cache: str | None = None,
    layout: str | None = None,
) -> Selection:
    """Return the selection that these arguments of `best` describe. Raise InputError for an invalid argument."""
    problems, of_shapes = set[Problem](), set[Shape]()
    for item in parsed(products, lambda item: item) if products is not None else ():
        if isinstance(item, Problem):
            problems.add(item)
        else:
            of_shapes.update(item)
    if layout is not None:
        check_named("layout", layout, LAYOUTS)
    names = [canonical_op(one) for one in texts("op", op).split(",")] if op is not None else []
    if op is None and layout is not None:
        names = [of_a + of_b for of_a in OP_LETTERS for of_b in (*OP_LETTERS, SAME)]  # every op of this layout
    letters = [one for name in names for one in (gram_ops() if name == GRAM else (name,))]
    ops = frozenset(op_in(layout or LAYOUTS[0], one) for one in letters)
    for one in ops:
        Problem(1, 1, 1, "c64", one)  # raises InputError for an invalid op
    return Selection(
        None if device is None else device_name(device),
        frozenset(problems),
        frozenset(of_shapes),
        frozenset(dtype_name(name) for name in dtype_texts(dtype).split(",")) if dtype is not None else frozenset(),
        ops,
        cache_named(cache),
    )
