"""`Candidate`: a configuration with its resources, launch and occupancy, which rules and models read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from tsm2_tune.generator.config import KernelConfig, Launch, Resources
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.device.occupancy import Occupancy, occupancy
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.generator.tiling import BlockPlan, Tiling

Floats = np.ndarray[Any, np.dtype[np.float64]]
Predictor = Callable[[Sequence["Candidate"]], Floats]  # candidates -> their predicted times in microseconds


class Design(Protocol):
    """Protocol of a kernel family: the methods that rules and models call."""

    @property
    def on_tensor_cores(self) -> bool: ...
    def block_plan(self, config: Any, problem: Problem) -> BlockPlan: ...
    def resources(self, config: Any, problem: Problem) -> Resources: ...
    def launch(self, config: Any, problem: Problem) -> Launch: ...
    def occupancy(self, resources: Resources, limits: DeviceLimits) -> Occupancy: ...
    def tiling_of(self, block_plan: BlockPlan, problem: Problem, resident: int) -> Tiling: ...


@dataclass(frozen=True)
class Candidate:
    """A configuration for a problem on a device. BlockPlan, launch and occupancy are computed on first access."""

    family: Design  # kernel family: computes the block plan and occupancy of a configuration
    config: KernelConfig  # the values of the tunables
    problem: Problem  # the matrix product
    limits: DeviceLimits  # hardware limits of the device
    guidelines: Guidelines  # thresholds of occupancy and reuse
    compiled: Resources | None = None  # resources of the compiled kernel; None before it is compiled

    @cached_property
    def block_plan(self) -> BlockPlan:
        """How the kernel divides a product among blocks, with a block's estimated resources."""
        return self.family.block_plan(self.config, self.problem)

    @cached_property
    def resources(self) -> Resources:
        """Registers, shared memory and threads of a block: of the compiled kernel, or estimated before."""
        return self.compiled or self.block_plan.resources

    @cached_property
    def launch(self) -> Launch:
        """The launch of the kernel: grid, threads of a block, splits of k."""
        launch = self.block_plan.launch(self.config)
        return launch.of_batch(self.problem.batch) if self.problem.is_batched else launch

    @property
    def tiling(self) -> Tiling:
        """How the kernel divides its work, from which the core predicts its time."""
        return self.family.tiling_of(self.block_plan, self.problem, self.occupancy.blocks_per_sm)

    @cached_property
    def occupancy(self) -> Occupancy:
        """Blocks and warps resident on a multiprocessor, and the resource that limits them."""
        if self.compiled is None:
            return self.family.occupancy(self.resources, self.limits)
        return occupancy(
            self.limits,
            threads=self.resources.threads,
            registers=self.resources.registers,
            smem_bytes=self.resources.smem_bytes,
        )


def tunable(candidate: Candidate, name: str) -> int:
    """Return the value of a numeric tunable."""
    return int(getattr(candidate.config, name))
