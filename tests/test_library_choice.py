"""A C library chooses and starts what the Python module of the same winners does."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fabricated import GPU, Winners, exported, imported, vendor_measurement, winners
from tests.library_calls import (
    A100,
    H200,
    NOT_SUPPORTED,
    OTHERS,
    PLAIN,
    PRODUCT,
    SPLIT,
    SUCCESS,
    TYPES,
    Call,
    InProcess,
    choices,
    compared,
    fabricated_library,
    play,
    random_calls,
    tried,
)
from tests.recording_driver import recording
from tsm2_tune.generator.config import Launch
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.runtime.choice.predict import Division
from tsm2_tune.runtime.choice.work import Card
from tsm2_tune.runtime.elements import DTYPES
from tsm2_tune.tuner.export.library import library_bytes
from tsm2_tune.tuner.export.measured_times import NOTHING_KNOWN, Known
from tsm2_tune.tuner.results.records import BestRow
from tsm2_tune.tuner.results.trial import Trial, TuningRun

pytestmark = [
    pytest.mark.host,
    pytest.mark.usefixtures("toolchain", "session_cache"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler"),
]

LAUNCHES = (
    PLAIN,
    SPLIT,
    Launch(threads=128, rows_per_block=64, smem_bytes=0, columns_per_block=8, splits=100),
    Launch(threads=128, rows_per_block=64, smem_bytes=0, splits=65, flat_splits=8),
    Launch(threads=128, rows_per_block=64, smem_bytes=0, columns_per_block=16, splits=264, persistent=True),
    Launch(threads=128, rows_per_block=1, smem_bytes=0, splits=5, persistent=True),
    Launch(threads=128, rows_per_block=64, smem_bytes=0, lone_split=True),
)


@pytest.mark.parametrize("number", range(len(LAUNCHES)))
@pytest.mark.parametrize(("op", "is_fitted"), [("nn", False), ("nn", True), ("tn", False), ("ttt", True)])
def test_a_launch_is_the_python_modules(
    there: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, op: str, is_fitted: bool
) -> None:
    trials = tried(Problem(64, 8, 32, "f32", op), LAUNCHES[number])
    (tmp_path / "module").mkdir()
    found = winners(tmp_path / "module", trials)
    known = several_row_tiles(found) if is_fitted else NOTHING_KNOWN
    library = str(fabricated_library(tmp_path, trials, known=known, found=found))
    module = imported(exported("module", found, known=known), tmp_path)
    driver = recording(module, monkeypatch)
    ops = {"nn": "NN", "tn": "TN", "ttt": "NN"}[op]
    for m, n, k in ((1, 1, 1), (256, 5, 3), (257, 17, 400), (10**5, 33, 7)):
        call = Call("f32", ops, m, n, k, ldc=m + 3, alpha=2, beta=3, a=1 << 40, b=1 << 50, c=1 << 60)
        record = there(play, library, [("fake_memory", 1 << 40), call])
        (launch,) = record.launches
        a, b, out = arrays(call)
        driver.workspaces = LAUNCHES[number].has_workspace
        module.gemm(a, b, out=out, alpha=2, beta=3)
        expected = driver.launches[-1]
        of_module = driver.memory.values()
        assert [int(line.split()[1]) for line in record.log if line.startswith("allocate")] == list(of_module)
        module.workspaces.clear()
        driver.memory.clear()
        assert (launch.grid, launch.block, launch.smem_bytes) == (
            expected["grid"],
            expected["block"],
            expected["smem"],
        )
        assert launch.values(32, "f4")[:11] == expected["values"][:11]


def several_row_tiles(found: Winners) -> Known:
    """A card, and divisions by which a block has as many row tiles as suit the shape."""
    (rows, sources), divisions = found, {}
    for row in rows:
        launch = sources[row.trial_id].launch
        tile = max(launch.rows_per_block // 8, 1)
        divisions[row.trial_id] = Division(
            4, tile, launch.columns_per_block, step=4, deepest=0, odd_lines=1.1, longest=256
        )
    return Known(divisions, {H200.identity.name: Card(132, 4684.7, 4128.3, {"f32": 65000.0})})


def arrays(call: Call) -> list[SimpleNamespace]:
    """The call's op(A), op(B) and C as device arrays."""
    m, n, k = call.m, call.n, call.k
    size = DTYPES[call.dtype].itemsize
    kind = {"bf16": "<V2"}.get(call.dtype, DTYPES[call.dtype].str)
    found = []
    facts = zip(
        "ABC", ((m, k), (k, n), (m, n)), (*call.ops, "N"), call.leading, (call.a, call.b, call.c), strict=True
    )
    for _, shape, operation, ld, at in facts:
        strides = (size, ld * size) if operation == "N" else (ld * size, size)
        interface = {"shape": shape, "typestr": kind, "data": (at, False), "version": 3, "strides": strides}
        dtype = "bfloat16" if call.dtype == "bf16" else kind
        found.append(SimpleNamespace(__cuda_array_interface__=interface, dtype=dtype))
    return found


