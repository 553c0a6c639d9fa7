"""The kernel families, found by their files: each module beside this one defines one `FAMILY`."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from tsm2_tune.errors import InputError
from tsm2_tune.generator.families.family import Family

FAMILIES: dict[str, Family[Any]] = {
    family.name: family
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name)
    if module.name != "family"
    for family in [importlib.import_module(f"{__name__}.{module.name}").FAMILY]
}


def family_named(name: str) -> Family[Any]:
    """The family called `name`; InputError for an unknown one."""
    if name not in FAMILIES:
        raise InputError(f"unknown family {name!r}: expected one of {', '.join(FAMILIES)}")
    return FAMILIES[name]
