"""Conditions of arguments on a mutant: facts of its subject and of the lines about the change."""

from __future__ import annotations

import math
import re

from tests.mutation.sample import Mutant
from tests.mutation.structure import EXTENTS
from tests.mutation.subjects import text_of

INT16_MAX = 2**15 - 1
MOST_MASKED = 0xFF  # largest extent that the narrowest mask leaves whole
MOST_PADDING = 64  # elements of a line in shared memory


def fits_int16(mutant: Mutant) -> bool:
    """Return whether everything that a block of the mutant counts in an `int` fits into 15 bits.

    No int that is computed from an extent or a place does.
    """
    if set(re.findall(r"[A-Za-z_]\w*", mutant.before)) & large_names(mutant):
        return False
    source, dtype = mutant.subject.source, mutant.subject.problem.dtype
    launch = source.launch
    tile = launch.rows_per_block * max(launch.columns_per_block, 1)
    counted = (launch.threads, launch.smem_bytes // dtype.element_bytes, tile, launch.splits)
    return mutant.edit.replacement == "short" and max(counted) <= INT16_MAX and "int" in mutant.before


def ends_at_constant(mutant: Mutant) -> bool:
    """Return whether a loop's variable got a narrower type and ends at a number that all types hold."""
    found = re.search(r"for \((?:const )?\w+ (\w+) = \w+; \1 <=? (\w+(?: \* \w+)*);", mutant.after)
    if found is None:
        return False
    names = found[2].split(" * ")
    known = math.prod(max(constant(mutant, name), 1) for name in names)
    return known <= INT16_MAX and all(_is_constant(mutant, name) for name in names)


def _is_constant(mutant: Mutant, name: str) -> bool:
    return re.search(rf"constexpr int (\w+ = [^;]+, )*{name}\b", mutant.text) is not None


def turns_with_guard(mutant: Mutant) -> bool:
    """Return whether each iteration of the changed loop is guarded by a test that the thread has an element."""
    head = r"for \(int (\w+) = 0; \1 < \((.+) \+ threads - [01]\) / threads; \+\+\1\) \{\s*"
    guarded = re.compile(head + r"const int e = \1 \* threads \+ threadIdx\.x[^\n]*\s*if \(e < \2\)")
    return guarded.match("\n".join(lines_about(mutant, 0, 4))) is not None


def lines_about(mutant: Mutant, first: int, last: int) -> list[str]:
    """Lines of the mutant about the changed one, which is 0, without what they begin and end with."""
    lines = mutant.text.split("\n")[mutant.line - 1 + first : mutant.line - 1 + last]
    return [line.strip() for line in lines]


def ends_in_tile(mutant: Mutant) -> bool:
    """Return whether a loop over the products of a staged tile gets a bound past the end of the longest tile."""
    bound, depth = re.search(r"&& l < (\d+)", mutant.after), re.search(r"int tile_depth = (\d+)", mutant.text)
    is_tile = "const index_t stop = tile + depth < end ? depth : end - tile;" in mutant.text
    return is_tile and bound is not None and depth is not None and int(bound[1]) >= 2 * int(depth[1])


def large_names(mutant: Mutant) -> set[str]:
    """Return the names that may be as large as an extent, as far as declarations tell."""
    declared = re.findall(r"\bindex_t (\w+)|\bindex_t \w+ = [^;]*, (\w+) =", mutant.text)
    return {*EXTENTS, "gridDim", "blockIdx"} | {name for names in declared for name in names if name}


def constant(mutant: Mutant, name: str) -> int:
    """The number that the subject's text gives a constant; 0 where it gives none."""
    found = re.search(rf"constexpr int (?:\w+ = [^;]+, )*{name} = (\d+)\b", text_of(mutant.subject).source)
    return int(found[1]) if found else 0


def has_one_split(mutant: Mutant) -> bool:
    return mutant.subject.source.launch.splits == 1


def is_16_bits(mutant: Mutant) -> bool:
    return mutant.subject.problem.dtype.element_bytes == 2


def has_one_element(mutant: Mutant) -> bool:
    """Return whether a vector of the operand is one element."""
    in_16_bytes = "int width = 16 / sizeof(scalar);" in mutant.text
    vector_bytes = constant(mutant, "vector_bytes") or 16 * in_16_bytes
    return vector_bytes == mutant.subject.problem.dtype.element_bytes


def is_fewer(mutant: Mutant) -> bool:
    """Return whether a constant became smaller, but not too small for any wait."""
    number = re.search(r" = (\d+);", mutant.before), re.search(r" = (\d+);", mutant.after)
    if number[0] is None or number[1] is None:
        return True  # chosen by a condition, among numbers that it is made for
    least = 2 if "stages - 2" in mutant.text else 1
    return least <= int(number[1][1]) <= int(number[0][1])


def has_other_way(mutant: Mutant) -> bool:
    """Return whether the text does or chooses something else if the condition is false."""
    return "?" in mutant.before or any("else" in line for line in lines_about(mutant, 1, 15))


def fits_shared_memory(mutant: Mutant) -> bool:
    """Return whether 16 bits can index every element of a block's shared memory."""
    return mutant.subject.source.launch.smem_bytes // mutant.subject.problem.dtype.element_bytes <= 2**16


def ends_past(mutant: Mutant, name: str) -> bool:
    """Return whether the new bound of the loop is at least the constant of this name."""
    bound = re.search(r"&& \w+ < (\d+)", mutant.after)
    return bound is not None and 0 < constant(mutant, name) <= int(bound[1])


def pieces_fill_threads(mutant: Mutant) -> bool:
    """Return whether the number of pieces in a chunk of either operand is a multiple of the threads."""
    width = 16 // mutant.subject.problem.dtype.element_bytes
    block_k, threads = constant(mutant, "block_k"), constant(mutant, "threads")
    lines = constant(mutant, "block_m"), constant(mutant, "block_n")
    return all(one * block_k // width % threads == 0 and one * block_k > 0 for one in lines)


def implies_alignment(mutant: Mutant) -> bool:
    """Return whether a leading dimension in bytes that is a multiple of a vector's bytes aligns all lines."""
    return mutant.subject.problem.dtype.element_bytes in (4, 8, 16)


def sums_are_plain_f32(mutant: Mutant) -> bool:
    """Return whether the type allows rounded operands, but the kernel rounds none."""
    return mutant.subject.problem.dtype_name == "tf32" and "mma" not in mutant.text


def is_end_of_sweep(mutant: Mutant) -> bool:
    """Return whether the wait is at the end of a sweep after which nothing remains in shared memory."""
    behind = " ".join(line.partition("//")[0] for line in lines_about(mutant, 2, 1000))
    is_left = has_one_split(mutant) or re.search(r"\b(staged|shared_bytes|block_sums|ring\w*)\b", behind) is None
    return lines_about(mutant, 1, 2) == ["};"] and is_left and "const index_t following" in mutant.text


def is_past_last_chunk(mutant: Mutant) -> bool:
    """Return whether all copies were awaited earlier: each chunk's, and none begins after the last chunk."""
    if lines_about(mutant, 1, 2) != ["__syncthreads();  // the rings are no longer read: the sums take their place"]:
        return False
    text = " ".join(mutant.text.split())
    awaits_each = "cp_async_wait<stages - 2>();" in text and "} else if (next < k_tiles) {" in text
    awaits_each |= "cp_async_wait<stages - 2>();" in text and "else if (next < k_tiles) copy_edge_tile(" in text
    awaits_at_once = (
        "copy_edge_tile(a, edge); cp_async_fence(); cp_async_wait<0>();" in text and "copy_next" not in text
    )
    return awaits_each or awaits_at_once


def takes_tiles_apart(mutant: Mutant) -> bool:
    """Return whether tiles of rows go on to the last row of C: `together` needs longer rows of a block."""
    columns = constant(mutant, "teams") * constant(mutant, "columns")
    is_asked = "constexpr bool together = block_columns >= 4 * depth && block_columns * sizeof(scalar) >= 256;"
    return is_asked in mutant.text and 0 < columns * mutant.subject.problem.dtype.element_bytes < 256


def kept_sums(mutant: Mutant) -> int:
    """Sums of a row that a lane keeps, as `sums_kept` counts them."""
    count, lanes = constant(mutant, "columns"), constant(mutant, "lanes")
    while lanes > 1:
        count, lanes = count // 2 if count % 2 == 0 else count, lanes // 2
    return count


def has_packs_of_one(mutant: Mutant) -> bool:
    """Return whether both branches load one element of B at a time."""
    most = 16 // mutant.subject.problem.dtype.element_bytes
    is_kept = "b_along_n = true" in mutant.text
    return is_kept and (most == 1 or kept_sums(mutant) % 2 == 1)


def packs_are_never_across(mutant: Mutant) -> bool:
    """Return whether rows of A that are loaded fast differ in length from rows of C."""
    width = constant(mutant, "vector_bytes") // mutant.subject.problem.dtype.element_bytes
    piece = width // max(constant(mutant, "rows_per_vector"), 1)
    return "const bool fast = k == vector_columns && lda == k &&" in mutant.text and piece != constant(
        mutant, "columns"
    )


def is_function(mutant: Mutant, name: str) -> bool:
    """Return whether the changed line is in the function of this name."""
    before = mutant.text.split("\n")[: mutant.line]
    start = max((i for i, line in enumerate(before) if line.startswith("}")), default=0)
    return any(re.match(rf"\w.*\b{name}\(", line) for line in before[start:])


def tile_elements_bound(mutant: Mutant) -> int:
    """Past every place in a staged tile of either operand, whichever way it lies."""
    block_k, lines = constant(mutant, "block_k"), max(constant(mutant, "block_m"), constant(mutant, "block_n"))
    return (block_k + MOST_PADDING) * (lines + MOST_PADDING) if block_k and lines else INT16_MAX + 1
