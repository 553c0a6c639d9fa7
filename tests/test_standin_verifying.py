"""Comparing with cuBLAS: of each shape the first products, of which the program gets cuBLAS's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.library_calls import fabricated_library, tried
from tests.on_host import IN_C
from tests.standin_calls import ONE, Played, by_reason, gemm, play
from tsm2_tune.generator.problem import Problem

pytestmark = IN_C


MULTIPLYING = {"FAKE_CUBLAS_MULTIPLIES": "1"}


def verified(
    fakes: Path, pack: Path, writes: float, cublas: Mapping[str, str] = MULTIPLYING, **changes: Any
) -> Played:
    """Three products of ones, by a kernel that writes a number into the first element of C, and nothing else."""
    memory = {"A": [1.0] * 18, "B": [1.0] * 8, "C": [3.0 + changes.pop("before", 0.0)] * 12}
    start = [["memory", memory], ["fake_capture", changes.pop("captured", 0)]]
    steps = [*start, *[gemm("cublasDgemm_v2", **changes)] * 5]
    environment = {**cublas, "FAKE_KERNEL_WRITES": repr(writes)}
    return play(fakes, steps, pack=pack, compared=3, environment=environment)


@pytest.mark.parametrize("writes", [0.0, 3 + 1e-13, 3 - 1e-13, float("nan"), float("inf")])
def test_a_kernel_that_is_off_is_left_out(fakes: Path, pack: Path, writes: float) -> None:
    played = verified(fakes, pack, writes)
    assert played.told.count("\n") == 1
    assert f"6x2x3 of f64: C[0, 0] is {writes:.9g} by the kernel and 3" in played.told
    assert (len(played.launches), len(played.left)) == (1, 5)
    assert by_reason(played) == {"its result was compared": 1, "the kernel's result was wrong": 4}
    assert played.seen[0].worst > 1
    assert played.results == [[3.0] * 12] * 5


@pytest.mark.parametrize(("writes", "captured"), [(3.0, 7), (3 + 1e-14, 0), (3 - 1e-14, 0)])
def test_a_kernel_that_is_right_is_taken_after_the_comparison(
    fakes: Path, pack: Path, writes: float, captured: int
) -> None:
    """A comparison ends no capture on another stream."""
    played = verified(fakes, pack, writes, captured=captured)
    assert (played.told, len(played.launches), len(played.left)) == ("", 5, 3)
    (one,) = played.seen
    assert (one.compared, one.taken, one.worst < 0.5) == (3, 2, True)
    assert not any("capture ended" in line for line in played.log)


def test_a_comparison_leaves_what_cublas_computes_of_the_c_before(fakes: Path, pack: Path) -> None:
    played = verified(fakes, pack, -7.0, before=1.0, beta=ONE)
    assert played.results[0] == [7.0] * 12
    assert "is -7 by the kernel and 7 by cuBLAS" in played.told


def test_what_cublas_refuses_is_not_compared(fakes: Path, pack: Path) -> None:
    played = verified(fakes, pack, 7.0, {"FAKE_CUBLAS_REFUSES": "1"}, before=1.0)
    assert (played.statuses, played.told) == ([[15] * 5], "")
    assert (played.seen[0].compared, played.seen[0].worst) == (0, 0)
    assert played.results == [[4.0] * 12] * 5


# Each type and operation: cuBLAS leaves C as it is, and a kernel writes 8 bytes of it

EX = {"f16": 2, "bf16": 14}  # cudaDataType_t
OWN = {"f32": np.float32, "f64": np.float64, "c64": np.complex64, "c128": np.complex128, "f16": np.float16}
SMALL = 2.0**-24  # f16's least number


def stored(dtype: str, numbers: Any) -> list[float]:
    """The numbers as they lie in memory, as doubles: f16's and bf16's by fours."""
    if dtype == "bf16":
        found = (np.array(numbers, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    else:
        found = np.array(numbers, OWN[dtype])
    return list(map(float, found.view(np.float64)))


def share(
    fakes: Path,
    pack: Path,
    dtype: str,
    theirs: Any,
    ours: Any,
    *,
    a: Any = 1,
    b: Any = 1,
    at: int = 0,
    **changes: Any,
) -> float:
    """The worst difference as a share of the bound, where the kernel's first bytes of C are these, of one number."""
    sizes = {"A": 20, "B": 8, "C": 12} if "k" not in changes else {"A": 60_000, "B": 20_000, "C": 12}
    matrices = {name: np.broadcast_to(x, sizes[name]) for name, x in (("A", a), ("B", b), ("C", theirs))}
    writes = stored(dtype, np.concatenate([np.ravel(ours), matrices["C"][np.size(ours) :]]))[at]
    types = dict.fromkeys(("type_a", "type_b", "type_c"), EX.get(dtype))
    own = {"f32": "Sgemm_v2", "f64": "Dgemm_v2", "c64": "Cgemm_v2", "c128": "Zgemm_v2"}
    step = gemm(f"cublas{own[dtype]}", **changes) if dtype in own else gemm("cublasGemmEx", **types, **changes)
    environment = {"FAKE_KERNEL_WRITES": repr(writes), "FAKE_KERNEL_WRITES_AT": str(at)}
    memory = {name: stored(dtype, x) for name, x in matrices.items()}
    (one,) = play(fakes, [["memory", memory], step], pack=pack, compared=1, environment=environment).seen
    assert one.compared == 1
    return one.worst


