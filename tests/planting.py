"""Bugs to plant in a rendered kernel, and what verification must say of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.trial import Outcome

if TYPE_CHECKING:
    from tests.conftest import TryKernel

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Bug:
    """The configuration's text with `planted` wherever `original` stood."""

    name: str
    config: KernelConfig
    original: str
    planted: str
    dtype: str = "f32"
    op: str = "nn"
    shape: Shape | None = None  # at which it shows, where that is not the other bugs'

    def plant(self, text: str) -> str:
        assert self.original in text, "the template changed: plant this bug anew"
        return text.replace(self.original, self.planted)


def assert_rejected(try_kernel: TryKernel, bug: Bug, shape: Shape, *, probes: bool = False) -> None:
    """Verification on the host finds the bug at the shape, or on the probes if asked, and says what it found."""
    problem = Problem(*(bug.shape or shape), bug.dtype, bug.op)
    result = try_kernel(bug.config, problem, bug.plant, probes)
    assert result.outcome in (Outcome.WRONG_RESULT, Outcome.CRASHED), f"accepted: {result}"
    assert result.detail
    assert result.measurement is None
