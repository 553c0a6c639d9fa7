"""Fakes for tests of plans that are made by timing: a module of three kernels, its driver, and PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.fabricated import device_array, imported, trial, tuning_run
from tests.fake_tensors import Tensor
from tsm2_tune.generator.families.resident_b import ResidentBFmaRingConfig
from tsm2_tune.generator.families.stream_a import StreamAFmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.tuner.export import export
from tsm2_tune.tuner.results.store import Store

GPU_NAME = "NVIDIA H200"
M, N, K = 10000, 8, 20000
L2_FILL = 100 << 20  # twice what the L2 holds
NARROW, WIDE = StreamAFmaConfig(64, 1, 8, 16, 4, 13, 1, 4), StreamAFmaConfig(128, 1, 8, 16, 4, 13, 1, 4)
RING = ResidentBFmaRingConfig(128, 4, 8, 2, 55, splits=528)
WON = (  # by each kernel, and its time there
    (NARROW, Problem(20480, N, 20480, "f32"), 380.0),
    (WIDE, Problem(20000, N, 20480, "f32"), 390.0),
    (RING, Problem(10**6, 16, 16, "f32", "ttt"), 35.0),
)


def module_of_all(folder: Path) -> ModuleType:
    """Two kernels of column-major operands, one of row-major ones for a tall C."""
    with Store.open(folder / "results.db", create=True) as store:
        for config, problem, us in WON:
            tried = trial(us, config, problem=problem, source=render(problem, config), blocks_per_sm=4)
            store.add_trial(tuning_run(sms=132), tried)
        return imported(export(store, "module")[0], folder)


def arrays(m: int = M, n: int = N, k: int = K, *, order: str = "F") -> list[Any]:
    shapes = ((m, k), (k, n), (m, n))
    strides = [(4, 4 * rows) if order == "F" else (4 * columns, 4) for rows, columns in shapes]
    return [
        device_array(shape, lies, at=at << 40)
        for at, (shape, lies) in enumerate(zip(shapes, strides, strict=True), start=1)
    ]


def tensors(*shape: int, order: str = "F") -> list[Any]:
    return [Tensor(one, dtype="torch.float32") for one in arrays(*shape, order=order)]


def ways_to(module: ModuleType, *given: Any, device: str = GPU_NAME) -> Any:
    product = module.Product.of(*given, conjugates=(False, False), math=None)
    return module.contenders(product, device)


def started(launch: dict[str, Any]) -> tuple[int, int]:
    """The kernel, by its threads, and its splits."""
    return launch["block"][0], launch["grid"][1]


def slow_but(wanted: tuple[int, int], us: float = 100.0) -> Callable[[dict[str, Any]], float]:
    return lambda launch: us if started(launch) == wanted else 2 * us
