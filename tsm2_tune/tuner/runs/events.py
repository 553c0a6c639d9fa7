"""The events that a tuning run reports, as dataclasses. `str` of an event is one line of text."""

from __future__ import annotations

from dataclasses import dataclass

from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.scalars import plain
from tsm2_tune.generator.space.space import SearchSpace
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.trial import Final, Measurement, Outcome, Trial, count_text, in_a_line
from tsm2_tune.tuner.search.candidates import Why
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.phase_timer import PhaseTimer


@dataclass(frozen=True, slots=True)
@plain
class Noted:
    """A message for the user, for example that the run waits until another run has released the device."""

    text: str  # a sentence

    def __str__(self) -> str:
        return in_a_line(self.text)


@dataclass(frozen=True, slots=True)
@plain
class RunStarted:
    """The tuning run starts: it has locked the device and opened the database."""

    target: Target  # the device
    problems: tuple[Problem, ...]  # in tuning order
    options: Options  # limits and other settings of the search
    phases: PhaseTimer  # timer of the run's phases; `phases.now` is the current phase, even between events

    def __str__(self) -> str:
        return f"tuning {count_text(len(self.problems), 'problem')} on {in_a_line(self.target.identity.name)}"


@dataclass(frozen=True, slots=True)
@plain
class ProblemStarted:
    """The tuning of a problem starts."""

    space: SearchSpace  # the problem's configurations
    tried_before: int  # configurations that earlier runs tried
    seconds_before: float  # spent on the problem by earlier runs
    best_before_us: float | None  # the least median of earlier runs
    vendor_us: float | None = None  # the vendor's newest correct median time in earlier runs

    def __str__(self) -> str:
        kept = count_text(len(self.space.kept), "configuration")
        return f"{self.space.problem.text}: {kept}, {self.tried_before} tried before"


@dataclass(frozen=True, slots=True)
@plain
class TrialStored:
    """A configuration was tried, and the result is in the database."""

    trial: Trial  # its outcome and its measurements
    trial_id: int  # the number for `tsm2-tune show`

    def __str__(self) -> str:
        return _trial_text(self.trial)


@dataclass(frozen=True, slots=True)
@plain
class TrialInterrupted:
    """A trial and its immediate retry were ended by a cause outside the kernel, for example a lost GPU.

    No result is stored, and the next run tries the configuration again.
    """

    trial: Trial  # the trial; `detail` names the cause

    def __str__(self) -> str:
        return _trial_text(self.trial)


@dataclass(frozen=True, slots=True)
@plain
class FinalStored:
    """The fastest configurations (finalists) were timed again, interleaved, and their times are in the database."""

    final: Final  # the finalists and their times

    def __str__(self) -> str:
        finalists = {config for config, _ in self.final.measurements}
        return f"{self.final.problem.text}: {count_text(len(finalists), 'finalist')} measured again"


@dataclass(frozen=True, slots=True)
@plain
class FinalFailure:
    """The fastest configurations (finalists) could not be timed again. Their earlier times remain valid."""

    problem: Problem  # the finalists' problem
    detail: str  # the reason
    interrupted: bool = False  # whether it was interrupted from outside: the next run times them again

    def __str__(self) -> str:
        return f"{self.problem.text}: finalists not measured again: {in_a_line(self.detail)}"


@dataclass(frozen=True, slots=True)
@plain
class WinnerVerified:
    """The fastest kernel was verified with many more shapes, offsets and both index widths.

    If a result is wrong, the next finalist is verified.
    """

    problem: Problem  # the tuned problem
    trial_id: int  # the number of the winner's trial for `tsm2-tune show`
    config: str  # the configuration, such as tsm2:version=v3,threads=128,columns=16,prefetch=4
    outcome: Outcome  # OK if every call gave a correct result
    detail: str  # the calls that were verified, or the failure

    def __str__(self) -> str:
        failure = "" if self.outcome is Outcome.OK else f": {in_a_line(self.detail)}"
        return f"{in_a_line(self.config)}: verified in full: {self.outcome}{failure}"


@dataclass(frozen=True, slots=True)
@plain
class VendorLeftOut:
    """cuBLAS or cuBLASLt could not be timed in comparison with the finalists."""

    problem: Problem | None  # None: all problems of this run
    detail: str  # the reason

    def __str__(self) -> str:
        of = f"{self.problem.text}: " if self.problem is not None else ""
        return f"{of}cuBLAS not measured: {in_a_line(self.detail)}"


@dataclass(frozen=True, slots=True)
@plain
class ProblemLeft:
    """A device has no more to do for a problem, which another device of the run ends."""

    problem: Problem  # the problem that is being tuned

    def __str__(self) -> str:
        return f"{self.problem.text}: left to another device"


