"""`space --audit`: which measured winners a guideline would have dropped, and how far estimates were off."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.command import TUNE, completed, refused, run
from tests.databases import database_of
from tests.fabricated import BASIS, GPU, configuration, final, host_run, plain_sql, trial, tuning_run
from tsm2_tune.errors import InputError
from tsm2_tune.generator.device.architecture import HOST
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.families.published import Ism2Config, Tsm2Config
from tsm2_tune.generator.space.guidelines import Thresholds
from tsm2_tune.generator.space.space import OWN
from tsm2_tune.tuner.results.storage import schema_versions
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Outcome
from tsm2_tune.tuner.search.audit import ALL, Audit, Estimate, GuidelineAudit, audit

pytestmark = pytest.mark.usefixtures("no_driver")

H200 = PROFILES["h200"]
RUN = tuning_run()
WIDE, NARROW = configuration(columns=8), configuration(columns=2)  # the guideline of reuse, 4, drops the second


def audited(store: Store, asked: Thresholds = OWN) -> Audit:
    return audit(store.current(GPU), H200, asked)


def of_rule(found: Audit, name: str) -> GuidelineAudit:
    (one,) = (one for one in found.guidelines if one.rule == name)
    return one


def estimate(found: Audit, quantity: str, family: str = "tsm2") -> Estimate:
    (one,) = (one for one in found.estimates if (one.family, one.quantity) == (family, quantity))
    return one


def test_each_guideline_is_looked_at_alone_and_then_all(store: Store) -> None:
    small = configuration(threads=1024, columns=8)  # alone on its multiprocessor by the estimate of its registers
    store.add_trial(RUN, trial(400, NARROW))
    store.add_trial(RUN, trial(450, small))
    store.add_trial(RUN, trial(500, WIDE))
    found = audited(store, {"min_blocks_per_sm": 2})
    assert of_rule(found, "min-reuse").costs == (450 / 400,)
    assert of_rule(found, "min-blocks-per-sm").dropped == ()
    assert of_rule(found, "min-blocks-per-sm").would_drop == 1
    assert of_rule(found, ALL).costs == (500 / 400,)


def test_the_newest_measurement_of_trials_that_compete_counts(store: Store) -> None:
    store.add_trial(RUN, trial(100, NARROW, basis="older"))
    store.add_trial(RUN, trial(400, NARROW))
    store.add_trial(RUN, trial(500, WIDE))
    store.add_final(RUN, final((NARROW, 410), (WIDE, 492)), ("tsm2",), BASIS)
    found = audited(store)
    assert (found.trials, found.measured) == (2, 2)
    (dropped,) = of_rule(found, "min-reuse").dropped
    assert (dropped.winner_us, dropped.kept_us) == (410, 492)


def test_the_estimates_leave_out_what_was_not_loaded(store: Store) -> None:
    store.add_trial(RUN, trial(500, WIDE))
    nothing: dict[str, Any] = {"resources": None, "verdict": None, "measurement": None, "spill_bytes": None}
    store.add_trial(RUN, trial(config=NARROW, outcome=Outcome.COMPILE_FAILED, **nothing))
    found = audited(store)
    assert (found.trials, found.measured, estimate(found, "registers").trials) == (2, 1, 1)
    host = replace(H200, name="Some CPU", compute_capability=HOST)
    store.add_trial(host_run(), trial(500, WIDE, registers=0))
    found = audit(store.current("Some CPU"), host, OWN)
    assert ([one.quantity for one in found.estimates], found.rules) == (["smem_bytes"], ())


def test_other_versions_configurations_are_left_out(store: Store, path: Path) -> None:
    store.add_trial(RUN, trial(500, WIDE))
    store.add_trial(RUN, trial(100, Ism2Config(1, 128, 8, 4, 2)))
    store.add_trial(RUN, trial(50, Tsm2Config("v3", 96, 8, 4)))  # no such number of threads
    plain_sql(path, "UPDATE trial SET family = 'bygone' WHERE family = 'ism2'")
    found = audited(store)
    assert (found.trials, found.left_out, found.measured) == (1, 2, 1)
    plain_sql(path, "UPDATE trial SET family = 'bygone'")
    with pytest.raises(InputError, match="nothing to audit of h200: of 3 trials none is of a configuration that"):
        audited(store)


# The command


def asked(*arguments: str) -> Any:
    result = completed("space", "--audit", *arguments, "--json")
    return json.loads(result.output)


def test_what_cannot_be_audited_is_refused_in_a_sentence(path: Path, tmp_path: Path) -> None:
    (blank := tmp_path / "blank.db").touch()
    database = database_of(path, trial(400, NARROW), trial(500, WIDE), run=RUN)
    assert asked("--db", database, "--family", "tsm2")["trials"] == 2
    plain_sql(Path(database), f"PRAGMA user_version = {schema_versions.version() + 1}")
    unknown = database_of(tmp_path / "unknown.db", trial(), run=host_run())
    for address, complaint in (
        (str(blank), "holds no results yet"),
        (database_of(tmp_path / "empty.db"), "tune first"),
        (database, "newer than"),
        (unknown, "the limits of the device 'Some CPU' are unknown on this machine"),
    ):
        assert complaint in refused("space", "--audit", "--db", address)


@pytest.mark.slow
def test_a_run_on_the_host_is_audited(path: Path) -> None:
    completed(*TUNE, "--db", str(path), "--guidelines", "none")
    found = asked("--db", str(path))
    assert (found["trials"], found["measured"]) == (1, 1)
    assert [(one["quantity"], one["worst"]) for one in found["estimates"]] == [("smem_bytes", 0)]
    assert "the host reports only smem_bytes of compiled kernels" in run("space", "--audit", "--db", str(path)).output
