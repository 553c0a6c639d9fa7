"""Print a run's events for other programs, one line of JSON for each event. docs/json.md describes the lines."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Any

import click

from tsm2_tune import __version__
from tsm2_tune.console.eta import Tally
from tsm2_tune.console.heartbeat import LONG_SECONDS, Heartbeat
from tsm2_tune.console.printable import fields
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.trial import Cache, Measurement, Trial
from tsm2_tune.tuner.runs.events import (
    Event,
    FinalFailure,
    FinalStored,
    FleetStarted,
    Noted,
    OfRun,
    PairMeasured,
    PairsStarted,
    ProblemEnded,
    ProblemLeft,
    ProblemStarted,
    RunEnded,
    RunStarted,
    TrialInterrupted,
    TrialStored,
    VendorLeftOut,
    WinnerVerified,
)
from tsm2_tune.tuner.runs.run import TuningResult
from tsm2_tune.tuner.runs.signals import Stopped
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.phase_timer import PhaseTimer

SCHEMA = 2  # version of the lines: raise it if a field is removed or changes its meaning, not if one is added

Facts = dict[str, Any]


class EventLines:
    """Printer of a run's events as lines of JSON on standard output. Use it as a context manager.

    Several named runs may share the problems. `database` is the database's name. A run without events for
    `long_seconds` prints its phase.
    """

    def __init__(self, database: str, long_seconds: float = LONG_SECONDS) -> None:
        self._database = database
        self._printing = threading.Lock()  # the heartbeat's thread prints too
        self._phases: PhaseTimer | None = None
        self._tally = Tally(Options(), 0)  # replaced when the run starts
        self._heartbeat = Heartbeat(self._print_phase, long_seconds)

    def __enter__(self) -> EventLines:
        self._print("stream", {"schema": SCHEMA, "version": __version__, "database": self._database})
        self._heartbeat.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._heartbeat.__exit__(kind, error, trace)
        if isinstance(error, Stopped):
            with suppress(OSError):  # the reader may have closed the pipe
                self._print("stopped", {"signal": str(error)})

    def show(self, event: Event, run: str = "") -> None:
        """Print an event of the run with this name as one line of JSON."""
        self._heartbeat.event()
        if isinstance(event, OfRun):
            self.show(event.event, event.run)
            return
        if isinstance(event, RunEnded):
            run = event.run
        if isinstance(event, RunStarted) and self._phases is None:
            self._phases = event.phases
            self._tally = Tally(event.options, len(event.problems))
        is_searching = run in self._tally.turns or isinstance(event, ProblemStarted)
        self._tally.update(event, run)
        name, facts_of = LINES[type(event)]
        facts: Facts = {"run": run} if run else {}
        facts |= facts_of(event)
        if name in WITH_PROGRESS:
            facts["progress"] = _progress(self._tally, run) if is_searching else None
        self._print(name, facts)

    def end(self, result: TuningResult) -> None:
        """Print the result of the whole run as one line of JSON."""
        facts = {
            "complete": result.is_complete,
            "winners": [_winner(row) for row in result.winners],
            "changed": [problem.text for problem in result.changed],
            "unsolved": [problem.text for problem in result.unsolved],
            "interrupted": result.interrupted,
            "unfinished": [problem.text for problem in result.unfinished],
        }
        self._print("result", facts)

    def _print_phase(self, seconds: float) -> None:
        if self._phases is not None:
            self._print("heartbeat", {"silent_seconds": round(seconds, 1), "phase": self._phases.now})

    def _print(self, name: str, facts: Facts) -> None:
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        with self._printing:
            click.echo(json.dumps({"event": name, "time": at, **facts}))  # echo flushes


def _run_started(event: RunStarted) -> Facts:
    identity, options = event.target.identity, event.options
    return {
        "device": identity.name,
        **fields(identity, "uuid compute_capability driver toolkit flags"),
        "l2_state": event.target.cache(options.cache),
        "strategy": options.strategy,
        "gain_percent": None if options.gain is None else 100 * options.gain,
        **fields(options, "seed budget_seconds max_trials compile_limit_seconds run_limit_seconds"),
        "problems": [problem.text for problem in event.problems],
    }


def _problem_started(event: ProblemStarted) -> Facts:
    return {
        "problem": event.space.problem.text,
        "configurations": len(event.space.kept),
        "previous_tried": event.tried_before,
        "previous_seconds": event.seconds_before,
        "previous_best_us": event.best_before_us,
        "vendor_us": event.vendor_us,
    }


def _trial(trial: Trial) -> Facts:
    return {
        **fields(trial, "problem config outcome detail"),
        "is_intermediate_shape": trial.is_between,
        **_times(trial.measurement, trial.cache),
        "floor_us": trial.floor_us,
        **fields(trial.resources, "registers"),
        "spill_bytes": trial.spill_bytes,
        **fields(trial.resources, "smem_bytes blocks_per_sm"),
        **fields(trial, "compile_seconds total_seconds"),
    }


def _times(measured: Measurement | None, cache: Cache) -> Facts:
    """Return the fields with the measured times; None without a measurement. `cache` is the state of the L2 cache."""
    return {"l2_state": cache, **fields(measured, "median_us low_us high_us sm_clock_mhz")}


def _final(event: FinalStored) -> Facts:
    final = event.final
    return {
        "problem": final.problem.text,
        "finalists": [{"config": config.text, **_times(one, one.cache)} for config, one in final.measurements],
        "vendor": [
            {
                **fields(one, "library version routine"),
                "correct": one.verdict.correct,
                **_times(one.measurement, one.measurement.cache),
            }
            for one in final.vendor
        ],
    }


def _problem_ended(event: ProblemEnded) -> Facts:
    return {
        **fields(event, "problem new_trials tried timed_out untried interrupted quarantined"),
        "winner": None if event.winner is None else _winner(event.winner),
        "stop_reason": str(event.why),
    }


def _winner(row: BestRow) -> Facts:
    names = "median_us low_us high_us gbytes_per_s percent_of_floor vendor_us vendor_routine x_cublas ties"
    return {
        **fields(row, "problem trial_id config"),
        "l2_state": row.cache,
        **fields(row, names),
        "verified_in_full": bool(row.verified_in_full),
        "stale": bool(row.stale),
    }


def _progress(tally: Tally, run: str) -> Facts:
    """Return the fields with the run's progress: problems tuned, remaining time, best times so far."""
    turn, seconds = tally.turns.get(run), tally.remaining_seconds
    return {
        "problems": tally.problems,
        "problems_ended": len(tally.ended),
        "remaining_seconds": None if seconds is None else round(seconds, 1),
        "mean_x_cublas": tally.mean_x_vendor,
        **fields(turn, "tried total best_us vendor_us"),
        "x_cublas": turn.x_vendor if turn else None,
        **fields(turn, "percent_of_floor"),
    }


