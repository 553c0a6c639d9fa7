"""Fixtures of several test files: a worker on the host, and kernels compiled for it."""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Protocol

import pytest
from rich.console import Console

from tests import (
    collecting,
    databases,
    fake_compilers,
    fake_tensors,
    layers,
    modules,
    packs_of_everything,
    short_waits,
    standing_in,
)
from tests.calls import TYPES
from tests.databases import compile_once
from tests.fabricated import fake_binary, tuning_run
from tests.fake_compilers import cached_file, fake_toolkit
from tests.forked_workers import fork_workers
from tests.kept_objects import keep_objects
from tests.library_calls import SPLIT, InProcess, fabricated_library, problems_of_all, recording_process, tried
from tests.quick import FOLDER_VARIABLE, quick_host_toolchain, quick_toolchain
from tests.quick_command import make_quick
from tests.servers import TestServer, running
from tests.standin_calls import build_fakes
from tsm2_tune.console import tables
from tsm2_tune.errors import ToolMissing, TuneError
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.probes import edge_problems
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render, support_source
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.tuner.compile.compiler import Toolchain, compile_text
from tsm2_tune.tuner.device import cuda
from tsm2_tune.tuner.device.cuda import CudaDevice
from tsm2_tune.tuner.device.emulator.device import HostDevice
from tsm2_tune.tuner.device.emulator.toolchain import host_toolchain
from tsm2_tune.tuner.device.lock import MACHINE_VARIABLE
from tsm2_tune.tuner.device.target import Target, find_target
from tsm2_tune.tuner.measure.timing import Effort
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Binary
from tsm2_tune.tuner.verify.bound_kernel import Entry
from tsm2_tune.tuner.worker.client import Attempt, AttemptResult, Worker

# Processes of the tests would inherit signals that nohup or a shell's & ignores.
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

PLUGINS = (
    collecting, databases, fake_compilers, fake_tensors, layers, modules, packs_of_everything, short_waits,
    standing_in,
)  # fmt: skip
ONCE = Effort(min_samples=1, max_samples=1, warm_up_seconds=0.0)


class TryKernel(Protocol):
    def __call__(
        self,
        config: KernelConfig,
        problem: Problem,
        edit: Callable[[str], str],
        probes: bool = False,
        within_us: float | None = None,
    ) -> AttemptResult:
        """Render, edit, compile, verify and time once on the host; on the configuration's probes too if asked."""


def pytest_addoption(parser: pytest.Parser) -> None:
    layers.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    layers.choose(config)
    for module in PLUGINS:
        config.pluginmanager.register(module)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    layers.spread(config)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: many tests wait for processes that they have started."""
    return layers.cores() + 1


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test that is marked alone has the GPU to itself, and others share it. The variable names the GPU."""
    if item.get_closest_marker("gpu") is None:
        yield
        return
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    with Path(tempfile.gettempdir(), f"tsm2-tune-gpu-tests-{os.getuid()}-{gpu}").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        yield


@pytest.fixture(scope="module", autouse=True)
def own_garbage() -> None:
    """A collection looks at what the file's own tests make: all that stays of others would take it long."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def own_locks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The locks of devices are of this run alone: two that run side by side both tune on the host."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MACHINE_VARIABLE, str(tmp_path_factory.mktemp("machine")))
        yield


@pytest.fixture(scope="session", autouse=True)
def quick_tuning(session_folder: Path, pytestconfig: pytest.Config) -> Iterator[None]:
    """The command takes few samples, verifies winners by few calls and compiles kernels quickly, but for those in
    processes of their own.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(session_folder / "headers"))
        if pytestconfig.option.markexpr != "unit":
            with suppress(ToolMissing):
                quick_toolchain(host_toolchain())
        make_quick(patch.setattr)
        compile_once(patch.setattr)
        fork_workers(patch.setattr)
        yield


@pytest.fixture(scope="session", autouse=True)
def kept_objects(session_folder: Path) -> Iterator[None]:
    """Equal libraries and launchers are built once, whichever process asks for them."""
    with pytest.MonkeyPatch.context() as patch:
        keep_objects(patch.setattr, session_folder / "objects")
        yield


@pytest.fixture(scope="session")
def session_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this test run, which its processes share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


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
def support_code(quick: Toolchain) -> bytes:
    return compiled(support_source(), "", quick).code


@pytest.fixture(scope="session")
def worker(support_code: bytes) -> Iterator[Worker]:
    """A worker on the host that waits 30 s for each stage, as a busy machine needs."""
    worker = Worker("cpu", lambda _: support_code, limit_seconds=30.0)
    yield worker
    worker.close()


@pytest.fixture(scope="session")
def quick(toolchain: Toolchain) -> Toolchain:
    return quick_toolchain(toolchain)


@pytest.fixture(scope="session")
def quickest(toolchain: Toolchain) -> Toolchain:
    """For kernels with a bug, which run a few times before it is found."""
    return quick_toolchain(toolchain, "-O0")


