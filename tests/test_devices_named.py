"""Devices as they are named: one, several, all; each once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.fabricated import tuning_run
from tsm2_tune.api import devices
from tsm2_tune.api.devices import names_of, targets_of
from tsm2_tune.errors import DeviceError, InputError
from tsm2_tune.tuner.device.target import Target

IDENTITY = tuning_run().identity


def target(spec: str) -> Target:
    nothing: Any = None
    return Target(spec, nothing, replace(IDENTITY, uuid=f"GPU-{spec}"), nothing)


@pytest.fixture(autouse=True)
def found_targets(two_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "find_target", target)


@pytest.mark.parametrize(
    ("named", "found"),
    [
        (None, "0"), (1, "1"), ("1", "1"), ("0,1", "0 1"), (" 1, 0", "1 0"), ("all", "0 1"), ([0, "1"], "0 1"),
        ([target("1"), 0], "1 0"), ("cpu", "cpu"),
    ],
)  # fmt: skip
def test_devices_are_found(named: Any, found: str) -> None:
    assert [one.spec for one in targets_of(named)] == found.split()


@pytest.mark.parametrize("named", ["0,0", "1,01", [0, "0"], "cpu,cpu", [target("0"), target("0")]])
def test_a_device_is_named_once(named: Any) -> None:
    with pytest.raises(InputError, match=r"device .* is named twice: a device has one run at a time"):
        targets_of(named)


@pytest.mark.parametrize("named", ["0,", "", ",", "all,none", "0,all", "0 1", []])
def test_what_is_no_device_is_refused(named: Any) -> None:
    with pytest.raises(InputError, match="device"):
        targets_of(named)


@pytest.mark.usefixtures("no_driver")
def test_all_of_no_gpus_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"no GPU here .*: tsm2-tune predict --device h100 or h200"):
        targets_of("all")


def test_each_has_a_name_of_its_own() -> None:
    pretended = replace(target("cpu"), identity=replace(IDENTITY, uuid="another"))
    assert list(names_of((target("0"), target("1")))) == ["GPU 0", "GPU 1"]
    assert list(names_of((target("cpu"), pretended))) == ["cpu", "cpu (1)"]
