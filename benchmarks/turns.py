"""A device with operands and kernels, whose launches are verified and timed in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Generic, TypeVar

from tsm2_tune.errors import InputError, ToolMissing
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.roofline import Ceilings
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render, support_source
from tsm2_tune.tuner.compile.compiler import Toolchain, compile_text
from tsm2_tune.tuner.device.interface import Device
from tsm2_tune.tuner.device.support_kernels import Support
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.measure.timing import Effort, measure_interleaved
from tsm2_tune.tuner.results.trial import IN_FINALS, Binary, Cache, Measurement, Verdict
from tsm2_tune.tuner.search.phase_timer import PhaseTimer
from tsm2_tune.tuner.verify.bound_kernel import BoundKernel, Entry
from tsm2_tune.tuner.verify.checks import CHECKS
from tsm2_tune.tuner.verify.operands import Operands
from tsm2_tune.tuner.verify.verdict import clear, inspect

COMPILE_SECONDS = 120.0
EXACT, TIMED = CHECKS[0], CHECKS[-1]  # small integers with an exact product; the timed data, uniform in [-1, 1)

Launch = Callable[[], None]
D = TypeVar("D", bound=Device)


@dataclass(frozen=True, slots=True)
class Opponent:
    """A library's product of the operands."""

    launch: Launch
    right: bool  # whether its result was exact for small integers
    timed: int  # number of algorithms from which the fastest was chosen


def compiled_support(toolchain: Toolchain) -> str:
    """Compile the tuner's own kernels. Raise InputError if they do not compile."""
    support = compile_text(
        support_source(), kernel="", defines=(), toolchain=toolchain, limit_seconds=COMPILE_SECONDS
    )
    if not isinstance(support, Binary):
        raise InputError(f"{toolchain.compiler} does not compile the tuner's own kernels: {support.detail}")
    return support.path


class Turns(Generic[D]):
    """A device for the duration of a run. `phases` records how long each phase of a cell takes."""

    def __init__(self, device: D, target: Target, support_path: str, effort: Effort, phases: PhaseTimer) -> None:
        self.device, self.target = device, target
        self.phases = phases
        self._support_path, self._effort = support_path, effort
        self._supports: dict[str, Support] = {}
        self.ceilings: Ceilings = device.ceilings()

    @property
    def versions(self) -> dict[str, int | None]:
        """The versions of cuBLAS and cuBLASLt; None on a device without them."""
        return {"cublas": None, "cublaslt": None}

    def opponents(self, operands: Operands, stack: ExitStack) -> dict[str, Opponent]:
        """Return the libraries' products of the operands; {} here, where no library is compared."""
        return {}

    def operands(self, problem: Problem, stack: ExitStack) -> Operands:
        """Return the problem's operands, valid until the stack closes.

        Raise MemoryError if the device lacks memory.
        """
        operands = Operands(self.device, self._support_of(problem.dtype_name), problem, index_bits=problem.index_bits)
        stack.callback(operands.free)
        return operands

    def loaded(self, operands: Operands, config: KernelConfig, stack: ExitStack) -> BoundKernel:
        """Return the configuration's kernel, loaded for the operands until the stack closes."""
        source = render(operands.problem, config)
        path = self.compiled(source.text, source.kernel, source.defines)
        loaded = BoundKernel(self.device, operands, Entry(path, source.kernel, source.launch))
        stack.callback(loaded.free)
        return loaded

    def verdict(self, operands: Operands, launch: Launch) -> Verdict:
        """Fill C with NaN, launch, and check C. `prepare` must have filled the operands for the exact check."""
        clear(operands)
        launch()
        self.device.synchronise()
        return inspect(operands, EXACT)

    def in_turns(self, launches: Mapping[str, Launch]) -> dict[Cache, dict[str, Measurement]]:
        """Return each launch's time with a clean L2 and, on a GPU, also with a dirty one, measured in turns."""
        caches = self.target.caches(Cache.CLEAN, IN_FINALS)
        measured = measure_interleaved(self.device, tuple(launches.values()), self._effort, caches)
        return {cache: dict(zip(launches, times, strict=True)) for cache, times in measured.items()}

    def compiled(self, text: str, kernel: str, defines: tuple[str, ...]) -> str:
        """Return the path of the compiled text. Raise ToolMissing if it does not compile."""
        toolchain = self.target.toolchain
        binary = compile_text(
            text, kernel=kernel, defines=defines, toolchain=toolchain, limit_seconds=COMPILE_SECONDS
        )
        if not isinstance(binary, Binary):
            raise ToolMissing(f"{toolchain.compiler} does not compile {kernel}: {binary.detail}; mend the toolkit")
        return binary.path

    def _support_of(self, dtype_name: str) -> Support:
        if dtype_name not in self._supports:
            self._supports[dtype_name] = Support(self.device, self._support_path, dtype_name)
        return self._supports[dtype_name]
