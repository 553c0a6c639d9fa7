"""What several test files need: a worker on the host, and kernels compiled for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

import pytest

from tsm2_tune.errors import ToolMissing
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import KernelSource, render, support_source
from tsm2_tune.tuner.compiler import Toolchain, compile_text
from tsm2_tune.tuner.host.toolchain import host_toolchain
from tsm2_tune.tuner.loaded import Entry
from tsm2_tune.tuner.measure import Effort
from tsm2_tune.tuner.trial import Binary
from tsm2_tune.tuner.tune import probe_problems
from tsm2_tune.tuner.worker import Attempt, AttemptResult, Worker

ONCE = Effort(min_samples=1, max_samples=1, warm_up_seconds=0.0)


class TryKernel(Protocol):
    def __call__(
        self, config: KernelConfig, problem: Problem, edit: Callable[[str], str], probes: bool = False
    ) -> AttemptResult:
        """Render, edit, compile, verify and time once on the host; on the configuration's probes too if asked."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden sources anew")


@pytest.fixture(scope="session")
def toolchain() -> Toolchain:
    """The system's C++ compiler; skips where there is none."""
    try:
        return host_toolchain()
    except ToolMissing as missing:
        pytest.skip(str(missing))


def compiled(text: str, kernel: str, toolchain: Toolchain, defines: tuple[str, ...] = ()) -> Binary:
    binary = compile_text(text, kernel=kernel, defines=defines, toolchain=toolchain, limit_seconds=60)
    assert isinstance(binary, Binary), binary.detail
    return binary


@pytest.fixture(scope="session")
def support_path(toolchain: Toolchain) -> str:
    return compiled(support_source(), "", toolchain).path


@pytest.fixture(scope="module")
def worker(support_path: str) -> Iterator[Worker]:
    """A worker on the host that waits 6 s for each stage."""
    worker = Worker("cpu", support_path, limit_seconds=6.0)
    yield worker
    worker.close()


@pytest.fixture
def try_kernel(worker: Worker, toolchain: Toolchain) -> TryKernel:
    """What TryKernel says. Compiled with little optimisation: that takes longer than a small kernel runs."""
    quick = replace(toolchain, flags=tuple("-O1" if flag == "-O3" else flag for flag in toolchain.flags))

    def attempt(
        config: KernelConfig, problem: Problem, edit: Callable[[str], str], probes: bool = False
    ) -> AttemptResult:
        source: KernelSource = render(problem, config)
        binary = compiled(edit(source.text), source.kernel, quick, source.defines)
        entry = Entry(binary.path, source.kernel, source.launch)
        small = probe_problems(config, problem) if probes else ()
        return worker.attempt(Attempt(problem, entry, small, seed=7, effort=ONCE))

    return attempt
