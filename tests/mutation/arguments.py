"""Why a mutant that passes is no bug: each argument with the changes that it is of."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tests.mutation.sample import Mutant

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


ARGUMENTS = (
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
        "an address is never 0, so vectors are never taken for aligned",
        ("dropped term",),
        r"\([ABC]\) \| .*\) % \w+ == 0;",
        r"\([ABC]\) \| .*\) +== 0;",
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


def unseen(mutant: Mutant) -> str:
    """Why a host cannot see what a GPU may; "" where it could.

    It runs one block after another, so a barrier before a block counts itself as done does nothing there.
    """
    after = mutant.text.split("\n")[mutant.line : mutant.line + 2]
    counts = mutant.edit.operator == "barrier" and any("count_up(" in line for line in after)
    return "the host runs one block after another" if counts else ""
