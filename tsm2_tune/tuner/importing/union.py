"""What two databases know of one problem on one device, put together: the same whichever of them is asked first.

A trial is known by its configuration and its basis, as the store has it: of one device and problem these are one
kernel, made by one compiler. Where two versions made two kernels of it, the one that this program makes counts, and
the other trial is superseded; one that is superseded in either database is so in both. A time is known by the run
that took it, the state of the L2 and the numbers themselves, and so is a final, by any time in it: numbers of rounds,
of trials and of runs are a database's own. Nothing is lost but the sentences of a trial that the other database has,
too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from tsm2_tune.errors import InputError
from tsm2_tune.tuner import schema, superseding
from tsm2_tune.tuner.trial import Outcome

TrialKey = tuple[str, str]  # configuration, basis
RunKey = tuple[Any, ...]  # the values of a row of `run`, in the order of its columns
Values = Mapping[str, Any]  # of a row, by column
K = TypeVar("K")

RUN = tuple(column.name for column in schema.run.columns if column.name != "id")
STARTED_AT = RUN.index("started_at")
MOST_FINALS = 1_000_000  # of a problem

# Of two trials of one kernel what counts, the first: a fault that was found once is a fault. Whatever was right
# somewhere did compile, load and end in time.
PRECEDENCE = (
    Outcome.WRONG_RESULT,
    Outcome.CRASHED,
    Outcome.OK,
    Outcome.BEHIND,
    Outcome.LAUNCH_FAILED,
    Outcome.COMPILE_FAILED,
    Outcome.TIMED_OUT,
    Outcome.INTERRUPTED,
)


@dataclass(frozen=True, slots=True)
class Timed:
    """A row of `measurement` or `vendor_measurement`, with its samples in order, which a summary lacks."""

    run: RunKey
    values: Values  # all but ids and the number of the round
    samples_us: tuple[float, ...]

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells this time from others: of a summary and of the samples that it is of it is the same."""
        numbers = (self.values[name] for name in ("cache", "median_us", "low_us", "high_us"))
        return *self.run, *numbers, self.values["summary_of"] or len(self.samples_us)

    @property
    def rank(self) -> tuple[Any, ...]:
        """By which one of two of the same key is taken: the smaller one has samples."""
        return not self.samples_us, _spelt(self.values), self.samples_us


@dataclass(frozen=True, slots=True)
class Tried:
    """A trial with the times that are its own."""

    run: RunKey
    values: Values  # of a row of `trial`, all but ids
    first: Timed | None  # round 0
    others: tuple[Timed, ...] = ()  # below 0, in the order of their keys

    @property
    def rank(self) -> tuple[Any, ...]:
        """By which one of two of the same kernel is taken; what a text tells of a trial is a part of it, and last."""
        limits = tuple(-(self.values[name] or 0.0) for name in ("compile_limit_seconds", "run_limit_seconds"))
        is_summary = self.first is not None and not self.first.samples_us
        known = (PRECEDENCE.index(Outcome(self.values["outcome"])), is_summary, *limits)
        return *known, self.values["ended_at"], _spelt(self.values), _spelt(self.run)


@dataclass(frozen=True, slots=True)
class Round:
    """A final in one state of the L2: every finalist's time, and the vendor's by library."""

    run: RunKey
    number: int
    timed: Mapping[TrialKey, Timed]
    vendor: Mapping[str, Timed]

    def __post_init__(self) -> None:
        if self.number > MOST_FINALS:  # the next one's number could not be stored
            raise InputError(f"round {self.number} of a final: nobody has made so many")

    @property
    def members(self) -> dict[tuple[Any, ...], Timed]:
        """All times in it, by what is timed."""
        return {**self.timed, **{(library,): one for library, one in self.vendor.items()}}


@dataclass(frozen=True, slots=True)
class Part:
    """All that a database has of one problem on one device."""

    trials: Mapping[TrialKey, Tried] = field(default_factory=dict)
    rounds: Sequence[Round] = ()  # by their numbers

    @property
    def times(self) -> int:
        """How many measurements it has, the vendor's included."""
        own = sum(len(one.others) + (one.first is not None) for one in self.trials.values())
        return own + sum(len(one.members) for one in self.rounds)


def union(ours: Part, theirs: Part, is_made_so: Callable[[Tried], bool] = lambda tried: True) -> Part:
    """Both parts as one; `ours` itself where that has all of it. Of two kernels of one configuration and basis that
    one counts which this program makes so.
    """
    one, other = _apart(ours, theirs, is_made_so)
    trials = dict(one.trials)
    for key, tried in other.trials.items():
        trials[key] = _both(trials[key], tried) if key in trials else tried
    found = Part(trials, _rounds(one, other))
    return ours if _facts(found) == _facts(ours) else found


def conflicts(ours: Part, theirs: Part, found: Part) -> Iterator[tuple[str, str]]:
    """Configurations of which the two parts of a union contradict each other, and what became of that."""
    for key in sorted(ours.trials.keys() & theirs.trials.keys()):
        one, other = ours.trials[key], theirs.trials[key]
        outcomes = [str(tried.values["outcome"]) for tried in (one, other, found.trials.get(key, other))]
        if _kernel(one) != _kernel(other):
            if not {superseded(one)[1], superseded(other)[1]} & (ours.trials.keys() | theirs.trials.keys()):
                yield key[0], "two kernels of one basis: the one counts that this version makes, the other is kept"
        elif outcomes[0] != outcomes[1] and {*outcomes[:2]} != {Outcome.OK, Outcome.BEHIND}:
            yield key[0], f"{outcomes[0]} here and {outcomes[1]} there: {outcomes[2]} counts"


