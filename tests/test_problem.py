"""Problems: how they and files of them are spelt, how their matrices are stored, and their bytes and operations."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command import refused, run
from tsm2_tune.api.parse import op_in
from tsm2_tune.api.products import MOST_SHAPES_BYTES, problems_of
from tsm2_tune.errors import InputError
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.shapes import Shape, parse_shapes

MANY, LONG = "/".join(["1:10000:1"] * 8000) + "x1x1", "9" * 5000 + "x8x8"
REFUSED: list[tuple[Callable[..., object], tuple[object, ...], str]] = [
    *((Problem, (*sizes, "f32"), "is outside") for sizes in ((0, 1, 1), (1, -1, 1), (1, 1, 2**31))),
    (Problem.parse, ("8x8:f32",), "MxNxK:DTYPE"),
    (Problem.parse, ("8x8x\uff18:f32",), "MxNxK:DTYPE"),
    (Problem.parse, ("8x8x8:f8",), "unknown dtype"),
    *((Problem, (5, 3, 7, "f32", op), f"unknown op {op!r}: expected two of the letters n, t")
      for op in ("", "n", "ntn", "xn", "nxn", "NN", "nntt", " nn")),
    (Problem, (5, 5, 7, "f32", "cx"), "c and j conjugate"),
    (Problem, (5, 4, 7, "f32", "tx"), "5x4x7 with op tx: a matrix times itself has m = n"),
    (Problem, (8, 8, 8, "f99"), "unknown dtype 'f99': expected one of f32, f64, c64, c128, bf16, f16, or, with ano"),
    (Problem, (8, 8, 8, "float32"), r"unknown dtype 'float32': expected .*; did you mean f32\?"),
    (Problem, (8, 8, 8, ["f32"]), r"dtype_name = \['f32'\]: expected a text"),
    (Problem, (8, 8, 8, "f32", 1), "op = 1: expected a text"),
    (Problem, (8, 8.5, 8, "f32"), "n = 8.5: expected a whole number"),
    (Problem, ("8", 8, 8, "f32"), "m = '8': expected a whole number"),
    (parse_shapes, (MANY,), "makes more than"),
    (parse_shapes, (LONG,), "a number of 5000 characters"),
    (parse_shapes, ("",), "no shape"),
    (op_in, ("row", "ttt"), "--layout sets the order of C"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "arguments", "complaint"), REFUSED, ids=range(len(REFUSED)))
def test_no_problem_is_a_sentence(make: Callable[..., object], arguments: tuple[object], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        make(*arguments)


@pytest.mark.parametrize(
    ("op", "contiguous", "stored", "storage"),
    [
        ("nn", "mkm", {"A": (5, 7), "B": (7, 5), "C": (5, 5)}, "A, B, C column-major"),
        ("nt", "mnm", {"A": (5, 7), "B": (5, 7), "C": (5, 5)}, "A, C column-major; B row-major"),
        ("tnt", "kkn", {"A": (7, 5), "B": (7, 5), "C": (5, 5)}, "B column-major; A, C row-major"),
        ("ttt", "knn", {"A": (7, 5), "B": (5, 7), "C": (5, 5)}, "A, B, C row-major"),
        ("tx", "kkm", {"A": (7, 5), "C": (5, 5)}, "B, C column-major; A row-major; B is the same as A"),
        ("nxt", "mnn", {"A": (5, 7), "C": (5, 5)}, "A column-major; B, C row-major; B is the same as A"),
    ],
)
def test_op_says_how_matrices_lie(op: str, contiguous: str, stored: dict[str, tuple[int, int]], storage: str) -> None:
    problem = Problem(5, 5, 7, "f32", op)
    assert ("".join(problem.contiguous), problem.stored, problem.storage) == (contiguous, stored, storage)
    assert (problem.row_major_c, problem.is_gram) == (len(op) == 3, "x" in op)
    assert problem.text == "5x5x7:f32" + (f":{op}" if op != "nn" else "")
    assert Problem.parse(problem.text) == Problem.parse(f"5x5x7:f32:{op}") == problem


def test_operations_bytes_and_index_width() -> None:
    gram, general = Problem(5, 5, 7, "f32", "tx"), Problem(5, 5, 7, "f32", "tn")
    assert (gram.flops, general.flops) == (2 * 15 * 7, 2 * 25 * 7)  # each product once
    assert (2 * gram.read_bytes, gram.written_bytes) == (general.read_bytes, general.written_bytes)
    conjugated = [Problem(5, 5, 7, "c64", op).conjugated for op in ("cx", "jxt", "tx")]
    assert conjugated == [(True, False), (True, False), (False, False)]
    # 46340**2 is just under 2**31
    bits = [Problem(m, n, k, "f32").index_bits for m, n, k in ((20480, 16, 20480), (46340, 1, 46340), (10**8, 64, 1))]
    assert bits == [32, 64, 64]


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("20480x16x20480,1e7x8x8", [(20480, 16, 20480), (10**7, 8, 8)]),
        ("1.5e3X2x7", [(1500, 2, 7)]),
        ("10:30:10x2x5", [(10, 2, 5), (20, 2, 5), (30, 2, 5)]),
        ("10:35:10x2x5", [(10, 2, 5), (20, 2, 5), (30, 2, 5)]),
        ("9x2:16:*2x5", [(9, 2, 5), (9, 4, 5), (9, 8, 5), (9, 16, 5)]),
        ("9x2/4x5/6", [(9, 2, 5), (9, 2, 6), (9, 4, 5), (9, 4, 6)]),
        ("10:20:10x8xm", [(10, 8, 10), (20, 8, 20)]),
        ("1e7xkx8/16", [(10**7, 8, 8), (10**7, 16, 16)]),
        ("4x4x4, 4x4x4,", [(4, 4, 4)]),
        ("500000*8x8x8", [(8, 8, 8, 500000)]),
        ("1e5/7*8X2:8:*2xn", [(8, size, size, batch) for size in (2, 4, 8) for batch in (10**5, 7)]),
        ("1*4x4x4,4x4x4", [(4, 4, 4)]),
    ],
)
def test_spellings(text: str, shapes: list[tuple[int, ...]]) -> None:
    assert list(parse_shapes(text)) == [Shape(*one) for one in shapes]


@pytest.mark.parametrize(
    ("asked", "problems"),
    [
        (("8x2x8,9x2x9", "f64", "nn, tn,nn", "column"), "8x2x8:f64 8x2x8:f64:tn 9x2x9:f64 9x2x9:f64:tn"),
        (("8x2x8,8x2x8:f64:TN", "f64", "Nt", "row"), "8x2x8:f64:tnt 8x2x8:f64:tn"),
        (("100000x8x16:f32:tnt,8x4x2", "f64,c64", "tn", "column"), "100000x8x16:f32:tnt 8x4x2:f64:tn 8x4x2:c64:tn"),
        (("16x16x1000:3xtf32:tn,64x2x64:c64", "f32", "nn", "row"), "16x16x1000:3xtf32:tn 64x2x64:c64"),
        (("8x2x8", "f32", "nn", "column", "tf32"), "8x2x8:tf32"),
        (("8x2x8", "c64", "cn", "row"), "8x2x8:c64:jtt"),
        (("8xmx1000", "f32,c64", "gram,tx", "column"), "8x8x1000:f32:tx 8x8x1000:c64:cx 8x8x1000:c64:tx"),
        (("8xmx1000", "f32,c64", "gram", "row"), "8x8x1000:f32:nxt 8x8x1000:c64:jxt"),
        (("8x8x8,9x9x9:float32", "double", "nn", "column"), "8x8x8:f64 9x9x9:f32"),
        (("8x8x8", "F64,complex64,Half,bfloat16", "nn", "column"), "8x8x8:f64 8x8x8:c64 8x8x8:f16 8x8x8:bf16"),
        (("8x8x8", "f32", "nn,tn,nt,tt", "row"), "8x8x8:f32:ttt 8x8x8:f32:ntt 8x8x8:f32:tnt 8x8x8:f32:nnt"),
    ],
)
def test_problems_are_spelt_so(asked: tuple[str, ...], problems: str) -> None:
    assert [problem.text for problem in problems_of(*asked)] == problems.split()


def shapes_in(path: Path | str, more: str = "") -> list[str]:
    return [problem.shape for problem in problems_of(f"@{path}{more}", "f32", "nn", "column")]


def test_shapes_files_stand_among_other_items(tmp_path: Path) -> None:
    path, other = tmp_path / "shapes.txt", tmp_path / "more.txt"
    path.write_text("8x8x8  # small\n\n16x2x16, 16x4x16\n")
    other.write_text("32x2x32")
    assert shapes_in(path, f", 9x9x9,@{other},8x8x8") == ["8x8x8", "16x2x16", "16x4x16", "9x9x9", "32x2x32"]
    other.write_text(f"@{path}")
    assert "shape '@" in run("space", "--device", "cpu", "--shapes", f"@{other}").output


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xef\xbb\xbf8x8x8\n9x9x9\n", ""),
        (b"8x8x8\r\n9x9x9\r\n", ""),
        (b"8x8x8 # Mac\r9x9x9", ""),
        ("8x8x8\n9x9x9\n".encode("utf-16"), ""),
        ("\ufeff8x8x8\n9x9x9\n".encode("utf-16-be"), ""),
        (b"8x8x8\n\xef\xbb\xbf# joined\n9x9x9\n", ""),
        ("8x8x8 # of \u2028 7x7x7\n9x9x9\n".encode(), ""),
        (b"8x8x8\n# more\n9x9x9, 20x8", r"shapes.txt', line 3: shape '20x8': expected MxNxK"),
        (b"8x8x8\n\0\0\0\0", "it contains NUL characters"),
        ("8x8x8\n".encode("utf-16-le"), "it contains NUL characters"),
        ("8x8x8\n".encode("utf-16")[:-1], "it is not text in UTF-8 or UTF-16"),
        (b"# " + b"x" * MOST_SHAPES_BYTES, f"more than {MOST_SHAPES_BYTES} bytes"),
    ],
    ids=range(12),
)
def test_shapes_file_is_read_or_refused(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "shapes.txt"
    path.write_bytes(content)
    if not reason:
        assert shapes_in(path) == ["8x8x8", "9x9x9"]
    else:
        with pytest.raises(InputError, match=reason):
            shapes_in(path)


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        ("gram", "shapes file '{path}', line 2: shape 100x8x8 with op tx: a matrix times itself has m = n"),
        ("cn", "op 'cn' of f32: c and j conjugate, which changes complex numbers only; use t and n instead"),
    ],
)
def test_an_op_that_does_not_suit_is_blamed_on_its_line_or_itself(op: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "shapes.txt"
    path.write_text("8x8x8\n9x9x9, 100x8x8\n")
    said = refused("space", "--device", "cpu", "--shapes", f"@{path}", "--op", op)
    assert said == f"Error: {reason.format(path=path)}\n"


@pytest.mark.usefixtures("impatient")
@pytest.mark.slow
def test_shapes_come_through_a_pipe_that_ends(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    os.write(writes, b"8x8x8\n")
    os.mkfifo(tmp_path / "fifo")
    for name in (tmp_path / "fifo", f"/dev/fd/{reads}"):
        with pytest.raises(InputError, match=r"did not end within 0\.2 s: write the whole file first"):
            shapes_in(name)
    os.write(writes, b"9x8x8\n")
    os.close(writes)
    assert shapes_in(f"/dev/fd/{reads}") == ["9x8x8"]
    os.close(reads)
    command = [sys.executable, "-m", "tsm2_tune", "space", "--device", "cpu", "--shapes"]
    for name in ("@-", "@/dev/stdin"):
        ended = subprocess.run([*command, name], input="8x8x9", capture_output=True, text=True, check=False)
        assert (ended.returncode, "8x8x9" in ended.stdout) == (0, True), ended.stderr
