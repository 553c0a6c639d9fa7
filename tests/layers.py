"""Which tests run: unit tests, slow tests, and tests on a GPU.

    pytest                        # unit tests, in seconds, by several processes
    pytest tests/test_space.py    # all tests of what is named, by a path, -m or -k
    make test                     # unit tests, and an eighth of the slow tests: each commit runs another eighth
    make test-all                 # everything

A test is a GPU test if it is marked gpu. It is a slow test if it is marked slow, if one of its fixtures needs a C++
compiler, or if one of its parameters is a planted bug. All others are unit tests.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

import pytest

from tests.planting import Bug

LAYERS = {
    "unit": "takes no time; what a bare pytest runs",
    "slow": "compiles code, starts programs or searches whole spaces; some need a C++ compiler",
    "gpu": "runs kernels on a GPU through PyCUDA",
}
COMPILING = {"toolchain", "device", "fakes", "plain", "there"}  # fixtures


def layer_of(item: pytest.Item) -> str:
    """Return the layer of the test."""
    given = item.callspec.params.values() if hasattr(item, "callspec") else ()
    marked = {mark.name for mark in item.iter_markers()}
    if "gpu" in marked:
        return "gpu"
    is_compiling = COMPILING & set(getattr(item, "fixturenames", ())) or any(isinstance(one, Bug) for one in given)
    return "slow" if "slow" in marked or is_compiling else "unit"


def part(text: str) -> tuple[int, int]:
    """Return the number and the count of a part such as 3/8. A larger number begins again at 0."""
    number, _, count = text.partition("/")
    if not (number.isdigit() and count.isdigit() and int(count)):
        raise ValueError(text)
    return int(number) % int(count), int(count)


def add_options(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part", type=part, metavar="NUMBER/COUNT", help="run only this part of the slow tests, as in --part=3/8"
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


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process of pytest-xdist which layers run."""
    node.workerinput["layers"] = node.config.option.markexpr


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Return the lines about the layers that pytest prints before the tests."""
    asked = config.option.part
    of_slow = [] if asked is None else [f"slow tests: part {asked[0]} of 0 to {asked[1] - 1}"]
    return [f"layers: {config.option.markexpr or 'all'}", *of_slow]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    """Mark each test by its layer. Leave out slow tests that are not in the part that is asked for."""
    for item in items:
        item.add_marker(layer_of(item))
    if config.option.part is not None:
        out = [item for item in items if is_left_out(item, *config.option.part)]
        items[:] = [item for item in items if not is_left_out(item, *config.option.part)]
        config.hook.pytest_deselected(items=out)


def is_left_out(item: pytest.Item, number: int, count: int) -> bool:
    """Return whether the test is slow and not in the part. That depends on no other test."""
    digest = hashlib.sha256(item.nodeid.encode()).digest()
    return item.get_closest_marker("slow") is not None and int.from_bytes(digest[:8]) % count != number
