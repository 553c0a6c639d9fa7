"""Verification rejects bugs of every class, in a trial or before a configuration is a winner.

`python -m tests.bugs_by_class --all` tries those too that take long here, `--device 0` those that only a GPU shows.
"""

from __future__ import annotations

import pytest
from _pytest.mark.structures import ParameterSet

from tests.bugs_by_class import CASES
from tests.bugs_command import ON_HOST, Bench, tried
from tests.bugs_in_classes import Case, Found
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.emulator.toolchain import host_toolchain, watching
from tsm2_tune.tuner.worker.client import Worker

pytestmark = pytest.mark.host


@pytest.fixture(scope="module")
def bench(quick: Toolchain, worker: Worker) -> Bench:
    return Bench(quick, worker, ON_HOST, watching(host_toolchain()))


def parameter(case: Case) -> ParameterSet:
    marks = [pytest.mark.xfail(reason="verification accepts it as yet", strict=True)] if case.is_open else []
    return pytest.param(case, id=case.name, marks=marks)


@pytest.mark.parametrize("case", [parameter(one) for one in CASES if one.is_quick])
def test_a_bug_is_rejected(bench: Bench, case: Case) -> None:
    result = tried(case, bench)
    assert result.found in (Found.TRIAL, case.found), f"accepted, or later than it was: {result}"
    assert result.detail


def test_every_class_has_bugs_in_several_families_and_types() -> None:
    for kind in {one.kind for one in CASES}:
        bugs = [one.bug for one in CASES if one.kind == kind]
        assert len({bug.config.family for bug in bugs}) >= 3 or kind == "alignment", kind
    assert len({one.bug.config.family for one in CASES}) >= 18
    assert {one.bug.dtype for one in CASES} >= {"f32", "f64", "c64", "c128", "bf16", "f16", "tf32", "minplus_f32"}


def test_names_are_of_one_bug_each() -> None:
    assert len({one.name for one in CASES}) == len(CASES)
