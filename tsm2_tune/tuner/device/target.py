"""Find the device to tune on, and read its limits and its compiler without opening a CUDA context."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from tsm2_tune.errors import DeviceError, InputError
from tsm2_tune.generator.device.cards import DRIVER_NAMES, PROFILES, profile_named
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.scalars import plain
from tsm2_tune.pretuned import without_gpu
from tsm2_tune.tuner.compile.cache import refuse_noexec
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.interface import Device
from tsm2_tune.tuner.results.fingerprint import basis, tools
from tsm2_tune.tuner.results.storage.addresses import tune_first
from tsm2_tune.tuner.results.trial import Cache, DeviceIdentity

log = logging.getLogger(__name__)
HOST = "cpu"
MOST_ORDINAL_DIGITS = 9
MOST_SHOWN = 100  # characters of a wrong name in a message


@dataclass(frozen=True, slots=True)
@plain
class Target:
    """A device to tune on, with its limits and its compiler."""

    spec: str  # CUDA ordinal, or "cpu"
    limits: DeviceLimits  # used to drop configurations that cannot run
    identity: DeviceIdentity  # the device and its tools, stored with every result
    toolchain: Toolchain  # the compiler and its flags
    watching: Toolchain | None = None  # for "cpu": the toolchain with race detection

    @property
    def is_host(self) -> bool:
        """Whether the device is the CPU, which emulates kernels. Its times are not those of a GPU."""
        return self.spec == HOST

    def cache(self, asked: Cache) -> Cache:
        """Return the state of the L2 cache in which kernels are timed: `asked`, or CLEAN on the CPU."""
        return Cache.CLEAN if self.is_host else asked

    def basis(self, cache: Cache) -> str:
        """Return the hash of the tools and of the L2 state. Only results with equal hashes are comparable."""
        return basis(self.identity.toolkit, self.identity.flags, cache, self.toolchain.extra_digest)

    @property
    def tools(self) -> str:
        """Digest of compiler, flags and driver. A kernel that hung or faulted with other ones is tried again."""
        found = self.identity
        return tools(found.toolkit, found.flags, found.driver, self.toolchain.extra_digest)

    def caches(self, asked: Cache, others: Sequence[Cache]) -> tuple[Cache, ...]:
        """Return the L2 states in which the fastest kernels are timed again. The last state is that of the search."""
        own = self.cache(asked)
        return (*(one for one in others if self.cache(one) is one is not own), own)


def default_spec() -> str:
    """Return "0", the first GPU, if there is a GPU, else "cpu"."""
    from tsm2_tune.tuner.device.cuda import cuda_device_count

    if cuda_device_count():
        return "0"
    log.debug("no GPU: the host emulates kernels")
    return HOST


def find_target(spec: str) -> Target:
    """Return the device that `spec` names: a CUDA ordinal or "cpu".

    Raise InputError if `spec` is neither, or if kernels for the CPU cannot be loaded from the cache folder. Raise
    DeviceError if the device does not work, ToolMissing if its compiler is missing.
    """
    if spec == HOST:
        from tsm2_tune.tuner.device.emulator.device import host_identity, host_limits
        from tsm2_tune.tuner.device.emulator.toolchain import host_toolchain, watching

        refuse_noexec()
        toolchain = host_toolchain()
        return Target(HOST, host_limits(), host_identity(toolchain), toolchain, watching(toolchain))
    ordinal = check_spec(spec)
    from tsm2_tune.tuner.compile import nvcc
    from tsm2_tune.tuner.device import cuda

    cuda.check_ordinal(ordinal)
    drv = cuda.driver()
    device = drv.Device(ordinal)
    toolchain = nvcc.cuda_toolchain(tuple(device.compute_capability()))
    return Target(spec, cuda.query_limits(drv, device), cuda.identity_of(drv, device, toolchain), toolchain)


def check_spec(spec: str) -> int:
    """Return the CUDA ordinal that `spec` names, or -1 for "cpu"."""
    if spec == HOST:
        return -1
    if spec in PROFILES:
        raise DeviceError(
            f"{spec} is the name of a GPU model, not of a device here: name a GPU's number, such as 0, or {HOST};"
            f" {without_gpu()}"
        )
    if not is_ordinal(spec):
        raise InputError(f"unknown device {spec[:MOST_SHOWN]!r}: expected a CUDA ordinal such as 0, or {HOST}")
    return int(spec)


def is_ordinal(spec: str) -> bool:
    """Return whether the text is the number of a CUDA device: ASCII digits, few enough for a C int."""
    return spec.isascii() and spec.isdecimal() and len(spec) <= MOST_ORDINAL_DIGITS


def limits_of(spec: str) -> DeviceLimits:
    """Return the limits of the device that `spec` names: a bundled GPU model, "cpu", or a CUDA ordinal."""
    if spec == HOST:
        from tsm2_tune.tuner.device.emulator.device import host_limits

        return host_limits()
    if not is_ordinal(spec):
        return profile_named(spec[:MOST_SHOWN])
    from tsm2_tune.tuner.device import cuda

    cuda.check_ordinal(int(spec))
    drv = cuda.driver()
    return cuda.query_limits(drv, drv.Device(int(spec)))


def stored_target(known: Sequence[str], spec: str | None, path: str) -> tuple[str, DeviceLimits]:
    """Return the name and the limits of a device whose results are in the database at `path`.

    `known` are the names of the devices in the database. `spec` is one of these names, a GPU model, "cpu" or a CUDA
    ordinal. If `spec` is None, the device is the only one in the database. If the database has several devices or
    none, it is this machine's default device. Raise InputError if the database has no results of the device, or if
    its limits are unknown.
    """
    if spec is not None and spec in known:
        return spec, _limits_of_name(spec)
    if spec is None and len(known) == 1:
        return known[0], _limits_of_name(known[0])
    limits = limits_of(default_spec() if spec is None else spec)
    name = limits.name if spec is None else DRIVER_NAMES.get(spec, limits.name)
    if name not in known:
        stored = ", ".join(map(repr, known))
        raise InputError(
            f"no trial of the device {name!r} in {path}: " + (f"it has {stored}" if stored else tune_first(path))
        )
    return name, limits


def spec_of(name: str) -> str | None:
    """Return the CUDA ordinal, or "cpu", of this machine's device with this name; None if it has no such device."""
    from tsm2_tune.tuner.device.cuda import cuda_device_count

    specs = (*map(str, range(cuda_device_count())), HOST)
    return next((spec for spec in specs if limits_of(spec).name == name), None)


def _limits_of_name(name: str) -> DeviceLimits:
    """Return the limits of the device with this name."""
    spec = spec_of(name)
    if spec is not None:
        return limits_of(spec)
    for card, driver_name in DRIVER_NAMES.items():
        if driver_name == name:
            return PROFILES[card]
    raise InputError(
        f"the limits of the device {name!r} are unknown on this machine: run this on a machine with the device, or"
        f" choose {', '.join(DRIVER_NAMES.values())}"
    )


def open_device(spec: str, support_code: bytes) -> Device:
    """Open the device that `spec` names in this process. `support_code` is the binary of the support kernels."""
    if spec == HOST:
        from tsm2_tune.tuner.device.emulator.device import HostDevice

        return HostDevice(support_code=support_code)
    from tsm2_tune.tuner.device.cuda import CudaDevice

    return CudaDevice(int(spec), support_code)
