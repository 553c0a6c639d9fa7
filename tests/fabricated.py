"""Records as the tuner makes them, for tests that run no kernel."""

from __future__ import annotations

import hashlib
import importlib.util
import sqlite3
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import lru_cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, EllipsisType, ModuleType, SimpleNamespace
from typing import Any

from tests.schema_file import OLDEST
from tsm2_tune.generator.config import ONE_EACH, KernelConfig, Launch
from tsm2_tune.generator.device.roofline import Ceilings
from tsm2_tune.generator.families.published import Tsm2Config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import environment, render, with_headers
from tsm2_tune.generator.source import INDEX_BITS, KernelSource
from tsm2_tune.tuner.compile import elf_digest
from tsm2_tune.tuner.export.gathered import Kernel, kernel_of
from tsm2_tune.tuner.export.module import module_text
from tsm2_tune.tuner.export.tables import TABLES
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.fingerprint import basis, tools
from tsm2_tune.tuner.results.records import is_of_this_version
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import (
    Cache,
    DeviceIdentity,
    Final,
    LoadedResources,
    Measurement,
    Outcome,
    Trial,
    TuningRun,
    VendorMeasurement,
    Verdict,
)
from tsm2_tune.tuner.runs.events import ProblemEnded, ProblemStarted
from tsm2_tune.tuner.search.candidates import Why

PROBLEM = Problem(20480, 16, 20480, "f32")
GPU = "NVIDIA H200"

Winners = tuple[Sequence[BestRow], Mapping[int, KernelSource]]


def configuration(threads: int = 128, columns: int = 8, prefetch: int = 4) -> Tsm2Config:
    return Tsm2Config("v3", threads, columns, prefetch)


def tuning_run(device: str = GPU, **changes: Any) -> TuningRun:
    identity: dict[str, Any] = {
        "name": device,
        "uuid": "GPU-1",
        "compute_capability": "9.0",
        "driver": "580.65",
        "toolkit": "nvcc 13.0",
        "flags": "-arch=sm_90",
    }
    run: dict[str, Any] = {"seed": 1, "version": "0.1.0", "started_at": "2026-01-02T03:04:05+00:00"}
    for name, value in changes.items():
        (identity if name in identity else run)[name] = value
    ceilings = Ceilings(4000.0, 3600.0, (("f32", 60000.0), ("f64", 30000.0)))
    return TuningRun(DeviceIdentity(**identity), ceilings, **run)


BASIS = basis(tuning_run().identity.toolkit, tuning_run().identity.flags, Cache.CLEAN)  # of its trials


def measurement(median_us: float, spread_us: float = 1.0) -> Measurement:
    low, high = median_us - spread_us, median_us + spread_us
    return Measurement((low, median_us, high), median_us, low, high, sm_clock_mhz=1980.0)


def source(config: KernelConfig, dtype_name: str = "f32", text: str | None = None) -> KernelSource:
    launch = Launch(threads=128, rows_per_block=128, smem_bytes=4096)
    text = text if text is not None else f"extern int {config.text.replace('-', '_')}_{dtype_name};\n"
    return KernelSource(config.family, text, ("INDEX_BITS=32",), launch, dtype_name)


def kernel(config: KernelConfig, problem: Problem) -> KernelSource:
    """The configuration's own, where its family has one for the problem."""
    known = is_of_this_version(config, problem)
    return render(problem, config) if known else source(config, problem.dtype_name)


HANDMADE = """\
#if INDEX_BITS == 64
using index_t = long long;
#else
using index_t = int;
#endif
{definition}using scalar = {c_type};
using sum_t = {sum_type};
constexpr int rows = 32, columns = 4, splits = {splits};

extern "C" __global__ void __launch_bounds__(rows) handmade(
{parameters})
{{
    __shared__ bool last;
{of_batch}\
    const index_t down = (m + rows - 1) / rows, tile = blockIdx.x, split = blockIdx.y;
    const index_t i = tile % down * rows + threadIdx.x, first = tile / down * columns;
    const index_t end = first + columns < n ? first + columns : n;
    for (index_t j = first; j < end && i < m; ++j) {{
        sum_t sum = 0;
        for (index_t l = split; l < k; l += splits)
            sum += {conjugate_a}(A[{at_a}]) * {conjugate_b}(B[{at_b}]);
        partials[((long long)split * n + j) * m + i] = sum;
    }}
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        last = atomicAdd(counters + tile, 1u) == splits - 1;
    __syncthreads();
    if (!last)
        return;
    __threadfence();
    for (index_t j = first; j < end && i < m; ++j) {{
        sum_t sum = 0;
        for (index_t other = 0; other < splits; ++other)
            sum += __ldcg(partials + ((long long)other * n + j) * m + i);
        C[{at_c}] = scalar(beta == 0 ? alpha * sum : alpha * sum + beta * sum_t(C[{at_c}]));
    }}
    if (threadIdx.x == 0)
        counters[tile] = 0;
}}
"""


