"""Measure untuned shapes: verify the module's choice, and time it beside cuBLAS and the winner of a search."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.call_cost import imported
from benchmarks.cells import Cell
from benchmarks.contest import EXACT, TIMED, Contest, Launch, opened, row_of, skipped_without_room, times_in_states
from benchmarks.module_calls import Called, Wrap, called, fallback_arrays, timed
from benchmarks.pack import Kinds, compile_all
from benchmarks.result_file import ResultFile, read
from benchmarks.tables import vendor_us
from benchmarks.unseen_shapes import Ranges, drawn
from benchmarks.versus_cublas import PATIENT, measure_cells
from benchmarks.winner import Prospects, Skipped, Winner, planned, planners, tuned
from tsm2_tune.errors import InputError
from tsm2_tune.generator.families import family_named, parse_config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.results.trial import Cache, Verdict
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.verify.verdict import prepare

CHECKED = ("plan_verified", "search_verified", "fallback_verified")
RIGHT = Verdict(True, 0.0, "exact on small integers")
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
    file = read(path)
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


@dataclass(frozen=True, slots=True)
class Selection:
    """The shapes and limits of one run."""

    kinds: Kinds
    ranges: Ranges
    each: int  # shapes of every regime, element type and layout
    seed: int
    search_seconds: float  # 0 means no search
    time_limit: float | None  # seconds, for the whole run
    part: tuple[int, int] = (1, 1)

    @property
    def command(self) -> str:
        """The command that repeats this run with the same module, without the names of files."""
        kinds, (number, parts) = self.kinds, self.part
        return (
            f"python -m benchmarks.unseen --regime {','.join(kinds.regimes)} --layout {','.join(kinds.layouts)}"
            f" --dtype {','.join(kinds.dtype_names)} --each {self.each} --seed {self.seed}{self.ranges.text}"
            f" --search-seconds {self.search_seconds:g}" + (f" --part {number}/{parts}" if parts > 1 else "")
        )

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of a result file that describe the draw and the searches."""
        draw = {"seed": self.seed, "each": self.each, **asdict(self.ranges)}
        return {"draw": draw, "search_seconds": self.search_seconds}

    def cells(self, target: Target) -> tuple[Cell, ...]:
        """Return the shapes of this part."""
        kinds, (number, parts) = self.kinds, self.part
        every = drawn(
            kinds.regimes,
            kinds.layouts,
            kinds.dtype_names,
            each=self.each,
            ranges=self.ranges,
            seed=self.seed,
            limits=target.limits,
        )
        return every[number - 1 :: parts]


class Unseen:
    """A device, the module, and the library that the module uses for products without a fast kernel."""

    def __init__(self, contest: Contest, module: ModuleType, tuner: Tuner, library: Wrap | None) -> None:
        self._contest, self._module, self._tuner, self._library = contest, module, tuner, library
        self._tuned = {(w.dtype, w.op, w.m, w.n, w.k) for w in module.WINNERS}

    def row(self, cell: Cell, prospects: Prospects | Winner | None) -> dict[str, Any]:
        """Measure a cell and return its row.

        Raise Skipped if the module was tuned for it, or if it cannot be measured.
        """
        problem = cell.problem
        if (problem.dtype_name, problem.op, problem.m, problem.n, problem.k) in self._tuned:
            raise Skipped("the pack was tuned for it")
        start = time.monotonic()
        found, trouble = self._searched(prospects)
        seconds = time.monotonic() - start
        with skipped_without_room(), ExitStack() as stack:
            try:
                row = self._row(cell, found, stack)
            except (LookupError, ValueError) as error:
                raise Skipped(str(error)) from None
        return row | {"search_trouble": trouble, "search_seconds_taken": round(seconds, 2)}

    def _searched(self, prospects: Prospects | Winner | None) -> tuple[Winner | None, str]:
        """Return the winner of a search, or None and the reason why there is none."""
        if prospects is None or isinstance(prospects, Winner):
            return prospects, ""
        try:
            return tuned(self._tuner, prospects), ""
        except Skipped as reason:
            return None, str(reason)

    def _row(self, cell: Cell, found: Winner | None, stack: ExitStack) -> dict[str, Any]:
        contest, phases = self._contest, self._contest.phases
        phases.enter("contest: operands")
        operands = contest.operands(cell.problem, stack)
        phases.enter("contest: plan")
        prepare(operands, TIMED, seed=2)
        plan = None if contest.target.is_host else timed(self._module, operands, library=self._library)
        phases.enter("contest: checks")
        prepare(operands, EXACT, seed=1)
        call = called(self._module, operands, on_host=contest.target.is_host, library=self._library)
        verdict = contest.verdict(operands, call.launch)
        launches: dict[str, Launch] = {"ours": call.launch}
        verdicts: dict[str, bool | None] = dict.fromkeys(CHECKED)
        if plan is not None:
            verdicts["plan_verified"] = contest.verdict(operands, plan.launch).correct
            launches["plan"] = plan.launch
        if call.fallback is not None:
            verdicts["fallback_verified"] = contest.verdict(operands, call.fallback).correct
            launches["fallback"] = call.fallback
        opponents = contest.opponents(operands, stack)
        launches |= {name: opponent.launch for name, opponent in opponents.items()}
        if found is not None:
            loaded = contest.loaded(operands, found.config, stack)
            verdicts["search_verified"] = contest.kernel_verdict(operands, loaded).correct
            launches["search"] = partial(loaded.start, operands.arguments(1.0, 0.0))
        measured = contest.in_turns(operands, launches)
        floor_us = contest.ceilings.floor_us(cell.problem)
        row = row_of(cell, _as_winner(call), measured, opponents, verdict, floor_us)
        for name in ("plan", "fallback", "search"):
            row |= times_in_states(name, measured)
        row |= call.record | verdicts | (plan.record if plan else {"plan": None, "plan_seconds": None})
        row |= {
            "search_configuration": found and found.config.text,
            "search_trials": found and found.outcomes,
            "configurations_kept": found.kept if found else 0,
        }
        return row | ratios(row)


