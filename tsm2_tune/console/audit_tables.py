"""Tables of the command `audit`: the cost of heuristics for dropping configurations, and the errors of estimates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tsm2_tune.console.tables import print_line, print_table
from tsm2_tune.generator.device.architecture import HOST
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.tuner.search.audit import ALL, OF_THE_HOST, Audit, DroppedWinner, Estimate, GuidelineAudit, RuleAudit

if TYPE_CHECKING:
    from rich.console import Console


def audit_facts(found: Audit, limits: DeviceLimits, database: str) -> dict[str, Any]:
    """Return the audit as a dictionary for JSON. `limits` is the audited device, `database` the database's name."""
    return {
        "device": limits.name,
        "database": database,
        "trials": found.trials,
        "left_out": found.left_out,
        "measured": found.measured,
        "problems": found.problems,
        "guidelines": [
            {
                "rule": one.rule,
                "would_drop": one.would_drop,
                "problems": one.problems,
                "mean_cost": _mean(one.costs),
                "worst_cost": max(one.costs, default=None),
                "dropped_winners": [_dropped_facts(dropped) for dropped in one.dropped],
            }
            for one in found.guidelines
        ],
        "estimates": [
            {**asdict(one), "worst_config": one.worst_config.text, "worst_problem": one.worst_problem.text}
            for one in found.estimates
        ],
        "rules": [asdict(one) for one in found.rules],
    }


def _dropped_facts(dropped: DroppedWinner) -> dict[str, Any]:
    return {
        "problem": dropped.problem.text,
        "winner": dropped.winner.text,
        "winner_us": dropped.winner_us,
        "kept": dropped.kept.text if dropped.kept is not None else None,
        "kept_us": dropped.kept_us,
        "cost": dropped.cost,
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def print_audit(found: Audit, limits: DeviceLimits, database: str, console: Console) -> None:
    """Print what each guideline (a rule that drops configurations) costs, and the errors of estimated resources."""
    problems = f"{found.problems} problem{'s' if found.problems != 1 else ''}"
    counts = f"{found.trials} trials, {found.measured} of them measured, of {problems}"
    left_out = (
        f"; {found.left_out} more are of configurations that this version does not have" if found.left_out else ""
    )
    print_line(console, f"{limits.name} in {database}: {counts}{left_out}")
    if found.guidelines:
        _print_guidelines(found.guidelines, console)
    else:
        print_line(console, "no trial has a right result and a time: the cost of guidelines is unknown")
    _print_estimates(found.estimates, console)
    if limits.compute_capability == HOST:
        print_line(console, f"the host reports only {', '.join(OF_THE_HOST)} of compiled kernels")
    elif found.rules:
        _print_rules(found.rules, console)
    else:
        print_line(console, "no rule decides differently with the values of the compiled kernels")


def _print_guidelines(guidelines: Sequence[GuidelineAudit], console: Console) -> None:
    """Print one row for each guideline, then one row for each winner that a guideline would have dropped."""
    cells = []
    for one in guidelines:
        mean, costs = _mean(one.costs), one.costs
        cells.append(
            (
                one.rule,
                str(one.would_drop),
                str(one.problems),
                str(len(one.dropped)),
                str(len(one.dropped) - len(costs)),
                "" if mean is None else f"{mean:.3f}",
                f"{max(costs):.3f}" if costs else "",
            )
        )
    heads = ("guideline", "would drop", "problems", "winners dropped", "cost unknown", "mean cost", "worst cost")
    print_table(console, heads, cells, right=(1, 2, 3, 4, 5, 6))
    unseen = [one.rule for one in guidelines if not one.would_drop and one.rule != ALL]
    if unseen:
        print_line(
            console,
            f"no trial was measured that {', '.join(unseen)} would drop: tune with --guidelines none to learn more",
        )
    dropped = [(one.rule, winner) for one in guidelines if one.rule != ALL for winner in one.dropped]
    if not dropped:
        return
    print_line(console, "")
    cells = [
        (
            winner.problem.text,
            rule,
            winner.winner.text,
            f"{winner.winner_us:.1f}",
            "none measured" if winner.kept is None else winner.kept.text,
            "" if winner.kept_us is None else f"{winner.kept_us:.1f}",
            "" if winner.cost is None else f"{winner.cost:.3f}",
        )
        for rule, winner in dropped
    ]
    heads = ("problem", "guideline", "dropped winner", "us", "fastest kept", "us kept", "cost")
    print_table(console, heads, cells, right=(3, 5, 6))


def _print_estimates(estimates: Sequence[Estimate], console: Console) -> None:
    """Print a table of the estimates' errors, with one row for each kernel family and estimated quantity."""
    cells = [
        (
            one.family,
            one.quantity,
            str(one.trials),
            f"{one.mean:+.1f}",
            f"{100 * one.under / one.trials:.0f} %",
            f"{one.worst:+d}",
            str(one.spilled),
            one.worst_config.text,
            one.worst_problem.text,
        )
        for one in estimates
    ]
    print_line(console, "")
    heads = ("family", "estimate of", "trials", "mean error", "too low", "worst", "spilled", "worst of", "on")
    print_table(console, heads, cells, right=(2, 3, 4, 5, 6))


def _print_rules(rules: Sequence[RuleAudit], console: Console) -> None:
    """Print one row for each rule that decides differently with a compiled kernel's resources than with estimates."""
    cells = [(one.rule, one.kind, str(one.trials), str(one.wrongly_kept), str(one.wrongly_dropped)) for one in rules]
    print_line(console, "")
    heads = ("rule", "kind", "trials", "kept by the estimate alone", "dropped by it alone")
    print_table(console, heads, cells, right=(2, 3, 4))
