"""Finals and full verifications on one device.

A final times the fastest kernels of a problem again, interleaved. A full verification launches one kernel for many
shapes, offsets and both index widths.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import chain

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.source import INDEX_BITS, KernelSource, index_defines
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.compile.elf_digest import machine_code_digest
from tsm2_tune.tuner.compile.pool import Compilers
from tsm2_tune.tuner.device.emulator.toolchain import WATCHED_SAMPLE
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.measure.vendor.schedule import VendorSchedule
from tsm2_tune.tuner.results.trial import Binary, CompileFailure, Final, Outcome
from tsm2_tune.tuner.runs.events import FinalFailure
from tsm2_tune.tuner.search.attempt import trial_seed
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.resume import FinalCandidate, PriorTrials
from tsm2_tune.tuner.verify.bound_kernel import Entry
from tsm2_tune.tuner.verify.winner_calls import EMULATED, ON_GPU, full_verification
from tsm2_tune.tuner.worker.client import AttemptResult, FinalRound, FinalTimes, Worker

FINALISTS, LEAST_FINALISTS = 5, 2  # maximum and minimum number of finalists
FINALIST_MARGIN = 0.05  # a finalist's median exceeds the best median by at most this share

# The start of the message if the kernel does not compile, the kernel, and its toolchain if not that of the target.
NamedText = tuple[str, KernelSource, Toolchain | None]


class Finals:
    """Finals and full verifications on one device, with its compilers and its worker process."""

    def __init__(
        self,
        target: Target,
        options: Options,
        compilers: Compilers,
        worker: Callable[[], Worker],
        vendor: VendorSchedule | None,
    ) -> None:
        self._target, self._options, self._compilers, self._worker = target, options, compilers, worker
        self._vendor = vendor

    def run(
        self, problem: Problem, prior: PriorTrials, also: Collection[str] = (), *, repeat: bool = False
    ) -> Final | FinalFailure | None:
        """Run a final: time the fastest configurations, and those in `also`, interleaved with cuBLAS and cuBLASLt.

        Return the final's times, or the reason why it failed. Return None if the last final had the same
        finalists and timed the present versions of cuBLAS and cuBLASLt. If `repeat` is true, a final is run even
        then, but cuBLAS and cuBLASLt are timed only if one of them was timed in the last final. If a final with them
        fails, it is run again without them.
        """
        chosen, vendor = finalists(problem, prior, also), self._vendor if prior.vendor or not repeat else None
        if not chosen:
            return None
        if vendor is not None and not vendor.is_wanted(problem):
            vendor = None
        is_due = is_final_due([one for one, _ in chosen], prior, also)
        if not (is_due or repeat) and (vendor is None or not vendor.is_due(prior)):
            return None
        if not self._target.is_host:  # compiled for the full verification of the winner
            for source in by_width(problem, chosen[0][0].config):
                self._compilers.begin(source)
        found = self._final(problem, chosen, vendor)
        if vendor is None or isinstance(found, Final) or found.interrupted:
            return found
        without = self._final(problem, chosen, None)
        if isinstance(without, Final):  # the final failed because of the vendor's libraries
            vendor.keep_out(problem, found.detail)
        return without

    def _final(
        self, problem: Problem, chosen: Sequence[tuple[FinalCandidate, KernelSource]], vendor: VendorSchedule | None
    ) -> Final | FinalFailure:
        seed, effort = trial_seed(self._options.seed, problem, "final"), self._options.final_effort
        caches = self._target.caches(self._options.cache, self._options.final_caches)
        answer: FinalTimes | AttemptResult
        entries = self._entries(
            [(f"{one.config.text} does not compile any more", source, None) for one, source in chosen]
        )
        if isinstance(entries, AttemptResult):
            answer = entries
        else:
            request = FinalRound(problem, entries, seed, effort, vendor=vendor is not None, caches=caches)
            answer = self._worker().time_finalists(request)
        if isinstance(answer, AttemptResult):
            return FinalFailure(problem, answer.detail, answer.outcome is Outcome.INTERRUPTED)
        if vendor is not None and not answer.vendor:
            vendor.keep_out(problem, answer.vendor_trouble)
        configs = [one.config for one, _ in chosen]
        by_state = (zip(configs, of_state, strict=True) for of_state in answer.measurements)
        return Final(problem, tuple(chain.from_iterable(by_state)), answer.vendor)

    def verify_in_full(self, problem: Problem, config: KernelConfig) -> AttemptResult:
        """Verify the configuration's kernel in full, for both index widths. The outcome is OK if every call was
        correct.
        """
        extent = EMULATED if self._target.is_host else ON_GPU
        sources = by_width(problem, config)
        texts: list[NamedText] = [
            (f"with {bits}-bit indices", source, None) for bits, source in zip(INDEX_BITS, sources, strict=True)
        ]
        watching = self._watching if extent.watched_products else None
        if isinstance(watching, CompileFailure):
            return AttemptResult(watching.outcome, f"with a race check: {watching.detail}")
        if watching is not None:  # only for one index width: both make the same accesses
            texts.append(("with a race check", sources[0], watching))

        entries = self._entries(texts)
        if isinstance(entries, AttemptResult):
            return entries
        by_bits, codes = tuple(zip(INDEX_BITS, entries, strict=False)), _codes_of(entries[: len(INDEX_BITS)])
        seed = trial_seed(self._options.seed, problem, f"{config.text} in full")
        watched = entries[-1] if watching is not None else None
        request = full_verification(problem, config, by_bits, extent, seed=seed, watched=watched)
        return replace(self._worker().verify_in_full(request), verified_code=codes)

    def _entries(self, texts: Sequence[NamedText]) -> tuple[Entry, ...] | AttemptResult:
        """Compile the texts. Return their kernels, or the failure of the first that does not compile."""
        started = [self._compilers.begin(source, toolchain) for _, source, toolchain in texts]
        entries: list[Entry] = []
        for (name, source, _), compiling in zip(texts, started, strict=True):
            binary = compiling.result()
            if isinstance(binary, CompileFailure):
                return AttemptResult(binary.outcome, f"{name}: {binary.detail}")
            entries.append(Entry(binary.code, source.kernel, source.launch))
        return tuple(entries)

    @property
    def _watching(self) -> Toolchain | CompileFailure | None:
        """The toolchain that compiles kernels with race detection.

        None if the compiler has no race detection; a CompileFailure if the test of the compiler was interrupted.
        """
        watching = self._target.watching
        if watching is None:
            return None
        binary = self._compilers.begin_text(WATCHED_SAMPLE, "sample", (), watching).result()
        if isinstance(binary, Binary):
            return watching
        return None if binary.outcome is Outcome.COMPILE_FAILED else binary


def _codes_of(entries: Sequence[Entry]) -> str | None:
    """Return the digests of the binaries' machine code, separated by spaces; None if a binary is not an ELF file."""
    try:
        return " ".join(machine_code_digest(entry.code) for entry in entries)
    except ValueError:
        return None


