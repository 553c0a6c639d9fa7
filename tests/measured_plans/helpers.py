"""A module of three kernels, and arrays and launches of its products."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from tests.fabricated import device_array, imported, trial, tuning_run
from tests.fake_tensors import Tensor
from tsm2_tune.generator.families.resident_b import ResidentBFmaRingConfig
from tsm2_tune.generator.families.stream_a import StreamAFmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.tuner.export.module import exported_module
from tsm2_tune.tuner.results.store import Store

M, N, K = 10000, 8, 20000
NARROW, WIDE = StreamAFmaConfig(64, 1, 8, 16, 4, 13, 1, 4), StreamAFmaConfig(128, 1, 8, 16, 4, 13, 1, 4)
KERNELS = (  # with the time of each
    (NARROW, Problem(20480, N, 20480, "f32"), 380.0),
    (WIDE, Problem(20000, N, 20480, "f32"), 390.0),
    (ResidentBFmaRingConfig(128, 4, 8, 2, 55, splits=528), Problem(10**6, 16, 16, "f32", "ttt"), 35.0),
)


def module_of_all(folder: Path) -> ModuleType:
    """Two kernels of column-major operands, one of row-major ones for a tall C."""
    with Store.open(folder / "results.db", create=True) as store:
        for config, problem, us in KERNELS:
            tried = trial(us, config, problem=problem, source=render(problem, config), blocks_per_sm=4)
            store.add_trial(tuning_run(sms=132), tried)
        return imported(exported_module(store, store.best()), folder)


def arrays(m: int = M, n: int = N, k: int = K) -> list[Any]:
    """Column-major arrays of no library that the module knows."""
    shapes = (m, k), (k, n), (m, n)
    return [device_array(shape, at=at << 40) for at, shape in enumerate(shapes, start=1)]


def tensors(*shape: int) -> list[Any]:
    return [Tensor(one, dtype="torch.float32") for one in arrays(*shape)]


def contenders(module: ModuleType, *given: Any) -> list[Any]:
    return list(module.contenders(module.Product.of(*given), "NVIDIA H200"))


def started(launch: dict[str, Any]) -> tuple[int, int]:
    """The threads, which tell the kernel, and the splits."""
    return launch["block"][0], launch["grid"][1]


def launch_of(match: Any) -> tuple[int, int]:
    return match.launch.threads, match.launch.splits
