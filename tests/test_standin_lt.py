"""cublasLtMatmul, stood in for: what is taken, by what its descriptors say, and what is left as it is."""

from __future__ import annotations

import ctypes
import os
import random
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import lt_calls as lt
from tests.calls import Call
from tests.library_calls import InProcess
from tests.library_calls import play as play_library
from tests.lt_calls import LEFT, MORE, A, C, D, matmul
from tests.on_host import IN_C
from tests.standin_calls import FLAGS, ONE, Played, by_reason, gemm, play, run_with_standin
from tsm2_tune.interpose.build import standin_path

pytestmark = IN_C
Plays = Callable[..., Played]
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


@pytest.fixture
def played(fakes: Path, narrow: Path) -> Plays:
    return lambda *steps, **named: play(fakes, steps, **{"pack": narrow} | named)


def test_each_call_is_taken_or_left_and_none_is_both(fakes: Path, pack: Path) -> None:
    """Without a pack, and with one, cuBLASLt gets its calls as they are and in their order."""
    steps = lt.random_matmuls(1500, 2)
    alone, passed_on, found = (play(fakes, steps, **named) for named in ({"standin": False}, {}, {"pack": pack}))
    assert (passed_on.told, passed_on.statuses, passed_on.launches) == ("", alone.statuses, [])
    assert without_addresses(passed_on.left) == without_addresses(alone.left)
    assert (found.told, len(found.launches) + len(found.left), len(alone.left)) == ("", 1500, 1500)
    assert sum(one.taken for one in found.seen) == len(found.launches) > 200
    assert sum(one.calls for one in found.seen) + found.uncounted[1] == 1500
    assert {one.routine for one in found.seen} == {"cublasLtMatmul"}
    rest = iter(without_addresses(alone.left))
    assert all(line in rest for line in without_addresses(found.left))  # in their order


PLAIN_CALLS: list[dict[str, Any]] = [
    {}, {"C": C}, {"beta": ONE}, {"c": {"ld": 7}}, {"b": {"more": {lt.STRIDE: 77}}}, {"c": {}, "beta": ONE},
    {"algorithm": A, "workspace": A, "workspace_bytes": 9}, {"compute": 69}, {"transa": 1, "orders": "rcc"},
    {"operation": {lt.EPILOGUE: 1, lt.POINTER_MODE: 0, lt.TRANS_A: 0}},
]  # fmt: skip


def test_a_plain_product_is_taken(played: Plays) -> None:
    found = played(*(matmul(**changes) for changes in PLAIN_CALLS))
    assert (len(found.launches), found.left, found.told) == (len(PLAIN_CALLS), [], "")


def test_what_is_no_operation_of_a_kernels_is_left(played: Plays, library_of_all: Path) -> None:
    operations = [ops for wrong in (3, 4, -1) for ops in ((wrong, 0), (0, wrong))]
    steps = [matmul(6, 2, 3, 0, *ops, orders) for ops in operations for orders in ("ccc", "rcc", "crc", "rrr")]
    found = played(*steps, pack=library_of_all)
    assert (found.launches, len(found.left), found.told) == ([], len(steps), "")


def test_types_that_are_summed_up_as_kernels_do_are_taken(played: Plays, pack: Path) -> None:
    kinds = (0, 68), (0, 69), (1, 70), (1, 71), (2, 68), (14, 68), (4, 68), (5, 70)
    others: list[dict[str, Any]] = [
        {"compute": 77}, {"compute": 74}, {"compute": 64, "scale": 2}, {"compute": 70}, {"scale": 1}, {"scale": 4},
        {"type_": 3}, {"type_": 28}, {"a": {"type": 2}}, {"b": {"type": 14}}, {"d": {"type": 2}},
        {"c": {"type": 2}}, {"type_": 2, "scale": 2},
    ]  # fmt: skip
    found = played(*(matmul(**changes) for changes in others), pack=pack)
    assert (found.launches, len(found.left), found.uncounted) == ([], len(others), (0, len(others), 0))
    found = played(*(matmul(type_=type_, compute=compute) for type_, compute in kinds), pack=pack)
    assert (len(found.launches), found.left) == (len(kinds), [])


PLAIN = """
import ctypes
from tests import lt_calls
lt, driver = ctypes.CDLL("libcublasLt.so.13"), ctypes.CDLL("libcuda.so.1")
driver.fake_log.restype = ctypes.c_char_p
_, values = lt_calls.matmul()
a, b, d = (lt_calls.made_layout(lt, values["layouts"][name]) for name in "abd")
at_a, at_b, at_d = (ctypes.c_void_p(1 << bits) for bits in (40, 50, 60))
factor, none = ctypes.byref(ctypes.c_float(1)), ctypes.c_void_p()
def plain(operation):
    return [ctypes.c_void_p(1), operation, factor, at_a, a, at_b, b, factor, at_d, d, at_d, d, none, none,
            ctypes.c_size_t(0), none]
"""
NULLS = """
arguments = plain(lt_calls.made_operation(lt, values))
for missing in (None, 0, 1, 4, 6, 9, 11):
    lt.cublasLtMatmul(*[none if at == missing else value for at, value in enumerate(arguments)])
print(driver.fake_log().decode())
"""


