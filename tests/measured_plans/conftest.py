"""The module of three kernels, its driver, and PyTorch, for each test of plans that are made by timing."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import pytest

from tests.measured_plans.helpers import before_a_driver, module_of_all, torch_in


@pytest.fixture(scope="module")
def of_all(tmp_path_factory: pytest.TempPathFactory, session_cache: None) -> ModuleType:
    return module_of_all(tmp_path_factory.mktemp("module"))


@pytest.fixture
def module(of_all: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return before_a_driver(of_all, monkeypatch)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    return torch_in(monkeypatch)