def handmade(problem: Problem, splits: int = 3) -> KernelSource:
    """A plain kernel for the problem's op and dtype that splits k, with tiles of 32 rows and 4 columns.

    A kernel of batches has one product for each z of the grid.
    """
    is_batch = problem.batch > 1
    a, b, c = (along != beside for along, beside in zip(problem.contiguous, ("k", "n", "n"), strict=True))
    dtype, (conjugate_a, conjugate_b) = problem.dtype, problem.conjugated
    parts: Any = environment().get_template("parts.cu.jinja").module
    text = HANDMADE.format(
        splits=splits,
        definition=parts.number_header(dtype),
        c_type=dtype.c_type,
        sum_type=dtype.sum.c_type,
        conjugate_a="conjugate" if conjugate_a else "sum_t",
        conjugate_b="conjugate" if conjugate_b else "sum_t",
        at_a="i + l * lda" if a else "l + i * lda",
        at_b="l + j * ldb" if b else "j + l * ldb",
        at_c="i + j * ldc" if c else "j + i * ldc",
        parameters=parts.parameters(workspace=True, batched=is_batch).strip("\n"),
        of_batch=parts.product_of_batch(True) if is_batch else "",
    )
    launch = Launch(
        threads=32, rows_per_block=32, smem_bytes=0, columns_per_block=4, splits=splits, batched=ONE_EACH * is_batch
    )
    return KernelSource("handmade", with_headers(text), ("INDEX_BITS=32",), launch, problem.dtype_name)


def trial(
    median_us: float = 500.0,
    config: KernelConfig | None = None,
    *,
    problem: Problem = PROBLEM,
    basis: str = BASIS,
    registers: int = 64,
    smem_bytes: int = 4096,
    blocks_per_sm: int = 8,
    spread_us: float = 1.0,
    **changes: Any,
) -> Trial:
    """A trial that went well, but for what `changes` says."""
    config = config if config is not None else configuration()
    values: dict[str, Any] = {
        "problem": problem,
        "config": config,
        "basis": basis,
        "source": kernel(config, problem),
        "outcome": Outcome.OK,
        "detail": "",
        "resources": LoadedResources(registers, 0, smem_bytes, blocks_per_sm),
        "spill_bytes": 0,
        "guideline_broken": None,
        "verdict": Verdict(True, 0.01, "every element within its bound"),
        "measurement": measurement(median_us, spread_us),
        "floor_us": 400.0,
        "compile_seconds": 2.0,
        "total_seconds": 3.0,
        "full_verdict": "every element of 9 calls right",
    }
    values |= changes
    values.setdefault("verified_code", FAKE_CODE if values["full_verdict"] else None)
    return Trial(**values)


def fake_binary(code: bytes = b"instructions") -> bytes:
    """Return an ELF file of nothing but this machine code."""
    names = b"\0.text\0"
    texts = elf_digest.HEADER.size, elf_digest.HEADER.size + len(code)
    sections = (
        elf_digest.SECTION.pack(1, elf_digest.PROGBITS, elf_digest.ALLOC, 0, texts[0], len(code), 0, 0, 1, 0),
        elf_digest.SECTION.pack(0, 3, 0, 0, texts[1], len(names), 0, 0, 1, 0),
    )
    shape = (texts[1] + len(names), 0, 64, 0, 0, elf_digest.SECTION.size, len(sections), 1)
    head = elf_digest.HEADER.pack(elf_digest.LITTLE_64, 2, 190, 1, 0, 0, *shape)
    return b"".join((head, code, names, *sections))


FAKE_CODE = " ".join([elf_digest.machine_code_digest(fake_binary())] * len(INDEX_BITS))  # for each width of index


def final(
    *timed: tuple[KernelConfig, float], problem: Problem = PROBLEM, vendor: tuple[VendorMeasurement, ...] = ()
) -> Final:
    return Final(problem, tuple((config, measurement(median_us)) for config, median_us in timed), vendor)


def vendor_measurement(
    median_us: float, routine: str = "cublasSgemm", *, version: int = 130100, right: bool = True
) -> VendorMeasurement:
    verdict = Verdict(right, 0.25 if right else float("inf"), "right" if right else "C[0, 0] = 1, expected 2")
    library = "cuBLASLt" if "#" in routine else "cuBLAS"
    return VendorMeasurement(library, version, routine, verdict, measurement(median_us))


# Options of a target that times in one state of the L2, as the host does.
ONE_STATE: dict[str, Any] = {
    "cache": lambda asked: Cache.CLEAN,
    "caches": lambda asked, others: (Cache.CLEAN,),
    "basis": lambda cache: basis("nvcc", "", cache),
    "tools": tools("nvcc", "", "580.65"),
}


def host_run() -> TuningRun:
    return tuning_run("Some CPU", compute_capability="", driver="", toolkit="g++ 14", flags="-O3")


def winners(folder: Path, *trials: tuple[TuningRun, Trial]) -> Winners:
    """Store the trials, each with its run, in a new database; read back the winners. Their sources are as given."""
    with Store.open(folder / "results.db", create=True) as store:
        sources = {store.add_trial(run, tried): tried.source for run, tried in trials}
        return store.best(), sources