def _apart(ours: Part, theirs: Part, is_made_so: Callable[[Tried], bool]) -> tuple[Part, Part]:
    """Both parts without two kernels of one key: all but one of them are superseded."""
    known = ours.trials.keys() | theirs.trials.keys()
    one, other = (
        _with_superseded(part, [key for key, tried in part.trials.items() if superseded(tried)[1] in known - {key}])
        for part in (ours, theirs)
    )
    for key in one.trials.keys() & other.trials.keys():
        both = one.trials[key], other.trials[key]
        if _kernel(both[0]) != _kernel(both[1]):
            counts = min(both, key=lambda tried: (not is_made_so(tried), _spelt(_kernel(tried))))
            if counts is both[0]:
                other = _with_superseded(other, [key])
            else:
                one = _with_superseded(one, [key])
    return one, other


def _with_superseded(part: Part, keys: Collection[TrialKey]) -> Part:
    """The part with these trials superseded."""
    if not keys:
        return part
    now, trials = dict[TrialKey, TrialKey](), dict(part.trials)
    for key in keys:
        tried, now[key] = superseded(trials.pop(key))
        trials[now[key]] = _both(trials[now[key]], tried) if now[key] in trials else tried
    rounds = (
        replace(one, timed={now.get(key, key): timed for key, timed in one.timed.items()}) for one in part.rounds
    )
    return Part(trials, tuple(rounds))


def superseded(tried: Tried) -> tuple[Tried, TrialKey]:
    """The trial as it is when another kernel counts, and its key then."""
    values = tried.values
    if values["superseded"]:
        return tried, (values["config"], values["basis"])
    values = {**values, "superseded": 1, "basis": superseding.basis_of(values)}
    return replace(tried, values=values), (values["config"], values["basis"])


def _both(one: Tried, other: Tried) -> Tried:
    """One trial of the two of one kernel: the first by its rank, with the other's times below 0."""
    kept, left = sorted((one, other), key=lambda tried: tried.rank)
    values = {**kept.values, "is_between": min(kept.values["is_between"], left.values["is_between"])}
    if values["full_verdict"] is None and values["outcome"] == Outcome.OK.value:
        values["full_verdict"] = left.values["full_verdict"]
    firsts = (kept.first, left.first, *kept.others, *left.others)
    timed = _by_key(one for one in firsts if one is not None)
    first = None if kept.first is None else timed.pop(kept.first.key)
    return replace(kept, values=values, first=first, others=tuple(timed[key] for key in sorted(timed, key=_spelt)))


def _kernel(tried: Tried) -> tuple[Any, ...]:
    return tuple(tried.values[name] for name in ("source_digest", "rows_per_block", "splits"))


def _by_key(timed: Iterable[Timed]) -> dict[tuple[Any, ...], Timed]:
    found: dict[tuple[Any, ...], Timed] = {}
    for one in sorted(timed, key=lambda one: one.rank):
        found.setdefault(one.key, one)
    return found


def _rounds(ours: Part, theirs: Part) -> Sequence[Round]:
    """The finals of both, each once, numbered anew by the start of their runs where both have some of their own."""
    own = list(ours.rounds)
    order = [one.number for one in own]  # within a run
    added = list[Round]()
    for new in theirs.rounds:
        place = _same(own, new)
        if place is None:
            added.append(new)
        else:
            own[place] = _joined(own[place], new)
            order[place] = max(order[place], new.number)
    if not added or not own:
        return own or added
    every = zip((*own, *added), (*order, *(one.number for one in added)), strict=True)
    in_time = sorted(every, key=lambda pair: (pair[0].run[STARTED_AT], _spelt(pair[0].run), pair[1]))
    return [replace(one, number=number) for number, (one, _) in enumerate(in_time, 1)]


def _same(own: Sequence[Round], new: Round) -> int | None:
    """The place of the round that is the new one, or a part of it: it shares times, and none is another."""
    best, place = 0, None
    for at, one in enumerate(own):
        both = one.members.keys() & new.members.keys()
        shared = sum(one.members[key].key == new.members[key].key for key in both)
        if one.run == new.run and shared == len(both) > best:
            best, place = shared, at
    return place


def _joined(one: Round, other: Round) -> Round:
    """The round with what the other has besides, or with samples."""
    return replace(one, timed=_better(one.timed, other.timed), vendor=_better(one.vendor, other.vendor))


def _better(one: Mapping[K, Timed], other: Mapping[K, Timed]) -> dict[K, Timed]:
    found = dict(one)
    for key, timed in other.items():
        found[key] = min(found.get(key, timed), timed, key=lambda two: two.rank)
    return found


def _spelt(values: object) -> str:
    """One text for equal values, by which they have an order."""
    return json.dumps(values, sort_keys=True, default=list)


def _facts(part: Part) -> tuple[Any, ...]:
    """What is compared of a part: all of it."""
    return dict(part.trials), list(part.rounds)
