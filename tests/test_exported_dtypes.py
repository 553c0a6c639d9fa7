"""The exported module computes every element type, with conjugates and other math where it is asked for."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fabricated import host_run, module_of, split_trial
from tsm2_tune.generator.problem import Problem

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler"),
]


def random_matrices(dtype: Any) -> list[np.ndarray[Any, Any]]:
    """Return column-major a and b, each a part of a larger matrix."""
    random = np.random.default_rng(1)
    return [np.asfortranarray(random.random((m + 3, n + 2)) - 0.5, dtype)[3:, 2:] for m, n in ((40, 90), (90, 6))]


def test_bfloat16_is_that_of_ml_dtypes(tmp_path: Path) -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    module = module_of(tmp_path, split_trial(Problem(40, 6, 90, "bf16")), run=host_run())
    a, b = random_matrices(bfloat16)
    made = module.gemm(a, b)
    assert made.dtype == bfloat16
    np.testing.assert_allclose(
        made.astype(np.float32), a.astype(np.float32) @ b.astype(np.float32), rtol=1e-2, atol=1e-2
    )


class Bfloat16(np.ndarray[Any, np.dtype[np.uint16]]):
    """Bits of bfloat16, called so as ml_dtypes calls it."""

    dtype = type("dtype", (), {"itemsize": 2, "kind": "V", "str": "<V2", "__str__": lambda self: "bfloat16"})()


def test_arrays_called_bfloat16_are_read_as_such(tmp_path: Path) -> None:
    module = module_of(tmp_path, split_trial(Problem(40, 6, 90, "bf16")), run=host_run())
    values = [np.random.default_rng(1).integers(-9, 9, shape) for shape in ((40, 90), (90, 6))]
    a, b = (np.asfortranarray((np.float32(x).view(np.uint32) >> 16).astype(np.uint16)).view(Bfloat16) for x in values)
    c = np.zeros((40, 6), np.uint16, order="F").view(Bfloat16)
    module.gemm(a, b, out=c)
    found = (np.asarray(c, np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(found, values[0] @ values[1], rtol=2**-8)
    assert module.match(40, 6, 90, "bf16").winner.dtype == "bf16"


def test_other_math_runs_only_where_it_is_asked_for(tmp_path: Path) -> None:
    module = module_of(
        tmp_path, *(split_trial(Problem(40, 6, 90, math)) for math in ("tf32", "3xtf32")), run=host_run()
    )
    a, b = random_matrices(np.float32)
    np.testing.assert_allclose(module.gemm(a, b, math="tf32"), a @ b, rtol=1e-4, atol=1e-5)
    assert module.choice(a, b, math="3xtf32").winner.dtype == "3xtf32"
    with pytest.raises(LookupError, match="no f32 kernel tuned on a host is in this module"):
        module.gemm(a, b)
    of_doubles = a.astype(np.float64), b.astype(np.float64)
    for arrays, math in (((a, b), "bf16"), (of_doubles, "tf32"), ((a, b), ["tf32"])):
        with pytest.raises(
            ValueError, match="math: expected None, or tf32 of float32, or 3xtf32 of float32, or minplus of float32"
        ):
            module.gemm(*arrays, math=math)


def test_real_numbers_are_their_own_conjugates(tmp_path: Path) -> None:
    module = module_of(tmp_path, split_trial(Problem(40, 6, 90, "f32")), run=host_run())
    a, b = random_matrices(np.float32)
    np.testing.assert_array_equal(module.gemm(a, b, conj_a=True, conj_b=True), module.gemm(a, b))
    with pytest.raises(TypeError, match="alpha: expected a real number, got complex"):
        module.gemm(a, b, alpha=1j)
    for factor in (10**400, 10**40, -1e300):
        with pytest.raises(ValueError, match="alpha: too large for float32"):
            module.gemm(a, b, alpha=factor)
