"""The input and the result of a probe, a function that checks one thing that tuning needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class State(StrEnum):
    """How a finding affects tuning."""

    OK = "ok"
    NOTE = "note"  # tuning runs, but something is missing, or its times may suffer
    PROBLEM = "problem"  # tuning cannot run


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check: one line in the report of the command `doctor`."""

    name: str  # what was probed
    state: State
    found: str
    means: str = ""  # the effect on results
    remedy: str = ""
    facts: dict[str, Any] = field(default_factory=dict)  # for the JSON output and for later probes

    @property
    def text(self) -> str:
        """The finding as one line of text."""
        meaning = f". {self.means[0].upper()}{self.means[1:]}" if self.means else ""
        remedy = f". Remedy: {self.remedy}" if self.remedy else ""
        return f"{self.state.value:<8} {self.name}: {self.found}{meaning}{remedy}"


@dataclass(frozen=True, slots=True)
class Question:
    """The input of a probe: the device and the database to check."""

    spec: str  # the device: a CUDA ordinal, or "cpu"
    database: str
    driver: dict[str, Any] = field(default_factory=dict)  # facts from the probe of the CUDA driver
    limit_seconds: float = 30.0  # time limit of the probe
    compile_seconds: float = 25.0  # time limit for a compiler to print its version and to compile one line of code

    @property
    def gpu(self) -> dict[str, Any] | None:
        """The facts of the GPU with the number `spec`; None if the driver has no such GPU."""
        found = self.driver.get("gpus", [])
        return found[int(self.spec)] if self.spec.isdecimal() and int(self.spec) < len(found) else None

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        """The compute capability of the GPU with the number `spec`; None if the driver has no such GPU."""
        return None if self.gpu is None else tuple(self.gpu["compute_capability"])


def ok(name: str, found: str, **facts: Any) -> Finding:
    return Finding(name, State.OK, found, facts=facts)


def note(name: str, found: str, *, means: str = "", remedy: str = "") -> Finding:
    return Finding(name, State.NOTE, found, means, remedy)


def problem(name: str, found: str, *, means: str = "", remedy: str = "") -> Finding:
    return Finding(name, State.PROBLEM, found, means, remedy)