@dataclass(frozen=True, slots=True)
@plain
class ProblemEnded:
    """The tuning of a problem has ended. `winner` is None if no configuration gave a correct result."""

    problem: Problem  # the tuned problem
    new_trials: int  # trials of this run
    tried: int  # configurations tried, including earlier runs'
    timed_out: int  # those of `tried` that timed out
    untried: int  # configurations that were skipped because of the budget or the limit on trials
    interrupted: int  # configurations that were interrupted from outside
    winner: BestRow | None  # the fastest correct kernel
    why: Why  # the reason for the end of the search
    quarantined: int = 0  # configurations that were skipped because their kernels hung or faulted before

    def __str__(self) -> str:
        won = self.winner
        text = f"{in_a_line(won.config)} {won.median_us:.1f} us" if won is not None else "no winner"
        return f"{self.problem.text}: {text} ({count_text(self.new_trials, 'new trial')})"


MOST_DRIFT = 0.05  # tolerated relative change of a winner's time, beyond the spread
NEXT_STEP = "confirm again on an idle device; if the result is the same, forget the problem's trials and tune again"


@dataclass(frozen=True, slots=True)
@plain
class Confirmed:
    """The fastest configurations of a tuned problem were timed again to confirm the winner, or could not be timed."""

    before: BestRow  # the winner before
    now: BestRow | None  # the winner now; None if no kernel gives a correct result
    again: Measurement | None  # the new time of the winner before; None if it was not timed
    wrong: tuple[WinnerVerified, ...] = ()  # finalists that failed the verification this time
    trouble: str = ""  # why the finalists were not timed again, or only in part; else empty

    @property
    def is_kept(self) -> bool:
        """Whether the same configuration won in about the same time as before, and all finalists were correct."""
        won = self.now is not None and self.now.config == self.before.config
        return won and self.again is not None and not self.wrong and not self.trouble and not self.change

    @property
    def change(self) -> str:
        """How the winner's time changed: "slower", "faster", or "" if it changed by at most `spread` plus MOST_DRIFT.

        The changes are relative to the winner's old time.
        """
        if self.drift is None or abs(self.drift) <= MOST_DRIFT + self.spread:
            return ""
        return "slower" if self.drift > 0 else "faster"

    @property
    def drift(self) -> float | None:
        """The relative change of the previous winner's median time: 0.05 means 5 % slower. None if it was not timed
        again.
        """
        return None if self.again is None else self.again.median_us / self.before.median_us - 1

    @property
    def spread(self) -> float:
        """The sum of the relative half-widths of two 95 % confidence intervals: of the winner's old median and of its
        new median.
        """
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
            text += "; no kernel gives a right result any more"
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
    """The run starts to time kernels at shapes for which another kernel is fastest: see the argument `pairs` of
    `tune`.
    """

    def __str__(self) -> str:
        return "looking for kernels to measure at shapes that they did not win"


@dataclass(frozen=True, slots=True)
@plain
class PairMeasured:
    """A kernel was timed at a shape for which another kernel is fastest."""

    done: int  # pairs measured so far
    total: int  # pairs to measure

    def __str__(self) -> str:
        return f"{self.done} of {count_text(self.total, 'pair')} measured"


@dataclass(frozen=True, slots=True)
@plain
class FleetStarted:
    """A run on several devices starts. The events of a device are wrapped in `OfRun`."""

    runs: tuple[str, ...]  # the devices' names, such as "GPU 0" or that of a cluster's worker; more may join
    problems: tuple[Problem, ...]  # divided among the devices

    def __str__(self) -> str:
        return f"tuning {count_text(len(self.problems), 'problem')} on {count_text(len(self.runs), 'device')}"


@dataclass(frozen=True, slots=True)
@plain
class OfRun:
    """An event of one of a run's devices."""

    run: str  # the device's name
    event: Event  # its event

    def __str__(self) -> str:
        return f"{in_a_line(self.run)}: {self.event}"


@dataclass(frozen=True, slots=True)
@plain
class RunEnded:
    """One of a run's devices has no problem left, or has failed. Then the others tune its remaining problems."""

    run: str  # the device's name
    trouble: str  # a sentence on its failure, else empty

    def __str__(self) -> str:
        return f"{in_a_line(self.run)}: {f'ended early: {in_a_line(self.trouble)}' if self.trouble else 'ended'}"


# Events about one problem.
ProblemEvent = (
    Noted
    | ProblemStarted
    | TrialStored
    | TrialInterrupted
    | FinalStored
    | FinalFailure
    | WinnerVerified
    | VendorLeftOut
    | ProblemLeft
    | ProblemEnded
)
Event = ProblemEvent | RunStarted | Confirmed | PairsStarted | PairMeasured | FleetStarted | OfRun | RunEnded


def is_interruption(event: Event) -> bool:
    """Return whether a trial, a final comparison or a verification was interrupted from outside and has to be
    repeated.
    """
    if isinstance(event, FinalFailure):
        return event.interrupted
    return isinstance(event, TrialInterrupted) or (
        isinstance(event, WinnerVerified) and event.outcome is Outcome.INTERRUPTED
    )


def _trial_text(trial: Trial) -> str:
    text = f"{trial.problem.text} {in_a_line(trial.config.text)}: {trial.outcome}"
    if trial.outcome is not Outcome.OK:
        return f"{text}: {in_a_line(trial.detail)}"
    return f"{text}, {trial.measurement.median_us:.1f} us" if trial.measurement is not None else text
