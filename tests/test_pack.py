"""Packs: their problems, their batches, the table of gains and the file."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import tsm2_tune
from tests.fabricated import final, vendor_measurement
from tests.predicted import GPU, PLAIN, RATES, measured, pair
from tests.simulated import RUN, TODAY, stored_trial
from tsm2_tune.api.pack import BATCH, batches
from tsm2_tune.errors import InputError
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.dtypes import FMA_DTYPES
from tsm2_tune.generator.pack_shapes import DTYPES, KINDS, kind_of, pack_problems
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.space import search_space
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.packs.exported_kernels import ExportedKernels
from tsm2_tune.tuner.packs.gains import gains_of, mean, share_slower
from tsm2_tune.tuner.results.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("toolchain", "session_cache")]

GIB, H200 = 2**30, PROFILES["h200"]
EVERY = list(islice(pack_problems(tuple(KINDS), DTYPES, 8 * GIB), 2000))


def test_each_kind_type_and_layout_comes_once_a_turn() -> None:
    assert len(set(EVERY)) == len(EVERY)
    assert max(problem.least_bytes for problem in EVERY) <= 8 * GIB
    cells = Counter((kind_of(one), one.dtype_name, len(one.op)) for one in EVERY)
    kinds = [(kind, dtype) for kind in KINDS for dtype in DTYPES if kind != "gram" or dtype in FMA_DTYPES]
    assert cells.keys() == {(*one, letters) for one in kinds for letters in (2, 3)}
    assert max(cells.values()) - min(cells.values()) <= 2


@pytest.mark.parametrize("kind", KINDS)
def test_problems_are_of_their_kind_fit_and_cover_its_sizes(kind: str) -> None:
    """Each box that halves the logarithmic ranges of extents has one of 16 problems, or of 48 batches."""
    of_kind = KINDS[kind]
    ranges = [of_kind.m, of_kind.m if of_kind.is_gram else of_kind.n, of_kind.k, of_kind.batch or (1, 1)]
    large = list(islice(pack_problems([kind], ["f32"], 2**60), 300))
    boxes = {
        tuple(
            2 * math.log(extent / least) >= math.log(most / least)
            for extent, (least, most) in zip((one.m, one.n, one.k, one.batch), ranges, strict=True)
        )
        for one in large[: 96 if of_kind.batch else 32 : 2]
    }
    free = sum(most > least for least, most in ranges) - of_kind.is_gram
    assert len(boxes) == 2**free
    assert {kind_of(one) for one in large} == {kind}
    for one in islice(pack_problems([kind], ["f32", "c128"], GIB), 300):
        assert (one.least_bytes <= GIB, one.is_batched) == (True, of_kind.batch is not None)


def test_extents_are_round_and_odd_in_turn() -> None:
    first, _, second, _ = islice(pack_problems(["wide"], ["f32"], GIB), 4)
    assert [extent % 16 for extent in (first.m, first.n, first.k)] == [0, 0, 0]
    assert all(extent % 16 for extent in (second.m, second.n))


def test_batches_end_with_the_time_and_leave_out_what_is_done() -> None:
    seconds = count(step=10.0)
    found = list(batches(iter(EVERY), frozenset(EVERY[:5]), 25.0, lambda: next(seconds)))
    assert found == [tuple(EVERY[5:11]), tuple(EVERY[11:17]), tuple(EVERY[17:23])]
    assert BATCH == 6


def test_extents_tell_the_kind() -> None:
    shapes = ("64x64x6399", "64x64x6400", "65x65x65")
    assert [kind_of(Problem.parse(f"{shape}:f32")) for shape in shapes] == ["R", "T", "wide"]


def test_gains_are_at_tuned_shapes_and_by_leave_one_out() -> None:
    lost = measured(PLAIN, (4096, 1, 4096), 20.0, vendor_us=10.0)
    found = gains_of(ExportedKernels((*pair(), lost), (), {GPU: RATES}))
    assert found.keys() == {("R", "f32"), ("vector", "f32")}
    assert found["R", "f32"].tuned == pytest.approx([2.0, 2.0])
    assert found["R", "f32"].leave_one_out == pytest.approx([2.0, 2.0])
    assert found["vector", "f32"].tuned == [1.0]  # by cuBLAS
    assert found["vector", "f32"].leave_one_out == []
    assert mean([2.0, 0.5, 8.0]) == pytest.approx(2.0)
    assert (mean([]), share_slower([]), share_slower([0.96, 0.98, 1.0, 2.0])) == (None, None, 0.25)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"output": "a.txt"}, "ends in .jsonl"),
        ({"hours": 0}, "above 0"),
        ({"hours": math.nan}, "above 0"),
        ({"only": "S"}, "unknown kind in --only 'S': expected one of R, L"),
        ({"dtype": "tf32"}, "unknown dtype 'tf32'"),
        ({"dtype": ["bf16", "f16"], "only": "gram"}, "Gram matrices have only the types f32, f64, c64, c128"),
        ({"db": "a.jsonl"}, "it is part of the database"),
        *(({"dtype": one}, "`pack` needs a GPU") for one in ("float32", "F32", np.float32, ["f64", np.float32])),
    ],
)
def test_arguments_are_checked(tmp_path: Path, arguments: dict[str, object], words: str) -> None:
    named = {"output": "a.jsonl", "device": "cpu"} | arguments
    named |= {name: tmp_path / str(value) for name, value in named.items() if name in ("output", "db")}
    with pytest.raises(InputError, match=words):
        tsm2_tune.pack(**named)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_pack_is_tuned_continued_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that takes 100 us for each problem, where cuBLAS takes 200."""
    device = Target("0", H200, RUN.identity, Toolchain.__new__(Toolchain))
    tuned = list[Problem]()

    def tune(batch: Sequence[Problem], *, db: str, **_: object) -> SimpleNamespace:
        tuned.extend(batch)
        with Store.open(db, create=False) as store:
            for problem in batch:
                config = next(iter(search_space(problem, H200).kept)).config
                trial = replace(stored_trial(config, problem, 100.0), full_verdict="right", basis=TODAY)
                store.add_trial(RUN, trial)
                vendor = (vendor_measurement(200.0),)
                store.add_final(RUN, final((config, 100.0), problem=problem, vendor=vendor), (config.family,), TODAY)
        return SimpleNamespace(targets=(device,), unsolved=(), unfinished=())

    doubles = {"targets_of": lambda _: (device,), "tune": tune, "batches": lambda *given: islice(batches(*given), 1)}
    for name, double in doubles.items():
        monkeypatch.setattr(f"tsm2_tune.api.pack.{name}", double)
    output = tmp_path / "a.jsonl"
    for problems in (6, 12):
        found = tsm2_tune.pack(output, dtype="f32", only="L")
        assert (found.problems, found.new_problems) == (problems, 6)
        assert found.gains["L", "f32"].tuned == [2.0] * problems
    assert tuned == list(islice(pack_problems(["L"], ["f32"], H200.memory_bytes // 16), 12))
    with Store.open(tmp_path / "new.db", create=True):
        assert tsm2_tune.import_trials(output, tmp_path / "new.db").trials == 12
