"""Arguments that hold of some configurations alone: what that depends on is asked of the subject."""

from __future__ import annotations

from tests.mutation.argued import Argument
from tests.mutation.conditions import (
    INT16_MAX,
    MOST_MASKED,
    constant,
    ends_past,
    fits_shared_memory,
    has_one_split,
    is_end_of_sweep,
    is_function,
    is_past_last_chunk,
    lines_about,
    packs_are_never_across,
    pieces_fill_threads,
    tile_elements_bound,
)

OF_CONFIGURATIONS = (
    Argument(
        "the next sweep waits for what this one left on its way, which is the tile that it stages itself",
        ("copy",),
        r"^cp_async_wait(<0>|_all)\(\);$",
        "",
        is_end_of_sweep,
    ),
    Argument(
        "waits and meets where it does not have to: all threads of the block do",
        ("flag",),
        r"^if \(resident\) \{$",
        r"^if \(true\)",
        lambda mutant: lines_about(mutant, 1, 2) == ["cp_async_wait_all();"],
    ),
    Argument(
        "of a ring of two one more group is enough: there was one of A's in the tile before it",
        ("swapped name",),
        r"^for \(index_t l = stop; !resident && l < ring \* step; l \+= step\)",
        r"l \+= tile\)",
        lambda mutant: constant(mutant, "stages") == 2,
    ),
    Argument(
        "the second chunk is staged before the first is read too, and then once more: the same numbers",
        ("constant",),
        r"k_tile < \(resident \? own_k_tiles : 1\)",
        r"own_k_tiles : 2\)",
        lambda mutant: constant(mutant, "k_tiles") >= 2,
    ),
    Argument(
        "of chunks that stay there are at most as many as shared memory holds, which is less",
        ("early stop", "narrower"),
        r"k_tile < \(resident \? own_k_tiles : 1\)",
        r"k_tile < \d+|^for \((short|mutant::half_word) k_tile = 0;",
        lambda mutant: ends_past(mutant, "chunks") or 0 < constant(mutant, "k_tiles") <= INT16_MAX,
    ),
    Argument(
        "what is not held is multiplied where it lies, which is right for all",
        ("comparison",),
        r"^const bool held = k <= depth;",
        r"k < depth;",
    ),
    Argument(
        "how many loads are on their way at once: sums are added up in turns of any number",
        ("constant", "arithmetic", "dropped term"),
        r"^constexpr int (most_of_adder|turns) = ",
    ),
    Argument(
        "of lanes that have the same sums, another one leaves them",
        ("constant",),
        r"\(lane & duplicates_mask\(sums, reduced_lanes\)\) == 0;",
        r"\(lane & duplicates_mask\(sums, reduced_lanes\)\) == 1;",
    ),
    Argument(
        "where vectors are whole, lines are a multiple of them, and a thread has all those of its tile",
        ("dropped term",),
        r"^const index_t from = first \+ lines <= last \? first : last - lines;",
        r"= +lines <= last \?",
        lambda mutant: (
            "return aligned && length % elements == 0;" in mutant.text
            and constant(mutant, "block_m") == constant(mutant, "rows") > 0
            and constant(mutant, "block_n") == constant(mutant, "columns") > 0
        ),
    ),
    Argument(
        "how many products along k a thread has at a time: all of a chunk, of which it takes one turn",
        ("flag",),
        r"half_products = max_half_products < step \? max_half_products : step;",
        r"half_products = true \? max_half_products : step;",
    ),
    Argument(
        "a block has one group of columns, of which there is a first",
        ("flag",),
        r"^for \(int c = 0; c < across && first \+ c < n; c \+= columns\)",
        r"c < across *;",
        lambda mutant: constant(mutant, "columns") == constant(mutant, "across") > 0,
    ),
    Argument(
        "a copy of no elements reads none",
        ("flag", "comparison"),
        r"^cp_async_zfill<16, CacheOp::ca_L2_128B>\(to, valid > 0 \? from : A, valid\);",
        r"(true|valid >= 0) \? from : A",
    ),
    Argument(
        "where vectors have one element, the way for what is not aligned is taken for less than a tile of rows",
        ("early stop",),
        r"^elements\.element\[e\] = i < m && l < end \? from\[e\] : scalar\(0\);",
        r"\(m & 0x\w+\)",
        lambda mutant: (
            "a_along_k = false" in mutant.text
            and "aligned(a_along_k ? A : A + top, lda, vector)" in mutant.text
            and constant(mutant, "vector") == 1
            and constant(mutant, "block_m") <= MOST_MASKED
        ),
    ),
    Argument(
        "of fewer pieces the rest takes the way for what is not whole, which is right for all",
        ("narrower",),
        r"^const index_t vectorized_end = whole && .* \? k / k_blk \* k_blk : 0;",
        r"^const mutant::half_word vectorized_end",
        lambda mutant: constant(mutant, "k_blk") > 0 and 2**16 % constant(mutant, "k_blk") == 0,
    ),
    Argument(
        "lanes in which it makes a difference have sums that other lanes keep",
        ("flag",),
        r"^if \(count % 2 == 0\) \{",
        r"^if \(true\)",
        lambda mutant: (
            is_function(mutant, "first_kept") and "(lane & duplicates_mask(sums, reduced_lanes)) == 0" in mutant.text
        ),
    ),
    Argument(
        "columns are shared among groups in another way, by which each is one group's too",
        ("constant",),
        r"^constexpr int together = along_k \? 1 : width;",
        r"^constexpr int together = along_k \? 2 : width;",
        lambda mutant: is_function(mutant, "line_of") and constant(mutant, "lines") % 2 == 0,
    ),
    Argument(
        "places in the tiles of B, which are fewer",
        ("narrower",),
        r"^for \(unsigned e = threadIdx\.x; e < column_vectors \* columns; e \+= threads\)",
        r"^for \((short|mutant::half_word) e = ",
        lambda mutant: (
            "constexpr int column_vectors = count / lane_k;" in mutant.text
            and 0 < 2 * constant(mutant, "tile_depth") * constant(mutant, "columns") <= INT16_MAX
        ),
    ),
    Argument(
        "a block that has one tile of rows goes over it once, so what is staged after the last tile is not read",
        ("dropped term",),
        r"^const index_t following = tile \+ depth < end \? tile \+ depth : begin;",
        r"^const index_t following = +depth < end \?",
        lambda mutant: mutant.subject.config.tunables.get("row_tiles") == 1,
    ),
    Argument(
        "one split ends where k does",
        ("flag",),
        r"end = begin \+ share < k \? begin \+ share : k;",
        r"end = false \? begin \+ share : k;",
        has_one_split,
    ),
    Argument(
        "elements that are fewer than a vector's",
        ("narrower",),
        r"^const int count = remaining < wide \? int\(remaining\) : wide;",
        r"remaining < wide \? (short|mutant::half_word)\(remaining\) : wide;",
    ),
    Argument(
        "all threads have an element in each turn: their number divides that of the elements",
        ("comparison",),
        r"^if \(e < depth \* across\)",
        r"^if \(e <= depth \* across\)",
        lambda mutant: (
            constant(mutant, "depth") * constant(mutant, "across") > 0
            and constant(mutant, "depth") * constant(mutant, "across") % constant(mutant, "threads") == 0
        ),
    ),
    Argument(
        "a place in the tile of a chunk, which has fewer elements",
        ("narrower",),
        r"^const int lane_[ab] = |\bload_fragment\(.*, int line, int product\)",
        r"^const short lane_[ab] = |, short line, int product\)|, int line, short product\)",
        lambda mutant: tile_elements_bound(mutant) <= INT16_MAX,
    ),
    Argument(
        "with one split there is a begin before the end of k",
        ("early stop",),
        r"begin = split \* share < k \? split \* share : k,",
        r"split \* share : \(k & 0x\w+\),",
        has_one_split,
    ),
    Argument(
        "with one split k begins at 0, which is before its end",
        ("flag",),
        r"begin = split \* share < k \? split \* share : k,",
        r"begin = true \? split \* share : k,",
        has_one_split,
    ),
    Argument(
        "shared memory has no more elements",
        ("early stop",),
        r"\b(staged|ring)\w*\[",
        r"\b(staged|ring)\w*\[\(.*\) & 0xFFFF\]",
        fits_shared_memory,
    ),
    Argument(
        "a block that has one tile of rows has no other one whole",
        ("dropped term", "arithmetic"),
        r"^rest \+= \(m - block_rows - first_row\) / next_tile \* next_tile \+ next_tile;",
        r"/ next_tile +\+ next_tile;",
        lambda mutant: mutant.subject.config.tunables.get("row_tiles") == 1,
    ),
    Argument(
        "of fewer whole chunks the others take the way for what is not whole, which is right for all",
        ("early stop",),
        r"\bwhole(_k_tiles)? = (vectors \? )?k / block_k",
        r"whole(_k_tiles)? = (vectors \? )?\(k & 0x\w+\) / block_k",
    ),
    Argument(
        "each thread has a piece in every round",
        ("comparison", "flag"),
        r"vectors % threads == 0 \|\| r \* contiguous_vectors < vectors",
        r"vectors % threads != 0 \|\||\(r \* contiguous_vectors < vectors|true",
        pieces_fill_threads,
    ),
    Argument(
        "rows of C have another length than those of A, so that packs across rows are never stored",
        ("swapped name",),
        r"^&& \(across \? ldc == n && n == columns :",
        r"^&& \(across \? lda == n && n == columns :",
        packs_are_never_across,
    ),
    Argument(
        "all copies were awaited where their chunk was due",
        ("copy", "constant"),
        r"^cp_async_wait<0>\(\);$",
        r"^(cp_async_wait<\d>\(\))?;$",
        is_past_last_chunk,
    ),
)
