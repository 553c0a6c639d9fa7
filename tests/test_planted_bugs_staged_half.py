"""Verification on the host rejects bugs in the kernel whose operands Hopper's tensor cores read in shared memory.

What the host does not run, the descriptors of the operands and the instruction itself, only a GPU can find wrong.
"""

from __future__ import annotations

import pytest

from tests.conftest import TryKernel
from tests.planting import Bug, assert_rejected
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families.staged_half import StagedHalfConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.trial import Outcome

pytestmark = pytest.mark.host

SHAPE = (256, 16, 128)

SMALL = StagedHalfConfig(128, 64, 32, 32, 3, splits=2)
PARTS = StagedHalfConfig(128, 64, 32, 32, 3, splits=16)
GROUPS = StagedHalfConfig(256, 256, 32, 32, 3, splits=3)


def bug(name: str, config: KernelConfig, original: str, planted: str, *, op: str = "nn") -> Bug:
    return Bug(name, config, original, planted, dtype="bf16", op=op)


RING_BUGS = (
    bug("a chunk awaited too late", SMALL, "await_copies<stages - 2>()", "await_copies<stages - 1>()"),
    bug("copies of other threads not awaited", SMALL, "__syncthreads();  // every thread's copies", "// "),
    bug("groups that are not counted", SMALL, "close_copies();  // groups", "// groups"),
    bug("the ring not advanced", SMALL, "place = place + 1 == stages ? 0 : place + 1", "place = 0"),
    bug("copies over what is multiplied", SMALL, "place == 0 ? stages - 1 : place - 1", "place"),
    bug("the last item not copied", SMALL, "if (next_item < items)", "if (next_item + 1 < items)"),
    bug("the next item not begun", SMALL, "next_item += splits;", ""),
    bug("the next item's addresses not found", SMALL, "next_item += splits;\n                enter_item();",
        "next_item += splits;\n                next = 0;"),
    bug("A not advanced", SMALL, "from_a += Of_A::along_k ? chunk : chunk * (long long)lda", "from_a += 0"),
    bug("B not advanced", SMALL, "from_b += Of_B::along_k ? chunk : chunk * (long long)ldb", "from_b += 0"),
    bug("an item too long", SMALL, "if (++next == stop)", "if (next++ == stop)"),
    bug("B not copied to all places", SMALL, "int unfilled = stages;", "int unfilled = stages - 1;"),
    bug("B kept for the next columns", SMALL, "chunks == 1 && tiles_across == 1", "chunks == 1"),
    bug("B kept for the next chunk", SMALL, "chunks == 1 && tiles_across == 1", "tiles_across == 1"),
)  # fmt: skip

COPY_BUGS = (
    bug("A not aligned", SMALL, "whole_a = aligned_A && ", "whole_a = "),
    bug("B not aligned", SMALL, "whole_b = aligned_B && ", "whole_b = "),
    bug("pieces at the edge not aligned", SMALL, "if (aligned)\n                    copy",
        "if (true)\n                    copy"),
    bug("a rest of k taken for a chunk of A", SMALL, "whole_a && next < whole_chunks", "whole_a"),
    bug("a rest of k taken for a chunk of B", SMALL, "whole_b && next < whole_chunks", "whole_b"),
    bug("rows past the last taken for a tile", SMALL, "aligned_A && next_row + tile_rows <= m", "aligned_A"),
    bug("columns past the last taken for a tile", SMALL, "aligned_B && next_column + tile_columns <= n", "aligned_B"),
    bug("zeros not put past k", SMALL, "product >= k ? 0 : along_k ? k - product", "along_k ? wide"),
    bug("A read past m", SMALL, "k - product : last - line", "k - product : wide"),
    bug("pieces cut short", SMALL, "left < wide ? int(left) : wide", "left < wide ? 0 : wide"),
    bug("rows past the last copied", SMALL, "if (line < last && r < rows)", "if (r < rows)", op="ttt"),
    bug("half of the pieces", GROUPS, "for (int i = 0; i < rounds; ++i)", "for (int i = 0; i < rounds / 2; ++i)"),
    bug("pieces over each other", GROUPS, "i * runs_of_round * row", "i * runs_of_round * wide"),
)  # fmt: skip

SUM_BUGS = (
    bug("the last products of a chunk", SMALL, "l < chunk; l += depth", "l < chunk - depth; l += depth"),
    bug("one strip for all", GROUPS, "group_row + 64 * s, l", "group_row, l"),
    bug("the first group's rows for all", GROUPS, "threadIdx.x / 128 * (64 * strips)", "0"),
    bug("chunks that no part has", PARTS, "(long long)chunks * part / parts", "part * (chunks / parts)"),
    bug("parts of another tile", PARTS, "item / parts;", "item % tiles;", op="ttt"),
    bug("sums that are not awaited", PARTS, "last_of(counters + tile, parts)", "last_of(counters + tile, parts - 1)"),
    bug("sums of the parts over each other", PARTS, "of_tile + part * of_part", "of_tile"),
    bug("one part not added", PARTS, "of_part, parts)", "of_part, parts - 1)"),
    bug("alpha forgotten", SMALL, "scalar(alpha * pair[0])", "scalar(pair[0])"),
    bug("beta forgotten", SMALL, "% wide == 0 && beta == 0", "% wide == 0"),
    bug("C past m", SMALL, "                if (i < m && j < n)\n                    __stcs",
        "                if (j < n)\n                    __stcs"),
    bug("rows of C left as columns", SMALL, "transposed(both.bits)", "both.bits"),
    bug("words of other lanes", SMALL, "distance < 4; distance *= 2", "distance < 2; distance *= 2"),
    bug("two octets exchanged", SMALL, "(v % octets + t / 2) * 8", "(v % octets + t % 2) * 8", op="ttt"),
)  # fmt: skip


@pytest.mark.parametrize("planted", [*RING_BUGS, *COPY_BUGS, *SUM_BUGS], ids=lambda one: one.name)
def test_a_planted_bug_is_rejected(try_kernel: TryKernel, planted: Bug) -> None:
    assert_rejected(try_kernel, planted, SHAPE, probes=True)


@pytest.mark.parametrize("op", ["nn", "ttt", "tn", "nt"])
@pytest.mark.parametrize("config", [SMALL, PARTS, GROUPS], ids=lambda one: one.text)
def test_the_same_kernels_are_accepted_without_the_bug(try_kernel: TryKernel, config: KernelConfig, op: str) -> None:
    result = try_kernel(config, Problem(*SHAPE, "bf16", op), lambda text: text, probes=True)
    assert result.outcome is Outcome.OK, result.detail
