"""Tests of the benchmark of shapes that were not tuned, on the host."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import (
    module_calls,
    pack,
    unseen,
    unseen_run,
)  # fmt: skip
from benchmarks.cells import LAYOUTS, Cell
from benchmarks.result_file import ResultFile
from benchmarks.unseen_shapes import UNSEEN_REGIMES
from benchmarks.versus_cublas import PATIENT
from tests.benchmarked_vendor import CEILINGS
from tests.conftest import ONCE
from tests.fabricated import (
    configuration,
    imported,
)
from tests.fabricated_rows import BIG, FACTS, row
from tests.modules import recorded
from tsm2_tune.errors import InputError
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.families import parse_config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.device.emulator.device import HostDevice
from tsm2_tune.tuner.search.options import Options

H200 = PROFILES["h200"]


def test_device_arrays_are_the_operands(plain_module: ModuleType) -> None:
    module = recorded(plain_module)

    def lying(address: int, rows: int, columns: int, leading: int) -> Any:
        filling = SimpleNamespace(leading_dimension=leading)
        return SimpleNamespace(address=address, rows=rows, columns=columns, filling=filling, row_major=False)

    operands: Any = SimpleNamespace(
        problem=Problem(6, 2, 3, "f32"), a=lying(0x1000, 6, 3, 7), b=lying(0x2000, 3, 2, 3), c=lying(0x3000, 6, 2, 8)
    )
    call = module_calls.called(module, operands, on_host=False, library=None)
    assert (call.falls_back, call.fallback, call.record["choice"]) == (None, None, str(call.choice))
    call.launch()
    (launch,) = module.driver.launches
    assert launch["values"] == [6, 2, 3, 1.0, 0x1000, 7, 0x2000, 3, 0.0, 0x3000, 8]
    assert launch["stream"] is None  # the default one, whose events the timing takes


ON_HOST = ["--device", "cpu", "--regime", "R,T", "--layout", "column", "--dtype", "f32", "--each", "1"]
ON_HOST += ["--large", "40:60", "--long", "300:400", "--small", "2:4", "--pack", "pack.py"]


def asked(*arguments: str, status: int = 0) -> str:
    """Return the output of `unseen` on the host, with single spaces for white space."""
    ended = CliRunner().invoke(unseen.main, [*ON_HOST, *arguments])
    assert ended.exit_code == status, ended.output
    return " ".join(ended.output.split())


@pytest.mark.usefixtures("session_cache", "known_ceilings")
@pytest.mark.slow
def test_unseen_shapes_are_measured_on_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pack from a result file, the measurement in parts and again, the tables."""
    monkeypatch.setattr(pack, "in_set", lambda record, shape_set: True)
    monkeypatch.setattr(HostDevice, "ceilings", lambda _: CEILINGS)
    monkeypatch.setattr(unseen_run, "PATIENT", replace(PATIENT, effort=ONCE, final_effort=ONCE))
    monkeypatch.chdir(tmp_path)
    result = ResultFile(Path("winners.json"), dict(FACTS))
    result.add(row(Cell("R", "column", Problem(64, 3, 64, "f32"))))
    of_t = "inner_fma:threads=128,block=4x4,thread=4x4x4,stages=1,splits=16"
    result.add(row(Cell("T", "column", Problem(3, 4, 300, "f32", "tn"))) | {"configuration": of_t})
    assert "pack 1/2 64x3x64:f32: tsm2 " in asked("--pack-only", "--pack-from", "winners.json")
    assert "No shape was searched" in asked("--search-seconds", "0", "--part", "1/2", "--output", "u.json")
    asked("--output", "u.json", status=2)  # it is there
    asked("--search-seconds", "0.1", "--resume", "--output", "u.json")
    first, second = json.loads(Path("u.json").read_text())["rows"]
    assert (first["regime"], second["regime"], first["verified"], second["verified"]) == ("R", "T", True, True)
    assert (first["search_us"], second["search_verified"]) == (None, True)
    assert sum(second["search_trials"].values()) < 20  # of hundreds: its seconds end the search
    assert (first["configuration"], second["configuration"]) == (configuration().text, of_t)
    Path("pack.py").write_text(Path("pack.py").read_text() + "\n")
    assert "was measured with pack" in asked("--resume", "--output", "u.json", status=2)
    said = asked("--searched-in", "u.json", "--output", "again.json")  # beside another pack
    assert "The search of each shape took 0.1 s, and the last search ended by" in said
    (again,) = json.loads(Path("again.json").read_text())["rows"]
    assert (again["regime"], again["search_configuration"]) == ("T", second["search_configuration"])
    assert again["search_verified"]


@pytest.mark.usefixtures("session_cache", "known_ceilings")
@pytest.mark.slow
def test_a_pack_is_tuned_once_and_its_kernels_are_timed_at_both_shapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = {"PACK_SHAPES": {"R": ((48, 2, 64), (70, 3, 50))}, "Options": partial(Options, effort=ONCE, max_trials=2),
             "FINAL": ONCE}  # fmt: skip
    for name, value in quick.items():
        monkeypatch.setattr(pack, name, value)
    monkeypatch.chdir(tmp_path)
    arguments = ("--regime", "R", "--pack-only", "--budget", "60", "--verbose")
    said = asked(*arguments)
    assert re.search(r"pack 1/2 48x2x64:f32: .* pack 2/2 70x3x50:f32: .* winners: .* pairs: ", said)
    module = imported(Path("pack.py").read_text(), tmp_path)
    assert len(module.WINNERS) == 2
    again = asked(*arguments)
    assert "pack 1/2" not in again


@pytest.mark.slow
def test_a_pack_is_of_a_dozen_shapes_of_each_kind(tmp_path: Path) -> None:
    kinds = pack.Kinds(UNSEEN_REGIMES, LAYOUTS, ("f32", "f64", "c64"))
    problems = [cell.problem for cell in pack.pack_cells(kinds)]
    assert len(problems) == len(set(problems)) == 12 * 18
    found = pack.winners_in(Path("benchmarks/results/h200-versus-cublas.json"), kinds)
    for space, (_, text) in zip(pack.spaces_of(found, H200), found, strict=True):
        assert [candidate.config for candidate in space.kept] == [parse_config(text)]
    result = ResultFile(tmp_path / "r.json", dict(FACTS))
    result.add(row(BIG))
    with pytest.raises(InputError, match="has 0 winners of the headline's shapes of R row f32"):
        pack.winners_in(result.path, pack.Kinds(("R",), LAYOUTS, ("f32",)))
    with pytest.raises(InputError, match=r"gone-t1 is no configuration for .* in this version"):
        pack.spaces_of([(BIG.problem, "gone-t1")], H200)
