"""What happens in a run, as records. The text of each, by `str`, is one line."""

from __future__ import annotations

from dataclasses import dataclass

from tsm2_tune.generator.plain import plain
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space import SearchSpace
from tsm2_tune.tuner.patience import Options
from tsm2_tune.tuner.phases import Phases
from tsm2_tune.tuner.search import Why
from tsm2_tune.tuner.stored import BestRow
from tsm2_tune.tuner.target import Target
from tsm2_tune.tuner.trial import Final, Measurement, Outcome, Trial, in_a_line


@dataclass(frozen=True, slots=True)
@plain
class Noted:
    """Something that a user may want to know, such as that another run has the device and this one waits."""

    text: str  # a sentence

    def __str__(self) -> str:
        return in_a_line(self.text)


@dataclass(frozen=True, slots=True)
@plain
class RunStarted:
    """The device is this run's, and the database is open: the search begins."""

    target: Target  # the device
    problems: tuple[Problem, ...]  # in the order in which they are tuned
    options: Options  # how much is tried, and how patiently
    phases: Phases  # `phases.now` says what the run is at, also where no event comes for long

    def __str__(self) -> str:
        return f"tuning {_counted(len(self.problems), 'problem')} on {in_a_line(self.target.identity.name)}"


@dataclass(frozen=True, slots=True)
@plain
class ProblemStarted:
    """A problem's turn begins."""

    space: SearchSpace  # of the problem
    tried_before: int  # configurations, by earlier runs
    seconds_before: float  # that earlier runs spent on it
    best_before_us: float | None  # the least median of earlier runs
    vendor_us: float | None = None  # the vendor's newest right median, of a final of earlier runs

    def __str__(self) -> str:
        kept = _counted(len(self.space.kept), "configuration")
        return f"{self.space.problem.text}: {kept}, {self.tried_before} tried before"


@dataclass(frozen=True, slots=True)
@plain
class TrialStored:
    """A trial ended and is in the database."""

    trial: Trial  # how it ended, and what was measured
    trial_id: int  # its number, as `tsm2-tune show` has it

    def __str__(self) -> str:
        return _trial_text(self.trial)


@dataclass(frozen=True, slots=True)
@plain
class TrialInterrupted:
    """The machine ended a trial, also when it was tried again at once. It says nothing of its kernel: not stored."""

    trial: Trial  # what it was of; its `detail` says what ended it

    def __str__(self) -> str:
        return _trial_text(self.trial)


@dataclass(frozen=True, slots=True)
@plain
class FinalStored:
    """The finalists were measured again, and that is in the database."""

    final: Final  # who took part, and their times

    def __str__(self) -> str:
        finalists = {config for config, _ in self.final.measurements}
        return f"{self.final.problem.text}: {_counted(len(finalists), 'finalist')} measured again"


@dataclass(frozen=True, slots=True)
@plain
class FinalFailure:
    """Why the finalists have no new measurements; their first ones stand."""

    problem: Problem  # whose finalists they are
    detail: str  # the reason
    interrupted: bool = False  # by the machine: they are due again in the next run

    def __str__(self) -> str:
        return f"{self.problem.text}: finalists not measured again: {in_a_line(self.detail)}"


@dataclass(frozen=True, slots=True)
@plain
class WinnerVerified:
    """What was about to win was verified in full. Where it was not right, another one wins."""

    problem: Problem  # that it was about to win
    trial_id: int  # the number of its trial, as `tsm2-tune show` has it
    config: str  # its text, such as tsm2:version=v3,threads=128,columns=16,prefetch=4
    outcome: Outcome  # OK where every call was right
    detail: str  # what was tried, or what went wrong

    def __str__(self) -> str:
        return f"{in_a_line(self.config)}: verified in full: {self.outcome}"


@dataclass(frozen=True, slots=True)
@plain
class VendorLeftOut:
    """Why the vendor was not measured beside the finalists, where it was to be."""

    problem: Problem | None  # None: of no problem in this run
    detail: str  # the reason

    def __str__(self) -> str:
        of = f"{self.problem.text}: " if self.problem is not None else ""
        return f"{of}cuBLAS not measured: {in_a_line(self.detail)}"


@dataclass(frozen=True, slots=True)
@plain
class ProblemEnded:
    """A problem's turn is over; `winner` is None where no configuration gave a right result."""

    problem: Problem  # that was tuned
    new_trials: int  # of this run
    tried: int  # those of earlier runs included
    timed_out: int  # of those tried
    untried: int  # kept configurations that the budget or the most trials left out
    interrupted: int  # by the machine, and left untried
    elsewhere: int  # that another run is trying
    winner: BestRow | None  # the fastest that is right
    why: Why  # it ended
    given_up: int = 0  # configurations, as run after run died while it tried them
    quarantined: int = 0  # left out, as their kernels hung or faulted for other problems

    def __str__(self) -> str:
        won = self.winner
        text = f"{in_a_line(won.config)} {won.median_us:.1f} us" if won is not None else "no winner"
        return f"{self.problem.text}: {text} ({_counted(self.new_trials, 'new trial')})"


MOST_DRIFT = 0.05  # of a winner's time between two finals, beyond what their intervals leave open
NEXT_STEP = "confirm again on an idle device; if it stays so, forget the problem's trials and tune again"


