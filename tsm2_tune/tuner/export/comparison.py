"""Verification of the kernels that an exported module would choose, and their times, interleaved with cuBLAS."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from tsm2_tune.errors import InputError
from tsm2_tune.generator.config import SHARED, KernelConfig
from tsm2_tune.generator.families import family_named, parse_config
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.tuner.device.lock import device_lock
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.export.scale_launch import launches
from tsm2_tune.tuner.measure.timing import Effort
from tsm2_tune.tuner.measure.vendor.libraries import CUBLAS
from tsm2_tune.tuner.packs.choice import Choice
from tsm2_tune.tuner.results.trial import Cache, Measurement, Outcome, VendorMeasurement
from tsm2_tune.tuner.runs.events import FinalFailure
from tsm2_tune.tuner.search.candidates import Search
from tsm2_tune.tuner.search.loop import Tuner, least_ahead
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.resume import NO_PRIOR_TRIALS, FinalCandidate
from tsm2_tune.tuner.search.session import candidate_of
from tsm2_tune.tuner.search.spaces import GIB
from tsm2_tune.tuner.search.strategies.strategy import InOrder
from tsm2_tune.tuner.verify.operands import needed_bytes

EFFORT = Effort(spread=0.005, min_samples=21, max_samples=101, limit_seconds=1.0)


@dataclass(frozen=True, slots=True)
class Compared:
    """The times of a chosen kernel and of cuBLAS and cuBLASLt for one problem."""

    choice: Choice
    config: KernelConfig
    outcome: Outcome  # of the kernel's trial
    measured: Measurement | None = None  # the kernel's time; None if the result is wrong or could not be timed
    vendor: tuple[VendorMeasurement, ...] = ()  # the fastest routine of each library, in the same rounds
    trouble: str = ""  # why there is no time of the kernel or of the vendor
    has_vendor: bool = True  # whether the vendor's libraries can be used on the device

    @property
    def vendor_us(self) -> float | None:
        """The time of the fastest routine with a correct result; None without one."""
        return min((one.measurement.median_us for one in self.vendor if one.verdict.correct), default=None)

    @property
    def cublas_us(self) -> float | None:
        """The time of cuBLAS's gemm, or of its gemv or syrk if faster; None if its result is wrong or not timed."""
        own = (one for one in self.vendor if one.library == CUBLAS and one.verdict.correct)
        return next((one.measurement.median_us for one in own), None)


def compared(
    target: Target,
    wanted: Iterable[tuple[Choice, Candidate]],
    state: Cache,
    *,
    wait: Callable[[str], object] | None,
    end: float = math.inf,
) -> Iterator[Compared]:
    """Verify each chosen kernel, then time it interleaved with cuBLAS and cuBLASLt. Yield the times of each kernel.

    Before each sample the L2 cache is brought into state `state`. The next kernels are compiled meanwhile. No kernel
    is begun after the time `end` of time.monotonic. Nothing is stored. `wait` is called while another run uses the
    device. Raise the same errors as `tune`.
    """
    options = Options(vendor=True, cache=state, final_caches=(), final_effort=EFFORT)
    rest, compiling = iter(wanted), deque[tuple[Choice, Candidate]]()
    with device_lock(target, wait), Tuner(target, options) as tuner:
        ahead = 2 * least_ahead(options.sharing, None)
        while time.monotonic() < end:
            for choice, candidate in islice(rest, ahead - len(compiling)):
                tuner.expect(candidate.problem)
                tuner.compile_ahead([candidate])
                compiling.append((choice, candidate))
            if not compiling:
                return
            yield _timed(tuner, *compiling.popleft())


def _timed(tuner: Tuner, choice: Choice, candidate: Candidate) -> Compared:
    config, problem = candidate.config, candidate.problem
    (trial,) = tuner.tune(Search(InOrder([candidate])))
    if trial.outcome is not Outcome.OK or trial.measurement is None:
        return Compared(choice, config, trial.outcome, trouble=f"{trial.outcome}: {trial.detail}")
    alone = replace(NO_PRIOR_TRIALS, contenders=(FinalCandidate(config, trial.measurement.median_us),))
    final, left_out = tuner.final(problem, alone), tuner.left_out(problem)
    measured, vendor = trial.measurement, tuple[VendorMeasurement, ...]()
    trouble = "" if left_out is None else left_out.detail
    if isinstance(final, FinalFailure):
        trouble = final.detail
    elif final is not None:
        ((_, measured),), vendor = final.measurements, final.vendor
    has_vendor = left_out is None or left_out.problem is not None
    return Compared(choice, config, Outcome.OK, measured, vendor, trouble, has_vendor)


def chosen_candidate(target: Target, choice: Choice) -> Candidate:
    """Return a candidate: the chosen kernel with the launch of the module, or else with the nearest possible launch.

    A kernel with splits has no launch with one split. Raise InputError if the problem does not fit in memory, or if
    this version does not have the kernel.
    """
    own, launch, problem = parse_config(choice.match.winner.config), choice.match.launch, choice.problem
    needed, there = needed_bytes(problem), target.limits.memory_bytes
    if needed > there:
        raise InputError(
            f"{choice.asked.text} needs {needed / GIB:.1f} GiB, {target.limits.name} has {there / GIB:.1f} GiB:"
            " choose a smaller shape or another device"
        )
    if own is None:
        raise InputError(f"{choice.match.winner.config} is not a kernel of this version: tune again")
    tile_rows = family_named(own.family).launch(own, problem).rows_per_block // int(own.tunables.get("row_tiles", 1))
    exact = {"splits": launch.splits, "row_tiles": max(1, launch.rows_per_block // tile_rows)}
    if launch.batched == SHARED:
        exact = {"blocks": launch.splits}
    modules = replace(own, **{name: value for name, value in exact.items() if name in own.launch_tunables()})
    same = [one for one in (modules, *launches(own)) if one.kernel_text == own.kernel_text]

    def away(one: Candidate) -> tuple[int, int, str]:
        made = one.launch
        return abs(made.rows_per_block - launch.rows_per_block), abs(made.splits - launch.splits), one.config.text

    return min((candidate_of(one, problem, target.limits) for one in same), key=away)
