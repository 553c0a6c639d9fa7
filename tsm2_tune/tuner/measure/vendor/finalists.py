"""The fastest correct routine of cuBLAS and of cuBLASLt for a problem, to be timed interleaved with tuned kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tsm2_tune.errors import ToolMissing
from tsm2_tune.tuner.device.interface import Device
from tsm2_tune.tuner.measure.vendor.cublas import Cublas
from tsm2_tune.tuner.measure.vendor.cublaslt import CublasLt
from tsm2_tune.tuner.measure.vendor.libraries import CUBLAS, CUBLASLT, CublasError
from tsm2_tune.tuner.measure.vendor.routines import (
    Routine,
    fastest_first,
    fastest_right,
    routines_of_cublas,
    routines_of_cublaslt,
)
from tsm2_tune.tuner.results.trial import Cache, Measurement, VendorMeasurement, Verdict
from tsm2_tune.tuner.verify.checks import checks_of
from tsm2_tune.tuner.verify.operands import Operands
from tsm2_tune.tuner.verify.verdict import prepare

WORKSPACE_BYTES = 32 * 2**20  # for each library: the default of cuBLAS on Hopper
UNUSABLE = (ToolMissing, CublasError, MemoryError, AttributeError)  # AttributeError: the library lacks a function


@dataclass(frozen=True, slots=True)
class VendorLibraries:
    """The versions of cuBLAS and cuBLASLt for this device, or the reason why they cannot be used."""

    versions: tuple[tuple[str, int], ...]  # (name, version) of each library; () if they cannot be used
    trouble: str = ""  # the reason


@dataclass(frozen=True, slots=True)
class VendorFinalist:
    """A routine of one vendor library that is timed in a final, the repeated timing of the fastest kernels."""

    library: str
    version: int
    routine: Routine
    verdict: Verdict

    def measured(self, measurement: Measurement) -> VendorMeasurement:
        return VendorMeasurement(self.library, self.version, self.routine.name, self.verdict, measurement)


@dataclass(frozen=True, slots=True)
class VendorFinalists:
    """The vendor's routines that are timed in a final, or the reason why there are none."""

    routines: tuple[VendorFinalist, ...]
    trouble: str = ""


class Vendor:
    """Open handles of cuBLAS and cuBLASLt on a device, each with a workspace. `close` frees them.

    The constructor raises ToolMissing if a library is missing, CublasError if a library does not support the device,
    and MemoryError if a workspace does not fit in memory.
    """

    def __init__(self, device: Device) -> None:
        self._device, self._stack = device, ExitStack()
        try:
            self.cublas = Cublas()
            self._stack.callback(self.cublas.close)
            workspace = device.allocate(WORKSPACE_BYTES)
            self._stack.callback(workspace.free)
            self.cublas.use_workspace(workspace.address, workspace.size_bytes)
            self.cublaslt = CublasLt(device, WORKSPACE_BYTES)
            self._stack.callback(self.cublaslt.close)
        except UNUSABLE:
            self.close()
            raise

    @property
    def versions(self) -> tuple[tuple[str, int], ...]:
        return ((CUBLAS, self.cublas.version), (CUBLASLT, self.cublaslt.version))

    def close(self) -> None:
        self._stack.close()

    def finalists(self, operands: Operands, *, seed: int, cache: Cache) -> tuple[VendorFinalist, ...]:
        """Return for each library the fastest routine in L2 state `cache` among those with a correct result.

        If no routine of a library is correct, return the library's fastest routine with its verdict, which says that
        the result is wrong. Raise CublasError if neither library has a routine for the product.
        """
        prepare(operands, checks_of(operands.problem)[-1], seed=seed)
        found: list[VendorFinalist] = []
        declined: CublasError | None = None
        for library, version in self.versions:
            try:
                ranked = fastest_first(self._device, self._routines(library, operands), cache)
                best = fastest_right(self._device, operands, ranked, seed=seed) if ranked else None
            except CublasError as error:
                declined = error
                continue
            if best is not None:
                found.append(VendorFinalist(library, version, *best))
        if not found:
            raise declined or CublasError("neither library returns an algorithm for it")
        return tuple(found)

    def _routines(self, library: str, operands: Operands) -> list[Routine]:
        if library == CUBLAS:
            return routines_of_cublas(self.cublas, operands)
        plan = self.cublaslt.plan(operands)
        self._stack.callback(plan.free)
        return routines_of_cublaslt(plan)


def vendor_libraries(device: Device) -> VendorLibraries:
    """Return the versions of cuBLAS and cuBLASLt, or the reason why they cannot be used on this device."""
    try:
        vendor = Vendor(device)
    except UNUSABLE as error:
        return VendorLibraries((), _reason(error))
    try:
        return VendorLibraries(vendor.versions)
    finally:
        vendor.close()


@contextmanager
def vendor_finalists(device: Device, operands: Operands, *, seed: int, cache: Cache) -> Iterator[VendorFinalists]:
    """Context manager that returns the fastest verified routine of each vendor library, or why none was found."""
    vendor: Vendor | None = None
    try:
        try:
            vendor = Vendor(device)
            found = VendorFinalists(vendor.finalists(operands, seed=seed, cache=cache))
        except UNUSABLE as error:
            found = VendorFinalists((), _reason(error))
        yield found
    finally:
        if vendor is not None:
            vendor.close()


def _reason(error: Exception) -> str:
    return f"no room for {error}" if isinstance(error, MemoryError) else str(error)
