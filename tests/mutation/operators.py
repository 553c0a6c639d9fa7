"""Mutation operators: each yields edits of a text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.mutation.tokens import ASSIGNMENTS, Text

BARRIERS = re.compile(r"__sync\w*|sync_ring\w*|\w*barrier\w*")
COPIES = re.compile(r"await\w*|cp_async\w*|copy_\w+|\w*wait\w*|copy_k_tile\w*|fetch\w*")
FENCES = re.compile(r"__threadfence\w*|fence\w*")
COMPARISONS = {"<": "<= >=", "<=": "< >", ">": ">= <=", ">=": "> <", "==": "!=", "!=": "=="}
# First words of statements that compute nothing, or that no compiler misses.
DECLARATIONS = {
    "return", "using", "struct", "template", "const", "constexpr", "static", "extern", "union", "break", "continue",
    "__device__", "__shared__", "typedef", "auto", "int", "unsigned", "bool", "float", "double", "scalar", "sum_t",
    "index_t", "long", "vector", "static_assert", "asm", "public",
}  # fmt: skip
SWAPPED_SIGNS = {
    "+": "- *", "-": "+", "*": "/ +", "/": "% *", "%": "/ +", "<<": ">>", ">>": "<<", "&": "|", "|": "&", "^": "|",
    "+=": "-= =", "-=": "+=", "*=": "+=", "/=": "*=",
}  # fmt: skip
PAIRS = """i j, m n, m k, n k, lda ldb, ldb ldc, lda ldc, row column, r c, rows columns, A B, alpha beta,
    first_row first_column, left right, left_group right_group, l j, i l, e q, q c, o s, re im, a b, tile step,
    warp lane, split tile_index, width columns, octet octets, x y, upper lower, run at, line product, begin end,
    first last, threads columns, stages splits, place pitch"""
SWAPPED_NAMES = dict[str, tuple[str, ...]]()
for one, other in (names for pair in PAIRS.split(",") for names in (pair.split(), pair.split()[::-1])):
    SWAPPED_NAMES[one] = (*SWAPPED_NAMES.get(one, ()), other)
# Type -> narrower ones, which are left out where they are the same.
NARROWER = {
    "double": ("float",), "index_t": ("short", "mutant::half_word"), "int": ("short",), "size_t": ("unsigned",),
    "unsigned": ("mutant::half_word",), "sum_t": ("scalar", "float"), "scalar": ("float",),
}  # fmt: skip
MASKS = ("0xFF", "0xFFF", "0x7FFF", "0xFFFF")  # that cut an index to fewer bits
LAUNCHES = (20, 60)  # after which a kernel that counts them goes wrong; a GPU's are tried 2,000 times
EXTENTS = ("m", "n", "k", "lda", "ldb", "ldc")
FLOATING = ("scalar", "sum_t", "float", "double", "complex64", "complex128")
WHOLE = {
    "int", "index_t", "bool", "unsigned", "auto", "size_t", "long", "using", "constexpr", "for",
    "&", "==", "<=", "&&", ">>",
}  # fmt: skip
LATE = (256, 4096, 32768)  # turns of a loop after which sums lose bits
VALUES = ("quiet", "finite", "flushed", "clamped")  # NaN, infinities, subnormal numbers, numbers above 2 changed


@dataclass(frozen=True, slots=True)
class Edit:
    """Put `replacement` in the place of what stands from `start` to `end`."""

    operator: str
    start: int
    end: int
    replacement: str

    def applied(self, source: str) -> str:
        """The mutant. Its lines have the numbers that they had."""
        lines = "\n" * (source.count("\n", self.start, self.end) - self.replacement.count("\n"))
        return source[: self.start] + self.replacement + lines + source[self.end :]


Edits = Iterator[Edit]


def replaced(text: Text, operator: str, first: int, last: int, replacement: str) -> Edit:
    """The tokens from `first` to `last` replaced."""
    return Edit(operator, text.tokens[first].start, text.tokens[last].end, replacement)


def constants(text: Text) -> set[str]:
    """Names whose value the compiler knows."""
    words = [token.text for token in text.tokens]
    of_template = zip(words, words[1:], words[2:], strict=False)
    known = {name for before, word, name in of_template if word == "int" and before in "<,"}
    declared = zip(words, words[2:], words[3:], strict=False)
    return known | {name for word, name, sign in declared if word == "constexpr" and sign in ("=", "[")}


def synchronises(line: str) -> bool:
    """Return whether the line has a barrier, a copy or a fence, which a host need not have."""
    words = re.findall(r"[A-Za-z_]\w*", line.partition("//")[0])
    return any(names.fullmatch(word) for names in (BARRIERS, COPIES, FENCES) for word in words)


def dropped_terms(text: Text) -> Edits:
    """One side of a sum or a product, or a whole statement."""
    for i in text.indices:
        sign = text.text(i)
        if not text.is_binary(i) or sign in ("&&", "||", *COMPARISONS):
            continue
        yield replaced(text, "dropped term", i, text.right_operand(i), "")
        if sign in "+*":
            yield replaced(text, "dropped term", text.left_operand(i), i, "")
    for first, last in text.statements:
        if _is_act(text, first, last) and _kind(text, first) == "dropped term":
            yield replaced(text, "dropped term", first, last - 1, "")


def removed_synchronisation(text: Text) -> Edits:
    """Barriers, copies with their waits, and fences."""
    for first, last in text.statements:
        if _is_act(text, first, last) and (kind := _kind(text, first)) != "dropped term":
            yield replaced(text, kind, first, last - 1, "")


def _is_act(text: Text, first: int, last: int) -> bool:
    """Return whether the statement assigns or calls something, and declares nothing."""
    if last <= first or text.text(first) in DECLARATIONS or text.tokens[first + 1].kind == "name":
        return False
    return bool({text.text(i) for i in range(first, last)} & {*ASSIGNMENTS, "(", "++", "--"})


def _kind(text: Text, first: int) -> str:
    """Return the operator that removes the statement, by the name of the function that it calls."""
    for kind, names in (("barrier", BARRIERS), ("copy", COPIES), ("fence", FENCES)):
        if names.fullmatch(text.text(first)) and text.text(first + 1) in ("(", "<"):
            return kind
    return "dropped term"


def constants_off_by_one(text: Text) -> Edits:
    """Integers, one more and one less."""
    for i in text.indices:
        token = text.tokens[i]
        found = re.fullmatch(r"(0[xX][0-9A-Fa-f]+|\d+)([uUlL]*)", token.text)
        if token.kind == "number" and found is not None:
            value, is_hex = int(found[1], 0), found[1][:2] in ("0x", "0X")
            for other in (value + 1, value - 1):
                spelt = hex(other) if is_hex and other >= 0 else str(other)
                yield replaced(text, "constant", i, i, f"{spelt}{found[2]}" if other >= 0 else f"({spelt})")


def comparisons(text: Text) -> Edits:
    """Off by one, and turned around."""
    for i in text.indices:
        if text.text(i) in COMPARISONS and text.is_binary(i):
            for other in COMPARISONS[text.text(i)].split():
                yield replaced(text, "comparison", i, i, other)


def arithmetic(text: Text) -> Edits:
    """One operation for another."""
    for i in text.indices:
        if text.text(i) in SWAPPED_SIGNS and text.is_spaced(i):
            for other in SWAPPED_SIGNS[text.text(i)].split():
                yield replaced(text, "arithmetic", i, i, other)


def swapped_names(text: Text) -> Edits:
    """An index, an extent or an operand for another one that the same function knows."""
    for first, last in _functions(text):
        known = {text.text(i) for i in range(first, last)}
        for i in range(first, last):
            for other in SWAPPED_NAMES.get(text.text(i), ()):
                if other in known and not _is_declared(text, i):
                    yield replaced(text, "swapped name", i, i, other)


def narrower_types(text: Text) -> Edits:
    """In declarations and casts."""
    meant = dict(re.findall(r"using (scalar|sum_t) = (\w+);", text.source))
    wide = {name for name, type_name in meant.items() if type_name == "double"}
    same = {("sum_t", "scalar")} if meant["sum_t"] == meant["scalar"] else set[tuple[str, str]]()
    same |= {(name, "float") for name in {"scalar", "sum_t"} - wide}
    for i in text.indices:
        word = text.text(i)
        if word == "long" and text.text(i + 1) == "long":
            yield replaced(text, "narrower", i, i + 1, "int" if text.text(i - 1) != "unsigned" else "")
        elif word in NARROWER and text.text(i - 1) not in ("using", "class", "constexpr"):
            if text.text(i + 1) in ("long", "*", "&") or text.text(i + 2) == "&":  # a pointer would have no type
                continue
            for other in (one for one in NARROWER[word] if (word, one) not in same):
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
    if not index or text.text(index + 1) in ("::", "<"):
        return True
    before = text.tokens[index - 1]
    return (
        before.text in ("__restrict__", ".", "::")
        or (before.kind == "name" and before.text not in ("return", "else", "case"))
        or (before.text in "*&" and not text.is_spaced(index - 1) and text.tokens[index - 2].kind == "name")
    )


def ignored_flags(text: Text) -> Edits:
    """Conditions that always or never hold, one of two conditions alone, and signs of numbers left out."""
    for i in text.indices:
        word = text.text(i)
        if (word == "if" and text.text(i + 1) == "(") or word == "?":
            places = (i + 2, text.partner[i + 1] - 1) if word == "if" else (_condition_of(text, i), i - 1)
            for value in ("true", "false"):
                yield replaced(text, "flag", *places, value)
        elif word in ("&&", "||"):
            yield replaced(text, "flag", i, text.right_operand(i), "")
            yield replaced(text, "flag", text.left_operand(i), i, "")
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


def early_stops(text: Text) -> Edits:
    """Loops that end too early where they are long, and extents and places cut to fewer bits."""
    known = constants(text)
    large = {*re.findall(r"\bindex_t (\w+)", text.source)}
    large |= {*re.findall(r"\bindex_t \w+ = [^;]*, (\w+) =", text.source)}
    for i in text.indices:
        word, before = text.text(i), text.tokens[i - 1]
        if word == "for" and text.text(i + 1) == "(":
            yield from _shortened(text, i, known)
        elif word in EXTENTS and (before.kind != "name" or before.text == "return"):
            for mask in MASKS:
                yield replaced(text, "early stop", i, i, f"({word} & {mask})")
        elif word == "[" and i + 1 < text.partner.get(i, 0):
            words = {text.text(t) for t in range(i + 1, text.partner[i])}
            if words & large and before.text not in ("operator", ")"):
                inside = text.between(i + 1, text.partner[i] - 1)
                yield replaced(text, "early stop", i + 1, text.partner[i] - 1, f"({inside}) & 0xFFFF")


def _shortened(text: Text, index: int, known: set[str]) -> Edits:
    """A loop over more than the compiler knows, which ends past a power of two at the latest."""
    ends = [t for t in range(index + 2, text.partner[index + 1]) if text.text(t) == ";"]
    if len(ends) != 2 or ends[1] <= ends[0] + 2:
        return
    first, last = ends[0] + 1, ends[1] - 1
    names = {text.text(t) for t in range(first + 1, last + 1) if text.tokens[t].kind == "name"}
    if names - known and text.tokens[first].kind == "name":
        for bound in (256, 4096, 32768, 65536):
            condition = f"({text.between(first, last)}) && {text.text(first)} < {bound}"
            yield replaced(text, "early stop", first, last, condition)


def lasting_state(text: Text) -> Edits:
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
            counted = "static unsigned launches; launches += threadIdx.x == 0 && blockIdx.x == 0;"
            for launches in LAUNCHES:
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


def rounded(text: Text) -> Edits:
    """Yield edits that drop the last bits of stored or added values, round toward zero, or leave out low parts."""
    is_half = re.search(r"using scalar = b?float16;", text.source) is not None
    floating = {*_declared(text), *FLOATING}
    for i in text.indices:
        word = text.text(i)
        if word in ("=", "+=", "-=") and text.is_spaced(i) and (last := _value(text, i, floating)) is not None:
            value = text.between(i + 1, last)
            late = [
                f"{one} > {n} ? mutant::narrow({value}) : {value}" for one in _loops_around(text, i) for n in LATE
            ]
            for other in (f"mutant::low({value})", f"mutant::narrow({value})", *late):
                yield replaced(text, "rounding", i + 1, last, other)
        elif is_half and word == "scalar" and text.text(i + 1) == "(" and text.text(i + 2) not in ("0", "&"):
            yield replaced(text, "rounding", i, i, "mutant::toward_zero<scalar>")
        elif re.fullmatch(r"rest_of|low\w*|\w*_rest|__fma\w*|fma|fmaf", word) and text.text(i + 1) == "(":
            apart = "([](auto a, auto b, auto c) { return mutant::low(a * b) + c; })"
            last, other = (i, apart) if "fma" in word else (text.partner[i + 1], "0")
            yield replaced(text, "rounding", i, last, other)


def narrower_numbers(text: Text) -> Edits:
    """A number that is used, such as beta, of lower precision."""
    for first, last in _uses(text):
        yield replaced(text, "narrower", first, last, f"mutant::narrow({text.between(first, last)})")


def values(text: Text) -> Edits:
    """Numbers of some kinds taken for others."""
    for first, last in _uses(text):
        for kind in VALUES:
            yield replaced(text, "value", first, last, f"mutant::{kind}({text.between(first, last)})")


def _declared(text: Text) -> dict[str, bool]:
    """Floating-point variables that a text declares; whether each is an array or a pointer."""
    found = {"alpha": False, "beta": False}
    for i in range(len(text.tokens) - 2):
        if text.text(i) in FLOATING and text.text(i - 1) not in ("<", "struct", "using"):
            at = i + 1
            while text.text(at) in ("&", "*", "(", "__restrict__"):
                at += 1
            if text.tokens[at].kind == "name":
                many = any(text.text(t) in "*(" for t in range(i + 1, at)) or text.text(at + 1) == "["
                found[text.text(at)] = many or found.get(text.text(at), False)
    return {name: many for name, many in found.items() if name not in FLOATING and name != "operator"}


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


def _value(text: Text, index: int, floating: set[str]) -> int | None:
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
    return None if is_pointer or names & WHOLE or not names & floating else at - 1


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


OPERATORS: tuple[Callable[[Text], Edits], ...] = (
    dropped_terms, removed_synchronisation, constants_off_by_one, comparisons, arithmetic, swapped_names,
    narrower_types, ignored_flags, early_stops, lasting_state, rounded, narrower_numbers, values,
)  # fmt: skip
