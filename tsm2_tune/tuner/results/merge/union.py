"""Merge two databases' trials and final comparisons of one problem on one device.

Every row has an identity, and a fixed order decides between two versions of a row. So the merge is commutative,
associative and idempotent: a join in a semilattice.

- The identity of a trial consists of its configuration, its basis and its kernel. If both databases have the trial,
  the outcome that comes first in PRECEDENCE is kept, and the measurements of both versions are kept. The trial is
  superseded if the version with the greater time stamp is superseded.
- If a configuration has several kernels on the same basis, only one kernel can win: the kernel that this program
  generates, or the newest kernel if this program generates none of them. All other kernels are marked as superseded,
  even if the newest kernel is superseded too.
- The identity of a measurement consists of its run, the L2 cache state, and its numbers.
- A final comparison has an id of its own. Time stamps order final comparisons and trials: see logical_clock.py.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from tsm2_tune.errors import InputError
from tsm2_tune.tuner.results.domains import MOST_STAMP, Row
from tsm2_tune.tuner.results.fingerprint import superseded_basis
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.trial import Outcome

TrialKey = tuple[str, str]  # configuration, digest of basis and kernel
RunKey = tuple[Any, ...]  # the values of a row of `run`, in the order of its columns
Values = Mapping[str, Any]  # a row's values by column
K = TypeVar("K")

RUN = tuple(column.name for column in schema.run.columns if column.name != "id")
STARTED_AT = RUN.index("started_at")
KERNEL = ("source_digest", *schema.LAUNCH_OF_TRIAL)
# Columns of `trial` that have their own rules in a merge. All other columns come from the version that is kept.
JOINED = ("is_between", "full_verdict", "verified_code", "stamp", "superseded", "basis", "first_basis")

# Of two outcomes, the earlier in this list is kept. A fault that was found once is a fault. A kernel that once gave a
# correct result can be compiled and launched, and ends in time.
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


def device_of(run: RunKey) -> str:
    """Return the name of the run's device."""
    return str(run[RUN.index("device_name")])


@dataclass(frozen=True, slots=True)
class Timed:
    """A measurement: a row of `measurement` or `vendor_measurement`, with its samples in order.

    A measurement whose samples were not stored is called a summary: `samples_us` is empty.
    """

    run: RunKey
    values: Values  # without ids and the number of the round
    samples_us: tuple[float, ...]

    @property
    def key(self) -> tuple[Any, ...]:
        """The identity of the measurement; a summary and the measurement with the samples have the same."""
        numbers = (self.values[name] for name in ("cache", "median_us", "low_us", "high_us"))
        return *self.run, *numbers, self.values["summary_of"] or len(self.samples_us)

    @property
    def rank(self) -> tuple[Any, ...]:
        """The sort key of measurements with one identity, of which a merge keeps the first: summaries come last."""
        return not self.samples_us, _sort_key(self.values), self.samples_us, _sort_key(self.run)


@dataclass(frozen=True, slots=True)
class Tried:
    """A trial with the measurements that the search made. Measurements of final comparisons are in Round."""

    run: RunKey
    values: Values  # values of a row of `trial`, without ids
    first: Timed | None  # round 0
    others: tuple[Timed, ...] = ()  # rounds below 0, in the order of their keys

    def __post_init__(self) -> None:
        _refuse_stamp(self.values["stamp"])

    @property
    def basis(self) -> str:
        """The basis that the trial had when it was stored: a digest of compiler, flags and L2 cache state."""
        return str(self.values["first_basis"] or self.values["basis"])

    @property
    def key(self) -> TrialKey:
        """The identity of the trial: its configuration, and a digest of its original basis and its kernel."""
        return key_of(self.values)

    @property
    def rank(self) -> tuple[Any, ...]:
        """The sort key of versions of one trial, of which a merge keeps the first. No merge changes it.

        Trials from text files come last, because some of their values are missing.
        """
        limits = tuple(-(self.values[name] or 0.0) for name in ("compile_limit_seconds", "run_limit_seconds"))
        known = (PRECEDENCE.index(Outcome(self.values["outcome"])), not self.values["total_seconds"], *limits)
        own = {name: value for name, value in self.values.items() if name not in JOINED}
        timed = _sort_key(self.first and self.first.key)
        return *known, self.values["ended_at"], _sort_key(own), _sort_key(self.run), timed


