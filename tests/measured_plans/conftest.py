"""The module of three kernels, its driver, and PyTorch, for each test of plans that are made by timing."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.fake_tensors import fake_torch
from tests.measured_plans.helpers import module_of_all
from tests.recording_driver import recording
from tests.shared_modules import fresh


@pytest.fixture(scope="module")
def of_all(tmp_path_factory: pytest.TempPathFactory, session_cache: None) -> ModuleType:
    return module_of_all(tmp_path_factory.mktemp("module"))


@pytest.fixture
def module(of_all: ModuleType) -> Iterator[ModuleType]:
    """The module before a driver that records, as `driver`; every kernel has a binary."""
    with fresh(of_all) as module:
        recording(module, is_compiled=lambda *_: True).workspaces = True
        yield module


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """PyTorch: `asked` are the products that it was asked for, each of which takes `takes_us`."""
    fake = fake_torch()
    fake.asked, fake.takes_us, fake.driver = [], 50.0, None

    def mm(a: Any, b: Any, *, out: Any = None) -> Any:
        return addmm(out, a, b, beta=0, alpha=1, out=out)

    def addmm(c: Any, a: Any, b: Any, *, beta: Any, alpha: Any, out: Any) -> Any:
        fake.asked.append((a, b, out, alpha, beta, fake.stream))
        if fake.driver is not None:
            fake.driver.now_us += fake.takes_us
        return "another tensor of the same memory"

    @contextlib.contextmanager
    def stream(given: Any) -> Any:
        before, fake.stream = fake.stream, 0 if given is None else given
        yield
        fake.stream = before

    fake.mm, fake.addmm, fake.cuda.stream = mm, addmm, stream
    fake.cuda.ExternalStream = lambda handle, device: handle
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake
