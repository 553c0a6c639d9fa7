"""How the tunables of a configuration are spelt: `word=value,...`, and by older versions a letter for each."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby

from tsm2_tune.generator.tunables import Declared, TunableValue

PATTERNS = {int: "0|[1-9][0-9]{0,9}", str: "[a-z][a-z0-9]*"}  # by the type of a tunable


def spelt(tunables: Sequence[Declared], values: Mapping[str, TunableValue]) -> str:
    """The values in the order of the tunables; those are left out that have their usual values."""
    said = []
    for word, together in _by_word(tunables).items():
        if any(values[one.name] != one.usual for one in together):
            said.append(f"{word}={'x'.join(value_spelt(one, values[one.name]) for one in together)}")
    return ",".join(said)


def read(tunables: Sequence[Declared], text: str) -> dict[str, TunableValue] | None:
    """The values that are spelt so, in any order; None where the text spells none, or not every one."""
    said = [item.partition("=") for item in text.split(",")]
    texts, known = {word: value for word, _, value in said}, _by_word(tunables)
    if len(texts) < len(said) or not texts.keys() <= known.keys():
        return None
    found: dict[str, TunableValue | None] = {}
    for word, together in known.items():
        parts = (
            texts[word].split("x") if word in texts and len(together) > 1 else [texts[word]] if word in texts else []
        )
        if len(parts) not in (0, len(together)):
            return None
        found |= {one.name: _value_read(one, part) for one, part in zip(together, parts, strict=False)}
        found |= {one.name: one.usual for one in together if not parts}
    values = {name: value for name, value in found.items() if value is not None}
    return values if len(values) == len(found) else None


def read_letters(tunables: Sequence[Declared], later: Collection[str], text: str) -> dict[str, TunableValue] | None:
    """The values in a text of older versions, such as v3-t128-c8-p4, which may lack those of `later` tunables."""
    said = [one for one in tunables if one.tunable.letter is not None]
    patterns = (f"(?:-{one.tunable.letter}({PATTERNS[one.type]})){'?' if one.name in later else ''}" for one in said)
    found = re.fullmatch("".join(patterns), f"-{text}")
    if found is None:
        return None
    return {one.name: one.type(value) for one, value in zip(said, found.groups(), strict=True) if value is not None}


def _by_word(tunables: Sequence[Declared]) -> dict[str, list[Declared]]:
    return {word: list(together) for word, together in groupby(tunables, key=lambda one: one.word)}


def value_spelt(one: Declared, value: TunableValue) -> str:
    """One value, alone."""
    if isinstance(value, str):
        return value
    names = one.tunable.values
    return names[value] if 0 <= value < len(names) else str(value * one.tunable.unit)


def _value_read(one: Declared, text: str) -> TunableValue | None:
    if one.tunable.values:
        return one.tunable.values.index(text) if text in one.tunable.values else None
    if not re.fullmatch(PATTERNS[one.type], text):
        return None
    if one.type is str:
        return text
    value, rest = divmod(int(text), one.tunable.unit)
    return None if rest else value
