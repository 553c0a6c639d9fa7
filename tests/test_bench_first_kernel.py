"""The bench of a first kernel runs the command as a user does, and tells when each thing is there."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import first_kernel
from benchmarks.first_kernel import EXPORTED, STAGES, main

ON_HOST = ("--device", "cpu", "--shapes", "16x1x16", "--budget", "0.1")


@pytest.mark.slow
def test_each_stage_is_later_than_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_kernel, "PROGRAM", (sys.executable, "-m", "tests.quick_command"))
    output = tmp_path / "first.json"
    found = CliRunner().invoke(main, [*ON_HOST, "--output", str(output)])
    assert found.exit_code == 0, found.output
    result = json.loads(output.read_text())
    assert result["device"].startswith("cpu ")
    assert set(result["seconds"]) == {"empty_cache", "filled_cache"}
    for seconds in result["seconds"].values():
        assert list(seconds) == [*STAGES.values(), EXPORTED]
        assert list(seconds.values()) == sorted(seconds.values())
        assert seconds["first_line"] > 0
    again = CliRunner().invoke(main, [*ON_HOST, "--output", str(output)])
    assert again.exit_code == 2
    assert "--output" in again.output


def test_a_command_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import sys; print('no GPU today', file=sys.stderr); sys.exit(3)"
    monkeypatch.setattr(first_kernel, "PROGRAM", (sys.executable, "-c", program))
    found = CliRunner().invoke(main, ON_HOST)
    assert found.exit_code == 1
    assert "status 3: no GPU today" in found.output


@pytest.mark.slow
def test_first_event_counts_and_each_run_has_its_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import json, os, pathlib, sys, time\n"
        "if sys.argv[1] == 'export': pathlib.Path(sys.argv[-1]).touch(); sys.exit()\n"
        "cache, db = pathlib.Path(os.environ['XDG_CACHE_HOME'], 'kernel'), pathlib.Path(sys.argv[-1])\n"
        "assert not db.exists(); db.touch()\n"
        "for event in ('run_started', 'trial', 'other', 'trial'):\n"
        "    print(json.dumps({'event': event, 'device': str(cache.exists())}), flush=True); time.sleep(0.2)\n"
        "cache.touch()\n"
    )
    monkeypatch.setattr(first_kernel, "PROGRAM", (sys.executable, str(program)))
    found = CliRunner().invoke(main, ON_HOST)
    assert found.exit_code == 0, found.output
    result = json.loads(found.output)
    assert result["device"] == "True"  # the last run's, whose cache the first one filled
    for seconds in result["seconds"].values():
        assert list(seconds) == ["run_started", "first_trial", EXPORTED]
        assert seconds["first_trial"] + 0.5 < seconds[EXPORTED]
