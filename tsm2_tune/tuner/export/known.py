"""What winners' times on other shapes are expected from: what was measured of their kernels, how these divide their
work, and their cards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.profiles import DRIVER_NAMES, PROFILES
from tsm2_tune.runtime.expecting import Division
from tsm2_tune.runtime.work import Card
from tsm2_tune.tuner.export.fitting import distance
from tsm2_tune.tuner.store import Store
from tsm2_tune.tuner.stored import CurrentTrial, TrialRecord, is_of_this_version
from tsm2_tune.tuner.trial import TuningRun

MOST_ELSEWHERE = 16  # shapes at which a kernel was measured, the nearest ones

Elsewhere = tuple[tuple[int, int, int, int, int, float], ...]  # m, n, k, rows of a block, splits, microseconds


@dataclass(frozen=True, slots=True)
class Known:
    """By the winners' trials, and by the device's name. None of it has what is not known."""

    divisions: Mapping[int, Division] = field(default_factory=dict)
    cards: Mapping[str, Card] = field(default_factory=dict)
    elsewhere: Mapping[int, Elsewhere] = field(default_factory=dict)


NOTHING_KNOWN = Known()


def known_of(store: Store, winners: Mapping[int, TrialRecord]) -> Known:
    """What the store has of these winners, by trial, and of their devices: a card has the ceilings of the device's
    latest run.

    Not known is the division of a trial that did not ask how many blocks a multiprocessor holds, and the card of a
    device whose multiprocessors were not stored.
    """
    divisions, cards, of_runs = dict[int, Division](), dict[str, Card](), dict[str, str]()
    for trial_id, record in winners.items():
        trial, run = record.trial, record.run
        if trial.resources is not None and trial.resources.blocks_per_sm:
            family = FAMILIES[trial.config.family]
            divisions[trial_id] = family.division(trial.config, trial.problem, trial.resources.blocks_per_sm)
        device, card = run.identity.name, _card(run)
        if card is not None and of_runs.get(device, "") <= run.started_at:
            cards[device], of_runs[device] = card, run.started_at
    return Known(divisions, cards, dict(_elsewhere(store, winners)))


def _card(run: TuningRun) -> Card | None:
    """The card of a run; None where its multiprocessors are not known."""
    profile = next((name for name, driver_name in DRIVER_NAMES.items() if driver_name == run.identity.name), None)
    sms = run.sms or (PROFILES[profile].sms if profile is not None else None)
    if sms is None:
        return None
    return Card(sms, run.ceilings.read_gbytes_per_s, run.ceilings.copy_gbytes_per_s, dict(run.ceilings.gflops))


def _elsewhere(store: Store, winners: Mapping[int, TrialRecord]) -> Iterator[tuple[int, Elsewhere]]:
    """Of each winner what its kernel took at other shapes, started as was best there: at the nearest ones."""
    for device in {record.run.identity.name for record in winners.values()}:
        fastest = dict[tuple[str, str, str, str], dict[Problem, CurrentTrial]]()
        for one in store.current(device):
            if one.median_us is not None and is_of_this_version(one.config, one.problem):
                at = fastest.setdefault(_kernel(one.source_digest, one.problem, one.cache), {})
                if one.problem not in at or one.median_us < (at[one.problem].median_us or math.inf):
                    at[one.problem] = one
        for trial_id, record in winners.items():
            if record.run.identity.name == device:
                trial = record.trial
                at = fastest.get(_kernel(trial.source.digest, trial.problem, trial.cache), {})
                others = [one for problem, one in at.items() if problem != trial.problem]
                others.sort(key=lambda one, own=trial.problem: (distance(one.problem, own), one.problem))  # type: ignore[misc]
                yield trial_id, tuple(sorted(map(_point, others[:MOST_ELSEWHERE])))


def _kernel(digest: str, problem: Problem, cache: str) -> tuple[str, str, str, str]:
    return digest, problem.dtype_name, problem.op, cache


def _point(trial: CurrentTrial) -> tuple[int, int, int, int, int, float]:
    p, launch = trial.problem, FAMILIES[trial.config.family].launch(trial.config, trial.problem)
    return p.m, p.n, p.k, launch.rows_per_block, launch.splits, trial.median_us or 0.0
