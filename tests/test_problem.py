"""Tests of problems: how they are spelt, how their matrices are stored, and their bytes and operations."""

from typing import Any

import pytest

from tsm2_tune.errors import InputError
from tsm2_tune.generator.problem import Problem


def test_index_width_covers_padded_operands() -> None:
    assert Problem(20480, 16, 20480, "f32").index_bits == 32
    assert Problem(46340, 1, 46340, "f32").index_bits == 64  # 46340**2 is just under 2**31
    assert Problem(10**8, 64, 1, "f32").index_bits == 64


@pytest.mark.parametrize(("m", "n", "k"), [(0, 1, 1), (1, -1, 1), (1, 1, 2**31)])
def test_impossible_problems_are_refused(m: int, n: int, k: int) -> None:
    with pytest.raises(InputError, match="is outside"):
        Problem(m, n, k, "f32")


def test_what_is_no_problem_is_not_read() -> None:
    for text, said in (("8x8:f32", "MxNxK:DTYPE"), ("8x8x\uff18:f32", "MxNxK:DTYPE"), ("8x8x8:f8", "unknown dtype")):
        with pytest.raises(InputError, match=said):
            Problem.parse(text)


@pytest.mark.parametrize(
    ("op", "contiguous", "stored", "storage"),
    [
        ("nn", "mkm", {"A": (5, 7), "B": (7, 3), "C": (5, 3)}, "A, B, C column-major"),
        ("nt", "mnm", {"A": (5, 7), "B": (3, 7), "C": (5, 3)}, "A, C column-major; B row-major"),
        ("tn", "kkm", {"A": (7, 5), "B": (7, 3), "C": (5, 3)}, "B, C column-major; A row-major"),
        ("nnt", "mkn", {"A": (5, 7), "B": (7, 3), "C": (3, 5)}, "A, B column-major; C row-major"),
        ("ntt", "mnn", {"A": (5, 7), "B": (3, 7), "C": (3, 5)}, "A column-major; B, C row-major"),
        ("ttt", "knn", {"A": (7, 5), "B": (3, 7), "C": (3, 5)}, "A, B, C row-major"),
    ],
)
def test_an_op_says_how_the_matrices_lie(
    op: str, contiguous: str, stored: dict[str, tuple[int, int]], storage: str
) -> None:
    problem = Problem(5, 3, 7, "f32", op)
    assert "".join(problem.contiguous) == contiguous
    assert problem.stored == stored
    assert problem.storage == storage
    assert problem.row_major_c is (len(op) == 3)
    assert Problem.parse(problem.text) == problem


def test_an_op_is_spelt_where_it_is_not_nn() -> None:
    assert Problem(5, 3, 7, "f32").text == "5x3x7:f32"
    assert Problem(20480, 16, 20480, "f64", "ttt").text == "20480x16x20480:f64:ttt"
    assert Problem.parse("5x3x7:f32:nn") == Problem(5, 3, 7, "f32")
    assert len({Problem(5, 3, 7, "f32", op) for op in ("nn", "nt", "nnt")}) == 3


@pytest.mark.parametrize("op", ["", "n", "nnn", "ntn", "ny", "xn", "nxn", "NN", "hn", "nntt", " nn"])
def test_a_wrong_op_is_refused(op: str) -> None:
    with pytest.raises(InputError, match=f"unknown op {op!r}: expected two of the letters n, t"):
        Problem(5, 3, 7, "f32", op)


@pytest.mark.parametrize(
    ("op", "factors", "contiguous", "stored"),
    [("tx", "tn", "kkm", {"A": (7, 5), "C": (5, 5)}), ("nxt", "nt", "mnn", {"A": (5, 7), "C": (5, 5)})],
)
def test_a_gram_matrix_is_of_one_matrix(
    op: str, factors: str, contiguous: str, stored: dict[str, tuple[int, int]]
) -> None:
    problem, general = Problem(5, 5, 7, "f32", op), Problem(5, 5, 7, "f32", factors + op[2:])
    assert problem.is_gram
    assert not general.is_gram
    assert problem.factors == general.factors == factors
    assert "".join(problem.contiguous) == contiguous == "".join(general.contiguous)
    assert problem.stored == stored
    assert problem.storage == general.storage + "; B is the same as A"
    assert (problem.flops, general.flops) == (2 * 15 * 7, 2 * 25 * 7)  # each product once
    assert 2 * problem.read_bytes == general.read_bytes
    assert problem.written_bytes == general.written_bytes
    assert Problem.parse(problem.text) == problem


def test_a_conjugated_gram_matrix_is_hermitian() -> None:
    assert Problem(5, 5, 7, "c64", "cx").conjugated == (True, False)
    assert Problem(5, 5, 7, "c64", "jxt").conjugated == (True, False)
    assert Problem(5, 5, 7, "c64", "tx").conjugated == (False, False)
    with pytest.raises(InputError, match="c and j conjugate"):
        Problem(5, 5, 7, "f32", "cx")
    with pytest.raises(InputError, match="5x4x7 with op tx: a matrix times itself has m = n"):
        Problem(5, 4, 7, "f32", "tx")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((8, 8, 8, "f99"), "unknown dtype 'f99': expected one of f32, f64, c64, c128, bf16, f16, or, with another"),
        ((8, 8, 8, "float32"), r"unknown dtype 'float32': expected .*; did you mean f32\?"),
        ((8, 8, 8, ["f32"]), r"dtype_name = \['f32'\]: expected a text"),
        ((8, 8, 8, "f32", 1), "op = 1: expected a text"),
        ((8, 8.5, 8, "f32"), "n = 8.5: expected a whole number"),
        (("8", 8, 8, "f32"), "m = '8': expected a whole number"),
    ],
)
def test_what_is_no_problem_is_a_sentence(arguments: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        Problem(*arguments)
