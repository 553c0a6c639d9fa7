"""`cupy.matmul` of an exported module is CuPy's: results, where these lie, and errors; without a GPU, by NumPy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.cupy_on_host import Cupy, Ndarray
from tests.fabricated import module_of, split_trial
from tests.modules import fresh
from tests.pretended_gpu import compute
from tests.recording_driver import recording
from tsm2_tune.generator.problem import Problem

pytestmark = pytest.mark.slow

OPS = ("ttt", "ntt", "tnt")  # ops of kernels with a row-major result
RANDOM = np.random.default_rng(11)


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Cupy:
    fake = Cupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return fake


@pytest.fixture(scope="module")
def of_ops(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """A module with kernels for OPS in f32 and c64."""
    problems = [Problem(64, 4, 64, dtype, op) for dtype in ("f32", "c64") for op in OPS]
    batches = [split_trial(replace(one, batch=9)) for one in problems]
    return module_of(tmp_path_factory.mktemp("module"), *problems, *batches)


@pytest.fixture
def module(of_ops: ModuleType) -> Iterator[Any]:
    """The module on a pretended GPU; `streams` are where its products went."""
    with fresh(of_ops) as module:
        recording(module, streams=compute(module))
        yield module


def numbers(shape: tuple[int, ...], dtype: str = "f4", order: Any = "C") -> Ndarray:
    """Small whole numbers, whose products are exact."""
    real, imaginary = RANDOM.integers(-4, 5, (2, *shape))
    return Ndarray(np.asarray(real + 1j * imaginary if dtype[0] == "c" else real, dtype, order=order))


def check(module: ModuleType, cupy: Cupy, a: Ndarray, b: Ndarray, *, by_kernel: bool, **named: Any) -> None:
    """Twice, so that the second product takes the short way: as NumPy has it, by the kernel or by CuPy."""
    for _ in range(2):
        before = len(module.streams), cupy.multiplied
        found = module.cupy.matmul(a, b, **named)
        expected = np.matmul(a.held, b.held)
        assert found.shape == expected.shape
        assert found.dtype == (named["out"].dtype if "out" in named else expected.dtype)
        np.testing.assert_array_equal(found.held, expected)
        if "out" in named:
            assert found is named["out"]
            found.held[...] = np.nan
        else:
            assert found._c_contiguous
        done = len(module.streams) - before[0], cupy.multiplied - before[1]
        assert done == ((1, 0) if by_kernel else (0, 1))


SHAPES = (
    ((30, 20), (20, 3)), ((30, 20), (20,)), ((20,), (20, 3)), ((5, 6, 20), (20, 3)), ((5, 6, 20), (20,)),
    ((2, 5, 6, 20), (20, 3)), ((5, 6, 20), (5, 20, 3)), ((2, 5, 6, 20), (2, 5, 20, 3)), ((5, 6, 20), (1, 20, 3)),
    ((6, 20), (5, 20, 3)), ((20,), (5, 20, 3)),
)  # fmt: skip


@pytest.mark.parametrize("dtype", ["f4", "c8"])
@pytest.mark.parametrize("shapes", SHAPES)
def test_matrices_vectors_and_batches_are_multiplied_by_kernels(
    module: ModuleType, cupy: Cupy, shapes: Any, dtype: str
) -> None:
    for orders in ("CC", "FC", "CF") if shapes == SHAPES[0] else ("CC",):
        a, b = (numbers(shape, dtype, order) for shape, order in zip(shapes, orders, strict=True))
        check(module, cupy, a, b, by_kernel=True)
        check(module, cupy, a, b, by_kernel=True, out=numbers((a.held @ b.held).shape, dtype))


def test_a_batch_is_read_and_written_where_it_is(module: ModuleType, cupy: Cupy) -> None:
    """Matrices with gaps, transposed matrices, and an out with gaps."""
    a, b = Ndarray(numbers((5, 9, 23)).held[:, :6, :20]), Ndarray(numbers((5, 20, 7)).held[..., :3])
    check(module, cupy, a, b, by_kernel=True, out=Ndarray(numbers((5, 6, 8)).held[..., :3]))
    check(module, cupy, a, Ndarray(b.held[0]), by_kernel=True)
    check(module, cupy, numbers((20,)), Ndarray(numbers((3, 20)).held.T), by_kernel=True)
    check(module, cupy, Ndarray(numbers((5, 20, 6)).held.transpose(0, 2, 1)), b, by_kernel=True)
    of_all = Ndarray(np.broadcast_to(numbers((20, 3)).held, (5, 20, 3)))
    check(module, cupy, a, of_all, by_kernel=True)


LEFT: tuple[tuple[Any, ...], ...] = (
    (numbers((20,)), numbers((20,))),
    (numbers((5, 6, 20), order="F"), numbers((20, 3))),
    (numbers((2, 5, 6, 20)), numbers((2, 1, 20, 3))),  # the dimensions of the batch are not one
    (numbers((5, 6, 20), "f8"), numbers((5, 20, 3), "f8")),
    (numbers((5, 6, 0)), numbers((5, 0, 3))),
    (numbers((6, 20)), numbers((20, 3), "f8")),
    (numbers((6, 20), "f8"), numbers((20, 3), "f8")),  # there are no kernels for it
    (numbers((6, 20), "i4"), numbers((20, 3), "i4")),
    (Ndarray(numbers((12, 40)).held[::2, ::2]), numbers((20, 3))),
    (numbers((6, 0)), numbers((0, 3))),
    (numbers((0, 6, 20)), numbers((20, 3))),
    (numbers((6, 20)), numbers((20, 3)), numbers((6, 3), "f8")),
    (numbers((6, 20)), numbers((20, 3)), Ndarray(numbers((12, 6)).held[::2, ::2])),
    (numbers((5, 6, 20)), numbers((20, 3)), numbers((5, 6, 3), order="F")),
)


def test_what_no_kernel_computes_is_left_to_cupy(module: ModuleType, cupy: Cupy, tmp_path: Path) -> None:
    for a, b, *out in LEFT:
        check(module, cupy, a, b, by_kernel=False, **({"out": out[0]} if out else {}))
    check(module, cupy, numbers((6, 20)), numbers((20, 3)), by_kernel=False, dtype=np.float32)
    a, b = numbers((6, 6)), numbers((6, 6))
    expected = a.held @ b.held
    assert module.cupy.matmul(a, b, out=a) is a  # over its own operand
    np.testing.assert_array_equal(a.held, expected)
    assert module.streams == []
    slower = module_of(tmp_path, Problem(64, 4, 64, "f32", "ttt"), cublas_us=100.0, cublas_right=1)
    recording(slower, streams=[])
    check(slower, cupy, numbers((64, 64)), numbers((64, 4)), by_kernel=False)


ERRORS: tuple[tuple[Any, ...], ...] = (
    (numbers((6, 20)), numbers((19, 3)), None),
    (numbers((6, 20)), numbers((20, 3)), numbers((6, 4))),
    (numbers((6, 20)), numbers((20, 3)), numbers((6, 3), "i4")),
    (numbers(()), numbers((20, 3)), None),
    (numbers((5, 6, 20)), numbers((20, 3)), numbers((6, 5, 3))),
    (numbers((5, 6, 20)), numbers((4, 20, 3)), None),
    (numbers((5, 6, 20)), numbers((5, 20, 3)), numbers((5, 6, 4))),
    (numbers((6, 20)), Ndarray(numbers((20, 3)).held, 1), None),
    (numbers((6, 20)), numbers((20, 3)).held, None),
    ([[1.0]], numbers((1, 1)), None),
)


@pytest.mark.parametrize(("a", "b", "out"), ERRORS, ids=range(len(ERRORS)))
def test_errors_are_cupys(module: ModuleType, cupy: Cupy, a: Any, b: Any, out: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as theirs:
        cupy.matmul(a, b, out=out)
    with pytest.raises(type(theirs.value)) as ours:
        module.cupy.matmul(a, b, out=out)
    assert str(ours.value) == str(theirs.value)
    assert module.streams == []
