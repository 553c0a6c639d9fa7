"""An exported module with kernels of row-major results for the GPU that is here, and what checks of it need."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from tests.fabricated import imported, trial, tuning_run
from tests.right_on_host import subject
from tsm2_tune.generator.render import render
from tsm2_tune.runtime.cuda.driver import ask_driver, device_of
from tsm2_tune.tuner.export.launcher_build import launcher_binary
from tsm2_tune.tuner.export.module import exported_module
from tsm2_tune.tuner.results.store import Store

TUNED = (
    (
        (
            "row_lanes_shared_b:threads=256,vector_bytes=16,lanes=32,rows=4,columns=8,stages=2,splits=8,strips=160,min_blocks=2"
        ),
        "20480x8x20480:f32:ttt",
    ),
    (
        (
            "staged_fma:threads=128,ring_threads=128,block=16x16x128,stages=2,copy=registers,splits=264,min_blocks=3,thread=8x8x2"
        ),
        "16x16x1000000:f32:ntt",
    ),
    (
        (
            "row_lanes_shared_b:threads=128,vector_bytes=16,lanes=8,rows=2,columns=4,vectors=2,stages=2,splits=2,strips=10,min_blocks=3"
        ),
        "20480x8x1024:f32:tnt",
    ),
    (
        (
            "staged_symmetric_fma:threads=128,ring_threads=128,block=16,block_k=128,stages=2,copy=registers,splits=264,lines=8,step=2"
        ),
        "16x16x1000000:f32:nxt",
    ),
    (
        ("row_lanes_register_b:threads=128,vector_bytes=16,lanes=4,columns=16,rows=8,row_tiles=2,min_blocks=4"),
        "1000000x16x256:f64:ttt",
    ),
    (
        (
            "staged_fma:threads=128,ring_threads=128,block=16x16x128,stages=2,copy=registers,splits=264,min_blocks=3,thread=8x8x2"
        ),
        "16x16x1000000:f64:ntt",
    ),
    ("stream_a_complex_dmma:threads=64,strips=1,columns=8,prefetch=16,stages=2,splits=3", "129x7x67:c64:ttt"),
    (
        ("stream_a_mma16:threads=256,lane_rows=2,columns=8,prefetch=128,stages=2,splits=3,min_blocks=2"),
        "10240x4x10240:bf16:ttt",
    ),
)


def made_module(folder: Path, *, launcher: bool = False) -> ModuleType:
    """Export the kernels of TUNED with binaries, and import the module."""
    numbers = []
    name, _ = device_of(0)
    for attribute in (75, 76, 16):  # the compute capability's two, and MULTIPROCESSOR_COUNT
        value = ctypes.c_int()
        ask_driver("cuDeviceGetAttribute", ctypes.byref(value), attribute, ctypes.c_int(0))
        numbers.append(value.value)
    run = tuning_run(name, compute_capability=f"{numbers[0]}.{numbers[1]}", sms=numbers[2])
    with Store.open(folder / "results.db", create=True) as store:
        for spelt, text in TUNED:
            config, problem = (found := subject(spelt, text)).config, found.problem
            us = 25.0 if found.problem.is_gram else 50.0  # it computes half, so that it is chosen on every card
            store.add_trial(run, trial(us, config, problem=problem, source=render(problem, config), blocks_per_sm=2))
        compiled = launcher_binary() if launcher else None
        return imported(exported_module(store, store.best(), binaries=True, launcher=compiled), folder)


def drawn(*shape: int, dtype: str = "float32", seed: int = 1) -> Any:
    """Random numbers about 0, of NumPy; for bfloat16 such as that has."""
    parts = np.random.default_rng((seed, *shape)).random((2, *shape)) - 0.5
    if dtype == "bfloat16":
        return (np.round(parts[0] * 128) / 128).astype(np.float32)
    return (parts[0] + 1j * parts[1] if dtype[0] == "c" else parts[0]).astype(dtype)


def right(found: Any, a: Any, b: Any, dtype: str = "float32", terms: int | None = None) -> None:
    """AssertionError where it is not a b, within the bound of sums in any order."""
    wide = [np.asarray(x).astype(np.complex128 if dtype[0] == "c" else np.float64) for x in (a, b)]
    eps = np.finfo(np.float32 if dtype == "bfloat16" else dtype).eps
    exact, sums = wide[0] @ wide[1], np.abs(wide[0]) @ np.abs(wide[1])
    bound = ((terms or wide[0].shape[-1]) + 4) * eps * sums + (2.0**-8 * np.abs(exact) if dtype == "bfloat16" else 0)
    error = np.abs(np.asarray(found).astype(exact.dtype) - exact)
    assert error.shape == exact.shape
    assert (error <= bound).all(), f"{dtype} {exact.shape}: {np.nanmax(error)}"


@contextmanager
def counted(best: ModuleType, name: str) -> Iterator[list[Any]]:
    """The plans that are started so meanwhile."""
    starts, start = [], getattr(best.Plan, name)

    def counting(plan: Any, *arguments: Any) -> None:
        starts.append(plan)
        start(plan, *arguments)

    setattr(best.Plan, name, counting)
    try:
        yield starts
    finally:
        setattr(best.Plan, name, start)


def imported_jax() -> Any:
    """JAX, which takes memory as it needs it, and has types of 64 bits."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    jax.config.update("jax_enable_x64", True)
    assert jax.default_backend() == "gpu", jax.default_backend()
    return jax
