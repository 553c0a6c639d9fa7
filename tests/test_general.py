"""The staged kernels on the host where C is large both ways: every case of BLAS, and the walk over tiles in bands."""

from __future__ import annotations

import math

import pytest

from tests.conftest import TryKernel
from tests.planting import Bug, assert_rejected
from tests.staged_kernels import SPLIT_DMMA
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.families.staged import StagedDmmaConfig
from tsm2_tune.generator.problem import FMA_DTYPES, Problem
from tsm2_tune.generator.space.seeds import first_choices
from tsm2_tune.tuner.packs.candidate_times import candidate_times_us
from tsm2_tune.tuner.results.trial import Outcome

pytestmark = pytest.mark.host

EACH = [(dtype, "nn") for dtype in FMA_DTYPES]
OTHERS = [("f64", "tnt"), ("f64", "ntt"), ("f32", "ttt"), ("c64", "jxt")]


def shape_of(dtype: str, op: str = "nn") -> tuple[int, int, int]:
    """Two bands or three, the last of them one row of tiles high; columns of tiles; part-filled at every end."""
    config = SPLIT_DMMA[dtype]
    down, across = (7, 2) if dtype == "f64" else (5, 4)
    m, n = down * config.block_m - 3, across * config.block_n - 5
    return m, m if "x" in op else n, 2 * config.block_k + 1


@pytest.mark.parametrize(("dtype", "op"), EACH + OTHERS, ids=lambda one: one)
def test_products_of_many_tiles_are_right(try_kernel: TryKernel, dtype: str, op: str) -> None:
    result = try_kernel(SPLIT_DMMA[dtype], Problem(*shape_of(dtype, op), dtype, op), str)
    assert result.outcome is Outcome.OK, result.detail


@pytest.mark.parametrize("dtype", FMA_DTYPES)
def test_first_choices_are_probed_in_several_bands(dtype: str) -> None:
    problem, family = Problem(4096, 4096, 4096, dtype), family_named(SPLIT_DMMA[dtype].family)
    found = first_choices([family], problem, PROFILES["h200"], candidate_times_us)
    assert len(found) > 2
    for config in found:
        down, across = int(config.tunables["block_m"]), int(config.tunables["block_n"])
        band_rows = max(round(math.sqrt(int(config.tunables["splits"]) * across / down)), 1) * down
        assert any(m > band_rows and n > across for m, n, _ in family.probe_shapes(config, problem)), config.text


@pytest.mark.parametrize("dtype", ["f32", "f64", "c128"])
def test_of_few_tiles_each_block_has_one_first(dtype: str) -> None:
    """The first choice has one block or two for each multiprocessor, so that no block waits or adds partial sums."""
    problem, family = Problem(512, 512, 512, dtype), family_named(SPLIT_DMMA[dtype].family)
    first = first_choices([family], problem, PROFILES["h200"], candidate_times_us)[0]
    tiles = family.launch(first, problem).tiles(512, 512)
    assert 0.9 * first.tunables["splits"] < tiles <= first.tunables["splits"]


def bug(name: str, original: str, planted: str, *, op: str = "nn", dtype: str = "c128") -> Bug:
    return Bug(name, SPLIT_DMMA[dtype], original, planted, dtype=dtype, op=op, shape=shape_of(dtype))


BUGS = (
    bug("every band the first", "above = band * tiles_down_band", "above = 0 * band"),
    bug("a band before its turn", "band = tile / tiles_of_band", "band = (tile + 1) / tiles_of_band"),
    bug(
        "a band a tile short", "= tiles_across * work.tiles_down_band;", "= tiles_across * work.tiles_down_band - 1;"
    ),
    bug(
        "the last band as high as the others", "below < tiles_down_band ? below : tiles_down_band", "tiles_down_band"
    ),
    bug("the edges of every tile those of the first", "Origin{corner, next", "Origin{Corner{0, 0}, next"),
)


# Only the probes show bugs in this one, which has as many blocks as a host.
PROBED = StagedDmmaConfig(
    256, 256, 64, 64, 32, 4, 1, splits=16, min_blocks=1, strips=2, octets=2, fragment_prefetch=1
)
WIDE = StagedDmmaConfig(128, 128, 128, 64, 16, 3, 1, splits=16, min_blocks=1, strips=4, octets=4, fragment_prefetch=1)
PROBED_BUGS = (
    Bug("stretches that leave chunks over", PROBED,
        "Index((in_stretches + work.tail_blocks - 1) / work.tail_blocks)",
        "Index(in_stretches / work.tail_blocks)", dtype="f64"),
    Bug("the last band a tile short where it is whole", WIDE, "below < tiles_down_band ? below : tiles_down_band",
        "below <= tiles_down_band ? below : tiles_down_band - 1", dtype="f64"),
)  # fmt: skip


@pytest.mark.parametrize("bug", PROBED_BUGS, ids=lambda bug: bug.name)
def test_the_probes_find_a_wrong_walk(try_kernel: TryKernel, bug: Bug) -> None:
    assert_rejected(try_kernel, bug, (1, 1, 1), probes=True)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_wrong_walk_is_found(try_kernel: TryKernel, bug: Bug) -> None:
    assert_rejected(try_kernel, bug, (1, 1, 1))
