"""Batches: their texts, their results whatever else the batch holds, and their rows in a database."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.command import refused, run, said
from tests.conftest import compiled
from tests.on_host import filled, floats, has_compiler, pointer
from tests.spelling import spelt
from tsm2_tune.errors import InputError
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.probes import edge_problems, long_problems, many_tile_problems
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.emulator.device import HostDevice
from tsm2_tune.tuner.device.interface import LaunchConfig
from tsm2_tune.tuner.search.spaces import spaces

SMALL = spelt(
    "small:threads=64,kilobytes=8,thread=3x3,stages=2,padding=0,direct=0,min_blocks=2,blocks=16,extents=0x0x0"
)
DIRECT = "small:threads=64,kilobytes=12,thread=4x4,stages=2,padding=0,direct=1,min_blocks=2,blocks=16,extents=8x8x8"
POINTS = Problem(3, 3, 3, "f32", batch=2_000_000)


def test_a_batch_is_written_before_its_shape_and_all_its_products_count() -> None:
    assert POINTS.text == "2000000*3x3x3:f32"
    assert Problem.parse("12*8x8x9:f64:tn") == Problem(8, 8, 9, "f64", "tn", 12)
    assert Problem.parse("1*8x8x9:f64") == Problem.parse("8x8x9:f64")
    assert Problem(8, 8, 9, "f64").text == "8x8x9:f64"
    for count in ("0*", "2147483648*", "-1*", "*", "2*3*"):
        with pytest.raises(InputError):
            Problem.parse(f"{count}8x8x8:f32")
    one = replace(POINTS, batch=1)
    assert (POINTS.flops, POINTS.least_bytes) == (2_000_000 * one.flops, 2_000_000 * one.least_bytes)
    assert replace(POINTS, batch=2**31 - 1).index_bits == one.index_bits == 32


def test_a_family_of_batches_is_probed_on_batches() -> None:
    able = {family.name for family in FAMILIES.values() if family.supports(POINTS)}
    assert able == {"small"}
    assert not FAMILIES["small"].supports(replace(POINTS, batch=1))
    assert not FAMILIES["small"].supports(replace(POINTS, k=20480))
    assert {one.batch for one in edge_problems(SMALL, POINTS)} == {1, 3, 8 * 16 + 5}
    long = {one.batch for one in long_problems(SMALL, POINTS, most_products=1e12)}
    assert {2**16, 2**16 + 1, 2_000_003} <= long
    (many,) = many_tile_problems(SMALL, POINTS, most_products=1e12)
    most = FAMILIES["small"].products_per_block(SMALL, many)
    assert many.batch > 2 * 16 * most > 0


@pytest.mark.slow
@pytest.mark.usefixtures("session_cache")
@pytest.mark.parametrize("text", ["3x3x3", "4x4x4", "5x2x7"])
def test_a_product_has_the_same_bits_whatever_the_count_is(device: HostDevice, quick: Toolchain, text: str) -> None:
    """Also as the first product of a batch, and none is written past the count."""
    problem = replace(Problem.parse(f"{text}:f32"), batch=200)
    m, n, k = problem.m, problem.n, problem.k
    random = np.random.default_rng(3)
    a, b = (random.normal(size=(problem.batch, *shape)).astype(np.float32) for shape in ((k, m), (n, k)))
    source = render(problem, SMALL)
    kernel = device.load(compiled(source.text, source.kernel, quick, source.defines).code, source.kernel)
    buffers = filled(device, a), filled(device, b)

    def product(count: int, first: int = 0) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        c = filled(device, np.full((problem.batch, n * m), -7, np.float32))
        of_a, of_b = (pointer(one, 4 * first * size) for one, size in zip(buffers, (m * k, k * n), strict=True))
        extents, one = map(np.int32, (m, n, k)), np.float32(1)
        leading = (of_a, np.int32(m), of_b, np.int32(k), np.float32(0), pointer(c, 4 * first * m * n), np.int32(m))
        strides = map(np.int64, (m * k, k * n, m * n))
        arguments: tuple[np.generic, ...] = (*extents, one, *leading, np.int32(count), *strides)
        launch = source.launch
        kernel(arguments, LaunchConfig(blocks=launch.splits, threads=launch.threads, smem_bytes=launch.smem_bytes))
        device.synchronise()
        found = floats(device, c).reshape(problem.batch, n * m)
        c.free()
        return found

    whole = product(problem.batch)
    exact = np.einsum("pli,pjl->pji", a.astype(np.float64), b.astype(np.float64)).reshape(problem.batch, n * m)
    np.testing.assert_allclose(whole, exact, rtol=1e-4, atol=1e-5)
    for count, first in ((1, 0), (2, 0), (3, 197), (31, 100), (64, 1), (199, 1)):
        found = product(count, first)
        assert np.array_equal(found[first : first + count], whole[first : first + count])
        assert (np.delete(found, range(first, first + count), axis=0) == -7).all()
    for buffer in buffers:
        buffer.free()


@pytest.mark.slow
@pytest.mark.usefixtures("session_cache")
@pytest.mark.parametrize(("ld", "stride"), [(8, 64), (8, 68), (8, 67), (9, 76), (12, 100)])
@pytest.mark.parametrize("padding", [0, 1])
def test_threads_move_vectors_only_where_a_and_c_are_aligned(
    device: HostDevice, quick: Toolchain, padding: int, ld: int, stride: int
) -> None:
    """A vector that is not aligned stops the kernel."""
    problem = Problem(8, 8, 8, "f32", "ttt", 36)  # C begins at a multiple of 16 bytes
    source = render(problem, spelt(DIRECT.replace("padding=0", f"padding={padding}")))
    kernel = device.load(compiled(source.text, source.kernel, quick, source.defines).code, source.kernel)
    a, b = np.random.default_rng(4).integers(-4, 5, (2, problem.batch, 8, 8)).astype(np.float32)
    inside = [i * ld + j for i in range(8) for j in range(8)]
    apart = np.full((problem.batch, stride), np.nan, np.float32)
    apart[:, inside] = a.reshape(-1, 64)
    buffers = filled(device, apart), filled(device, b), filled(device, np.full_like(apart, -7))
    of_a, of_b, of_c = (pointer(one, 0) for one in buffers)
    extent, number, ld_of_both = np.int32(8), np.float32, np.int32(ld)
    leading = (of_a, ld_of_both, of_b, extent, number(0), of_c, ld_of_both, np.int32(problem.batch))
    strides = map(np.int64, (stride, 64, stride))
    arguments: tuple[np.generic, ...] = (extent, extent, extent, number(1), *leading, *strides)
    launch = source.launch
    kernel(arguments, LaunchConfig(blocks=launch.splits, threads=launch.threads, smem_bytes=launch.smem_bytes))
    device.synchronise()
    found = floats(device, buffers[-1]).reshape(problem.batch, stride)
    rows = found[:, inside]
    assert np.array_equal(rows.reshape(-1, 8, 8), a @ b)
    assert (found == -7).sum() == problem.batch * (stride - 64) + (rows == -7).sum()
    for buffer in buffers:
        buffer.free()


@pytest.mark.slow
@pytest.mark.usefixtures("session_cache")
@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")
def test_commands_keep_batches_apart_and_give_them_back(tmp_path: Path) -> None:
    database, again, text = tmp_path / "results.db", tmp_path / "again.db", tmp_path / "trials.jsonl"
    shapes = ("--shapes", "300*4x4x4,4x4x4", "--family", "small,tsm2")
    said("--device", "cpu", *shapes, "--max-trials", "1", "--no-pairs", "--db", str(database))
    assert run("export", "--db", str(database), "-o", str(text)).exit_code == 0
    said("import", str(text), "--db", str(again))
    found, copied = (json.loads(said("best", "--db", str(one), "--json"))["best"] for one in (database, again))
    assert {(one["m"], one["batch"], one["family"]) for one in found} == {(4, 1, "tsm2"), (4, 300, "small")}
    names = ("batch", "config", "median_us", "stale", "verified_in_full")
    assert [[one[name] for name in names] for one in found] == [[one[name] for name in names] for one in copied]
    for shape, own, other in (("300*4x4x4:f32", "small", "tsm2"), ("4x4x4", "tsm2", "small")):
        best = said("best", "--shapes", shape, "--db", str(database))
        assert (own in best, other in best) == (True, False)
    within = ("export", "--within", "5%", "--no-measure", "-o", str(tmp_path / "k.py"), "--db", str(database))
    assert "left out: 1 batch of products, since --within compares kernels of single" in run(*within).stderr
    done = run(*within, "--shapes", "300*4x4x4")
    assert (done.exit_code, "only batches match, such as 300*4x4x4:f32" in done.stderr) == (2, True)


# Limits


def test_a_batch_that_small_leaves_says_which_limit_drops_it() -> None:
    """Of 16 x 16 x 384 in f64 the operands take 96 KiB, and on an A100 two blocks of a bit less do not fit."""
    target: Any = SimpleNamespace(limits=PROFILES["a100"])
    common = ("space", "--device", "a100", "--dtype", "f64", "--shapes")
    fits = run(*common, "1000*16x16x383", "--family", "small")
    assert (fits.exit_code, "0 of" in fits.stdout) == (1, True)
    assert (
        "the last were dropped by min-blocks-fit: min_blocks, 2 or more, must be the blocks that fit" in fits.stdout
    )
    with pytest.raises(
        InputError, match=r"\d+ by min-blocks-fit \(min_blocks, 2 or more, must be the blocks that fit"
    ):
        spaces([Problem(16, 16, 383, "f64", batch=1000)], target, guidelines={}, families=("small",))
    lacking = "a product of 16x16x384 does not fit in 96 KiB of shared memory"
    assert f", not by small ({lacking}): name another" in refused(*common, "1000*16x16x384", "--family", "small")
    assert f"\nsmall computes none: {lacking}\n" in said(*common, "1000*16x16x384", "--explain")
    none = "no kernel family computes 1000000*16x16x384:f64"
    assert f"{none} ({lacking}; other kernels compute at most 65535 products): " in refused(
        *common, "1000000*16x16x384"
    )
    assert "computes none" not in said(*common, "1000*16x16x64", "--explain")
