"""The stand-in for cuBLASLt knows the descriptors that it was given before, and tells others apart."""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path

from tests.lt_calls import BIAS, EPILOGUE, LEFT, C, matmul
from tests.on_host import IN_C
from tests.standin_calls import by_reason, play, run_with_standin

pytestmark = IN_C


ASKED_TWICE = """
import ctypes
from tests import lt_calls
lt, driver = ctypes.CDLL("libcublasLt.so.13"), ctypes.CDLL("libcuda.so.1")
for turn in range(3):
    for n in range(1, 4):
        lt_calls.call(lt, ctypes.c_void_p(1), lt_calls.matmul(n=n)[1], [])
    print(lt.fake_attributes_asked())
"""


def test_descriptors_that_came_before_are_not_asked_again(fakes: Path, narrow: Path) -> None:
    """New descriptors in other memory are not asked again either."""
    first, second, third = map(int, run_with_standin([sys.executable, "-c", ASKED_TWICE], [fakes], narrow))
    assert first >= 3 * len(("compute", "scale", "transa", "transb"))
    assert first == second == third


def test_whatever_came_before_descriptors_are_told_apart(fakes: Path, narrow: Path) -> None:
    """Each kind is called twice, with other calls between, and with more kinds than are remembered."""
    rng = random.Random(3)
    taken = [*({"n": 3 + n} for n in range(1200)), {}, {"C": C}]
    cases = [*LEFT, *((changes, "") for changes in taken)] * 2
    rng.shuffle(cases)
    played = play(fakes, [matmul(**changes) for changes, _ in cases], pack=narrow)
    assert (len(played.launches), len(played.left)) == (2 * len(taken), 2 * len(LEFT))
    assert by_reason(played) == Counter(reason for _, reason in cases if reason)


OLDER = """
import ctypes, mmap
from tests import lt_calls
lt, driver, libc = ctypes.CDLL("libcublasLt.so.13"), ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libc.so.6")
driver.fake_log.restype = ctypes.c_char_p
page = mmap.PAGESIZE
memory = mmap.mmap(-1, 2 * page)
end = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + page
assert libc.mprotect(ctypes.c_void_p(end), ctypes.c_size_t(page), 0) == 0
_, values = lt_calls.matmul()
a, b, d = (lt_calls.made_layout(lt, values["layouts"][name]) for name in "abd")
factor, none, whole = ctypes.c_float(1), ctypes.c_void_p(), 25
for words in (whole, whole - 1, whole - 3, whole) * 2:
    operation = ctypes.c_void_p(end - 8 * words)
    assert lt.cublasLtMatmulDescInit_internal(operation, ctypes.c_size_t(8 * words), 68, 0) == 0
    lt.cublasLtMatmul(ctypes.c_void_p(1), operation, ctypes.byref(factor), ctypes.c_void_p(1 << 40), a,
                      ctypes.c_void_p(1 << 50), b, ctypes.byref(factor), ctypes.c_void_p(1 << 60), d,
                      ctypes.c_void_p(1 << 60), d, none, none, ctypes.c_size_t(0), none)
print(driver.fake_log().decode())
"""


def test_nothing_is_read_behind_an_operation_that_an_older_header_made(fakes: Path, narrow: Path) -> None:
    """It ends where memory that may be read does. Such ones are left."""
    lines = run_with_standin([sys.executable, "-c", OLDER], [fakes], narrow)
    calls = [line.split()[0] for line in lines if line.startswith(("launch", "cublas"))]
    assert calls == ["launch", "cublasLtMatmul", "cublasLtMatmul", "launch"] * 2


def test_operations_that_are_another_one_each_time_leave_room_for_others(fakes: Path, narrow: Path) -> None:
    """Each adds another bias; what comes after them is known when it comes again."""
    biased = [matmul(operation={EPILOGUE: 4, BIAS: 64 * at}) for at in range(1, 1500)]
    assert len(play(fakes, [*biased, matmul(), matmul()], pack=narrow).launches) == 2
    first, second, third = map(int, run_with_standin([sys.executable, "-c", FILLED + ASKED_TWICE], [fakes], narrow))
    assert first == second == third


FILLED = """
import ctypes
from tests import lt_calls
lt = ctypes.CDLL("libcublasLt.so.13")
for at in range(1, 1500):
    biased = {lt_calls.EPILOGUE: 4, lt_calls.BIAS: 64 * at}
    lt_calls.call(lt, ctypes.c_void_p(1), lt_calls.matmul(operation=biased)[1], [])
"""
