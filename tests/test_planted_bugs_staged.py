"""Verification on the host rejects bugs in the kernels that stage both operands of a product with a huge k.

Each is planted in a configuration that is tuned for one whole tile of C and whole chunks of k, as a user's may be:
what finds it is the configuration's probes.
"""

from __future__ import annotations

import pytest

from tests.conftest import TryKernel
from tests.planting import Bug, assert_rejected
from tests.staged_kernels import (
    BLOCK,
    GROUPS,
    MMA_BLOCK,
    MMA_LARGE,
    MMA_ODD,
    MMA_WARPS,
    REGISTERS,
    SHAPE,
    WARPS,
    mma,
    probed,
    staged,
)

pytestmark = pytest.mark.host


# Not among them: that a vector reaches past the end of k or of the lines. On the host every operand ends where a page
# does, so that where a line's length is odd, an even leading dimension never comes with an aligned address.
COPYING_BUGS = (
    probed("the first chunk of a stretch for every tile", "in_spans - next_item * work.span_k_tiles",
        "in_spans - next_item * work.span_k_tiles + (next_item > work.turns ? work.stretch_begin : 0)"),
    staged("the last line of a tile that is not full left out", BLOCK, "strided_offset(i) : contiguous()",
        "strided_offset(i) + 1 : contiguous()"),
    staged("the last vector of a tile that is not full left out", WARPS, "contiguous_offset(i)) < valid_lines",
        "contiguous_offset(i) + wide) < valid_lines", op="ntt"),
    mma("a round taken for whole runs that is not", MMA_ODD, "strided_per_round * contiguous_vectors : ring_threads",
        "ring_threads : ring_threads", op="ntt"),
    staged("leading dimensions not looked at", BLOCK, "| lda * sizeof(scalar) | ldb * sizeof(scalar)", ""),
    staged("addresses not looked at at an edge", BLOCK, "(reinterpret_cast<unsigned long long>(X) | ld", "(ld"),
)  # fmt: skip

RING_BUGS = (
    staged("a chunk fetched before the one before is put", REGISTERS, "load_next();\n        copy_if_unaligned(",
        "load_next();\n        load_next();\n        copy_if_unaligned("),
    staged("the place that is read next refilled", GROUPS, "stage == 0 ? stages - 1 : stage - 1",
        "stage + 1 == stages ? 0 : stage + 1"),
    staged("every ring begins at the first chunk", WARPS, "to_copy = ring_of_block", "to_copy = 0"),
    staged("chunks counted one by one", WARPS, "current += rings_of_block", "current += 1"),
)  # fmt: skip

ELEMENT_BUGS = (
    staged("elements counted as vectors", BLOCK, "in_vectors ? MapA::strided() : ElementMapA::strided()",
        "MapA::strided()"),
    staged("elements begin where vectors do", WARPS, "in_vectors ? MapB::contiguous() : ElementMapB::contiguous()",
        "MapB::contiguous()",
        op="ntt"),
    staged("elements past the last line", WARPS, "return int(P::is_valid(i, valid_lines))", "return 1", op="ntt"),
    staged("elements of a chunk that k ends in", BLOCK, "whole_k_tiles = k / block_k",
        "whole_k_tiles = k / block_k + 1"),
    staged("elements that follow put where they are read", REGISTERS, "copy_if_unaligned(ring + before",
        "copy_if_unaligned(ring + stage"),
    staged("the first elements not copied",
        REGISTERS, "copy_if_unaligned(ring + stage * (a_elements + b_elements));", ""),
    staged("elements that follow not waited for", REGISTERS, "cp_async_fence();\n            cp_async_wait<0>();\n"
        "        }\n    };", "}\n    };"),
    mma("elements staged without an end", MMA_ODD, "--by_elements;", ""),
    mma("elements staged chunk by chunk from one place", MMA_WARPS, "from_a += a_along_k ? products : products "
        "* lda;", "from_a += unchecked > 0 ? (a_along_k ? products : products * lda) : 0;"),
)  # fmt: skip

MULTIPLYING_BUGS = (
    staged("a team's k one too late", GROUPS, "k_slice * step; l", "k_slice * step + 1; l"),
    staged("lines of C in another order than of A", WARPS, "const int row = line_of<rows, a_along_k>",
        "const int row = line_of<rows, !a_along_k>", op="ntt"),
    staged("lines of C in another order than of B", WARPS, "= line_of<columns, b_along_k>",
        "= line_of<columns, !b_along_k>", op="ntt"),
    mma("products of A in another order than of B", MMA_BLOCK, "a[s][half] = read.x;\n            "
        "fragments.a[s][2 + half] = read.y;", "a[s][half] = read.y;\n            fragments.a[s][2 + half] = read.x;"),
    mma("the next chunk read before it is there", MMA_LARGE, "next_stage();\n                    arrive();",
        "next_stage();"),
)  # fmt: skip

ADDING_BUGS = (
    staged("C read though beta is 0", BLOCK, "beta == 0 ? alpha * sum : alpha", "alpha"),
)  # fmt: skip


@pytest.mark.parametrize(
    "bug", [*COPYING_BUGS, *RING_BUGS, *ELEMENT_BUGS, *MULTIPLYING_BUGS, *ADDING_BUGS], ids=lambda bug: bug.name
)
def test_a_planted_bug_is_rejected(try_kernel: TryKernel, bug: Bug) -> None:
    assert_rejected(try_kernel, bug, SHAPE, probes=True)
