"""The bench of every kernel of a pack: what its tables say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.every_kernel import Pack, launched, lines_of, losses, some, table
from tests.fabricated import GPU, imported, trial, tuning_run
from tsm2_tune.errors import InputError
from tsm2_tune.generator.families.resident_b import ResidentBFmaRingConfig
from tsm2_tune.generator.families.stream_a import StreamAFmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.runtime.choice.launch import Launch
from tsm2_tune.tuner.export import export
from tsm2_tune.tuner.results.store import Store

FAST, SLOW = StreamAFmaConfig(64, 1, 8, 16, 4, 13, 1, 4), StreamAFmaConfig(128, 1, 8, 8, 4, 13, 1, 4)
SHAPES = {FAST: (20480, 8, 20480), SLOW: (20480, 8, 20000)}
TIMES = {FAST: 380.0, SLOW: 500.0}


@pytest.fixture
def pack(tmp_path: Path) -> Pack:
    """Two kernels of one op, of which one takes a third longer."""
    with Store.open(tmp_path / "results.db", create=True) as store:
        for config, us in TIMES.items():
            problem = Problem(*SHAPES[config], "f32")
            tried = trial(us, config, problem=problem, source=render(problem, config))
            store.add_trial(tuning_run(sms=132), tried)
        return Pack(imported(export(store, "module"), tmp_path), GPU)


def row(fast_us: float, slow_us: float) -> dict[str, Any]:
    lines: list[dict[str, int]] = [{"n": 10240}, {"n": 10240}]
    times = [[config.text, *SHAPES[config], 512, 19, us] for config, us in ((FAST, fast_us), (SLOW, slow_us))]
    return {
        "regime": "R", "layout": "column", "dtype": "f32", "text": "10240x8x10240:f32", "orders": ["n", "n", "n"],
        "lines": lines, "times": times,
    }  # fmt: skip


def test_a_choice_that_is_the_best_loses_nothing(pack: Pack) -> None:
    ((loss, off),) = losses([row(100.0, 150.0)], pack)["R", "f32", "column"]
    assert loss == 1
    assert 0.5 < off < 1.5


def test_kernels_of_the_transposed_product_are_not_asked(tmp_path: Path) -> None:
    ring = ResidentBFmaRingConfig(128, 4, 8, 2, 55, splits=528)
    with Store.open(tmp_path / "results.db", create=True) as store:
        for config, problem in ((FAST, Problem(*SHAPES[FAST], "f32")), (ring, Problem(10**6, 16, 16, "f32", "ttt"))):
            tried = trial(380.0, config, problem=problem, source=render(problem, config))
            store.add_trial(tuning_run(sms=132), tried)
        both = Pack(imported(export(store, "module"), tmp_path), GPU)
    fast = row(100.0, 150.0)
    fast["times"] = fast["times"][:1]
    ((loss, _),) = losses([fast], both)["R", "f32", "column"]
    assert loss == 1


def test_another_one_loses_what_it_takes_longer(pack: Pack) -> None:
    found = losses([row(150.0, 100.0), row(100.0, 150.0)], pack)
    assert [loss for loss, _ in found["R", "f32", "column"]] == [1.5, 1]
    assert "| all |  |  | 2 | 1.225 | 1.250 | 1.500 |" in table(found)


@pytest.mark.parametrize("line", ["", "{", "[]", "{}", '{"text": "1x1x1:f32", "times": []}', "\\xff"])
def test_a_line_that_is_none_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "times.jsonl"
    path.write_text(json.dumps(row(1.0, 2.0)) + f"\n{line}\n")
    with pytest.raises(InputError, match="has no usable line 2"):
        list(lines_of(path))


def test_a_file_of_another_pack_is_refused(pack: Pack) -> None:
    other = row(1.0, 2.0)
    other["times"][0][0] = "stream_a_fma-t64"
    with pytest.raises(InputError, match="stream_a_fma-t64 is not in the pack"):
        losses([other], pack)
    with pytest.raises(InputError, match="the pack has no kernel for it"):
        losses([other | {"text": "9x9x9:f64"}], pack)


def test_few_ways_to_start_a_kernel_are_measured() -> None:
    starts = [(float(number), number) for number in range(9)]
    assert [number for _, number in some(starts)] == [0, 1, 4, 8]
    assert some(starts[:3]) == starts[:3]


def test_a_launch_is_another_by_rows_and_splits() -> None:
    launch = Launch(64, 256, 4096, 8, splits=13)
    assert launched(launch, 256, 13) is launch
    other = launched(launch, 512, 2)
    assert (other.rows_per_block, other.splits, other.has_workspace) == (512, 2, True)
