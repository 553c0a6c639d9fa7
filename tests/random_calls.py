"""Random calls of gemm on arrays of PyTorch and CuPy that are not there, and what they did."""

from __future__ import annotations

import ctypes
import math
import random
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from tests.fabricated import device_array
from tests.fake_tensors import Cupy, Masked, Parameter, Tensor
from tests.recording_driver import RecordingDriver

TYPES = {"f32": "<f4", "f64": "<f8", "c64": "<c8", "c128": "<c16", "bf16": "<i2", "f16": "<f2"}
WORDS = {"f32": "float32", "f64": "float64", "c64": "complex64", "c128": "complex128", "bf16": "bfloat16"}
WORDS["f16"] = "float16"


class Driver(RecordingDriver):
    """One that records each launch as the bytes that a kernel gets."""

    def launch(self, config: int, function: int, parameters: int, extra: None) -> int:
        if self._in_force() is None:
            return 201  # CUDA_ERROR_INVALID_CONTEXT
        pointers = (ctypes.c_size_t * 13).from_address(parameters)
        started = ctypes.string_at(config, 56)
        arguments = [ctypes.string_at(pointer, 16) for pointer in pointers]
        self.launches.append({"config": started, "function": function, "arguments": arguments})
        return 0


def tensor(shape: tuple[int, ...], order: str, at: int, dtype: str = "f32", pad: int = 0, **changes: Any) -> Tensor:
    """A tensor at this address, its lines `pad` elements apart."""
    size, kind = int(TYPES[dtype][2:]), changes.pop("kind", Tensor)
    along = (size,) if len(shape) == 1 else (size, size * (shape[0] + pad)) if order == "F" else ()
    strides = along or (size * (shape[1] + pad), size)
    described = device_array(shape, strides, at=at, typestr=TYPES[dtype])
    return kind(described, dtype=f"torch.{WORDS[dtype]}", **changes)  # type: ignore[no-any-return]


EXTENTS = (1, 2, 3, 8, 60, 64, 500, 4096, 20480)
PLACES = (1 << 40, 2 << 40, 3 << 40)  # addresses of a, b and out, which nobody reads
ODD_FACTORS = (
    True, np.float32(3), 1j, 2 - 3j, math.nan, math.inf, complex(math.nan), "1", 1e300, 1e300j, 2**128, 10**400,
)  # fmt: skip
ODD_TENSORS: tuple[dict[str, Any], ...] = (
    {"requires_grad": True},
    {"is_neg": lambda: True},
    {"kind": Masked},
    {"kind": Parameter},
    {"is_conj": lambda: True},
)


def random_product(rng: random.Random) -> tuple[list[Tensor], dict[str, Any]]:
    """Arguments of gemm: a quarter on one of few shapes, and others on one that is seldom the same twice."""
    is_often = rng.random() < 0.25
    dtype = rng.choice(("f32", "c64") if is_often else tuple(TYPES))
    m, n, k = (8, rng.choice((2, 3)), 64) if is_often else (rng.choice(EXTENTS) for _ in "mnk")
    pad = [0, 0, 0] if is_often else [rng.choice((0, 0, 1, 4)) for _ in "abc"]
    order = rng.choice(("FFF", "CCC", "CFF", "CFC", "FCC"))
    ats = [at + 64 * rng.randrange(4) for at in PLACES]
    if rng.random() < 0.1:  # a matrix and itself, transposed
        n, ats[1], order, pad[1] = m, ats[0], rng.choice(("CFF", "FCF", "CFC")), rng.choice((pad[0], pad[1]))
    if rng.random() < 0.03:
        ats[rng.randrange(3)] += rng.choice((1, 2))
    if rng.random() < 0.2:  # out ends where a or b begins, or begins where it ends, or nearly so
        x, size = rng.randrange(2), int(TYPES[dtype][2:])
        (rows, columns), away = [(m, k), (k, n), (m, n)][x], rng.choice((-size, 0, size))
        lines, elements = (columns, rows) if order[x] == "F" else (rows, columns)
        ats[2] = ats[x] + away + size * ((lines - 1) * (elements + pad[x]) + elements)
    shapes = [(m, k), (k, n), (m, n)]
    if rng.random() < 0.05:
        shapes[rng.randrange(3)] = (3, 7)
    odd = [rng.choice(ODD_TENSORS) if rng.random() < 0.02 else {} for _ in shapes]
    types = [dtype if rng.random() < 0.99 else "f32" for _ in shapes]
    described = zip(shapes, order, ats, types, pad, odd, strict=True)
    arrays = [tensor(*one, **changes) for *one, changes in described]
    named: dict[str, Any] = {"out": arrays[2] if rng.random() < 0.6 else None}
    named |= rng.choice(({}, {}, {"alpha": 2.0}, {"fallback": "error"}, {"fallback": "vendor"}))
    named |= rng.choice(({}, {}, {}, {}, {"alpha": -1.0}, {"beta": 0.5}, {"stream": 78}))
    if rng.random() < 0.1:
        named[rng.choice(("alpha", "beta"))] = rng.choice(ODD_FACTORS)
    return arrays[:2], named


