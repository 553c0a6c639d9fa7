"""Export of the trials of one problem on one device in formats of other autotuners: T4 and Kernel Tuner."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from tsm2_tune.errors import InputError, StoreError
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.exchange.documents import DOCUMENTS
from tsm2_tune.tuner.results.exchange.entry import Entry
from tsm2_tune.tuner.results.merge.reader import Reader, places
from tsm2_tune.tuner.results.merge.serializer import has_line
from tsm2_tune.tuner.results.merge.union import Part, TrialKey, Tried
from tsm2_tune.tuner.results.records import is_of_this_version
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import PREFERRED, Cache, Outcome
from tsm2_tune.tuner.results.trial_summaries import CurrentTrial

EXCHANGE = tuple(DOCUMENTS)  # names of the formats
OF_ONE_FAMILY = "kernel-tuner-cache"


def export_exchange(
    store: Store,
    form: str,
    *,
    device: str | None = None,
    chosen: Callable[[Problem], bool] = lambda problem: True,
    cache: Cache | None = None,
    family: str | None = None,
) -> str:
    """Return the text of the trials of one problem in the format `form`, which is one of EXCHANGE.

    Only trials that were timed in L2 state `cache` are exported. If `cache` is None, the L2 state is the first one in
    PREFERRED in which a trial was timed. With `family`, only trials of that kernel family are exported. Raise
    InputError if no trial matches, if several problems or devices match, or if trials of several families match and
    `form` allows only one family. Raise StoreError if a row of the database is corrupt.
    """
    device, problem = _place(store, form, device, chosen)
    every = [one for one in store.current(device, problem) if is_of_this_version(one.config, problem)]
    found = [one for one in every if family is None or one.config.family == family]
    state = next((one for one in PREFERRED if cache in (None, one) and any(t.cache is one for t in found)), None)
    if state is None:
        raise _nothing(store)
    found = [one for one in found if one.cache is state]
    families = sorted({one.config.family for one in found})
    if form == OF_ONE_FAMILY and len(families) > 1:
        raise InputError(
            f"--format {form} holds the trials of one family, and {store.path} has trials of {', '.join(families)}"
            f" for {problem.text} on {device}: choose a family with --family"
        )
    entry = Entry(device, problem, state, _part(store, device, problem, found))
    return json.dumps(DOCUMENTS[form](entry), ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def _place(store: Store, form: str, device: str | None, chosen: Callable[[Problem], bool]) -> tuple[str, Problem]:
    """Return the stored device and problem that `device` and `chosen` select.

    Raise InputError unless they select exactly one pair of a device and a problem.
    """
    with store.database.transaction() as connection:
        found = [(on, problem) for on, problem in places(connection) if device in (None, on) and chosen(problem)]
    if not found:
        raise _nothing(store)
    if len(found) > 1:
        on, problem = found[0]
        raise InputError(
            f"--format {form} holds the trials of one problem on one device, and this selection of {store.path}"
            f" has {len(found)}: choose one, such as with --device {on!r} --shapes {problem.text}"
        )
    return found[0]


def _part(store: Store, device: str, problem: Problem, found: list[CurrentTrial]) -> Part:
    """Return the stored facts of the trials `found`, with a value for every tunable of this version.

    A tunable that did not exist when a trial was stored gets its default value. Interrupted trials are excluded.
    Raise InputError if no trial remains. Raise StoreError if a trial is stored as correct, but without a correct
    result or without a time.
    """
    with store.database.transaction() as connection:
        part = Reader(connection).part(device, problem)
    trials = dict[TrialKey, Tried]()
    known = {(key[0], tried.values["basis"]): key for key, tried in part.trials.items()}
    for one in found:
        key = known[one.config.text, one.basis]
        tried = part.trials[key]
        if tried.values["outcome"] == Outcome.OK and not has_line(tried):
            raise StoreError(f"{store.path}: trial {one.id} is ok, but has no right result or time: tune it again")
        if tried.values["outcome"] != Outcome.INTERRUPTED:
            trials[key] = replace(tried, values={**tried.values, "tunables": one.config.json})
    if not trials:
        raise _nothing(store)
    rounds = []
    for final in part.rounds:
        timed = {key: timed for key, timed in final.timed.items() if key in trials}
        if timed:
            rounds.append(replace(final, timed=timed))
    return Part(trials, rounds)


def _nothing(store: Store) -> InputError:
    return InputError(f"nothing to export: {store.path} has no trial for this selection; tune first")
