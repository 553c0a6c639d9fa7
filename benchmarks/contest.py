"""Verify kernels, cuBLAS and cuBLASLt on the same operands, and time them in turns with a clean and a dirty L2 cache.

Each computes the product of the same small integers first, and the result must be exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.cells import Cell
from benchmarks.result_file import run_facts
from benchmarks.winner import Skipped, Winner
from tsm2_tune.errors import InputError, ToolMissing
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.roofline import Ceilings
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render, support_source
from tsm2_tune.tuner.compile.compiler import compile_text
from tsm2_tune.tuner.device.cuda import CudaDevice
from tsm2_tune.tuner.device.emulator.device import HostDevice
from tsm2_tune.tuner.device.interface import Device, LaunchFailed
from tsm2_tune.tuner.device.support_kernels import Support
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.measure.timing import Effort, measure_interleaved
from tsm2_tune.tuner.measure.vendor.cublas import Cublas
from tsm2_tune.tuner.measure.vendor.cublaslt import CublasLt
from tsm2_tune.tuner.measure.vendor.libraries import CublasError
from tsm2_tune.tuner.measure.vendor.routines import complete, fastest_first, routines_of_cublaslt
from tsm2_tune.tuner.results.trial import IN_FINALS, Binary, Cache, Measurement, Verdict
from tsm2_tune.tuner.search.phase_timer import PhaseTimer
from tsm2_tune.tuner.verify.bound_kernel import BoundKernel, Entry
from tsm2_tune.tuner.verify.checks import CHECKS
from tsm2_tune.tuner.verify.operands import Operands, Values
from tsm2_tune.tuner.verify.verdict import inspect, prepare

LT_WORKSPACE_BYTES = 64 * 2**20  # twice cuBLAS's default on Hopper
CONTESTANTS = ("ours", "cublas", "cublaslt")
COMPILE_SECONDS = 120.0
EXACT, TIMED = CHECKS[0], CHECKS[-1]  # small integers with an exact product; the timed data, uniform in [-1, 1)

Launch = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Opponent:
    """A library's product of the operands."""

    launch: Launch
    right: bool  # whether its result was exact for small integers
    timed: int  # number of algorithms from which the fastest was chosen


def times(name: str, measured: Measurement | None) -> dict[str, Any]:
    """Return one contestant's fields in microseconds: median, 95 % confidence interval, samples."""
    return {
        f"{name}_us": measured.median_us if measured else None,
        f"{name}_low_us": measured.low_us if measured else None,
        f"{name}_high_us": measured.high_us if measured else None,
        f"{name}_samples_us": [round(us, 3) for us in measured.samples_us] if measured else None,
    }


def times_in_states(name: str, found: Mapping[Cache, Mapping[str, Measurement]]) -> dict[str, Any]:
    """Return one contestant's fields for each measured L2 state. Names of fields for a clean L2 have no suffix."""
    return {
        field: value
        for cache, of_state in found.items()
        for field, value in times(name if cache is Cache.CLEAN else f"{name}_{cache}", of_state.get(name)).items()
    }


def row_of(
    cell: Cell,
    winner: Winner,
    found: Mapping[Cache, Mapping[str, Measurement]],
    opponents: Mapping[str, Opponent],
    verdict: Verdict,
    floor_us: float,
) -> dict[str, Any]:
    """Return the cell's row for the result file."""
    row: dict[str, Any] = dict(cell.record)
    for name in CONTESTANTS:
        row |= times_in_states(name, found)
    for name in CONTESTANTS[1:]:
        row[f"{name}_verified"] = opponents[name].right if name in opponents else None
    ours = found[Cache.CLEAN]["ours"]
    return {
        **row,
        "cublaslt_algorithms": opponents["cublaslt"].timed if "cublaslt" in opponents else 0,
        "floor_us": floor_us,
        "percent_of_floor": 100 * floor_us / ours.median_us,
        "family": winner.config.family,
        "configuration": winner.config.text,
        "parameters": winner.config.tunables,
        "verified": verdict.correct,
        "verdict": winner.verdict.detail if verdict.correct else verdict.detail,
        "sm_clock_mhz": ours.sm_clock_mhz,
        "configurations_kept": winner.kept,
        "trials": winner.outcomes,
    }


