"""Losses of kernels at tuned shapes: by which share each kernel is slower than the fastest kernel of the shape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tsm2_tune.errors import InputError
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.tuner.export.kernel_sets.set_cover import Bought, bought, fewest
from tsm2_tune.tuner.export.measured_times import rank
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.records import is_of_this_version
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache
from tsm2_tune.tuner.results.trial_summaries import CurrentTrial

Known = dict[str, dict[Problem, CurrentTrial]]  # kernel's text -> shape -> the kernel's fastest trial

DIGITS = 9  # decimals of a loss: 102 / 100 exceeds 1.02 in floating point


class Comparable:
    """Predicate that selects trials that can be compared: they have a time, and this version generates the same code.

    With `basis` (hash of compiler, flags and L2 state), the trial must also have the same basis.
    """

    def __init__(self, basis: str | None = None) -> None:
        self._basis = basis
        self._digests: dict[str, str] = {}

    def __call__(self, trial: CurrentTrial) -> bool:
        if self._basis is not None and trial.basis != self._basis:
            return False
        if trial.median_us is None or not is_of_this_version(trial.config, trial.problem):
            return False
        text = trial.config.kernel_text
        if text not in self._digests:
            self._digests[text] = render(trial.problem, trial.config).digest
        return self._digests[text] == trial.source_digest


@dataclass(frozen=True, slots=True)
class Selected:
    """The kernels that are chosen for the tuned shapes of one device, element type and op."""

    device: str
    within: float
    rows: tuple[BestRow, ...]  # for each shape: the trial of its chosen kernel
    kernels: tuple[str, ...]  # the text of each row's kernel
    losses: tuple[float, ...]
    table: tuple[Bought, ...]
    unmeasured: int  # pairs of a kernel and a shape without a verified time
    is_proven: bool  # whether no smaller set of measured kernels suffices

    @property
    def dtype(self) -> str:
        return self.rows[0].dtype

    @property
    def op(self) -> str:
        return self.rows[0].op


class Tuned:
    """The tuned shapes of one device, element type and op, with their winners (fastest kernels) and trials.

    Configurations that differ only in the launch have the same `kernel_text` and count as one kernel. The time of a
    kernel at a shape is the least median of its correct trials there, in the winner's L2 state. If a trial took part
    in finals (repeated timings of the fastest kernels), its median is the median in its last final. The loss of a
    kernel is its time divided by the winner's time, minus 1. A negative loss is replaced by 0.
    """

    def __init__(
        self, store: Store, device: str, problems: Sequence[Problem], within: float, cache: Cache | None = None
    ) -> None:
        self.store, self.device, self.problems, self.within = store, device, tuple(sorted(problems)), within
        self._cache = cache
        self.winners: dict[Problem, BestRow] = {}
        self._trials: dict[Problem, tuple[CurrentTrial, ...]] = {}
        self._right: dict[Problem, tuple[CurrentTrial, ...]] = {}
        self._counts = Comparable()
        for problem in self.problems:
            self.read(problem)

    def read(self, problem: Problem) -> None:
        """Read the shape's winner and trials from the database. A repeated call reads them again.

        Raise InputError if there is no winner, or if the winner's kernel code has changed.
        """
        winner = next(iter(self.store.best(device=self.device, problem=problem, cache=self._cache)), None)
        if winner is None:
            raise InputError(
                f"{self.store.path} has no right result for {problem.text} any more: tune this shape again"
            )
        refuse_stale(winner, self.store)
        self.winners[problem] = winner
        trials = self.store.current(self.device, problem)
        self._trials[problem] = tuple(one for one in trials if one.cache == winner.cache)
        self._right[problem] = tuple(filter(self._counts, self._trials[problem]))

    def keep_to(self, basis: str | None) -> None:
        """Use only trials with this basis (hash of compiler, flags and L2 state) from now on; all trials for None."""
        self._counts = Comparable(basis)
        for problem, trials in self._trials.items():
            self._right[problem] = tuple(filter(self._counts, trials))

    def tried(self, problem: Problem) -> frozenset[str]:
        """Return the texts of all configurations that were tried at the shape, whatever the outcome."""
        return frozenset(trial.config.text for trial in self._trials[problem])

    def is_alone(self, problem: Problem) -> bool:
        """Return whether fewer than two configurations gave a correct result at the shape."""
        return len(self._right[problem]) < 2

    def is_right(self, trial: CurrentTrial) -> bool:
        """Return whether the trial is still stored as correct."""
        return any(one.id == trial.id for one in self._right[trial.problem])

    def families(self) -> frozenset[str]:
        """Return the names of all kernel families that have a trial at one of the tuned shapes."""
        return frozenset(trial.config.family for trials in self._trials.values() for trial in trials)

    def winners_count(self) -> bool:
        """Return whether the trials of all winners have the compiler, flags and L2 state set by `keep_to`."""
        right = {one.id for of_problem in self._right.values() for one in of_problem}
        return all(winner.trial_id in right for winner in self.winners.values())

    def candidates(self) -> Known:
        """Return each kernel's fastest trials, for the kernels that have a loss of at most `within` at some shape."""
        known = fastest(one for of_problem in self._right.values() for one in of_problem)
        return {
            kernel: at
            for kernel, at in known.items()
            if any(self.loss(trial) <= self.within for trial in at.values())
        }

    def loss(self, trial: CurrentTrial) -> float:
        """Return the trial's time divided by the winner's time, minus 1 (0.03: 3 % slower), but at least 0."""
        assert trial.median_us is not None
        return max(0.0, round(trial.median_us / self.winners[trial.problem].median_us - 1, DIGITS))

    def _verified(self) -> Known:
        """Return the fastest trials of configurations that were verified in full. Any shape's verification counts."""
        started = {_started(one) for one in self.store.current(self.device) if one.is_verified_in_full}
        right = (one for of_problem in self._right.values() for one in of_problem)
        return fastest(one for one in right if _started(one) in started)

    def selected(self) -> Selected:
        """Return the fewest kernels with a loss of at most `within` at every shape.

        Only stored trials that were verified in full are used. Raise InputError if a shape has no such trial with a
        loss of at most `within`.
        """
        verified = self._verified()
        costs = {
            kernel: {problem: loss for problem, one in at.items() if (loss := self.loss(one)) <= self.within}
            for kernel, at in verified.items()
        }
        choice = fewest(costs, self.problems)
        if choice is None:
            served = {problem for at in costs.values() for problem in at}
            problem = next(one for one in self.problems if one not in served)
            raise InputError(
                f"{self.store.path} has no kernel that was verified in full for {problem.text} on {self.device}"
                f" within {percent(self.within)} of its best: tune it again on that device, or select other problems"
                " with --shapes"
            )
        serving = [choice.serving(costs, problem) for problem in self.problems]
        trials = [verified[kernel][problem] for kernel, problem in zip(serving, self.problems, strict=True)]
        candidates = self.candidates()
        losses = {
            kernel: {problem: self.loss(one) for problem, one in at.items()}
            for kernel, at in (candidates | {kernel: verified[kernel] for kernel in choice.kernels}).items()
        }
        return Selected(
            device=self.device,
            within=self.within,
            rows=tuple(map(self._row, trials)),
            kernels=tuple(serving),
            losses=tuple(map(self.loss, trials)),
            table=bought(losses, self.problems, choice.kernels),
            unmeasured=sum(len(self.problems) - len(verified.get(kernel, ())) for kernel in candidates),
            is_proven=choice.is_proven,
        )

    def _row(self, trial: CurrentTrial) -> BestRow:
        winner = self.winners[trial.problem]
        return winner if winner.trial_id == trial.id else self.store.rows([trial.id])[0]


def refuse_stale(winner: BestRow, store: Store) -> None:
    """Raise InputError if the code of the winner's kernel has changed, which makes the winner's time invalid."""
    if winner.stale:
        raise InputError(
            f"{store.path} has a stale winner for {winner.problem.text} on {winner.device}, which --within cannot"
            " compare: tune it again on that device, or select other problems with --shapes"
        )


def percent(share: float) -> str:
    """Return the text of a share as a percentage, such as 3 % for 0.03."""
    return f"{100 * share:.3g} %"


def _started(trial: CurrentTrial) -> tuple[str, str, str]:
    """Return the key of a full verification: kernel's digest, configuration, basis (compiler, flags, L2 state)."""
    return trial.source_digest, trial.config.text, trial.basis


def fastest(trials: Iterable[CurrentTrial]) -> Known:
    """Return the fastest trial of each kernel at each shape: kernel's text -> shape -> trial."""
    found: Known = {}
    for trial in trials:
        at = found.setdefault(trial.config.kernel_text, {})
        at[trial.problem] = min(at.get(trial.problem, trial), trial, key=rank)
    return found
