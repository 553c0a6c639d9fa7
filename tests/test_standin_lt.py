"""cublasLtMatmul, stood in for: what is taken, by what its descriptors say, and what is left as it is."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.calls import Call
from tests.library_calls import InProcess
from tests.library_calls import play as play_library
from tests.lt_calls import (
    BATCHES,
    BIAS,
    EPILOGUE,
    LEFT,
    MORE,
    POINTER_MODE,
    STRIDE,
    TRANS_A,
    UNKNOWN,
    A,
    B,
    C,
    D,
    matmul,
    random_matmuls,
)
from tests.on_host import IN_C
from tests.standin_calls import ONE, by_reason, gemm, play, run_with_standin

pytestmark = IN_C
LONG = 2**33 + 6
# Words of a line that may be addresses of host memory: the handle, descriptors, alpha and beta. On the
# device these two are at small addresses.
OF_HOST, LEAST_OF_HOST = (3, 4, 5, 7, 9, 10, 12, 14), 2**16


def without_addresses(lines: list[str]) -> list[str]:
    """Return the lines without addresses of host memory, which differ in each process."""
    found = []
    for line in lines:
        words = line.split(" ")
        for at in OF_HOST:
            words[at] = "host" if int(words[at]) >= LEAST_OF_HOST else words[at]
        found.append(" ".join(words))
    return found


# Products that it leaves


def test_a_call_is_passed_on_as_it_is(fakes: Path) -> None:
    steps = random_matmuls(600, 1)
    alone, played = play(fakes, steps, standin=False), play(fakes, steps)
    assert played.told == ""
    assert played.statuses == alone.statuses
    assert len(alone.left) == 600
    assert without_addresses(played.left) == without_addresses(alone.left)
    assert played.launches == []


def test_each_call_is_taken_or_left_and_none_is_both(fakes: Path, pack: Path) -> None:
    steps = random_matmuls(1500, 2)
    alone, played = play(fakes, steps, standin=False), play(fakes, steps, pack=pack)
    assert played.told == ""
    assert len(played.launches) + len(played.left) == len(alone.left) == 1500
    assert len(played.launches) > 200
    assert sum(one.taken for one in played.seen) == len(played.launches)
    assert sum(one.calls for one in played.seen) + played.uncounted[1] == 1500
    assert {one.routine for one in played.seen} == {"cublasLtMatmul"}
    rest = iter(without_addresses(alone.left))
    assert all(line in rest for line in without_addresses(played.left))  # in their order


@pytest.mark.parametrize("changes", [
    {}, {"C": C}, {"beta": ONE}, {"c": {"ld": 7}}, {"b": {"more": {STRIDE: 77}}}, {"c": {}, "beta": ONE},
    {"algorithm": A, "workspace": A, "workspace_bytes": 9}, {"operation": {EPILOGUE: 1, POINTER_MODE: 0, TRANS_A: 0}},
])  # fmt: skip
def test_a_plain_product_is_taken(fakes: Path, narrow: Path, changes: dict[str, Any]) -> None:
    played = play(fakes, [matmul(**changes)], pack=narrow)
    assert (len(played.launches), played.left, played.told) == (1, [], "")


@pytest.mark.parametrize("where", ["operation", "a", "b", "c", "d"])
def test_an_attribute_that_is_not_known_is_not_passed_over(fakes: Path, narrow: Path, where: str) -> None:
    changes: dict[str, Any] = {"operation": {UNKNOWN: 1}} if where == "operation" else {where: {"more": {UNKNOWN: 1}}}
    played = play(fakes, [matmul(**changes), matmul()], pack=narrow)
    assert (len(played.launches), by_reason(played)) == (1, {MORE: 1})


@pytest.mark.parametrize("operation", [3, 4, -1])
@pytest.mark.parametrize("orders", ["ccc", "rcc", "crc", "rrr"])
def test_what_is_no_operation_of_a_kernels_is_left(
    fakes: Path, library_of_all: Path, operation: int, orders: str
) -> None:
    steps = [matmul(6, 2, 3, 0, *ops, orders) for ops in ((operation, 0), (0, operation))]
    played = play(fakes, steps, pack=library_of_all)
    assert (played.launches, len(played.left), played.told) == ([], 2, "")


@pytest.mark.parametrize("changes", [
    {"compute": 77}, {"compute": 74}, {"compute": 64, "scale": 2}, {"compute": 70}, {"scale": 1}, {"scale": 4},
    {"type_": 3}, {"type_": 28}, {"a": {"type": 2}}, {"b": {"type": 14}}, {"d": {"type": 2}}, {"c": {"type": 2}},
    {"type_": 2, "scale": 2},
])  # fmt: skip
def test_types_that_are_not_summed_up_as_kernels_do_are_left(
    fakes: Path, pack: Path, changes: dict[str, Any]
) -> None:
    played = play(fakes, [matmul(**changes)], pack=pack)
    assert (played.launches, len(played.left), played.uncounted) == ([], 1, (0, 1, 0))


@pytest.mark.parametrize(
    ("type_", "compute"), [(0, 68), (0, 69), (1, 70), (1, 71), (2, 68), (14, 68), (4, 68), (5, 70)]
)
def test_types_that_are_summed_up_as_kernels_do_are_taken(fakes: Path, pack: Path, type_: int, compute: int) -> None:
    played = play(fakes, [matmul(type_=type_, compute=compute)], pack=pack)
    assert (len(played.launches), played.left) == (1, [])


NULLS = """
import ctypes, os, sys
from tests import lt_calls
lt, driver = ctypes.CDLL("libcublasLt.so.13"), ctypes.CDLL("libcuda.so.1")
driver.fake_log.restype = ctypes.c_char_p
_, values = lt_calls.matmul()
layouts = [lt_calls.made_layout(lt, values["layouts"][name]) for name in "abd"]
factor, none = ctypes.c_float(1), ctypes.c_void_p()
plain = [ctypes.c_void_p(1), lt_calls.made_operation(lt, values), ctypes.byref(factor), ctypes.c_void_p(1 << 40),
         layouts[0], ctypes.c_void_p(1 << 50), layouts[1], ctypes.byref(factor), ctypes.c_void_p(1 << 60), layouts[2],
         ctypes.c_void_p(1 << 60), layouts[2], none, none, ctypes.c_size_t(0), none]
