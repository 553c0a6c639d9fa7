"""A run says what it tunes, and on which device, before anything that takes long."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import tsm2_tune
from tests.on_host import has_compiler
from tsm2_tune.tuner.compile.pool import Compilers
from tsm2_tune.tuner.runs.events import Event

pytestmark = [pytest.mark.host, pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")]


def test_first_event_comes_before_any_kernel_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[Event]()

    def support(compilers: Compilers, dtype_name: str = "") -> str:
        raise tsm2_tune.ToolMissing("not compiled")

    monkeypatch.setattr(Compilers, "support", support)
    with pytest.raises(tsm2_tune.ToolMissing, match="not compiled"):
        tsm2_tune.tune("64x2x64", device="cpu", db=tmp_path / "results.db", on_event=seen.append)
    assert [type(event) for event in seen] == [tsm2_tune.RunStarted]


def test_first_line_waits_for_no_compiler(tmp_path: Path) -> None:
    hanging = tmp_path / "c++"
    hanging.write_text("#!/bin/sh\nexec sleep 600\n")
    hanging.chmod(0o700)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "tsm2_tune", "--shapes", "64x2x64", "--dtype", "f32,f64", "--device", "cpu"]
    told = os.environ | {"CXX": str(hanging), "XDG_CACHE_HOME": str(tmp_path)}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=told) as started:
        os.close(theirs)
        with open(ours, encoding="utf-8") as terminal:
            assert terminal.readline() == "tuning 2 problems on device cpu\n"
            started.terminate()
