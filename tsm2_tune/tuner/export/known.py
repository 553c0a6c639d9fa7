"""What a winner's times on other shapes are expected from: how its kernel divides its work, and its card."""

from __future__ import annotations

from collections.abc import Mapping

from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.profiles import DRIVER_NAMES, PROFILES
from tsm2_tune.runtime.expecting import Card, Division
from tsm2_tune.tuner.stored import TrialRecord
from tsm2_tune.tuner.trial import TuningRun

Known = tuple[Mapping[int, Division], Mapping[str, Card]]  # by the winner's trial, by the device's name
NOTHING_KNOWN: Known = ({}, {})


def known_of(winners: Mapping[int, TrialRecord]) -> Known:
    """By trial, and by device: a card has the ceilings of the device's latest run.

    Neither has what is not known: of a trial that did not ask how many blocks a multiprocessor holds, of a device
    whose multiprocessors were not stored.
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
    return divisions, cards


def _card(run: TuningRun) -> Card | None:
    """The card of a run; None where its multiprocessors are not known."""
    profile = next((name for name, driver_name in DRIVER_NAMES.items() if driver_name == run.identity.name), None)
    sms = run.sms or (PROFILES[profile].sms if profile is not None else None)
    if sms is None:
        return None
    return Card(sms, run.ceilings.read_gbytes_per_s, run.ceilings.copy_gbytes_per_s, dict(run.ceilings.gflops))
