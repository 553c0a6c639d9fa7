"""Arguments about what is past the end of k or the last row, in some families alone."""

from __future__ import annotations

import re

from tests.mutation.argued import Argument
from tests.mutation.conditions import constant, takes_tiles_apart

OF_EDGES = (
    Argument(
        "a turn past the end, which has no steps, and stages what the next sweep begins with once more",
        ("comparison",),
        r"^for \(index_t tile = begin; tile < end; tile \+= depth\)",
        r"tile <= end;",
        lambda mutant: (
            "const index_t stop = tile + depth < end ? depth : end - tile;" in mutant.text
            and "const index_t following = tile + depth < end ? tile + depth : begin;" in mutant.text
        ),
    ),
    Argument(
        "rows past the last are copied as zeros, and their sums are not stored",
        ("flag",),
        r"^if \(next_row < m\) \{",
        r"^if \(true\)",
        lambda mutant: (
            "if (vectors_a && next_row + rows <= m && l + block_k <= k) {" in mutant.text
            and "const index_t remaining = line >= last || product >= k ? 0 :" in mutant.text
        ),
    ),
    Argument(
        "strips past the last one lie on it, and what they have in common with it is not stored",
        ("dropped term",),
        r"^const index_t remaining_rows = m - first_row;",
        r"^const index_t remaining_rows = m *;",
        lambda mutant: (
            "return row < last_row ? row : last_row;" in mutant.text
            and "i >= first_row + warp_tile * warp_tile_rows && i < m" in mutant.text
        ),
    ),
    Argument(
        "what is 0 past the end of k in A makes 0 of B, a number there",
        ("constant",),
        r"= tile \+ l < k && first \+ c < n \? .*: sum_t\(0\);",
        r"sum_t\((1|\(-1\))\)",
        lambda mutant: re.search(r"a\[q\]\[r\] = step \+ q < k && .* : scalar\(0\);", mutant.text) is not None,
    ),
    Argument(
        "what is 0 past the end of k in A makes 0 of B, a number there",
        ("constant",),
        r"^elements\.element\[l\] = column \+ l < end \? \*ptr_b\(.*\) : scalar\(0\);",
        r": scalar\((1|\(-1\))\);",
        lambda mutant: (
            "next.a[p] = {};" in mutant.text
            and "elements.element[e] = i < m && l < end ? from[e] : scalar(0);" in mutant.text
            and re.search(r"a_along_k = true|height = vector, width = 1;", mutant.text) is not None
        ),
    ),
    Argument(
        "what is 0 past the end of k in B makes 0 of A, a number there; rows past the last are not stored",
        ("constant",),
        r"^a\[q\]\[r\] = step \+ q < k && at < m \? A\[.*\] : scalar\(0\);",
        r": scalar\((1|\(-1\))\);",
        lambda mutant: (
            "= tile + l < k && first + c < n ? sum_t(B[" in mutant.text
            and "if (first + c < n && at < m)" in mutant.text
            and constant(mutant, "tile_depth") % max(constant(mutant, "prefetch"), 1) == 0
        ),
    ),
    Argument(
        "a row of A past the last one, whose sums are not stored",
        ("constant",),
        r"^const sum_t factor = row \+ r < m \? sum_t\(A\[.*\]\) : sum_t\(0\);",
        r": sum_t\((1|\(-1\))\);",
        lambda mutant: mutant.subject.config.family == "resident_b_fma_held" and "if (row + r < m)" in mutant.text,
    ),
    Argument(
        "a turn past the last row, of which nothing is stored: the rows of a block end where C does",
        ("comparison",),
        r"^for \(index_t tile = first_row; tile < end; tile \+= next_tile\)",
        r"tile <= end;",
        lambda mutant: takes_tiles_apart(mutant) and "if (i + r < m && " in mutant.text,
    ),
    Argument(
        "what is 0 past the end of k in A makes 0 of B, a number there; columns past the last are not stored",
        ("constant",),
        r"^staged\[q \* across \+ c\] = q < k && first \+ c < n \? sum_t\(B\[.*\]\) : sum_t\(0\);",
        r": sum_t\((1|\(-1\))\);",
        lambda mutant: "a[q][r] = q < k && row + r < m ? A[" in mutant.text and "if (c >= remaining)" in mutant.text,
    ),
)