@pytest.fixture
def try_kernel(worker: Worker, quick: Toolchain, quickest: Toolchain) -> TryKernel:
    """Return a function that tries a kernel, as TryKernel describes."""

    def attempt(
        config: KernelConfig,
        problem: Problem,
        edit: Callable[[str], str],
        probes: bool = False,
        within_us: float | None = None,
    ) -> AttemptResult:
        source: KernelSource = render(problem, config)
        text = edit(source.text)
        binary = compiled(text, source.kernel, quick if text == source.text else quickest, source.defines)
        entry = Entry(binary.code, source.kernel, source.launch)
        small = edge_problems(config, problem) if probes else ()
        return worker.attempt(Attempt(problem, entry, small, seed=7, effort=ONCE, within_us=within_us))

    return attempt


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a database that does not exist yet."""
    return tmp_path / "results.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    """A database that holds nothing."""
    with Store.open(path, create=True) as store:
        yield store


@pytest.fixture(scope="session")
def server(session_folder: Path) -> Iterator[TestServer]:
    """A PostgreSQL server; skips where there is none."""
    with running(session_folder / "postgresql") as server:
        yield server


@pytest.fixture
def address(server: TestServer) -> str:
    """A database of the server's that holds nothing."""
    return server.new()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> StringIO:
    """Return what standard error shows as a terminal of 80 columns."""
    shown = StringIO()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(tables, "console", lambda stderr: Console(file=shown, force_terminal=True, width=80))
    return shown


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """No CUDA driver answers."""
    monkeypatch.setattr(cuda, "cuda_device_count", lambda: 0)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA driver answers for two GPUs."""
    monkeypatch.setattr(cuda, "cuda_device_count", lambda: 2)


@pytest.fixture
def known_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ceilings of a run are known, for tests of something else, and no worker starts before it is needed."""
    monkeypatch.setattr(Worker, "start", lambda _: None)
    monkeypatch.setattr(Worker, "ceilings", lambda _: tuning_run().ceilings)


@pytest.fixture(scope="module")
def session_cache(session_folder: Path) -> Iterator[None]:
    """A cache of compiled kernels that is empty when the session begins; its processes share it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(session_folder / "cache"))
        yield


@pytest.fixture
def fake_nvcc(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """An nvcc that makes the machine code that fabricated trials were verified with."""
    monkeypatch.setenv("CUDA_HOME", str(fake_toolkit(tmp_path_factory.mktemp("cuda"), fake_binary())))


@pytest.fixture(scope="module")
def own_cache(session_cache: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache for those who remove what is in it; it holds the tuner's own kernels alone."""
    folder = tmp_path_factory.mktemp("own") / "cache"
    for own in own_kernels():
        shard = folder / own.parent.relative_to(os.environ["XDG_CACHE_HOME"])
        shard.mkdir(parents=True, mode=0o700, exist_ok=True)
        for file in (own, own.with_suffix(".json")):
            shutil.copy2(file, shard)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield


def own_kernels() -> list[Path]:
    """Return the binaries of the tuner's own kernels that a run in f32 uses."""
    toolchain, texts = quick_host_toolchain(), [support_source(types) for types in ((), ("f32",))]
    for text in texts:
        compiled(text, "", toolchain)
    return [cached_file(text, (), toolchain) for text in texts]


def copy_cache(folder: Path) -> None:
    """Copy the cache, with the tuner's own kernels and without files that are being compiled."""
    own_kernels()
    shutil.copytree(os.environ["XDG_CACHE_HOME"], folder, ignore=shutil.ignore_patterns("working"))


@pytest.fixture
def device() -> Iterator[HostDevice]:
    """The host."""
    device = HostDevice(seed=1)
    yield device
    device.close()


@pytest.fixture(scope="module")
def target() -> Target:
    """The first GPU with its compiler; skips where there is none."""
    try:
        return find_target("0")
    except TuneError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def gpu_support(target: Target) -> bytes:
    return compiled(support_source(), "", target.toolchain).code


@pytest.fixture(scope="module")
def gpu(gpu_support: bytes) -> Iterator[CudaDevice]:
    device = CudaDevice(0, gpu_support)
    yield device
    device.close()


@pytest.fixture(scope="module")
def there(fakes: Path) -> Iterator[InProcess]:
    """Calls functions in a process whose CUDA driver writes down its calls."""
    with recording_process(fakes) as call:
        yield call


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, session_cache: None) -> str:
    """A C library with a plain kernel for each type, and for f32 one besides that splits k."""
    trials = [tried(Problem(6, 2, 3, dtype)) for dtype in TYPES]
    trials.append(tried(Problem(6, 2, 3, "f32", "tn"), SPLIT))
    return str(fabricated_library(tmp_path_factory.mktemp("plain"), *trials))


@pytest.fixture(scope="module")
def library_of_all(tmp_path_factory: pytest.TempPathFactory, session_cache: None) -> Path:
    """A C library with a plain kernel for each type and each of BLAS's operations."""
    return fabricated_library(tmp_path_factory.mktemp("of_all"), *map(tried, problems_of_all()))


@pytest.fixture(scope="session")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a driver and a cuBLAS that write down their calls."""
    folder = tmp_path_factory.mktemp("fakes")
    build_fakes(folder)
    return folder


@pytest.fixture
def pack(plain: str) -> Path:
    return Path(plain)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory, session_cache: None) -> Path:
    """A C library with one kernel, for A as it is."""
    return fabricated_library(tmp_path_factory.mktemp("narrow"), tried(Problem(6, 2, 3, "f32")))
