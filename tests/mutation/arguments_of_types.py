"""Arguments that hold of some element types alone: what that depends on is asked of the subject."""

from __future__ import annotations

from tests.mutation.argued import Argument
from tests.mutation.conditions import (
    has_one_element,
    has_packs_of_one,
    implies_alignment,
    is_16_bits,
    is_function,
    sums_are_plain_f32,
)

OF_TYPES = (
    Argument(
        "a vector of one element is aligned where elements are",
        ("flag", "arithmetic", "dropped term"),
        r"^if \(within_m && aligned\)|^const bool aligned = .*% vector_bytes == 0;",
        r"^if \(within_m ?\)|% vector_bytes == 0;",
        has_one_element,
    ),
    Argument(
        "lines that begin at a vector by this test do so: the leading dimension is a multiple of one then",
        ("arithmetic",),
        r"\| ld[ab] \* sizeof\(scalar\)\) % (16|vector_bytes) == 0",
        r"\| ld[ab] \+ sizeof\(scalar\)\)",
        implies_alignment,
    ),
    Argument(
        "sums of products of f16 are multiples of 2**-48, none of them subnormal",
        ("value",),
        "",
        r"mutant::flushed\((sum|total|block_sums|sent|other_sum)\b",
        lambda mutant: mutant.subject.problem.dtype_name == "f16" and "alpha" not in mutant.before,
    ),
    Argument(
        "no float is subnormal as a double",
        ("value",),
        r"^factor\[2\]",
        r"mutant::flushed\(factor",
        lambda mutant: mutant.subject.problem.dtype_name == "c64" and "double (&factor)" in mutant.text,
    ),
    Argument(
        "a float that was of 16 bits has no more bits than are left of it",
        ("rounding",),
        "",
        r"= mutant::(low|narrow)\(sum_t\(\w+(\.element)?\[\w+\]\)\);",
        is_16_bits,
    ),
    Argument(
        "a float that was of 16 bits has no more bits than are left of it",
        ("rounding",),
        r"^const sum_t b = staged\[.*\];",
        r"= (\w+ > \d+ \? )?mutant::(low|narrow)\(staged\[.*\]\)( : staged\[.*\])?;",
        is_16_bits,
    ),
    Argument(
        "the last bit alone is 0 as tf32",
        ("constant",),
        r"^both\.element\[e\] = e < valid \? .* : 0;",
        r": 1;",
        lambda mutant: mutant.subject.problem.dtype_name == "tf32",
    ),
    Argument(
        "sums of products of floats are multiples of 2**-298, none of them subnormal as a double",
        ("value",),
        r"\bsum\[",
        r"mutant::flushed\(sum\[",
        lambda mutant: mutant.subject.problem.dtype_name == "f32" and "using sums_t = double[" in mutant.text,
    ),
    Argument(
        "what tf32 is allowed by operands that are rounded is a thousand times as much, and here none is",
        ("rounding",),
        r"^(const )?scalar sent = |^sum\[",
        r"mutant::low\(",
        sums_are_plain_f32,
    ),
    Argument(
        "where vectors have one element, all of them are whole",
        ("flag",),
        r"^if \(whole && beta == 0\) \{",
        r"^if \( ?beta == 0\) \{",
        lambda mutant: mutant.subject.config.family == "resident_b_fma_held" and has_one_element(mutant),
    ),
    Argument(
        "which products are taken where a part is NaN: it makes NaN of both parts in any of them",
        ("value",),
        r"^return fminf?\(re, im\) \* \w+ < fmaxf?\(re, im\);",
        r"mutant::quiet\(",
        lambda mutant: is_function(mutant, "parts_apart"),
    ),
    Argument(
        "no f16 is subnormal as a float",
        ("value",),
        r"^sum\[c\]\[r\] \+= factor \* ",
        r"mutant::flushed\(factor\)",
        lambda mutant: (
            mutant.subject.problem.dtype_name == "f16"
            and "const sum_t factor = row + r < m ? sum_t(A[" in mutant.text
        ),
    ),
    Argument(
        "both branches load one element at a time",
        (),
        r"^if \(aligned\(B, ldb, pack_of_B \* sizeof\(scalar\)\) && \(b_along_n \? n : k\) % pack_of_B == 0\)$",
        r"^if \((?!.*pack_of_B / )",  # nor a remainder by 0
        has_packs_of_one,
    ),
    Argument(
        "a double that was a float has no more bits than one",
        ("rounding",),
        r"^a\[[0-3]\] = (re|im|flipped\((re|im), (none|sign)\));",
        r"= mutant::(low|narrow)\(",
        lambda mutant: mutant.subject.problem.dtype_name == "c64" and is_function(mutant, "as_matrix"),
    ),
    Argument(
        "where vectors have one element, no row is at an edge",
        (),
        holds=lambda mutant: (
            mutant.subject.config.family == "resident_b_fma_held"
            and has_one_element(mutant)
            and is_function(mutant, "load_a_at_edge")
        ),
    ),
    Argument(
        "where vectors have one element, only what zeros multiply and what nobody stores is made of a number",
        ("constant",),
        r"^__device__ __forceinline__ Complex\(Real re, Real im = 0\)",
        r"im = (1|\(-1\))\)",
        lambda mutant: mutant.subject.config.family == "resident_b_fma_held" and has_one_element(mutant),
    ),
)
