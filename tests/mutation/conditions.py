"""What arguments ask of a mutant: facts of its subject and of the lines about the change."""

from __future__ import annotations

import math
import re

from tests.mutation.sample import Mutant
from tests.mutation.structure import EXTENTS
from tests.mutation.subjects import text_of

INT16_MAX = 2**15 - 1
MOST_MASKED = 0xFF  # what the narrowest mask leaves of an extent
MOST_PADDING = 64  # elements of a line in shared memory


def fits_int16(mutant: Mutant) -> bool:
    """Whether all that a block of the mutant's counts, which is what an `int` does here, has 15 bits.

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
    """Whether a loop's variable got a narrower type, and ends at a number that all types hold."""
    found = re.search(r"for \((?:const )?\w+ (\w+) = \w+; \1 <=? (\w+(?: \* \w+)*);", mutant.after)
    if found is None:
        return False
    names = found[2].split(" * ")
    known = math.prod(max(constant(mutant, name), 1) for name in names)
    return known <= INT16_MAX and all(_is_constant(mutant, name) for name in names)


def _is_constant(mutant: Mutant, name: str) -> bool:
    return re.search(rf"constexpr int (\w+ = [^;]+, )*{name}\b", mutant.text) is not None


def turns_with_guard(mutant: Mutant) -> bool:
    """Whether a thread takes part in a turn of the changed loop only where it has an element."""
    head = r"for \(int (\w+) = 0; \1 < \((.+) \+ threads - [01]\) / threads; \+\+\1\) \{\s*"
    guarded = re.compile(head + r"const int e = \1 \* threads \+ threadIdx\.x[^\n]*\s*if \(e < \2\)")
    return guarded.match("\n".join(lines_about(mutant, 0, 4))) is not None


def lines_about(mutant: Mutant, first: int, last: int) -> list[str]:
    """Lines of the mutant about the changed one, which is 0, without what they begin and end with."""
    lines = mutant.text.split("\n")[mutant.line - 1 + first : mutant.line - 1 + last]
    return [line.strip() for line in lines]


def ends_in_tile(mutant: Mutant) -> bool:
    """Whether a loop over the products of a staged tile is stopped past the end of the longest tile."""
    bound, depth = re.search(r"&& l < (\d+)", mutant.after), re.search(r"int tile_depth = (\d+)", mutant.text)
    is_tile = "const index_t stop = tile + depth < end ? depth : end - tile;" in mutant.text
    return is_tile and bound is not None and depth is not None and int(bound[1]) >= 2 * int(depth[1])


def large_names(mutant: Mutant) -> set[str]:
    """What may be as large as an extent, as far as declarations say."""
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
    """Whether what the text calls a vector of the operand is one element."""
    in_16_bytes = "int width = 16 / sizeof(scalar);" in mutant.text
    vector_bytes = constant(mutant, "vector_bytes") or 16 * in_16_bytes
    return vector_bytes == mutant.subject.problem.dtype.element_bytes


def is_fewer(mutant: Mutant) -> bool:
    """Whether a constant became a smaller one that all waits allow."""
    number = re.search(r" = (\d+);", mutant.before), re.search(r" = (\d+);", mutant.after)
    if number[0] is None or number[1] is None:
        return True  # chosen by a condition, among numbers that it is made for
    least = 2 if "stages - 2" in mutant.text else 1
    return least <= int(number[1][1]) <= int(number[0][1])


def has_other_way(mutant: Mutant) -> bool:
    """Whether something else is done, or chosen, where the condition does not hold."""
    return "?" in mutant.before or any("else" in line for line in lines_about(mutant, 1, 15))


def fits_shared_memory(mutant: Mutant) -> bool:
    """Whether no element of a block's shared memory has a number of more than 16 bits."""
    return mutant.subject.source.launch.smem_bytes // mutant.subject.problem.dtype.element_bytes <= 2**16


def ends_past(mutant: Mutant, name: str) -> bool:
    """Whether a loop is stopped no earlier than at so many turns."""
    bound = re.search(r"&& \w+ < (\d+)", mutant.after)
    return bound is not None and 0 < constant(mutant, name) <= int(bound[1])