@pytest.mark.parametrize(
    ("dtype", "theirs", "right", "wrong", "changes"),
    [
        ("f32", 3, 3 + 1e-5, 3 + 3e-5, {}),
        # 10,000 products of ones: by their number, not its root, the bound would be 9e-8
        ("f64", 1e4, 1e4 + 5e-10, 1e4 + 2e-9, {"k": 10_000}),
        ("c64", 3j, 1e-5 + 3j, 3e-5 + 3j, {"a": 1j}),
        ("c128", 3j, (3 + 2e-14) * 1j, (3 + 5e-14) * 1j, {"at": 1}),
        ("f16", 3, 3 + 2 * 2.0**-9, 3 + 4 * 2.0**-9, {}),
        ("f16", -3, -3 + 2 * 2.0**-9, 3, {}),
        ("f16", 30 * SMALL, 31 * SMALL, 32 * SMALL, {"a": 10 * SMALL}),
        ("bf16", 3, 3 + 2 * 2.0**-6, 3 + 4 * 2.0**-6, {}),
        ("bf16", -3, -3 + 2 * 2.0**-6, 3, {}),
        ("f64", np.inf, np.inf, 1, {}),
        ("f64", np.nan, np.inf, 1, {}),
        ("f16", np.inf, np.nan, 1, {}),
        ("f64", 1e6, 1e6 + 5e-9, 1e6 + 2e-8, {"beta": ONE}),
        ("f64", 0.75, 0.75 + 4e-15, 0.75 + 1e-14, {"alpha": [0.25, 0.0]}),  # which 3 may be off
        ("f64", 3e200, 3e200, 3e200 * (1 + 1e-13), {"a": 1e200}),
        ("f64", 3e-200, 3e-200, 3.1e-200, {"a": 1e-200}),
        ("f64", 3, 3 + 1e-14, 3 + 1e-13, {"b": [1.0, 1.0, 1.0, 1e300] * 2, "ldb": 4}),  # nothing reads the gap
    ],
)
def test_the_bound_is_that_of_the_type_and_of_the_products_numbers(
    fakes: Path, pack: Path, dtype: str, theirs: Any, right: Any, wrong: Any, changes: dict[str, Any]
) -> None:
    assert share(fakes, pack, dtype, theirs, right, **changes) <= 1
    assert share(fakes, pack, dtype, theirs, wrong, **changes) > 1


@pytest.fixture(scope="module")
def transposing(tmp_path_factory: pytest.TempPathFactory, session_cache: None) -> Path:
    problems = [Problem(6, 2, 3, "f64", op) for op in ("nn", "tn", "nt", "tt")]
    return fabricated_library(tmp_path_factory.mktemp("transposing"), *map(tried, problems))


@pytest.mark.parametrize("small", ["A", "B"])
@pytest.mark.parametrize(("transa", "transb"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_an_element_is_measured_by_its_own_row_and_column(
    fakes: Path, transposing: Path, small: str, transa: int, transb: int
) -> None:
    """The row or the column of C[0, 0] is small."""
    row, column = np.ones((6, 3)), np.ones((3, 2))
    (row[0] if small == "A" else column[:, 0])[...] = 1e-6
    a, b = (
        np.pad(np.ravel(x, "C" if is_transposed else "F"), (0, size - x.size))
        for x, is_transposed, size in ((row, transa, 20), (column, transb, 8))
    )
    of: dict[str, Any] = {"a": a, "b": b, "transa": transa, "transb": transb}
    theirs = np.ravel(row @ column, "F")
    assert share(fakes, transposing, "f64", theirs, theirs[0] * (1 + 1e-15), **of) <= 1
    assert share(fakes, transposing, "f64", theirs, theirs[0] * (1 + 1e-9), **of) > 1


def test_the_worst_of_several_comparisons_is_kept(fakes: Path, pack: Path) -> None:
    environment = MULTIPLYING | {"FAKE_KERNEL_WRITES": repr(3 + 1e-14)}
    bad, good = (["memory", {"A": [x] * 18, "B": [1.0] * 8, "C": [3.0] * 12}] for x in (1.0, 1.0 + 2.0**-51))
    step = gemm("cublasDgemm_v2")
    worst = [
        play(fakes, steps, pack=pack, compared=2, environment=environment).seen[0].worst
        for steps in ([bad, step], [good, step], [bad, step, good, step])
    ]
    assert worst[0] == worst[2] > worst[1]
