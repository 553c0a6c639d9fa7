"""In which order `doctor` looks at things."""

from __future__ import annotations

import time

import pytest

from tsm2_tune.tuner.doctor import examination
from tsm2_tune.tuner.doctor.examination import PROBES, examine
from tsm2_tune.tuner.doctor.finding import Finding, Question, ok

GPU = {"name": "Fake GPU", "bus_id": "0000:01:00.0", "compute_capability": [9, 0]}


@pytest.mark.slow
def test_no_probe_uses_the_gpu_while_its_processes_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    now, together = set[str](), dict[str, set[str]]()

    def looked(name: str, question: Question) -> list[Finding]:
        now.add(name)
        time.sleep(0.05)
        together[name] = set(now)
        now.remove(name)
        return [ok(name, "", gpus=[GPU])]

    monkeypatch.setattr(examination, "_examined", looked)
    found = examine("0", "results.db")
    assert together["nvidia-smi"] == {"nvidia-smi"}
    assert len(together["PyCUDA"]) > 1  # the others do not wait for each other
    assert [one.name for one in found.findings] == list(PROBES)
