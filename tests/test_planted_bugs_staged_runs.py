"""Verification on the host rejects bugs in how staged kernels share work: panels, turns, stretches, sums of parts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.conftest import TryKernel
from tests.planting import Bug, Shape, assert_rejected
from tests.staged_kernels import (
    GROUPS,
    IN_PANELS,
    IN_TURNS,
    MMA_LARGE,
    MMA_PANELS,
    MMA_TALL,
    SHAPE,
    WARPS,
    mma,
    panelled,
    staged,
)
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.trial import Outcome

pytestmark = pytest.mark.host

STAGED_MMA = family_named("staged_dmma")
RUN_BUGS = (
    mma("the next tile not looked for", MMA_LARGE, "one_tile ? 0 : in_spans / work.span_k_tiles", "0"),
    mma("the tile before staged", MMA_LARGE, "tile_of(next_item);", "tile_of(next_item - (next_item > 0));"),
    panelled("turns of one block in another's place", "item * tail_blocks + rank", "item * tail_blocks + rank / 2"),
    panelled("slots for turns that leave no part", "turn_parts = work.panels > 0 ? work.turn_tiles : 0",
        "turn_parts = work.turn_tiles", shape=IN_TURNS),
    staged("a block with some chunks of one tile alone", WARPS, "alone = item_end", "alone = one_tile || item_end"),
    panelled("a tile of which others have some taken for the block's",
        "alone = item_end - item_begin == work.k_tiles",
        "alone = item_end - item_begin == work.span_k_tiles"),
    mma("the sums of the tile before kept", MMA_LARGE, "sums_t sum = {};", "sums_t sum;"),
    staged("the first to come adds up", GROUPS, "all_arrived(atomic_add_acq_rel(counter, arrival) + arrival) ||",
        "atomic_add_acq_rel(counter, arrival) == 0 ||"),
    staged("the counter put back too early", GROUPS, "requested - slices : 0)", "requested - slices + 1 : 0)"),
)  # fmt: skip


@pytest.mark.parametrize("shape", [IN_PANELS, IN_TURNS], ids=str)
def test_panels_turns_and_stretches_are_right(try_kernel: TryKernel, shape: Shape) -> None:
    result = try_kernel(MMA_PANELS, Problem(*shape, "f64", "nn"), str)
    assert result.outcome is Outcome.OK, result.detail


@pytest.mark.parametrize("op", ["nn", "ttt"])
def test_with_a_short_k_nearly_every_block_has_a_whole_tile(try_kernel: TryKernel, op: str) -> None:
    problem, config = Problem(954, 29, 300, "f64", op), replace(MMA_TALL, splits=16)
    assert STAGED_MMA.has_whole_tiles(config, problem)
    assert try_kernel(config, problem, crash_where_sums_meet, False).outcome is Outcome.OK
    fewer = replace(problem, m=800)
    assert not STAGED_MMA.has_whole_tiles(config, fewer)
    assert try_kernel(config, fewer, crash_where_sums_meet, False).outcome is Outcome.CRASHED


def crash_where_sums_meet(text: str) -> str:
    assert "if (!alone) {" in text
    return text.replace("if (!alone) {", "if (!alone) { __builtin_trap();")


@pytest.mark.parametrize("bug", RUN_BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_rejected(try_kernel: TryKernel, bug: Bug) -> None:
    assert_rejected(try_kernel, bug, SHAPE, probes=True)
