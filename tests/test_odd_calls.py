"""The exported module under threads: every call is right or raises, and a fault is nobody else's."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.odd_calls import FAULTS, odd_calls, odd_module
from tests.on_host import ON_HOST, STUCK
from tsm2_tune.tuner.device.emulator import entry_point, run_on_host
from tsm2_tune.tuner.device.interface import KernelFault

pytestmark = ON_HOST

FEW = {"f32": ("nn", "ntt"), "c128": ("ct",)}


def test_calls_of_many_threads_with_faults_among_them(tmp_path: Path) -> None:
    found = odd_calls(odd_module(tmp_path, FEW), calls=400, threads=8, ops=FEW)
    assert found.wrong == []
    assert min(found.counts[kind] for kind in ("plain", "refused", "fault")) > 30


def test_a_fault_leaves_nothing_behind(tmp_path: Path) -> None:
    """In one thread: after each kind of fault the next call is right."""
    module = odd_module(tmp_path, {"f64": ("nt",)})
    a, b = np.ones((33, 7), order="F"), np.ones((7, 5))
    for alpha in FAULTS:
        with pytest.raises(KernelFault, match=r"of block \("):
            module.gemm(a, b, alpha=alpha)
        assert (module.gemm(a, b) == 7).all()


def test_a_child_process_does_not_wait_for_a_thread_of_its_parent() -> None:
    run_on_host(STUCK, "k", (), [np.int32(9)], blocks=1, threads=64)
    with entry_point._launching:  # held as if by another thread, which the child does not have
        child = os.fork()
        if child == 0:
            signal.alarm(30)  # ends a child that waits for ever
            run_on_host(STUCK, "k", (), [np.int32(9)], blocks=1, threads=64)
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
