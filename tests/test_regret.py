"""Tests that the default strategy finds a fast kernel on recorded spaces as soon as docs/regret.md promises."""

from __future__ import annotations

import pytest

from benchmarks.recorded_spaces import FILE, rows_in, space_of
from benchmarks.regret import WITHIN, fastest, replayed, strategies

# Three element types and two ops. The order of the model alone, or of first choices alone, does worse on them.
SPACES = ("8x8x10000000:f64:tn", "4096x8x4096:f32", "2000000x8x8:c64")
TENTH = 0.1
# With all that the package brings; of other shapes alone, as for a new shape; and with a database of one's own.
KNOWING = ("model", "model, other shapes", "model, own database alone")


@pytest.mark.parametrize("text", SPACES)
def test_a_tenth_of_the_trials_finds_98_percent_of_the_speed(text: str) -> None:
    rows = {row["problem"]: row for row in rows_in(FILE)}
    of = space_of(rows[text])
    alike = [fastest(row) for row in rows.values()]
    known = [one for one in alike if one.problem != of.problem and one.problem.dtype_name == of.problem.dtype_name]
    made, trials = strategies(of, known), round(TENTH * of.trials)
    regrets = {name: replayed(made[name](0), of, most=trials).regret(of, trials) for name in KNOWING}
    assert {name: regret for name, regret in regrets.items() if not 0 <= regret <= WITHIN} == {}
