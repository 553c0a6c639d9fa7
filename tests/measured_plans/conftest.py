"""The module of three kernels, its driver, and PyTorch, for each test of plans that are made by timing."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.call_log import logged
from tests.fake_tensors import Tensor, fake_torch
from tests.measured_plans.helpers import module_of_all
from tests.modules import fresh
from tests.recording_driver import recording


@pytest.fixture(scope="module")
def of_all(tmp_path_factory: pytest.TempPathFactory, session_cache: None) -> ModuleType:
    return module_of_all(tmp_path_factory.mktemp("module"))


@pytest.fixture
def module(of_all: ModuleType) -> Iterator[ModuleType]:
    """The module before a driver that records, as `driver`; every kernel has a binary and takes 1 us."""
    with fresh(of_all) as module:
        recording(module, is_compiled=lambda *_: True).workspaces = True
        yield module


@pytest.fixture
def torch(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """PyTorch, whose products take `takes_us`. `asked` has each product's arguments and stream."""
    fake = fake_torch()
    fake.asked, fake.takes_us = [], 1e6

    def addmm(c: Any, a: Any, b: Any, *, beta: Any, alpha: Any, out: Any) -> Any:
        fake.asked.append((a, b, out, alpha, beta, fake.stream))
        module.driver.now_us += fake.takes_us
        return "another tensor of the same memory"

    @contextlib.contextmanager
    def stream(given: Any) -> Any:
        before, fake.stream = fake.stream, 0 if given is None else given
        yield
        fake.stream = before

    fake.mm = lambda a, b, *, out=None: addmm(out, a, b, beta=0, alpha=1, out=out)
    fake.addmm, fake.cuda.stream = addmm, stream
    fake.cuda.ExternalStream = lambda handle, device: handle
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch, torch: SimpleNamespace) -> list[str]:
    """Return a log of the copies of tensors and of the writes that restore them."""
    log: list[str] = []
    monkeypatch.setattr(Tensor, "clone", lambda self: logged(log, "copied", "what it held"), raising=False)
    put = lambda self, place, value: log.append(f"put back {value}")  # noqa: E731
    monkeypatch.setattr(Tensor, "__setitem__", put, raising=False)
    torch.inference_mode = lambda: logged(log, "in inference mode", contextlib.nullcontext())
    return log
