"""The worker process: it opens the device, answers the tuner's requests, and reports the stage of each request."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection

from tsm2_tune.errors import DeviceError, TuneError
from tsm2_tune.tuner.device.interface import Device, DeviceLost, KernelFault, LaunchFailed
from tsm2_tune.tuner.device.support_kernels import Support
from tsm2_tune.tuner.device.target import open_device
from tsm2_tune.tuner.measure.timing import Effort, measure, measure_interleaved, quick_measure
from tsm2_tune.tuner.measure.vendor.finalists import VendorFinalists, vendor_finalists, vendor_libraries
from tsm2_tune.tuner.measure.vendor.libraries import CublasError
from tsm2_tune.tuner.results.trial import Cache, Measurement, Outcome, Verdict
from tsm2_tune.tuner.runs.signals import SIGNALS
from tsm2_tune.tuner.verify.bound_kernel import BoundKernel
from tsm2_tune.tuner.verify.checks import checks_of, probe_checks
from tsm2_tune.tuner.verify.exhaustive import verify_in_full
from tsm2_tune.tuner.verify.operands import Operands
from tsm2_tune.tuner.verify.verdict import KernelCalls, prepare, verify, verify_each
from tsm2_tune.tuner.worker.protocol import Attempt, AttemptResult, FinalRound, FinalTimes, FullVerification

END_OTHERS = "end other processes on it"
OUTCOMES: dict[type[Exception], Outcome] = {  # error -> outcome of the request in which it occurs
    LaunchFailed: Outcome.LAUNCH_FAILED,
    KernelFault: Outcome.CRASHED,
    DeviceLost: Outcome.INTERRUPTED,
}
FAILURES = tuple(OUTCOMES)


def serve(connection: Connection, spec: str) -> None:
    """Open the device `spec`, then answer requests until the parent process closes the connection.

    Standard input has the binary of the tuner's own kernels with which the device measures.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    try:
        with open(0, "rb", closefd=False) as stream:
            device = open_device(spec, stream.read())
        handler = _RequestHandler(device, connection)
        connection.send(("ready", None))
        while True:
            connection.send(("result", handler.answer(connection.recv())))
    except (EOFError, ConnectionError):
        return
    except TuneError as error:
        connection.send(("error", error))
    except MemoryError as error:  # while the device opens
        connection.send(("error", DeviceError(f"device {spec} does not open: no room for {error}; {END_OTHERS}")))
    except LaunchFailed as error:
        connection.send(("error", DeviceError(f"device {spec} does not load kernels: {error}")))
    except Exception:
        connection.send(("error", traceback.format_exc()))


