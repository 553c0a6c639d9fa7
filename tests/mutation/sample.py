"""Mutants chosen evenly over families, dtypes and operators; of equal lines as few as may be."""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tests.mutation.operators import OPERATORS, VALUES, Edit
from tests.mutation.subjects import Subject, text_of

# Numbers that mutants change, of each type that they may have: for the host and for a GPU.
NUMBERS = """
using half_word = unsigned short;
__device__ inline float cut(float x, int bits)
{ return x == x ? __uint_as_float(__float_as_uint(x) & ~0u << bits) : x; }
__device__ inline double cut(double x, int bits)
{ return x == x ? __longlong_as_double(__double_as_longlong(x) & ~0ll << bits) : x; }
__device__ inline float narrow(float x) { return cut(x, 13); }
__device__ inline double narrow(double x) { return double(float(x)); }
__device__ inline float low(float x) { return cut(x, 6); }
__device__ inline double low(double x) { return cut(x, 6); }
__device__ inline float quiet(float x) { return x == x ? x : 0; }
__device__ inline double quiet(double x) { return x == x ? x : 0; }
__device__ inline float finite(float x) { return fabsf(x) > 3e38f ? copysignf(3e38f, x) : x; }
__device__ inline double finite(double x) { return fabs(x) > 1e308 ? copysign(1e308, x) : x; }
__device__ inline float flushed(float x) { return fabsf(x) < 1.17549435e-38f ? 0 : x; }
__device__ inline double flushed(double x) { return fabs(x) < 2.2250738585072014e-308 ? 0 : x; }
__device__ inline float clamped(float x) { return fabsf(x) > 2 && fabsf(x) < 1e30f ? copysignf(2.0f, x) : x; }
__device__ inline double clamped(double x) { return fabs(x) > 2 && fabs(x) < 1e300 ? copysign(2.0, x) : x; }
template <class T> __device__ T toward_zero(float x)
{ T y(x); if (fabsf(float(y)) > fabsf(x)) --y.bits; return y; }
"""
OF_COMPLEX = "".join(
    f"template <class T> __device__ auto {name}(T x) -> decltype(T(x.re, x.im))"
    f" {{ return T({name}(x.re), {name}(x.im)); }}"
    for name in ("narrow", "low", *VALUES)
)
# Before every text, in one line.
PRELUDE = f"namespace mutant {{ {' '.join(NUMBERS.split())} {OF_COMPLEX} }}\n"


@dataclass(frozen=True)
class Mutant:
    """A subject with one edit."""

    subject: Subject
    edit: Edit

    @property
    def text(self) -> str:
        return self.edit.applied(text_of(self.subject).source)

    @cached_property
    def key(self) -> str:
        """Names it in results, as long as the text stays."""
        return hashlib.sha256(f"{self.subject.name}\n{self.text}".encode()).hexdigest()[:16]

    @property
    def line(self) -> int:
        return text_of(self.subject).line_number(self.edit.start)

    @property
    def before(self) -> str:
        return text_of(self.subject).line(self.edit.start).strip()

    @property
    def after(self) -> str:
        """The changed line; of an edit of several, the first."""
        return self.text.split("\n")[self.line - 1].strip()


def edits_of(subject: Subject) -> Iterator[Edit]:
    """Every edit that an operator makes of the subject's text."""
    text = text_of(subject)
    for operator in OPERATORS:
        yield from operator(text)


def chosen(subjects: dict[tuple[str, str], list[Subject]], *, count: int, seed: int) -> list[Mutant]:
    """So many different mutants, or all: from each family, dtype and operator in turn."""
    source = random.Random(seed)
    cells = defaultdict[tuple[str, str, str], list[Mutant]](list)
    for place, found in subjects.items():
        for subject in found:
            for edit in edits_of(subject):
                cells[(*place, edit.operator)].append(Mutant(subject, edit))
    for mutants in cells.values():
        source.shuffle(mutants)
    order, taken, seen = sorted(cells), dict[str, Mutant](), Counter[tuple[str, ...]]()
    source.shuffle(order)
    while order and len(taken) < count:
        for cell in list(order):
            mutant = _newest(cells[cell], seen, source)
            if mutant is None:
                order.remove(cell)
            elif mutant.key not in taken and len(taken) < count:
                taken[mutant.key] = mutant
    return list(taken.values())


def _newest(mutants: list[Mutant], seen: Counter[tuple[str, ...]], source: random.Random) -> Mutant | None:
    """One of the mutants, taken out of them: of some, that whose change was chosen least often before."""
    if not mutants:
        return None
    among = min(len(mutants), 40)
    places = source.sample(range(len(mutants)), among)
    best = min(places, key=lambda at: seen[_change(mutants[at])])
    mutants[best], mutants[-1] = mutants[-1], mutants[best]
    mutant = mutants.pop()
    seen[_change(mutant)] += 1
    return mutant


def _change(mutant: Mutant) -> tuple[str, ...]:
    """Return a key that is equal for mutants that change the same line of a template in the same way."""
    column = mutant.edit.start - text_of(mutant.subject).source.rfind("\n", 0, mutant.edit.start)
    return mutant.edit.operator, re.sub(r"\d+", "0", mutant.before), str(column), mutant.edit.replacement
