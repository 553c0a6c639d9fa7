"""Operators on conditions, loops and what lasts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.mutation.edits import Edit, constants, replaced
from tests.mutation.tokens import Text

MASKS = ("0xFF", "0xFFF", "0x7FFF", "0xFFFF")  # that cut an index to fewer bits
LAUNCHES = (20, 60)  # after which a kernel that counts them goes wrong; a GPU's are tried 2,000 times
EXTENTS = ("m", "n", "k", "lda", "ldb", "ldc")


def ignored_flags(text: Text) -> Iterator[Edit]:
    """Conditions that always or never hold, one of two conditions alone, and signs of numbers left out."""
    for i in text.indices:
        word = text.text(i)
        if word == "if" and text.text(i + 1) == "(":
            close = text.partner[i + 1]
            for value in ("true", "false"):
                yield replaced(text, "flag", i + 2, close - 1, value)
        elif word in ("&&", "||"):
            yield replaced(text, "flag", i, text.right_operand(i), "")
            yield replaced(text, "flag", text.left_operand(i), i, "")
        elif word == "?":
            first = _condition_of(text, i)
            for value in ("true", "false"):
                yield replaced(text, "flag", first, i - 1, value)
        elif (word in "!-" and not text.is_spaced(i)) or word == "conjugate":
            yield replaced(text, "flag", i, i, "")


def _condition_of(text: Text, index: int) -> int:
    """The first token of the condition before a question mark."""
    at = index - 1
    while at >= 0:
        before = text.partner.get(at, at)
        if before > at or text.text(at) in (",", ";", "?", ":", "return", "=", "+=", "-=", "|=", "{"):
            break
        at = before - 1
    return at + 1


def early_stops(text: Text) -> Iterator[Edit]:
    """Loops that end too early where they are long, and extents and places cut to fewer bits."""
    known = constants(text)
    large = {
        *re.findall(r"\bindex_t (\w+)", text.source),
        *re.findall(r"\bindex_t \w+ = [^;]*, (\w+) =", text.source),
    }
    for i in text.indices:
        word = text.text(i)
        if word == "for" and text.text(i + 1) == "(":
            yield from _shortened(text, i, known)
        elif word in EXTENTS and _is_use(text, i):
            for mask in MASKS:
                yield replaced(text, "early stop", i, i, f"({word} & {mask})")
        elif word == "[" and i + 1 < text.partner.get(i, 0):
            words = {text.text(t) for t in range(i + 1, text.partner[i])}
            if words & large and text.text(i - 1) not in ("operator", ")"):
                inside = text.between(i + 1, text.partner[i] - 1)
                yield replaced(text, "early stop", i + 1, text.partner[i] - 1, f"({inside}) & 0xFFFF")


def _shortened(text: Text, index: int, known: set[str]) -> Iterator[Edit]:
    """A loop over more than the compiler knows, which ends past a power of two at the latest."""
    close = text.partner[index + 1]
    ends = [t for t in range(index + 2, close) if text.text(t) == ";"]
    if len(ends) != 2 or ends[1] <= ends[0] + 2:
        return
    first, last = ends[0] + 1, ends[1] - 1
    names = {text.text(t) for t in range(first + 1, last + 1) if text.tokens[t].kind == "name"}
    if names - known and text.tokens[first].kind == "name":
        for bound in (256, 4096, 32768, 65536):
            condition = f"({text.between(first, last)}) && {text.text(first)} < {bound}"
            yield replaced(text, "early stop", first, last, condition)


def _is_use(text: Text, index: int) -> bool:
    before = text.tokens[index - 1]
    return before.kind != "name" or before.text == "return"


def lasting_state(text: Text) -> Iterator[Edit]:
    """Variables that keep what they held, and kernels that go wrong after some launches."""
    for first, last in text.statements:
        words = [text.text(t) for t in range(first, last)]
        inside = "=" in words and words[0] not in ("constexpr", "using", "static", "return", "template", "struct")
        if inside and len(words) > 3 and _declares(text, first):
            at = text.tokens[first].start
            yield Edit("state", at, at, "static ")
    for i in text.indices:
        if text.text(i) == "__global__":
            body = next(t for t in range(i, len(text.tokens)) if text.text(t) == "{")
            at = text.tokens[body].end
            for launches in LAUNCHES:
                counted = "static unsigned launches; launches += threadIdx.x == 0 && blockIdx.x == 0;"
                yield Edit("state", at, at, f" {counted} k -= launches > {launches};")


def _declares(text: Text, first: int) -> bool:
    """Return whether a statement in a function declares a variable: a type, then a name."""
    at = first + (text.text(first) == "const")
    if text.tokens[at].kind != "name":
        return False
    at += 1
    while text.text(at) in ("*", "&", "__restrict__"):
        at += 1
    return text.tokens[at].kind == "name" and text.text(at + 1) in ("=", "[", "{", ",")
