"""The transposed product: other extents and storage orders, the same matrices in memory."""

from __future__ import annotations

from dataclasses import replace

from tsm2_tune.generator.problem import Problem

OF_TRANSPOSED = {"n": "t", "t": "n", "j": "c", "c": "j"}  # a matrix's letter -> that of the transposed one


def transposed(problem: Problem) -> Problem:
    """C^T = B^T A^T: what is column-major there is row-major here, conjugates stay. Of two matrices, not of X^T X."""
    a, b, c = (*problem.op, "n")[:3]
    op = "".join(OF_TRANSPOSED[letter] for letter in (b, a, c))
    return replace(problem, m=problem.n, n=problem.m, op=op.removesuffix("n"))
