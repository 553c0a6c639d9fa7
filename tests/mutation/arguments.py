"""Why a mutant that passes is no bug: each argument with the changes that it is of."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tests.mutation.baseline import LONG
from tests.mutation.edits import constants
from tests.mutation.sample import Mutant
from tests.mutation.subjects import Subject, text_of
from tsm2_tune.generator.probes import long_problems
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.full import ON_GPU, Extent

INT16_MAX = 2**15 - 1
_ALIGNED = r"\* sizeof\(\w+\)+ *% *\(?\w+|\b(fits|aligned)\("  # a test of whether lines begin at vectors


@dataclass(frozen=True, slots=True)
class Argument:
    """`because` holds where `before` is found in the line and `after` in what it became, by these operators."""

    because: str
    operators: tuple[str, ...]
    before: str = ""
    after: str = ""
    holds: Callable[[Mutant], bool] = lambda mutant: True


def _fits_int16(mutant: Mutant) -> bool:
    """Whether all that a block of the mutant's counts, which is what an `int` does here, has 15 bits."""
    source, dtype = mutant.subject.source, mutant.subject.problem.dtype
    launch = source.launch
    tile = launch.rows_per_block * max(launch.columns_per_block, 1)
    counted = (launch.threads, launch.smem_bytes // dtype.element_bytes, tile, launch.splits)
    return mutant.edit.replacement == "short" and max(counted) <= INT16_MAX and "int" in mutant.before


def _ends_at_constant(mutant: Mutant) -> bool:
    """Whether a loop's variable got a narrower type, and ends at a number that all types hold."""
    found = re.search(r"for \((?:const )?\w+ (\w+) = \w+; \1 <=? (\w+);", mutant.after)
    return found is not None and re.search(rf"constexpr int (\w+ = [^;]+, )*{found[2]}\b", mutant.text) is not None


def _meets_at_products(mutant: Mutant) -> bool:
    """Whether lanes that have multiplied have met: tensor cores take the operands of all of a warp."""
    return "__mma_m" in mutant.text or "mma_sync" in mutant.text or "mma.sync" in mutant.text


def _turns_with_guard(mutant: Mutant) -> bool:
    """Whether a thread takes part in a turn of the changed loop only where it has an element."""
    head = r"for \(int (\w+) = 0; \1 < \((.+) \+ threads - [01]\) / threads; \+\+\1\) \{\s*"
    guarded = re.compile(head + r"const int e = \1 \* threads \+ threadIdx\.x[^\n]*\s*if \(e < \2\)")
    return guarded.match("\n".join(_from(mutant, 0, 4))) is not None


def _from(mutant: Mutant, first: int, last: int) -> list[str]:
    """Lines of the mutant about the changed one, which is 0, without what they begin and end with."""
    lines = mutant.text.split("\n")[mutant.line - 1 + first : mutant.line - 1 + last]
    return [line.strip() for line in lines]


def _ends_in_tile(mutant: Mutant) -> bool:
    """Whether a loop over the products of a staged tile is stopped past the end of the longest tile."""
    bound, depth = re.search(r"&& l < (\d+)", mutant.after), re.search(r"int tile_depth = (\d+)", mutant.text)
    is_tile = "const index_t stop = tile + depth < end ? depth : end - tile;" in mutant.text
    return is_tile and bound is not None and depth is not None and int(bound[1]) >= 2 * int(depth[1])


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
        ("flag", "comparison", "early stop"),
        r"^if \(step \+ prefetch < (k|end)\)",
        r"^if \((true|step \+ prefetch <= \w+)\)",
        lambda mutant: re.search(r"step \+ q < k \?", mutant.text) is not None,
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
        r"more_tiles = tile \+ tile_rows < k",
        r"more_tiles = tile \+ tile_rows <= k",
    ),
    Argument(
        "what is staged after the last tile is staged over before it is read",
        ("flag",),
        r"^if \(more_tiles\)",
        r"^if \(true\)",
        lambda mutant: _from(mutant, 1, 2) == ["stage_b(staged, next_b);"],
    ),
    Argument(
        "a turn past the end, which has no steps",
        ("comparison",),
        r"for \(index_t tile = 0; tile < k;",
        r"tile <= k;",
        lambda mutant: (
            "const index_t end = more_tiles ? tile + tile_rows : k;" in mutant.text
            and "const scalar factor" not in mutant.text
        ),
    ),
    Argument(
        "waits and meets in more turns than it has to: all threads of the block do",
        ("flag", "dropped term", "comparison"),
        r"^if \(!resident \|\| block_row == from\)",
        r"^if \(true\)",
        lambda mutant: re.match(r"await_groups<.*>\(\);", _from(mutant, 1, 2)[0]) is not None,
    ),
    Argument(
        "how many loads are on their way at once: another configuration's number",
        ("flag", "constant", "comparison"),
        r"^constexpr int (at_once|stages) = ",
        r"^constexpr int (at_once|stages) = (?!0;)",
    ),
    Argument(
        "at the boundary both branches have the same value",
        ("comparison",),
        r"(\w+) >= (\w+) \? \2 : \1 <= 0 \? 0 : \1",
        r"(\w+) > (\w+) \? \2 : \1 <= 0 \? 0 : \1",
    ),
    Argument(
        "what is whole is copied without regard to where k ends",
        ("swapped name", "early stop"),
        r"\b(copy|fetch)<true>\(.*, k\);",
        r"\b(copy|fetch)<true>\(.*, (n|m|\(k & 0x\w+\))\);",
    ),
    Argument("a turn in which no thread has an element", ("constant",), r"", r"threads - 0\)", _turns_with_guard),
    Argument("the products of a tile are fewer", ("early stop",), r"; l < stop;", r"&& l < \d+", _ends_in_tile),
    Argument(
        "what is held has at most `depth` products, which is less",
        ("early stop",),
        r"load_a\w*\(a, A, lda, .*\bk\);|stage_b\(staged, B, ldb, k,",
        r"\(k & 0xF+\)",
        lambda mutant: "const bool held = k <= depth;" in mutant.text and "if (held) {" in _from(mutant, -6, 0),
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
        "a tile on the diagonal is computed as one beside it, whose two panels are the same here",
        ("flag", "comparison"),
        r"^if \(first_row == first_column\) \{  // on the diagonal",
        r"^if \(false\)",
    ),
    Argument(
        "of whole panels there are so many, and the tail is what they leave: only how work is shared among blocks",
        ("constant", "comparison", "flag"),
        r"^work\.panels = \(.*\) / share;",
        r"^work\.panels = \(.*chunks : .*\) / share;",
    ),
    Argument(
        "a block that has one tile of rows goes over it once, so nothing was staged before",
        ("barrier",),
        r"^__syncthreads\(\);  // what was staged before is no longer read",
        "",
        lambda mutant: mutant.subject.config.tunables.get("row_tiles") == 1,
    ),
    Argument(
        "where several blocks share a tile it has several chunks, and its tail none or as many as `least_tail`",
        ("constant", "comparison"),
        r"^const int parts = work\.panels \+ \(work\.tail_chunks > 0 \?",
        r"\(work\.tail_chunks > 1 \?",
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
        r"\b(vectors|whole|inside)\w* =",
        r"(\([mnk] & 0x\w+\) >= \w+|<= \([mnk] & 0x\w+\)) *(&&|;)",
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
        r"aligned|vectors|whole|inside >=",
        r"\(false\)|= false",
    ),
    Argument(
        "what is whole exactly takes the way for what is not, which is right for all",
        ("comparison",),
        r"(step|tile|row|first)\w* \+ \w+ <= ",
        r"(step|tile|row|first)\w* \+ \w+ < ",
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
        _fits_int16,
    ),
    Argument("a loop that ends at a constant below 2**15", ("narrower",), r"\bfor \(", "", _ends_at_constant),
    Argument(
        "zeros stand past the end of k in both operands, as far as a step reaches",
        ("flag",),
        r"end = tile \+ \w+ < k \?",
        r"end = true \?",
    ),
    Argument(
        "threads past the tile read elements of B that they do not stage",
        ("flag",),
        r"inside = threadIdx.x < tile_rows && l < k",
        r"inside =  ?l < k",
    ),
    Argument(
        "an element of C past the last column, which is never stored",
        ("constant", "value", "narrower"),
        r"first \+ c < n \? row_of_C\[.*\] : scalar\(0\)",
        r"scalar\((1|\(-1\))\)",
    ),
    Argument(
        "each thread adds up the vectors that it left itself, where a vector has one element",
        ("barrier",),
        r"^__syncthreads\(\);$",
        "",
        lambda mutant: "adders = 1," in mutant.text and "static constexpr int width = 1" in mutant.text,
    ),
    Argument(
        "all threads have an element in each turn: their number divides that of the elements",
        ("flag", "comparison"),
        r"if \(e < count\)",
        "",
        lambda mutant: mutant.subject.source.launch.rows_per_block**2 % mutant.subject.source.launch.threads == 0,
    ),
)


