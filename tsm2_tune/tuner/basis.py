"""What a stored trial rests on: when any of it changes, the trial is stale."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files

from jinja2 import Environment, meta

from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.render import environment
from tsm2_tune.tuner.target import Target
from tsm2_tune.tuner.trial import Cache

PACKAGE = "tsm2_tune"
_IMPORT = re.compile(rf"^from ({PACKAGE}\.generator\.[\w.]+) import ", re.MULTILINE)


def basis(family: str, target: Target, cache: Cache) -> str:
    """Digest of what makes a stored trial stale when it changes, or another measurement.

    That is the family's templates, the Python that fills them in, the compiler, its version, flags and architecture;
    and the state of the L2, but for clean, which all trials had before there were others.
    """
    state = [] if cache is Cache.CLEAN else [cache.value]
    facts = "\n".join([*family_texts(family), target.toolchain.digest, *state])
    return hashlib.sha256(facts.encode()).hexdigest()


@cache
def family_texts(family: str) -> tuple[str, ...]:
    """The family's template, its Python, and all that these refer to, as they stand in their files."""
    jinja = environment()
    templates = sorted(referenced_templates(jinja, family_named(family).template))
    modules = sorted(needed_modules(f"{PACKAGE}.generator.families.{family}"))
    return (*(template_text(jinja, name) for name in templates), *map(module_text, modules))


def needed_modules(module: str) -> set[str]:
    """The module with all of the generator's that it imports at the top of its file, and that these import."""
    found, unread = set[str](), [module]
    while unread:
        current = unread.pop()
        if current not in found:
            found.add(current)
            unread.extend(_IMPORT.findall(module_text(current)))
    return found


@cache
def module_text(module: str) -> str:
    """The Python of a module of this package as it stands in its file."""
    *folders, name = module.split(".")[1:]
    return files(PACKAGE).joinpath(*folders, f"{name}.py").read_text(encoding="utf-8")


def template_text(jinja: Environment, name: str) -> str:
    """The template as it stands in its file."""
    assert jinja.loader is not None
    return jinja.loader.get_source(jinja, name)[0]


def referenced_templates(jinja: Environment, name: str) -> set[str]:
    """The template with all that it extends, imports and includes."""
    found, unread = set[str](), [name]
    while unread:
        current = unread.pop()
        if current not in found:
            found.add(current)
            references = meta.find_referenced_templates(jinja.parse(template_text(jinja, current)))
            unread.extend(filter(None, references))
    return found
