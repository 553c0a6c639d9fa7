"""Why a mutant that passes is no bug: each argument with the changes that it is of."""

from __future__ import annotations

import re

from tests.mutation.argued import Argument
from tests.mutation.arguments_of_configurations import OF_CONFIGURATIONS
from tests.mutation.arguments_of_edges import OF_EDGES
from tests.mutation.arguments_of_types import OF_TYPES
from tests.mutation.conditions import (
    ends_at_constant,
    ends_in_tile,
    fits_int16,
    has_other_way,
    is_fewer,
    lines_about,
    turns_with_guard,
)
from tests.mutation.sample import Mutant

_ALIGNED = r"\* sizeof\(\w+\)+ *% *\(?\w+|\b(fits|aligned)\("  # a test of whether lines begin at vectors

ARGUMENTS = (
    Argument(
        "of one column of blocks no tiles are fewer than splits",
        (),
        r"= tiles >= splits \? 1 :",
        r"= tiles >= splits \? 1 :",
        lambda mutant: mutant.subject.source.launch.splits == 1,
    ),
    Argument(
        "a load past the end of k is of zeros, and nothing multiplies them",
        ("flag", "comparison", "early stop", "arithmetic"),
        r"^if \(step \+ prefetch < (k|end)\)",
        r"^if \((true|step \+ prefetch <= \w+|step - prefetch < \w+)\)",
        lambda mutant: (
            re.search(r"step \+ q < k \?", mutant.text) is not None
            and not lines_about(mutant, 2, 3)[0].startswith("else")
        ),
    ),
    Argument(
        "what is 0 past the end of k in the other operand makes 0 of this one, a number there",
        ("constant",),
        r"= step \+ q < (k|end) \? .*: scalar\(0\);",
        r"scalar\((1|\(-1\))\)",
        lambda mutant: re.search(r"= inside && .*\? B\[.*: scalar\(0\)", mutant.text) is not None,
    ),
    Argument(
        "after a last tile that is whole, one of zeros is staged, which no turn reads",
        ("comparison",),
        r"more_tiles = tile \+ tile_depth < k",
        r"more_tiles = tile \+ tile_depth <= k",
    ),
    Argument(
        "a turn past the end, which has no steps",
        ("comparison",),
        r"for \(index_t tile = 0; tile < k;",
        r"tile <= k;",
        lambda mutant: (
            re.search(r"const index_t end = (more_tiles|tile \+ tile_depth < k) \? .* : k;", mutant.text) is not None
            and "const scalar factor" not in mutant.text
        ),
    ),
    Argument(
        "waits and meets in more turns than it has to: all threads of the block do",
        ("flag", "dropped term", "comparison"),
        r"^if \(!resident \|\| block_row == from\)",
        r"^if \(true\)",
        lambda mutant: re.match(r"cp_async_wait<.*>\(\);", lines_about(mutant, 1, 2)[0]) is not None,
    ),
    Argument(
        "how many loads are on their way at once: another configuration's number",
        ("flag", "constant", "comparison"),
        r"^constexpr int (at_once|stages|ahead) = ",
        r"^constexpr int (at_once|stages|ahead) = (?!0;)",
        is_fewer,
    ),
    Argument(
        "at the boundary both branches have the same value",
        ("comparison",),
        r"(\w+) >= (\w+) \? \2 : \1 <= 0 \? 0 : \1",
        r"(\w+) > (\w+) \? \2 : \1 <= 0 \? 0 : \1",
    ),
    Argument(
        "at the boundary both branches have the same value",
        ("comparison",),
        r"= (own_\w+) \+ (\w_blk) <= (\w) \|\| \3 < \2 \? \1 : \3 - \2;",
        r"= (own_\w+) \+ (\w_blk) < (\w) \|\| \3 < \2 \? \1 : \3 - \2;",
    ),
    Argument(
        "a turn past the end of k, of zeros in both operands",
        ("comparison",),
        r"^for \(index_t l = 0; l < k; l \+= tile_depth\)",
        r"l <= k;",
        lambda mutant: all(f"= element_at({of}, {ld}," in mutant.text for of, ld in (("A", "lda"), ("B", "ldb"))),
    ),
    Argument(
        "a turn past the last row, of which nothing is read or stored",
        ("comparison",),
        r"^for \(index_t block_row = blockIdx\.x \* index_t\(block_rows\); block_row < m; block_row \+= stride\)",
        r"block_row <= m;",
        lambda mutant: (
            "const bool within_m = block_row + block_rows <= m;" in mutant.text
            and "step + q < k && at < m ? A[" in mutant.text
            and "if (first + c < n && at < m)" in mutant.text
        ),
    ),
    Argument(
        "threads of a block have no third place: threadIdx.z is 0",
        ("arithmetic", "dropped term"),
        r"^const unsigned long long none = threadIdx\.z \| \(unsigned long long\)threadIdx\.z << 32, sign = ",
        r"= (threadIdx\.z )?[|&^]? ?(\(unsigned long long\)threadIdx\.z)? *((<<|>>) 32)?,"
        r" sign = none \^ 1ull << 63;$",
    ),
    Argument(
        "any thread of the block may do it: the others wait before and after",
        ("constant",),
        r"^if \(threadIdx\.x == 0\)",
        r"^if \(threadIdx\.x == 1\)",
        lambda mutant: (
            lines_about(mutant, -1, 0) == ["__syncthreads();"]
            and lines_about(mutant, 1, 3)
            == ["previous = atomic_inc_acq_rel(counter, count - 1);", "__syncthreads();"]
        ),
    ),
    Argument(
        "a last chunk that is past the end of k is of zeros in both operands",
        ("constant",),
        r"^const index_t k_tiles = \(k \+ block_k - 1\) / block_k, begin = split ",
        r"^const index_t k_tiles = \(k \+ block_k - 0\) / block_k, begin = split ",
        lambda mutant: mutant.subject.config.family in ("staged_symmetric_fma", "staged_symmetric_dmma"),
    ),
    Argument(
        "where many blocks share a tile the last of them can add up all: it takes longer",
        ("flag",),
        r"^if \(parts > few_parts\) \{",
        r"^if \(false\) \{",
        lambda mutant: (
            re.search(r"if \(!arrives_last\(\S+ \+ slot, parts\)\)\s+continue;\s+sum_partials\(slot,", mutant.text)
            is not None
        ),
    ),
    Argument(
        "lines of whole vectors of floats are some of those of doubles: the way for others is right for all",
        ("narrower",),
        r"\| lda \* sizeof\(scalar\)\) % 16 == 0;",
        r"\| lda \* sizeof\(float\)\) % 16 == 0;",
        lambda mutant: mutant.subject.problem.dtype_name == "f64",
    ),
    Argument(
        "what is whole is copied without regard to where k ends",
        ("swapped name", "early stop"),
        r"\b(copy|load_registers)<true>\(.*, k\);",
        r"\b(copy|load_registers)<true>\(.*, (n|m|\(k & 0x\w+\))\);",
    ),
    Argument("a turn in which no thread has an element", ("constant",), r"", r"threads - 0\)", turns_with_guard),
    Argument(
        "a turn in which no thread has an element",
        ("comparison",),
        r"^for \(int round = 0; round < \(count \+ threads - 1\) / threads; \+\+round\)",
        r"round <= ",
        lambda mutant: (
            lines_about(mutant, 1, 3) == ["const int e = round * threads + threadIdx.x;", "if (e < count)"]
        ),
    ),
    Argument(
        "an array of more elements than are used",
        ("arithmetic", "dropped term"),
        r"^scalar part\[across / dim_across \* \(along / dim\)\];",
        r"^scalar part\[across +(/ dim_across \+|\*|\+) *\(along / dim\)\];",
    ),
    Argument(
        "a sweep over no rows",
        ("comparison",),
        r"^if \(rest > first_row\)$",
        r"^if \(rest >= first_row\)$",
    ),
    Argument("the products of a tile are fewer", ("early stop",), r"; l < stop;", r"&& l < \d+", ends_in_tile),
    Argument(
        "what is held has at most `depth` products, which is less",
        ("early stop",),
        r"load_a\w*\(a, A, lda, .*\bk\);|copy_b\(staged, B, ldb, k,",
        r"\(k & 0xF+\)",
        lambda mutant: "const bool held = k <= depth;" in mutant.text and "if (held) {" in lines_about(mutant, -6, 0),
    ),
    Argument(
        "a vector of one element is an element",
        ("flag",),
        r"^if \(decltype\(whole_b\)::value\)",
        r"^if \((true|false)\)",
        lambda mutant: re.search(r"constexpr int (.*, )?width = 1\b", mutant.text) is not None,
    ),
    Argument(
        "a sum with a number above 0, or an address, is never 0, so vectors are never taken for aligned",
        ("dropped term", "arithmetic"),
        r"\b(A|B|C|first|X)\) \| .*\) % .* == 0;",
        r"\b(A|B|C|first|X)\) \| .*\) +(\+ .*)?== 0;",
    ),
    Argument(
        "a sum with the bytes of an element is no multiple of a vector's, so vectors are never taken for aligned",
        ("dropped term",),
        r"\b(A|B|C|X)\) \| ld[abc]? \* sizeof\(scalar\)\) % 16 == 0;",
        r"\b(A|B|C|X)\) \| +sizeof\(scalar\)\) % 16 == 0;",
        lambda mutant: mutant.subject.problem.dtype.element_bytes < 16,
    ),
    Argument(
        "a tile on the diagonal is computed as one beside it, whose two panels are the same here",
        ("flag", "comparison"),
        r"^if \(first_row == first_column\) \{  // on the diagonal",
        r"^if \(false\)",
    ),
    Argument(
        "of whole panels there are so many, and the tail is what they leave: only how work is shared among blocks",
        ("constant", "comparison", "flag"),
        r"^work\.panels = \(.*\) / share;",
        r"^work\.panels = \(.*k_tiles : .*\) / share;",
    ),
    Argument(
        "a block that has one tile of rows goes over it once, so nothing was staged before",
        ("barrier",),
        r"^__syncthreads\(\);  // what was staged before is no longer read",
        "",
        lambda mutant: mutant.subject.config.tunables.get("row_tiles") == 1,
    ),
    Argument(
        "where several blocks share a tile it has several k tiles, and its tail none or as many as `least_tail`",
        ("constant", "comparison"),
        r"^const int parts = work\.panels \+ \(work\.tail_k_tiles > 0 \?",
        r"\(work\.tail_k_tiles > 1 \?",
    ),
    Argument(
        "the shared memory of a block has the same address in every launch",
        ("state",),
        r"= reinterpret_cast<\w+ \*>\(shared_bytes\);",
    ),
    Argument(
        "of a matrix times itself B is A",
        ("swapped name",),
        r"\b(lda|ldb|A|B)\b",
        "",
        lambda mutant: mutant.subject.problem.is_gram and mutant.edit.replacement in ("A", "B", "lda", "ldb"),
    ),
    Argument(
        "only how work is shared among blocks",
        (),
        r"tiles >= splits - splits",
    ),
    Argument(
        "whether a line begins at a vector depends on the lowest bits alone",
        ("early stop", "narrower"),
        _ALIGNED,
        r"\(ld[abc] & 0x|reinterpret_cast<unsigned>",
    ),
    Argument(
        "an extent of fewer bits that is long enough is so whole; where it is refused, the way for the rest is right",
        ("early stop",),
        r"\b(vectors|whole|within|is_valid)\w* ="
        r"|^if \((whole_vectors && first_row \+ block_rows|step \+ prefetch) <= [mk]\)",
        r"(\([mnk] & 0x\w+\) >= \w+|<= \([mnk] & 0x\w+\)) *(&&|;|\)( \{)?$)",
    ),
    Argument(
        "vectors are never taken for aligned: elements one by one are right for all",
        ("constant",),
        _ALIGNED,
        r"== (1|\(-1\));",
    ),
    Argument(
        "the way for what is not aligned or not whole is right for all",
        ("flag",),
        r"^(?!const index_t last = ).*(aligned|vectors|whole|valid >=)",
        r"\(false\)|= false",
        has_other_way,
    ),
    Argument(
        "what is whole exactly takes the way for what is not, which is right for all",
        ("comparison",),
        r"(step|tile|row|first)\w* \+ \w+ <= |^const bool whole = m >= m_blk && n >= n_blk;",
        r"(step|tile|row|first)\w* \+ \w+ < |= (m > m_blk && n >= n_blk|m >= m_blk && n > n_blk);",
    ),
    Argument(
        "a turn past the end, in which another condition keeps everything from being read or stored",
        ("comparison",),
        r"for \(.*first\w*( \+ c)? < n",
        r"first\w*( \+ c)? <= n",
    ),
    Argument(
        "only the order in which a GPU's compiler puts loads",
        ("barrier",),
        r"keeps the compiler from",
    ),
    Argument(
        "a finite number and a clamped one are 0 where the number is",
        ("value",),
        "",
        r"mutant::(clamped|finite)\(beta\) [!=]= 0",
    ),
    Argument(
        "an int counts what a block has, and here that is less than 2**15",
        ("narrower",),
        r"\bint\b",
        r"\bshort\b",
        fits_int16,
    ),
    Argument(
        "strips of a warp are few: their sums are in registers",
        ("narrower",),
        r"^for \(int s = first; s <= o / 2; \+\+s\)",
        r"^for \(short s = first;",
        lambda mutant: re.search(r"constexpr int first = decltype\(warp\)::value;", mutant.text) is not None,
    ),
    Argument("a loop that ends at a constant below 2**15", ("narrower",), r"\bfor \(", "", ends_at_constant),
    Argument(
        "zeros stand past the end of k in both operands, as far as a step reaches",
        ("flag",),
        r"end = tile \+ \w+ < k \?",
        r"end = true \?",
    ),
    Argument(
        "threads past the tile read elements of B that they do not stage",
        ("flag",),
        r"inside = threadIdx.x < tile_depth && l < k",
        r"inside =  ?l < k",
    ),
    Argument(
        "an element of C past the last column, which is never stored",
        ("constant", "value", "narrower"),
        r"first \+ c < n \? row_of_C\[.*\] : scalar\(0\)",
        r"scalar\((1|\(-1\))\)",
    ),
    Argument(
        "all threads have an element in each turn: their number divides that of the elements",
        ("flag", "comparison"),
        r"if \(e < count\)",
        "",
        lambda mutant: mutant.subject.source.launch.rows_per_block**2 % mutant.subject.source.launch.threads == 0,
    ),
)
EVERY_ARGUMENT = (*ARGUMENTS, *OF_CONFIGURATIONS, *OF_EDGES, *OF_TYPES)


def argument(mutant: Mutant) -> str:
    """Why the mutant is equivalent; "" where nothing in the tables says so."""
    for one in EVERY_ARGUMENT:
        if one.is_of(mutant):
            return one.because
    return ""