@contextmanager
def opened(
    target: Target, effort: Effort, phases: PhaseTimer | None = None, cache: Cache = Cache.CLEAN
) -> Iterator[Contest]:
    """Open the device, on a GPU with cuBLAS and cuBLASLt. Raise InputError if the tuner's kernels do not compile."""
    source = support_source()
    support = compile_text(source, kernel="", defines=(), toolchain=target.toolchain, limit_seconds=COMPILE_SECONDS)
    if not isinstance(support, Binary):
        raise InputError(f"{target.toolchain.compiler} does not compile the tuner's own kernels: {support.detail}")
    code, libraries = support.code, None
    device: Device = HostDevice(support_code=code) if target.is_host else CudaDevice(int(target.spec), code)
    if isinstance(device, CudaDevice):
        libraries = Cublas(), CublasLt(device, LT_WORKSPACE_BYTES)
    try:
        yield Contest(device, target, code, effort, phases or PhaseTimer(), cache, libraries)
    finally:
        device.close()


class Contest:
    """A device for the duration of a run. `phases` records how long each phase of a cell takes.

    `cache` is the L2 state in which cuBLASLt's fastest algorithm is chosen. Without `libraries`, on a host, no
    library is compared.
    """

    def __init__(
        self,
        device: Device,
        target: Target,
        support_code: bytes,
        effort: Effort,
        phases: PhaseTimer,
        cache: Cache = Cache.CLEAN,
        libraries: tuple[Cublas, CublasLt] | None = None,
    ) -> None:
        self.device, self.target, self.phases = device, target, phases
        self._support_code, self._effort, self._cache, self.libraries = support_code, effort, cache, libraries
        self._supports: dict[str, Support] = {}
        self.ceilings: Ceilings = device.ceilings()

    @property
    def versions(self) -> dict[str, int | None]:
        """The versions of cuBLAS and cuBLASLt; None on a device without them."""
        if self.libraries is None:
            return {"cublas": None, "cublaslt": None}
        return dict(zip(("cublas", "cublaslt"), (library.version for library in self.libraries), strict=True))

    def facts(self, command: str) -> dict[str, Any]:
        """Return the facts of a run: device, driver, compiler, libraries, measured peak rates, clocks."""
        limits = self.target.limits
        return {
            **run_facts(command, self.target, self.ceilings),
            **self.versions,
            "most_sm_clock_mhz": limits.sm_clock_mhz,
            "sm_clock_mhz": self.device.sm_clock_mhz(),
            "dram_gbytes_per_s": limits.dram_gbytes_per_s,
            "complete": False,
        }

    def row(self, cell: Cell, winner: Winner) -> dict[str, Any]:
        """Measure a cell and return its row. Raise Skipped if the device lacks memory or cannot run the kernel."""
        with skipped_without_room(), ExitStack() as stack:
            self.phases.enter("contest: operands")
            operands = self.operands(cell.problem, stack)
            loaded = self.loaded(operands, winner.config, stack)
            self.phases.enter("contest: checks")
            prepare(operands, EXACT, seed=1)
            verdict = self.kernel_verdict(operands, loaded)
            opponents = self.opponents(operands, stack)
            launches: dict[str, Launch] = {"ours": partial(loaded.start, operands.arguments(1.0, 0.0))}
            launches |= {name: opponent.launch for name, opponent in opponents.items()}
            found = self.in_turns(operands, launches)
            return row_of(cell, winner, found, opponents, verdict, self.ceilings.floor_us(cell.problem))

    def operands(self, problem: Problem, stack: ExitStack) -> Operands:
        """Return the problem's operands, valid until the stack closes.

        Raise MemoryError if the device lacks memory.
        """
        dtype = problem.dtype_name
        if dtype not in self._supports:
            self._supports[dtype] = Support(self.device, self._support_code, dtype)
        operands = Operands(self.device, self._supports[dtype], problem, index_bits=problem.index_bits)
        stack.callback(operands.free)
        return operands

    def loaded(self, operands: Operands, config: KernelConfig, stack: ExitStack) -> BoundKernel:
        """Return the configuration's kernel, loaded for the operands until the stack closes.

        Raise ToolMissing if it does not compile.
        """
        source, toolchain = render(operands.problem, config), self.target.toolchain
        binary = compile_text(
            source.text, kernel=source.kernel, defines=source.defines, toolchain=toolchain,
            limit_seconds=COMPILE_SECONDS,
        )  # fmt: skip
        if not isinstance(binary, Binary):
            raise ToolMissing(f"{toolchain.compiler} does not compile {config.text}: {binary.detail}")
        loaded = BoundKernel(self.device, operands, Entry(binary.code, source.kernel, source.launch))
        stack.callback(loaded.free)
        return loaded

    def opponents(self, operands: Operands, stack: ExitStack) -> dict[str, Opponent]:
        """Return the product's cuBLAS routine and cuBLASLt's fastest algorithm, verified on the operands."""
        opponents: dict[str, Opponent] = {}
        if self.libraries is None:
            return opponents
        cublas, cublaslt = self.libraries
        is_gram = operands.problem.is_gram
        try:
            launch = cublas.syrk_launch(operands) if is_gram else cublas.launch(operands)
            right = self.verdict(operands, launch, half=is_gram).correct
            opponents["cublas"] = Opponent(launch, right, timed=1)
            plan = cublaslt.plan(operands)
        except CublasError:
            return opponents
        stack.callback(plan.free)
        self.phases.enter("contest: cuBLASLt's algorithms")
        with suppress(CublasError):
            found = fastest_first(self.device, routines_of_cublaslt(plan), self._cache)
            self.phases.enter("contest: checks")
            for one in found[:1]:
                launch = one.routine.launch
                opponents["cublaslt"] = Opponent(launch, self.verdict(operands, launch).correct, len(found))
        return opponents

    def kernel_verdict(self, operands: Operands, loaded: BoundKernel) -> Verdict:
        """Call the kernel once on operands that `prepare` filled for the exact check. Return the verdict."""
        loaded.prepare()
        loaded.start(operands.arguments(EXACT.alpha, EXACT.beta))
        return inspect(operands, EXACT, loaded)

    def verdict(self, operands: Operands, launch: Launch, *, half: bool = False) -> Verdict:
        """Fill C with NaN, launch, and check C.

        `prepare` must have filled the operands for the exact check. If `half`, the launch computes one triangle of C.
        """
        operands.c.fill(operands.c.filling._replace(values=Values.POISON))
        launch()
        self.device.synchronise()
        if half:
            complete(self.device, operands.c, operands.problem.dtype_name)
        return inspect(operands, EXACT)

    def in_turns(self, operands: Operands, launches: Mapping[str, Launch]) -> dict[Cache, dict[str, Measurement]]:
        """Return each launch's time with a clean L2 and, on a GPU, also with a dirty one, measured in turns."""
        prepare(operands, TIMED, seed=2)
        self.phases.enter("contest: turns")
        caches = self.target.caches(Cache.CLEAN, IN_FINALS)
        measured = measure_interleaved(self.device, tuple(launches.values()), self._effort, caches)
        self.phases.enter("contest: operands")
        return {cache: dict(zip(launches, times, strict=True)) for cache, times in measured.items()}


@contextmanager
def skipped_without_room() -> Iterator[None]:
    """Raise Skipped if the device lacks memory or cannot run a kernel."""
    try:
        yield
    except MemoryError as error:
        raise Skipped(f"no room for {error}") from None
    except LaunchFailed as error:
        raise Skipped(str(error)) from None
