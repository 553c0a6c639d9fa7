"""syrk and herk: a kernel computes the whole of C in scratch memory, a triangle of which is copied into C."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.calls import SIZES, A, C, Call
from tests.library_calls import InProcess, fabricated_library, tried
from tests.library_calls import play as play_library
from tests.lt_calls import NO_KERNEL, WRONG
from tests.on_host import IN_C
from tests.standin_calls import ONE, ZERO, by_reason, gemm, play
from tsm2_tune.generator.problem import Problem

pytestmark = IN_C
LETTERS = {"S": "f32", "D": "f64", "C": "c64", "Z": "c128"}
OPERATIONS = {"syrk": ("NT", "TN"), "herk": ("NC", "CN")}
SCRATCH_BYTES = 2 * 256 * 256 * 16
ROUTINES = [
    *((f"cublas{letter}syrk_v2{wide}", dtype) for letter, dtype in LETTERS.items() for wide in ("", "_64")),
    *((f"cublas{letter}herk_v2{wide}", LETTERS[letter]) for letter in "CZ" for wide in ("", "_64")),
]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory, session_cache: None) -> Path:
    """Return a pack of the products of a matrix with 6 rows and of its transpose, in every type."""
    ops = {dtype: ("nt", "tn", "nc", "cn")[: 2 if dtype[0] == "f" else 4] for dtype in LETTERS.values()}
    problems = [Problem(6, 6, 3, dtype, op) for dtype, of_type in ops.items() for op in of_type]
    return fabricated_library(tmp_path_factory.mktemp("pack"), *map(tried, problems))


def syrk(routine: str, is_plain: bool = True, **changes: Any) -> list[Any]:
    across = 2 if "herk" in routine else 1
    plain: dict[str, Any] = {"n": 6, "trans": 0 if is_plain else across}
    return gemm(routine, **plain | changes)


@pytest.mark.parametrize(("routine", "dtype"), ROUTINES)
def test_a_triangle_is_copied_of_what_the_library_computes(
    there: InProcess, fakes: Path, pack: Path, routine: str, dtype: str
) -> None:
    kinds = list(product((0, 1), (ZERO, [0.5, 0.0]), (True, False)))
    steps = [syrk(routine, plain, uplo=uplo, beta=beta, alpha=[2.0, 0.0], ldc=9) for uplo, beta, plain in kinds]
    played = play(fakes, [["cublasSetStream_v2", 77], *steps], pack=pack)
    scratch, size = 1 << 20, SIZES[dtype]
    assert f"allocate {SCRATCH_BYTES}" in played.log
    plain_ops, across = OPERATIONS[routine[7:11]]
    own = [
        Call(dtype, plain_ops if plain else across, 6, 6, 3, alpha=2, beta=beta[0], lda=6 if plain else 3,
             ldb=6 if plain else 3, a=A, b=A, c=scratch, ldc=6)
        for _, beta, plain in kinds
    ]  # fmt: skip
    expected = there(play_library, str(pack), [("set_stream", 77), *own])
    assert expected.statuses == [0] * len(own)
    copied = f"copy {C:x} pitch {9 * size} to {scratch:x} pitch {6 * size} width {6 * size} height 6 on 77"
    cleared = f"set {scratch + size // 2:x} pitch {7 * size} words {size // 8} height 6 on 77"
    packed, letter = scratch + SCRATCH_BYTES // 2, routine[6]
    launches = [line for line in expected.log if line.startswith("launch ")]
    log = [line for line in played.log if line.split()[0] not in ("push", "pop", "load", "function")]
    for launch, (uplo, beta, _) in zip(launches, kinds, strict=True):
        lines = [copied] if beta != ZERO else []
        lines += [launch, cleared] if "herk" in routine else [launch]
        lines.append(f"cublas{letter}trttp stream 4d {uplo} 6 {scratch} 6 {packed}")
        lines.append(f"cublas{letter}tpttr stream 4d {uplo} 6 {packed} {C} 9")
        at = log.index(lines[0])
        assert log[at : at + len(lines)] == lines
        del log[: at + len(lines)]
    assert {one.routine for one in played.seen} == {routine[7:11]}
    assert all(one.is_gram and one.calls == one.taken for one in played.seen)
    assert sum(one.taken for one in played.seen) == len(kinds)


def test_what_cannot_be_computed_so_is_left(fakes: Path, pack: Path) -> None:
    other = syrk("cublasSsyrk_v2", n=257, ldc=257, lda=257), syrk("cublasSsyrk_v2_64", ldc=2**31)
    wrong = (
        *(syrk("cublasSsyrk_v2", uplo=2), syrk("cublasSsyrk_v2", lda=5), syrk("cublasSsyrk_v2", C=A)),
        *(syrk("cublasZherk_v2", trans=1), syrk("cublasCsyrk_v2", trans=2), syrk("cublasZherk_v2", alpha=ZERO)),
    )
    played = play(fakes, [*other, *wrong], pack=pack)
    assert (by_reason(played), played.launches, len(played.left)) == ({NO_KERNEL: 2, WRONG: 6}, [], 8)


def test_what_is_captured_or_shares_its_lane_is_left(fakes: Path, pack: Path) -> None:
    one = syrk("cublasDsyrk_v2")
    captured = [["cublasSetStream_v2", 7], one, ["fake_capture", 7], one, ["fake_capture", 0], one]
    played = play(fakes, captured, pack=pack)
    assert by_reason(played) == {"captured, and the kernel is not loaded, or has no workspace": 1}
    assert len(played.launches) == 2
    many = [step for stream in range(3, 70) for step in (["cublasSetStream_v2", stream], one)]
    played = play(fakes, many, pack=pack)
    assert (len(played.launches), by_reason(played)) == (64, {"more CUDA contexts than are supported": 3})
    both_names = [["cublasSetStream_v2", 0], one, ["cublasSetStream_v2", 1], one]
    assert len(play(fakes, both_names, pack=pack).launches) == 2


def test_without_scratch_memory_or_a_copy_cublas_computes_it(fakes: Path, pack: Path) -> None:
    one = syrk("cublasDsyrk_v2")
    played = play(fakes, [["fake_memory", 0], one, one], pack=pack)
    assert (by_reason(played), played.launches) == ({"no memory for a workspace": 2}, [])
    played = play(fakes, [one] * 5, pack=pack, environment={"FAKE_CUBLAS_PACKS": "13"})
    assert by_reason(played) == {"the kernel could not be started": 5}
    assert (len(played.launches), played.statuses) == (3, [[0] * 5])
    assert sum(line.startswith("cublasDsyrk_v2 ") for line in played.left) == 5


@pytest.mark.parametrize("failing", ["cuMemcpy2DAsync", "cuLaunchKernel", "cuMemsetD2D32Async", "cublasZtrttp"])
def test_what_fails_before_the_triangle_is_copied_leaves_c_to_cublas(fakes: Path, pack: Path, failing: str) -> None:
    refused = [failing] if failing.startswith("cublas") else []
    environment = {"FAKE_CUBLAS_REFUSES": "1"} if refused else {}
    steps = [["fake_fail", failing, 700], syrk("cublasZherk_v2", beta=ONE)]
    played = play(fakes, steps, pack=pack, environment=environment)
    assert by_reason(played) == {"the kernel could not be started": 1}
    assert [line.split()[0] for line in played.left] == [*refused, "cublasZherk_v2"]


def test_scratch_memory_ends_no_capture_on_another_stream(fakes: Path, pack: Path) -> None:
    played = play(fakes, [["fake_capture", 7], syrk("cublasDsyrk_v2")], pack=pack)
    assert len(played.launches) == 1
    assert not any("capture ended" in line for line in played.log)


def test_a_new_stream_with_an_old_handle_waits_for_the_scratch_memory(fakes: Path, pack: Path) -> None:
    first = syrk("cublasSsyrk_v2")
    steps = [["cublasSetStream_v2", 7], first, first, ["fake_stream_ids", 1000], first, first]
    log = play(fakes, steps, pack=pack).log
    launches = [at for at, line in enumerate(log) if line.startswith("launch ")]
    assert len(launches) == 4
    assert [at for at, line in enumerate(log) if line == "wait for all"] == [launches[2] - 1]
    on_legacy = [["cublasSetStream_v2", 0], first, ["fake_stream_ids", 1000], first]
    assert "wait for all" not in play(fakes, on_legacy, pack=pack).log


def test_a_product_with_a_triangle_is_none_of_the_whole(fakes: Path, pack: Path) -> None:
    whole = gemm("cublasDgemm_v2", 6, 6, 3, transb=1, B=A, beta=ONE)
    played = play(fakes, [whole, syrk("cublasDsyrk_v2"), syrk("cublasDsyrk_v2", uplo=1)], pack=pack)
    assert {one.routine: one.taken for one in played.seen} == {"gemm": 1, "syrk": 2}
