"""NumPy's scalars and special texts are taken for what they say by every public function and record."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sqlite3
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tsm2_tune
from tests.databases import database_of
from tests.fabricated import GPU, PROBLEM, configuration, measurement, trial, tuning_run
from tsm2_tune.errors import InputError
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.tuner.search.options import Options

pytestmark = pytest.mark.usefixtures("no_driver")


class Loud(str):
    """A text that is printed otherwise than it reads."""

    __slots__ = ()

    def __str__(self) -> str:
        return "LOUD"


CHOSEN: dict[str, Any] = {
    "device": GPU, "products": "20480x16x20480,20480x2x20480", "dtype": "f32", "op": "nn", "layout": "column",
    "cache": "clean",
}  # fmt: skip
PRODUCT: dict[str, Any] = {"dtype": "f32", "op": "nn", "layout": "column", "math": "full"}
# Public functions, with an argument for each parameter.
CALLS: dict[str, dict[str, Any]] = {
    "problems": {"products": "2048x16x2048,512x4x512", **PRODUCT},
    "plan_space": {
        "product": "512x4x512", **PRODUCT, "device": "h200", "family": "tsm2", "guidelines": "none,min-reuse=2",
    },
    "tune": {
        "products": "512x4x512", **PRODUCT, "device": "cpu", "cluster": "tcp://nowhere:1", "db": "results.db",
        "budget": 7.5, "max_trials": 3, "compile_limit": 10, "run_limit": 20.0, "cache": "dirty", "family": "tsm2",
        "guidelines": "none,min-reuse=2", "retry": "timed-out", "seed": 5, "full_trials": True, "vendor": False,
        "pairs": False, "strategy": "random", "gain": 0.25, "wait": True, "on_event": None,
    },
    "confirm": {**CHOSEN, "db": "results.db", "device": "0", "wait": True, "on_event": None},
    "best": {**CHOSEN, "db": "results.db"},
    "export": {
        **CHOSEN, "db": "results.db", "format": "csv", "output": "winners.csv", "family": None, "binaries": True,
        "launcher": False, "between": False, "within": 0.5, "measure": False, "wait": False,
        "allow_unverified": False, "on_event": None,
    },
    "report": {
        **CHOSEN, "db": "results.db", "output": "report.html", "compare": "results.db", "title": "", "note": "",
    },
    "import_trials": {"source": "results.db", "db": "results.db", "on_progress": None},
    "pack": {
        "output": "pack.jsonl", "device": "0", "hours": 0.5, "dtype": "f32", "only": "R", "db": "results.db",
        "wait": True, "on_event": None,
    },
    "check_pack": {
        "pack": "results.db", "device": "0", "dtype": "f32", "only": "R", "wait": True, "on_event": None,
    },
}  # fmt: skip
GPU_OF_PACK = SimpleNamespace(
    is_host=False, identity=SimpleNamespace(name="H100"), limits=SimpleNamespace(memory_bytes=1 << 30)
)
KERNELS_OF_PACK = SimpleNamespace(kernels=[SimpleNamespace(winner=SimpleNamespace(device="H100"))])


def disguises(value: Any) -> list[Any]:
    """Other objects that say the same."""
    if isinstance(value, bool):
        return [np.bool_(value)]
    if isinstance(value, int):
        return [kind(value) for kind in (np.int8, np.uint8, np.int32, np.int64)]
    if isinstance(value, float):
        return [np.float32(value), np.float64(value), Fraction(value)]
    return [np.str_(value), Loud(value)]


class Stopped(Exception):
    """Ends a function once all that it was asked for is known."""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """A public function's result as a text, in which NumPy's numbers look otherwise than Python's: of what would run
    kernels, what these would be asked for."""
    monkeypatch.chdir(tmp_path)
    database_of(Path("results.db"), trial(500.0, configuration()))

    def stop(*arguments: Any) -> Any:
        raise Stopped(repr(arguments))

    for function, double in {
        "tuner.runs.dask_cluster.Cluster": stop,
        "api.confirm._target": lambda selection, store: stop(selection),
        "api.pack.targets_of": lambda device: [GPU_OF_PACK],
        "api.pack.time": SimpleNamespace(monotonic=lambda: 0.0),
        "api.pack.pack_problems": lambda *arguments: arguments,
        "api.pack._done": lambda *arguments: arguments,
        "api.pack.batches": stop,
        "api.pack._kernels": lambda *arguments: KERNELS_OF_PACK,
        "api.pack.sample": stop,
        "api.report._bundle": lambda: str,
        "api.report._page": lambda *arguments: stop(arguments[:-1]),
    }.items():
        monkeypatch.setattr(f"tsm2_tune.{function}", double)

    def call(name: str, **changes: Any) -> str:
        try:
            found = repr(getattr(tsm2_tune, name)(**CALLS[name] | changes))
        except Stopped as stopped:
            found = str(stopped)
        return re.sub(" at 0x[0-9a-f]+", "", found)

    return call


def test_every_parameter_is_tried() -> None:
    functions = [name for name in tsm2_tune.__all__ if inspect.isfunction(getattr(tsm2_tune, name))]
    for name in functions:
        assert CALLS[name].keys() == inspect.signature(getattr(tsm2_tune, name)).parameters.keys(), name


@pytest.mark.parametrize("function", CALLS)
def test_a_scalar_of_numpy_is_one_of_python(function: str, asked: Callable[..., str]) -> None:
    expected = asked(function)
    for parameter, value in CALLS[function].items():
        for other in disguises(value) if value is not None else ():
            assert asked(function, **{parameter: other}) == expected, (parameter, type(other))


@pytest.mark.parametrize("device", [0, np.int64(0), np.uint8(0), "0", np.str_("0"), [np.int32(0)]])
def test_a_device_is_an_ordinal_of_any_kind(device: Any) -> None:
    with pytest.raises(tsm2_tune.DeviceError, match="CUDA"):
        tsm2_tune.tune("8x2x8", device=device, db="nowhere.db")


NO_NUMBERS = [np.array(3), np.array([3]), [3], "3", None, True, np.True_, 3.0, np.float64(3.0), 3 + 0j, b"3"]
NO_SECONDS = [np.array(3.0), np.array([3.0]), "3", True, 3 + 0j, 10**400, float("nan"), b"3"]


@pytest.mark.parametrize("value", NO_NUMBERS)
def test_what_is_no_whole_number_is_refused_in_a_sentence(value: Any) -> None:
    with pytest.raises(InputError, match=r"^m = .*: expected a whole number$"):
        Problem(value, 4, 4, "f32")
    if value is not None:  # which is no limit
        with pytest.raises(InputError, match=r"^max_trials = .*: expected a whole number of at least 1$"):
            tsm2_tune.tune("8x2x8", device="cpu", max_trials=value)
    with pytest.raises(InputError, match=r"^seed = .*: expected a whole number of at least 0, at most 2147483647$"):
        tsm2_tune.tune("8x2x8", device="cpu", seed=value)


@pytest.mark.parametrize("value", NO_SECONDS, ids=range(8))
@pytest.mark.parametrize("name", ["budget", "compile_limit", "run_limit"])
def test_what_is_no_number_of_seconds_is_refused_in_a_sentence(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=rf"^{name} = .*: expected seconds, above 0 and at most"):
        tsm2_tune.tune("8x2x8", device="cpu", **{name: value})


def test_a_huge_number_is_told_in_a_sentence() -> None:
    with pytest.raises(InputError, match=r"m = a number of thousands of digits is outside 1 \.\.\. 2147483647"):
        Problem(10**5000, 4, 4, "f32")
    with pytest.raises(InputError, match=r"^seed = .*: expected a whole number of at least 0, at most 2147483647$"):
        tsm2_tune.tune("8x2x8", device="cpu", seed=10**5000)


def test_extents_do_not_overflow() -> None:
    given: list[Any] = [*map(np.int32, (20480, 16, 20480)), np.str_("f32"), Loud("nn")]
    problem = Problem(*given)
    assert problem == Problem(20480, 16, 20480, "f32", "nn")
    assert (problem.flops, repr(problem)) == (13421772800, repr(Problem(20480, 16, 20480, "f32")))


RECORDS = [
    one for name in tsm2_tune.__all__ if dataclasses.is_dataclass(one := getattr(tsm2_tune, name, None))
]  # fmt: skip
OF_NUMPY = {"int": np.int64(4), "float": np.float32(0.5), "str": np.str_("f32"), "bool": np.True_}
OF_PYTHON = {"int": int, "float": float, "str": str, "bool": bool}


@pytest.mark.parametrize("record", [*RECORDS, Guidelines, Options], ids=lambda one: one.__name__)
def test_every_public_record_holds_pythons_own_scalars(record: Any) -> None:
    kinds = {one.name: str(one.type).removesuffix(" | None") for one in dataclasses.fields(record)}
    kinds = {name: kind for name, kind in kinds.items() if kind in OF_NUMPY}
    values = {one.name: OF_NUMPY.get(kinds.get(one.name, "")) for one in dataclasses.fields(record)}
    values |= {
        name: (np.int32(9), np.int32(0)) for name in values if name == "compute_capability" and values[name] is None
    }
    values |= {name: () for name, value in values.items() if value is None}
    if record is Problem:
        values["op"] = np.str_("nn")
    made = record(**values)
    for name, kind in kinds.items():
        assert type(getattr(made, name)) is OF_PYTHON[kind], name
        assert getattr(made, name) == values[name]


def test_what_is_stored_is_a_number(path: Path) -> None:
    problem = Problem(np.int64(PROBLEM.m), np.int32(PROBLEM.n), np.uint16(PROBLEM.k), np.str_("f32"))  # type: ignore[arg-type]
    times = dataclasses.replace(measurement(500.0), median_us=np.float32(500.0))  # type: ignore[arg-type]
    database_of(
        path, trial(problem=problem, measurement=times, spill_bytes=np.int64(0)), run=tuning_run(seed=np.int64(3))
    )
    with sqlite3.connect(path) as file:
        tables = [name for (name,) in file.execute("select name from sqlite_master where type = 'table'")]
        kinds = {
            kind
            for table in tables
            for _, column, *_ in list(file.execute(f"pragma table_info({table})"))
            for (kind,) in file.execute(f"select typeof({column}) from {table}")
        }
        assert file.execute("select typeof(m), typeof(n), typeof(k) from problem").fetchall() == [("integer",) * 3]
    assert "blob" not in kinds
    assert [row.problem for row in tsm2_tune.best(path)] == [PROBLEM]
