"""Parser of the argument `device`, which names one device or several that tune together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tsm2_tune.api.parse import device_name
from tsm2_tune.errors import EMULATION, DeviceError, InputError
from tsm2_tune.pretuned import without_gpu
from tsm2_tune.tuner.device.target import HOST, Target, check_spec, default_spec, find_target

ALL = "all"
OneDevice = int | str | Target
Devices = OneDevice | Sequence[OneDevice] | None


def targets_of(devices: Devices) -> tuple[Target, ...]:
    """Return the named devices, each with its compiler. "all" is every GPU; None is GPU 0, else the host."""
    if devices is None:
        return (find_target(default_spec()),)
    several = isinstance(devices, Iterable) and not isinstance(devices, str)
    named: Sequence[Any] = list(devices) if several else [devices]  # type: ignore[arg-type]
    if not named:
        raise InputError("no device: name one, such as 0, or several")
    items = [item for one in named for item in _items(one)]
    ordinals = [_ordinal(item) for item in items]
    for item, ordinal in zip(items, ordinals, strict=True):
        if ordinals.count(ordinal) > 1:
            name = item.spec if isinstance(item, Target) else item
            raise InputError(f"device {name} is named twice: a device has one run at a time")
    return tuple(item if isinstance(item, Target) else find_target(item) for item in items)


def names_of(targets: Iterable[Target]) -> dict[str, Target]:
    """Return short name -> device, with names such as "GPU 0"."""
    found: dict[str, Target] = {}
    for target in targets:
        name = HOST if target.is_host else f"GPU {target.spec}"
        found[name if name not in found else f"{name} ({len(found)})"] = target
    return found


def _items(one: OneDevice) -> list[str | Target]:
    if isinstance(one, Target):
        return [one]
    name = device_name(one)
    return list(_all()) if name == ALL else [item.strip() for item in name.split(",")]


def _all() -> list[str]:
    from tsm2_tune.tuner.device.cuda import cuda_device_count

    count = cuda_device_count()
    if count == 0:
        raise DeviceError(f"no GPU here (no CUDA driver answers, or it has none): {EMULATION}; {without_gpu()}")
    return [str(ordinal) for ordinal in range(count)]


def _ordinal(item: str | Target) -> object:
    """Return a key that is unique for a device: its UUID, or the name that the caller gave."""
    return item.identity.uuid or item.spec if isinstance(item, Target) else check_spec(item)
