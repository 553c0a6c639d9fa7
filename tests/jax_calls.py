"""Helpers of the tests of JAX's products, which are skipped without JAX."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy

RANDOM = np.random.default_rng(13)
OVER_FIRST, OVER_LAST = (((0,), (0,)), ((), ())), (((1,), (1,)), ((), ()))


def numbers(*shape: int, dtype: str = "float32") -> Any:
    """Small whole numbers, whose products are exact."""
    drawn = RANDOM.integers(-3, 4, shape)
    if dtype == "bool":
        return jnp.asarray(drawn > 2)
    return jnp.asarray(drawn + 1j * RANDOM.integers(-3, 4, shape) if dtype[0] == "c" else drawn, dtype)


def calls(best: ModuleType, function: Callable[..., Any], *arrays: Any) -> int:
    """Products by kernels in the program that JAX compiles."""
    return int(jax.jit(function).lower(*arrays).as_text().count(f"@{best.target_of_xla()}("))
