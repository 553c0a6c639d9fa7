"""Batches in an exported module: exact products on the host, whatever their layout, and what is refused."""

from __future__ import annotations

from itertools import cycle, product
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.command import run, said
from tests.databases import database_of
from tests.fabricated import device_array, host_run, module_of, split_trial, trial, tuning_run
from tests.modules import loaded
from tests.on_host import ON_HOST
from tests.recording_driver import recording
from tsm2_tune.generator.families import parse_config
from tsm2_tune.generator.problem import Problem

pytestmark = ON_HOST
SMALL = "small:threads=64,kilobytes=8,thread=2x3,stages=2,padding=0,direct=0,min_blocks=2,blocks=16,extents=0x0x0"
EACH = {  # one product for each z: with partial sums, with persistent blocks, and without a workspace
    "inner_fma_ring:threads=256,block=64x4,thread=8x4,stage_kib=16,stages=3,splits=16": ("nn", "ttt"),
    "resident_b_dmma:threads=128,strips=1,columns=8,depth=64,ring_k=16,stages=5,copy=ca,splits=16": ("nn", "ttt"),
    "row_lanes_register_b:threads=128,vector_bytes=16,lanes=16,vectors=2,columns=4,rows=4,min_blocks=5": ("ttt",),
}
TYPES = {"f32": np.float32, "f64": np.float64, "c64": np.complex64, "f16": np.float16}
NAN = float("nan")


def batch_trial(problem: Problem, text: str) -> Any:
    config = parse_config(text)
    assert config is not None
    return trial(config=config, problem=problem)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, session_cache: None) -> ModuleType:
    """A module of kernels whose blocks share a batch, for all types and two layouts."""
    problems = [Problem(4, 3, 5, dtype, op, batch=300) for dtype, op in product(TYPES, ("nn", "ttt"))]
    problems.append(Problem(4, 4, 5, "f32", "tx", batch=300))
    trials = [batch_trial(problem, SMALL) for problem in problems]
    return module_of(tmp_path_factory.mktemp("shared"), *trials, run=host_run())


@pytest.fixture(scope="module", params=EACH)
def each(tmp_path_factory: pytest.TempPathFactory, session_cache: None, request: pytest.FixtureRequest) -> ModuleType:
    """A module of a kernel that computes one product for each z, in its layouts."""
    trials = [batch_trial(Problem(64, 4, 64, "f64", op, batch=9), request.param) for op in EACH[request.param]]
    return module_of(tmp_path_factory.mktemp("each"), *trials, run=host_run())


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, session_cache: None) -> ModuleType:
    """A module of kernels of batches and of single products."""
    trials = [batch_trial(Problem(4, 3, 5, "f64", op, batch=300), SMALL) for op in ("nn", "ttt")]
    trials += [split_trial(Problem(64, 4, 64, "f64", op)) for op in ("nn", "ttt")]
    return module_of(tmp_path_factory.mktemp("both"), *trials, run=host_run())


def drawn(shape: tuple[int, ...], kind: Any, seed: int = 0) -> Any:
    """Return small whole numbers, whose products are exact."""
    random = np.random.default_rng(seed)
    real, imaginary = random.integers(-3, 4, (2, *shape))
    return (real + 1j * imaginary if np.issubdtype(kind, np.complexfloating) else real).astype(kind)


def laid_out(array: Any, order: str, gap: int = 0, line_gap: int = 0) -> Any:
    """Return the batch in memory with matrices of this order, and NaN in the gaps of lines and of matrices."""
    *products, rows, columns = array.shape
    lines, elements = (columns, rows) if order == "F" else (rows, columns)
    room = np.full((*products, lines * (elements + line_gap) + gap), NAN, array.dtype)
    size = room.itemsize
    line = (elements + line_gap) * size
    strides = (*room.strides[:-1], *((size, line) if order == "F" else (line, size)))
    found = np.lib.stride_tricks.as_strided(room, array.shape, strides)
    found[...] = array
    return found


