"""Find the device to tune on, and describe it without a CUDA context."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from tsm2_tune.errors import DeviceError, InputError
from tsm2_tune.generator.device.cards import DRIVER_NAMES, PROFILES, profile_named
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.scalars import plain
from tsm2_tune.tuner.compile.cache import refuse_noexec
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.interface import Device
from tsm2_tune.tuner.results.fingerprint import basis, tools
from tsm2_tune.tuner.results.storage.addresses import tune_first
from tsm2_tune.tuner.results.trial import Cache, DeviceIdentity

log = logging.getLogger(__name__)
HOST = "cpu"
MOST_ORDINAL_DIGITS = 9  # an ordinal is a C int


@dataclass(frozen=True, slots=True)
@plain
class Target:
    """A device that can run kernels, with the compiler for it."""

    spec: str  # CUDA ordinal, or "cpu"
    limits: DeviceLimits  # the limits for pruning
    identity: DeviceIdentity  # the device and its tools, as stored with every result
    toolchain: Toolchain  # the compiler and its flags
    watching: Toolchain | None = None  # on a host: the toolchain with race detection

    @property
    def is_host(self) -> bool:
        """Whether the device is the host, which emulates kernels; its times are not those of a GPU."""
        return self.spec == HOST

    def cache(self, asked: Cache) -> Cache:
        """Return the state of the L2 for trials: the one asked for, or clean on the host."""
        return Cache.CLEAN if self.is_host else asked

    def basis(self, cache: Cache) -> str:
        """Return the basis of trials in this state of the L2."""
        return basis(self.identity.toolkit, self.identity.flags, cache, self.toolchain.extra_digest)

    @property
    def tools(self) -> str:
        """Digest of compiler, flags and driver, which may make a kernel hang or fault."""
        found = self.identity
        return tools(found.toolkit, found.flags, found.driver, self.toolchain.extra_digest)

    def caches(self, asked: Cache, others: Sequence[Cache]) -> tuple[Cache, ...]:
        """Return the states of the L2 for finals, with that of trials last."""
        own = self.cache(asked)
        return (*(one for one in others if self.cache(one) is one is not own), own)


def default_spec() -> str:
    """Return GPU 0 if a CUDA driver offers one, else the host."""
    from tsm2_tune.tuner.device.cuda import cuda_device_count

    if cuda_device_count():
        return "0"
    log.debug("no GPU: the host emulates kernels")
    return HOST


def find_target(spec: str) -> Target:
    """Return the device that `spec` names: a CUDA ordinal or "cpu".

    Raise InputError for another word, or if no kernel can be loaded from the host's cache. Raise DeviceError if the
    device does not respond, ToolMissing without its compiler.
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
    """Return the CUDA ordinal that `spec` names, -1 for the host.

    Raise InputError or DeviceError if it names neither.
    """
    if spec == HOST:
        return -1
    if spec in PROFILES:
        raise DeviceError(f"{spec} is a bundled profile, which no kernel runs on: use a CUDA ordinal or {HOST}")
    if not is_ordinal(spec):
        raise InputError(f"unknown device {spec!r}: expected a CUDA ordinal such as 0, or {HOST}")
    return _ordinal(spec)


def is_ordinal(spec: str) -> bool:
    """Return whether the text is a CUDA ordinal in ASCII digits; int() also accepts digits of other scripts."""
    return spec.isascii() and spec.isdecimal()


def limits_of(spec: str) -> DeviceLimits:
    """Return the limits of a bundled card, of the host or of a GPU, without looking for a compiler."""
    if spec == HOST:
        from tsm2_tune.tuner.device.emulator.device import host_limits

        return host_limits()
    if not is_ordinal(spec):
        return profile_named(spec)
    from tsm2_tune.tuner.device import cuda

    ordinal = _ordinal(spec)
    cuda.check_ordinal(ordinal)
    drv = cuda.driver()
    return cuda.query_limits(drv, drv.Device(ordinal))


def stored_target(known: Sequence[str], spec: str | None, path: str) -> tuple[str, DeviceLimits]:
    """Return the device's name in the database at `path`, one of the `known` names, and its limits.

    `spec` is such a name, or a value for `limits_of`; None is the database's only device, or the one that is here.
    Raise InputError if the database has no such device, or if its limits are unknown here.
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
    """Return the ordinal of the device here that has this stored name, or "cpu"; None if it is not here."""
    from tsm2_tune.tuner.device.cuda import cuda_device_count

    specs = (*map(str, range(cuda_device_count())), HOST)
    return next((spec for spec in specs if limits_of(spec).name == name), None)


def _limits_of_name(name: str) -> DeviceLimits:
    """Return the limits of the device with this name: one that is here, or a bundled card."""
    spec = spec_of(name)
    if spec is not None:
        return limits_of(spec)
    for card, driver_name in DRIVER_NAMES.items():
        if driver_name == name:
            return PROFILES[card]
    raise InputError(
        f"the limits of the device {name!r} are not known here: run this where that device is; known elsewhere are"
        f" {', '.join(DRIVER_NAMES.values())}"
    )


def _ordinal(spec: str) -> int:
    """Return the CUDA ordinal in decimal digits. Raise InputError if it has more digits than any ordinal."""
    if len(spec) > MOST_ORDINAL_DIGITS:
        raise InputError(
            f"unknown device {spec[:MOST_ORDINAL_DIGITS]}... of {len(spec)} digits:"
            f" expected a CUDA ordinal such as 0, or {HOST}"
        )
    return int(spec)


def open_device(spec: str, support_path: str) -> Device:
    """Open the device. Its context belongs to the calling process."""
    if spec == HOST:
        from tsm2_tune.tuner.device.emulator.device import HostDevice

        return HostDevice(support_path=support_path)
    from tsm2_tune.tuner.device.cuda import CudaDevice

    return CudaDevice(int(spec), support_path)
