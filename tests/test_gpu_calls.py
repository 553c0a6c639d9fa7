"""An exported module's calls: by many threads on many streams, again and again, captured at first, on two GPUs."""

from __future__ import annotations

import importlib.util
from itertools import product

import pytest

from tests.on_gpu import ON_GPU
from tests.processes import succeed
from tsm2_tune.tuner.device.cuda import cuda_device_count

pytestmark = [*ON_GPU, pytest.mark.usefixtures("session_cache")]
LIMIT_SECONDS = 540  # limit of a process: libraries compile kernels of their own
OF_ARRAYS = ("stress", "same_bits", "first_call_captured", "own_memory", "drawn")
OF_TENSORS = ("bits", "gradients")


def run(library: str, *command: str) -> None:
    """The check in a process of its own."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    succeed("tests.calls_on_gpu", library, *command, timeout=LIMIT_SECONDS)


@pytest.mark.parametrize("more", [(), ("--launcher",)], ids=["plain", "launcher"])
@pytest.mark.parametrize(
    ("library", "check"), [*product(("torch", "cupy"), OF_ARRAYS), *product(("torch",), OF_TENSORS)]
)
def test_calls_are_right(library: str, check: str, more: tuple[str, ...]) -> None:
    run(library, check, *more)


@pytest.mark.skipif(cuda_device_count() < 2, reason="there are no two GPUs")
@pytest.mark.parametrize("more", [(), ("--launcher",)], ids=["plain", "launcher"])
@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_products_run_where_their_arrays_are(library: str, more: tuple[str, ...]) -> None:
    run(library, "two_devices", *more)
