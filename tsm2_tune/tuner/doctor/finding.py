"""The input of a probe, and its findings."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class State(StrEnum):
    """The effect of a finding on tuning."""

    OK = "ok"
    NOTE = "note"  # tuning runs, but something is missing, or its times may suffer
    PROBLEM = "problem"  # tuning cannot run


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    name: str  # what was probed
    state: State
    found: str
    means: str = ""  # the effect on results
    remedy: str = ""
    facts: dict[str, Any] = field(default_factory=dict)  # for programs, and for later probes

    @property
    def text(self) -> str:
        """The finding as one line of text."""
        meaning = f". {self.means[0].upper()}{self.means[1:]}" if self.means else ""
        remedy = f". Remedy: {self.remedy}" if self.remedy else ""
        return f"{self.state.value:<8} {self.name}: {self.found}{meaning}{remedy}"


@dataclass(frozen=True, slots=True)
class Question:
    """The device and database that probes examine."""

    spec: str  # of the device: a CUDA ordinal, or "cpu"
    database: str
    driver: dict[str, Any] = field(default_factory=dict)  # the facts that the driver's probe found

    @property
    def gpu(self) -> dict[str, Any] | None:
        """Facts of the GPU `spec`; None if there is none."""
        found = self.driver.get("gpus", [])
        return found[int(self.spec)] if self.spec.isdecimal() and int(self.spec) < len(found) else None

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        """The GPU's compute capability; None without a GPU."""
        return None if self.gpu is None else tuple(self.gpu["compute_capability"])


def ok(name: str, found: str, **facts: Any) -> Finding:
    return Finding(name, State.OK, found, facts=facts)


def note(name: str, found: str, *, means: str = "", remedy: str = "") -> Finding:
    return Finding(name, State.NOTE, found, means, remedy)


def problem(name: str, found: str, *, means: str = "", remedy: str = "") -> Finding:
    return Finding(name, State.PROBLEM, found, means, remedy)
