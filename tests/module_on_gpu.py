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

from tests.cases import module_of_list
from tests.fabricated import tuning_run
from tsm2_tune.runtime.cuda.driver import ask_driver, device_of


def made_module(folder: Path) -> ModuleType:
    """Export kernels with binaries, and import the module."""
    numbers = []
    name, _ = device_of(0)
    for attribute in (75, 76, 16):  # the compute capability's two, and MULTIPROCESSOR_COUNT
        value = ctypes.c_int()
        ask_driver("cuDeviceGetAttribute", ctypes.byref(value), attribute, ctypes.c_int(0))
        numbers.append(value.value)
    run = tuning_run(name, compute_capability=f"{numbers[0]}.{numbers[1]}", sms=numbers[2])
    return module_of_list("called with row-major results", run, folder, binaries=True)


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
