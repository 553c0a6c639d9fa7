"""First choices: of the nearest measured problems, adapted, and of the database's other problems."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fabricated import GPU, plain_sql, trial, tuning_run
from tests.simulated import TARGET, Simulated
from tests.spelling import spelt
from tsm2_tune.errors import InputError
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.dtypes import DTYPES
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.families.published import Tsm2Config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.space import seeds as module
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.generator.space.nearest import Kernels, preferred
from tsm2_tune.generator.space.order import first_and_rest, ordered
from tsm2_tune.generator.space.rules import HARDWARE_RULES
from tsm2_tune.generator.space.seed_table import FILE, Choice, Measured, distance, lines_of, measured, read_line
from tsm2_tune.generator.space.seeds import first_choices, packaged
from tsm2_tune.generator.space.space import search_space
from tsm2_tune.tuner.packs.candidate_times import candidate_times_us
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Outcome
from tsm2_tune.tuner.runs.problem_queue import tune_problems
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.stored_seeds import stored_seeds

H200 = PROFILES["h200"]
R = Problem(20480, 16, 20480, "f32")
LINE = (
    "h200 f32 nn 20480 16 20480 staged_f32_dmma:threads=128,ring_threads=128,block=128x16x32,stages=2,copy=registers,"
    "splits=396,min_blocks=3,warp=32x16@377.2"
)


def choices(problem: Problem, *families: str, card: str = "h200", near: Any = None) -> tuple[KernelConfig, ...]:
    """The first choices of these families, or of all, for the problem."""
    space = search_space(problem, PROFILES[card], families=families)
    return first_choices(space, candidate_times_us, near)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> list[Measured]:
    """Return a list that replaces the measured problems."""
    rows: list[Measured] = []
    monkeypatch.setattr(module, "measured", lambda _: rows)
    return rows


def test_every_line_is_read_as_it_is_written_and_the_fastest_is_first() -> None:
    assert read_line(LINE).line == LINE
    seen = set()
    for name in DTYPES:
        lines = lines_of(FILE).get(name, ())
        every = [one for one in measured(name) if one.problem.dtype_name == name]
        for (number, line), one in zip(lines, every, strict=True):
            us = [choice.us for choice in one.choices]
            assert (one.line, len(us), us) == (line, line.count("@"), sorted(us)), number
            assert all(family_named(choice.config.family).supports(one.problem) for choice in one.choices), number
            assert (one.limits.name, one.problem) not in seen
            seen.add((one.limits.name, one.problem))
    assert len(seen) > 2000


KERNEL = "tsm2:version=v0,threads=128,columns=1,prefetch=1"


@pytest.mark.parametrize(
    "line",
    [
        "h200 f32", "h200 f32 nn 1 2", "h200 f32 nn 1 2 3", "h200 f32 nn 1 2 3 ", f"h200 f32 nn 1 2 x {KERNEL}@1",
        f"h200 f32 nn 0 2 3 {KERNEL}@1", f"h200 f32 zz 1 2 3 {KERNEL}@1", f"b17 f32 nn 1 2 3 {KERNEL}@1",
        f"h200 f32 nn 1 2 3 {KERNEL}", *(f"h200 f32 nn 1 2 3 {KERNEL}@{us}" for us in ("0", "-1", "inf", "nan")),
    ],
)  # fmt: skip
def test_a_line_that_is_none_is_named(tmp_path: Path, line: str) -> None:
    (file := tmp_path / "hostile.txt").write_text(f"# a comment\n{LINE}\n{line}\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"hostile\.txt, line 3: expected a card"):
        measured("f32", file)


def test_a_table_of_another_version_or_none_is_read_and_bytes_are_refused(tmp_path: Path) -> None:
    (file := tmp_path / "later.txt").write_text(f"{LINE} unheard_of:threads=1@380 tsm2:zeal=9@38\n", encoding="utf-8")
    assert measured("f32", file) == (read_line(LINE),)
    assert measured("f32", tmp_path / "none.txt") == ()
    (file := tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"cannot read .*bytes\.txt"):
        measured("f32", file)


def test_what_is_measured_comes_first() -> None:
    for text in ("20480x16x20480:f32", "16x16x10000000:f64:tn", "10000000x8x8:c64:ttt", "32x32x10000000:f32:tx"):
        problem = Problem.parse(text)
        (known,) = (one for one in measured(problem.dtype_name) if (one.limits, one.problem) == (H200, problem))
        assert known.choices[0].config in choices(problem)[:5]


def test_a_product_that_is_left_out_is_not_asked(table: list[Measured]) -> None:
    table.append(read_line(LINE))
    family = "staged_f32_dmma"
    assert choices(R, family)
    assert not choices(R, family, near=packaged(R, H200, without=R))
    assert choices(R, family, near=packaged(R, H200, without=replace(R, k=10240)))


@pytest.mark.parametrize("ratios", [(2, 2), (0.1, 1)])  # of measured to predicted times
def test_the_nearest_counts_most(table: list[Measured], ratios: tuple[float, float]) -> None:
    family = family_named("stream_a_fma")
    for ratio, stages, m in zip(ratios, (2, 4), (400_000, 16_000), strict=True):
        config = spelt(f"stream_a_fma:threads=64,columns=8,prefetch=16,stages={stages},splits=8,min_blocks=6")
        problem = Problem(m, 8, 20000, "f32")
        us = ratio * float(candidate_times_us([Candidate(family, config, problem, H200, Guidelines())])[0])
        table.append(Measured(H200, problem, (Choice(config, us),)))
    found = choices(Problem(20480, 8, 20480, "f32"), family.name)
    stages_in_order = [one.tunables["stages"] for one in found]
    assert stages_in_order[0] == 4
    assert 2 in stages_in_order


def test_distances_are_of_what_matters() -> None:
    assert distance(R, R) == 0
    assert distance(R, replace(R, n=8)) > distance(R, replace(R, m=10240)) > 0
    assert distance(R, replace(R, n=8)) == distance(replace(R, n=8), R)
    assert distance(R, replace(R, op="tn")) > distance(R, replace(R, op="nt")) > distance(R, replace(R, op="nnt")) > 0
    assert distance(R, replace(R, m=20479)) > distance(R, replace(R, m=20476))
    half = Problem(16, 16, 10**6, "bf16", "tn")
    assert distance(half, replace(half, dtype_name="f16")) > 0


def test_a_type_that_was_not_measured_is_served_by_one_alike() -> None:
    assert choices(Problem(2, 2, 10**7, "tf32", "tn"), "inner_fma")
    for name in ("bf16", "f16"):
        assert {one.problem.dtype_name for one in measured(name)} == {"bf16", "f16"}


@pytest.mark.parametrize("card", ["a100", "v100", "p100", "s2050"])
def test_another_card_goes_by_the_model(card: str) -> None:
    """Each kernel's first choice of splits by its predicted time; none that the card cannot hold."""
    limits, problem = PROFILES[card], Problem(21000, 8, 21000, "f32")
    found, first = choices(problem, card=card), dict[str, float]()
    assert found
    for config in found:
        family = family_named(config.family)
        candidate = Candidate(family, config, problem, limits, Guidelines())
        assert all(rule.keeps(candidate) for rule in (*family.rules, *HARDWARE_RULES))
        if not family.proposals(problem, limits):
            kernel = replace(config, **dict.fromkeys(config.launch_tunables(), 1)).text
            first.setdefault(kernel, float(candidate_times_us([candidate])[0]))
    assert list(first.values()) == pytest.approx(sorted(first.values()), rel=0.01)