for missing in (None, 0, 1, 4, 6, 9, 11):
    lt.cublasLtMatmul(*[none if at == missing else value for at, value in enumerate(plain)])
print(driver.fake_log().decode())
"""


def test_what_is_missing_is_for_cublaslt_to_tell(fakes: Path, narrow: Path) -> None:
    lines = run_with_standin([sys.executable, "-c", NULLS], [fakes], narrow)
    assert [line.split()[0] for line in lines if line.startswith(("launch", "cublas"))] == [
        "launch",
        *["cublasLtMatmul"] * 6,
    ]


# Products that it takes


def test_where_beta_is_0_c_may_be_elsewhere_and_is_not_read(there: InProcess, fakes: Path, narrow: Path) -> None:
    expected = there(play_library, str(narrow), [Call("f32", "NN", 6, 2, 3, a=A, b=B, c=D)])
    for C_at in (0, A, C):
        played = play(fakes, [matmul(C=C_at, D=D)], pack=narrow)
        assert played.launches == [line for line in expected.log if line.startswith("launch ")]


def test_products_of_both_libraries_share_streams_and_kernels(fakes: Path, narrow: Path) -> None:
    """The settings of a handle of cuBLAS's do not concern cuBLASLt."""
    settings = [["cublasSetPointerMode_v2", 1], ["cublasSetMathMode", 3], ["cublasSetSmCountTarget", 9]]
    played = play(
        fakes, [["cublasSetStream_v2", 9], gemm(), *settings, matmul(stream=9), matmul(stream=8)], pack=narrow
    )
    assert [int(line.split(" ")[8]) for line in played.launches] == [9, 9, 8]
    assert {one.routine: (one.calls, one.taken) for one in played.seen} == {"gemm": (1, 1), "cublasLtMatmul": (2, 2)}


def test_times_are_of_what_ran(fakes: Path, narrow: Path) -> None:
    played = play(fakes, [matmul(stream=7)] * 14, pack=narrow, has_times=True)
    (one,) = played.seen
    assert (one.calls, one.taken, one.gpu_us[0], len(one.cublas_us), len(one.taken_us)) == (14, 8, 12, 5, 5)
    assert by_reason(played) == {"timed, to be compared": 6}


def test_a_batch_is_counted_apart(fakes: Path, narrow: Path) -> None:
    played = play(fakes, [matmul(), matmul(d={"more": {BATCHES: 3}})], pack=narrow)
    assert {one.batches: (one.calls, one.taken) for one in played.seen} == {1: (1, 1), 3: (1, 0)}


@pytest.mark.parametrize(("where", "place", "least"), [("a", 0, 6), ("b", 1, 3), ("d", 2, 6)])
def test_of_many_products_that_differ_in_one_layout_each_is_its_own(
    fakes: Path, narrow: Path, where: str, place: int, least: int
) -> None:
    layouts: list[dict[str, Any]] = [{where: {"ld": least + more}} for more in range(1200)]
    steps = [matmul(**layout, c={"ld": 6}) for layout in layouts]
    seen = play(fakes, steps, pack=narrow).seen
    assert sorted(one.leading[place] for one in seen if one.calls == one.taken == 1) == list(
        range(least, least + 1200)
    )


@pytest.mark.parametrize(
    "unfit",
    [
        lambda more: {"beta": ONE, "c": {"ld": 6 + more}},
        lambda more: {"beta": ONE, "c": {}, "operation": {BIAS: A + more}},
    ],
)
def test_of_many_descriptors_only_the_plain_product_is_taken(
    fakes: Path, narrow: Path, unfit: Callable[[int], dict[str, Any]]
) -> None:
    plain = matmul(beta=ONE, c={})
    played = play(fakes, [plain, *(matmul(**unfit(more)) for more in range(1, 1200)), plain], pack=narrow)
    assert (len(played.launches), by_reason(played)) == (2, {MORE: 1199})


# Descriptors that came before are known, and others are told apart


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
