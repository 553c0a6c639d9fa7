"""The stand-in for cuBLAS before a cuBLAS and a driver that write down their calls."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests import lt_calls
from tests.calls import A, B, C, Call
from tests.cublas_program import WIDE, names_of
from tests.processes import python
from tsm2_tune.interpose.build import standin_path
from tsm2_tune.interpose.journal import REASONS, Seen, written_in
from tsm2_tune.interpose.preload import Standing

TESTS = Path(__file__).parent
FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared", "-pthread")
LETTERS = "SDCZ"
EXTENDED = ("GemmEx", "GemmStridedBatchedEx", "GemmBatchedEx")
OF_LETTERS = ("gemm_v2", "gemmStridedBatched", "gemmBatched", "gemv_v2", "syrk_v2")
NAMES = (*(letter + name for letter in LETTERS for name in OF_LETTERS), "Cherk_v2", "Zherk_v2", *EXTENDED)
ROUTINES = tuple(f"cublas{name}{wide}" for name in NAMES for wide in ("", WIDE))
ONE, ZERO = [1.0, 0.0], [0.0, 0.0]


def build_fakes(folder: Path) -> None:
    """libcuda.so.1, libcublas.so.13 and libcublasLt.so.13 in the folder."""
    for source, name, libraries in (
        ("fake_cuda.c", "libcuda.so.1", ()),
        ("fake_cublas.c", "libcublas.so.13", (f"-L{folder}", "-l:libcuda.so.1")),
        ("fake_cublaslt.c", "libcublasLt.so.13", (f"-L{folder}", "-l:libcuda.so.1", "-Wl,--default-symver")),
    ):
        command = ["cc", *FLAGS, f"-Wl,-soname,{name}", str(TESTS / source), *libraries, "-o", str(folder / name)]
        subprocess.run(command, check=True)


@dataclass(frozen=True)
class Played:
    """Result of a program's steps."""

    statuses: list[list[int]]  # by thread
    log: list[str]  # calls of the driver and of cuBLAS
    told: str  # on standard error
    seen: tuple[Seen, ...]
    status: int
    uncounted: tuple[int, ...]
    results: list[list[float]]  # contents of C after each call, if C has memory

    @property
    def launches(self) -> list[str]:
        return [line for line in self.log if line.startswith("launch ")]

    @property
    def left(self) -> list[str]:
        """Calls of cuBLAS's, without the addresses of factors, which are other ones in each process."""
        return [line for line in self.log if line.startswith("cublas")]


def play(
    fakes: Path,
    *threads: Sequence[Any],
    standin: bool = True,
    library: Path | None = None,
    environment: dict[str, str] | None = None,
    **named: Any,
) -> Played:
    """Let each thread of a program do its steps, with the stand-in before cuBLAS, or another library, or without."""
    with tempfile.TemporaryDirectory() as folder:
        told = Standing(library or standin_path(), **named).environment(Path(folder)) if standin else dict(os.environ)
        told["LD_LIBRARY_PATH"] = str(fakes)
        told |= environment or {}
        done = python(
            "-m", "tests.cublas_program", input=json.dumps(threads), env=told, timeout=120, cwd=TESTS.parent
        )
        written = written_in(Path(folder))
    found = json.loads(done.stdout) if done.stdout else {"statuses": [], "log": [], "results": []}
    of_process = done.stderr, written.seen, done.returncode, written.uncounted
    return Played(found["statuses"], found["log"], *of_process, found["results"])


def gemm(routine: str = "cublasSgemm_v2", m: int = 6, n: int = 2, k: int = 3, **changes: Any) -> list[Any]:
    """A call of a routine for products, leading dimensions the least, of one product."""
    values: dict[str, Any] = {"transa": 0, "transb": 0, "m": m, "n": n, "k": k, "alpha": ONE, "beta": ZERO} | {
        "A": A, "B": B, "C": C, "algorithm": -1, "count": 1, "type_a": 0, "type_b": 0, "type_c": 0, "compute": 68,
        "x": B, "y": C, "incx": 1, "incy": 1, "trans": 0, "uplo": 0,
    } | changes  # fmt: skip
    least = {"lda": m if not values["transa"] else k, "ldb": k if not values["transb"] else n, "ldc": m}
    if "gemv" in routine:
        least["lda"] = m
    if "rk_v2" in routine:
        least = {"lda": n if not values["trans"] else k, "ldc": n}
    strides = {"stride_a": 10**6, "stride_b": 10**6, "stride_c": 10**6}
    values = {**least, **strides, **values}
    return [routine, {name: values[name] for name in names_of(routine)}]


CUDA_TYPES = {"f32": 0, "f64": 1, "c64": 4, "c128": 5, "f16": 2, "bf16": 14}  # cudaDataType_t


