"""Winners of searches in a result file of `benchmarks.unseen`, to be timed beside another pack's choices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cells import Cell
from benchmarks.pack import compile_all
from benchmarks.unseen_file import read_unseen
from benchmarks.winner import Winner
from tsm2_tune.errors import InputError
from tsm2_tune.generator.families import family_named, parse_config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.results.trial import Verdict

FOUND = Verdict(True, 0.0, "right in the search that found it")  # winners are verified again before they are timed


@dataclass(frozen=True, slots=True)
class Searched:
    """The results of searches for some shapes."""

    seconds: float  # length of each search
    date: str  # date of the last search
    device: str
    winners: dict[tuple[str, str, Problem], Winner]  # (regime, layout, problem) -> winner

    def beside(self, cells: Iterable[Cell], target: Target) -> Iterator[tuple[Cell, Winner]]:
        """Yield the searched cells with their winners, whose kernels are compiled first."""
        found = ((cell, self.winners.get((cell.regime, cell.layout, cell.problem))) for cell in cells)
        there = [(cell, winner) for cell, winner in found if winner is not None]
        compile_all([(cell.problem, winner.config) for cell, winner in there], target)
        yield from there


def searched_in(path: Path) -> Searched:
    """Read a file's searches.

    Raise InputError if they differ in length, or if this version lacks a winner's kernel.
    """
    file = read_unseen(path)
    runs = [*file["earlier_runs"], file]
    seconds = {run["search_seconds"] for run in runs if run["search_seconds"] > 0}
    devices = {run["device"] for run in runs}
    if len(seconds) != 1 or len(devices) != 1:
        raise InputError(f"{path} is not of searches of one length on one device: name a file of these")
    winners = {}
    for row in file["rows"]:
        text, problem = row["search_configuration"], Problem(row["m"], row["n"], row["k"], row["dtype"], row["op"])
        if text is None or not row["search_verified"]:
            continue
        config = parse_config(text)
        if config is None or not family_named(config.family).has(config, problem):
            raise InputError(f"{path}: {text} is of another version: search {problem.text} again")
        winners[row["regime"], row["layout"], problem] = Winner(config, FOUND, row["configurations_kept"], {})
    if not winners:
        raise InputError(f"{path} has no winner of a search: name another file")
    return Searched(seconds.pop(), max(str(run["date"]) for run in runs), devices.pop(), winners)
