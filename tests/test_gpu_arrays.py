"""JAX's, CuPy's and DLPack's arrays in an exported module, on a GPU."""

from __future__ import annotations

import importlib.util

import pytest

from tests.on_gpu import ON_GPU
from tests.processes import succeed

pytestmark = [*ON_GPU, pytest.mark.usefixtures("session_cache")]
LIMIT_SECONDS = 300  # limit of a process
GROUPS = {  # each a process, with the libraries that it needs
    ("products", "gradients", "programs"): ("jax",),
    ("captured",): ("jax",),
    ("cupys",): ("cupy",),
    ("dlpack",): ("jax", "cupy", "torch"),
}


@pytest.mark.parametrize("checks", GROUPS, ids=lambda checks: checks[0])
def test_arrays_are_multiplied_right(checks: tuple[str, ...]) -> None:
    for library in GROUPS[checks]:
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    succeed("tests.arrays_on_gpu", *checks, timeout=LIMIT_SECONDS)