def ways_to_ask(call: Call, count: int = 1, strides: Sequence[int] = (0, 0, 0)) -> list[tuple[list[Any], Call]]:
    """Return steps that ask for the call, or for a batch of so many, each with the call as it asks the library."""
    of_columns = call.in_columns()
    (lda, ldb, ldc), type_ = of_columns.leading, CUDA_TYPES[call.dtype]
    factors = {
        name: [complex(one).real, complex(one).imag]
        for name, one in zip(("alpha", "beta"), call.factors, strict=True)
    }
    transa, transb = map("NTC".index, of_columns.ops)
    at: dict[str, Any] = {"A": of_columns.a, "B": of_columns.b, "C": of_columns.c} | factors
    m, n, k = of_columns.m, of_columns.n, of_columns.k
    of_gemm = at | {"m": m, "n": n, "k": k, "transa": transa, "transb": transb, "lda": lda, "ldb": ldb, "ldc": ldc}
    if count > 1:
        of_gemm |= {"count": count, "stride_a": strides[0], "stride_b": strides[1], "stride_c": strides[2]}
    types = dict.fromkeys(("type_a", "type_b", "type_c"), type_) | {
        "compute": lt_calls.COMPUTE_OF[type_] if type_ != 1 else 70
    }
    names = ["GemmStridedBatchedEx", *(["GemmEx"] if count == 1 else [])]
    found = [(gemm(f"cublas{name}{wide}", **of_gemm, **types), of_columns) for name in names for wide in ("", WIDE)]
    if n % 2 == 0 and of_columns.ops[1] == "N" and count == 1:  # two products with one A, B and C side by side
        half = {"n": n // 2, "count": 2, "stride_a": 0, "stride_b": ldb * n // 2, "stride_c": ldc * n // 2}
        found.append((gemm("cublasGemmStridedBatchedEx", **of_gemm | types | half), of_columns))
    if type_ < 2 or type_ in (4, 5):
        letter = LETTERS[(0, 1, 4, 5).index(type_)]
        names = [f"{letter}gemmStridedBatched", *([f"{letter}gemm_v2"] if count == 1 else [])]
        found += [(gemm(f"cublas{name}{wide}", **of_gemm), of_columns) for name in names for wide in ("", WIDE)]
        step = 1 if of_columns.ops[1] == "N" else ldb
        if (n, count) == (1, 1) and of_columns.ops[1] != "C" and (step > 1) == (of_columns.ops[1] == "T"):
            rows, columns = (m, k) if transa == 0 else (k, m)
            named = at | {"trans": transa, "lda": lda, "incx": step, "x": of_columns.b, "y": of_columns.c}
            own = replace(of_columns, ldb=step if step > 1 else 0, ldc=0)
            found += [(gemm(f"cublas{letter}gemv_v2{wide}", rows, columns, **named), own) for wide in ("", WIDE)]
    of_lt = lt_calls.ways_to_ask(call, type_, factors, count, strides)
    if count > 1:  # in rows too
        of_lt += lt_calls.ways_to_ask(call.transposed(), type_, factors, count, (strides[1], strides[0], strides[2]))
    return found + [(matmul, of_columns) for matmul in of_lt]


def random_calls(count: int, seed: int) -> list[Any]:
    """Return calls of every routine, with arguments of every kind, wrong ones too."""
    rng = random.Random(seed)
    calls = list[Any]()
    for _ in range(count):
        m, n, k = (rng.choice((0, 1, 2, 3, 8, 500)) for _ in "mnk")
        changes = {
            "transa": rng.choice((0, 0, 1, 2, 3)), "transb": rng.choice((0, 0, 1, 2)), "trans": rng.choice((0, 1, 2)),
            "alpha": rng.choice((ONE, ONE, [2.0, 1.0], ZERO)), "beta": rng.choice((ZERO, ONE, [0.5, -1.0])),
            "type_a": rng.choice((0, 1, 2, 4, 5, 14)), "compute": rng.choice((64, 68, 69, 70, 74, 77)),
            "count": rng.choice((1, 1, 3)),
            "uplo": rng.choice((0, 1, 1, 2)), "incx": rng.choice((1, 1, 2, -1)), "incy": rng.choice((1, 1, 2)),
            "C": rng.choice((C, C, A)), "stride_a": rng.choice((0, 10**6)),
        }  # fmt: skip
        changes["type_b"] = changes["type_c"] = changes["type_a"]
        if rng.random() < 0.2:
            changes[rng.choice(("lda", "ldb", "ldc"))] = rng.choice((0, 1, 600))
        calls.append(gemm(rng.choice(ROUTINES), m, n, k, **changes))
    return calls


def by_reason(played: Played) -> dict[str, int]:
    """Return how many products were left to cuBLAS for each reason."""
    counts = (Counter(dict(zip(REASONS, one.left, strict=True))) for one in played.seen)
    return sum(counts, Counter())  # without zeros


def without_factors(lines: list[str]) -> list[str]:
    """Addresses of host memory are other ones in each process."""
    return [re.sub(r"\b(?:9[0-9]{13}|1[0-9]{14})\b", "host", line) for line in lines]


def of_the_program(lines: list[str]) -> list[str]:
    """Calls of cuBLAS without those that its Sgemm makes itself."""
    before = ["", *lines]
    return [line for line, last in zip(lines, before, strict=False) if not last.startswith("cublasSgemm_v2 ")]


def without_copies(lines: list[str]) -> list[str]:
    """Calls of cuBLAS without those of the stand-in, which copies triangles."""
    return [line for line in lines if line.split()[0][7:] not in ("trttp", "tpttr")]


def run_with_standin(program: list[str], folders: list[Path], pack: Path | None, preloaded: str = "") -> list[str]:
    """Run the program with the stand-in, and return the lines that it prints."""
    told = Standing(standin_path(), pack).environment(None) | {"LD_LIBRARY_PATH": ":".join(map(str, folders))}
    told["LD_PRELOAD"] += preloaded
    done = subprocess.run(program, env=told, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def launches_and_routines(lines: list[str]) -> tuple[int, list[str]]:
    """Return the number of launches, and the routines of cuBLAS that were called."""
    calls = [line.split(" stream")[0] for line in lines if " stream" in line]
    return sum(line.startswith("launch ") for line in lines), calls


def compiled_c(declared: str, folder: Path, name: str, text: str, *options: str) -> Path:
    """A program of the C text, or by -shared a library."""
    source = folder / f"{name}.c"
    source.write_text(declared + text)
    subprocess.run(["cc", "-w", "-fPIC", str(source), *options, "-o", str(folder / name)], check=True)
    return folder / name
