"""One database's trials into another: twice is as once, and after a kill the same again adds what is missing."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial

from tsm2_tune.errors import StoreError
from tsm2_tune.generator.plain import plain
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner import quarantine, stored
from tsm2_tune.tuner.database import Database
from tsm2_tune.tuner.domains import Row
from tsm2_tune.tuner.importing.parts import Reader, places, write
from tsm2_tune.tuner.importing.union import Part, Tried, conflicts, union
from tsm2_tune.tuner.quarantine import Quarantined
from tsm2_tune.tuner.repeating import Lost, repeated

HOLD_SECONDS = 0.5  # for which a transaction keeps others from writing


@dataclass(frozen=True, slots=True)
@plain
class Imported:
    """The result of an import."""

    trials: int  # that were added
    known: int  # trials that were there
    times: int  # measurements that were added, the vendor's included
    problems: int  # of a device each, that had any of it
    left_out: tuple[str, ...] = ()  # a sentence for each configuration that was not imported
    changed: int = 0  # problems of a device each, of which anything is new
    conflicts: tuple[str, ...] = ()  # a sentence for each configuration of which the two contradict each other
    quarantined: int = 0  # kernels that are new in quarantine, or failed there later
    between: int = 0  # of the problems, those that no search tuned: shapes between tuned ones

    def __str__(self) -> str:
        trials, times, problems = (
            f"{number} {what}{'s' if number != 1 else ''}"
            for number, what in ((self.trials, "trial"), (self.times, "measurement"), (self.problems, "problem"))
        )
        faulty = f"; {self.quarantined} in quarantine" if self.quarantined else ""
        between = f" ({self.between} of them shapes between tuned ones)" if self.between else ""
        if not self.changed:
            known = f"{self.known} trial{'s' if self.known != 1 else ''} already present"
            return f"nothing new: {known}, of {problems}{between}{faulty}"
        return f"added {trials} ({self.known} already present) and {times}, of {problems}{between}{faulty}"


Into = Callable[[], AbstractContextManager[Database]]
Source = Callable[[str], Row]  # the kernel of a digest
New = tuple[tuple[str, Problem], Part]  # of a device and problem


def merge(into: Into, other: Database) -> Imported:
    """Add what the other database has and the one that `into` opens lacks, in short transactions. So nobody waits for
    long, and after a kill the same again adds the rest.

    All of the other one is read before. StoreError where either cannot be used, or has a row that is not as it was
    stored.
    """

    def source(digest: str) -> Row:
        """In a transaction of its own: what fails there or here is told of the right database."""
        with _of(other), other.transaction() as connection:
            return Reader(connection).source(digest)

    with _of(other):
        parts, faulty = list(_parts(other)), quarantine.entries(other)
    return merge_parts(into, parts, source, faulty)


def merge_parts(into: Into, parts: Sequence[New], source: Source, faulty: Sequence[Quarantined] = ()) -> Imported:
    """Add these parts, as `merge` does."""
    trials = known = times = changed = between = 0
    sentences = list[str]()
    with into() as database:
        left = deque[tuple[Part, Part]]()
        for at, ((device_name, problem), new) in enumerate(parts):
            left = left or deque(_merged(database, parts[at:], source))
            old, found = left.popleft()
            changed += found is not old
            between += all(one.values["is_between"] for one in new.trials.values())
            added = len(found.trials) - len(old.trials)
            trials, known = trials + added, known + len(new.trials) - added
            times += found.times - old.times
            sentences += (
                f"conflict: {config} for {problem.text} on {device_name}: {what}"
                for config, what in conflicts(old, new, found)
            )
        quarantined = _united(database, faulty)
    return Imported(trials, known, times, len(parts), (), changed, tuple(sentences), quarantined, between)


@repeated
def _united(database: Database, theirs: Sequence[Quarantined]) -> int:
    """How many of these are new in quarantine."""
    if not theirs:
        return 0
    with _of(database), database.transaction(writes=True) as connection:
        return quarantine.unite(connection, theirs)


@repeated
def _merged(database: Database, parts: Sequence[New], source: Source) -> list[tuple[Part, Part]]:
    """Merge the first of these problems, in one transaction; return what the database had of each and what it has."""
    merged, start = list[tuple[Part, Part]](), time.monotonic()
    with _of(database), database.transaction(writes=True) as connection:
        for (device_name, problem), new in parts:
            old = Reader(connection).part(device_name, problem)
            found = union(old, new, partial(_is_made_so, problem))
            if found is not old:
                write(connection, device_name, problem, found, source)
            merged.append((old, found))
            if time.monotonic() - start > HOLD_SECONDS:
                break
    return merged


def _is_made_so(problem: Problem, tried: Tried) -> bool:
    """Whether this program makes the trial's kernel so."""
    return stored.made_so(problem, tried.values) is not None


def _parts(database: Database) -> Iterator[tuple[tuple[str, Problem], Part]]:
    """Each device and problem, with all that the database has of it."""
    with database.transaction() as connection:
        every = places(connection)
    for place in every:
        with database.transaction() as connection:
            yield place, Reader(connection).part(*place)


@contextmanager
def _of(of: Database) -> Iterator[None]:
    """Name the database in a StoreError about one of its rows."""
    try:
        yield
    except (Lost, _Told):
        raise
    except StoreError as error:
        text = str(error)
        raise _Told(text if text.startswith(str(of.path)) else f"{of.path}: {text}") from error


class _Told(StoreError):
    """Says of which database it is."""
