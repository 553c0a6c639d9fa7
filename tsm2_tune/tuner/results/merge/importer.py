"""Import the trials of one database into another. A repeated import adds nothing. A killed import can be repeated."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial

from sqlalchemy import select

from tsm2_tune.errors import StoreError
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.scalars import plain
from tsm2_tune.tuner.results import queries, records
from tsm2_tune.tuner.results.domains import Row
from tsm2_tune.tuner.results.merge.reader import Reader, parts_of, places, problem_ids
from tsm2_tune.tuner.results.merge.union import Part, Tried, conflicts, union
from tsm2_tune.tuner.results.merge.writer import Change, Writer, batches
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.storage.addresses import command_on
from tsm2_tune.tuner.results.storage.database import Database
from tsm2_tune.tuner.results.storage.retry import Lost, repeated
from tsm2_tune.tuner.results.trial import count_text
from tsm2_tune.tuner.search import quarantine
from tsm2_tune.tuner.search.quarantine import Quarantined

HOLD_SECONDS = 0.4  # the time for which a transaction keeps other writers waiting; its last batch takes 0.1 s more


@dataclass(frozen=True, slots=True)
@plain
class Imported:
    """The result of an import."""

    trials: int  # added
    known: int  # trials that the database already had
    times: int  # measurements added, the vendor's included
    problems: int  # in the imported file; a problem on two devices counts twice
    left_out: tuple[str, ...] = ()  # a sentence for each configuration that was not imported
    changed: int = 0  # number of `problems` for which anything was added
    conflicts: tuple[str, ...] = ()  # a sentence for each configuration whose trials contradict each other
    quarantined: int = 0  # kernels that hung or crashed, and that were not known or failed more recently
    between: int = 0  # number of `problems` that count as untuned: only kernels of other shapes were timed there

    def __str__(self) -> str:
        trials, times, problems = (
            count_text(number, what)
            for number, what in ((self.trials, "trial"), (self.times, "measurement"), (self.problems, "problem"))
        )
        faulty = f"; {self.quarantined} in quarantine" if self.quarantined else ""
        between = f" ({self.between} of them not tuned, only timed)" if self.between else ""
        if not self.changed:
            known = f"{count_text(self.known, 'trial')} already present"
            return f"nothing new: {known}, of {problems}{between}{faulty}"
        return f"added {trials} ({self.known} already present) and {times}, of {problems}{between}{faulty}"


Into = Callable[[], AbstractContextManager[Database]]
Source = Callable[[str], Row]  # returns the kernel with a digest
Show = Callable[[float], object]  # is called with the fraction that is done
New = tuple[tuple[str, Problem], Part]  # (device, problem), and all of their rows


@dataclass(frozen=True, slots=True)
class Incoming:
    """All that a source of an import has."""

    parts: Sequence[New]
    source: Source
    faulty: Sequence[Quarantined] = ()  # kernels that hung or crashed
    left_out: tuple[str, ...] = ()  # a sentence for each configuration that is not imported


def stored(other: Database, show: Show) -> Incoming:
    """Read all that an import takes from the database `other`, which stays open until the import has ended.

    `show` is called with the fraction that has been read. Raise StoreError if a row is damaged.
    """

    def source(digest: str) -> Row:
        """Read a row of `source` from `other`, which the message of an error names."""
        with _of(other), other.transaction() as connection:
            return Reader(connection).source(digest)

    with _of(other):
        _refuse_contradictions(other)
        return Incoming(list(_parts(other, show)), source, quarantine.entries(other))


def _refuse_contradictions(database: Database) -> None:
    """Raise StoreError if a trial contradicts itself: an outcome of it would replace that of a sound trial."""
    path = str(database.path)
    with database.transaction() as connection:
        for what, is_so in queries.CONTRADICTIONS.items():
            number = connection.execute(select(schema.trial.c.id).where(is_so).limit(1)).scalar()
            if number is not None:
                raise StoreError(
                    f"{path} is damaged, trial {number} {what}: `{command_on('db check', path)}` lists what is wrong;"
                    " restore a copy of it, or remove these trials"
                )


def merge(into: Into, incoming: Incoming, show: Show) -> Imported:
    """Add the rows that the database that `into` opens lacks. `show` is called with the fraction that is done.

    Rows are written in short transactions, so that other writers do not wait long. After a kill, a second call adds
    the remaining rows. Raise StoreError if the database cannot be used or has a damaged row.
    """
    parts = incoming.parts
    trials = known = times = changed = between = 0
    sentences = list[str]()
    with into() as database:
        merged = deque[tuple[Part, Part]]()
        for at, ((device_name, problem), new) in enumerate(parts):
            merged = merged or deque(_merged(database, parts[at:], incoming.source))
            old, found = merged.popleft()
            show((at + 1) / len(parts))
            changed += found is not old
            between += all(one.values["is_between"] for one in new.trials.values())
            added = len(found.trials) - len(old.trials)
            trials, known = trials + added, known + len(new.trials) - added
            times += found.times - old.times
            sentences += (
                f"conflict: {config} for {problem.text} on {device_name}: {what}"
                for config, what in conflicts(old, new, found)
            )
        quarantined = _united(database, incoming.faulty)
    conflicting = tuple(sentences)
    return Imported(trials, known, times, len(parts), incoming.left_out, changed, conflicting, quarantined, between)


@repeated
def _united(database: Database, theirs: Sequence[Quarantined]) -> int:
    """Add kernels to the list of kernels that hung or crashed. Return the number of new kernels."""
    if not theirs:
        return 0
    with _of(database), database.transaction(writes=True) as connection:
        return quarantine.unite(connection, theirs)


@repeated
def _merged(database: Database, parts: Sequence[New], source: Source) -> list[tuple[Part, Part]]:
    """Merge the rows of one batch of problems after another, in one transaction. Stop after HOLD_SECONDS."""
    merged, start = list[tuple[Part, Part]](), time.monotonic()
    with _of(database), database.transaction(writes=True) as connection:
        writer = Writer(connection, source)
        for some in batches(parts):
            known, changes = problem_ids(connection, [problem for (_, problem), _ in some]), list[Change]()
            for (device_name, problem), new in some:
                old = Reader(connection).part(device_name, problem) if problem in known else Part()
                found = union(old, new, partial(_has_current_kernel, problem))
                if found is not old:
                    changes.append(Change(device_name, problem, found, is_new=old == Part()))
                merged.append((old, found))
                if time.monotonic() - start > HOLD_SECONDS:  # within a batch: stored rows take long to read
                    break
            writer.write(changes)
            if time.monotonic() - start > HOLD_SECONDS:
                break
    return merged


def _has_current_kernel(problem: Problem, tried: Tried) -> bool:
    return records.current_kernel(problem, tried.values) is not None


def _parts(database: Database, show: Show) -> Iterator[New]:
    """Yield each device and problem of the database with its rows."""
    with database.transaction() as connection:
        every = places(connection)
    for number, part in enumerate(parts_of(database, every), 1):
        yield part
        show(number / len(every))


@contextmanager
def _of(of: Database) -> Iterator[None]:
    """Add the database's name to a StoreError that is raised in the `with` block."""
    try:
        yield
    except (Lost, _Told):
        raise
    except StoreError as error:
        text = str(error)
        raise _Told(text if text.startswith(str(of.path)) else f"{of.path}: {text}") from error


class _Told(StoreError):
    """A StoreError whose message already names the database."""
