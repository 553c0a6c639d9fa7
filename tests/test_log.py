"""The loggers under `tsm2_tune` say at DEBUG what was decided; nothing is printed by default."""

from __future__ import annotations

import logging
import os
from types import ModuleType
from typing import Any

import pytest

from tests.fake_tensors import Tensor, f32
from tests.modules import OUT, A, B
from tests.processes import python


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Any:
    """Return the lines logged since the test began."""
    caplog.set_level(logging.DEBUG, logger="tsm2_tune")
    return lambda: [message for name, _, message in caplog.record_tuples if name.startswith("tsm2_tune.")]


def test_chosen_kernel_is_logged_once(gpu_module: ModuleType, said: Any) -> None:
    for _ in range(2):
        gpu_module.gemm(A, B, OUT)
    chosen = [line for line in said() if line.startswith("6x2x3 f32: ")]
    assert chosen == [f"6x2x3 f32: {gpu_module.choice(A, B, OUT)}"]


def test_reason_for_the_vendor_is_logged_once(losing: ModuleType, said: Any) -> None:
    a, b, out = (Tensor(f32(at), dtype="torch.float32", ndim=2) for at in (0x1000, 0x2000, 0x3000))
    for _ in range(2):
        losing.gemm(a, b, out=out)
    (line,) = [line for line in said() if line.startswith("4x4x4 f32: the vendor: ")]
    assert line.endswith("500.0 us measured, cublasSgemm 400.0 us")


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_command_prints_the_log_if_asked(is_asked: bool) -> None:
    told = os.environ | {"CUDA_VISIBLE_DEVICES": "", "TSM2_TUNE_DEBUG": "1" if is_asked else ""}
    done = python("-m", "tsm2_tune", "space", "--shapes", "64x4x64", "--family", "tsm2", check=True, env=told)
    assert ("tsm2_tune.tuner.device.target: no GPU: the host emulates kernels\n" in done.stderr) is is_asked
    assert is_asked or done.stderr == ""
