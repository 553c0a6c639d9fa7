"""cublasLtMatmul, stood in for, with descriptors of the real cuBLASLt, which makes and reads them without a GPU."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import lt_calls as lt
from tests.lt_calls import LEFT, MORE, matmul
from tests.on_host import IN_C
from tests.standin_calls import FLAGS, ONE, Played, by_reason, play
from tsm2_tune.interpose.build import standin_path

PLACES = ("nvidia/cu13/lib", "nvidia/cublas/lib")  # folders of wheels


def library() -> Path | None:
    """The real libcublasLt: TSM2_CUBLASLT, or that of a wheel."""
    named = os.environ.get("TSM2_CUBLASLT")
    found = [Path(folder, place) for folder in sys.path for place in PLACES]
    return Path(named) if named else next((one for folder in found for one in folder.glob("libcublasLt.so.*")), None)


pytestmark = [
    *IN_C,
    pytest.mark.skipif(library() is None, reason="no libcublasLt: pip install nvidia-cublas, or set TSM2_CUBLASLT"),
]
# It stands behind the stand-in, and before the real one, which would need a GPU.
NOTING = """
void fake_note(const char *line);
int cublasLtMatmul(void) { fake_note("cublasLtMatmul"); return 0; }
"""


@pytest.fixture(scope="module")
def noting(fakes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the libraries that a program loads, and of what is put before the real one."""
    folder, real = tmp_path_factory.mktemp("noting"), library()
    assert real is not None
    (folder / "noting.c").write_text(NOTING)
    (folder / "libcublasLt.so.13").symlink_to(real)
    for name in ("libcublas.so.13", "libcuda.so.1"):
        (folder / name).symlink_to(fakes / name)
    command = ["cc", *FLAGS, str(folder / "noting.c"), f"-L{fakes}", "-l:libcuda.so.1", "-o"]
    subprocess.run([*command, str(folder / "noting.so")], check=True)
    return folder


@pytest.fixture
def played(noting: Path, narrow: Path) -> Callable[..., Played]:
    preloaded = {"LD_PRELOAD": f"{standin_path()}:{noting / 'noting.so'}"}
    return lambda *steps: play(noting, steps, pack=narrow, environment=preloaded)


def test_a_plain_product_is_taken(played: Callable[..., Played]) -> None:
    plain: list[dict[str, Any]] = [
        {}, {"m": 500, "k": 7}, {"c": {}, "beta": ONE},
        {"operation": {lt.TRANS_A: 0, lt.POINTER_MODE: 0, lt.EPILOGUE: 1}}, {"compute": 69},
        {"b": {"more": {lt.STRIDE: 77, lt.BATCHES: 1}}}, {"transa": 1, "orders": "rcc"},
    ]  # fmt: skip
    found = played(*(matmul(**changes) for changes in plain))
    assert (len(found.launches), found.left, found.told) == (len(plain), [], "")


OF_OPERATION, OF_LAYOUT = {0, 1, lt.TRANS_A, lt.TRANS_B}, {0, lt.ORDER, 2, 3, 4, lt.BATCHES, lt.STRIDE}
KINDS = {1: "b", 2: "h", 4: "i", 8: "q"}


def attributes(which: str) -> Iterator[tuple[int, list[Any]]]:
    """The attributes that this version has, with another value than they have by default."""
    lt, made, written = ctypes.CDLL(str(library())), ctypes.c_void_p(), ctypes.c_size_t()
    if which == "operation":
        get, status = lt.cublasLtMatmulDescGetAttribute, lt.cublasLtMatmulDescCreate(ctypes.byref(made), 68, 0)
    else:
        get, extents = lt.cublasLtMatrixLayoutGetAttribute, [ctypes.c_int64(one) for one in (6, 2, 6)]
        status = lt.cublasLtMatrixLayoutCreate(ctypes.byref(made), 0, *extents)
    assert status == 0
    for number in range(200):
        if get(made, number, None, ctypes.c_size_t(0), ctypes.byref(written)) == 0:
            data = ctypes.create_string_buffer(8)
            assert get(made, number, data, written, ctypes.byref(written)) == 0
            kind = KINDS[written.value]
            yield number, [kind, struct.unpack_from(kind, data)[0] ^ 1]


def test_what_a_kernel_does_not_compute_as_cublaslt_would_is_left(played: Callable[..., Played]) -> None:
    there = {(number, kind) for number, (kind, _) in attributes("operation")}

    def is_known(operation: dict[int, int]) -> bool:
        return {(one, lt.OPERATION_BYTES.get(one, "i")) for one in operation} <= there

    cases = [case for case in LEFT if is_known(case[0].get("operation", {})) and str(lt.UNKNOWN) not in str(case[0])]
    cases.remove(({"k": -1}, lt.WRONG))  # for which no layout is made
    found = played(*(matmul(**changes) for changes, _ in cases))
    assert (found.launches, found.told) == ([], "")
    assert by_reason(found) == Counter(reason for _, reason in cases)


@pytest.mark.parametrize("where", ["operation", "a", "b", "c", "d"])
def test_no_attribute_of_this_version_is_passed_over(played: Callable[..., Played], where: str) -> None:
    """But for those that are read, and say which product it is."""
    which, is_read = ("operation", OF_OPERATION) if where == "operation" else ("layout", OF_LAYOUT)
    others = {number: value for number, value in attributes(which) if number not in is_read}
    assert len(others) >= (20 if where == "operation" else 2)
    each = [{number: value} for number, value in others.items()]
    changes: list[dict[str, Any]] = [{where: one if where == "operation" else {"more": one}} for one in each]
    steps = [matmul(**one) for one in changes]
    found = played(*steps, matmul())
    assert (len(found.launches), len(found.left)) == (1, len(steps))
    named = {lt.POINTER_MODE, lt.EPILOGUE, lt.SM_COUNT} if where == "operation" else set()
    assert by_reason(found)[MORE] == len(others.keys() - named)