def argument(mutant: Mutant) -> str:
    """Why the mutant is equivalent; "" where nothing in the table says so."""
    for one in ARGUMENTS:
        is_of = not one.operators or mutant.edit.operator in one.operators
        fits = is_of and re.search(one.before, mutant.before)
        if fits and re.search(one.after, mutant.after) and one.holds(mutant):
            return one.because
    return ""


def _computes(mutant: Mutant) -> bool:
    """Whether a variable that was made static begins with what is known when the kernel runs."""
    value = re.match(r"static (?:const )?\w+ \*?\w+ = (.*)", mutant.after)
    known = constants(text_of(mutant.subject))
    return value is not None and not set(re.findall(r"[A-Za-z_]\w*", value[1])) <= known


def _is_too_long(mutant: Mutant) -> bool:
    """Whether an extent was cut to so many bits that only a GPU is given a longer one."""
    cut = re.search(r"\(([mnk]) & (0x\w+)\)", mutant.edit.replacement)
    if cut is None:
        return False
    longest = [
        max((getattr(one, cut[1]) for one in _long_problems(mutant.subject, extent)), default=0)
        for extent in (LONG, ON_GPU)
    ]
    return longest[0] <= int(cut[2], 16) < longest[1]


def _long_problems(subject: Subject, extent: Extent) -> tuple[Problem, ...]:
    return long_problems(subject.config, subject.problem, most_products=extent.long_products)


def unseen(mutant: Mutant) -> str:
    """Why a host cannot see what a GPU may; "" where it could."""
    if mutant.edit.operator == "state" and _computes(mutant):
        return "nvcc refuses a static variable whose value is computed"
    if _is_too_long(mutant):
        return "an extent so long that the full verification tries it on a GPU alone"
    if mutant.edit.operator != "barrier":
        return ""
    # It runs one block after another, so a barrier before a block counts itself as done does nothing there.
    if any("count_up(" in line or "add<true>(came)" in line for line in _from(mutant, 1, 4)):
        return "the host runs one block after another"
    is_of_a_warp = mutant.before.startswith("__syncwarp") or (
        mutant.before.startswith("meet();") and mutant.subject.config.tunables.get("team") == 32
    )
    if is_of_a_warp and _meets_at_products(mutant):
        return "the host's lanes meet at each product of tensor cores, after they have read"
    return ""
