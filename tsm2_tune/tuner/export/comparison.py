"""Verification of the kernels that an exported module would choose, and their timing alternately with cuBLAS."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from tsm2_tune.errors import InputError
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families import family_named, parse_config
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.tuner.compile import cache
from tsm2_tune.tuner.compile.command_limits import workplace
from tsm2_tune.tuner.device.lock import device_lock
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.export.scale_launch import launches
from tsm2_tune.tuner.measure.timing import Effort
from tsm2_tune.tuner.packs.choice import Choice
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache, Outcome
from tsm2_tune.tuner.runs.events import FinalFailure
from tsm2_tune.tuner.search import fixed_list, session
from tsm2_tune.tuner.search.loop import Tuner, least_ahead
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.spaces import GIB
from tsm2_tune.tuner.verify.operands import needed_bytes

EFFORT = Effort(spread=0.005, min_samples=21, max_samples=101, limit_seconds=1.0)


@dataclass(frozen=True, slots=True)
class Compared:
    """The times of a chosen kernel and of cuBLAS or cuBLASLt for one problem."""

    choice: Choice
    config: KernelConfig
    outcome: Outcome  # of the kernel's trial
    row: BestRow | None  # the times; None if the result is wrong or could not be timed
    trouble: str = ""  # why `row` is None, or lacks the vendor's time
    has_vendor: bool = True  # whether the vendor's libraries can be used on the device


def compared(
    target: Target,
    wanted: Iterable[tuple[Choice, Candidate]],
    state: Cache,
    *,
    wait: Callable[[str], object] | None,
    end: float = math.inf,
) -> Iterator[Compared]:
    """Verify each chosen kernel, then time it alternately with cuBLAS and cuBLASLt. Yield the times of each kernel.

    Before each sample the L2 cache is brought into state `state`. The next kernels are compiled meanwhile. No kernel
    is begun after the time `end` of time.monotonic. Trials are stored in a temporary database. `wait` is called while
    another run uses the device. Raise the same errors as `tune`.
    """
    options = Options(vendor=True, cache=state, final_caches=(), final_effort=EFFORT)
    rest, compiling = iter(wanted), deque[tuple[Choice, Candidate]]()
    with ExitStack() as stack:
        stack.enter_context(device_lock(target, wait))
        work = stack.enter_context(workplace(cache.working_parent()))
        store = stack.enter_context(Store.open(Path(work.folder) / "compare.db", create=True))
        tuner = stack.enter_context(Tuner(target, options))
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
        ahead = 2 * least_ahead(options.sharing, None)
        while time.monotonic() < end:
            for choice, candidate in islice(rest, ahead - len(compiling)):
                tuner.expect(choice.problem)
                tuner.compile_ahead([candidate])
                compiling.append((choice, candidate))
            if not compiling:
                return
            choice, candidate = compiling.popleft()
            opened = fixed_list.problem_session(choice.problem, [candidate.config.family], tuner, store, started_at)
            yield _timed(opened, choice, candidate)


def _timed(opened: session.ProblemSession, choice: Choice, candidate: Candidate) -> Compared:
    for event in opened.listed([candidate]):
        trial = event.trial
        if trial.outcome is not Outcome.OK:
            return Compared(choice, candidate.config, trial.outcome, None, f"{trial.outcome}: {trial.detail}")
    trouble, has_vendor = "", True
    for one in opened.finals(opened.executor):
        trouble = one.detail if isinstance(one, FinalFailure) else trouble
    if (left_out := opened.executor.left_out(choice.problem)) is not None:
        trouble, has_vendor = trouble or left_out.detail, left_out.problem is not None
    rows = opened.store.best(problem=choice.problem, cache=opened.cache)
    return Compared(choice, candidate.config, Outcome.OK, rows[0] if rows else None, trouble, has_vendor)


def candidate_of(target: Target, choice: Choice) -> Candidate:
    """Return a candidate: the chosen kernel, with the launch that is nearest to the launch that the module would use.

    Raise InputError if the problem does not fit in memory, or if this version does not have the kernel.
    """
    own, launch = parse_config(choice.match.winner.config), choice.match.launch
    needed, there = needed_bytes(choice.problem), target.limits.memory_bytes
    if needed > there:
        raise InputError(
            f"{choice.asked.text} needs {needed / GIB:.1f} GiB, {target.limits.name} has {there / GIB:.1f} GiB:"
            " choose a smaller shape or another device"
        )
    if own is None:
        raise InputError(f"{choice.match.winner.config} is not a kernel of this version: tune again")
    family = family_named(own.family)
    able = [
        fixed_list.candidate_of(one, choice.problem, target.limits)
        for one in launches(own)
        if family.supports(choice.problem) and family.has(one, choice.problem)
    ]
    if not able:
        raise InputError(f"{own.text} cannot compute {choice.problem.text} in this version: tune again")

    def away(one: Candidate) -> tuple[int, int, str]:
        made = one.launch
        return abs(made.rows_per_block - launch.rows_per_block), abs(made.splits - launch.splits), one.config.text

    return min(able, key=away)