def check(module: ModuleType, a: Any, b: Any, order: str = "C", **gaps: int) -> None:
    """Check the product in a new array and in `out`, with and without factors. Nothing else is written."""
    expected = np.matmul(a, b)
    found = module.gemm(a, b)
    assert found.shape == expected.shape
    assert found.dtype == a.dtype
    np.testing.assert_array_equal(found, expected)
    old = drawn(expected.shape, a.dtype, 9)
    out = laid_out(old, order, **gaps) if min(a.ndim, b.ndim) > 1 else old.copy()
    whole = out if out.base is None else out.base
    assert module.gemm(a, b, out=out, alpha=2, beta=-1) is out
    np.testing.assert_array_equal(out, 2 * expected - old)
    gaps_before = np.isnan(whole).sum()
    out[...] = NAN
    module.gemm(a, b, out=out)  # beta is 0: out is not read
    np.testing.assert_array_equal(out, expected)
    assert np.isnan(whole).sum() == gaps_before
    out[...] = old
    a_of_nan, b_of_nan = np.full_like(a, NAN), np.full_like(b, NAN)
    module.gemm(a_of_nan, b_of_nan, out=out, alpha=0, beta=2)  # neither a nor b is read
    np.testing.assert_array_equal(out, 2 * old)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("name", TYPES)
def test_products_are_exact_and_gaps_between_lines_and_matrices_are_left(
    shared: ModuleType, name: str, order: str
) -> None:
    each = product(((4, 3, 5), (1, 1, 1), (7, 5, 2), (3, 8, 9)), (2, 3, 100))
    for ((m, n, k), count), (gap, line_gap) in zip(each, cycle(product((0, 3), (0, 2))), strict=False):
        a = laid_out(drawn((count, m, k), TYPES[name], 1), order, gap, line_gap)
        b = laid_out(drawn((count, k, n), TYPES[name], 2), order, line_gap, gap)
        assert shared.choice(a, b).batch == count
        check(shared, a, b, order, gap=gap, line_gap=line_gap)


@pytest.mark.parametrize("order", ["C", "F"])
def test_each_product_is_computed_by_its_own_blocks(each: ModuleType, order: str) -> None:
    if order == "F" and len(each.WINNERS) == 1:
        pytest.skip("this kernel has row-major matrices only")
    for (m, n, k), count in (((64, 4, 64), 3), ((65, 5, 40), 2), ((7, 3, 9), 5)):
        a = laid_out(drawn((count, m, k), np.float64, 1), order, 3, 1)
        b = laid_out(drawn((count, k, n), np.float64, 2), order, 0, 2)
        found = each.choice(a, b)
        assert (found.batch, found.products_of_grid) == (count, count)
        check(each, a, b, order, gap=5, line_gap=1)


BROADCAST = (
    ((6, 4, 5), (6, 5, 3)), ((2, 3, 4, 5), (2, 3, 5, 3)), ((6, 4, 5), (1, 5, 3)), ((1, 4, 5), (6, 5, 3)),
    ((6, 4, 5), (5, 3)), ((4, 5), (6, 5, 3)), ((2, 1, 3, 4, 5), (2, 1, 3, 5, 3)), ((2, 3, 4, 5), (1, 1, 5, 3)),
    ((4, 5), (2, 3, 5, 3)), ((6, 4, 5), (5,)), ((5,), (6, 5, 3)), ((2, 3, 4, 5), (5,)), ((1, 4, 5), (5, 3)),
    ((1, 1, 4, 5), (1, 5, 3)), ((3, 1, 4, 5), (1, 1, 5, 3)),
)  # fmt: skip


@pytest.mark.parametrize(("of_a", "of_b"), BROADCAST)
def test_leading_dimensions_broadcast_as_numpys(both: ModuleType, of_a: Any, of_b: Any) -> None:
    a, b = drawn(of_a, np.float64), drawn(of_b, np.float64, 1)
    for order in ("C", "F"):
        in_order = [x if x.ndim == 1 else laid_out(x, order) for x in (a, b)]
        check(both, in_order[0], in_order[1], order)


def test_a_matrix_times_its_transpose_in_each_product(shared: ModuleType) -> None:
    x = drawn((50, 5, 4), np.float32)  # row-major: its transpose is column-major
    a = np.swapaxes(laid_out(np.swapaxes(x, 1, 2), "C"), 1, 2)
    assert shared.choice(np.swapaxes(a, 1, 2), a).winner.op == "tx"
    np.testing.assert_array_equal(shared.gemm(np.swapaxes(a, 1, 2), a), np.swapaxes(x, 1, 2) @ x)
    other = a[::-1].copy()
    shifted = np.lib.stride_tricks.as_strided(a, other.shape, (0, *a.strides[1:]))  # the first one for all
    assert not shared.Product.of(np.swapaxes(a, 1, 2), shifted, None).is_gram


