"""Conversion of a problem to the transposed product, C^T = B^T A^T, on the same matrices in memory."""

from __future__ import annotations

from dataclasses import replace

from tsm2_tune.generator.problem import Problem

OF_TRANSPOSED = {"n": "t", "t": "n", "j": "c", "c": "j"}  # op letter of a matrix -> letter of its transpose


def transposed(problem: Problem) -> Problem:
    """Return the problem C^T = B^T A^T: m and n are swapped, and each matrix has the other storage order.

    Conjugation is unchanged. The problem must not be a Gram matrix.
    """
    a, b, c = (*problem.op, "n")[:3]
    op = "".join(OF_TRANSPOSED[letter] for letter in (b, a, c))
    return replace(problem, m=problem.n, n=problem.m, op=op.removesuffix("n"))