def odd_product(rng: random.Random) -> tuple[list[Tensor], dict[str, Any]]:
    """Arguments of gemm, most of which no kernel takes: of odd strides, empty, enormous, vectors."""
    dtype = rng.choice(tuple(TYPES))
    size = int(TYPES[dtype][2:])
    extents = (0, 1, 1, 2, 8, 60, 500, 4096) if rng.random() < 0.8 else (1, 2, 2**31 - 2**22, 2**33, 2**58, 2**62)
    m, n, k = (rng.choice(extents) for _ in "mnk")
    shapes: list[tuple[int, ...]] = [(m, k), (k, n), (m, n)]
    if rng.random() < 0.2:
        shapes = rng.choice(([(k,), (k, n), (n,)], [(m, k), (k,), (m,)], [(m, k, 2), *shapes[1:]]))
    arrays = []
    for shape, at in zip(shapes, PLACES, strict=True):
        rows, columns = shape[0], shape[-1]
        plain = [(1, rows + rng.choice((0, 1, 3))), (columns + rng.choice((0, 4)), 1)]
        odd: list[tuple[float, float]] = [(1, rows + 0.5), (columns + 0.5, 1)]
        odd += [
            (1, rng.choice((0, -rows, rows - 1, 2**40, 2**59))),
            (0, 1),
            (0, 0),
            (-1, rows),
            (2, 2 * rows),
            (1, 1),
        ]
        of_vector = (rng.choice((1, 1, 0, 2, -1)),)
        of_matrix = rng.choice(plain if rng.random() < 0.7 else odd)
        strides = {1: of_vector, 2: of_matrix, 3: (2 * columns, 2, 1)}[len(shape)]
        described = device_array(shape, tuple(int(size * one) for one in strides), at=at, typestr=TYPES[dtype])
        arrays.append(Tensor(described, dtype=f"torch.{WORDS[dtype]}"))
    named: dict[str, Any] = {"out": arrays[2] if rng.random() < 0.6 else None}
    if rng.random() < 0.3:
        named |= {"fallback": rng.choice(("error", "vendor"))}
        named |= rng.choice(
            [{"conj_a": True}, {"conj_b": 1}, {"math": "x"}, {"math": 3}, {"fallback": "x"}, {"fallback": 3}]
        )
    return arrays[:2], named


def outcome(module: ModuleType, library: Any, arrays: list[Any], named: dict[str, Any]) -> tuple[Any, ...]:
    """Call gemm; return its result or its exception, and what it allocated and launched."""
    driver, made = module.driver, len(library.made)
    del driver.launches[:], driver.calls[:]
    try:
        result: Any = module.gemm(*arrays, **named)
        returned = "out" if result is named["out"] else ("made", str(result.__cuda_array_interface__))
    except Exception as error:
        returned = (type(error).__name__, str(error))
    return returned, len(library.made) - made, list(driver.launches), list(driver.calls)


def growth(calls: Callable[[], object], counted: Sequence[object]) -> tuple[int, int]:
    """Make the calls twice. Return by how much the second time changed reference counts, and blocks of memory."""
    calls()  # until the interpreter's own stores of freed objects are full
    before, blocks = [sys.getrefcount(one) for one in counted], sys.getallocatedblocks()
    calls()
    grown = sys.getallocatedblocks() - blocks
    return max(abs(sys.getrefcount(one) - then) for one, then in zip(counted, before, strict=True)), grown


class Subclass(Cupy): ...


def of_cupy(array: Tensor) -> Cupy:
    """CuPy's array in the memory of a tensor."""
    return (Subclass if isinstance(array, Masked) else Cupy)(array)
