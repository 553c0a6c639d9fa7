"""Why a mutant that passes is no bug: arguments about many mutants here, reasons of single ones in equivalent.txt.

The file has those among the first 10,000 mutants of seed 1. Others that survive are to be read, and added.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.mutation.operators import EXTENTS, constants
from tests.mutation.sample import Mutant
from tests.mutation.subjects import text_of

PATH = Path(__file__).with_name("equivalent.txt")
INT16_MAX = 2**15 - 1
ALIGNED = r"\* sizeof\(\w+\)+ *% *\(?\w+|\b(fits|aligned)\("  # a test of whether lines begin at vectors


def lines_about(mutant: Mutant, first: int, last: int) -> list[str]:
    """Lines of the mutant about the changed one, which is 0, without what they begin and end with."""
    lines = mutant.text.split("\n")[mutant.line - 1 + first : mutant.line - 1 + last]
    return [line.strip() for line in lines]


def constant(mutant: Mutant, name: str) -> int:
    """The number that the subject's text gives a constant; 0 where it gives none."""
    found = re.search(rf"constexpr int (?:\w+ = [^;]+, )*{name} = (\d+)\b", text_of(mutant.subject).source)
    return int(found[1]) if found else 0


def fits_int16(mutant: Mutant) -> bool:
    """Return whether everything that a block of the mutant counts in an `int` fits into 15 bits.

    No int that is computed from an extent or a place does.
    """
    declared = re.findall(r"\bindex_t (\w+)|\bindex_t \w+ = [^;]*, (\w+) =", mutant.text)
    large = {*EXTENTS, "gridDim", "blockIdx"} | {name for names in declared for name in names if name}
    if set(re.findall(r"[A-Za-z_]\w*", mutant.before)) & large:
        return False
    launch, dtype = mutant.subject.source.launch, mutant.subject.problem.dtype
    tile = launch.rows_per_block * max(launch.columns_per_block, 1)
    counted = (launch.threads, launch.smem_bytes // dtype.element_bytes, tile, launch.splits)
    return mutant.edit.replacement == "short" and max(counted) <= INT16_MAX and "int" in mutant.before


def ends_at_constant(mutant: Mutant) -> bool:
    """Return whether a loop's variable got a narrower type and ends at a number that all types hold."""
    found = re.search(r"for \((?:const )?\w+ (\w+) = \w+; \1 <=? (\w+(?: \* \w+)*);", mutant.after)
    names = found[2].split(" * ") if found else []
    are_constant = [re.search(rf"constexpr int (\w+ = [^;]+, )*{name}\b", mutant.text) for name in names]
    return (
        bool(names) and all(are_constant) and math.prod(max(constant(mutant, one), 1) for one in names) <= INT16_MAX
    )


def has_one_element(mutant: Mutant) -> bool:
    """Return whether a vector of the operand is one element."""
    in_16_bytes = "int width = 16 / sizeof(scalar);" in mutant.text
    vector_bytes = constant(mutant, "vector_bytes") or 16 * in_16_bytes
    return vector_bytes == mutant.subject.problem.dtype.element_bytes


def is_function(mutant: Mutant, name: str) -> bool:
    """Return whether the changed line is in the function of this name."""
    before = mutant.text.split("\n")[: mutant.line]
    start = max((i for i, line in enumerate(before) if line.startswith("}")), default=0)
    return any(re.match(rf"\w.*\b{name}\(", line) for line in before[start:])


def is_at_edge_of_held(mutant: Mutant) -> bool:
    is_held = mutant.subject.config.family == "resident_b_fma_held"
    return is_held and has_one_element(mutant) and is_function(mutant, "load_a_at_edge")


def has_other_way(mutant: Mutant) -> bool:
    """Return whether the text does or chooses something else if the condition is false."""
    return "?" in mutant.before or any("else" in line for line in lines_about(mutant, 1, 15))


def is_end_of_sweep(mutant: Mutant) -> bool:
    """Return whether the wait is at the end of a sweep after which nothing remains in shared memory."""
    behind = " ".join(line.partition("//")[0] for line in lines_about(mutant, 2, 1000))
    is_whole = mutant.subject.source.launch.splits == 1
    is_left = is_whole or re.search(r"\b(staged|shared_bytes|block_sums|ring\w*)\b", behind) is None
    return lines_about(mutant, 1, 2) == ["};"] and is_left and "const index_t following" in mutant.text


def is_past_last_chunk(mutant: Mutant) -> bool:
    """Return whether all copies were awaited earlier: each chunk's, and none begins after the last chunk."""
    if lines_about(mutant, 1, 2) != ["__syncthreads();  // the rings are no longer read: the sums take their place"]:
        return False
    text = " ".join(mutant.text.split())
    edges = ("} else if (next < k_tiles) {", "else if (next < k_tiles) copy_edge_tile(")
    if "cp_async_wait<stages - 2>();" in text and any(edge in text for edge in edges):
        return True
    return "copy_edge_tile(a, edge); cp_async_fence(); cp_async_wait<0>();" in text and "copy_next" not in text


class Argument(NamedTuple):
    """`because` holds where `before` is found in the line and `after` in what it became, by these operators."""

    because: str
    operators: str
    before: str = ""
    after: str = ""
    holds: Callable[[Mutant], bool] = lambda mutant: True

    def is_of(self, mutant: Mutant) -> bool:
        """Return whether the argument holds for this mutant."""
        if self.operators and mutant.edit.operator not in self.operators.split(", "):
            return False
        found = re.search(self.before, mutant.before) and re.search(self.after, mutant.after)
        return found is not None and self.holds(mutant)


ARGUMENTS = (
    Argument("only the order in which a GPU's compiler puts loads", "barrier", r"keeps the compiler from"),
    Argument("an int counts what a block has, and here that is less than 2**15",
             "narrower", r"\bint\b", r"\bshort\b", fits_int16),
    Argument("a loop that ends at a constant below 2**15", "narrower", r"\bfor \(", "", ends_at_constant),
    Argument("whether a line begins at a vector depends on the lowest bits alone",
             "early stop, narrower", ALIGNED, r"\(ld[abc] & 0x|reinterpret_cast<unsigned>"),
    Argument("vectors are never taken for aligned: elements one by one are right for all",
             "constant", ALIGNED, r"== (1|\(-1\));"),
    Argument("a sum with a number above 0, or an address, is never 0, so vectors are never taken for aligned",
             "dropped term, arithmetic", r"\b(A|B|C|first|X)\) \| .*\) % .* == 0;",
             r"\b(A|B|C|first|X)\) \| .*\) +(\+ .*)?== 0;"),
    Argument("the way for what is not aligned or not whole is right for all",
             "flag", r"^(?!const index_t last = ).*(aligned|vectors|whole|valid >=)", r"\(false\)|= false",
             has_other_way),
    Argument("what is whole exactly takes the way for what is not, which is right for all",
             "comparison", r"(step|tile|row|first)\w* \+ \w+ <= |^const bool whole = m >= m_blk && n >= n_blk;",
             r"(step|tile|row|first)\w* \+ \w+ < |= (m > m_blk && n >= n_blk|m >= m_blk && n > n_blk);"),
    Argument("an extent of fewer bits that is long enough is so whole; otherwise the way for the rest is right",
             "early stop", r"\b(vectors|whole|within|is_valid)\w* ="
             r"|^if \((whole_vectors && first_row \+ block_rows|step \+ prefetch) <= [mk]\)",
             r"(\([mnk] & 0x\w+\) >= \w+|<= \([mnk] & 0x\w+\)) *(&&|;|\)( \{)?$)"),
    Argument("of fewer whole chunks the others take the way for what is not whole, which is right for all",
             "early stop", r"\bwhole(_k_tiles)? = (vectors \? )?k / block_k",
             r"whole(_k_tiles)? = (vectors \? )?\(k & 0x\w+\) / block_k"),
    Argument("a block that has one tile of rows goes over it once, so nothing was staged before",
             "barrier", r"^__syncthreads\(\);  // what was staged before is no longer read", "",
             lambda mutant: mutant.subject.config.tunables.get("row_tiles") == 1),
    Argument("the next sweep waits for what this one left on its way, which is the tile that it stages itself",
             "copy", r"^cp_async_wait(<0>|_all)\(\);$", "", is_end_of_sweep),
    Argument("all copies were awaited where their chunk was due",
             "copy, constant", r"^cp_async_wait<0>\(\);$", r"^(cp_async_wait<\d>\(\))?;$", is_past_last_chunk),
    Argument("the shared memory of a block has the same address in every launch",
             "state", r"= reinterpret_cast<\w+ \*>\(shared_bytes\);"),
    Argument("of a matrix times itself B is A", "swapped name", r"\b(lda|ldb|A|B)\b", "",
             lambda mutant: mutant.subject.problem.is_gram and mutant.edit.replacement in ("A", "B", "lda", "ldb")),
    Argument("where vectors have one element, no row is at an edge", "", holds=is_at_edge_of_held),
    Argument("sums of products of f16 are multiples of 2**-48, none of them subnormal",
             "value", "", r"mutant::flushed\((sum|total|block_sums|sent|other_sum)\b",
             lambda mutant: mutant.subject.problem.dtype_name == "f16" and "alpha" not in mutant.before),
)  # fmt: skip


@cache
def single() -> dict[str, str]:
    """Map the line that identifies a mutant in equivalent.txt to the reason above it."""
    found, because = dict[str, str](), ""
    for line in PATH.read_text().splitlines():
        if line.startswith("# "):
            because = line.removeprefix("# ")
        elif line:
            found[line] = because
    return found


def identity(mutant: Mutant) -> str:
    """The mutant's line in equivalent.txt."""
    return f"{mutant.subject.name} | {mutant.edit.operator} | {mutant.before} | {mutant.after}"


def argument(mutant: Mutant) -> str:
    """Why the mutant is equivalent; "" where nothing here says so."""
    because = (one.because for one in ARGUMENTS if one.is_of(mutant))
    return next(because, single().get(identity(mutant), ""))


def refused(mutant: Mutant) -> str:
    """Why nvcc does not take what a host's compiler takes; "" where it does."""
    value = re.match(r"static (?:const )?\w+ \*?\w+ = (.*)", mutant.after)
    names = set(re.findall(r"[A-Za-z_]\w*", value[1])) if value is not None else set[str]()
    if mutant.edit.operator == "state" and not names <= constants(text_of(mutant.subject)):
        return "nvcc refuses a static variable whose value is computed"
    short = re.match(r"(?:short|mutant::half_word) (\w+);", mutant.after)
    if short is not None and f'"=r"({short[1]})' in mutant.text:
        return "nvcc refuses 16 bits for an operand of 32 of an instruction"
    return ""


def unseen(mutant: Mutant) -> str:
    """Why a host cannot see what a GPU may; "" where it could."""
    if mutant.before == "__syncwarp();  // every lane has read its own" and "mma.sync" in mutant.text:
        return "on a host products wait for every lane of the warp, which has read what it needs then"
    if mutant.before == "wgmma_wait<0>();":
        return "a host's products are done when they are begun"
    if mutant.edit.operator == "narrower" and re.search(r"\* \((int|unsigned)\)\(?ld[abc]\b", mutant.after):
        return "offsets past 2**31 elements, which the full verification tries on a GPU alone"
    return ""
