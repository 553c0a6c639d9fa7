"""Whatever an exported module is called with, it launches that product, or computes it on the host."""

from __future__ import annotations

import sys
import zlib
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given

from tests.calls import FACTORS, SIZES, Call, few, is_launch_of, sequences
from tests.fabricated import host_run, module_of, split_trial
from tests.fake_tensors import fake_cupy, fake_torch
from tests.library_arrays import GPUArray, arrays_of
from tests.library_calls import tried
from tests.on_host import ON_HOST
from tests.packs_of_everything import before_a_driver
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.export.module import launcher_binary

pytestmark = ON_HOST
OPS = {
    **{dtype: tuple(map("".join, product("NT", repeat=2))) for dtype in ("f32", "f64", "bf16", "f16")},
    **{dtype: tuple(map("".join, product("NTCJ", repeat=2))) for dtype in ("c64", "c128")},
}
OPS_OF_NUMPY = {dtype: ops for dtype, ops in OPS.items() if dtype != "bf16"}
OF_GRAM = {"T": "N", "N": "T", "C": "N", "J": "T"}


@pytest.fixture(scope="module", params=["plain", "compiled", "logging"])
def module(tmp_path_factory: pytest.TempPathFactory, session_cache: None, request: pytest.FixtureRequest) -> Any:
    """Return a module of kernels for all OPS, without the compiled launcher or with it.

    If it logs, Python makes the choices, and the launcher starts repeated calls only.
    """
    folder = tmp_path_factory.mktemp("module")
    problems = [Problem(8, 2, 3, dtype, op.lower()) for dtype, ops in OPS.items() for op in ops]
    problems += [Problem(8, 8, 3, dtype, op) for dtype, op in (("f32", "tx"), ("c64", "cx"))]
    binary = None if request.param == "plain" else launcher_binary()
    made: Any = module_of(folder, *map(tried, problems), launcher=binary)
    with pytest.MonkeyPatch.context() as patch:
        before_a_driver(made)
        patch.setattr(made.log, "isEnabledFor", lambda level: request.param == "logging")
        of_function = {
            1 + zlib.crc32(f"{winner.digest} {bits} sm_90a".encode()): (winner, bits)
            for winner, bits in product(made.WINNERS, (32, 64))
        }
        made.of_function = of_function
        for name, library in (("torch", fake_torch()), ("cupy", fake_cupy())):
            patch.setitem(sys.modules, name, library)
        patch.setitem(sys.modules, "pycuda.gpuarray", SimpleNamespace(GPUArray=GPUArray))
        yield made


def launched(module: ModuleType, launch: Any) -> Call:
    """Return what a kernel was given as a call."""
    winner, bits = module.of_function[launch["function"]]
    index, factor = np.dtype(f"i{bits // 8}"), FACTORS[winner.dtype]
    kinds = [index] * 3 + [factor, "u8", index, "u8", index, factor, "u8", index]
    values = [np.frombuffer(raw, kind, 1)[0].item() for raw, kind in zip(launch["arguments"], kinds, strict=False)]
    m, n, k, alpha, a, lda, b, ldb, beta, c, ldc = values
    head = (*winner.launch.grid(m, n), 1, winner.launch.threads, 1, 1, winner.launch.smem_bytes)
    assert tuple(np.frombuffer(launch["config"], "u4", 7)) == head
    ops = winner.op[:2].upper()
    if ops[1] == "X":
        ops, b, ldb = ops[0] + OF_GRAM[ops[0]], a, lda
    stream = int.from_bytes(launch["config"][32:40], "little")
    order = "C" if winner.op[2:] else "F"
    return Call(winner.dtype, ops, m, n, k, lda, ldb, ldc, alpha, beta, a, b, c, order, stream=stream)


