"""Packs of kernels of every type and op at random shapes, on two GPUs."""

from __future__ import annotations

import ctypes
import os
import random
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import pytest

from tests.calls import TYPES
from tests.fabricated import Winners, imported, kernels_of, winners
from tests.fake_tensors import Tensor
from tests.kept_objects import keep
from tests.library_calls import A100, H200, PLAIN, SPLIT, tried
from tests.random_calls import PLACES, Driver, tensor
from tests.recording_driver import attach
from tsm2_tune.generator.config import Launch
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.generator.tiling import Tiling
from tsm2_tune.tuner.export.gathered import Kernel, kernel_of
from tsm2_tune.tuner.export.module import launcher_binary, module_text
from tsm2_tune.tuner.packs.core_pack import DeviceRates, MeasuredKernel
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.trial import Trial, TuningRun

LAUNCHES = (
    PLAIN,
    SPLIT,
    Launch(threads=128, rows_per_block=64, smem_bytes=0, columns_per_block=8, splits=100),
    Launch(threads=128, rows_per_block=64, smem_bytes=0, splits=65, flat_splits=8),
    Launch(threads=128, rows_per_block=64, smem_bytes=0, columns_per_block=16, splits=264, persistent=True),
    Launch(threads=128, rows_per_block=1, smem_bytes=0, splits=5, persistent=True),
    Launch(threads=128, rows_per_block=64, smem_bytes=0, lone_split=True),
)
EXTENTS = (1, 8, 64, 4096, 10**6)  # of shapes with other measured times


@cache
def everything(seed: int) -> tuple[list[Kernel], dict[str, DeviceRates]]:
    """Kernels that won, and the rates of their GPUs: nothing else is known of them with seed 0.

    Every test gets the same objects.
    """
    with TemporaryDirectory() as folder:
        won, sources = winners(Path(folder), *pack_of_everything(seed))
    rows, sources = tuple(_with_vendor(row, place) for place, row in enumerate(won)), dict(sources)
    if seed > 1:
        rows += _slower_ones(rows, sources)
    return _known((rows, sources), seed) if seed else (kernels_of((rows, sources)), {})


def kernels_of_everything(seed: int) -> list[MeasuredKernel]:
    """The kernels of `everything`, as an export writes them into a pack."""
    return [one.measured for one in everything(seed)[0]]


def pack_of_everything(seed: int) -> list[tuple[TuningRun, Trial]]:
    """Trials of every type and op."""
    rng, trials = random.Random(seed), []
    extents = (1, 2, 4, 8, 16, 64, 4096, 20480, 10**6)
    ops = [a + b for a, b in product("nt", repeat=2)] + ["nnt", "tnt", "ntt", "ttt", "tx", "nxt"]
    for dtype, run in product(TYPES, (H200, A100)):
        every = [*ops, "cn", "nc", "cc", "cx", "jtt", "tjt", "jxt", "tc"] if dtype.startswith("c") else ops
        for op in rng.sample(every, 6):
            for _ in range(rng.randint(1, 4)):
                m, n, k = (rng.choice(extents) for _ in "mnk")
                problem = Problem(m, m if "x" in op else n, k, dtype, op)
                launch, us = rng.choice(LAUNCHES), rng.choice((5.0, 6.5, 7.25, 400.0))
                trials.append(tried(problem, launch, run=run, median_us=us))
    return trials


