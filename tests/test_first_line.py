"""A run says what it tunes, and on which device, before anything that takes long."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.on_host import has_compiler

pytestmark = [pytest.mark.host, pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")]


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