def test_one_product_is_a_single_product_and_none_is_nothing(both: ModuleType) -> None:
    a, b = drawn((1, 64, 64), np.float64), drawn((1, 64, 4), np.float64)
    assert (both.choice(a, b).batch, both.choice(a, b).winner.batch) == (1, 1)
    check(both, a, b)
    for empty in ((0,), (3, 0), (0, 2)):
        none = drawn((*empty, 4, 5), np.float64), drawn((*empty, 5, 3), np.float64)
        out = np.full((*empty, 4, 3), 7.0)
        assert both.gemm(*none, out=out, beta=2) is out
        assert both.gemm(*none).shape == out.shape


def test_a_nan_stays_in_its_product(shared: ModuleType, each: ModuleType) -> None:
    for module, shape, kind in ((shared, (4, 5, 3), np.float32), (each, (64, 64, 4), np.float64)):
        m, k, n = shape
        a, b = drawn((5, m, k), kind), drawn((5, k, n), kind)
        a[2] = NAN
        b[3] = np.inf
        a[3] = 1
        found = module.gemm(a, b)
        assert np.isnan(found[2]).all()
        assert np.isinf(found[3]).all()
        np.testing.assert_array_equal(found[[0, 1, 4]], (a @ b)[[0, 1, 4]])


def test_as_many_products_as_the_grid_has_are_exact_and_more_refused(each: ModuleType) -> None:
    at_the_limit, beyond = (
        each.Product.of(np.ones((count, 7, 9)), np.ones((count, 9, 3)), None) for count in (65535, 65536)
    )
    assert each.choose(at_the_limit, None).products_of_grid == 65535
    with pytest.raises(ValueError, match=r"no kernel of this module computes 65536\*7x3x9 f64"):
        each.choose(beyond, None)
    if not each.WINNERS[0].launch.has_workspace:  # whose blocks take long on the host
        a, b = drawn((65535, 1, 2), np.float64, 1), drawn((65535, 2, 1), np.float64, 2)
        np.testing.assert_array_equal(each.gemm(a, b), np.matmul(a, b))


def test_an_out_that_overlaps_itself_or_an_operand_is_refused(both: ModuleType) -> None:
    a, b = drawn((6, 4, 5), np.float64), drawn((6, 5, 3), np.float64)
    for step in (0, 8, 88, 24):
        out = np.lib.stride_tricks.as_strided(np.zeros(1000), (6, 4, 3), (step, 24, 8))
        with pytest.raises(ValueError, match=r"^out: its matrices overlap"):
            both.gemm(a, b, out=out)
    interleaved = np.swapaxes(np.zeros((4, 6, 3)), 0, 1)  # rows of one product between those of another
    np.testing.assert_array_equal(both.gemm(a, b, out=interleaved), a @ b)
    room, b = drawn((12, 4, 4), np.float64), drawn((6, 4, 4), np.float64)
    with pytest.raises(ValueError, match=r"^out: it shares memory with a"):
        both.gemm(room[:6], b, out=room[5:11])
    a = room[::2]
    np.testing.assert_array_equal(both.gemm(a, b, out=room[1::2]), a @ b)  # between the matrices of a


A, B = (6, 4, 5), (6, 5, 3)


