"""Each rule of a search space drops its counter-example, and every rule has one."""

from dataclasses import replace
from typing import NamedTuple

import pytest

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.families import FAMILIES, family_named
from tsm2_tune.generator.families.gemm import GemmConfig
from tsm2_tune.generator.families.gemv import GemvConfig
from tsm2_tune.generator.families.inner import InnerFma16BitConfig, InnerFmaConfig, InnerFmaRingConfig
from tsm2_tune.generator.families.published import Ism2Config, Tsm2Config
from tsm2_tune.generator.families.resident_b import (
    ResidentBDmmaConfig,
    ResidentBFmaConfig,
    ResidentBFmaHeldConfig,
    ResidentBFmaRingConfig,
)
from tsm2_tune.generator.families.row_lanes import RowLanesRegisterBConfig, RowLanesSharedBConfig
from tsm2_tune.generator.families.small import SmallConfig
from tsm2_tune.generator.families.staged import StagedDmmaConfig, StagedFmaConfig, StagedSymmetricFmaConfig
from tsm2_tune.generator.families.staged_wgmma import StagedWgmmaConfig
from tsm2_tune.generator.families.stream_a import (
    StreamADmmaConfig,
    StreamAFmaConfig,
    StreamAMma16Config,
    StreamAMma16RingConfig,
)
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.generator.space.space import rules_of

H200 = PROFILES["h200"]
R = Problem(20480, 16, 20480, "f32")
R64 = Problem(20480, 16, 20480, "f64")
WIDE = Problem(10**7, 64, 64, "f32")
TALL = Problem(10**7, 16, 16, "f32", "ttt")
ODD = Problem(10**7, 42, 5, "f32", "ttt")
ROWS = Problem(20480, 8, 20480, "f32", "ttt")
VECTOR = Problem(20480, 1, 20480, "f32", "tn")
SQUARE = Problem(8192, 8192, 8192, "f32")
STENCIL = GemmConfig(96, 96, 16, 16, 16, 32, 8, 8, 32, vector=1, read="nc")
COPIES = GemmConfig(128, 128, 16, 16, 16, 32, 8, 16, 16, vector=4, read="nc", load=4, buffers=2)
GRAM = Problem(16, 16, 10**6, "f32", "tn")
WARPGROUPS = StagedWgmmaConfig(256, 256, 64, 64, 4, splits=132)
WIDE_TILE = StagedDmmaConfig(
    256, 256, 128, 128, 16, 3, 1, splits=132, min_blocks=1, strips=4, octets=4, fragment_prefetch=1
)
SYMMETRIC = StagedSymmetricFmaConfig(128, 128, 64, 32, 2, 0, splits=264, min_blocks=1, lines=8, step=1)

BATCH = Problem(8, 8, 8, "f32", batch=500_000)
POINTS = Problem(3, 3, 3, "f32", batch=500_000)
SMALL = SmallConfig(128, 16, 4, 4, 2, 0, 0, min_blocks=4, blocks=528)


class CounterExample(NamedTuple):
    """A configuration that the rule drops."""

    rule: str
    config: KernelConfig
    problem: Problem
    limits: DeviceLimits = H200
    guidelines: Guidelines = Guidelines()


