"""A rendered text as tokens: those that both the host and a GPU compile."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

_TOKEN = re.compile(
    r"""(?P<skip>//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*")
      | (?P<number>0[xX][0-9A-Fa-f.]+(?:p[-+]?\d+)?[uUlLf]*|\d+\.?\d*(?:e[-+]?\d+)?[uUlLf]*)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<sign><<=|>>=|\.\.\.|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|::|[^\s\w])""",
    re.DOTALL | re.VERBOSE,
)
_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(\w+)[ \t]*(.*?)[ \t]*(?://.*)?$")
_KNOWN = {"TSM2_HOST": 1, "INDEX_BITS": 32}
_CLOSING = {"(": ")", "[": "]", "{": "}"}
# Words that compute nothing: compilers and drivers check their statements.
_APART = ("static_assert", "__launch_bounds__", "asm", "__align__")

# Binary signs by how strongly they bind, weakest first.
STRENGTH = {
    sign: strength
    for strength, signs in enumerate(
        ("||", "&&", "|", "^", "&", "== !=", "< <= > >=", "<< >>", "+ -", "* / %"), start=1
    )
    for sign in signs.split()
}
ASSIGNMENTS = ("=", "+=", "-=", "*=", "/=", "%=", "|=", "&=", "^=", "<<=", ">>=")
_ENDS = {",", ";", "?", ":", "return", *ASSIGNMENTS}


@dataclass(frozen=True, slots=True)
class Token:
    """A name, a number or a sign, and where it stands."""

    kind: str
    text: str
    start: int
    end: int


class Text:
    """A text with its tokens, and which brackets belong together."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._lines = [0, *accumulate(len(line) + 1 for line in source.split("\n"))]
        shared = shared_lines(source)
        lines = source.split("\n")
        code = "\n".join(shared.get(at, " " * len(line)) for at, line in enumerate(lines, start=1))
        self.tokens = [
            Token(str(found.lastgroup), found.group(), found.start(), found.end())
            for found in _TOKEN.finditer(code)
            if found.lastgroup != "skip"
        ]
        self.partner = _partners(self.tokens)

    def line_number(self, position: int) -> int:
        """Return the number of the line that the position is in, from 1 on."""
        return bisect_right(self._lines, position)

    def line(self, position: int) -> str:
        """The line that the position is in."""
        number = self.line_number(position)
        return self.source[self._lines[number - 1] : self._lines[number] - 1]

    @cached_property
    def indices(self) -> tuple[int, ...]:
        """Return the indices of the tokens that may be changed."""
        apart = {i for first in range(len(self.tokens)) if self.text(first) in _APART for i in self._range(first)}
        return tuple(i for i in range(len(self.tokens)) if i not in apart)

    def _range(self, first: int) -> range:
        return range(first, self.partner.get(first + 1, first + 1) + 1)

    def text(self, index: int) -> str:
        """Return the token's text, or "" if the index is out of range."""
        return self.tokens[index].text if 0 <= index < len(self.tokens) else ""

    def between(self, first: int, last: int) -> str:
        """The source from token `first` to the end of token `last`."""
        return self.source[self.tokens[first].start : self.tokens[last].end]

    def is_spaced(self, index: int) -> bool:
        """Return whether a sign has spaces on both sides: as binary operators have and others have not."""
        token = self.tokens[index]
        return self.source[token.start - 1] in " \n" and self.source[token.end] in " \n"

    def is_binary(self, index: int) -> bool:
        return self.text(index) in STRENGTH and self.is_spaced(index) and self.text(index - 1) != "template"

    def left_operand(self, index: int) -> int:
        """The first token of what stands to the left of a binary sign."""
        strength, at = STRENGTH[self.text(index)], index - 1
        while at >= 0:
            before = self.partner.get(at, at)
            if before > at or self.text(at) in _ENDS or (self.is_binary(at) and STRENGTH[self.text(at)] < strength):
                break
            at = before - 1
        return at + 1

    def right_operand(self, index: int) -> int:
        """The last token of what stands to the right of a binary sign."""
        strength, at = STRENGTH[self.text(index)], index + 1
        while at < len(self.tokens):
            after = self.partner.get(at, at)
            if after < at or self.text(at) in _ENDS or (self.is_binary(at) and STRENGTH[self.text(at)] <= strength):
                break
            at = after + 1
        return at - 1

    @cached_property
    def statements(self) -> list[tuple[int, int]]:
        """First and last token of every statement that ends in a semicolon, without what it depends on."""
        found, first, in_round = [], 0, 0
        for at, token in enumerate(self.tokens):
            if token.text in "([":
                in_round += 1
            elif token.text in ")]":
                in_round -= 1
            if token.text in "{}" or (token.text == ";" and not self._in_header(at)):
                if token.text == ";":
                    found.append((self._past_conditions(first), at))
                first = at + 1
        return found

    def _in_header(self, index: int) -> bool:
        """Return whether the semicolon is between the parentheses of a loop's head."""
        at = index - 1
        while at >= 0:
            before = self.partner.get(at, at)
            if before > at:
                return self.text(at) == "("
            at = before - 1
        return False

    def _past_conditions(self, first: int) -> int:
        while self.text(first) in ("if", "for", "while", "else"):
            first += 1
            if self.text(first) == "constexpr":
                first += 1
            if self.text(first) == "(":
                first = self.partner.get(first, first) + 1
        return first


def shared_lines(source: str) -> dict[int, str]:
    """Number -> line, of the lines that are compiled, and not for the host or for a GPU alone."""
    shared, conditions = dict[int, str](), list[tuple[bool, bool]]()  # holds now, depends on the host
    for number, line in enumerate(source.split("\n"), start=1):
        found = _DIRECTIVE.match(line) if "#" in line else None
        if found is None:
            if all(holds and not depends for holds, depends in conditions):
                shared[number] = line
            continue
        word, rest = found.groups()
        depends = "TSM2_HOST" in rest or "__CUDA_ARCH__" in rest
        if word in ("ifdef", "ifndef"):
            conditions.append(((rest in _KNOWN) == (word == "ifdef"), depends))
        elif word == "if":
            conditions.append((_holds(rest), depends))
        elif word in ("else", "elif"):
            held, depended = conditions.pop()
            conditions.append((not held and (word == "else" or _holds(rest)), depended or depends))
        elif word == "endif":
            conditions.pop()
    return shared


def _holds(condition: str) -> bool:
    """Return whether a preprocessor's condition is true for the host's compiler."""
    text = re.sub(r"defined\s*\(?\s*(\w+)\s*\)?", lambda found: str(int(found[1] in _KNOWN)), condition)
    text = re.sub(r"[A-Za-z_]\w*", lambda found: str(_KNOWN.get(found[0], 0)), text)
    text = text.replace("&&", " and ").replace("||", " or ")
    return bool(eval(re.sub(r"!(?!=)", " not ", text), {"__builtins__": {}}))


def _partners(tokens: list[Token]) -> dict[int, int]:
    partner, open_ones = dict[int, int](), list[int]()
    for at, token in enumerate(tokens):
        if token.text in _CLOSING:
            open_ones.append(at)
        elif token.text in _CLOSING.values() and open_ones:
            first = open_ones.pop()
            partner[first], partner[at] = at, first
    return partner
