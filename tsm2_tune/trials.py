"""Stored trials that are not to stand: the command that forgets them, and the option that tries them again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import click

from tsm2_tune.display import printable
from tsm2_tune.errors import InputError
from tsm2_tune.options import F, database_option
from tsm2_tune.tuner.store import Store
from tsm2_tune.tuner.trial import Outcome

MOST_TRIAL = 2**63 - 1  # SQLite's largest
FAILED = "failed"
STORED_OUTCOMES = tuple(one for one in Outcome if one is not Outcome.INTERRUPTED)
FAILURES = tuple(one for one in STORED_OUTCOMES if one is not Outcome.OK)


def outcomes_of(text: str | None, known: Sequence[Outcome]) -> frozenset[Outcome]:
    """The outcomes that the option names, of those it knows; none where it is not given. InputError for another."""
    if text is None:
        return frozenset()
    named = {one.value: frozenset({one}) for one in known} | {FAILED: frozenset(FAILURES)}
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in named:
            raise InputError(f"unknown outcome {name!r}: expected {', '.join(named)}")
    return frozenset().union(*(named[name] for name in names))


def outcomes_option(name: str, variable: str, known: Sequence[Outcome], about: str) -> Callable[[F], F]:
    """An option that names outcomes, separated by commas."""
    return click.option(
        name,
        variable,
        metavar="OUTCOME,...",
        callback=lambda ctx, param, text: outcomes_of(text, known),
        help=f"{about}: {', '.join(known)}, or {FAILED} for all that failed.",
    )


retry_option = outcomes_option("--retry", "retried", FAILURES, "Try again what ended so")


class TrialNumber(click.IntRange):
    """The number of a trial, as `tsm2-tune show` lists it."""

    name = "trial's number"

    def __init__(self) -> None:
        super().__init__(1, MOST_TRIAL)


@click.command()
@click.argument("trials", metavar="[TRIAL]...", type=TrialNumber(), nargs=-1)
@outcomes_option("--outcome", "outcomes", STORED_OUTCOMES, "All trials that ended so")
@database_option
def forget(trials: tuple[int, ...], outcomes: frozenset[Outcome], database: str) -> None:
    """Remove TRIALs and what was measured of them: a search tries their configurations anew.

    \b
    tsm2-tune forget --outcome failed
    tsm2-tune forget 17 18

    `tsm2-tune --retry failed` tries failures again without removing them before.
    """
    if not trials and not outcomes:
        raise click.UsageError(
            "nothing to forget: name trials, or outcomes with --outcome; `tsm2-tune show` lists both"
        )

    def tell(counts: Mapping[str, int]) -> None:
        parts = [f"{count} {outcome}" for outcome, count in sorted(counts.items())]
        total = sum(counts.values())
        which = f"{total} trial{'s' if total != 1 else ''} of {database}"
        click.echo(printable(f"forgetting {which}: {', '.join(parts) or 'none ended so'}"))

    with Store.open(database, create=False) as store:
        store.forget(trials, outcomes, tell)