def _as_winner(call: Called) -> Winner:
    """Return the module's choice as a winner. Raise Skipped if this version does not know its kernel."""
    text = call.choice.winner.config
    config = parse_config(text)
    if config is None:
        raise Skipped(f"the pack's {text} is of another version: make the pack anew")
    return Winner(config, RIGHT, kept=0, outcomes={})


def ratios(row: dict[str, Any]) -> dict[str, float | None]:
    """Return the times of cuBLAS, the search's winner and the prediction, each divided by ours."""
    ours, plan, vendor, search = row["ours_us"], row["plan_us"], vendor_us(row), row["search_us"]
    return {
        "x_vendor": vendor and round(vendor / ours, 4),
        "x_search": search and round(search / ours, 4),
        "x_search_of_plan": search and plan and round(search / plan, 4),
        "x_expected": row["expected_us"] and round(row["expected_us"] / ours, 4),
    }


SHOWN = (
    ("x cuBLAS", "x_vendor"),
    ("x search", "x_search"),
    ("planned", "x_search_of_plan"),
    ("x expected", "x_expected"),
)


def line_of(row: dict[str, Any]) -> str:
    """Return a measured shape's line for the terminal."""
    shape = f"{row['m']}x{row['n']}x{row['k']}:{row['dtype']}"
    others = [f"{label} {row[name]:5.2f}" for label, name in SHOWN if row[name] is not None]
    wrong = "" if row["verified"] else f"  WRONG: {row['verdict']}"
    left = "  to the vendor" if row["falls_back"] else ""
    return (
        f"{row['regime']} {row['layout']:6} {shape:26} {row['ours_us']:9.1f} us  {'  '.join(others)}"
        f"  {row['configuration']}{left}{wrong}"
    )


def pack_facts(path: Path, module: ModuleType) -> dict[str, Any]:
    """Return facts that identify the module: runs with different modules are not comparable."""
    return {
        "pack": hashlib.sha256(path.read_bytes()).hexdigest(),
        "pack_facts": {
            "winners": len({(w.device, w.dtype, w.op, w.m, w.n, w.k) for w in module.WINNERS}),  # tuned shapes
            "kernels": len(module.KERNELS),
            "bytes": path.stat().st_size,
            "tuned_at": sorted({w.tuned_at[:10] for w in module.WINNERS}),
        },
    }


def run(
    target: Target,
    selection: Selection,
    pack: Path,
    output: Path,
    *,
    start: float,
    resume: bool,
    verbose: bool,
    searched: Searched | None = None,
) -> ResultFile:
    """Measure one part of the shapes on one device, and return the result file.

    With `searched`, the winners are those of an earlier file, and only its shapes are measured. Raise InputError if
    that file is from another device.
    """
    if searched is not None:
        if searched.device != target.identity.name:
            raise InputError(f"the searches were on {searched.device}, not on {target.identity.name}: search here")
        selection = replace(selection, search_seconds=searched.seconds)
    searches = selection.search_seconds > 0 and searched is None
    seconds = selection.search_seconds if searches else PATIENT.seconds
    options = PATIENT.options(seconds, Cache.CLEAN)  # unseen shapes are timed with a clean L2
    with (
        Tuner(target, options) as tuner,
        planners() as pool,
        opened(target, PATIENT.effort, tuner.phases) as contest,
    ):
        module, library = imported(pack), None if target.is_host else fallback_arrays(target.spec)
        facts = contest.facts(selection.command) | pack_facts(pack, module) | selection.facts
        facts |= {"fallback_library": library and library[0]}
        if searched is not None:
            facts["searched_at"] = searched.date
        result = ResultFile(output, facts)
        if resume and output.exists():
            result.go_on()
        todo = [cell for cell in selection.cells(target) if not result.measured(cell.record)]
        cells: Iterator[tuple[Cell, Any]] = ((cell, None) for cell in todo)
        if searched is not None:
            cells = searched.beside(todo, target)
        elif searches:
            _ = tuner.ceilings
            cells = planned(tuner, todo, pool)
        measure_cells(
            tuner.phases,
            Unseen(contest, module, tuner, library and library[1]).row,
            result,
            cells,
            time_limit=selection.time_limit,
            start=start,
            verbose=verbose,
            line=line_of,
        )
    return result