class _RequestHandler:
    """Handler of requests in the worker process. It keeps the last problem's matrices in device memory."""

    def __init__(self, device: Device, connection: Connection) -> None:
        self._device, self._connection = device, connection
        self._operands: Operands | None = None
        self._support_codes: dict[str, bytes] = {}  # by element type
        self._supports: dict[str, Support] = {}

    def answer(self, request: object) -> object:
        """Execute the request and return its result. Raise DeviceError if the device has too little free memory."""
        try:
            return self._answered(request)
        except MemoryError as error:
            raise DeviceError(_no_room(request, error)) from None

    def _answered(self, request: object) -> object:
        if isinstance(request, Attempt):
            return self._attempt(request)
        if isinstance(request, FinalRound):
            return self._time_finalists(request)
        if isinstance(request, FullVerification):
            return self._verified_in_full(request)
        if request == "vendor":
            self._stage("the vendor's libraries")
            return vendor_libraries(self._device)
        self._stage("ceilings" if request == "ceilings" else "release")
        self._release()
        return self._device.ceilings() if request == "ceilings" else None

    def _stage(self, name: str) -> None:
        self._connection.send(("stage", name))

    def _attempt(self, request: Attempt) -> AttemptResult:
        launch = request.entry.launch
        resources = verdict = None
        bound: BoundKernel | None = None
        try:
            operands = self._operands_of(request)
        except (LaunchFailed, KernelFault) as error:  # a support kernel failed
            return AttemptResult(Outcome.INTERRUPTED, f"no operands: {error}")
        try:
            self._stage("loading")
            bound = BoundKernel(self._device, operands, request.entry)
            resources = bound.kernel.resources(threads=launch.threads, smem_bytes=launch.smem_bytes)
            looked = self._quick_measured(request, bound)
            if looked is not None and request.within_us is not None and min(looked.samples_us) > request.within_us:
                detail = f"the fastest of its first launches took more than {request.within_us:.1f} us"
                return AttemptResult(Outcome.BEHIND, detail, resources, measurement=looked)
            verdict = self._verified(request, bound)
            if not verdict.correct:
                return AttemptResult(Outcome.WRONG_RESULT, verdict.detail, resources, verdict)
            self._stage("timing")
            launched = partial(bound.start, operands.arguments())
            measured = measure(self._device, launched, request.effort, request.cache)
            return AttemptResult(Outcome.OK, "", resources, verdict, measured)
        except FAILURES as error:
            return replace(_failed(error), resources=resources, verdict=verdict)
        finally:
            if bound is not None:
                bound.free()

    def _quick_measured(self, request: Attempt, bound: BoundKernel) -> Measurement | None:
        """Time the kernel's first launches before the kernel is verified, to find a slow kernel early."""
        if request.within_us is None:
            return None
        self._stage("a first look")
        operands = bound.operands
        prepare(operands, checks_of(request.problem)[-1], seed=request.seed)
        bound.prepare()
        return quick_measure(self._device, partial(bound.start, operands.arguments()), request.cache)

    def _verified(self, request: Attempt, bound: BoundKernel) -> Verdict:
        """Verify the kernel on the request's small problems, then on its problem."""
        if request.probes:
            self._stage("verification on probes")
            verdict = self._verified_on_probes(request, bound)
            if verdict is not None:
                return verdict
        self._stage("verification")
        return verify(self._device, bound.operands, bound, seed=request.seed)

    def _verified_on_probes(self, request: Attempt, bound: BoundKernel) -> Verdict | None:
        """Verify the kernel on small problems. Return the first wrong result's verdict; None if all are correct."""
        support, bits = bound.operands.support, request.problem.index_bits
        verifications: list[KernelCalls] = []
        with self._device.keeping_memory(), ExitStack() as used:
            for number, probe in enumerate(request.probes):
                small = Operands(self._device, support, probe, index_bits=bits)
                used.callback(small.free)
                on_small = bound.on(small)
                used.callback(on_small.free)
                checks, seed = probe_checks(probe, number), request.seed + 1000 * (number + 1)
                verifications.append(KernelCalls(small, on_small, checks, seed))
            *_, last = verdicts = verify_each(self._device, verifications)
        if last.correct:
            return None
        return replace(last, detail=f"{request.probes[len(verdicts) - 1].text}, {last.detail}")

    def _time_finalists(self, request: FinalRound) -> FinalTimes | AttemptResult:
        kernels: list[BoundKernel] = []
        try:
            operands = self._operands_of(request)
            with self._vendor_finalists(request, operands) as vendor:
                self._stage("the final round")
                prepare(operands, checks_of(request.problem)[-1], seed=request.seed)
                arguments = operands.arguments()
                kernels.extend(BoundKernel(self._device, operands, entry) for entry in request.entries)
                ours = [partial(kernel.start, arguments) for kernel in kernels]
                return measure_with_vendor(self._device, ours, vendor, request.effort, request.caches)
        except FAILURES as error:
            return _failed(error)
        except MemoryError as error:  # each kernel fits alone, but not all together
            return AttemptResult(Outcome.LAUNCH_FAILED, _no_room(request, error))
        finally:
            for kernel in kernels:
                kernel.free()

    def _vendor_finalists(self, request: FinalRound, operands: Operands) -> AbstractContextManager[VendorFinalists]:
        """Return a context manager for the vendor's BLAS routines to time. Without `request.vendor` it has none."""
        if not request.vendor:
            return nullcontext(VendorFinalists(()))
        self._stage("the vendor's routines")
        return vendor_finalists(self._device, operands, seed=request.seed, cache=request.caches[-1])

    def _verified_in_full(self, request: FullVerification) -> AttemptResult:
        self._stage("full verification")
        self._release()  # the full verification needs much memory
        try:
            support = self._support_of(request)
            verdict = verify_in_full(
                self._device, support, request, lambda stage: self._stage(f"full verification: {stage}")
            )
        except FAILURES as error:
            return _failed(error)
        outcome = Outcome.OK if verdict.correct else Outcome.WRONG_RESULT
        return AttemptResult(outcome, "" if verdict.correct else verdict.detail, verdict=verdict)

    def _operands_of(self, request: Attempt | FinalRound) -> Operands:
        problem = request.problem
        if self._operands is None or self._operands.problem != problem:
            self._stage("operands")
            self._release()
            support = self._support_of(request)
            self._operands = Operands(self._device, support, problem, index_bits=problem.index_bits)
        return self._operands

    def _support_of(self, request: Attempt | FinalRound | FullVerification) -> Support:
        name = request.problem.dtype_name
        if request.support_code:
            self._support_codes[name] = request.support_code
        if name not in self._supports:
            self._supports[name] = Support(self._device, self._support_codes[name], name)
        return self._supports[name]

    def _release(self) -> None:
        if self._operands is not None:
            self._operands.free()
            self._operands = None


def _failed(error: Exception) -> AttemptResult:
    return AttemptResult(next(OUTCOMES[kind] for kind in FAILURES if isinstance(error, kind)), str(error))


def _no_room(request: object, error: MemoryError) -> str:
    """Return the error text for a request that needs more memory than the device has free."""
    what = "the measurement of the device's ceilings"
    if isinstance(request, Attempt | FinalRound | FullVerification):
        what = request.problem.text
    return (
        f"{what} does not fit in the device's free memory: no room for {str(error) or 'its numbers'};"
        f" {END_OTHERS}, or choose a smaller shape or another device"
    )


def measure_with_vendor(
    device: Device,
    ours: Sequence[Callable[[], None]],
    vendor: VendorFinalists,
    effort: Effort,
    caches: Sequence[Cache],
) -> FinalTimes:
    """Time our kernels and the vendor's BLAS routines interleaved, for each of `caches`, the states of the L2 cache.

    If one of the vendor's routines fails, time our kernels alone.
    """
    theirs = [one.routine.launch for one in vendor.routines]
    try:
        found = measure_interleaved(device, [*ours, *theirs], effort, caches).values()
    except CublasError as error:
        return measure_with_vendor(device, ours, VendorFinalists((), str(error)), effort, caches)
    measured = (zip(vendor.routines, of_state[len(ours) :], strict=True) for of_state in found)
    return FinalTimes(
        tuple(of_state[: len(ours)] for of_state in found),
        tuple(finalist.measured(one) for of_state in measured for finalist, one in of_state),
        vendor.trouble,
    )
