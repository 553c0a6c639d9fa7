"""Commands that plan: they need no GPU, and know every card and every configuration."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.command import run
from tsm2_tune.api.parse import LARGE
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.problem import DTYPES, Problem
from tsm2_tune.generator.space.space import unfit

pytestmark = pytest.mark.usefixtures("no_driver")


def test_space_counts_every_configuration() -> None:
    (found,) = json.loads(run("space", "--device", "h200", "--shapes", "20480x16x20480", "--json").output)
    assert found["total"] == found["kept"] + sum(found["dropped"].values())
    lines = run("space", "--device", "h200", "--shapes", "20480x16x20480", "--list").output.splitlines()
    assert len(lines) == found["kept"]
    assert set(json.loads(lines[0])) >= {"family", "configuration", "tunables", "registers", "threads_per_sm"}


@pytest.mark.parametrize("device", [*PROFILES, "cpu"])
def test_space_works_for_every_card_without_a_gpu(device: str) -> None:
    result = run("space", "--device", device, "--shapes", "10240x8x10240", "--dtype", "f64", "--explain")
    assert result.exit_code == 0
    assert "because" in result.output
    assert "  threads [t1]: threads of a block" in result.output


def test_tunables_are_explained_of_families_that_are_kept() -> None:
    result = run("space", "--device", "k40c", "--shapes", "20480x8x20480", "--dtype", "f64", "--explain").output
    lines = result.splitlines()
    (missing,) = (place for place, line in enumerate(lines) if line.startswith("stream_a_dmma, none kept: "))
    assert not any(line.startswith("  ") for line in lines[missing + 1 : missing + 2])


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_source_prints_any_configuration_that_is_listed(family: Any) -> None:
    config = next(iter(family.configurations()))
    dtype, op = next(
        (dtype, op)
        for dtype in DTYPES.values()
        for op in ("nn", "tn", "tx", "ttt")
        for size in (1, LARGE)
        if family.supports(problem := Problem(size, size, size, dtype.name, op))
        and unfit(family, config, problem) is None
    )
    typed = ("--dtype", dtype.element_name, "--math", dtype.math)
    result = run("source", config.text, *typed, "--op", op)
    assert result.exit_code == 0
    assert result.output.startswith(f"// {config.kernel_text}\n// ")
    assert f"using scalar = {dtype.c_type};" in result.output


def test_devices_lists_the_bundled_cards() -> None:
    assert {one["device"] for one in json.loads(run("devices", "--json").output)} == {"cpu", *PROFILES}
    assert "h200" in run("devices").output
