"""Calls of cublasLtMatmul: what they are asked, and how a program makes them."""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Sequence
from typing import Any

MATMUL = "cublasLtMatmul"
COMPUTE_OF = {0: 68, 1: 70, 2: 68, 14: 68, 4: 68, 5: 70}  # by cudaDataType_t, which the scale is of, but for 16 bits
FACTORS = {0: "f", 1: "d", 4: "ff", 5: "dd"}
A, B, C, D = 1 << 40, 1 << 50, 1 << 60, 1 << 61  # addresses that nobody reads
ONE, ZERO = [1.0, 0.0], [0.0, 0.0]
BEHIND = b"\x41" * 16  # a factor, in memory: nobody's, and no 0
# cublasLtMatmulDescAttributes_t, of which 99 is none that is known, and how many bytes one has
POINTER_MODE, TRANS_A, TRANS_B, EPILOGUE, BIAS, SM_COUNT, SCALE_OF_A, FAST_SUMS, EMULATION, UNKNOWN = (
    2, 3, 4, 7, 8, 15, 17, 25, 38, 99,
)  # fmt: skip
OPERATION_BYTES = {BIAS: "q", SCALE_OF_A: "q", FAST_SUMS: "b", EMULATION: "q", UNKNOWN: "b"}
# cublasLtMatrixLayoutAttribute_t
ORDER, BATCHES, STRIDE, PLANE = 1, 5, 6, 7
LAYOUT_BYTES = {STRIDE: "q", PLANE: "q", UNKNOWN: "b"}


def layout(type_: int, rows: int, columns: int, order: int = 0, ld: int | None = None) -> dict[str, Any]:
    least = rows if order == 0 else columns
    return {
        "type": type_, "rows": rows, "columns": columns, "ld": least if ld is None else ld,
        "more": {} if order == 0 else {ORDER: order},
    }  # fmt: skip


def matmul(
    m: int = 6, n: int = 2, k: int = 3, type_: int = 0, transa: int = 0, transb: int = 0, orders: str = "ccc",
    **changes: Any,
) -> list[Any]:  # fmt: skip
    """A call on dense matrices, in place, each of column or row order; `a`, `b`, `c` and `d` change a layout's
    values and attributes, and `operation` has attributes."""
    extents = {"a": (m, k) if not transa else (k, m), "b": (k, n) if not transb else (n, k), "d": (m, n)}
    layouts = {
        name: layout(type_, *extent, order="cr".index(order))
        for (name, extent), order in zip(extents.items(), orders, strict=True)
    }
    for name in layouts:
        changed = changes.pop(name, {})
        layouts[name] |= changed | {"more": layouts[name]["more"] | changed.get("more", {})}
    if "c" in changes:
        layouts["c"] = layouts["d"] | changes.pop("c")
    transposes = {number: value for number, value in ((TRANS_A, transa), (TRANS_B, transb)) if value}
    values = {
        "compute": COMPUTE_OF.get(type_, 68), "scale": type_ if type_ in FACTORS else 0, "layouts": layouts,
        "alpha": ONE, "beta": ZERO, "A": A, "B": B, "C": D, "D": D,
        "algorithm": 0, "workspace": 0, "workspace_bytes": 0, "stream": 0,
    } | changes  # fmt: skip
    return [MATMUL, values | {"operation": transposes | changes.get("operation", {})}]


# Operation on column-major memory -> each transposition of a matrix and the matrix's order that is the same
AS_LAYOUTS = {"N": ((0, "c"), (1, "r")), "T": ((1, "c"), (0, "r")), "C": ((2, "c"),), "J": ((2, "r"),)}


def ways_to_ask(call: Any, type_: int, factors: dict[str, Any], count: int, strides: Sequence[int]) -> list[Any]:
    """Return calls of cublasLtMatmul for a tests.calls.Call, or for a batch of so many."""
    named = {"A": call.a, "B": call.b, "C": call.c, "D": call.c, "stream": call.stream or 0} | factors
    matrices: dict[str, Any] = {
        name: {"ld": ld, "more": {BATCHES: count, STRIDE: stride} if count > 1 else {}}
        for name, ld, stride in zip("abd", call.leading, strides, strict=True)
    }
    return [
        matmul(call.m, call.n, call.k, type_, transa, transb, order_a + order_b + "cr"[call.order == "C"],
               **matrices, **named)
        for transa, order_a in AS_LAYOUTS[call.ops[0]] for transb, order_b in AS_LAYOUTS[call.ops[1]]
    ]  # fmt: skip


def random_matmuls(count: int, seed: int) -> list[Any]:
    """Calls of every kind; in most of them one thing or none is unusual."""
    rng = random.Random(seed)
    calls = list[Any]()
    for turn in range(count):
        m, n, k = (rng.choice((1, 2, 3, 6, 500)) for _ in "mnk")
        changes: dict[str, Any] = {"stream": turn % 3 + 5}
        for _ in range(rng.choice((0, 0, 1, 1, 2))):
            changes |= rng.choice(UNUSUAL)
        type_, transa, transb = rng.choice((0, 0, 1, 2, 4, 5, 14)), rng.choice((0, 0, 1, 2)), rng.choice((0, 0, 1, 2))
        orders = rng.choice(("ccc", "ccc", "rcc", "crc", "rrr"))
        calls.append(matmul(m, n, k, type_, transa, transb, orders, **changes))
    return calls


def set_attributes(setting: Any, descriptor: Any, values: dict[int, Any], kinds: dict[int, str]) -> None:
    """Sets attributes to numbers of their kinds, or each to a kind and a number."""
    for number, value in values.items():
        kind, told = value if isinstance(value, list) else (kinds.get(int(number), "i"), value)
        data = struct.pack(kind, told)
        assert setting(descriptor, ctypes.c_int(int(number)), data, ctypes.c_size_t(len(data))) == 0, (number, value)


