"""Workers of the host whose requests a test disturbs or answers itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.fabricated import tuning_run
from tsm2_tune.generator.device.roofline import Ceilings
from tsm2_tune.tuner.worker.client import Attempt, AttemptResult, FinalRound, FinalTimes, Worker


class Disturbed(Worker):
    """A worker of the host that calls `disturb` with each request first, and answers what that returns, if anything.

    It sends no request ahead, and it knows the ceilings.
    """

    def __init__(self, support: Callable[[str], bytes], disturb: Callable[[Any], AttemptResult | None]) -> None:
        super().__init__("cpu", support, limit_seconds=30.0)
        self._disturb = disturb

    def start(self) -> None:
        """Start with the first request that is not answered here."""

    def ceilings(self) -> Ceilings:
        return tuning_run().ceilings

    def send_ahead(self, request: Attempt) -> None: ...

    def attempt(self, request: Attempt) -> AttemptResult:
        return self._disturb(request) or super().attempt(request)

    def time_finalists(self, request: FinalRound) -> FinalTimes | AttemptResult:
        return self._disturb(request) or super().time_finalists(request)
