"""The exported module takes matrices in the storage orders of its kernels, and says which these are."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.fabricated import host_run, module_of, trial
from tsm2_tune.generator.problem import Problem


def of_ops(folder: Path, **problems: tuple[int, int, int]) -> ModuleType:
    """A module of host winners in f64: op -> the shape that it was tuned for."""
    folder.mkdir(exist_ok=True)
    return module_of(folder, *(Problem(*shape, "f64", op) for op, shape in problems.items()), run=host_run())


SHAPE = (8, 4, 300)  # shape of every product below


def matrix(rows: int, columns: int, order: str) -> np.ndarray[Any, Any]:
    """A matrix in NumPy's order F, column-major, or C, row-major."""
    return np.zeros((rows, columns), order=order)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize(
    ("problems", "op"),
    [
        ({"nt": SHAPE}, "nt"),
        ({"ntt": SHAPE}, "ntt"),
        ({"nn": SHAPE, "ntt": (1, 1, 1), "nt": (9, 9, 9)}, "nt"),
        ({"nt": (1, 1, 1), "ntt": SHAPE}, "nt"),  # the order of the new matrix does not depend on its shape
    ],
)
def test_x_transposed_times_y_where_both_are_row_major(
    tmp_path: Path, problems: dict[str, tuple[int, int, int]], op: str
) -> None:
    x, y = np.zeros((300, 8)), np.zeros((300, 4))
    assert of_ops(tmp_path, **problems).choice(x.T, y).winner.op == op


def test_a_vector_fits_either_order(tmp_path: Path) -> None:
    module = of_ops(tmp_path, nn=(8, 1, 299), tt=(8, 1, 8), ntt=(8, 1, 300))
    a, vector = matrix(8, 300, "F"), np.zeros((300, 1))
    assert module.choice(a, vector).winner.op == "ntt"  # the nearest
    assert module.choice(a, vector, matrix(8, 4, "F")[:, :1]).winner.op == "ntt"
    column_of_rows = matrix(8, 4, "C")[:, :1]  # its elements are no neighbours
    module = of_ops(tmp_path / "without", nn=(8, 1, 300))
    with pytest.raises(ValueError, match="a column-major, b column-major or row-major, out row-major"):
        module.choice(a, vector, column_of_rows)


def test_the_faster_of_two_kernels_that_are_as_near(tmp_path: Path) -> None:
    shape = (8, 1, 300)
    times = {"nn": 9.0, "tn": 8.0, "nt": 10.0}
    trials = (trial(us, problem=Problem(*shape, "f64", op)) for op, us in times.items())
    module = module_of(tmp_path, *trials, run=host_run())
    assert module.choice(np.zeros((1, 300)), np.zeros((300, 1))).winner.op == "tn"


@pytest.mark.parametrize(
    ("orders", "message"),
    [
        (
            "CF",
            r"^a row-major, b column-major: this module has no f64 kernel for that, only for"
            r" op nn \(a, b and out column-major\) and op ntt \(a column-major, b and out row-major\);"
            r" tune with --op tn, without --layout, and export again, or pass copies in the order of one of these$",
        ),
        ("FFC", "^a and b column-major, out row-major: .*; tune with --op nnt, without --layout, and"),
    ],
)
def test_orders_that_no_kernel_is_for(tmp_path: Path, orders: str, message: str) -> None:
    module = of_ops(tmp_path, nn=SHAPE, ntt=SHAPE)
    m, n, k = SHAPE
    given = [matrix(*shape, order) for shape, order in zip(((m, k), (k, n), (m, n)), orders, strict=False)]
    for function in (module.choice, module.gemm):
        with pytest.raises(ValueError, match=message):
            function(*given)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_matrix_transposed_times_itself(tmp_path: Path, order: str) -> None:
    gram, general = {"F": ("tx", "tn"), "C": ("nxt", "ntt")}[order]
    module = of_ops(tmp_path, **{gram: (8, 8, 300), general: (8, 8, 300), "nn": (8, 8, 300)})
    x = matrix(300, 8, order)
    for other, op in ((x, gram), (x[:, :], gram), (x.copy(order="K"), general), (x[:, :7], general)):
        assert module.choice(x.T, other).winner.op == op
    wide = matrix(300, 20, order)
    assert module.choice(wide[:, 3:11].T, wide[:, 3:11]).winner.op == gram
    assert module.choice(wide[:, 3:11].T, wide[:, 4:12]).winner.op == general
    room = matrix(300 * 40, 1, "F").reshape(-1)  # two matrices at one address, whose lines are otherwise apart
    lines = (300, 400) if order == "F" else (8, 12)
    first, second = (
        np.lib.stride_tricks.as_strided(room, (300, 8), (8, 8 * ld) if order == "F" else (8 * ld, 8)) for ld in lines
    )
    assert module.choice(first.T, second).winner.op == general
    for name in (gram, "gram"):
        assert module.match(8, 8, 300, "f64", op=name).winner.op == gram
        with pytest.raises(ValueError, match=f"8x7x300 with op {name}: a matrix times itself has m = n"):
            module.match(8, 7, 300, "f64", op=name)


def test_another_kernel_computes_a_gram_matrix_if_there_is_none_for_it(tmp_path: Path) -> None:
    module = of_ops(tmp_path, tn=(8, 8, 300))
    assert module.match(8, 8, 300, "f64", op="gram").winner.op == "tn"


@pytest.mark.parametrize("op", ["tx", "cx", "jx"])
def test_gram_is_also_the_op_of_a_conjugated_matrix(tmp_path: Path, op: str) -> None:
    module = module_of(tmp_path, Problem(8, 8, 300, "c64", op), run=host_run())
    assert module.match(8, 8, 300, "c64", op="gram").winner.op == op


def test_the_nearest_shape_comes_before_half_of_the_products(tmp_path: Path) -> None:
    module = of_ops(tmp_path, tx=(8, 8, 300), tn=(64, 64, 300))
    found = [module.choice(x.T, x).winner.op for x in (matrix(300, columns, "F") for columns in (8, 9, 64))]
    assert found == ["tx", "tx", "tn"]


def test_a_gram_kernel_is_for_one_matrix_alone(tmp_path: Path) -> None:
    x, module = matrix(300, 8, "F"), of_ops(tmp_path, tx=(8, 8, 300))
    with pytest.raises(
        ValueError, match=r"only for op tx \(a row-major, b and out column-major, b is a transposed\);"
    ):
        module.choice(x.T, x.copy(order="F"))
    vector = matrix(300, 1, "F")
    assert module.choice(vector.T, vector).winner.op == "tx"
