"""NumPy's arrays, and files of them, as operands of an exported module of a host's kernels."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest


def matrices_of(module: ModuleType, **changes: Any) -> dict[str, Any]:
    arrays = {"a": np.ones((6, 3), order="F"), "b": np.ones((3, 2), order="F"), "out": np.zeros((6, 2), order="F")}
    return arrays | changes


READ_ONLY = np.zeros((6, 2), order="F")
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"a": np.ma.masked_array(np.ones((6, 3)))}, TypeError, "a: masked arrays are not supported"),
        ({"out": np.ma.masked_array(np.ones((6, 2)))}, TypeError, "out: masked arrays are not supported"),
        ({"a": np.broadcast_to(np.ones((6, 1)), (6, 3))}, ValueError, "a: .*pass a contiguous copy"),
        ({"b": np.broadcast_to(1.0, (3, 2))}, ValueError, "b: .*pass a contiguous copy"),
        ({"a": np.ones((6, 3), order="F")[::-1]}, ValueError, "a: .*pass a contiguous copy"),
        (
            {"out": np.lib.stride_tricks.as_strided(np.zeros(6), (6, 2), (8, 0))},
            ValueError,
            "out: .*pass a contiguous copy",
        ),
        ({"out": READ_ONLY}, ValueError, "out: it is read-only"),
        ({"out": np.broadcast_to(np.zeros((6, 1)), (6, 2))}, ValueError, "out: .*(contiguous copy|read-only)"),
        ({"a": np.ones((6, 3), ">f8", order="F")}, TypeError, "a: expected one of float32"),
        ({"a": np.ones((6, 3), object)}, TypeError, "a: expected one of float32"),
    ],
)
def test_arrays_that_numpy_makes(
    host_module: ModuleType, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"^{message}"):
        host_module.gemm(**matrices_of(host_module, **changes))


def test_an_out_within_an_operand_is_refused(host_module: ModuleType) -> None:
    whole = np.ones((6, 6), order="F")
    for a, out in ((whole[:, :3], whole[:, 2:4]), (whole[:, :3], whole[:, :2])):
        with pytest.raises(ValueError, match=r"^out: it shares memory with a"):
            host_module.gemm(a, np.ones((3, 2), order="F"), out=out)


@pytest.mark.host
@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_a_matrix_of_numpy_and_a_file_are_arrays(host_module: ModuleType, tmp_path: Path) -> None:
    on_disk = np.memmap(tmp_path / "a", np.float64, "w+", shape=(6, 3), order="F")
    on_disk[:] = np.arange(18).reshape(6, 3)
    old = np.full((3, 2), 2.0, order="F").view(np.matrix)
    np.testing.assert_array_equal(host_module.gemm(on_disk, old), np.asarray(on_disk) @ np.asarray(old))
