"""Shell completion of devices, element types, ops, kernel families, imports and configurations."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from click import Context, Parameter
from click.shell_completion import CompletionItem

from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.problem import ELEMENT_TYPES

OPS = ("nn", "nt", "tn", "tt", "cn", "nc", "gram")  # common ops
MOST_CONFIGURATIONS = 20_000  # searched in a family, since the shell waits


def devices_here(ctx: Context, param: Parameter, incomplete: str) -> list[str]:
    """Complete GPU ordinals and cpu."""
    from tsm2_tune.tuner.device.cuda import cuda_device_count

    return _beginning(incomplete, [*map(str, range(cuda_device_count())), "cpu"])


def several_devices(ctx: Context, param: Parameter, incomplete: str) -> list[str]:
    """Complete the last of several devices in a list with commas, or `all`."""
    before, comma, last = incomplete.rpartition(",")
    if not comma:
        return [*devices_here(ctx, param, incomplete), *_beginning(incomplete, ["all"])]
    named = (*before.split(","), "cpu")
    return [f"{before},{one}" for one in devices_here(ctx, param, last) if one not in named]


def devices_and_cards(ctx: Context, param: Parameter, incomplete: str) -> list[str]:
    """Complete devices and bundled cards."""
    return [*devices_here(ctx, param, incomplete), *_beginning(incomplete, PROFILES)]


def _listed(incomplete: str, every: Iterable[str]) -> list[str]:
    """Return the completions of the last item of a comma-separated list, without items already listed."""
    before, comma, last = incomplete.rpartition(",")
    named = before.split(",")
    return [f"{before}{comma}{name}" for name in _beginning(last, every) if name not in named]


def dtypes(ctx: Context, param: Parameter, incomplete: str) -> list[str]:
    """Complete a list of element types."""
    return _listed(incomplete, ELEMENT_TYPES)


def ops(ctx: Context, param: Parameter, incomplete: str) -> list[str]:
    """Complete a list of common ops."""
    return _listed(incomplete, OPS)


def families(ctx: Context, param: Parameter, incomplete: str) -> list[str]:
    """Complete a list of kernel families."""
    from tsm2_tune.generator.families import FAMILIES  # slow to import

    return _listed(incomplete, FAMILIES)


def configurations(ctx: Context, param: Parameter, incomplete: str) -> list[str]:
    """Complete a configuration up to the next value with a choice: a shell ends a word with only one completion."""
    from tsm2_tune.generator.config import family_name_in
    from tsm2_tune.generator.families import FAMILIES

    if ":" not in incomplete:
        names = [f"{name}:" for name in _beginning(incomplete, FAMILIES)]
        if len(names) != 1:
            return names
        incomplete = names[0]
    family = FAMILIES.get(family_name_in(incomplete))
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
    """Complete the package's own texts once their prefix is typed; otherwise let the shell list files."""
    from tsm2_tune.pretuned import PREFIX, pretuned

    if not incomplete.startswith(PREFIX):
        return [CompletionItem(incomplete, type="file")]
    return [CompletionItem(name) for name in _beginning(incomplete, [PREFIX + one.name for one in pretuned()])]


def _up_to_comma(text: str, at: int) -> str:
    """Return the text through the first comma after `at`."""
    return text[: text.find(",", at) + 1] or text


def _beginning(incomplete: str, every: Iterable[str]) -> list[str]:
    return [one for one in every if one.startswith(incomplete)]
