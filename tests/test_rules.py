"""Each rule of a search space drops its counter-example, and every rule has one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spelling import spelt
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.families import FAMILIES, family_named
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.guidelines import Guidelines, parse_thresholds
from tsm2_tune.generator.space.space import rules_of

LINES = Path(__file__).with_name("counter_examples.txt").read_text().splitlines()
EXAMPLES = [line.split() for line in LINES if not line.startswith("#")]


def test_every_rule_has_a_counter_example() -> None:
    """Rules of several families may share a name: those that differ differ in their reason."""
    rules = {(rule.name, rule.because) for family in FAMILIES.values() for rule in rules_of(family)}
    families = [(example[0], family_named(spelt(example[1]).family)) for example in EXAMPLES]
    shown = {(one.name, one.because) for name, family in families for one in rules_of(family) if one.name == name}
    assert shown == rules


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: " of ".join(example[:2]))
def test_a_rule_drops_its_counter_example(example: list[str]) -> None:
    rule, spelling, problem, card, thresholds = [*example, *["-", ""][len(example) - 3 :]]
    config, guidelines = spelt(spelling), Guidelines().moved(parse_thresholds(thresholds))
    limits = PROFILES["h200" if card == "-" else card]
    family = family_named(config.family)
    candidate = Candidate(family, config, Problem.parse(problem), limits, guidelines)
    dropped = [one.name for one in rules_of(family) if not one.keeps(candidate)]
    assert (rule.removeprefix("+") in dropped) == (rule[0] != "+")
