"""Operators on terms, constants, comparisons, arithmetic, names and types."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.mutation.edits import Edit, replaced
from tests.mutation.tokens import ASSIGNMENTS, Text

BARRIERS = re.compile(r"__sync\w*|sync_ring\w*|\w*barrier\w*")
COPIES = re.compile(r"await\w*|cp_async\w*|copy_\w+|\w*wait\w*|copy_k_tile\w*|fetch\w*")
FENCES = re.compile(r"__threadfence\w*|fence\w*")
# First words of statements that compute nothing, or that no compiler misses.
_DECLARATIONS = {
    *(
        "return",
        "using",
        "struct",
        "template",
        "const",
        "constexpr",
        "static",
        "extern",
        "union",
        "break",
        "continue",
    ),
    *("__device__", "__shared__", "typedef", "auto", "int", "unsigned", "bool", "float", "double", "scalar", "sum_t"),
    *("index_t", "long", "vector", "static_assert", "asm", "public"),
}
_SWAPPED_SIGNS = {
    "+": "- *",
    "-": "+",
    "*": "/ +",
    "/": "% *",
    "%": "/ +",
    "<<": ">>",
    ">>": "<<",
    "&": "|",
    "|": "&",
    "^": "|",
    "+=": "-= =",
    "-=": "+=",
    "*=": "+=",
    "/=": "*=",
}
_COMPARISONS = {"<": "<= >=", "<=": "< >", ">": ">= <=", ">=": "> <", "==": "!=", "!=": "=="}
_PAIRS = (
    *(
        "i j",
        "m n",
        "m k",
        "n k",
        "lda ldb",
        "ldb ldc",
        "lda ldc",
        "row column",
        "r c",
        "rows columns",
        "A B",
        "alpha beta",
    ),
    *("first_row first_column", "left right", "left_group right_group", "l j", "i l", "e q", "q c", "o s", "re im"),
    *("a b", "tile step", "warp lane", "split tile_index", "width columns", "octet octets", "x y", "upper lower"),
    *("run at", "line product", "begin end", "first last", "threads columns", "stages splits", "place pitch"),
)
_SWAPPED_NAMES = {
    one: tuple(other for pair in _PAIRS for a, b in [pair.split()] for x, other in ((a, b), (b, a)) if x == one)
    for pair in _PAIRS
    for one in pair.split()
}
# Type -> narrower ones, which are left out where they are the same.
_NARROWER = {
    "double": ("float",),
    "index_t": ("short", "mutant::half_word"),
    "int": ("short",),
    "size_t": ("unsigned",),
    "unsigned": ("mutant::half_word",),
    "sum_t": ("scalar", "float"),
    "scalar": ("float",),
}


def synchronises(line: str) -> bool:
    """Return whether the line has a barrier, a copy or a fence, which a host need not have."""
    words = re.findall(r"[A-Za-z_]\w*", line.partition("//")[0])
    return any(names.fullmatch(word) for names in (BARRIERS, COPIES, FENCES) for word in words)


def dropped_terms(text: Text) -> Iterator[Edit]:
    """One side of a sum or a product, or a whole statement."""
    for i in text.indices:
        sign = text.text(i)
        if not text.is_binary(i) or sign in ("&&", "||", "<", "<=", ">", ">=", "==", "!="):
            continue
        yield replaced(text, "dropped term", i, text.right_operand(i), "")
        if sign in "+*":
            yield replaced(text, "dropped term", text.left_operand(i), i, "")
    for first, last in text.statements:
        if _is_act(text, first, last) and _kind(text, first, last) == "dropped term":
            yield replaced(text, "dropped term", first, last - 1, "")


def removed_synchronisation(text: Text) -> Iterator[Edit]:
    """Barriers, copies with their waits, and fences."""
    for first, last in text.statements:
        kind = _kind(text, first, last)
        if _is_act(text, first, last) and kind != "dropped term":
            yield replaced(text, kind, first, last - 1, "")


def _is_act(text: Text, first: int, last: int) -> bool:
    """Return whether the statement assigns or calls something, and declares nothing."""
    if last <= first or text.text(first) in _DECLARATIONS or text.tokens[first + 1].kind == "name":
        return False
    depth_signs = {text.text(i) for i in range(first, last)}
    return bool(depth_signs & {*ASSIGNMENTS, "(", "++", "--"})


def _kind(text: Text, first: int, last: int) -> str:
    """Return the operator that removes the statement, by the name of the function that it calls."""
    called = text.text(first)
    for kind, names in (("barrier", BARRIERS), ("copy", COPIES), ("fence", FENCES)):
        if names.fullmatch(called) and text.text(first + 1) in ("(", "<"):
            return kind
    return "dropped term"


def constants_off_by_one(text: Text) -> Iterator[Edit]:
    """Integers, one more and one less."""
    for i in text.indices:
        token = text.tokens[i]
        found = re.fullmatch(r"(0[xX][0-9A-Fa-f]+|\d+)([uUlL]*)", token.text)
        if token.kind == "number" and found is not None:
            value, is_hex = int(found[1], 0), found[1][:2] in ("0x", "0X")
            for other in (value + 1, value - 1):
                spelt = hex(other) if is_hex and other >= 0 else str(other)
                yield replaced(text, "constant", i, i, f"{spelt}{found[2]}" if other >= 0 else f"({spelt})")


def comparisons(text: Text) -> Iterator[Edit]:
    """Off by one, and turned around."""
    for i in text.indices:
        if text.text(i) in _COMPARISONS and text.is_binary(i):
            for other in _COMPARISONS[text.text(i)].split():
                yield replaced(text, "comparison", i, i, other)


def arithmetic(text: Text) -> Iterator[Edit]:
    """One operation for another."""
    for i in text.indices:
        if text.text(i) in _SWAPPED_SIGNS and text.is_spaced(i):
            for other in _SWAPPED_SIGNS[text.text(i)].split():
                yield replaced(text, "arithmetic", i, i, other)


def swapped_names(text: Text) -> Iterator[Edit]:
    """An index, an extent or an operand for another one that the same function knows."""
    for first, last in _functions(text):
        known = {text.text(i) for i in range(first, last)}
        for i in range(first, last):
            for other in _SWAPPED_NAMES.get(text.text(i), ()):
                if other in known and not _is_declared(text, i):
                    yield replaced(text, "swapped name", i, i, other)


def narrower_types(text: Text) -> Iterator[Edit]:
    """In declarations and casts."""
    meant = dict(re.findall(r"using (scalar|sum_t) = (\w+);", text.source))
    wide = {name for name, type_name in meant.items() if type_name == "double"}
    same = {("sum_t", "scalar")} if meant["sum_t"] == meant["scalar"] else set[tuple[str, str]]()
    same |= {(name, "float") for name in {"scalar", "sum_t"} - wide}
    for i in text.indices:
        word = text.text(i)
        if word == "long" and text.text(i + 1) == "long":
            yield replaced(text, "narrower", i, i + 1, "int" if text.text(i - 1) != "unsigned" else "")
        elif word in _NARROWER and text.text(i - 1) not in ("using", "class", "constexpr"):
            if text.text(i + 1) in ("long", "*", "&") or text.text(i + 2) == "&":  # a pointer would have no type
                continue
            for other in (one for one in _NARROWER[word] if (word, one) not in same):
                yield replaced(text, "narrower", i, i, other)


def _functions(text: Text) -> Iterator[tuple[int, int]]:
    """First token and the one past the last of every top-level declaration."""
    first = at = 0
    while at < len(text.tokens):
        end = text.partner.get(at, at)
        if text.text(at) == "{":
            yield first, end + 1
            first = end + 1
        elif text.text(at) == ";":
            yield first, at
            first = at + 1
        at = max(at, end) + 1


def _is_declared(text: Text, index: int) -> bool:
    before = text.tokens[index - 1] if index else None
    if before is None or text.text(index + 1) in ("::", "<"):
        return True
    return (
        before.text in ("__restrict__", ".", "::")
        or (before.kind == "name" and before.text not in ("return", "else", "case"))
        or (before.text in "*&" and not text.is_spaced(index - 1) and text.tokens[index - 2].kind == "name")
    )