def launches(text: str, problem: str, card: str = "h200") -> list[KernelConfig]:
    """The launches to try first of the kernel that is nearest to a measured one."""
    config = spelt(text)
    kept = search_space(Problem.parse(problem), PROFILES[card], families=[config.family]).kept
    nearest, _ = Kernels(kept).nearest(config, candidate_times_us)
    return [one.config for one in preferred(nearest, config)]


def test_tiles_are_cut_where_the_problem_is_smaller() -> None:
    cut = launches(
        "staged_complex_dmma:threads=128,ring_threads=128,block=32x32x32,stages=3,copy=ca,splits=264,warp=16x32",
        "32x16x1000000:c64:cn",
    )
    assert {(one.tunables["block_m"], one.tunables["block_n"]) for one in cut} == {(32, 16)}
    assert {one.tunables["octets"] for one in cut} == {2}  # with four, a warp's tile would be wider


INNER = "inner_fma:threads=256,block=2x2,thread=2x2x4,stages=1,splits=264"
ROW_TILES = "resident_b_fma:threads=128,vector_bytes=8,columns=8,prefetch=8,row_tiles=4"


@pytest.mark.parametrize(
    ("text", "problem", "card", "divisions"),
    [
        (INNER, "2x2x100000000:f32:tn", "h200", [264, 132]),
        (INNER, "2x2x10000:f32:tn", "h200", [16]),
        (INNER, "2x2x100000000:f32:tn", "a100", [216, 108]),
        (ROW_TILES, "1000000x8x8:f32", "h200", [4, 2, 1]),
    ],
)
def test_divisions_are_those_of_the_shape_and_the_card(
    text: str, problem: str, card: str, divisions: list[int]
) -> None:
    name = "row_tiles" if text == ROW_TILES else "splits"
    assert [one.tunables[name] for one in launches(text, problem, card)][: len(divisions)] == divisions