# The choice


def pack_of_everything(seed: int) -> list[tuple[TuningRun, Trial]]:
    """Winners of every type and op at random shapes, on two GPUs."""
    rng, trials = random.Random(seed), []
    extents = (1, 2, 4, 8, 16, 64, 4096, 20480, 10**6)
    ops = [a + b for a, b in product("nt", repeat=2)] + ["nnt", "tnt", "ntt", "ttt", "tx", "nxt"]
    for dtype, run in product(TYPES, (H200, A100)):
        every = [*ops, "cn", "nc", "cc", "cx", "jtt", "tjt", "jxt", "tc"] if dtype.startswith("c") else ops
        for op in rng.sample(every, 6):
            for _ in range(rng.randint(1, 4)):
                m, n, k = (rng.choice(extents) for _ in "mnk")
                problem = Problem(m, m if "x" in op else n, k, dtype, op)
                launch, us = rng.choice(LAUNCHES), rng.choice((5.0, 6.5, 7.25, 400.0))
                trials.append(tried(problem, launch, run=run, median_us=us))
    return trials


@cache
def everything(seed: int) -> tuple[Winners, Known]:
    """These as winners, and what is known of them, of seed 0 nothing; the same objects for every test."""
    with TemporaryDirectory() as folder:
        rows, sources = winners(Path(folder), *pack_of_everything(seed))
    rows = tuple(with_vendor(row, place) for place, row in enumerate(rows))
    if seed > 1:
        rows += slower_ones(rows, sources)
    return (rows, sources), known_of_everything((rows, sources), seed) if seed else NOTHING_KNOWN