def made_operation(lt: Any, values: dict[str, Any]) -> ctypes.c_void_p:
    made, types = ctypes.c_void_p(), [ctypes.c_int(values[name]) for name in ("compute", "scale")]
    assert lt.cublasLtMatmulDescCreate(ctypes.byref(made), *types) == 0
    set_attributes(lt.cublasLtMatmulDescSetAttribute, made, values["operation"], OPERATION_BYTES)
    return made


def made_layout(lt: Any, values: dict[str, Any]) -> ctypes.c_void_p:
    made, extents = ctypes.c_void_p(), [ctypes.c_int64(values[name]) for name in ("rows", "columns", "ld")]
    assert lt.cublasLtMatrixLayoutCreate(ctypes.byref(made), ctypes.c_int(values["type"]), *extents) == 0
    set_attributes(lt.cublasLtMatrixLayoutSetAttribute, made, values["more"], LAYOUT_BYTES)
    return made


def call(lt: Any, handle: Any, values: dict[str, Any], kept: list[Any]) -> int:
    """The status of cublasLtMatmul, by descriptors that are made for it. Factors are numbers, or addresses."""

    def factor(value: Any) -> Any:
        if not isinstance(value, list):
            return ctypes.c_void_p(value)
        kind = FACTORS.get(values["scale"], "ff")
        kept.append(ctypes.create_string_buffer(struct.pack(kind, *value[: len(kind)]) + BEHIND))
        return ctypes.cast(kept[-1], ctypes.c_void_p)

    made = {name: made_layout(lt, one) for name, one in values["layouts"].items()}
    made.setdefault("c", made["d"])
    at = {name: ctypes.c_void_p(values[name]) for name in ("A", "B", "C", "D", "algorithm", "workspace", "stream")}
    return int(
        lt.cublasLtMatmul(
            handle, made_operation(lt, values), factor(values["alpha"]), at["A"], made["a"], at["B"], made["b"],
            factor(values["beta"]), at["C"], made["c"], at["D"], made["d"], at["algorithm"], at["workspace"],
            ctypes.c_size_t(values["workspace_bytes"]), at["stream"],
        )
    )  # fmt: skip


MORE = "cuBLASLt computes more than a product in place"
WRONG = "alpha or an extent is 0, or C overlaps"
NO_KERNEL = "the library has no kernel for it"
EPILOGUES, ON_DEVICE = "it has an epilogue", "alpha and beta are in device memory"
BLOCKED: dict[str, Any] = {"more": {PLANE: 64}}
TWO: dict[str, Any] = {"more": {BATCHES: 2, STRIDE: 12}}
LEFT: list[tuple[dict[str, Any], str]] = [
    *((one, EPILOGUES) for one in (
        {"operation": {EPILOGUE: 4}}, {"operation": {EPILOGUE: 4, BIAS: A}},
        {"operation": {EPILOGUE: 2, POINTER_MODE: 1}, "alpha": 0x1000, "beta": 0x1000})),
    ({"operation": {POINTER_MODE: 1}, "alpha": 0x1000, "beta": 0x1000}, ON_DEVICE),
    ({"operation": {POINTER_MODE: 4}, "alpha": 0x1000}, ON_DEVICE),
    ({"operation": {SM_COUNT: 100}}, "the program reserves multiprocessors"),
    *(({"operation": one}, MORE) for one in ({BIAS: A}, {SCALE_OF_A: A}, {FAST_SUMS: 1}, {EMULATION: A})),
    ({"operation": {UNKNOWN: 1}}, MORE), *(({name: {"more": {UNKNOWN: 1}}}, MORE) for name in "abcd"),
    *(({name: BLOCKED}, MORE) for name in "abdc"), ({"d": BLOCKED, "c": {"more": {}}}, MORE),
    *(({name: {"more": {ORDER: 2}}}, MORE) for name in "abd"), ({"c": {"more": {ORDER: 1}}}, MORE),
    *((one, MORE) for one in ({"c": {"rows": 7}}, {"c": {"columns": 3}}, {"C": C, "beta": ONE},
                              {"c": {"ld": 7}, "beta": ONE})),
    *((one, WRONG) for one in (
        {"a": {"more": {BATCHES: 2}}}, {"b": {"more": {BATCHES: 2}}}, {"d": TWO}, {"d": TWO, "c": {"more": {}}},
        {"c": {"more": {BATCHES: 0}}}, {"a": {"rows": 5}}, {"a": {"columns": 4}}, {"b": {"columns": 3}},
        {"b": {"rows": 4, "ld": 4}}, {"a": {"ld": 5}}, {"d": {"ld": 5}}, {"k": 0}, {"k": -1}, {"alpha": ZERO},
        {"alpha": 0}, {"beta": 0}, {"beta": 0, "C": C}, {"A": 0}, {"A": A + 2}, {"C": A, "D": A},
        {"C": A, "D": B - 4})),
    ({"transa": 1}, NO_KERNEL),
]  # fmt: skip
UNUSUAL: tuple[dict[str, Any], ...] = (
    *(changes for changes, _ in LEFT if not changes.keys() & {"k", "transa"}),
    {"compute": 77}, {"compute": 64, "scale": 2}, {"scale": 4}, {"a": {"type": 3}}, {"a": {"ld": 600}}, {"c": {}},
    {"C": C}, {"beta": [0.5, 0.0]}, {"b": {"more": {STRIDE: 77}}}, {"d": {"more": {BATCHES: 3}}},
    {"algorithm": B, "workspace": A, "workspace_bytes": 100},
)  # fmt: skip
