"""`export --within` as a user calls it: what it measures on this host, carries, prints and refuses."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tests.command import refused, run
from tests.databases import database_of
from tests.fabricated import BASIS, GPU, configuration, final, imported, trial, tuning_run, vendor_measurement
from tests.processes import python
from tsm2_tune.cli import main
from tsm2_tune.generator.families.published import Tsm2Config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.device.target import limits_of
from tsm2_tune.tuner.results.store import Store

A, B, C = (configuration(threads) for threads in (64, 128, 256))
SHAPES = tuple(Problem(m, 16, 20480, "f32") for m in (10240, 20480, 30720))


def stored(path: Path, *timed: tuple[Tsm2Config, Problem, float], device: str = GPU) -> str:
    """A database with these trials, all of them verified in full."""
    return database_of(
        path,
        *(trial(median_us, config, problem=problem, spread_us=0.1) for config, problem, median_us in timed),
        run=tuning_run(device),
    )


@pytest.fixture
def database(path: Path) -> str:
    """Return a database of three shapes, each with its own best kernel; one kernel is nearly as fast for all."""
    best = zip((A, B, C), SHAPES, (100.0, 200.0, 300.0), strict=True)
    near = ((B, SHAPES[0], 102.0), (B, SHAPES[2], 308.0))
    return stored(path, *best, *near)


def exported(database: str, *options: str) -> tuple[list[dict[str, object]], str]:
    """The rows, and what was printed beside them."""
    result = CliRunner().invoke(main, ["export", "--db", database, "--format", "json", "--output", "-", *options])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["best"], result.stderr


# By what is stored


def test_devices_types_and_ops_are_apart(database: str, path: Path) -> None:
    others = (Problem(10240, 16, 20480, "f64"), Problem(10240, 16, 20480, "f32", "nn"))
    stored(path, (C, others[0], 400.0))
    stored(path, (A, others[1], 500.0), device="another")
    rows, said = exported(database, "--within", "3%", "--no-measure")
    of_gpu = [(GPU, "f32", B.text)] * 3 + [(GPU, "f64", C.text)]
    found = [(row["device"], row["dtype"], row["config"]) for row in rows]
    assert found == [*of_gpu, ("another", "f32", A.text)]
    assert [line for line in said.splitlines() if "within" in line] == [
        f"{GPU}, f32 nn: 1 kernel keeps 3 shapes within 3 % of the best time",
        f"{GPU}, f64 nn: 1 kernel keeps 1 shape within 3 % of the best time",
        "another, f32 nn: 1 kernel keeps 1 shape within 3 % of the best time",
    ]


@pytest.mark.usefixtures("no_driver")
def test_where_the_device_is_not_here_that_is_said(database: str) -> None:
    rows, said = exported(database, "--within", "3%")
    assert [row["config"] for row in rows] == [B.text] * 3
    assert said.splitlines()[-1].endswith("counted as too slow (the device is not here)")


def test_the_vendor_is_compared_with_the_chosen_kernel(path: Path) -> None:
    stored(path, (A, SHAPES[0], 100.0), (B, SHAPES[0], 102.0), (B, SHAPES[1], 200.0))
    with Store.open(path, create=False) as store:
        beside = (vendor_measurement(101.0),)
        store.add_final(
            tuning_run(), final((A, 100.5), (B, 102.5), problem=SHAPES[0], vendor=beside), ("tsm2",), BASIS
        )
    first, _ = exported(str(path), "--within", "3%", "--no-measure")[0]
    assert (first["config"], first["median_us"], first["round"]) == (B.text, 102.5, 1)
    assert first["vendor_us"] == 101.0
    assert first["x_cublas"] == pytest.approx(101.0 / 102.5)  # so that a module leaves the shape to it


def test_what_no_kernel_serves_is_named(path: Path) -> None:
    database_of(path, trial(100.0, A, problem=SHAPES[0], full_verdict=None))
    result = run("export", "--db", str(path), "--within", "3%", "--no-measure", "--format", "csv", "--output", "-")
    assert result.exit_code == 2
    assert result.output == (
        f"Error: {path} has no kernel that was verified in full for {SHAPES[0].text} on {GPU} within 3 % of its"
        " best: tune it again on that device, or select other problems with --shapes\n"
    )


# Refusals


def test_a_share_that_is_none(database: str) -> None:
    spelt = "3|0.03|nan%|inf%|-3%|+3%|1e2%|3%%|%|| 3%|1001%|99999%|3  %|٣%|3\n%"
    for share in spelt.split("|"):
        assert "is no percentage: expected at most 1000%, such as 3%" in refused(
            "export", "--db", database, "--within", share, "--format", "csv", "--output", "-"
        )


# On this host

ON_HOST = ("--device", "cpu", "--family", "tsm2", "--max-trials", "2")
SMALL = "64x2x64,300x3x70,40x2x500"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, session_cache: None) -> Path:
    """A database of three shapes with two trials each, by this host."""
    path = tmp_path_factory.mktemp("tuned") / "results.db"
    result = run(*ON_HOST, "--shapes", SMALL, "--no-pairs", "--db", str(path))
    assert result.exit_code == 0, result.output
    return path


@pytest.mark.host
def test_missing_pairs_are_measured_here(tuned: Path, path: Path, tmp_path: Path) -> None:
    path.write_bytes(tuned.read_bytes())
    command = ("export", "--db", str(path), "--within", "900%", "--format", "module", "--output")
    result = run(*command, str(tmp_path / "best_kernels.py"))
    assert result.exit_code == 0, result.output
    assert "1 kernel keeps 3 shapes within 900 %" in result.output
    assert "not served" not in result.output
    with Store.open(path, create=False) as store:
        host = limits_of("cpu").name
        winners = {row.problem: row for row in store.best(device=host)}
        assert len(store.listing()) > 6
    module = imported((tmp_path / "best_kernels.py").read_text(), tmp_path)
    assert len(module.KERNELS) == 1
    for winner in module.WINNERS:
        a, b = (
            np.asfortranarray(np.ones(shape, np.float32)) for shape in ((winner.m, winner.k), (winner.k, winner.n))
        )
        assert module.choice(a, b).distance == 0
        assert np.array_equal(module.gemm(a, b), a @ b)
        best = winners[Problem(winner.m, winner.n, winner.k, "f32")]
        assert winner.median_us <= 10 * best.median_us
    again = run(*command, str(tmp_path / "again.py"))
    assert again.output == result.output.replace("best_kernels.py", "again.py")
    assert (tmp_path / "again.py").read_text() == (tmp_path / "best_kernels.py").read_text()


@pytest.mark.host
def test_ctrl_c_leaves_what_was_measured(tuned: Path, path: Path, tmp_path: Path) -> None:
    path.write_bytes(tuned.read_bytes())
    script = (
        "import os, signal, sys\n"
        "from tests.quick_command import make_quick\n"
        "from tsm2_tune.__main__ import main\n"
        "from tsm2_tune.tuner.results.store import Store\n"
        "make_quick(setattr)\n"
        "add = Store.add_trials\n"
        "def added(*arguments):\n"
        "    numbers = add(*arguments)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    return numbers\n"
        "Store.add_trials = added\n"
        "main()\n"
    )
    output = tmp_path / "best.csv"
    options = ("export", "--db", str(path), "--within", "0%", "--format", "csv", "--output", str(output))
    done = python("-c", script, *options)
    assert done.returncode == 128 + signal.SIGINT, done.stderr
    assert "every trial that ended is in" in done.stdout
    assert done.stderr == ""
    assert not output.exists()
    with Store.open(path, create=False) as store:
        assert len(store.listing()) == 7
