"""Operators on floating-point numbers: how they are rounded, and which of them are changed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from tests.mutation.edits import Edit, replaced
from tests.mutation.tokens import ASSIGNMENTS, Text

_FLOATING = ("scalar", "sum_t", "float", "double", "complex64", "complex128")
_WHOLE = {
    *("int", "index_t", "bool", "unsigned", "auto", "size_t", "long"),
    *("using", "constexpr", "for"),
    *("&", "==", "<=", "&&", ">>"),
}
_LATE = (256, 4096, 32768)  # turns of a loop after which sums lose bits
VALUES = ("quiet", "finite", "flushed", "clamped")  # NaN, infinities, subnormal numbers, numbers above 2 changed


def rounded(text: Text) -> Iterator[Edit]:
    """Yield edits that drop the last bits of stored or added values, round toward zero, or leave out low parts."""
    is_half = re.search(r"using scalar = b?float16;", text.source) is not None
    for i in text.indices:
        word = text.text(i)
        if word in ("=", "+=", "-=") and text.is_spaced(i) and (last := _value(text, i)) is not None:
            value = text.between(i + 1, last)
            yield replaced(text, "rounding", i + 1, last, f"mutant::low({value})")
            yield replaced(text, "rounding", i + 1, last, f"mutant::narrow({value})")
            for variable in _loops_around(text, i):
                for turns in _LATE:
                    late = f"{variable} > {turns} ? mutant::narrow({value}) : {value}"
                    yield replaced(text, "rounding", i + 1, last, late)
        elif is_half and word == "scalar" and text.text(i + 1) == "(" and text.text(i + 2) not in ("0", "&"):
            yield replaced(text, "rounding", i, i, "mutant::toward_zero<scalar>")
        elif re.fullmatch(r"rest_of|low\w*|\w*_rest|__fma\w*|fma|fmaf", word) and text.text(i + 1) == "(":
            close = text.partner[i + 1]
            if "fma" in word:
                yield replaced(
                    text, "rounding", i, i, "([](auto a, auto b, auto c) { return mutant::low(a * b) + c; })"
                )
            else:
                yield replaced(text, "rounding", i, close, "0")


def narrower_numbers(text: Text) -> Iterator[Edit]:
    """A number that is used, such as beta, of lower precision."""
    for first, last in _uses(text):
        yield replaced(text, "narrower", first, last, f"mutant::narrow({text.between(first, last)})")


def values(text: Text) -> Iterator[Edit]:
    """Numbers of some kinds taken for others."""
    for first, last in _uses(text):
        for kind in VALUES:
            yield replaced(text, "value", first, last, f"mutant::{kind}({text.between(first, last)})")


@cache
def _declared(text: Text) -> dict[str, bool]:
    """Floating-point variables that a text declares; whether each is an array or a pointer."""
    found = {"alpha": False, "beta": False}
    for i in range(len(text.tokens) - 2):
        if text.text(i) in _FLOATING and text.text(i - 1) not in ("<", "struct", "using"):
            at = i + 1
            while text.text(at) in ("&", "*", "(", "__restrict__"):
                at += 1
            if text.tokens[at].kind == "name":
                many = any(text.text(t) in "*(" for t in range(i + 1, at)) or text.text(at + 1) == "["
                found[text.text(at)] = many or found.get(text.text(at), False)
    return {name: many for name, many in found.items() if name not in _FLOATING and name != "operator"}


def _uses(text: Text) -> Iterator[tuple[int, int]]:
    """First and last token where a floating-point variable, or an element of several, is read whole."""
    floating = _declared(text)
    for i in text.indices:
        before = text.tokens[i - 1]
        is_declared = before.kind == "name" and before.text != "return"
        if text.text(i) not in floating or is_declared or before.text in (".", "&", "*", "::", "(&"):
            continue
        last = i
        while text.text(last + 1) == "[":
            last = text.partner[last + 1]
        if (last > i) == floating[text.text(i)] and text.text(last + 1) not in (*ASSIGNMENTS, "(", ".", "{", "<"):
            yield i, last


def _value(text: Text, index: int) -> int | None:
    """The last token of what is assigned, where it is a floating-point number, as far as names say."""
    at = index + 1
    while at < len(text.tokens) and text.text(at) not in (";", ","):
        after = text.partner.get(at, at)
        if after < at or text.text(at) == "{":
            return None
        at = after + 1
    first = index
    while first > 0 and text.text(first - 1) not in ("{", "}", ";", "(", ")"):
        first -= 1
    names = {text.text(t) for t in range(first, at)}
    is_pointer = "*" in {text.text(t) for t in range(first, index)}
    if is_pointer or names & _WHOLE or not names & {*_declared(text), *_FLOATING}:
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