def launches_and_calls(fakes: Path, pack: Path, script: str) -> list[str]:
    lines = run_with_standin([sys.executable, "-c", PLAIN + script], [fakes], pack)
    return [line.split()[0] for line in lines if line.startswith(("launch", "cublas"))]


def test_what_is_missing_is_for_cublaslt_to_tell(fakes: Path, narrow: Path) -> None:
    assert launches_and_calls(fakes, narrow, NULLS) == ["launch", *["cublasLtMatmul"] * 6]


def test_where_beta_is_0_c_may_be_elsewhere_and_is_not_read(there: InProcess, played: Plays, narrow: Path) -> None:
    expected = there(play_library, str(narrow), [Call("f32", "NN", 6, 2, 3, a=A, b=lt.B, c=D)])
    (launch,) = (line for line in expected.log if line.startswith("launch "))
    assert played(*(matmul(C=at, D=D) for at in (0, A, C))).launches == [launch] * 3


def test_products_of_both_libraries_share_streams_and_kernels(played: Plays) -> None:
    """The settings of a handle of cuBLAS's do not concern cuBLASLt."""
    settings = ["cublasSetPointerMode_v2", 1], ["cublasSetMathMode", 3], ["cublasSetSmCountTarget", 9]
    found = played(["cublasSetStream_v2", 9], gemm(), *settings, matmul(stream=9), matmul(stream=8))
    assert [int(line.split(" ")[8]) for line in found.launches] == [9, 9, 8]
    assert {one.routine: (one.calls, one.taken) for one in found.seen} == {"gemm": (1, 1), "cublasLtMatmul": (2, 2)}


def test_times_are_of_what_ran_and_a_batch_is_counted_apart(played: Plays) -> None:
    found = played(*[matmul(stream=7)] * 14, matmul(d={"more": {lt.BATCHES: 3}}), has_times=True)
    one, batch = sorted(found.seen, key=lambda seen: seen.batches)
    assert (one.calls, one.taken, one.gpu_us[0], len(one.cublas_us), len(one.taken_us)) == (14, 8, 12, 5, 5)
    assert by_reason(found)["timed, to be compared"] == 6
    assert (batch.batches, batch.calls, batch.taken) == (3, 1, 0)


def test_of_many_products_that_differ_in_one_layout_each_is_its_own(played: Plays) -> None:
    more = range(1, 1201)
    leading = [
        *((6 + one, 3, 6) for one in more),
        *((6, 3 + one, 6) for one in more),
        *((6, 3, 6 + one) for one in more),
    ]
    random.Random(1).shuffle(leading)  # the first ones are remembered
    layouts: list[dict[str, Any]] = [
        {name: {"ld": ld} for name, ld in zip("abd", lds, strict=True)} for lds in leading
    ]
    seen = played(*(matmul(**layout, c={"ld": 6}) for layout in layouts)).seen
    assert sorted(one.leading for one in seen if one.calls == one.taken == 1) == sorted(leading)


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
FILLED = """
import ctypes
from tests import lt_calls
lt = ctypes.CDLL("libcublasLt.so.13")
for at in range(1, 1500):
    biased = {lt_calls.EPILOGUE: 4, lt_calls.BIAS: 64 * at}
    lt_calls.call(lt, ctypes.c_void_p(1), lt_calls.matmul(operation=biased)[1], [])
"""


@pytest.mark.parametrize("before", ["", FILLED], ids=["at first", "behind others"])
def test_descriptors_that_came_before_are_not_asked_again(fakes: Path, narrow: Path, before: str) -> None:
    """New descriptors in other memory are not asked again either, nor behind many, each with another bias."""
    first, *later = map(int, run_with_standin([sys.executable, "-c", before + ASKED_TWICE], [fakes], narrow))
    assert first >= 3 * len(("compute", "scale", "transa", "transb"))
    assert later == [first] * 2


def test_whatever_came_before_descriptors_are_told_apart(played: Plays) -> None:
    """Each kind is called twice, with other calls between, and with more kinds than are remembered."""
    rng = random.Random(3)
    taken: list[dict[str, Any]] = [*({"n": 3 + n} for n in range(1200)), {}, {"C": C}, {"c": {}, "beta": ONE}]
    left = [*LEFT, *(({"c": {"ld": 6 + more}, "beta": ONE}, MORE) for more in range(1, 1200))]
    left += [({"c": {}, "beta": ONE, "operation": {lt.BIAS: A + more}}, MORE) for more in range(1, 1200)]
    cases = [*left, *((changes, "") for changes in taken)] * 2
    rng.shuffle(cases)
    found = played(*(matmul(**changes) for changes, _ in cases))
    assert (len(found.launches), len(found.left)) == (2 * len(taken), 2 * len(left))
    assert by_reason(found) == Counter(reason for _, reason in cases if reason)


