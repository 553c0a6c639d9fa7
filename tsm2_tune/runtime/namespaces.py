"""The namespaces `torch`, `jax` and `cupy` of an exported module. Each is created at its first use."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from tsm2_tune.runtime.cupy.matmul import cupy_namespace
from tsm2_tune.runtime.jax.primitive import jax_namespace
from tsm2_tune.runtime.torch.dispatch import imported_torch
from tsm2_tune.runtime.torch.operators import torch_operators

NAMESPACES: dict[str, Callable[[], Any]] = {
    "cupy": cupy_namespace,
    "jax": jax_namespace,
    "torch": lambda: torch_operators(imported_torch()),
}


def __getattr__(name: str) -> Any:
    """Return the namespace `torch`, `jax` or `cupy`. Raise AttributeError if its library is missing or too old."""
    if name not in NAMESPACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = globals()[name] = NAMESPACES[name]()
    except (ImportError, RuntimeError) as error:
        raise AttributeError(f"{__name__}.{name} cannot be used here: {error}") from error
    return found


def __dir__() -> list[str]:
    """Return the module's public names, and those of `torch`, `jax` and `cupy` whose library is imported."""
    return sorted([*globals().get("__all__", ()), *(name for name in NAMESPACES if sys.modules.get(name))])