def _known(found: Winners, seed: int) -> tuple[list[Kernel], dict[str, DeviceRates]]:
    """Tilings that fit the winners' launches, times at other shapes, and the rates of two GPUs."""
    (rows, sources), rng, tilings = found, random.Random(seed), dict[int, Tiling]()
    for row in rows:
        launch = sources[row.trial_id].launch
        tilings[row.trial_id] = Tiling(
            resident=rng.choice((1, 2, 8)),
            tile_m=max(launch.rows_per_block // rng.choice((1, 1, 2)), 1),
            tile_n=launch.columns_per_block,
            k_step=rng.choice((0, 1, 16, 64)),
            k_per_pass=rng.choice((0, 0, 32)),
            without_vectors=rng.choice((1.03, 1.3)),
            k_of_resident_b=rng.choice((0, 0, 256)),
            arithmetic_rate=rng.choice((1.0, 0.33)),
            cached_rate=rng.choice((1.0, 0.3)),
            vector_bytes=rng.choice((16, 16, 4)),
            k_padding=rng.choice((1, 1, 16)),
            n_padding=rng.choice((0, 1, 8)),
            is_pipelined=rng.choice((False, True)),
            c_vector_bytes=rng.choice((0, 0, 8, 16)),
            k_of_vectors=rng.choice((0, 0, 64)),
        )
    gflops = dict.fromkeys(TYPES, 65000.0) | {"c64": 87000.0, "f16": 617000.0}
    rates = {
        H200.identity.name: DeviceRates(132, 4684.7, 4128.3, gflops),
        A100.identity.name: DeviceRates(108, 1600.0, 1400.0, {"f32": 19000.0}),
    }

    def shape() -> tuple[int, ...]:
        return tuple(rng.choice(EXTENTS) for _ in "mnk")

    elsewhere: dict[int, Any] = {
        row.trial_id: tuple(
            (*shape(), 1, 64, rng.choice((1, 4)), rng.uniform(5, 500)) for _ in range(rng.randint(0, 3))
        )
        for row in rows
    }
    vendor: dict[int, Any] = {
        row.trial_id: tuple((*shape(), 1, rng.uniform(5, 500)) for _ in range(rng.randint(0, 2))) for row in rows
    }
    kernels = []
    for row in rows:
        source, own = sources[row.trial_id], rates.get(row.device)
        number = row.trial_id
        kernels.append(kernel_of(row, source, tilings[number], own, elsewhere[number], vendor[number]))
    return kernels, rates


def _slower_ones(rows: Sequence[BestRow], sources: dict[int, KernelSource]) -> tuple[BestRow, ...]:
    """Another kernel for every third of the shapes, slower than the winner."""
    found = []
    for row in rows[::3]:
        source = sources[row.trial_id]
        sources[-row.trial_id] = replace(source, text=f"{source.text}// another")
        other: dict[str, Any] = {"trial_id": -row.trial_id, "source_digest": sources[-row.trial_id].digest}
        other |= dict.fromkeys(("cublas_us", "cublas_right", "cublas_routine"))
        found.append(replace(row, median_us=1.5 * row.median_us, **other))
    return tuple(found)


def _with_vendor(row: BestRow, place: int) -> BestRow:
    """Every other row with a time of cuBLAS, of which a quarter is of wrong results."""
    if place % 2:
        return row
    return replace(row, cublas_us=300.0, cublas_right=int(place % 8 != 0), cublas_routine="cublasSgemm")


def modules_of_everything(folder: Path, seed: int) -> tuple[ModuleType, ModuleType]:
    """Return modules without the compiled launcher and with it. Nothing predicts their times with seed 0."""
    plain, compiled = (imported(text, folder) for text in texts_of_everything(seed))
    return plain, compiled


@cache
def texts_of_everything(seed: int) -> tuple[str, str]:
    """Return the modules' texts. The first process that asks makes them for all processes of a test run."""
    places = [Path(os.environ["XDG_CACHE_HOME"], f"everything-{seed}-{name}.py") for name in ("plain", "compiled")]
    if not all(place.exists() for place in places):
        kernels, rates = everything(seed)
        for place, launcher in zip(places, (None, launcher_binary()), strict=True):
            keep(place, module_text(kernels, rates, "results.db", launcher=launcher).encode())
    plain, compiled = (place.read_text(encoding="utf-8") for place in places)
    return plain, compiled


class Loading(Driver):
    """A driver that has a function of its own for each binary, and all addresses."""

    def cuPointerGetAttribute(self, value: Any, attribute: int, address: Any) -> int:
        return super().cuPointerGetAttribute(value, attribute, ctypes.c_uint64(0x1000))

    def cuModuleLoadData(self, module: Any, image: bytes) -> int:
        module._obj.value = 1 + zlib.crc32(image)
        return super().cuModuleLoadData(module, image)

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:
        function._obj.value = module.value
        return 0


def before_a_driver(module: ModuleType) -> None:
    driver = Loading()
    driver.current = 0xAA
    attach(module, driver, cubin_of=lambda winner, bits, arch: f"{winner.digest} {bits} {arch}".encode())


@pytest.fixture
def both_modules(tmp_path: Path, torch: Any, cupy: Any) -> tuple[ModuleType, ModuleType]:
    """Modules of winners of everything, each before a driver of its own."""
    made = modules_of_everything(tmp_path, 1)
    for module in made:
        before_a_driver(module)
    return made


def products(
    module: ModuleType, count: int, dtype: str = "f32", ats: Sequence[int] = PLACES
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Arrays of that many shapes at these addresses, for which a winner of this GPU's is.

    It is the one with the least work, which cuBLAS is not expected to compute sooner.
    """
    of_gpu = [w for w in module.WINNERS if w.device == H200.identity.name]
    right = (w for w in of_gpu if w.dtype == dtype and w.op in ("nn", "tn", "nt", "tt"))
    winner = min(right, key=lambda w: w.n * w.k)
    orders = ["FC"[order == "t"] for order in winner.orders]
    extents = [(4096 + 64 * turn, winner.n, winner.k) for turn in range(count)]
    shapes = [((m, k), (k, n), (m, n)) for m, n, k in extents]
    return [tuple(map(tensor, each, orders, ats, [dtype] * 3)) for each in shapes]  # type: ignore[misc]