# Event class -> the name in its line, and the function that returns its fields.
LINES: Mapping[type, tuple[str, Callable[[Any], Facts]]] = {
    Noted: ("note", partial(fields, names="text")),
    RunStarted: ("run_started", _run_started),
    ProblemStarted: ("problem_started", _problem_started),
    TrialStored: ("trial", lambda event: {"trial_id": event.trial_id, **_trial(event.trial)}),
    TrialInterrupted: ("trial_interrupted", lambda event: _trial(event.trial)),
    FinalStored: ("final", _final),
    FinalFailure: ("final_failed", partial(fields, names="problem detail interrupted")),
    WinnerVerified: ("winner_verified", partial(fields, names="problem trial_id config outcome detail")),
    VendorLeftOut: ("vendor_skipped", partial(fields, names="problem detail")),
    ProblemLeft: ("problem_left", partial(fields, names="problem")),
    ProblemEnded: ("problem_ended", _problem_ended),
    PairsStarted: ("cross_timing_started", partial(fields, names="")),
    FleetStarted: (
        "runs_started",
        lambda event: {"runs": list(event.runs), "problems": [problem.text for problem in event.problems]},
    ),
    RunEnded: ("run_ended", lambda event: {"error": event.trouble or None}),
    PairMeasured: ("cross_timing_progress", partial(fields, names="done total")),
}
WITH_PROGRESS = ("problem_started", "trial", "trial_interrupted", "final", "problem_ended")
