"""Tables of the command `audit`: the cost of heuristics for dropping configurations, and the errors of estimates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from statistics import mean
from typing import TYPE_CHECKING, Any

from tsm2_tune.console.printable import fields
from tsm2_tune.console.tables import print_line, print_table
from tsm2_tune.generator.device.architecture import HOST
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.tuner.results.trial import count_text
from tsm2_tune.tuner.search.audit import ALL, OF_THE_HOST, Audit, DroppedWinner, Estimate, GuidelineAudit, RuleAudit

if TYPE_CHECKING:
    from rich.console import Console


def audit_facts(found: Audit, limits: DeviceLimits, database: str) -> dict[str, Any]:
    """Return the audit as a dictionary for JSON. `limits` is the audited device, `database` the database's name."""
    return {
        "device": limits.name,
        "database": database,
        **fields(found, "trials left_out measured problems"),
        "guidelines": [
            {
                **fields(one, "rule would_drop problems"),
                "mean_cost": mean(one.costs) if one.costs else None,
                "worst_cost": max(one.costs, default=None),
                "dropped_winners": [
                    fields(each, "problem winner winner_us kept kept_us cost") for each in one.dropped
                ],
            }
            for one in found.guidelines
        ],
        "estimates": [
            {**asdict(one), "worst_config": one.worst_config.text, "worst_problem": one.worst_problem.text}
            for one in found.estimates
        ],
        "rules": [asdict(one) for one in found.rules],
    }


def print_audit(found: Audit, limits: DeviceLimits, database: str, console: Console) -> None:
    """Print what each guideline (a rule that drops configurations) costs, and the errors of estimated resources."""
    problems = count_text(found.problems, "problem")
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
    columns: dict[str, Callable[[GuidelineAudit], str]] = {
        "guideline": lambda one: one.rule,
        "would drop": lambda one: str(one.would_drop),
        "problems": lambda one: str(one.problems),
        "winners dropped": lambda one: str(len(one.dropped)),
        "cost unknown": lambda one: str(len(one.dropped) - len(one.costs)),
        "mean cost": lambda one: f"{mean(one.costs):.3f}" if one.costs else "",
        "worst cost": lambda one: f"{max(one.costs):.3f}" if one.costs else "",
    }
    print_table(console, columns, guidelines)
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
    costs: dict[str, Callable[[tuple[str, DroppedWinner]], str]] = {
        "problem": lambda row: row[1].problem.text,
        "guideline": lambda row: row[0],
        "dropped winner": lambda row: row[1].winner.text,
        "us": lambda row: f"{row[1].winner_us:.1f}",
        "fastest kept": lambda row: "none measured" if row[1].kept is None else row[1].kept.text,
        "us kept": lambda row: "" if row[1].kept_us is None else f"{row[1].kept_us:.1f}",
        "cost": lambda row: "" if row[1].cost is None else f"{row[1].cost:.3f}",
    }
    print_table(console, costs, dropped)


def _print_estimates(estimates: Sequence[Estimate], console: Console) -> None:
    """Print a table of the estimates' errors, with one row for each kernel family and estimated quantity."""
    columns: dict[str, Callable[[Estimate], str]] = {
        "family": lambda one: one.family,
        "estimate of": lambda one: one.quantity,
        "trials": lambda one: str(one.trials),
        "mean error": lambda one: f"{one.mean:+.1f}",
        "too low": lambda one: f"{100 * one.under / one.trials:.0f} %",
        "worst": lambda one: f"{one.worst:+d}",
        "spilled": lambda one: str(one.spilled),
        "worst of": lambda one: one.worst_config.text,
        "on": lambda one: one.worst_problem.text,
    }
    print_line(console, "")
    print_table(console, columns, estimates)


def _print_rules(rules: Sequence[RuleAudit], console: Console) -> None:
    """Print one row for each rule that decides differently with a compiled kernel's resources than with estimates."""
    columns: dict[str, Callable[[RuleAudit], str]] = {
        "rule": lambda one: one.rule,
        "kind": lambda one: one.kind,
        "trials": lambda one: str(one.trials),
        "kept by the estimate alone": lambda one: str(one.wrongly_kept),
        "dropped by it alone": lambda one: str(one.wrongly_dropped),
    }
    print_line(console, "")
    print_table(console, columns, rules)
