"""The text of a configuration's tunables: `word=value,...`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from tsm2_tune.generator.space.tunables import Declared, TunableValue, declared

PATTERNS = {int: "0|[1-9][0-9]{0,9}", str: "[a-z][a-z0-9]*"}  # by the type of a tunable
_READ = {of: re.compile(pattern) for of, pattern in PATTERNS.items()}


def spelt(config_type: type[Any], values: Mapping[str, TunableValue]) -> str:
    """Return the values in the order of the tunables; those are left out that have their usual values."""
    said = []
    for word, together in _by_word(config_type).items():
        for one in together:
            if values[one.name] != one.default:
                said.append(f"{word}={'x'.join([value_spelt(one, values[one.name]) for one in together])}")
                break
    return ",".join(said)


def read(config_type: type[Any], text: str) -> dict[str, TunableValue] | None:
    """Return the values that are spelt so, in any order; None if the text spells none, or not every one."""
    said = [item.partition("=") for item in text.split(",")]
    texts, known = {word: value for word, _, value in said}, _by_word(config_type)
    if len(texts) < len(said) or not texts.keys() <= known.keys():
        return None
    found: dict[str, TunableValue | None] = {}
    for word, together in known.items():
        if word not in texts:
            found |= {one.name: one.default for one in together}
            continue
        parts = texts[word].split("x") if len(together) > 1 else [texts[word]]
        if len(parts) != len(together):
            return None
        for one, part in zip(together, parts, strict=True):
            found[one.name] = _value_read(one, part)
    values = {name: value for name, value in found.items() if value is not None}
    return values if len(values) == len(found) else None


def unknown_word(config_type: type[Any], text: str) -> str:
    """Return the first word that is none of the configuration's, in a text of words and values; "" where all are."""
    words = (item.partition("=")[0] for item in text.split(","))
    return next((word for word in words if word not in _by_word(config_type)), "")


def words_of(config_type: type[Any]) -> tuple[str, ...]:
    """Return the words that name tunables in a configuration's text."""
    return tuple(_by_word(config_type))


_BY_WORD: dict[Any, dict[str, list[Declared]]] = {}


def _by_word(config_type: type[Any]) -> dict[str, list[Declared]]:
    if config_type not in _BY_WORD:
        by_word = groupby(declared(config_type), key=lambda one: one.word)
        _BY_WORD[config_type] = {word: list(together) for word, together in by_word}
    return _BY_WORD[config_type]


def value_spelt(one: Declared, value: TunableValue) -> str:
    """One value, alone."""
    if isinstance(value, str):
        return value
    names = one.tunable.values
    return names[value] if 0 <= value < len(names) else str(value * one.tunable.unit)


def _value_read(one: Declared, text: str) -> TunableValue | None:
    if one.tunable.values:
        return one.tunable.values.index(text) if text in one.tunable.values else None
    if not _READ[one.type].fullmatch(text):
        return None
    if one.type is str:
        return text
    value, rest = divmod(int(text), one.tunable.unit)
    return None if rest else value
