"""Texts at the begin and the end of a tuning run on the terminal."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence

from tsm2_tune.console.printable import tell
from tsm2_tune.console.winner_columns import spread_percent
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.compile.pool import cores
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.storage.addresses import command_on
from tsm2_tune.tuner.results.trial import count_text
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.phase_timer import LOCK, START

MOST_CHANGED = 5  # most problems with a new winner that are named
MOST_SPREAD_PERCENT = 5.0  # larger half widths of a median's 95 % interval are called noisy
NAME = "tsm2-tune"  # name of the command


def l2_state_text(target: Target, options: Options, *, is_asked: bool) -> str:
    """Return a text with the state of the L2 cache in which kernels are timed.

    On the CPU, which ignores that state, return a note if the user named a state (`is_asked`), else "".
    """
    cache = target.cache(options.cache)
    if not target.is_host:
        return f", timed with the L2 {cache}"
    if is_asked and options.cache is not cache:
        return f"; --cache {options.cache} has no effect here: the host does not emulate a GPU's L2"
    return ""


def spent_text(searched: Mapping[str, float], pairs: Mapping[str, float]) -> str:
    """Return how the seconds of a run were spent, from the seconds of its phases.

    `pairs` has the phases in which kernels are timed at other shapes.
    """
    seconds = dict.fromkeys(("waiting", "starting", "searching", "in finals", "verifying winners in full"), 0.0)
    for phase, each in searched.items():
        seconds[_PURPOSES.get(phase.partition(":")[0], "searching")] += each
    seconds["timing kernels at other shapes"] = sum(pairs.values())
    parts = ", ".join(f"{each:.0f} {purpose}" for purpose, each in seconds.items() if each >= 0.5)
    return f"{count_text(round(sum(seconds.values())), 'second')}{f': {parts}' if parts else ''}"


_PURPOSES = {  # phases of a run, but for those of a search
    LOCK: "waiting",
    START: "starting",
    "start of the worker": "starting",
    "ceilings": "starting",
    "the final round": "in finals",
    "the vendor's libraries": "in finals",
    "the vendor's routines": "in finals",
    "full verification": "verifying winners in full",
}


def print_interrupted(count: int) -> None:
    """Print how many trials the machine interrupted, if any. Whether their kernels are correct is unknown."""
    if count:
        tell(f"{count} interrupted by the machine, not by their kernels: run the same command to try them again")


def changed_text(changed: Sequence[Problem]) -> str:
    """Return a line that names the problems for which a kernel tuned for another problem was faster."""
    shown = ", ".join(problem.text for problem in changed[:MOST_CHANGED])
    number = count_text(len(changed), "problem")
    return f"{number} got a faster kernel from another shape: {shown}{', ...' if len(changed) > MOST_CHANGED else ''}"


def load_text() -> str:
    """Return a warning if the system's load is larger than the number of usable cores, else ""."""
    load, here = os.getloadavg()[0], cores()
    return f"note: the load is {load:.1f} on {here} cores: times will be noisy" if load > here else ""


def noise_text(winners: Sequence[BestRow], database: str) -> str:
    """Return a warning that counts the winners whose times have wide 95 % confidence intervals; "" without any."""
    noisy = sum(spread_percent(row) > MOST_SPREAD_PERCENT for row in winners)
    if not noisy:
        return ""
    return (
        f"note: {noisy} of {len(winners)} times are noisy (+- over {MOST_SPREAD_PERCENT:g} %):"
        f" `{command_on('confirm', database)}` repeats them on an idle machine"
    )


def next_steps(database: str) -> Iterator[str]:
    """Yield two lines with the commands to use next: show the winners, and export them."""
    for word, command in (("next:", "best"), ("     ", "export -o best_kernels.py")):
        yield f"{word} {command_on(command, database, program())}"


def program() -> str:
    """Return the name by which the user can call this program: with its folder if it is not on PATH."""
    typed = sys.argv[0]
    is_off_path = os.path.basename(typed) == NAME and shutil.which(NAME) is None
    return typed if is_off_path else NAME
