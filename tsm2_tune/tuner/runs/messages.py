"""Messages between a run and the process that executes its requests on a device, which may be on another machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, get_args

from tsm2_tune.errors import TuneError
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.roofline import Ceilings
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.results.trial import Final, Trial
from tsm2_tune.tuner.runs.events import FinalFailure, VendorLeftOut
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.resume import PriorTrials
from tsm2_tune.tuner.worker.protocol import AttemptResult


class Channel(Protocol):
    """A connection between a run and a device's process. `recv` raises EOFError if the other end is lost."""

    def send(self, message: Any) -> None: ...
    def recv(self) -> Any: ...
    def poll(self, timeout: float = ...) -> bool: ...


# Messages of the run.


@dataclass(frozen=True, slots=True)
class OpenDevice:
    """The first message: open a device and start its compilers."""

    device: Target | str | None  # a string is resolved by the receiver; None: GPU 0, or the host
    options: Options
    wait: bool  # whether to wait for another run on the device


@dataclass(frozen=True, slots=True)
class Expect:
    """Prepare for a problem. There is no answer."""

    problem: Problem


@dataclass(frozen=True, slots=True)
class BeginSearch:
    """Try the candidates that follow, until EndSearch. The answers are TrialEnded, and at last SearchEnded."""

    problem: Problem
    options: Options
    fastest_us: float | None  # the least time of a correct kernel so far


@dataclass(frozen=True, slots=True)
class Try:
    """A candidate of the search."""

    config: KernelConfig
    guidelines: Guidelines  # a trial records which of them the compiled kernel breaks
    fastest_us: float | None  # as in BeginSearch


@dataclass(frozen=True, slots=True)
class EndSearch:
    """Try no more candidates than those that the worker process has already."""


@dataclass(frozen=True, slots=True)
class RunFinal:
    """Time the fastest kernels, interleaved: see `Executor.final`. The answer is FinalEnded."""

    problem: Problem
    options: Options
    prior: PriorTrials
    also: tuple[str, ...]
    repeat: bool


@dataclass(frozen=True, slots=True)
class VerifyInFull:
    """Verify a kernel in full. The answer is an AttemptResult."""

    problem: Problem
    config: KernelConfig


Request = OpenDevice | Expect | BeginSearch | Try | EndSearch | RunFinal | VerifyInFull
REQUESTS = get_args(Request)

# Messages of the device's process.


@dataclass(frozen=True, slots=True)
class Opened:
    """The device is open."""

    target: Target
    ceilings: Ceilings
    ahead: int  # number of candidates that the process takes before it answers the first


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence for the user, while the device opens."""

    text: str


@dataclass(frozen=True, slots=True)
class Phase:
    """The process has entered another phase: see PhaseTimer."""

    name: str


@dataclass(frozen=True, slots=True)
class TrialEnded:
    """A candidate was tried."""

    trial: Trial


@dataclass(frozen=True, slots=True)
class SearchEnded:
    """All candidates that were to be tried have been."""


@dataclass(frozen=True, slots=True)
class FinalEnded:
    """The answer to RunFinal."""

    final: Final | FinalFailure | None
    left_out: VendorLeftOut | None


@dataclass(frozen=True, slots=True)
class Failed:
    """The last message: the device or its process failed."""

    error: TuneError


Answer = Opened | Note | Phase | TrialEnded | SearchEnded | FinalEnded | AttemptResult | Failed
ANSWERS = get_args(Answer)