def by_width(problem: Problem, config: KernelConfig) -> list[KernelSource]:
    """Return the configuration's kernel source once for each index width, 32 and 64 bits."""
    return [replace(render(problem, config), defines=index_defines(bits)) for bits in INDEX_BITS]


def finalists(
    problem: Problem, prior: PriorTrials, also: Collection[str] = ()
) -> tuple[tuple[FinalCandidate, KernelSource], ...]:
    """Return the configurations to time in a final, fastest first, each with its rendered kernel.

    The finalists are the LEAST_FINALISTS fastest configurations, and further configurations that are at most
    FINALIST_MARGIN slower than the fastest configuration, but together at most FINALISTS. The configurations in
    `also` are added to them.
    """
    found: list[tuple[FinalCandidate, KernelSource]] = []
    is_closed, missing = False, set(also)
    for contender in sorted(prior.contenders, key=_rank):
        is_near = not found or contender.median_us <= found[0][0].median_us * (1 + FINALIST_MARGIN)
        is_closed |= len(found) >= FINALISTS or (len(found) >= LEAST_FINALISTS and not is_near)
        if not is_closed or contender.config.text in missing:
            found.append((contender, render(problem, contender.config)))
        missing.discard(contender.config.text)
        if is_closed and not missing:
            break
    return tuple(found)


def is_final_due(chosen: Sequence[FinalCandidate], prior: PriorTrials, also: Collection[str] = ()) -> bool:
    """Return whether the finalists, fastest first, must be timed in a new final.

    A final is due if a finalist was tried after the last final, or if the fastest finalist or a configuration in
    `also` was not in the last final. If there are fewer than LEAST_FINALISTS finalists, no final is due.
    """
    if len(chosen) < LEAST_FINALISTS:
        return False
    are_out = {chosen[0].config.text, *also} - prior.last_finalists
    return any(one.is_new or one.config.text in are_out for one in chosen)


def _rank(contender: FinalCandidate) -> tuple[float, float, str]:
    """Return the sort key of a contender: as in the database view `best`, but with no preference for finalists."""
    return contender.median_us, contender.high_us, contender.config.text
