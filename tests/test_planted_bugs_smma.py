"""Verification on the host rejects bugs in the kernel that multiplies f32 on the f64 tensor cores.

How tiles are staged and sums added up is the other staged kernels', and so are those bugs.
"""

from __future__ import annotations

import pytest

from tests.conftest import TryKernel
from tests.planting import Bug, assert_rejected
from tsm2_tune.generator.families.staged_smma import StagedSmmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.trial import Outcome

pytestmark = pytest.mark.host

SHAPE = (64, 32, 512)

# The sums of C in the registers of a block that is a team; teams of one warp; a lane with rows of four strips; with
# columns of three octets.
BLOCK = StagedSmmaConfig(128, 128, 64, 32, 16, 3, 1, splits=4, min_blocks=1, strips=2, octets=2, ahead=0)
TEAMS = StagedSmmaConfig(128, 128, 32, 32, 32, 2, 0, splits=16, min_blocks=1, strips=2, octets=4, ahead=0)
HIGH = StagedSmmaConfig(64, 64, 64, 64, 16, 2, 0, splits=1, min_blocks=1, strips=4, octets=4, ahead=0)
ODD = StagedSmmaConfig(128, 128, 128, 24, 16, 3, 1, splits=4, min_blocks=1, strips=2, octets=3, ahead=0)
CONFIGS = (BLOCK, TEAMS, HIGH, ODD)
OPS = ("nn", "tn", "ntt", "ttt")


def bug(name: str, original: str, planted: str, *, op: str, config: StagedSmmaConfig = BLOCK) -> Bug:
    return Bug(name, config, original, planted, op=op)


BUGS = (
    bug("a strip's rows taken for the next one's", "fragments.a[s + 1][2 * half] = bits.z",
        "fragments.a[s + 1][2 * half] = bits.x", op="nn"),
    bug("products of rows side by side all the first", "a + half * a_pitch", "a", op="nn"),
    bug("strips in the place of the first", "+ row_of(s, 0, 0));", "+ row_of(0, 0, 0));", op="nn", config=HIGH),
    bug("products of rows along k all the first", "fragments.a[s][2 + half] = bits.y",
        "fragments.a[s][2 + half] = bits.x", op="ttt"),
    bug("rows along k all the first", "row_of(s, 0, half) * a_pitch", "row_of(s, 0, 0) * a_pitch", op="ttt"),
    bug("rows of a strip twice", "slot + 8 * half", "slot + 4 * half", op="tn"),
    bug("products of columns along k all the first", "fragments.b[o][1] = bits.y", "fragments.b[o][1] = bits.x",
        op="nn"),
    bug("octets in the place of the first", "pair(b + column_of(o, 0) * b_pitch)", "pair(b)", op="tn", config=TEAMS),
    bug("an octet's columns taken for the next one's", "fragments.b[o + 1][half] = bits.y",
        "fragments.b[o + 1][half] = bits.x", op="ttt"),
    bug("products of columns side by side all the first", "pair(b + half * b_pitch", "pair(b", op="ntt"),
    bug("products of columns one by one all the first", "= b[b_pitch + column_of", "= b[column_of", op="ttt",
        config=ODD),
    bug("columns of an odd number of octets as of pairs", "8 * octet + slot",
        "octet / 2 * 16 + 2 * slot + octet % 2", op="ntt", config=ODD),
    bug("columns of C in another order", "sum[s][o + e % 2]", "sum[s][o + e / 2]", op="ttt"),
    bug("halves of a strip exchanged", "[2 * half + e / 2]", "[2 * (1 - half) + e / 2]", op="ttt"),
    bug("rows of one half alone", "row_of(v / octets, g, v % 2)", "row_of(v / octets, g, 0)", op="ttt"),
    bug("columns of C too near", "* 16 + 4 * t;", "* 16 + 2 * t;", op="ttt"),
    bug("strips of C exchanged", "sum[s + e / 2][o]", "sum[s + 1 - e / 2][o]", op="nn"),
    bug("rows of C too near", "* 32 + 4 * g;", "* 32 + 2 * g;", op="nn"),
    bug("two columns of C in one place", "2 * t + v % 2);", "2 * t);", op="nn"),
    bug("columns of C taken for rows", "[e % 2 * 2 + v % 2]", "[v % 2 * 2 + e % 2]", op="nn"),
    bug("a chunk's last products left out", "step < steps;", "step < steps - 1;", op="tn", config=TEAMS),
    bug("factors of lower precision", "fragments.b[o][0] = bits.x", "fragments.b[o][0] = bits.x + 4096.0f - 4096.0f",
        op="nn"),
)  # fmt: skip


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.text)
def test_the_template_itself_is_right(try_kernel: TryKernel, config: StagedSmmaConfig, op: str) -> None:
    result = try_kernel(config, Problem(130, 37, 203, "f32", op), lambda text: text, probes=True)
    assert result.outcome is Outcome.OK, result.detail


@pytest.mark.parametrize("planted", BUGS, ids=lambda planted: planted.name)
def test_a_planted_bug_is_rejected(try_kernel: TryKernel, planted: Bug) -> None:
    assert_rejected(try_kernel, planted, SHAPE, probes=True)
