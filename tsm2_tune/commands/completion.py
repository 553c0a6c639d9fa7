"""Shell completion of devices, element types, ops, kernel families, files to import and kernel configurations."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from click import Context, Parameter
from click.shell_completion import CompletionItem

from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.dtypes import ELEMENT_TYPES

OPS = ("nn", "nt", "tn", "tt", "cn", "nc", "gram")  # the common ones: transposes of A and B, or gram for A^T A
MOST_CONFIGURATIONS = 20_000  # limit of the configurations searched for completions: the user waits


def devices_here(ctx: Context, param: Parameter, incomplete: str) -> list[str]:
    """Return completions of one device: a CUDA ordinal of this machine, or cpu."""
    from tsm2_tune.tuner.device.cuda import cuda_device_count

    return _beginning(incomplete, [*map(str, range(cuda_device_count())), "cpu"])


def several_devices(ctx: Context, param: Parameter, incomplete: str) -> list[str]:
    """Return completions of the last device in a comma-separated list, or of `all`."""
    before, comma, last = incomplete.rpartition(",")
    if not comma:
        return [*devices_here(ctx, param, incomplete), *_beginning(incomplete, ["all"])]
    named = (*before.split(","), "cpu")
    return [f"{before},{one}" for one in devices_here(ctx, param, last) if one not in named]


def devices_and_cards(ctx: Context, param: Parameter, incomplete: str) -> list[str]:
    """Return completions of a device here or a card whose data sheet is included in the package."""
    return [*devices_here(ctx, param, incomplete), *_beginning(incomplete, PROFILES)]


def _listed(incomplete: str, every: Iterable[str]) -> list[str]:
    """Return completions of the last item of a comma-separated list, without items that it already contains."""
    before, comma, last = incomplete.rpartition(",")
    named = before.split(",")
    return [f"{before}{comma}{name}" for name in _beginning(last, every) if name not in named]


def dtypes(ctx: Context, param: Parameter, incomplete: str) -> list[str]:
    """Return completions of a comma-separated list of element types."""
    return _listed(incomplete, ELEMENT_TYPES)


def ops(ctx: Context, param: Parameter, incomplete: str) -> list[str]:
    """Return completions of a comma-separated list of ops."""
    return _listed(incomplete, OPS)


def families(ctx: Context, param: Parameter, incomplete: str) -> list[str]:
    """Return completions of a comma-separated list of kernel families."""
    from tsm2_tune.generator.families import FAMILIES  # slow to import

    return _listed(incomplete, FAMILIES)


def configurations(ctx: Context, param: Parameter, incomplete: str) -> list[str]:
    """Complete a configuration up to its next open value: given one completion, a shell would end the word."""
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
    """Return `pretuned:` names if that prefix is typed; otherwise let the shell complete a file name."""
    from tsm2_tune.pretuned import PREFIX, pretuned

    if not incomplete.startswith(PREFIX):
        return [CompletionItem(incomplete, type="file")]
    return [CompletionItem(name) for name in _beginning(incomplete, [PREFIX + one.name for one in pretuned()])]


def _up_to_comma(text: str, at: int) -> str:
    """Return the text up to and including the first comma at or after index `at`, or all if it has none."""
    return text[: text.find(",", at) + 1] or text


def _beginning(incomplete: str, every: Iterable[str]) -> list[str]:
    return [one for one in every if one.startswith(incomplete)]
