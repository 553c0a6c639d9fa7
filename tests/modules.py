"""Exported modules of fabricated winners, before a driver that records."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.call_log import logged
from tests.fabricated import device_array, host_run, module_of, split_trial, trial
from tests.recording_driver import attach, cubin, lent
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.export.module import launcher_binary

A, B = device_array((6, 3), at=0x1000), device_array((3, 2), at=0x2000)
OUT = device_array((6, 2), (4, 32), at=0x3000)


def recorded(module: ModuleType) -> ModuleType:
    """The module before a driver that records, as `driver`, and what its compiler is asked for, as `compiled`."""
    compiled = list[tuple[str, int, str]]()
    compiled_here = lambda *asked: logged(compiled, asked, cubin())  # noqa: E731
    attach(module, compiled_here=compiled_here, compiled=compiled)
    return module


@contextmanager
def fresh(module: ModuleType) -> Iterator[ModuleType]:
    """Lend a shared module as it is after its import, but with its core. Undo what its borrower replaces of it."""
    for name, kept in vars(module).items():
        if name.islower() and not name.startswith("__") and isinstance(kept, dict | list):
            kept.clear()
    with lent(module):
        yield module


@pytest.fixture(scope="module")
def module_of_one(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return module_of(tmp_path_factory.mktemp("module"), trial())


@pytest.fixture
def plain_module(module_of_one: ModuleType) -> Iterator[ModuleType]:
    """A module with a plain kernel, for column-major matrices in f32."""
    with fresh(module_of_one) as module:
        yield module


@pytest.fixture
def gpu_module(plain_module: ModuleType) -> ModuleType:
    """The same, recording."""
    return recorded(plain_module)


@pytest.fixture(scope="module")
def module_of_splits(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    problems = [Problem(64, 4, 64, dtype) for dtype in ("f32", "f64", "minplus_f32")]
    return module_of(tmp_path_factory.mktemp("module"), *map(split_trial, problems))


@pytest.fixture
def splitting(module_of_splits: ModuleType) -> Iterator[ModuleType]:
    """A module of kernels that split k in 3, for column-major matrices, before a driver that records."""
    with fresh(module_of_splits) as module:
        recorded(module).driver.workspaces = True
        yield module


def loaded(path: Path, name: str = "never_listed") -> ModuleType:
    """Return the module of the file, which is not in `sys.modules`."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def host_module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return module_of(tmp_path_factory.mktemp("host"), split_trial(Problem(64, 4, 64, "f64")), run=host_run())


OPS = {"c64": ("nn", "tn", "cn", "nc", "cc", "ct", "tx", "cx"), "f32": ("nn", "ttt")}


@pytest.fixture(scope="module", params=["plain", pytest.param("compiled", marks=pytest.mark.slow)])
def module_of_all(
    tmp_path_factory: pytest.TempPathFactory, session_cache: None, request: pytest.FixtureRequest
) -> ModuleType:
    """A module of GPU winners of OPS; with the compiled launcher and without."""
    problems = [Problem(64, 64 if op.endswith("x") else 4, 64, dtype, op) for dtype, ops in OPS.items() for op in ops]
    binary = launcher_binary() if request.param == "compiled" else None
    return module_of(tmp_path_factory.mktemp("module"), *problems, launcher=binary)


@pytest.fixture
def module(module_of_all: ModuleType) -> Iterator[ModuleType]:
    """The module with a driver that records, as `driver`; nothing is compiled.

    The module logs its choices, so that Python makes them: the launcher starts repeated calls only.
    """
    with fresh(module_of_all) as module:
        attach(module, cubin_of=cubin, log=logging.Logger("tests", logging.DEBUG))
        yield module


def launched_on(module: ModuleType, *arrays: Any, stream: Any = None) -> tuple[int | None, list[str]]:
    """The stream of the launch, and what was waited for."""
    module.gemm(*arrays[:2], out=arrays[2], stream=stream)
    waits = [call for call in module.driver.calls if call.startswith("wait")]
    return module.driver.launches[-1]["stream"], waits


@pytest.fixture
def losing(tmp_path: Path, torch: Any) -> ModuleType:
    """A module of a winner that took 500 us, where the vendor took 400; and what PyTorch was asked, as `asked`."""
    slower: dict[str, Any] = {"cublas_us": 400.0, "cublas_right": 1, "cublas_routine": "cublasSgemm"}
    asked = list[Any]()
    module = module_of(tmp_path, Problem(4, 4, 4, "f32"), **slower)
    attach(module, asked=asked)
    torch.addmm = lambda c, a, b, *, beta, alpha, out: logged(asked, (a, b, alpha, beta), out)
    torch.mm = lambda a, b, out=None: logged(asked, (a, b, 1, 0), out or "made")
    return module


@pytest.fixture(scope="module")
def module_of_two(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """A module of kernels for f32 and f64."""
    problems = [Problem(64, 4, 64, dtype, op) for dtype in ("f32", "f64") for op in ("nn", "ttt")]
    return module_of(tmp_path_factory.mktemp("module"), *problems)


@pytest.fixture
def overridable(module_of_two: ModuleType, torch: Any) -> Iterator[ModuleType]:
    with fresh(module_of_two) as module:
        attach(module, cubin_of=cubin, _overrides=module.Overrides())
        yield module


def launched_values(overridable: ModuleType) -> list[Any]:
    """Return the last launch's m, n, k, alpha, a, lda, b, ldb, beta, out and ldout."""
    return overridable.driver.launches[-1]["values"]  # type: ignore[no-any-return]
