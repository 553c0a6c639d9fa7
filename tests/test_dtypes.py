"""Every element type: its facts, its numbers in C++, and bugs that verification rejects."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from tests.conftest import ONCE, compiled
from tests.fabricated import handmade
from tsm2_tune.errors import InputError
from tsm2_tune.generator.device.roofline import gflops_by_dtype
from tsm2_tune.generator.dtypes import DTYPES, ELEMENT_TYPES, MATHS
from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import header
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.emulator import run_on_host
from tsm2_tune.tuner.results.trial import Outcome
from tsm2_tune.tuner.verify.bound_kernel import Entry
from tsm2_tune.tuner.verify.checks import CHECKS
from tsm2_tune.tuner.verify.error_bounds import Exactness, error_coefficient, exactness
from tsm2_tune.tuner.worker.client import Attempt, AttemptResult, Worker

OPS = ("nn", "tn", "ntt", "ttt")
COMPLEX_OPS = (*OPS, "cn", "jtt", "nc", "jc", "cjt")


def test_facts_of_the_types_agree() -> None:
    for dtype in DTYPES.values():
        assert dtype.component.element_bytes * dtype.parts == dtype.element_bytes
        assert not dtype.component.is_complex
        assert np.dtype(dtype.numpy_name).itemsize == dtype.element_bytes
        assert dtype.sum.sum is dtype.sum
        assert dtype.reference_name in DTYPES
        assert DTYPES[dtype.rate_name].rate_name == dtype.rate_name
        assert dtype.element_name in ELEMENT_TYPES
        assert dtype.math in MATHS
        assert (dtype.element_name == dtype.name) is (dtype.math == MATHS[0])


def test_complex_products_have_four_times_the_operations_and_conjugation() -> None:
    assert (Problem(3, 5, 7, "f32").flops, Problem(3, 5, 7, "c128").flops) == (210, 840)
    problem = Problem(3, 5, 7, "c64", "cj")
    assert problem.contiguous == ("k", "k", "m")
    assert problem.storage == "B, C column-major; A row-major; A, B conjugated"
    assert Problem(3, 5, 7, "c64", "nnt").storage == "A, B column-major; C row-major"
    with pytest.raises(InputError, match="op 'cn' of f32: c and j conjugate, which changes complex numbers only"):
        Problem(3, 5, 7, "f32", "cn")


def test_no_family_claims_a_type_that_it_does_not_name() -> None:
    shapes = ((20480, 16, 20480), (10**6, 8, 8), (16, 8, 10**6), (8, 8, 8))
    for family, dtype, (m, n, k) in product(FAMILIES.values(), DTYPES.values(), shapes):
        for op in COMPLEX_OPS if dtype.is_complex else OPS:
            asked = Problem(m, n, k, dtype.name, op)
            assert dtype.name in family.dtypes or not family.supports(asked), f"{family.name}: {asked.text}"


def test_a_type_has_the_rate_of_the_unit_that_computes_it() -> None:
    fma = {"f32": 60.0, "f64": 30.0, "minplus_f32": 40.0, "minplus_f64": 15.0}
    mma = {"f64": 62.0, "bf16": 600.0, "f16": 610.0, "tf32": 300.0}
    by_fma = {"c64": 60, "c128": 30, "bf16": 60, "f16": 60, "tf32": 60, "3xtf32": 20}
    assert dict(gflops_by_dtype(fma)) == fma | by_fma
    assert dict(gflops_by_dtype(fma, mma)) == fma | mma | {"c64": 62 * 4 / 3, "c128": 62, "3xtf32": 100}


def test_bounds_are_those_of_the_arithmetic() -> None:
    def coefficient(dtype: str) -> float:
        return error_coefficient(Problem(64, 8, 1000, dtype), CHECKS[0])

    u = 2.0**-24
    assert coefficient("f32") == 1002 * u
    assert coefficient("c64") == 2004 * u
    assert coefficient("c128") == 2004 * 2.0**-53
    assert coefficient("bf16") == coefficient("f16") == 3002 * u
    assert coefficient("tf32") == pytest.approx(2**-10 + 3002 * u, rel=1e-3)
    assert coefficient("3xtf32") == pytest.approx(3 * 2**-22 + 9032 * u, rel=1e-3)
    assert all(exactness(Problem(64, 8, 10**8, name)) is Exactness.ALL for name in DTYPES)


CONVERSIONS = """
extern "C" __global__ void k(const float *from, {name} *to, float *back, int count)
{{
    for (int i = threadIdx.x; i < count; i += blockDim.x) {{
        to[i] = {name}(from[i]);
        back[i] = float(to[i]);
    }}
}}
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_numbers_of_16_bits_are_rounded_to_the_nearest_even(toolchain: Toolchain, name: str) -> None:
    bits = np.arange(2**16, dtype=np.uint32)
    exact = (bits << 16).view(np.float32) if name == "bfloat16" else bits.astype(np.uint16).view(np.float16)
    finite = np.unique(exact[np.isfinite(exact)].astype(np.float64))
    between = (finite[1:] + finite[:-1]) / 2
    near = np.concatenate([np.nextafter(np.float32(between), np.float32(way)) for way in (-np.inf, 0, np.inf)])
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 65519.9, 65520.0, 3.39e38, 1e-45], np.float32)
    values = np.concatenate([np.float32(finite), np.float32(between), near, special])
    found, back = np.empty(values.size, np.uint16), np.empty(values.size, np.float32)
    text = header(f"{name}.cuh") + CONVERSIONS.format(name=name)
    run_on_host(text, "k", (), (values, found, back, np.int32(values.size)), blocks=1, threads=32)

    is_number = ~np.isnan(values)
    if name == "float16":
        with np.errstate(over="ignore"):
            expected = values.astype(np.float16)
        np.testing.assert_array_equal(found[is_number], expected.view(np.uint16)[is_number])
        np.testing.assert_array_equal(back, found.view(np.float16).astype(np.float32))
    else:
        whole = values.view(np.uint32).astype(np.uint64)
        expected = ((whole + 0x7FFF + (whole >> 16 & 1)) >> 16).astype(np.uint16)
        np.testing.assert_array_equal(found[is_number], expected[is_number])
        np.testing.assert_array_equal(back, (found.astype(np.uint32) << 16).view(np.float32))
    assert np.isnan(back[~is_number]).all()