COUNTER_EXAMPLES = (
    CounterExample("many-splits", InnerFmaConfig(128, 8, 8, 4, 4, step=2, stages=2, splits=1, min_blocks=1), GRAM),
    CounterExample("product-in-shared-memory", SMALL, replace(BATCH, k=200)),
    CounterExample("rows-within-m", replace(SMALL, rows=4), POINTS),
    CounterExample("columns-within-n", replace(SMALL, rows=1), POINTS),
    CounterExample("padding-keeps-vectors", replace(SMALL, padding=1), replace(BATCH, m=7, k=7)),
    CounterExample("direct-in-vectors", replace(SMALL, columns=3, direct=1), replace(BATCH, op="ttt")),
    CounterExample("threads-have-tiles", replace(SMALL, threads=256), BATCH),
    CounterExample("full-grid", replace(SMALL, blocks=264), BATCH),
    CounterExample("min-blocks-fit", replace(SMALL, kilobytes=64), BATCH),
    CounterExample("read-path-exists", STENCIL, SQUARE, PROFILES["s2050"]),
    CounterExample("read-path-of-its-own", replace(STENCIL, read="ca"), SQUARE),
    CounterExample("published-for-fermi", replace(STENCIL, vector=2, read="ca"), SQUARE, PROFILES["s2050"]),
    CounterExample("published-for-fermi", replace(STENCIL, load=2, read="ca"), SQUARE, PROFILES["s2050"]),
    CounterExample("published-for-fermi", replace(STENCIL, buffers=2, read="ca"), SQUARE, PROFILES["s2050"]),
    CounterExample("copies-exist", replace(STENCIL, buffers=2), SQUARE, PROFILES["v100"]),
    CounterExample("loads-fit-vectors", replace(STENCIL, vector=2, load=4), SQUARE),
    CounterExample("grids-of-a-warp", replace(STENCIL, m_dim_a=64, n_dim_a=4), SQUARE),
    CounterExample("loads-fit-grids", replace(COPIES, buffers=1), SQUARE),
    CounterExample("loads-fit-grids", replace(COPIES, m_dim_a=64, n_dim_a=4), SQUARE),
    CounterExample("widest-vectors-first", replace(STENCIL, vector=2, buffers=2), SQUARE),
    CounterExample("widest-vectors-first", replace(STENCIL, vector=2, load=2), SQUARE),
    CounterExample("lines-are-loads", COPIES, replace(SQUARE, m=8190)),
    CounterExample("lines-are-loads", replace(COPIES, m_dim_a=16, n_dim_a=16), replace(SQUARE, op="tn")),
    CounterExample("widest-copies", replace(COPIES, load=2), SQUARE),
    CounterExample("vectors-of-16-bytes", replace(STENCIL, vector=4), replace(SQUARE, dtype_name="f64")),
    CounterExample("vectors-fit-threads", replace(STENCIL, vector=4), SQUARE),
    CounterExample("min-line-bytes", STENCIL, SQUARE, guidelines=Guidelines(min_line_bytes=64)),
    CounterExample("one-column", GemvConfig(256, 32, 8, 4, 2, splits=4), replace(VECTOR, n=2)),
    CounterExample("vectors-of-16-bytes", GemvConfig(256, 32, 8, 4, 2, splits=4), replace(VECTOR, dtype_name="f64")),
    CounterExample("rows-are-vectors", GemvConfig(256, 32, 2, 4, 2, splits=4), replace(VECTOR, op="nn")),
    CounterExample("vectors-fit-lines", GemvConfig(256, 32, 8, 4, 2, splits=4), replace(VECTOR, k=20482)),
    CounterExample("rows-within-m", GemvConfig(256, 1, 8, 4, 2, splits=4), replace(VECTOR, m=2047)),
    CounterExample("lanes-within-k", GemvConfig(256, 32, 8, 4, 2, splits=1), replace(VECTOR, k=64)),
    CounterExample("share-worth-a-block", GemvConfig(256, 32, 8, 4, 2, splits=8), replace(VECTOR, k=1020)),
    CounterExample("grid-fills-device", GemvConfig(256, 1, 8, 4, 2, splits=1), VECTOR),
    CounterExample("few-waves", GemvConfig(256, 32, 8, 4, 2, splits=26), VECTOR),
    CounterExample("threads-per-block", Tsm2Config("v3", 1024, 1, 1), R, replace(H200, threads_per_block=512)),
    CounterExample("registers-per-thread", Tsm2Config("v3", 32, 32, 32), Problem(20480, 32, 20480, "f64")),
    CounterExample(
        "shared-memory", Tsm2Config("v2", 1024, 32, 1), Problem(20480, 32, 20480, "f64"), PROFILES["p100"]
    ),
    CounterExample("block-fits", Tsm2Config("v3", 1024, 16, 32), R),
    CounterExample("columns-within-n", Tsm2Config("v3", 128, 24, 4), R),
    CounterExample("prefetch-within-k", Tsm2Config("v3", 128, 8, 16), Problem(10**7, 8, 8, "f32")),
    CounterExample("threads-within-m", Tsm2Config("v3", 128, 8, 4), Problem(64, 8, 64, "f32")),
    CounterExample("vector-holds-an-element", ResidentBFmaConfig(64, 8, 2, 8, 4, 1), replace(R, dtype_name="c128")),
    CounterExample("rows-within-m", ResidentBFmaConfig(64, 16, 1, 8, 4, 1), Problem(255, 8, 64, "f32")),
    CounterExample(
        "rows-within-m", StreamAFmaConfig(128, 1, 16, 8, 4, splits=1, row_tiles=1, min_blocks=1), replace(R, m=511)
    ),
    CounterExample("grid-fills-device", Ism2Config(1, 128, 8, 4, 2), R),
    CounterExample("grid-fills-device", StreamAFmaConfig(128, 1, 16, 8, 4, splits=2, row_tiles=1, min_blocks=1), R),
    CounterExample("grid-fills-device", StreamAFmaConfig(128, 1, 16, 8, 4, splits=1, row_tiles=2, min_blocks=1), R),
    CounterExample(
        "share-worth-a-block",
        StreamAFmaConfig(128, 1, 16, 8, 4, splits=48, row_tiles=1, min_blocks=1),
        replace(R, k=48 * 64 - 1),
    ),
    CounterExample(
        "registers-for-mma", StreamADmmaConfig(256, 1, 8, 16, 2, splits=2, row_tiles=1, min_blocks=6), R64
    ),
    CounterExample(
        "registers-reachable", StreamAFmaConfig(256, 2, 16, 16, 4, splits=12, row_tiles=1, min_blocks=6), R
    ),
    CounterExample(
        "registers-reachable", StreamAFmaConfig(64, 1, 1, 4, 2, splits=12, row_tiles=1, min_blocks=2), replace(R, n=1)
    ),
    CounterExample(
        "has-f64-tensor-cores",
        StreamADmmaConfig(128, 2, 16, 16, 2, splits=4, row_tiles=1, min_blocks=1),
        R64,
        PROFILES["a100"],
    ),
    CounterExample("rows-held", ResidentBFmaHeldConfig(128, 16, 8, 4, 64), WIDE),
    CounterExample("across-within-n", ResidentBFmaHeldConfig(128, 16, 8, 4, 64), Problem(10**7, 32, 8, "f32")),
    CounterExample("small-blocks", ResidentBDmmaConfig(384, 2, 64, 64, 32, 3, 1, splits=132, teams=4), WIDE),
    CounterExample(
        "whole-steps", ResidentBDmmaConfig(256, 2, 64, 8, 8, 2, 2, splits=132), replace(WIDE, k=8, op="ttt")
    ),
    CounterExample("whole-vectors", ResidentBDmmaConfig(256, 1, 64, 64, 64, 2, 2, splits=132), WIDE),
    CounterExample(
        "depth-within-k",
        ResidentBDmmaConfig(256, 2, 64, 64, 64, 2, 2, splits=132),
        replace(WIDE, k=32),
    ),
    CounterExample(
        "rows-for-all",
        ResidentBDmmaConfig(256, 2, 64, 64, 64, 2, 2, splits=132),
        replace(WIDE, m=72 * 256),
    ),
    CounterExample("columns-are-vectors", ResidentBFmaRingConfig(128, 4, 2, 2, 55, splits=528), ODD),
    CounterExample("columns-within-n", ResidentBFmaRingConfig(128, 4, 8, 2, 55, splits=528), replace(ODD, n=3)),
    CounterExample("sums-in-registers", ResidentBFmaRingConfig(128, 4, 16, 2, 55, splits=528), ODD),
    CounterExample("rows-are-odd", ResidentBFmaRingConfig(128, 4, 8, 2, 55, splits=528), replace(ODD, n=64, k=8)),
    CounterExample("all-has-room", ResidentBFmaRingConfig(128, 4, 8, 2, 55, splits=528), replace(ODD, k=63)),
    CounterExample("rows-for-all", ResidentBFmaRingConfig(128, 4, 8, 2, 55, splits=528), replace(ODD, m=128 * 264)),
    CounterExample("whole-waves", ResidentBFmaRingConfig(128, 4, 8, 2, 55, splits=148), ODD),
    CounterExample("one-wave", ResidentBFmaRingConfig(128, 4, 8, 2, 112, splits=396), ODD),
    CounterExample(
        "vectors-fit-rows", RowLanesRegisterBConfig(128, 8, 8, 1, 1, 16, 8, row_tiles=2, min_blocks=4), TALL
    ),
    CounterExample(
        "joined-rows-fit", RowLanesRegisterBConfig(128, 16, 1, 1, 1, 16, 8, 2, 4, rows_per_vector=2), TALL
    ),
    CounterExample(
        "lanes-fit-rows", RowLanesRegisterBConfig(128, 16, 8, 1, 1, 16, 8, row_tiles=2, min_blocks=4), TALL
    ),
    CounterExample(
        "columns-fit-n", RowLanesRegisterBConfig(128, 16, 4, 1, 2, 16, 8, row_tiles=2, min_blocks=3), TALL
    ),
    CounterExample(
        "rows-within-m",
        RowLanesRegisterBConfig(128, 16, 4, 1, 1, 16, 8, row_tiles=1, min_blocks=4),
        replace(TALL, m=255),
    ),
    CounterExample(
        "grid-fills-device",
        RowLanesRegisterBConfig(128, 16, 4, 1, 1, 16, 8, row_tiles=2, min_blocks=4),
        replace(TALL, m=512 * 132 - 1),
    ),
    CounterExample(
        "columns-within-n", RowLanesSharedBConfig(256, 16, 32, 4, 16, 1, 2, 8, strips=156, min_blocks=2), ROWS
    ),
    CounterExample(
        "share-worth-a-block",
        RowLanesSharedBConfig(256, 16, 32, 4, 8, 1, 2, 8, strips=160, min_blocks=2),
        replace(ROWS, k=255 * 8),
    ),
    CounterExample(
        "strips-are-vectors", RowLanesSharedBConfig(256, 16, 256, 2, 1, 1, 2, 8, strips=312, min_blocks=2), ROWS
    ),
    CounterExample("share-stays", RowLanesSharedBConfig(256, 16, 32, 4, 8, 1, 2, 4, strips=80, min_blocks=2), ROWS),
    CounterExample("few-waves", RowLanesSharedBConfig(256, 16, 32, 4, 8, 1, 2, 8, strips=10, min_blocks=2), ROWS),
    CounterExample(
        "registers-in-bound",
        RowLanesSharedBConfig(256, 16, 32, 4, 16, 2, 2, 16, strips=320, min_blocks=2),
        replace(ROWS, n=16),
    ),
    CounterExample(
        "has-half-tensor-cores",
        StreamAMma16Config(128, 8, 16, 32, 2, splits=12, row_tiles=1, min_blocks=1),
        replace(R, dtype_name="bf16"),
        PROFILES["v100"],
    ),
    CounterExample(
        "ring-for-many-columns",
        StreamAMma16RingConfig(128, 8, 32, 128, 2, splits=12, row_tiles=1, min_blocks=1),
        replace(R, n=8, dtype_name="bf16"),
    ),
    CounterExample(
        "group-within-k",
        StreamAMma16RingConfig(128, 8, 32, 128, 2, splits=1, row_tiles=4, min_blocks=2),
        Problem(10**7, 32, 63, "bf16"),
    ),
    CounterExample(
        "runs-are-pieces",
        StreamAMma16RingConfig(128, 8, 32, 32, 2, splits=12, row_tiles=1, min_blocks=1),
        Problem(20480, 32, 20480, "f16", "tn"),
    ),
    CounterExample("tile-rows-within-m", InnerFmaConfig(128, 32, 16, 8, 8, 4, 1, splits=264, min_blocks=1), GRAM),
    CounterExample("tile-columns-within-n", InnerFmaConfig(128, 16, 32, 8, 8, 4, 1, splits=264, min_blocks=1), GRAM),
    CounterExample("tile-covers-result", InnerFmaConfig(128, 8, 16, 8, 8, 4, 1, splits=264, min_blocks=1), GRAM),
    CounterExample(
        "chunks-for-all",
        InnerFmaConfig(128, 16, 16, 8, 8, 4, 1, splits=264, min_blocks=1),
        replace(GRAM, k=184 * 128),
    ),
    CounterExample(
        "chunks-for-all",
        StagedFmaConfig(128, 32, 16, 16, 32, 4, 2, splits=264, min_blocks=1, rows=8, columns=8, step=4),
        replace(GRAM, k=264 * 4 * 32 - 1),
    ),
    CounterExample("wide-tiles-for-wide-results", WIDE_TILE, replace(R64, n=64)),
    CounterExample("blocks-for-all", replace(WIDE_TILE, splits=64), replace(SQUARE, dtype_name="f64")),
    CounterExample("has-warpgroup-products", WARPGROUPS, Problem(20480, 64, 20480, "bf16"), PROFILES["a100"]),
    CounterExample("chunk-within-k", WARPGROUPS, Problem(10**7, 64, 32, "bf16")),
    CounterExample("chunks-for-all", WARPGROUPS, Problem(256, 64, 131 * 64, "bf16")),
    CounterExample("tile-within-m", SYMMETRIC, replace(GRAM, m=32, n=32, op="tx")),
    CounterExample("tile-covers-result", replace(SYMMETRIC, tile=16), replace(GRAM, m=17, n=17, op="tx")),
    CounterExample(
        "reads-fit-vectors",
        StagedFmaConfig(128, 128, 16, 16, 128, 4, 2, splits=264, min_blocks=1, rows=8, columns=8, step=4),
        replace(GRAM, dtype_name="f64"),
    ),
    CounterExample(
        "wide-loads",
        InnerFma16BitConfig(128, 1, 1, 2, 2, splits=264, min_blocks=1),
        replace(GRAM, m=1, n=1, dtype_name="bf16", op="ntt"),
    ),
    CounterExample("reads-differ", InnerFmaRingConfig(256, 16, 16, 2, 2, 1, 16, 3, splits=264), GRAM),
    CounterExample("whole-waves", InnerFmaConfig(128, 16, 16, 8, 8, 4, 1, splits=148, min_blocks=1), GRAM),
    CounterExample("one-wave", InnerFmaConfig(256, 16, 16, 8, 8, 4, 2, splits=528, min_blocks=1), GRAM),
    CounterExample(
        "one-wave",  # the registers that a chunk is on its way in count
        StagedFmaConfig(128, 128, 16, 16, 128, 2, 0, splits=396, min_blocks=1, rows=8, columns=8, step=4),
        GRAM,
    ),
    CounterExample(
        "min-threads-per-sm", Tsm2Config("v3", 128, 16, 4), R, guidelines=Guidelines(min_threads_per_sm=2048)
    ),
    CounterExample("min-blocks-per-sm", Tsm2Config("v3", 1024, 4, 4), R, guidelines=Guidelines(min_blocks_per_sm=4)),
    CounterExample("min-reuse", Tsm2Config("v3", 128, 2, 4), R),
)


def test_every_rule_has_a_counter_example() -> None:
    """Rules of several families may share a name: those that differ differ in their reason."""
    rules = {(rule.name, rule.because) for family in FAMILIES.values() for rule in rules_of(family)}
    shown = {
        (rule.name, rule.because)
        for example in COUNTER_EXAMPLES
        for rule in rules_of(family_named(example.config.family))
        if rule.name == example.rule
    }
    assert shown == rules


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=lambda example: f"{example.rule} of {example.config.text}")
def test_a_rule_drops_its_counter_example(example: CounterExample) -> None:
    family = family_named(example.config.family)
    candidate = Candidate(family, example.config, example.problem, example.limits, example.guidelines)
    assert example.rule in [rule.name for rule in rules_of(family) if not rule.keeps(candidate)]
