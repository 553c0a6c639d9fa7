"""Transcripts of commands that print made-up databases.

`python -m tests.printed_commands` writes them anew, and the outline of a report.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import tsm2_tune
from tests.command import run
from tests.databases import C128, C256, EARLY, database_of
from tests.fabricated import (
    BASIS,
    PROBLEM,
    configuration,
    final,
    handmade,
    host_run,
    measurement,
    plain_sql,
    trial,
    tuning_run,
    vendor_measurement,
)  # fmt: skip
from tests.reported import OUTLINE, outline
from tsm2_tune.generator.families.published import Tsm2Config
from tsm2_tune.generator.families.stream_a import StreamADmmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.device import cuda
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import IN_FINALS, Cache, Final, LoadedResources, Outcome, Trial

FOLDER = Path(__file__).parent / "printed"
MMA = StreamADmmaConfig(128, 2, 16, 16, 2, splits=4, row_tiles=1, min_blocks=1)
HOSTILE = "line 128 [/nope]\x1b[31m:smile:\x9b of\nmany\u202e words"
GEMM, LT = vendor_measurement(480), vendor_measurement(470, "cublasLtMatmul #3")
NOTHING: dict[str, Any] = dict.fromkeys(("measurement", "verdict", "resources", "full_verdict"))
NARROW, WIDE = configuration(columns=2), configuration(columns=8)
SHAPES = tuple(Problem(m, 16, 20480, "f32") for m in (10240, 20480, 30720))


def winners() -> None:
    """Winners that lose to cuBLAS, win, have no time of it or a wrong one; a failure; a run on a host."""
    other, row_major = Problem(20480, 8, 20480, "f32"), Problem(20480, 16, 20480, "f64", "ttt")
    gram = Problem(16, 16, 10**6, "f64", "tx")
    with Store.open("winners.db", create=True) as store:
        for one in (
            trial(300, C256, problem=other, basis="older"), trial(500, C128, strategy="model"),
            trial(600, C256),
            trial(400, C128, problem=other), trial(500, MMA, problem=row_major),
            trial(12345.6, MMA, problem=gram, source=handmade(gram), full_verdict=None),
            trial(config=configuration(64), outcome=Outcome.COMPILE_FAILED, detail=HOSTILE, **NOTHING),
        ):  # fmt: skip
            store.add_trial(EARLY, one)
        store.add_trial(host_run(), trial(700, C128, problem=Problem(64, 8, 64, "f64")))
        for timed, vendor in (
            (((C128, 500.0), (C256, 600.0), PROBLEM), (GEMM, LT)),
            (((C128, 400.0), other), (vendor_measurement(480, right=False),)),
            (((MMA, 500.0), row_major), (vendor_measurement(750, "cublasDgemm"),)),
        ):
            *configs, problem = timed
            times = final(*configs, problem=problem, vendor=vendor)
            store.add_final(EARLY, times, (configs[0][0].family,), BASIS)


def timed(median_us: float, cache: Cache, **changes: Any) -> Trial:
    today = BASIS if cache is Cache.CLEAN else f"today, {cache}"
    of_state = replace(measurement(median_us), cache=cache)
    return trial(median_us, C128, basis=today, measurement=of_state, cache=cache, **changes)


def states() -> None:
    """A problem that was searched dirty, with a final beside cuBLAS, and one that was searched clean alone."""
    both = zip((450, 500), (600, 750), IN_FINALS, strict=True)
    measured, vendors = [], []
    for ours, theirs, cache in both:
        measured.append((C128, replace(measurement(ours), cache=cache)))
        vendor = vendor_measurement(theirs)
        vendors.append(replace(vendor, measurement=replace(vendor.measurement, cache=cache)))
    with Store.open("states.db", create=True) as store:
        store.add_trial(EARLY, timed(500, Cache.DIRTY))
        store.add_final(EARLY, Final(PROBLEM, tuple(measured), tuple(vendors)), ("tsm2",), "today, dirty")
        store.add_trial(EARLY, timed(300, Cache.CLEAN, problem=Problem(20480, 8, 20480, "f32")))


def audited() -> None:
    """Two trials of which the faster one breaks a guideline, and two whose registers were estimated wrongly."""
    loaded = LoadedResources(registers=52, local_bytes=0, smem_bytes=128 * 8 * 4 + 16, blocks_per_sm=3)
    database_of(
        "audit.db", trial(400, NARROW, registers=30), trial(500, WIDE, resources=loaded, spill_bytes=8),
        trial(500, Tsm2Config("v3", 1024, 8, 4), registers=72, problem=SHAPES[0]),
        trial(600, Tsm2Config("v3", 1024, 16, 32), registers=64, problem=SHAPES[0]),
        trial(510, Tsm2Config("v3", 1024, 8, 4), registers=72, problem=SHAPES[2]),
    )  # fmt: skip


def sets() -> None:
    """Three shapes, each with its own best kernel; one kernel is nearly as fast for all."""
    a, b, c = (configuration(threads) for threads in (64, 128, 256))
    best = zip((a, b, c), SHAPES, (100.0, 200.0, 300.0), strict=True)
    near = ((b, SHAPES[0], 102.0), (b, SHAPES[2], 308.0))
    tried = [trial(us, config, problem=problem, spread_us=0.1) for config, problem, us in (*best, *near)]
    database_of("sets.db", *tried)


def rates() -> None:
    """Two runs on a GPU, the newer one with other rates."""
    database_of("rates.db", trial(500.0))
    database_of("rates.db", trial(400.0, basis="newer"), run=tuning_run(started_at="2026-02-03T00:00:00+00:00"))
    plain_sql(Path("rates.db"), "UPDATE run SET read_gbytes_per_s = 4500 WHERE id = 2")


CHANGING = {  # in every run, version or kernel
    rf"tsm2-tune {re.escape(tsm2_tune.__version__)}": "tsm2-tune VERSION",
    r"ended \d{4}-\S+,": "ended NOW,",
    r"\b[0-9a-f]{64}\b": "DIGEST",
}


def replayed(transcript: str) -> str:
    """Return the transcript's commands with what they print now of the databases, which are made in this folder.

    Raise AssertionError if they change a file.
    """
    for make in (winners, states, audited, sets, rates):
        make()
    before = {path: path.read_bytes() for path in Path().iterdir()}
    parts = []
    for line in re.findall(r"^\$ tsm2-tune (.*)$", transcript, re.MULTILINE):
        result = run(*shlex.split(line))
        status = f"[status {result.exit_code}]\n" if result.exit_code else ""
        parts.append(f"$ tsm2-tune {line}\n{result.output}{status}")
    assert {path: path.read_bytes() for path in Path().iterdir()} == before
    text = "\n".join(parts)
    for pattern, name in CHANGING.items():
        text = re.sub(pattern, name, text)
    return text


if __name__ == "__main__":
    cuda.cuda_device_count = lambda: 0
    for path in FOLDER.glob("*.txt"):
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            path.write_text(replayed(path.read_text(encoding="utf-8")), encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        OUTLINE.write_text(outline(), encoding="utf-8")
