"""Which device to tune on, and what is known of it without a context on it."""

from __future__ import annotations

from dataclasses import dataclass

from tsm2_tune.errors import DeviceError, InputError
from tsm2_tune.generator.limits import DeviceLimits
from tsm2_tune.generator.profiles import PROFILES
from tsm2_tune.tuner.compiler import Toolchain
from tsm2_tune.tuner.device import Device
from tsm2_tune.tuner.trial import DeviceIdentity

HOST = "cpu"
MOST_ORDINAL_DIGITS = 9  # an ordinal is a C int


@dataclass(frozen=True, slots=True)
class Target:
    """A device that can run kernels, with the compiler for it."""

    spec: str  # CUDA ordinal, or "cpu"
    limits: DeviceLimits
    identity: DeviceIdentity
    toolchain: Toolchain

    @property
    def is_host(self) -> bool:
        return self.spec == HOST


def default_spec() -> str:
    """GPU 0 where a CUDA driver offers one, else the host."""
    from tsm2_tune.tuner.cuda import cuda_device_count

    return "0" if cuda_device_count() else HOST


def find_target(spec: str) -> Target:
    """The device that `spec` names: a CUDA ordinal or "cpu".

    InputError for another word, DeviceError where it does not answer, ToolMissing without its compiler.
    """
    if spec == HOST:
        from tsm2_tune.tuner.host.device import host_identity, host_limits
        from tsm2_tune.tuner.host.toolchain import host_toolchain

        toolchain = host_toolchain()
        return Target(HOST, host_limits(), host_identity(toolchain), toolchain)
    if not spec.isdecimal():
        if spec in PROFILES:
            raise DeviceError(f"{spec} is a bundled profile, which no kernel runs on: use a CUDA ordinal or {HOST}")
        raise InputError(f"unknown device {spec!r}: expected a CUDA ordinal such as 0, or {HOST}")
    from tsm2_tune.tuner import cuda

    ordinal = _ordinal(spec)
    cuda.check_ordinal(ordinal)
    drv = cuda.driver()
    device = drv.Device(ordinal)
    toolchain = cuda.cuda_toolchain(tuple(device.compute_capability()))
    return Target(spec, cuda.query_limits(drv, device), cuda.identity_of(drv, device, toolchain), toolchain)


def limits_of(spec: str) -> DeviceLimits:
    """Limits of a bundled profile, of the host or of a GPU: all that planning needs. No compiler is asked for."""
    if spec in PROFILES:
        return PROFILES[spec]
    if spec == HOST:
        from tsm2_tune.tuner.host.device import host_limits

        return host_limits()
    if not spec.isdecimal():
        names = ", ".join(PROFILES)
        raise InputError(f"unknown device {spec!r}: expected a CUDA ordinal, {HOST}, or a profile: {names}")
    from tsm2_tune.tuner import cuda

    ordinal = _ordinal(spec)
    cuda.check_ordinal(ordinal)
    drv = cuda.driver()
    return cuda.query_limits(drv, drv.Device(ordinal))


def _ordinal(spec: str) -> int:
    """The CUDA ordinal that decimal digits spell; InputError where they are more than any ordinal has."""
    if len(spec) > MOST_ORDINAL_DIGITS:
        raise InputError(
            f"unknown device {spec[:MOST_ORDINAL_DIGITS]}... of {len(spec)} digits:"
            f" expected a CUDA ordinal such as 0, or {HOST}"
        )
    return int(spec)


def open_device(spec: str, support_path: str) -> Device:
    """The device itself, its context owned by the calling process."""
    if spec == HOST:
        from tsm2_tune.tuner.host.device import HostDevice

        return HostDevice(support_path=support_path)
    from tsm2_tune.tuner.cuda import CudaDevice

    return CudaDevice(int(spec), support_path)