@pytest.mark.parametrize(
    ("of_a", "of_b", "of_out", "sentence"),
    [
        (A, (7, 5, 3), None, r"leading dimensions \(6,\) and \(7,\) do not broadcast"),
        (A, (6, 4, 3), None, "^b: expected 5 rows"),
        *(
            (A, B, (count, 4, 3), rf"^out: expected the leading dimensions \(6,\), got \({count},\)")
            for count in (5, 1)
        ),
        *((A, B, of_out, "^out: expected a matrix") for of_out in ((4, 3), (1, 6, 4, 3))),
        ((4, 5), (5, 3), (1, 4, 3), "^out: expected a matrix"),
        # b is repeated along one of two dimensions
        ((2, 3, 4, 5), (3, 5, 3), None, r"the leading dimensions \(2, 3\) are not one dimension of each array"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    both: ModuleType, of_a: Any, of_b: Any, of_out: Any, sentence: str
) -> None:
    out = None if of_out is None else np.zeros(of_out)
    with pytest.raises(ValueError, match=sentence):
        both.gemm(np.zeros(of_a), np.zeros(of_b), out=out)


def test_a_batch_in_descending_order_has_no_kernel(both: ModuleType) -> None:
    with pytest.raises(ValueError, match="matrices are -160 bytes apart"):
        both.gemm(np.zeros((3, 4, 5))[::-1], np.zeros((3, 5, 3)))


def test_a_timed_choice_is_for_one_count_and_its_strides(tmp_path: Path) -> None:
    timed = module_of(tmp_path, batch_trial(Problem(4, 3, 5, "f32", "ttt", batch=300), SMALL))
    driver = recording(timed, is_compiled=lambda *_: True)
    driver.has_batches, driver.free_bytes = True, 1 << 30
    for count, gap in ((1000, 0), (2, 0), (1000, 400), (1000, 0)):
        arrays = [
            device_array((count, *shape), (4 * shape[0] * shape[1] + gap, 4 * shape[1], 4), at=at)
            for shape, at in (((4, 5), 0x1000000), ((5, 3), 0x2000000), ((4, 3), 0x3000000))
        ]
        a, b, out = arrays
        expected = timed.choice(a, b, out, fallback="error")
        assert timed.gemm(a, b, out=out, measure=True) is out
        assert driver.launches[-1]["values"][-4:] == [count, *expected.strides]
    assert len(timed.decided) == 3


def test_a_match_tells_the_batch(shared: ModuleType) -> None:
    found, near = (shared.match(4, 3, 5, "f32", op="ttt", batch=batch) for batch in (300, 200))
    assert (found.is_tuned, found.batch, found.winner.batch, found.measured_batch) == (True, 300, 300, 300)
    assert "tuned for 300*4x3x5" in str(near)
    with pytest.raises(ValueError, match=r"^batch: expected at least 1"):
        shared.match(4, 3, 5, "f32", batch=0)


def test_without_a_core_tuned_batches_alone_have_kernels(
    shared: ModuleType, each: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, of_a, of_b in ((shared, (300, 4, 5), (300, 5, 3)), (each, (9, 64, 64), (9, 64, 4))):
        kind = np.float32 if module is shared else np.float64
        plain = module.Chooser(module.WINNERS, None)
        a, b = drawn(of_a, kind), drawn(of_b, kind)
        asked = module.Product.of(a, b, np.empty((*of_a[:2], of_b[2]), kind))
        found, by_core = plain.match(module.record_of(asked), None), module.choose(asked, None)
        told = ("strides", "batch", "workspace_bytes", "workspace_strides", "grid", "measured_batch", "merged")
        assert [getattr(found, name) for name in told] == [getattr(by_core, name) for name in told]
        fewer = module.Product.of(a[1:], b[1:], None)
        with pytest.raises(LookupError, match=r"no kernel was tuned for \d+\*"):
            plain.match(module.record_of(fewer), None)


def test_a_module_of_the_command_line_has_batches(tmp_path: Path) -> None:
    """tests/test_batches.py tunes such a database."""
    path = tmp_path / "kernels.py"
    single = trial(problem=Problem(4, 4, 4, "f32"))
    module_of(tmp_path, batch_trial(Problem(4, 4, 4, "f32", batch=300), SMALL), single, run=host_run())
    done = run("export", "--db", str(tmp_path / "results.db"), "-o", str(path))
    assert (done.exit_code, "left out" in done.stderr) == (0, False), done.stderr
    module = loaded(path)
    assert sorted(winner.batch for winner in module.WINNERS) == [1, 300]
    a, b = (laid_out(drawn((300, 4, 4), np.float32, seed), "F") for seed in (1, 2))
    assert module.choice(a, b).is_tuned
    np.testing.assert_array_equal(module.gemm(a, b), a @ b)
    predicted = database_of(
        tmp_path / "gpu.db", batch_trial(Problem(4, 4, 4, "f32", batch=300), SMALL), run=tuning_run()
    )
    assert "small" in said("predict", "--db", predicted, "--shapes", "300*4x4x4,200*4x4x4")