def kernels_of(found: Winners) -> list[Kernel]:
    """Return the winners' kernels, of which nothing is known at other shapes."""
    rows, sources = found
    return [kernel_of(row, sources[row.trial_id]) for row in rows]


def exported(format_name: str, found: Winners, database: str = "results.db", *, launcher: bytes | None = None) -> str:
    if format_name in TABLES:
        return TABLES[format_name](found[0], database)
    return module_text(kernels_of(found), {}, database, launcher=launcher)


def device_array(
    shape: tuple[int, ...], strides: tuple[int, ...] | EllipsisType | None = ..., *, at: int = 0x1000, **changes: Any
) -> SimpleNamespace:
    """An object with the interface of an array in device memory; column-major float32 where not said otherwise."""
    interface: dict[str, Any] = {"shape": shape, "typestr": "<f4", "data": (at, False), "version": 3}
    interface["strides"] = (4, 4 * shape[0]) if strides is ... else strides
    return SimpleNamespace(__cuda_array_interface__=interface | changes)


class OfText(SourceFileLoader):
    """Compiles each text once: many tests import the same one."""

    def source_to_code(self, data: Any, path: Any) -> CodeType:  # type: ignore[override]
        return code_of(bytes(data))


@lru_cache(maxsize=64)
def code_of(text: bytes) -> CodeType:
    return compile(text, "best_kernels.py", "exec", dont_inherit=True)


def imported(text: str, folder: Path) -> ModuleType:
    """The exported module, imported from a file."""
    path = folder / "best_kernels.py"
    path.write_text(text, encoding="utf-8")
    return imported_from(path)


def imported_from(path: Path, name: str = "best_kernels") -> ModuleType:
    """The exported module of the file, as `import` does under this name."""
    spec = importlib.util.spec_from_file_location(name, path, loader=OfText(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def module_of(
    folder: Path,
    *kernels: Problem | Trial | tuple[TuningRun, Trial],
    run: TuningRun | None = None,
    launcher: bytes | None = None,
    **beside: Any,
) -> ModuleType:
    """The exported module of winners: of a problem a plain one, where not said otherwise of this run. Their rows have
    the values `beside`, such as cublas_us.
    """
    trials = [trial(problem=one) if isinstance(one, Problem) else one for one in kernels]
    run = run or tuning_run()
    rows, sources = winners(folder, *(one if isinstance(one, tuple) else (run, one) for one in trials))
    rows = [replace(row, **beside) for row in rows]
    return imported(exported("module", (rows, sources), launcher=launcher), folder)


def split_trial(problem: Problem, splits: int = 3) -> Trial:
    """A trial of the handmade kernel, which splits k."""
    return trial(problem=problem, source=handmade(problem, splits))


def plain_sql(path: Path, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """Run a statement with SQLite itself, and return its rows."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA synchronous = OFF")
        return connection.execute(statement, values).fetchall()


def source_text(path: Path, digest: str) -> str:
    """Return a kernel's text, read as somebody with SQLite alone reads it."""
    ((keys,),) = plain_sql(path, "SELECT paragraphs FROM source WHERE digest = ?", digest)
    by_key = dict(plain_sql(path, "SELECT key, text FROM paragraph"))
    return "\n\n".join(by_key[key] for key in keys.split())


def add_text(path: Path, text: str) -> str:
    """Store a text as one paragraph. Return its key."""
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    plain_sql(path, "INSERT OR IGNORE INTO paragraph VALUES (?, ?)", key, text)
    return key


def downgrade(path: Path) -> None:
    """Make the file one of the oldest schema with a migration, with the rows that it can have."""
    texts = {digest: source_text(path, digest) for (digest,) in plain_sql(path, "SELECT digest FROM source")}
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        rows = [
            (one, dict(row)) for one in schema.metadata.tables for row in connection.execute(f"SELECT * FROM {one}")
        ]
    path.unlink()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(OLDEST.read_text(encoding="utf-8"))
        for table, row in rows:
            row |= {"text": texts.get(row.get("digest", ""))}
            names = [name for (_, name, *_) in connection.execute(f"PRAGMA table_info({table})") if name in row]
            if names:
                insert = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
                connection.execute(insert, [row[name] for name in names])


def started(configurations: int = 128, problem: Problem = PROBLEM, **changes: Any) -> ProblemStarted:
    space: Any = SimpleNamespace(problem=problem, kept=range(configurations))
    return ProblemStarted(space, **{"tried_before": 0, "seconds_before": 0.0, "best_before_us": None} | changes)


def ended(problem: Problem = PROBLEM, new_trials: int = 3, untried: int = 0, **changes: Any) -> ProblemEnded:
    counts = {"tried": new_trials, "timed_out": 0, "interrupted": 0, "winner": None, "why": Why.ALL_TRIED}
    return ProblemEnded(problem, new_trials=new_trials, untried=untried, **counts | changes)
