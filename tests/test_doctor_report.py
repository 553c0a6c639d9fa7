"""`doctor` prints what it finds, in a fixed order, and a verdict whether tuning can run."""

from __future__ import annotations

import json
import time

import pytest

from tests.command import run
from tsm2_tune.tuner.doctor import examination
from tsm2_tune.tuner.doctor.examination import DATABASE, PROBES, Examination, examine
from tsm2_tune.tuner.doctor.finding import Finding, Question, State, note, ok, problem

GPU = {"name": "Fake GPU", "bus_id": "0000:01:00.0", "compute_capability": [9, 0]}


@pytest.mark.parametrize(
    ("probe", "device", "state"),
    [
        ("C++ compiler", "0", State.NOTE), ("C++ compiler", "cpu", State.PROBLEM), ("cache", "cpu", State.PROBLEM),
        ("CUDA toolkit", "0", State.PROBLEM), ("CUDA toolkit", "cpu", State.NOTE),
    ],
)  # fmt: skip
def test_a_problem_counts_where_the_device_needs_the_thing(probe: str, device: str, state: State) -> None:
    assert examination._weighed(problem(probe, "gone"), PROBES[probe], device).state is state


@pytest.mark.parametrize(
    ("findings", "status", "last"),
    [
        ((ok("one", "here"), note("two", "slow", means="it waits", remedy="hurry")), 0, "tuning can run on GPU 0"),
        ((problem("two", "gone"), problem(DATABASE, "a text")), 1, "tuning cannot run on GPU 0"),
        (
            (ok("one", "here"), problem(DATABASE, "a text")),
            1,
            "tuning can run on GPU 0, but not with results.db: name another database with --db",
        ),
    ],
)
def test_the_command_prints_a_line_each(
    findings: tuple[Finding, ...], status: int, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, "examine", lambda spec, database: Examination(spec or "0", findings))
    found = run("doctor")
    assert found.exit_code == status
    assert found.output.splitlines() == [*(one.text for one in findings), last]
    told = json.loads(run("doctor", "--json", "--device", "0").output)
    assert (told["device"], told["can_tune"], len(told["findings"])) == ("0", status == 0, 2)
    if findings[1].state is State.NOTE:
        assert findings[1].text == "note     two: slow. It waits. Remedy: hurry"


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