def attempt(worker: Worker, toolchain: Toolchain, problem: Problem, edit: Callable[[str], str]) -> AttemptResult:
    """The handmade kernel, edited, on the problem."""
    source = handmade(problem)
    text = edit(source.text)
    binary = compiled(text, source.kernel, toolchain, source.defines)
    return worker.attempt(Attempt(problem, Entry(binary.code, source.kernel, source.launch), (), seed=3, effort=ONCE))


PRODUCT = "sum += sum_t(A[l + i * lda]) * sum_t(B[l + j * ldb]);"
# Name, dtype, what stands in the kernel of op tn (cn where it is complex), and what is planted there.
BUGS = (
    ("the conjugate forgotten", "c64", "conjugate(A", "sum_t(A"),
    ("the other factor conjugated too", "c128", "sum_t(B", "conjugate(B"),
    ("the imaginary part of alpha forgotten", "c64", "alpha * sum + beta", "scalar(alpha.re) * sum + beta"),
    ("the imaginary part of beta forgotten", "c64", "beta * sum_t(C", "scalar(beta.re) * sum_t(C"),
    ("a product of imaginary parts left out", "c128", "re -= x.a.im * x.b.im;", ""),
    ("c128 added up in f32", "c128", "im += x.a.im * x.b.re;", "im = float(im + x.a.im * x.b.re);"),
    ("c64 added up in 16 bits", "c64", "im += x.a.im * x.b.re;",
     "im = __uint_as_float(__float_as_uint(im + x.a.im * x.b.re) & 0xFFFF0000u);"),
    ("bf16 added up in bf16", "bf16", PRODUCT, PRODUCT.replace("+= ", "= float(scalar(sum + ").replace(";", "));")),
    ("f16 added up in f16", "f16", PRODUCT, PRODUCT.replace("+= ", "= float(scalar(sum + ").replace(";", "));")),
    ("bf16 cut off, not rounded", "bf16", "(whole + 0x7FFFu + last)", "whole"),
    ("a result of bf16 rounded twice", "bf16", "alpha * sum :", "sum_t(scalar(alpha * sum)) * (1 + 0x1p-8f) :"),
    ("tf32 with 8 bits of the operands", "tf32", PRODUCT,
     PRODUCT.replace("sum_t(A[l + i * lda])", "__uint_as_float(__float_as_uint(A[l + i * lda]) & 0xFFFF0000u)")),
    ("3xtf32 with one product", "3xtf32", PRODUCT,
     PRODUCT.replace("sum_t(A[l + i * lda])", "__uint_as_float(__float_as_uint(A[l + i * lda]) & 0xFFFFE000u)")),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "original", "planted"), [bug[1:] for bug in BUGS], ids=[bug[0] for bug in BUGS])
def test_a_wrong_kernel_is_rejected(
    worker: Worker, quick: Toolchain, dtype: str, original: str, planted: str
) -> None:
    k = 7 if "tf32" in dtype else 97  # that the errors of single products show
    problem = Problem(31, 3, k, dtype, "cn" if DTYPES[dtype].is_complex else "tn")

    def plant(text: str) -> str:
        assert original in text
        return text.replace(original, planted)

    result = attempt(worker, quick, problem, plant)
    assert result.outcome is Outcome.WRONG_RESULT, f"accepted: {result}"


@pytest.mark.slow
def test_a_complex_place_is_named_with_its_part(worker: Worker, quick: Toolchain) -> None:
    problem = Problem(31, 3, 97, "c64", "nn")
    result = attempt(worker, quick, problem, lambda text: text.replace("im += x.a.re * x.b.im;", ""))
    assert result.detail.startswith("timed call: Im C[")
    before, planted = "counters[tile] = 0;", "counters[tile] = 0, C[-1] = 1;"
    outside = attempt(worker, quick, problem, lambda text: text.replace(before, planted))
    assert "first 1 elements before C" in outside.detail
