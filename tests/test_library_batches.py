"""Batches of a C library: exact results of the kernels that it launches, their arguments, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.calls import A, B, C, Call
from tests.conftest import compiled
from tests.fabricated import configuration, trial
from tests.library_batches import ASCENDING, SMALL, Batch, Kernels, of_shape, play_batches, wrong_results
from tests.library_calls import (
    H200,
    INVALID_VALUE,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    PLAIN,
    SUCCESS,
    WORKSPACE_TOO_SMALL,
    InProcess,
    fabricated_library,
    parameters_of,
    tried,
)
from tests.on_host import IN_C, ON_HOST
from tests.spelling import spelt
from tsm2_tune.generator.config import ONE_EACH, SHARED, Launch
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.tuner.compile.compiler import Toolchain

EACH = "stream_a_fma:threads=64,columns=2,prefetch=8,stages=4,splits=3"
LAYOUTS = {"f32": ("NN", "TN", "NT", "TT"), "f64": ("NN", "TT")}
IN_BLOCKS = Launch(128, 1, 16384, splits=8, persistent=True, batched=SHARED)
IN_Z = replace(PLAIN, splits=2, columns_per_block=4, batched=ONE_EACH)
STRIDED = of_shape("f32", "NN", 3, 6, 2, 3)
BY_POINTERS = replace(STRIDED, arrays=ASCENDING)


# Exact results


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory, session_cache: None, quick: Toolchain) -> tuple[str, Kernels]:
    """A library of real kernels, and their binaries on the host."""
    of_batches = [(SMALL, Problem(4, 4, 4, dtype, ops.lower(), 100)) for dtype in LAYOUTS for ops in LAYOUTS[dtype]]
    of_batches.append((EACH, Problem(256, 4, 256, "f32", "nn", 5)))
    tried_configs = [(spelt(text), problem) for text, problem in of_batches]
    tried_configs.append((configuration(128, 4, 2), Problem(6, 2, 3, "f32")))
    trials = [
        trial(problem=problem, config=config, source=render(problem, config)) for config, problem in tried_configs
    ]
    kernels = dict[str, tuple[str, str, int]]()
    for one in trials:
        path = compiled(one.source.text, one.source.kernel, quick, ("INDEX_BITS=32",)).path
        kernels[one.source.digest[:8]] = path, one.source.kernel, parameters_of(one.source.launch)
    library = fabricated_library(tmp_path_factory.mktemp("exact"), *((H200, one) for one in trials))
    return str(library), kernels


class TestResults:
    """The emulated kernel computes each product, and writes nothing else."""

    pytestmark = ON_HOST

    @pytest.mark.parametrize(("dtype", "ops"), [(dtype, ops) for dtype in LAYOUTS for ops in LAYOUTS[dtype]])
    def test_each_layout_and_count(self, there: InProcess, exact: tuple[str, Kernels], dtype: str, ops: str) -> None:
        batches = [of_shape(dtype, ops, count, 2, 3, 2, alpha=-2, beta=3) for count in (0, 3, 65_536)]
        batches += [of_shape(dtype, ops, 3, 4, 4, 4, gap=gap, pad=pad) for gap in (0, 5) for pad in (0, 3)]
        batches += [
            of_shape(dtype, ops, 17, 4, 3, 5, gap=3, pad=1, beta=2, shared=shared) for shared in ("A", "B", "AB")
        ]
        batches.append(replace(of_shape(dtype, ops, 7, 4, 4, 4), arrays=ASCENDING))
        assert there(wrong_results, *exact, batches) == []

    def test_a_kernel_that_splits_k_has_a_workspace_for_each_product(
        self, there: InProcess, exact: tuple[str, Kernels]
    ) -> None:
        batches = [
            of_shape("f32", "NN", 5, 131, 3, 200, gap=7, pad=1, alpha=2, beta=-1),
            of_shape("f32", "NN", 2, 64, 4, 100, shared="A"),
            replace(of_shape("f32", "NN", 3, 130, 4, 90, shared="B"), arrays=ASCENDING),
        ]
        assert there(wrong_results, *exact, batches) == []

    def test_one_product_by_its_kernel_or_none(self, there: InProcess, exact: tuple[str, Kernels]) -> None:
        one = of_shape("f32", "NN", 1, 60, 2, 3, gap=-(10**6))
        assert there(wrong_results, *exact, [one, replace(one, strides=(0, 0, 0), arrays=ASCENDING)]) == []
        (wrong,) = there(wrong_results, *exact, [of_shape("f32", "TT", 1, 6, 2, 3)])
        assert "no f32 kernel for op tt is in this library, only for nn" in wrong

    def test_a_batch_that_is_one_product_is_computed_as_that(
        self, there: InProcess, exact: tuple[str, Kernels]
    ) -> None:
        """The rows of A and C side by side in columns that all products share, or the columns of B and C."""
        in_rows = Batch(Call("f32", "NN", 4, 2, 3, lda=22, ldc=21), 5, (4, 0, 4))
        in_columns = Batch(Call("f32", "NN", 4, 2, 3, lda=5, ldb=4, ldc=6), 5, (0, 8, 12))
        apart = Batch(Call("f32", "NN", 4, 2, 3, lda=22, ldc=21), 5, (4, 6, 4))
        assert there(wrong_results, *exact, [in_rows, in_columns, apart]) == []
        text = [
            there(play_batches, exact[0], [("choice_of", one)]).values["choice_of"][0] for one in (in_rows, apart)
        ]
        assert "as one product 20x2x3" in text[0][0][1]
        assert text[1][0][1].startswith("small:")


# What a kernel is given


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, session_cache: None) -> str:
    """A library of a kernel for single products, and of batches one that shares them and one with a workspace."""
    trials = [tried(Problem(6, 2, 3, "f32")), tried(Problem(8, 8, 8, "f32", "nn", 9), IN_BLOCKS, config=spelt(SMALL))]
    trials.append(tried(Problem(500, 8, 8, "f32", "tn", 9), IN_Z))
    return str(fabricated_library(tmp_path_factory.mktemp("batches"), *trials))


class TestLaunches:
    """Calls of the driver."""

    pytestmark = IN_C

    def test_blocks_that_share_a_batch_get_its_strides(self, there: InProcess, path: str) -> None:
        for batch in (STRIDED, BY_POINTERS):
            (launch,) = there(play_batches, path, [batch]).launches
            assert (launch.grid, launch.block, launch.smem_bytes) == ([8, 1, 1], [128, 1, 1], 16384)
            assert launch.values(32, "f4") == [6, 2, 3, 1, A, 6, B, 3, 0, C, 6, 3, 18, 6, 12]

    def test_each_product_gets_its_part_of_the_workspace(self, there: InProcess, path: str) -> None:
        batch = of_shape("f32", "TN", 4, 130, 5, 300)
        record = there(play_batches, path, [("workspace_of", batch), batch])
        (launch,) = record.launches
        (*_, ldc, _, counters, count, stride_a, stride_b, stride_c, of_sums, of_counters) = launch.values(32, "f4")
        assert launch.grid == [4, 2, 4]  # two tiles down and two across
        assert (ldc, count, stride_a, stride_b, stride_c) == (130, 4, 130 * 300, 5 * 300, 130 * 5)
        assert (of_sums, of_counters) == (2 * 4 * 128 * 4, 4)
        allocated = [line for line in record.brief if line.startswith(("allocate", "zero"))]
        assert allocated == [f"allocate {4 * 4 * of_sums}", "allocate 64", f"zero {counters:x} 16 words on 0"]
        ((needed, _),) = record.values["workspace_of"]
        assert needed > 4 * 4 * of_sums + 64
        for size, status in ((needed, SUCCESS), (needed - 256, WORKSPACE_TOO_SMALL)):
            given = there(play_batches, path, [("set_workspace", 0x7000000, size), batch])
            assert given.statuses == [status]
        assert there(play_batches, path, [("fake_memory", 100), batch]).statuses == [OUT_OF_MEMORY]

    def test_a_batch_is_of_gram_matrices_by_its_strides_too(self, there: InProcess, tmp_path: Path) -> None:
        gram = tried(Problem(6, 6, 3, "f32", "nx", 9), IN_BLOCKS, config=spelt(SMALL))
        path = str(fabricated_library(tmp_path, gram))
        call = Call("f32", "NT", 6, 6, 3, a=A, b=A)
        record = there(play_batches, path, [Batch(call, 3, (18, of_b, 36)) for of_b in (18, 36)])
        assert record.statuses == [SUCCESS, NOT_SUPPORTED]

    def test_choices_are_kept_apart(self, there: InProcess, path: str) -> None:
        """Each differs in one respect from a batch that was chosen before: all launch as they do alone."""
        call = Call("f32", "NN", 4, 2, 3, lda=22, ldb=3, ldc=21)
        strides, other_call = (4, 0, 4), replace(call, ldc=22)
        others = [
            *(Batch(call, count, strides) for count in (5, 4, 1)),
            *(Batch(call, 5, other) for other in ((5, 0, 4), (4, 6, 4), (4, 0, 42), (0, 6, 42))),
            *(Batch(other, 5, strides) for other in (other_call, replace(call, lda=24), replace(call, m=3))),
        ]
        together = there(play_batches, path, others * 2)
        alone = [there(play_batches, path, [one]) for one in others]
        assert together.statuses == [SUCCESS] * 2 * len(others)
        assert together.launches == 2 * [launch for one in alone for launch in one.launches]
        assert len({str(launch) for launch in together.launches}) == len(others)

    @pytest.mark.parametrize("arrays", [(), ASCENDING])
    def test_without_products_or_elements_nothing_is_done(
        self, there: InProcess, path: str, arrays: tuple[str, ...]
    ) -> None:
        empty = [replace(STRIDED, count=0), replace(STRIDED, call=replace(STRIDED.call, m=0))]
        empty.append(replace(STRIDED, call=replace(STRIDED.call, k=0, beta=1)))
        record = there(play_batches, path, [replace(one, arrays=arrays) for one in empty])
        assert (record.statuses, record.log) == ([SUCCESS] * 3, [])

    def test_an_alpha_of_0_clears_each_c(self, there: InProcess, path: str) -> None:
        def cleared(batch: Batch) -> list[str]:
            record = there(play_batches, path, [replace(batch, call=replace(batch.call, alpha=0))])
            assert record.statuses == [SUCCESS]
            return list(record.log)

        few_products = of_shape("f32", "NN", 2, 6, 3, 3, gap=5, pad=1)
        assert cleared(few_products) == [
            f"zero {C + at:x} pitch 28 width 24 height 3 on 0" for at in (0, 4 * (7 * 3 + 5))
        ]
        many_products = replace(few_products, count=1000)
        assert cleared(many_products) == [
            f"zero {C + 28 * column:x} pitch {4 * 26} width 24 height 1000 on 0" for column in range(3)
        ]

    def test_what_is_for_cublas(self, there: InProcess, path: str) -> None:
        def by(*arrays: str) -> Batch:
            return replace(STRIDED, arrays=arrays)

        for_cublas = [
            (of_shape("f32", "NT", 3, 6, 2, 3), "no f32 kernel for op nt in this library computes 3*6x2x3: "),
            (of_shape("f32", "TN", 65_536, 6, 2, 3), "no f32 kernel for op tn in this library computes 65536*6x2x3"),
            (of_shape("f32", "NN", 2**31, 6, 2, 3), "no f32 kernel for op nn in this library computes 2147483648*"),
            (of_shape("f64", "NN", 3, 6, 2, 3), "no f64 kernel for op nn in this library computes 3*6x2x3"),
            (by("on device", "", ""), "argument 8, A: its pointers are in device memory"),
            (by("", "on device", ""), "argument 10, B: its pointers are in device memory"),
            (by("", "", "on device"), "argument 13, C: its pointers are in device memory"),
            (by("unequal", "", ""), "argument 8, A: its matrices are not equally far"),
            (by("", "unequal", ""), "argument 10, B: its matrices are not equally far"),
            (by("", "", "unequal"), "argument 13, C: its matrices are not equally far"),
            (by("", "descending", ""), "argument 10, B: each matrix lies before the last"),
        ]
        for batch, error in for_cublas:
            record = there(play_batches, path, [batch, STRIDED, by("", "pinned", "")])
            assert record.statuses == [NOT_SUPPORTED, SUCCESS, SUCCESS]
            assert record.errors[0].startswith(error)

    def test_arguments_are_checked(self, there: InProcess, path: str) -> None:
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"count": -1}, "argument 18, batch_count: -1, expected at least 0"),
            ({"strides": (-1, 6, 12)}, "argument 10, stride_a: -1, expected at least 0"),
            ({"strides": (18, -6, 12)}, "argument 13, stride_b: -6, expected at least 0"),
            ({"strides": (18, 6, -12)}, "argument 17, stride_c: -12, expected at least 0"),
            ({"strides": (18, 6, 0)}, "argument 17, stride_c: 0 elements from a matrix of C to the n"),
            ({"strides": (18, 6, 11)}, "argument 17, stride_c: 11 elements from a matrix of C to the n"),
            ({"strides": (1 << 59, 6, 12)}, "argument 10, stride_a: 576460752303423488 times 3 products is"),
            ({"strides": (18, 6, 1 << 59)}, "argument 17, stride_c: 576460752303423488 times 3 products is"),
            ({"lda": 5}, "argument 9, lda: 5, expected at least 6"),
            ({"ldb": 2}, "argument 12, ldb: 2, expected at least 3"),
            ({"ldc": 5}, "argument 16, ldc: 5, expected at least 6"),
            ({"a": 0}, "argument 8, A: it is NULL"),
            ({"b": 0x1002}, "argument 11, B: its address is not a multiple of 4"),
            ({"c": 0}, "argument 15, C: it is NULL"),
            ({"count": -1, "arrays": ASCENDING}, "argument 15, batch_count: -1, expected at least 0"),
            ({"ldb": 2, "arrays": ASCENDING}, "argument 11, ldb: 2, expected at least 3"),
            ({"ldc": 2, "arrays": ASCENDING}, "argument 14, ldc: 2, expected at least 6"),
            ({"c": 0x1001, "arrays": ASCENDING}, "argument 13, C: its address is not a multiple of 4"),
            ({"strides": (18, 6, 11), "arrays": ASCENDING}, "argument 13, C: 11 elements from a matrix of C"),
            ({"arrays": ("none", "", "")}, "argument 8, A: it is NULL"),
            ({"arrays": ("", "none", "")}, "argument 10, B: it is NULL"),
            ({"arrays": ("", "", "none")}, "argument 13, C: it is NULL"),
            ({"arrays": ("odd", "", "")}, "argument 8, A: its addresses are not multiples of 4 bytes"),
        ]  # fmt: skip
        for change, error in wrong:
            of_batch = {name: change[name] for name in ("count", "strides", "arrays") if name in change}
            of_call = {name: value for name, value in change.items() if name not in of_batch}
            record = there(
                play_batches, path, [replace(STRIDED, call=replace(STRIDED.call, **of_call), **of_batch), STRIDED]
            )
            assert record.statuses == [INVALID_VALUE, SUCCESS]
            assert record.errors[0].startswith(error)

    def test_matrices_of_c_may_lie_side_by_side(self, there: InProcess, path: str) -> None:
        calls = [replace(STRIDED.call, ldc=ldc) for ldc in (18, 17)]
        record = there(play_batches, path, [Batch(call, 3, (18, 6, 6)) for call in calls])
        assert record.statuses == [SUCCESS, INVALID_VALUE]

    def test_a_batch_is_compared_with_cublas(self, there: InProcess, path: str) -> None:
        known = of_shape("f32", "NN", 9, 8, 8, 8)
        steps = [("compare_of", known), ("compare_of", replace(known, count=0)), ("choice_of", known)]
        values = there(play_batches, path, steps).values
        assert values["compare_of"][0] == ((SUCCESS, 500.0, 0.0, False), "")
        assert values["compare_of"][1][0] == (NOT_SUPPORTED, 0.0, 0.0, True)
        assert values["choice_of"][0][0][1].endswith("tuned for this shape; with the L2 clean 500.0 us measured")