def key_of(values: Row) -> TrialKey:
    """Return the identity of the trial with these values of a row of `trial`."""
    kernel = [values["first_basis"] or values["basis"], *(values[name] for name in KERNEL)]
    return str(values["config"]), hashlib.sha256(json.dumps(kernel).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Round:
    """A final comparison in one L2 cache state: the time of every finalist, and of every vendor library by name."""

    run: RunKey
    final: str  # its id
    stamp: int
    timed: Mapping[TrialKey, Timed]
    vendor: Mapping[str, Timed]

    def __post_init__(self) -> None:
        _refuse_stamp(self.stamp)

    @property
    def place(self) -> tuple[int, str]:
        """The sort key of a part's final comparisons."""
        return self.stamp, self.final

    @property
    def members(self) -> dict[tuple[Any, ...], Timed]:
        """All measurements of the final comparison, by trial or by vendor library."""
        return {**self.timed, **{(library,): one for library, one in self.vendor.items()}}


@dataclass(frozen=True, slots=True)
class Part:
    """All rows of a database for one problem on one device."""

    trials: Mapping[TrialKey, Tried] = field(default_factory=dict)
    rounds: Sequence[Round] = ()  # in the order of their stamps

    @property
    def times(self) -> int:
        """The number of measurements, including the measurements of vendor libraries."""
        own = sum(len(one.others) + (one.first is not None) for one in self.trials.values())
        return own + sum(len(one.members) for one in self.rounds)


def part_of(trials: Iterable[Tried], rounds: Iterable[Round]) -> Part:
    """Return a Part with these trials and final comparisons. Trials or final comparisons with equal identities are
    merged.
    """
    every, finals = dict[TrialKey, Tried](), dict[str, Round]()
    for tried in trials:
        key = tried.key
        every[key] = _join_tries(every[key], tried) if key in every else tried
    for one in rounds:
        finals[one.final] = _joined(finals[one.final], one) if one.final in finals else one
    return Part(every, sorted(finals.values(), key=lambda one: one.place))


def union(ours: Part, theirs: Part, has_current_kernel: Callable[[Tried], bool]) -> Part:
    """Return the merged rows of both parts. Return the object `ours` itself if `theirs` adds nothing."""
    joined = theirs
    if ours.trials or ours.rounds:
        joined = part_of((*ours.trials.values(), *theirs.trials.values()), (*ours.rounds, *theirs.rounds))
    found = Part(_competing(joined.trials, has_current_kernel), joined.rounds)
    return ours if (dict(found.trials), list(found.rounds)) == (dict(ours.trials), list(ours.rounds)) else found


def conflicts(ours: Part, theirs: Part, found: Part) -> Iterator[tuple[str, str]]:
    """Yield (configuration, explanation) for each configuration whose trials in both parts contradict each other."""
    for key in sorted(ours.trials.keys() & theirs.trials.keys()):
        outcomes = [str(part.trials[key].values["outcome"]) for part in (ours, theirs, found)]
        if outcomes[0] != outcomes[1] and {*outcomes[:2]} != {Outcome.OK, Outcome.BEHIND}:
            yield key[0], f"{outcomes[0]} here and {outcomes[1]} there: {outcomes[2]} is kept"
    here, there = (
        {(key[0], tried.basis): key for key, tried in part.trials.items() if not tried.values["superseded"]}
        for part in (ours, theirs)
    )
    for place in sorted(here.keys() & there.keys()):
        if here[place] not in theirs.trials and there[place] not in ours.trials:
            yield (
                place[0],
                "two kernels with one basis: the kernel of this version counts, the other is kept as superseded",
            )


def _competing(
    trials: Mapping[TrialKey, Tried], has_current_kernel: Callable[[Tried], bool]
) -> dict[TrialKey, Tried]:
    """Mark trials as superseded until each configuration has at most one kernel on each basis that can win."""
    rivals = defaultdict[tuple[str, str], list[Tried]](list)
    for key, tried in trials.items():
        rivals[key[0], tried.basis].append(tried)
    found = dict(trials)
    for every in rivals.values():
        if len(every) > 1:
            made = {tried.key: has_current_kernel(tried) for tried in every}
            newest = max(every, key=lambda tried: (made[tried.key], tried.values["stamp"], tried.key))
            for tried in every:
                is_left = tried is not newest or (tried.values["superseded"] and not made[tried.key])
                found[tried.key] = _marked(tried, is_left)
    return found


def _marked(tried: Tried, is_superseded: bool) -> Tried:
    """Return the trial, marked as superseded or not superseded."""
    values = {**tried.values, "superseded": int(is_superseded), "basis": tried.basis, "first_basis": None}
    if is_superseded:
        values |= {"first_basis": tried.basis, "basis": superseded_basis(values)}
    return replace(tried, values=values)


def _join_tries(one: Tried, other: Tried) -> Tried:
    """Merge two versions of one trial."""
    if one == other:
        return one
    kept, left = sorted((one, other), key=lambda tried: tried.rank)
    states = max((tried.values["stamp"], tried.values["superseded"]) for tried in (one, other))
    verdicts = [(tried.values["verified_code"] or "", tried.values["full_verdict"]) for tried in (one, other)
                if tried.values["outcome"] == kept.values["outcome"] and tried.values["full_verdict"]]  # fmt: skip
    code, verdict = max(verdicts, default=("", None))  # prefer a verification with a digest of machine code
    values = {
        **kept.values,
        "is_between": min(kept.values["is_between"], left.values["is_between"]),
        "full_verdict": verdict,
        "verified_code": code or None,
        "stamp": states[0],
    }
    timed = _by_key(one for one in (kept.first, left.first, *kept.others, *left.others) if one is not None)
    first = None if kept.first is None else timed.pop(kept.first.key)
    others = tuple(timed[key] for key in sorted(timed, key=_sort_key))
    return _marked(replace(kept, values=values, first=first, others=others), bool(states[1]))


def _by_key(timed: Iterable[Timed]) -> dict[tuple[Any, ...], Timed]:
    found: dict[tuple[Any, ...], Timed] = {}
    for one in sorted(timed, key=lambda one: one.rank):
        found.setdefault(one.key, one)
    return found


def _joined(one: Round, other: Round) -> Round:
    """Merge two versions of one final comparison."""
    run = one.run if one.run == other.run else min(one.run, other.run, key=_sort_key)
    stamp = max(one.stamp, other.stamp)
    return Round(run, one.final, stamp, _better(one.timed, other.timed), _better(one.vendor, other.vendor))


def _better(one: Mapping[K, Timed], other: Mapping[K, Timed]) -> dict[K, Timed]:
    found = dict(one)
    for key, timed in other.items():
        found[key] = min(found[key], timed, key=lambda two: two.rank) if key in found else timed
    return found


def _refuse_stamp(stamp: int) -> None:
    if stamp >= MOST_STAMP // 2:  # later stamps would not fit their column
        raise InputError(f"the stamp {stamp} is too far in the future")


def _sort_key(values: object) -> str:
    """Return a text by which values can be sorted. Equal values have equal texts."""
    return json.dumps(values, sort_keys=True, default=list)