HERE = Problem(20480, 16, 20480, "f32")
NEAR, FAR = Problem(20480, 16, 10240, "f32"), Problem(20480, 2, 64, "f32")
OTHER = "NVIDIA A100-SXM4-80GB"


def add(store: Store, problem: Problem, config: KernelConfig, us: float, device: str = GPU, **changes: Any) -> None:
    run = tuning_run(device, compute_capability="9.0" if device == GPU else "8.0", sms=132)
    store.add_trial(run, trial(us, config, problem=problem, source=render(problem, config), **changes))


def kernel(threads: int, columns: int = 8) -> Tsm2Config:
    return Tsm2Config("v2", threads, columns, 4)


def known(store: Store) -> list[tuple[str, str, list[float]]]:
    found = stored_seeds(store, HERE, H200, GPU)
    return [(one.limits.name, one.problem.text, [choice.us for choice in one.choices]) for one in found]


def test_the_fastest_of_each_problem_are_known_this_devices_first(store: Store) -> None:
    assert known(store) == []
    for number, threads in enumerate((64, 128, 256, 512)):
        add(store, NEAR, kernel(threads), 400.0 - number)
    add(store, NEAR, kernel(1024), 1.0, outcome=Outcome.WRONG_RESULT, verdict=None, measurement=None)
    add(store, NEAR, kernel(128), 90.0, device=OTHER)
    add(store, FAR, kernel(128), 50.0)
    add(store, replace(NEAR, dtype_name="f64"), kernel(128), 800.0)
    add(store, replace(NEAR, op="tt"), kernel(128), 300.0)
    found = known(store)
    assert sorted(found[:2]) == sorted([("h200", NEAR.text, [397.0, 398.0, 399.0]), ("h200", FAR.text, [50.0])])
    assert found[2:] == [(OTHER, NEAR.text, [90.0])]


def test_a_run_begins_with_what_won_nearby(store: Store) -> None:
    """By the default strategy, of a problem that was never tried."""
    space = search_space(HERE, TARGET.limits, families=["resident_b_fma"])
    winner, slower = (ordered(space, 0, candidate_times_us)[place].config for place in (200, 300))
    add(store, NEAR, slower, 11.0)
    add(store, NEAR, winner, 10.0)
    add(store, replace(NEAR, dtype_name="f64"), ordered(space, 0, candidate_times_us)[250].config, 1.0)
    device = Simulated(store, {})
    device.options = Options(max_trials=2)
    assert winner not in [one.config for one in first_and_rest(space, 0, candidate_times_us, ())[0]]
    list(tune_problems([space], device, store))
    assert device.tried == [(winner.text, HERE), (slower.text, HERE)]


@pytest.mark.parametrize("edit", ["config = 'tsm2:of=another,version=1'", "is_between = 1"])
def test_trials_of_another_version_or_between_are_passed_over(store: Store, path: Path, edit: str) -> None:
    add(store, NEAR, kernel(128), 10.0)
    plain_sql(path, f"UPDATE trial SET {edit}")
    assert known(store) == []
