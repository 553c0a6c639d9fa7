"""The layers of the tests: which one a test is of, and which of them run.

    pytest                        # unit alone, in seconds, by several processes
    pytest tests/test_space.py    # all tests of what is named, by a path, -m or -k
    make test                     # unit, host, and a third of planted: what is not slow, by -m "not slow"
    make test-all                 # everything

A test is of the first layer that fits:

- gpu: it is marked so;
- planted: a parameter of it is a bug, which verification must find in a kernel on the host;
- slow: it is marked so, or in a file of SLOW;
- host: it is marked so, or one of its fixtures needs a C++ compiler;
- unit: any other.

What is marked host in a file of SLOW has both marks.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from tests.planting import Bug

LAYERS = {
    "unit": "takes no time; what a bare pytest runs",
    "host": "compiles kernels, or what starts them, and runs them on the CPU; needs a C++ compiler",
    "planted": "plants a bug in a kernel, and verification on the CPU must find it",
    "slow": "takes long: whole search spaces and runs, on the CPU or made up, and programs that are started",
    "gpu": "runs kernels on a GPU through PyCUDA",
}
COMPILING = {"toolchain", "device", "fakes", "plain", "there"}  # fixtures
PARTS = 3  # parts of the planted bugs
SLOW_FILES = """
    importing_refused cache_size
    order contending bacugen tampered trial_texts space cli guidelines api importing pretuned terminals inner_fma_ring
    exported_launch foreign_files within_measuring between dlpack transposed interruptions crossing cupy_matmul
    exported_module exported_workspace faults vendor_finals forget gate
    launches choice export_within distributions cache selection rekey
    imports compilers launcher_first pairs kills resume interrupted
    examples basis mutation ladder leading api_on_host cache_states choice_on_host library_choice
    report_in_browser db_kills db_on_server networks postgresql postgresql_writers
    json_lines_on_host fleet cluster
"""
SLOW = {f"tests/test_{name}.py" for name in SLOW_FILES.split()}
# All tests of these are of other layers than unit, too: a run of unit tests alone need not import them.
WITHOUT_UNIT_FILES = """
    device_memory exported_calls gemm general gpu gpu_arrays gpu_calls gpu_cluster gpu_device
    gpu_faults gpu_library gpu_standin gpu_torch gpu_vendor host host_faults host_races launcher
    library library_files minplus odd_calls planted_bugs predictions programs rate_fit reference running
    staged_symmetric standin standin_journal standin_left standin_loaded standin_lt
    standin_lt_real standin_triangle standin_verifying tune worker
"""
WITHOUT_UNIT = SLOW | {f"tests/test_{name}.py" for name in WITHOUT_UNIT_FILES.split()}


def layer_of(item: pytest.Item) -> str:
    """The one layer that the test is of."""
    given = item.callspec.params.values() if hasattr(item, "callspec") else ()
    marked = {mark.name for mark in item.iter_markers()}
    if "gpu" in marked:
        return "gpu"
    if any(isinstance(one, Bug) for one in given):
        return "planted"
    if "slow" in marked or item.nodeid.partition("::")[0] in SLOW:
        return "slow"
    return "host" if "host" in marked or COMPILING & set(getattr(item, "fixturenames", ())) else "unit"


def add_options(parser: pytest.Parser) -> None:
    parser.addoption(
        "--third-of-planted",
        type=int,
        metavar="SEED",
        help="run only a third of the planted bugs: seeds 0, 1 and 2 have each a third of its own",
    )


def spread(config: pytest.Config) -> None:
    """Let several processes run the unit tests, unless the command line asks for tests or needs a single process."""
    option = config.option
    single = option.usepdb or option.capture == "no" or option.collectonly
    decided = getattr(option, "numprocesses", 0) is not None  # by -n, or by pytest-xdist's absence
    if not (hasattr(config, "workerinput") or _is_asked(config) or single or decided):
        option.numprocesses, option.dist = min(cores(), 4), "worksteal"  # each imports all of the package


def cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _is_asked(config: pytest.Config) -> bool:
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    return bool(named or config.option.markexpr or config.option.keyword)


def choose(config: pytest.Config) -> None:
    """Run the unit tests if the command line asks for no tests."""
    for name, what in LAYERS.items():
        config.addinivalue_line("markers", f"{name}: {what}")
    config.addinivalue_line("markers", "alone: what it measures or does to the GPU needs all of it")
    if hasattr(config, "workerinput"):  # a worker of pytest-xdist, which passes on only what was typed
        config.option.markexpr = config.workerinput["layers"]
    elif not _is_asked(config):
        config.option.markexpr = "unit"


def is_of_other_layers(path: Path, config: pytest.Config) -> bool:
    """Return whether only unit tests run and the file has none, so that it need not be imported."""
    return config.option.markexpr == "unit" and f"tests/{path.name}" in WITHOUT_UNIT


def tell_worker(node: Any) -> None:
    """Tell a process of pytest-xdist which layers run."""
    node.workerinput["layers"] = node.config.option.markexpr


def header(config: pytest.Config) -> list[str]:
    """Return the lines about the layers that pytest prints before the tests."""
    seed = config.option.third_of_planted
    third = [] if seed is None else [f"planted bugs: a third, by --third-of-planted={seed}"]
    return [f"layers: {config.option.markexpr or 'all'}", *third]


def in_third(name: str, seed: int) -> bool:
    """Return whether the test is in the seed's third, which depends on no other test."""
    return (int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) + seed) % PARTS == 0


def put_in_layers(config: pytest.Config, items: list[Any]) -> None:
    """Mark each test by its layer; leave planted bugs out that are not in the third that is asked for."""
    for item in items:
        layer, file = layer_of(item), item.nodeid.partition("::")[0]
        if layer == "unit" and file in WITHOUT_UNIT:
            raise pytest.UsageError(f"{item.nodeid} is a unit test: take its file out of those in tests/layers.py")
        item.add_marker(layer)
    seed = config.option.third_of_planted
    if seed is None:
        return
    out = [item for item in items if is_left_out(item, seed)]
    items[:] = [item for item in items if not is_left_out(item, seed)]
    config.hook.pytest_deselected(items=out)


def is_left_out(item: pytest.Item, seed: int) -> bool:
    return item.get_closest_marker("planted") is not None and not in_third(item.nodeid, seed)
