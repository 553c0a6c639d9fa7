"""The six steps of the ladder on the host: a search of them alone, and what it shows."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from tests.command import run
from tests.fabricated import trial, tuning_run
from tsm2_tune.commands.tune import NO_GPU
from tsm2_tune.console.plan_tables import print_ladder
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.families.ladder import STEPS, LadderConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.space import search_space
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache, Outcome
from tsm2_tune.tuner.search.ladder import in_turns, rungs

pytestmark = pytest.mark.slow

H200 = PROFILES["h200"]

NAIVE = LadderConfig("naive", 8, 16, 1, 1, 1)
COARSE_1D = LadderConfig("coarse1d", 32, 32, 8, 4, 1)


def test_steps_take_turns_in_a_search_that_names_the_ladder() -> None:
    """Other searches have `gemm`, which leaves it behind. The guidelines of other families would drop steps."""
    assert all(family_named("ladder").has(config, Problem(8, 8, 8, "f32")) for config in (NAIVE, COARSE_1D))
    problem = Problem(1024, 1024, 1024, "f32")
    assert family_named("ladder").supports(problem)
    assert "ladder" not in search_space(problem, H200).families
    space = search_space(problem, H200, families=["ladder"])
    assert not sum(count for _, count in space.dropped)
    assert {step.published for step in STEPS.values()} <= {candidate.config for candidate in space.kept}
    order = list(iter(in_turns(space, 3).ask, None))
    assert [candidate.config for candidate in order[:6]] == [
        LadderConfig(step.name, *step.fastest_of_few) for step in STEPS.values()
    ]
    assert [candidate.config.tunables["step"] for candidate in order[6:12]] == list(STEPS)
    assert set(order) == set(space.kept)
    assert len(order) == len(space.kept)


SHAPE = "33x17x20"


@pytest.mark.usefixtures("no_driver", "known_ceilings")
def test_the_command_shows_what_each_step_buys(tmp_path: Path, toolchain: Toolchain) -> None:
    """Steps take turns, their trials are stored as any others, and the same command again goes on from there."""
    database = ("--db", str(tmp_path / "r.db"))
    command = ("ladder", "--device", "cpu", "--shapes", SHAPE, *database)
    stopped = run(*command, "--max-trials", "5", "--json")
    assert (stopped.exit_code, "some steps have no time: see `tsm2-tune show" in stopped.stderr) == (1, True)
    assert [step["tried"] for step in json.loads(stopped.stdout)[0]["steps"]] == [1, 1, 1, 1, 1, 0]

    done = run(*command, "--max-trials", "6", "--json")
    assert (done.exit_code, "(1 new trial;" in done.stderr) == (0, True)
    (found,) = json.loads(done.stdout)
    assert [step["step"] for step in found["steps"]] == list(STEPS)
    trials = {line["id"]: line for line in json.loads(run("show", *database, "--json").output)}
    for step in found["steps"]:
        line = trials[step["trial"]]
        assert (line["config"], line["problem"]) == (step["configuration"], found["problem"])
        assert line["median_us"] == step["median_us"]
        assert (step["driver"], step["toolkit"]) == ("host", toolchain.version)
        assert step["gflops"] == pytest.approx(2 * 33 * 17 * 20 / step["median_us"] * 1e-3)
        assert step["speedup_over_first"] == pytest.approx(found["steps"][0]["median_us"] / step["median_us"])
    assert found["steps"][0]["speedup_over_previous"] is None
    for before, step in pairwise(found["steps"]):
        assert step["speedup_over_previous"] == pytest.approx(before["median_us"] / step["median_us"])

    lines = run(*command, "--max-trials", "6").output.splitlines()
    assert lines[0].startswith(f"{SHAPE}:f32: ladder ")
    assert [line.split()[0] for line in lines[3:]] == list(STEPS)
    assert NO_GPU not in run(*command[1:], "--max-trials", "1").output
    search = run(*command[3:], "--max-trials", "2")
    assert NO_GPU in " ".join(search.output.split())
    assert "(1 new trial;" in search.output, "what was tried of the ladder must count for nothing in a search"


def test_the_fastest_right_configuration_of_a_step_is_shown(store: Store) -> None:
    problem = Problem(64, 64, 64, "f32")
    target = SimpleNamespace(identity=tuning_run().identity, basis=lambda cache: "now")

    def add(config: LadderConfig, median_us: float, **changes: Any) -> None:
        store.add_trial(tuning_run(), trial(median_us, config=config, problem=problem, basis="now", **changes))

    for median_us, config in ((90.0, NAIVE), (60.0, replace(NAIVE, block_m=16)), (20.0, COARSE_1D)):
        add(config, median_us)
    add(replace(NAIVE, block_m=32), 10.0, outcome=Outcome.WRONG_RESULT)
    naive, coalesced, tiled, coarse, *_ = rungs(problem, cast(Target, target), store, Cache.CLEAN)
    assert (naive.tried, naive.median_us, naive.speedup_over_first) == (3, 60.0, 1.0)
    assert (coalesced.tried, coalesced.best, coalesced.facts["gflops"]) == (0, None, None)
    assert (coarse.speedup_over_previous, coarse.speedup_over_first) == (None, 3.0)
    text = StringIO()
    print_ladder(problem, "a device", [naive, coalesced, tiled], Console(file=text, width=200))
    assert (text.getvalue().count("not tried"), tiled.percent_of_floor) == (2, None)


@pytest.mark.parametrize(("extent", "first"), [(1024, "fastest_of_few"), (4096, "fastest_of_many")])
def test_what_won_is_tried_first_and_then_what_is_published(extent: int, first: str) -> None:
    proposed = family_named("ladder").proposals(Problem(extent, extent, extent, "f32"), H200)
    assert len(set(proposed)) == len(proposed)
    for step in STEPS.values():
        of_step = [config for config in proposed if config.tunables["step"] == step.name]
        assert of_step[0] == LadderConfig(step.name, *getattr(step, first))
        assert step.published in of_step