def pieces_fill_threads(mutant: Mutant) -> bool:
    """Whether the pieces of a chunk of either operand are a multiple of the threads."""
    width = 16 // mutant.subject.problem.dtype.element_bytes
    block_k, threads = constant(mutant, "block_k"), constant(mutant, "threads")
    lines = constant(mutant, "block_m"), constant(mutant, "block_n")
    return all(one * block_k // width % threads == 0 and one * block_k > 0 for one in lines)


def implies_alignment(mutant: Mutant) -> bool:
    """Whether a leading dimension that with an element's bytes is a multiple of a vector's has aligned lines."""
    return mutant.subject.problem.dtype.element_bytes in (4, 8, 16)


def sums_are_plain_f32(mutant: Mutant) -> bool:
    """Whether a type that allows rounded operands is computed without rounding any."""
    return mutant.subject.problem.dtype_name == "tf32" and "mma" not in mutant.text


def is_end_of_sweep(mutant: Mutant) -> bool:
    """Whether copies are awaited at the end of a sweep after which nothing is left in shared memory."""
    behind = " ".join(line.partition("//")[0] for line in lines_about(mutant, 2, 1000))
    is_left = has_one_split(mutant) or re.search(r"\b(staged|shared_bytes|block_sums|ring\w*)\b", behind) is None
    return lines_about(mutant, 1, 2) == ["};"] and is_left and "const index_t following" in mutant.text


def is_past_last_chunk(mutant: Mutant) -> bool:
    """Whether all copies were awaited before: those of each chunk, and past the last chunk none is begun."""
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
    """Whether tiles of rows go on to the last row of C: `together` asks for longer rows of a block."""
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
    """Whether of B one element is loaded at a time, in both branches."""
    most = 16 // mutant.subject.problem.dtype.element_bytes
    is_kept = "b_along_n = true" in mutant.text
    return is_kept and (most == 1 or kept_sums(mutant) % 2 == 1)


def packs_are_never_across(mutant: Mutant) -> bool:
    """Whether rows of A that are loaded fast have another length than rows of C."""
    width = constant(mutant, "vector_bytes") // mutant.subject.problem.dtype.element_bytes
    piece = width // max(constant(mutant, "rows_per_vector"), 1)
    return "const bool fast = k == vector_columns && lda == k &&" in mutant.text and piece != constant(
        mutant, "columns"
    )


def has_one_team(mutant: Mutant) -> bool:
    """Whether the warps of a block are as many as those of a team."""
    is_known = "constexpr int slice_threads = 32 * slice_rows * (block_n / (8 * n_tiles));" in mutant.text
    is_known &= "constexpr int slice_rows = block_m / (16 * m_tiles);" in mutant.text
    rows, columns, m_tiles, n_tiles, threads = (
        constant(mutant, name) for name in ("block_m", "block_n", "m_tiles", "n_tiles", "threads")
    )
    return is_known and 0 < threads <= 32 * (rows // (16 * m_tiles)) * (columns // (8 * n_tiles))


def is_function(mutant: Mutant, name: str) -> bool:
    """Whether the changed line is one of this function's."""
    before = mutant.text.split("\n")[: mutant.line]
    start = max((i for i, line in enumerate(before) if line.startswith("}")), default=0)
    return any(re.match(rf"\w.*\b{name}\(", line) for line in before[start:])


def tile_elements_bound(mutant: Mutant) -> int:
    """Past every place in a staged tile of either operand, whichever way it lies."""
    block_k, lines = constant(mutant, "block_k"), max(constant(mutant, "block_m"), constant(mutant, "block_n"))
    return (block_k + MOST_PADDING) * (lines + MOST_PADDING) if block_k and lines else INT16_MAX + 1


def copies_for_itself(mutant: Mutant) -> bool:
    """Whether four lanes copy a line of a group of A, of which each reads a quarter: then that is its own."""
    is_known = "constexpr int step = prefetch / stages;" in mutant.text
    is_known &= "const int line = threadIdx.x % 32 / line_vectors, p = threadIdx.x % line_vectors;" in mutant.text
    is_known &= (
        "part[r] = group[smem_offset_a(8 * r + g, 4 * d + t)];" in mutant.text
        and "using bits_t = uint4;" in mutant.text
    )
    pieces = 16 // mutant.subject.problem.dtype.element_bytes
    return is_known and constant(mutant, "prefetch") == 4 * pieces * constant(mutant, "stages") > 0
