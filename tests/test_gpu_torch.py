"""PyTorch's products by an exported module, on a GPU: its samples, gradients, compiled programs, other overrides."""

from __future__ import annotations

import fcntl
import importlib.util
from pathlib import Path

import pytest

from tests.on_gpu import ON_GPU
from tests.processes import succeed

pytestmark = [
    *ON_GPU,
    pytest.mark.usefixtures("session_cache"),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]
LIMIT_SECONDS = 240  # limit of a process, which compiles programs
# Each a process: `captured` is about the first calls of a module, and after `two_modules` the operators, which both
# share, start the first one's plans, of whichever it is.
GROUPS = (
    ("captured", "in_streams", "on_two_devices", "threads", "overrides", "scopes", "operators", "two_modules"),
    ("samples", "left_alone", "as_the_program_says", "nothing_to_scale"),
    ("layouts",),
    ("gradients", "transforms"),
    ("compiled", "tried_by_inductor", "in_compiled_graphs"),
)


def answer(*command: str) -> None:
    """Run the program, and assert that it succeeds in time."""
    succeed("tests.torch_on_gpu", *command, timeout=LIMIT_SECONDS)


@pytest.fixture(scope="module")
def module_path(session_folder: Path, session_cache: None) -> str:
    """The module, which one of the processes that share out the tests makes."""
    path = session_folder / "torch_kernels.py"
    with (session_folder / "torch_kernels.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
        if not path.exists():
            answer("export", str(path))
    return str(path)


@pytest.mark.parametrize("checks", GROUPS, ids=lambda checks: checks[0])
def test_products_are_pytorchs(module_path: str, checks: tuple[str, ...]) -> None:
    answer(module_path, *checks)
