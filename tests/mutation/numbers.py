"""Operators on floating-point numbers: how they are rounded, and which of them are changed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.mutation.edits import Edit, replaced
from tests.mutation.tokens import ASSIGNMENTS, Text

_FLOATING = ("scalar", "sum_t", "float", "double", "complex64", "complex128")
_LATE = (256, 4096, 32768)  # turns of a loop after which sums lose bits
VALUES = ("quiet", "finite", "flushed", "clamped")  # NaN, infinities, subnormal numbers, numbers above 2 changed


def rounded(text: Text) -> Iterator[Edit]:
    """What is stored or added up loses its last bits, or is rounded toward zero; low parts are left out."""
    for i in text.indices():
        word = text.text(i)
        if word in ("=", "+=", "-=") and text.is_spaced(i) and (last := _value(text, i)) is not None:
            value = text.between(i + 1, last)
            yield replaced(text, "rounding", i + 1, last, f"mutant::low({value})")
            yield replaced(text, "rounding", i + 1, last, f"mutant::narrow({value})")
            for variable in _loops_around(text, i):
                for turns in _LATE:
                    late = f"{variable} > {turns} ? mutant::narrow({value}) : {value}"
                    yield replaced(text, "rounding", i + 1, last, late)
        elif word == "scalar" and text.text(i + 1) == "(" and text.text(i + 2) != "0":
            yield replaced(text, "rounding", i, i, "mutant::toward_zero<scalar>")
        elif re.fullmatch(r"rest_of|low\w*|\w*_rest|__fma\w*|fma|fmaf", word) and text.text(i + 1) == "(":
            close = text.partner[i + 1]
            if "fma" in word:
                yield replaced(text, "rounding", i, i, "([](auto a, auto b, auto c) { return mutant::low(a * b) + c; })")
            else:
                yield replaced(text, "rounding", i, close, "0")


def narrower_numbers(text: Text) -> Iterator[Edit]:
    """A number that is used, such as beta, of lower precision."""
    for i in _uses(text):
        yield replaced(text, "narrower", i, i, f"mutant::narrow({text.text(i)})")


def values(text: Text) -> Iterator[Edit]:
    """Numbers of some kinds taken for others."""
    for i in _uses(text):
        for kind in VALUES:
            yield replaced(text, "value", i, i, f"mutant::{kind}({text.text(i)})")


def _uses(text: Text) -> Iterator[int]:
    """Where a floating-point variable, or an element of an array of them, is read whole."""
    floating = {"alpha", "beta"}
    for i in range(len(text.tokens) - 2):
        if text.text(i) in _FLOATING:
            at = i + 1
            while text.text(at) in ("&", "*", "(", "__restrict__"):
                at += 1
            if text.tokens[at].kind == "name" and text.text(i + 1) not in ("*", ">"):
                floating.add(text.text(at))
    for i in text.indices():
        before, after = text.tokens[i - 1], text.text(i + 1)
        declared = before.kind == "name" and before.text != "return"
        if text.text(i) in floating and not declared and before.text not in (".", "&", "*", "::"):
            if after not in (*ASSIGNMENTS, "[", "(", ".", "{", "<"):
                yield i


def _value(text: Text, index: int) -> int | None:
    """The last token of what is assigned, where it is one value of a statement."""
    at = index + 1
    if text.text(at) == "{":
        return None
    while at < len(text.tokens) and text.text(at) not in (";", ","):
        after = text.partner.get(at, at)
        if after < at or text.text(at) == "{":
            return None
        at = after + 1
    words = [text.text(t) for t in range(index + 1, at)]
    if len(words) == 1 and (words[0].isdigit() or words[0] in ("true", "false")):
        return None
    first = index
    while first > 0 and text.text(first - 1) not in ("{", "}", ";"):
        first -= 1
    declared = {text.text(t) for t in range(first, index)}
    if declared & {"int", "index_t", "bool", "unsigned", "auto", "using", "constexpr", "for", "size_t", "long"}:
        return None
    return at - 1


def _loops_around(text: Text, index: int) -> Iterator[str]:
    """Variables of the loops that the token is in, those of unrolled ones too."""
    for i in range(index):
        if text.text(i) != "for" or text.text(i + 1) != "(":
            continue
        close = text.partner[i + 1]
        end = text.partner.get(close + 1, 0) if text.text(close + 1) == "{" else close
        name = next((text.text(t - 1) for t in range(i + 2, close) if text.text(t) == "="), "")
        if close < index < end and name and text.text(i + 2) == "index_t":
            yield name
