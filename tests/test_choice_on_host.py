"""On the host: an exported module is right for shapes that were not tuned, by kernels that are started otherwise."""

from __future__ import annotations

import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.array_libraries import LIBRARIES
from tests.calls_on_gpu import made_module, same_bits, stress
from tests.cases import lists, module_of_list
from tests.fabricated import host_run
from tsm2_tune.generator.config import family_name_in
from tsm2_tune.generator.device.roofline import Ceilings

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")]

SMS, BLOCKS_PER_SM = 8, 2
CEILINGS = Ceilings(4.0, 3.6, (("f32", 60.0), ("f64", 30.0), ("c64", 60.0)))  # GB/s and GFLOP/s, as of an emulation
TUNED = {problem: config for config, problem, _ in lists()["called on the host"]}
# For each element type and op: the tuned shape, larger, smaller, one row, one column, one product, under a step.
SHAPES = {
    ("f32", "nn"): (
        *((600, 4, 700), (3000, 4, 20), (259, 3, 1501), (65, 4, 2003), (300, 5, 90), (1501, 5, 9)),
        *((1, 4, 700), (65, 1, 7), (33, 3, 1)),
    ),
    ("f32", "tn"): ((400, 4, 520), (1009, 3, 131), (37, 5, 1031), (83, 4, 260), (1, 4, 520), (90, 1, 7), (9, 9, 1)),
    ("f32", "tt"): ((19, 9, 2600), (33, 17, 1003), (16, 16, 300), (1, 9, 777), (19, 1, 127), (5, 3, 1)),
    ("f64", "tn"): ((48, 32, 640), (67, 37, 301), (48, 32, 33), (1, 32, 640), (65, 1, 15), (7, 5, 1)),
    ("f64", "nn"): ((900, 16, 40), (1503, 9, 71), (129, 8, 40), (1, 16, 40), (300, 1, 31), (33, 3, 1)),
    ("c64", "cn"): ((4, 2, 2600), (9, 7, 3001), (4, 4, 300), (1, 2, 700), (3, 1, 255), (2, 2, 1)),
}


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory, session_cache: None) -> Any:
    """Return a module of TUNED, whose kernels are compiled with little optimisation."""
    run = replace(host_run(), sms=SMS, ceilings=CEILINGS)
    return module_of_list("called on the host", run, tmp_path_factory.mktemp("module"))


def block(rows: int, columns: int, dtype: Any, order: Any, *, padding: int) -> np.ndarray[Any, Any]:
    """Random numbers about 0 as a block of a larger matrix, in NumPy's order C or F."""
    random = np.random.default_rng((rows, columns, padding))
    parts = random.random((2, rows + padding, columns + padding)) - 0.5
    values = parts[0] + 1j * parts[1] if np.dtype(dtype).kind == "c" else parts[0]
    return np.asarray(values.astype(dtype), order=order)[padding:, padding:]


def check(module: ModuleType, dtype: str, op: str, shape: tuple[int, int, int], padding: int, swapped: bool) -> None:
    """The product alone, over what is no number, then with factors, against float64's, for sums in any order."""
    conjugated, (m, n, k) = op[0] == "c", shape
    orders = ["F" if letter == "n" else "C" for letter in f"{op}n"[:3]]
    a, b, out = (
        block(rows, columns, module.DTYPES[dtype], order, padding=padding)
        for (rows, columns), order in zip(((m, k), (k, n), (m, n)), orders, strict=True)
    )
    wide_a, wide_b = (x.astype(np.result_type(x, np.float64)) for x in (a.conj() if conjugated else a, b))
    product, sums = wide_a @ wide_b, np.abs(wide_a) @ np.abs(wide_b)
    asked = {"conj_b" if swapped else "conj_a": conjugated}
    if swapped:  # the transposed product, of row-major matrices where these are column-major
        a, b, out, product, sums = b.T, a.T, out.T, product.T, sums.T
    out[...] = np.nan
    assert module.gemm(a, b, out=out, **asked) is out
    bound = (k + 4) * np.finfo(out.dtype).eps * sums
    assert (np.abs(out - product) <= bound).all(), module.choice(a, b, out, **asked)
    module.gemm(a, b, out=out, alpha=2, beta=-0.5, **asked)
    assert (np.abs(out - 1.5 * product) <= 3 * bound).all(), module.choice(a, b, out, **asked)
    made = module.gemm(a, b, **asked)
    assert (np.abs(made - product) <= bound).all(), module.choice(a, b, **asked)
    assert 1 in shape or module.choice(a, b, out, **asked).is_transposed == swapped


@pytest.mark.parametrize("swapped", [False, True], ids=["", "swapped"])
@pytest.mark.parametrize(("dtype", "op"), SHAPES)
def test_every_shape_is_right(module: ModuleType, dtype: str, op: str, swapped: bool) -> None:
    for shape in SHAPES[dtype, op]:
        is_tuned = f"{'x'.join(map(str, shape))}:{dtype}:{op}" in TUNED
        check(module, dtype, op, shape, 0 if is_tuned else 3, swapped)


def test_every_kernel_is_started_otherwise_than_where_it_won(module: ModuleType) -> None:
    started = defaultdict[str, set[tuple[int, int]]](set)
    won = {family_name_in(w.config): (w.launch.splits, w.launch.rows_per_block) for w in module.WINNERS}
    for (dtype, op), shapes in SHAPES.items():
        for shape in shapes:
            found = module.match(*shape, dtype, op=op)
            started[family_name_in(found.winner.config)].add((found.launch.splits, found.launch.rows_per_block))
            assert found.launch.blocks(*shape[:2]) <= 8 * SMS * BLOCKS_PER_SM
    assert started.keys() == won.keys() == set(map(family_name_in, TUNED.values()))
    assert all(len(launches) >= 3 and won[family] in launches for family, launches in started.items()), started
    # One kernel splits k; the other's blocks have several tiles of rows.
    families = {(65, 4, 2003): "stream_a_fma", (50000, 4, 30): "resident_b_fma", (300, 4, 9000): "stream_a_fma"}
    for shape, family in families.items():
        assert family_name_in(module.match(*shape, "f32").winner.config) == family


def test_calls_of_many_threads_are_right(tmp_path: Path, session_cache: None) -> None:
    """Run the checks of tests/test_gpu_calls.py on a host. `stress` and `same_bits` assert that results are right."""
    arrays = LIBRARIES["numpy"]()
    best = made_module(arrays, tmp_path)
    stress(arrays, best, shrink=64, products=64, threads=4, streams=2)
    same_bits(arrays, best, shrink=64, repeats=3)