def in_new(call: Call, out: Any) -> Call:
    """Return the call with the array that was made for it."""
    told, size = out.__cuda_array_interface__, SIZES[call.dtype]
    strides = [one // size for one in told["strides"]]
    assert told["shape"] == {"": (call.m, call.n), "a": (call.n,), "b": (call.m,)}[call.vector]
    if len(strides) == 1:
        assert strides == [1]
        strides = [call.n, 1] if call.vector == "a" else [1, call.m]
    order = "F" if strides[0] == 1 else "C"
    turned = call if order == call.order else replace(call, order=order)
    return replace(turned, c=told["data"][0], ldc=max(strides))


@pytest.mark.parametrize("kind", ["interface", "pycuda", "torch", "cupy"])
def test_each_call_is_launched_as_it_is(module: Any, kind: str) -> None:
    torch, cupy = (cast(Any, sys.modules[name]) for name in ("torch", "cupy"))
    driver = module.driver
    streams = 0, {"torch": 2**63 + 5, "cupy": 2**63 - 5}.get(kind, 0)

    @few
    @given(sequences(OPS if kind == "torch" else OPS_OF_NUMPY))
    def each_is(calls: list[Call]) -> None:
        for kept in (module.plans, module.starters, module.launchers):
            kept.clear()
        for turn, call in enumerate(calls + calls):
            driver.launches.clear()
            torch.stream = cupy.streams[0] = current = streams[turn % 2]
            has_out = call.has_out or kind in ("interface", "pycuda")
            bits = call.bits if kind == "torch" and call.dtype.startswith("c") else (False, False)
            call = replace(call, bits=bits)
            conj_a, conj_b = (is_conj != bit for is_conj, bit in zip(call.conjugates, bits, strict=True))
            a, b, out = arrays_of(kind, call)
            named = {"conj_a": conj_a, "conj_b": conj_b, "stream": call.stream}
            found = module.gemm(a, b, out if has_out else None, alpha=call.alpha, beta=call.beta, **named)
            asked = replace(call, stream=current if call.stream is None else call.stream)
            assert found is out or not has_out
            assert len(driver.launches) == 1
            made = launched(module, driver.launches[0])
            assert is_launch_of(made, asked if has_out else in_new(asked, found)), (call, made)
            if has_out:
                plan = module.plan(a, b, out, alpha=call.alpha, beta=call.beta, **named)
                torch.stream = cupy.streams[0] = current = 44 if current else 0  # the one at the plan's call
                assert plan() is out
                asked = replace(call, stream=current if call.stream is None else call.stream)
                assert is_launch_of(launched(module, driver.launches[1]), asked), call

    each_is()


# On the host


class Bfloat16(np.ndarray[Any, np.dtype[np.uint16]]):
    """Bits of bfloat16, called so as ml_dtypes calls it."""

    dtype = type("dtype", (), {"itemsize": 2, "kind": "V", "str": "<V2", "__str__": lambda self: "bfloat16"})()


def test_arrays_called_bfloat16_are_read_as_such(tmp_path: Path) -> None:
    """Those of ml_dtypes too, if it is installed."""
    module = module_of(tmp_path, split_trial(Problem(40, 6, 90, "bf16")), run=host_run())
    values = [np.random.default_rng(1).integers(-9, 9, shape) for shape in ((40, 90), (90, 6))]
    a, b = (np.asfortranarray((np.float32(x).view(np.uint32) >> 16).astype(np.uint16)).view(Bfloat16) for x in values)
    c = np.zeros((40, 6), np.uint16, order="F").view(Bfloat16)
    module.gemm(a, b, out=c)
    found = (np.asarray(c, np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(found, values[0] @ values[1], rtol=2**-8)
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    made = module.gemm(*(np.asfortranarray(x.astype(bfloat16)) for x in values))
    assert made.dtype == bfloat16
    np.testing.assert_array_equal(made.astype(np.float32), found)


def test_other_math_runs_only_if_the_call_names_it(tmp_path: Path) -> None:
    module = module_of(
        tmp_path, *(split_trial(Problem(40, 6, 90, math)) for math in ("tf32", "3xtf32")), run=host_run()
    )
    random = np.random.default_rng(1)
    a, b = (np.asfortranarray(random.random(shape) - 0.5, np.float32) for shape in ((40, 90), (90, 6)))
    np.testing.assert_allclose(module.gemm(a, b, math="tf32"), a @ b, rtol=1e-4, atol=1e-5)
    assert module.choice(a, b, math="3xtf32").winner.dtype == "3xtf32"
    with pytest.raises(LookupError, match="no f32 kernel tuned on a host is in this module"):
        module.gemm(a, b)
    with pytest.raises(ValueError, match="math: expected None, or tf32 of float32, or 3xtf32 of float32, or minplus"):
        module.gemm(a.astype(np.float64), b.astype(np.float64), math="tf32")


def test_real_numbers_are_their_conjugates_and_no_host_is_timed(tmp_path: Path) -> None:
    module = module_of(tmp_path, split_trial(Problem(40, 6, 90, "f32")), run=host_run())
    a, b = np.ones((9, 5), np.float32, order="F"), np.ones((5, 3), np.float32, order="F")
    assert (module.gemm(a, b, conj_a=True, conj_b=True, measure=True) == 5).all()
