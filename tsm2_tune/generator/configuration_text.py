"""Format and parse the tunables in a configuration's text: `key=value,...`.

Adjacent tunables with the same key are printed together: `block=128x64x32`. Default values are omitted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from tsm2_tune.generator.space.tunables import Declared, TunableValue, declared

PATTERNS = {kind: re.compile(text) for kind, text in ((int, "0|[1-9][0-9]{0,9}"), (str, "[a-z][a-z0-9]*"))}


def format_tunables(config_type: type[Any], values: Mapping[str, TunableValue]) -> str:
    """Return the text `key=value,...` of the tunables, in their order. Keys with default values are omitted."""
    items = []
    for word, tunables in _by_word(config_type).items():
        if any(values[tunable.name] != tunable.default for tunable in tunables):
            items.append(f"{word}={'x'.join([format_value(tunable, values[tunable.name]) for tunable in tunables])}")
    return ",".join(items)


def parse_tunables(config_type: type[Any], text: str) -> dict[str, TunableValue] | None:
    """Parse `key=value,...`, in any order, into tunable name -> value.

    Return None if the text is invalid or lacks a tunable without default.
    """
    items = [item.partition("=") for item in text.split(",")]
    texts, by_word = {word: value for word, _, value in items}, _by_word(config_type)
    if len(texts) < len(items) or not texts.keys() <= by_word.keys():
        return None
    found: dict[str, TunableValue | None] = {}
    for word, tunables in by_word.items():
        if word not in texts:
            found |= {tunable.name: tunable.default for tunable in tunables}
            continue
        parts = texts[word].split("x") if len(tunables) > 1 else [texts[word]]
        if len(parts) != len(tunables):
            return None
        for tunable, part in zip(tunables, parts, strict=True):
            found[tunable.name] = _parse_value(tunable, part)
    values = {name: value for name, value in found.items() if value is not None}
    return values if len(values) == len(found) else None


def unknown_word(config_type: type[Any], text: str) -> str:
    """Return the first key in a configuration's text that no tunable has; "" if all keys are known."""
    words = (item.partition("=")[0] for item in text.split(","))
    return next((word for word in words if word not in _by_word(config_type)), "")


def tunable_words(config_type: type[Any]) -> tuple[str, ...]:
    """Return the keys that may occur in the text of a configuration of this class."""
    return tuple(_by_word(config_type))


_BY_WORD: dict[Any, dict[str, list[Declared]]] = {}


def _by_word(config_type: type[Any]) -> dict[str, list[Declared]]:
    if config_type not in _BY_WORD:
        groups = groupby(declared(config_type), key=lambda tunable: tunable.word)
        _BY_WORD[config_type] = {word: list(tunables) for word, tunables in groups}
    return _BY_WORD[config_type]


def format_value(tunable: Declared, value: TunableValue) -> str:
    """Return the text of one tunable's value."""
    if isinstance(value, str):
        return value
    names = tunable.tunable.values
    return names[value] if 0 <= value < len(names) else str(value * tunable.tunable.unit)


def _parse_value(tunable: Declared, text: str) -> TunableValue | None:
    if tunable.tunable.values:
        return tunable.tunable.values.index(text) if text in tunable.tunable.values else None
    if not PATTERNS[tunable.type].fullmatch(text):
        return None
    if tunable.type is str:
        return text
    value, rest = divmod(int(text), tunable.tunable.unit)
    return None if rest else value