@dataclass(frozen=True, slots=True)
@plain
class Confirmed:
    """The finals of a problem were repeated, or why they were not."""

    before: BestRow  # the winner until then
    now: BestRow | None  # the winner since; None where no kernel is right any more
    again: Measurement | None  # the new times of the winner of before; None where it was not timed
    wrong: tuple[WinnerVerified, ...] = ()  # finalists that did not stand the full verification now
    trouble: str = ""  # why the finals could not be repeated, or not to their end

    @property
    def is_kept(self) -> bool:
        """Whether the same configuration won again in about the time that it took, and all finalists were right."""
        won = self.now is not None and self.now.config == self.before.config
        return won and self.again is not None and not self.wrong and not self.trouble and not self.change

    @property
    def change(self) -> str:
        """The words slower or faster if the winner's drift is over MOST_DRIFT beyond the spread, else ""."""
        if self.drift is None or abs(self.drift) <= MOST_DRIFT + self.spread:
            return ""
        return "slower" if self.drift > 0 else "faster"

    @property
    def drift(self) -> float | None:
        """By how much of its time before the winner of before is slower now; None where it was not timed."""
        return None if self.again is None else self.again.median_us / self.before.median_us - 1

    @property
    def spread(self) -> float:
        """Half of the 95 % intervals of the medians before and now, of their medians, added up."""
        times: list[BestRow | Measurement] = [self.before]
        times += [self.again] if self.again is not None else []
        return sum((one.high_us - one.low_us) / 2 / one.median_us for one in times)

    def __str__(self) -> str:
        before, text = self.before, f"{self.before.problem.text}: "
        is_winner = self.now is not None and self.now.config == before.config
        if self.again is None:
            text += f"not confirmed: {in_a_line(before.config)} was {before.median_us:.1f} us"
        else:
            text += (self.change or "kept") if is_winner else "changed"
            text += f": {in_a_line(before.config)} {before.median_us:.1f} us, now {self.again.median_us:.1f} us"
            text += f" ({100 * (self.drift or 0.0):+.1f} %, spread {100 * self.spread:.1f} %)"
        if self.now is None:
            text += "; no kernel is right now"
        elif self.now.config != before.config:
            text += f"; {in_a_line(self.now.config)} wins with {self.now.median_us:.1f} us"
        text += "".join(f"; {in_a_line(one.config)} is wrong now: {in_a_line(one.detail)}" for one in self.wrong)
        if self.change and is_winner:
            text += f"; {NEXT_STEP}"
        if self.again is not None and self.again.slowed:
            text += f"; {self.again.slowed} samples while the clock had dropped"
        return text + (f"; {in_a_line(self.trouble)}" if self.trouble else "")


@dataclass(frozen=True, slots=True)
@plain
class PairsStarted:
    """From here on kernels are measured at shapes that they did not win, if any are to be: see `pairs` of `tune`."""

    def __str__(self) -> str:
        return "looking for kernels to measure at shapes that they did not win"


@dataclass(frozen=True, slots=True)
@plain
class Crossed:
    """How far the measuring of pairs is, of a kernel and a shape that it did not win."""

    done: int  # pairs
    total: int  # that are to be tried

    def __str__(self) -> str:
        return f"{self.done} of {_counted(self.total, 'pair')} measured"


@dataclass(frozen=True, slots=True)
@plain
class FleetStarted:
    """Several runs begin on one database, each on a device of its own. What happens in them follows as `OfRun`."""

    runs: tuple[str, ...]  # their names, such as "GPU 0", or a worker's of a cluster; others may join them
    problems: tuple[Problem, ...]  # that they spread among them

    def __str__(self) -> str:
        return f"tuning {_counted(len(self.problems), 'problem')} by {_counted(len(self.runs), 'run')}"


@dataclass(frozen=True, slots=True)
@plain
class OfRun:
    """Something that happened in one of several runs."""

    run: str  # its name
    event: Event  # what happened in it

    def __str__(self) -> str:
        return f"{in_a_line(self.run)}: {self.event}"


@dataclass(frozen=True, slots=True)
@plain
class RunEnded:
    """One of several runs is over. The others take over what one that failed was at."""

    run: str  # its name
    trouble: str  # a sentence; empty where it did its part

    def __str__(self) -> str:
        return f"{in_a_line(self.run)}: {f'ended early: {in_a_line(self.trouble)}' if self.trouble else 'ended'}"


# Of one problem.
ProblemEvent = (
    Noted
    | ProblemStarted
    | TrialStored
    | TrialInterrupted
    | FinalStored
    | FinalFailure
    | WinnerVerified
    | VendorLeftOut
    | ProblemEnded
)
Event = ProblemEvent | RunStarted | Confirmed | PairsStarted | Crossed | FleetStarted | OfRun | RunEnded


def is_interruption(event: Event) -> bool:
    """Whether it tells that the machine kept something from being judged."""
    if isinstance(event, FinalFailure):
        return event.interrupted
    return isinstance(event, TrialInterrupted) or (
        isinstance(event, WinnerVerified) and event.outcome is Outcome.INTERRUPTED
    )


def _trial_text(trial: Trial) -> str:
    spelt = f"{trial.problem.text} {in_a_line(trial.config.text)}: {trial.outcome}"
    if trial.outcome is not Outcome.OK:
        return f"{spelt}: {in_a_line(trial.detail)}"
    return f"{spelt}, {trial.measurement.median_us:.1f} us" if trial.measurement is not None else spelt


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