def known_of_everything(found: Winners, seed: int) -> Known:
    """Divisions that fit the winners' launches, and two cards."""
    (rows, sources), rng, divisions = found, random.Random(seed), dict[int, Division]()
    for row in rows:
        launch = sources[row.trial_id].launch
        divisions[row.trial_id] = Division(
            resident=rng.choice((1, 2, 8)),
            block_m=max(launch.rows_per_block // rng.choice((1, 1, 2)), 1),
            block_n=launch.columns_per_block,
            step=rng.choice((0, 1, 16, 64)),
            deepest=rng.choice((0, 0, 32)),
            odd_lines=rng.choice((1.03, 1.3)),
            longest=rng.choice((0, 0, 256)),
            arithmetic_rate=rng.choice((1.0, 0.33)),
            cached_rate=rng.choice((1.2, 0.35)),
            vector_bytes=rng.choice((16, 16, 4)),
            depth=rng.choice((1, 1, 16)),
            width=rng.choice((0, 1, 8)),
            flows=rng.choice((False, True)),
            vectors_of_c=rng.choice((False, True)),
        )
    rates = dict.fromkeys(TYPES, 65000.0) | {"c64": 87000.0, "f16": 617000.0}
    of_a100 = Card(108, 1600.0, 1400.0, {"f32": 19000.0})
    cards = {H200.identity.name: Card(132, 4684.7, 4128.3, rates), A100.identity.name: of_a100}
    elsewhere = {
        row.trial_id: tuple(
            (*(rng.choice((1, 8, 64, 4096, 10**6)) for _ in "mnk"), 64, rng.choice((1, 4)), rng.uniform(5, 500))
            for _ in range(rng.randint(0, 3))
        )
        for row in rows
    }
    vendor = {
        row.trial_id: tuple(
            (*(rng.choice((1, 8, 64, 4096, 10**6)) for _ in "mnk"), rng.uniform(5, 500))
            for _ in range(rng.randint(0, 2))
        )
        for row in rows
    }
    return Known(divisions, cards, elsewhere, vendor)


@pytest.mark.parametrize(
    ("seed", "device"),
    [(0, (GPU, 9, 0)), (1, (GPU, 9, 0)), (2, (GPU, 9, 0)), (3, OTHERS), (1, ("NVIDIA H100", 9, 0))],
)
def test_the_choice_is_the_python_modules(
    there: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, device: tuple[str, int, int]
) -> None:
    found, known = everything(seed)
    library = str(fabricated_library(tmp_path, *pack_of_everything(seed), known=known, found=found))
    module = imported(exported("module", found, known=known), tmp_path)
    recording(module, monkeypatch)
    monkeypatch.setattr(module, "device_of", lambda ordinal: (device[0], "sm_90a"))
    calls = random_calls(600, seed)
    found = there(choices, library, calls, device)
    compared_times = there(compared, library, calls, device)
    swapped = grams = predicted = slower = 0
    for call, (status, text, error), times in zip(calls, found, compared_times, strict=True):
        conjugates = {f"conj_{x}": operation == "C" for x, operation in zip("ab", call.ops, strict=True)}
        try:
            match = module.choice(*arrays(call), **conjugates, fallback="error")
        except (LookupError, ValueError):
            assert (status, text) == (NOT_SUPPORTED, ""), call
            assert error.startswith(f"no {call.dtype} kernel for op "), call
            continue
        assert (status, text) == (SUCCESS, str(match)), call
        if times[0] == SUCCESS:
            expected = match.expected_us or 0.0, match.vendor_us or 0.0
            assert times[1:3] == pytest.approx(expected, rel=1e-12), call
            assert times[3] == match.loses, call
            slower += match.loses
        else:  # there is no cubin for this GPU, or the grid would be too large
            oriented = (call.n, call.m) if match.swapped else (call.m, call.n)
            is_too_large = max(match.launch.grid(*oriented)) >= 2**31
            assert times == (NOT_SUPPORTED, 0.0, 0.0, True), call
            assert is_too_large or match.winner.device != device[0], call
        predicted += match.expected_us is not None and match.distance > 0
        swapped += match.swapped
        grams += match.winner.is_gram
    assert swapped > 10
    assert grams > 0
    assert slower > 10
    assert predicted > 50 or not seed


def slower_ones(rows: Sequence[BestRow], sources: dict[int, KernelSource]) -> tuple[BestRow, ...]:
    """Another kernel for every third of the shapes, as those for shapes between are of one that they did not win."""
    found = []
    for row in rows[::3]:
        source = sources[row.trial_id]
        sources[-row.trial_id] = replace(source, text=f"{source.text}// another")
        other: dict[str, Any] = {"trial_id": -row.trial_id, "source_digest": sources[-row.trial_id].digest}
        other |= dict.fromkeys(("cublas_us", "cublas_right", "cublas_routine"))
        found.append(replace(row, median_us=1.5 * row.median_us, **other))
    return tuple(found)


def with_vendor(row: BestRow, place: int) -> BestRow:
    """Every other one with a vendor's time, of which some are of wrong answers."""
    if place % 2:
        return row
    return replace(row, cublas_us=300.0, cublas_right=int(place % 8 != 0), cublas_routine="cublasSgemm")


def test_the_choice_tells_the_vendors_time(there: InProcess, tmp_path: Path) -> None:
    rows, sources = winners(tmp_path, tried())
    told = vendor_measurement(470.0)
    row = replace(rows[0], cublas_us=told.measurement.median_us, cublas_right=1, cublas_routine=told.routine)
    cubins = {(row.source_digest, bits, "sm_90a"): b"cubin\0" for bits in (32, 64)}
    path = tmp_path / "libtsm2.so"
    path.write_bytes(library_bytes([(row, sources[row.trial_id])], cubins, path.name, NOTHING_KNOWN))
    ((status, text, _),) = there(choices, str(path), [PRODUCT], (GPU, 9, 0))
    assert (status, text) == (
        SUCCESS,
        f"{row.config}: tuned for this shape; with the L2 clean 500.0 us measured, cublasSgemm 470.0 us",
    )