OLDER = """
import mmap
libc, page = ctypes.CDLL("libc.so.6"), mmap.PAGESIZE
memory = mmap.mmap(-1, 2 * page)
end = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + page
assert libc.mprotect(ctypes.c_void_p(end), ctypes.c_size_t(page), 0) == 0
for words in (25, 24, 22, 25) * 2:
    operation = ctypes.c_void_p(end - 8 * words)
    assert lt.cublasLtMatmulDescInit_internal(operation, ctypes.c_size_t(8 * words), 68, 0) == 0
    lt.cublasLtMatmul(*plain(operation))
print(driver.fake_log().decode())
"""


def test_nothing_is_read_behind_an_operation_that_an_older_header_made(fakes: Path, narrow: Path) -> None:
    """It ends where memory that may be read does. Such ones are left."""
    expected = ["launch", "cublasLtMatmul", "cublasLtMatmul", "launch"] * 2
    assert launches_and_calls(fakes, narrow, OLDER) == expected


# Descriptors of the real cuBLASLt, which makes and reads them without a GPU

PLACES = ("nvidia/cu13/lib", "nvidia/cublas/lib")  # folders of wheels


def library() -> Path | None:
    """The real libcublasLt: TSM2_CUBLASLT, or that of a wheel."""
    named = os.environ.get("TSM2_CUBLASLT")
    found = [Path(folder, place) for folder in sys.path for place in PLACES]
    return Path(named) if named else next((one for folder in found for one in folder.glob("libcublasLt.so.*")), None)


has_library = pytest.mark.skipif(
    library() is None, reason="no libcublasLt: pip install nvidia-cublas, or set TSM2_CUBLASLT"
)
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
def with_real(noting: Path, narrow: Path) -> Plays:
    preloaded = {"LD_PRELOAD": f"{standin_path()}:{noting / 'noting.so'}"}
    return lambda *steps: play(noting, steps, pack=narrow, environment=preloaded)


OF_OPERATION, OF_LAYOUT = {0, 1, lt.TRANS_A, lt.TRANS_B}, {0, lt.ORDER, 2, 3, 4, lt.BATCHES, lt.STRIDE}
KINDS = {1: "b", 2: "h", 4: "i", 8: "q"}


def attributes(which: str) -> Iterator[tuple[int, list[Any]]]:
    """The attributes that this version has, with another value than they have by default."""
    real, made, written = ctypes.CDLL(str(library())), ctypes.c_void_p(), ctypes.c_size_t()
    if which == "operation":
        get, status = real.cublasLtMatmulDescGetAttribute, real.cublasLtMatmulDescCreate(ctypes.byref(made), 68, 0)
    else:
        get, extents = real.cublasLtMatrixLayoutGetAttribute, [ctypes.c_int64(one) for one in (6, 2, 6)]
        status = real.cublasLtMatrixLayoutCreate(ctypes.byref(made), 0, *extents)
    assert status == 0
    for number in range(200):
        if get(made, number, None, ctypes.c_size_t(0), ctypes.byref(written)) == 0:
            data = ctypes.create_string_buffer(8)
            assert get(made, number, data, written, ctypes.byref(written)) == 0
            kind = KINDS[written.value]
            yield number, [kind, struct.unpack_from(kind, data)[0] ^ 1]


@has_library
def test_what_the_real_cublaslt_describes_is_taken_or_left(with_real: Plays) -> None:
    there = {(number, kind) for number, (kind, _) in attributes("operation")}

    def is_known(operation: dict[int, int]) -> bool:
        return {(one, lt.OPERATION_BYTES.get(one, "i")) for one in operation} <= there

    cases = [case for case in LEFT if is_known(case[0].get("operation", {})) and str(lt.UNKNOWN) not in str(case[0])]
    cases.remove(({"k": -1}, lt.WRONG))  # for which no layout is made
    found = with_real(*(matmul(**changes) for changes in (*PLAIN_CALLS, *(changes for changes, _ in cases))))
    assert (len(found.launches), found.told) == (len(PLAIN_CALLS), "")
    assert by_reason(found) == Counter(reason for _, reason in cases)


@has_library
@pytest.mark.parametrize("where", ["operation", "a", "b", "c", "d"])
def test_no_attribute_of_this_version_is_passed_over(with_real: Plays, where: str) -> None:
    """But for those that are read, and say which product it is."""
    which, is_read = ("operation", OF_OPERATION) if where == "operation" else ("layout", OF_LAYOUT)
    others = {number: value for number, value in attributes(which) if number not in is_read}
    assert len(others) >= (20 if where == "operation" else 2)
    each = [{number: value} for number, value in others.items()]
    changes: list[dict[str, Any]] = [{where: one if where == "operation" else {"more": one}} for one in each]
    steps = [matmul(**one) for one in changes]
    found = with_real(*steps, matmul())
    assert (len(found.launches), len(found.left)) == (1, len(steps))
    named = {lt.POINTER_MODE, lt.EPILOGUE, lt.SM_COUNT} if where == "operation" else set()
    assert by_reason(found)[MORE] == len(others.keys() - named)
