"""What a shell completes: devices, element types, ops, kernel families, what can be imported, configurations."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from click import Context, Parameter
from click.shell_completion import CompletionItem

from tsm2_tune.generator.problem import ELEMENT_TYPES
from tsm2_tune.generator.profiles import PROFILES

OPS = ("nn", "nt", "tn", "tt", "cn", "nc", "gram")  # those that are usual
MOST_CONFIGURATIONS = 20_000  # of a family that are looked at: the shell waits


def devices_here(ctx: Context, param: Parameter, incomplete: str) -> list[str]:
    """GPUs by their ordinals, and the host."""
    from tsm2_tune.tuner.cuda import cuda_device_count

    return _beginning(incomplete, [*map(str, range(cuda_device_count())), "cpu"])


def several_devices(ctx: Context, param: Parameter, incomplete: str) -> list[str]:
    """The same, also the last of several with commas between, and all."""
    before, comma, last = incomplete.rpartition(",")
    if not comma:
        return [*devices_here(ctx, param, incomplete), *_beginning(incomplete, ["all"])]
    named = (*before.split(","), "cpu")
    return [f"{before},{one}" for one in devices_here(ctx, param, last) if one not in named]


def devices_and_cards(ctx: Context, param: Parameter, incomplete: str) -> list[str]:
    """The same, and bundled cards."""
    return [*devices_here(ctx, param, incomplete), *_beginning(incomplete, PROFILES)]


def _listed(incomplete: str, every: Iterable[str]) -> list[str]:
    """The last of several names with commas between, without those before it."""
    before, comma, last = incomplete.rpartition(",")
    named = before.split(",")
    return [f"{before}{comma}{name}" for name in _beginning(last, every) if name not in named]


def dtypes(ctx: Context, param: Parameter, incomplete: str) -> list[str]:
    """Element types, one after another."""
    return _listed(incomplete, ELEMENT_TYPES)


def ops(ctx: Context, param: Parameter, incomplete: str) -> list[str]:
    """Usual ops, one after another."""
    return _listed(incomplete, OPS)


def families(ctx: Context, param: Parameter, incomplete: str) -> list[str]:
    """Kernel families, one after another."""
    from tsm2_tune.generator.families import FAMILIES  # which takes as long to load as all the rest

    return _listed(incomplete, FAMILIES)


def configurations(ctx: Context, param: Parameter, incomplete: str) -> list[str]:
    """Their beginnings up to the next value that has a choice: a shell ends the word after the only one."""
    from tsm2_tune.generator.config import family_spelt
    from tsm2_tune.generator.families import FAMILIES

    if ":" not in incomplete:
        names = [f"{name}:" for name in _beginning(incomplete, FAMILIES)]
        if len(names) != 1:
            return names
        incomplete = names[0]
    family = FAMILIES.get(family_spelt(incomplete))
    if family is None:
        return []
    every = (one.text for one in islice(family.configurations(), MOST_CONFIGURATIONS))
    texts = _beginning(incomplete, every)
    at = len(incomplete)
    while texts:
        found = sorted({_up_to_comma(text, at) for text in texts})
        if len(found) > 1 or found[0] == texts[0]:
            return found
        at = len(found[0])
    return []


def importable(ctx: Context, param: Parameter, incomplete: str) -> list[CompletionItem]:
    """The package's own texts once their prefix is there; else files, which a shell lists by itself."""
    from tsm2_tune.pretuned import PREFIX, pretuned

    if not incomplete.startswith(PREFIX):
        return [CompletionItem(incomplete, type="file")]
    return [CompletionItem(name) for name in _beginning(incomplete, [PREFIX + one.name for one in pretuned()])]


def _up_to_comma(text: str, at: int) -> str:
    """The text up to the first comma from here on, with that."""
    return text[: text.find(",", at) + 1] or text


def _beginning(incomplete: str, every: Iterable[str]) -> list[str]:
    return [one for one in every if one.startswith(incomplete)]
