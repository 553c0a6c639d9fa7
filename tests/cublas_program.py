"""A program that lets cuBLAS multiply: in a process of its own, by what it reads as JSON; prints the driver's log.

python -m tests.cublas_program < steps
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
import threading
from typing import Any

from tests import lt_calls

WIDE = "_64"
SCALARS = {"S": "f", "D": "d", "C": "ff", "Z": "dd"}
KINDS = {0: "f", 1: "d", 2: "f", 14: "f", 4: "ff", 5: "dd"}  # C types of alpha and beta by cudaDataType_t
NARROW = {"transa", "transb", "trans", "uplo", "compute", "algorithm", "type_a", "type_b", "type_c"}
POINTERS = {"alpha", "A", "B", "beta", "C", "x", "y"}
GEMM = "transa transb m n k alpha A lda B ldb beta C ldc"
TYPED = "transa transb m n k alpha A type_a lda B type_b ldb beta C type_c ldc"
ARGUMENTS = {
    "gemm_v2": GEMM,
    "gemmStridedBatched": "transa transb m n k alpha A lda stride_a B ldb stride_b beta C ldc stride_c count",
    "gemmBatched": f"{GEMM} count",
    "gemv_v2": "trans m n alpha A lda x incx beta y incy",
    "syrk_v2": "uplo trans n k alpha A lda beta C ldc",
    "herk_v2": "uplo trans n k alpha A lda beta C ldc",
    "GemmEx": f"{TYPED} compute algorithm",
    "GemmBatchedEx": f"{TYPED} count compute algorithm",
    "GemmStridedBatchedEx": (
        "transa transb m n k alpha A type_a lda stride_a B type_b ldb stride_b beta C type_c ldc stride_c count"
        " compute algorithm"
    ),
}


def names_of(routine: str) -> list[str]:
    """The names of a routine's arguments behind the handle."""
    plain = routine.removesuffix(WIDE).removeprefix("cublas")
    return ARGUMENTS[plain if plain.startswith("Gemm") else plain[1:]].split()


def call(cublas: Any, handle: Any, routine: str, values: dict[str, Any], kept: list[Any], memory: Any) -> int:
    """The routine's status. Factors are numbers, real and imaginary part, which are put into memory."""
    letter = routine.removeprefix("cublas")[0]
    kind = KINDS[values["type_a"]] if "type_a" in values else SCALARS[letter]
    if "herk" in routine:  # which has real factors
        kind = kind[0]
    arguments = [handle]
    for name in names_of(routine):
        value = values[name]
        if name in ("alpha", "beta") and isinstance(value, list):
            value = ctypes.create_string_buffer(struct.pack(kind, *value[: len(kind)]) + lt_calls.BEHIND)
            kept.append(value)
            arguments.append(ctypes.cast(value, ctypes.c_void_p))
        elif name in POINTERS:
            arguments.append(memory.get(name) or ctypes.c_void_p(value))
        elif name.startswith("stride"):
            arguments.append(ctypes.c_longlong(value))
        else:
            is_wide = routine.endswith(WIDE) and name not in NARROW
            arguments.append((ctypes.c_int64 if is_wide else ctypes.c_int)(value))
    return int(getattr(cublas, routine)(*arguments))


def play(
    cublas: Any, driver: Any, steps: list[Any], results: list[list[float]], meeting: threading.Barrier | None = None
) -> list[int]:
    """The statuses of the calls among the steps, with a handle of their own. What C holds joins the results."""
    handle, kept, statuses = ctypes.c_void_p(), list[Any](), list[int]()
    memory = dict[str, Any]()  # of matrices, where they have some
    assert cublas.cublasCreate_v2(ctypes.byref(handle)) == 0
    for name, *rest in steps:
        if name.startswith("fake_"):
            getattr(driver, name)(*[one.encode() if isinstance(one, str) else one for one in rest])
        elif name == "memory":
            memory = {which: (ctypes.c_double * len(values))(*values) for which, values in rest[0].items()}
        elif name == "fork":
            child = os.fork()
            if child == 0:
                play(cublas, driver, rest[0], results)
                os._exit(0)
            os.waitpid(child, 0)
        elif name == "meet" and meeting is not None:
            meeting.wait(60)
        elif name == "kill":
            os.kill(os.getpid(), rest[0])
        elif name.startswith("cublasSet"):
            getattr(cublas, name)(handle, ctypes.c_void_p(rest[0]))
        elif name == lt_calls.MATMUL:
            statuses.append(lt_calls.call(ctypes.CDLL("libcublasLt.so.13"), handle, rest[0], kept))
        else:
            statuses.append(call(cublas, handle, name, rest[0], kept, memory))
            results.extend(list(memory[which]) for which in ("C",) if memory)
    return statuses


def main() -> None:
    told = json.load(sys.stdin)
    driver, cublas = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libcublas.so.13")
    driver.fake_log.restype = ctypes.c_char_p
    for name in ("fake_memory", "fake_capture", "fake_context"):
        getattr(driver, name).argtypes = [ctypes.c_ulonglong]
    statuses = dict[int, list[int]]()
    results = list[list[float]]()
    meeting = threading.Barrier(len(told))

    def work(number: int, steps: list[Any]) -> None:
        driver.fake_context(0xC0)
        statuses[number] = play(cublas, driver, steps, results, meeting)

    threads = [threading.Thread(target=work, args=item) for item in enumerate(told)]
    if len(told) == 1:  # which may fork
        work(0, told[0])
    else:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    log = driver.fake_log().decode(errors="replace").splitlines()
    by_thread = [statuses[number] for number in sorted(statuses)]
    json.dump({"statuses": by_thread, "log": log, "results": results}, sys.stdout)


if __name__ == "__main__":
    main()
