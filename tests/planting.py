"""The bugs of `planted_bugs.toml`, and how one is planted in the text of a kernel."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.spelling import spelt
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.source import code

PATH = Path(__file__).with_name("planted_bugs.toml")
STORE = "element = scalar(beta == 0 ?"  # the statement of parts.cu.jinja that stores an element of C
# Ways that the file says; any other is a stage of the full verification.
SHAPE, TRIAL, LAUNCHES, RACES, GPU = "shape", "trial", "launches", "races", "gpu"


@dataclass(frozen=True, slots=True)
class Bug:
    """A kernel in whose code `planted` replaces `original`."""

    name: str
    config: KernelConfig
    problem: Problem
    original: str
    planted: str
    way: str

    @property
    def full_name(self) -> str:
        """The name with the kernel's family, type and operations."""
        return f"{self.name} ({self.config.family}, {self.problem.dtype_name}, {self.problem.op})"

    @property
    def kind(self) -> str:
        """The class of the bug; empty if its name begins with none."""
        return self.name.rpartition(": ")[0]

    def plant(self, text: str) -> str:
        """Return the code of the CUDA text with the bug."""
        planted, places = re.subn(pattern(self.original), lambda found: found[1] + self.planted, code(text))
        assert places, f"no kernel has this code any more, so plant the bug anew: {self.full_name}"
        return planted


def pattern(original: str) -> str:
    """Return a pattern of the code's tokens, with any spaces between them. What the first group matches stays."""
    if original == "at the start":
        return r"(__global__[^{]*\{)"
    if original == "before the store":
        return f"()(?={pattern(STORE)})"
    tokens = re.findall(r"\w+|[^\w\s]", original)
    return "()" + r"\s*".join(rf"\b{one}\b" if re.match(r"\w", one) else re.escape(one) for one in tokens)


@cache
def bugs() -> tuple[Bug, ...]:
    """Return the bugs of the file."""
    found = tuple(
        Bug(name, spelt(config), Problem.parse(problem), original, planted, way)
        for way, kernels in tomllib.loads(PATH.read_text()).items()
        for kernel, planted_bugs in kernels.items()
        for config, problem in (kernel.split(),)
        for name, (original, planted) in planted_bugs.items()
    )
    assert len({one.full_name for one in found}) == len(found), "two bugs have one name"
    return found
