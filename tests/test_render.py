"""The rendered CUDA: equal input, equal bytes; golden sources; every text compiles with nvcc where it is there."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tsm2_tune.errors import ToolMissing
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families import FAMILIES, family_named
from tsm2_tune.generator.families.gemm import GemmConfig
from tsm2_tune.generator.families.gemv import GemvConfig
from tsm2_tune.generator.families.gram import GramConfig
from tsm2_tune.generator.families.gram_mma import GramMmaConfig
from tsm2_tune.generator.families.ism2 import Ism2Config
from tsm2_tune.generator.families.ladder import STEPS
from tsm2_tune.generator.families.minplus import MinplusConfig
from tsm2_tune.generator.families.staged import StagedConfig
from tsm2_tune.generator.families.staged_half import StagedHalfConfig
from tsm2_tune.generator.families.staged_mma import StagedMmaConfig
from tsm2_tune.generator.families.staged_smma import StagedSmmaConfig
from tsm2_tune.generator.families.staged_zmma import StagedZmmaConfig
from tsm2_tune.generator.families.tsm2 import Tsm2Config
from tsm2_tune.generator.families.tsmm import TsmmConfig
from tsm2_tune.generator.families.tsmm_held import TsmmHeldConfig
from tsm2_tune.generator.families.tsmm_mma import TsmmMmaConfig
from tsm2_tune.generator.families.tsmm_ring import TsmmRingConfig
from tsm2_tune.generator.families.tsmm_rows import TsmmRowsConfig
from tsm2_tune.generator.families.tsmr import TsmrConfig
from tsm2_tune.generator.families.tsmr_half import TsmrHalfConfig
from tsm2_tune.generator.families.tsmr_half_ring import TsmrHalfRingConfig
from tsm2_tune.generator.families.tsmr_mma import TsmrMmaConfig
from tsm2_tune.generator.families.tsmr_rows import TsmrRowsConfig
from tsm2_tune.generator.families.tsmr_tf32 import TsmrTf32Config
from tsm2_tune.generator.families.tsmr_tf32_ring import TsmrTf32RingConfig
from tsm2_tune.generator.families.tsmr_zmma import TsmrZmmaConfig
from tsm2_tune.generator.families.tsmt import TsmtConfig
from tsm2_tune.generator.families.tsmt_few import TsmtFewConfig
from tsm2_tune.generator.families.tsmt_half import TsmtHalfConfig
from tsm2_tune.generator.families.tsmt_mma import TsmtMmaConfig
from tsm2_tune.generator.families.tsmt_ring import TsmtRingConfig
from tsm2_tune.generator.families.tsmt_tf32 import TsmtTf32Config
from tsm2_tune.generator.families.tsmt_zmma import TsmtZmmaConfig
from tsm2_tune.generator.problem import DTYPES, Problem
from tsm2_tune.generator.render import KernelSource, render, support_source
from tsm2_tune.tuner.compiler import Toolchain, compile_text
from tsm2_tune.tuner.cuda import cuda_toolchain
from tsm2_tune.tuner.trial import Binary, CompileFailure

GOLDEN = Path(__file__).parent / "golden"

F32 = Problem(4096, 8, 4096, "f32")
F64 = Problem(4096, 8, 4096, "f64")
BF16 = Problem(4096, 16, 4096, "bf16")
F16 = replace(BF16, dtype_name="f16")
GRAM = Problem(16, 16, 10**6, "f32", "tn")
SQUARE = Problem(4096, 4096, 4096, "f32")
TALL = Problem(10**7, 64, 64, "f32")
OPS = ("nn", "ntt", "tn", "ttt")
CONJUGATING = ("cn", "jtt", "nc")
OF_ITSELF = ("tx", "nxt")  # a matrix times itself, which is as high as it is wide

# The configurations whose sources are golden, each with the problem that it is rendered for.
SOURCES: tuple[tuple[KernelConfig, Problem], ...] = (
    (Tsm2Config("v0", 128, 1, 1), F32),
    (Tsm2Config("v1", 128, 8, 1), F32),
    (Tsm2Config("v2", 128, 8, 4), F32),
    (Tsm2Config("v3", 128, 16, 4), F32),
    (Ism2Config(1, 128, 8, 8, 4), F32),
    (Ism2Config(2, 128, 8, 8, 4), F32),
    (TsmmConfig(128, 16, 1, 8, 4, 2), F32),
    (TsmrConfig(128, 1, 8, 8, 4, splits=12, row_tiles=1, min_blocks=1), F32),
    (TsmrConfig(128, 2, 8, 8, 2, splits=1, row_tiles=2, min_blocks=1), replace(F32, op="ntt")),
    (TsmrMmaConfig(128, 2, 8, 16, 2, splits=4, row_tiles=1, min_blocks=6), F64),
    (TsmrMmaConfig(128, 1, 8, 32, 4, splits=1, row_tiles=4, min_blocks=1), replace(F64, op="ttt")),
    (TsmrZmmaConfig(128, 2, 16, 16, 2, splits=4, row_tiles=1, min_blocks=3), replace(F64, dtype_name="c128")),
    (TsmrConfig(128, 1, 8, 8, 4, splits=12, row_tiles=1, min_blocks=1, evict_first=0), F32),
    (TsmrMmaConfig(128, 2, 8, 16, 2, splits=4, row_tiles=1, min_blocks=6, evict_first=0), F64),
    (GemmConfig(96, 96, 16, 16, 16, 32, 8, 8, 32, vector=1, read="ca"), SQUARE),
    (GemmConfig(128, 128, 16, 16, 16, 16, 16, 32, 8, vector=4, read="nc"), replace(SQUARE, op="ttt")),
    (GemmConfig(64, 64, 8, 16, 16, 32, 8, 32, 8, vector=2, read="nc"), replace(SQUARE, dtype_name="c64", op="nc")),
    (GemmConfig(128, 128, 16, 16, 16, 4, 64, 4, 64, vector=4, read="nc", load=4), replace(SQUARE, op="tn")),
    (GemmConfig(128, 128, 16, 16, 16, 32, 8, 16, 16, vector=4, read="nc", load=4, buffers=2), SQUARE),
    (
        MinplusConfig(128, 64, 16, 16, 8, 32, 4, 16, 8, vector=4, read="nc", load=4, buffers=2),
        replace(SQUARE, dtype_name="minplus_f32"),
    ),
    (
        MinplusConfig(128, 64, 16, 16, 8, 32, 4, 16, 8, vector=4, read="nc"),
        replace(SQUARE, dtype_name="minplus_f32"),
    ),
    (
        MinplusConfig(64, 64, 16, 16, 8, 16, 8, 32, 4, vector=2, read="nc"),
        replace(SQUARE, dtype_name="minplus_f64", op="ttt"),
    ),
    *((step.published, replace(SQUARE, op="ttt")) for step in STEPS.values()),
    (GemvConfig(128, 1, 4, 4, 8, splits=13), replace(F32, n=1)),
    (GemvConfig(256, 256, 4, 1, 2, splits=1), replace(F32, n=1, op="tn")),
    (GemvConfig(256, 32, 16, 1, 1, splits=264), replace(BF16, n=1, op="ttt")),
    (TsmmMmaConfig(256, 2, 64, 64, 32, 4, 1, splits=132), TALL),
    (TsmmMmaConfig(320, 1, 64, 64, 32, 3, 1, splits=132, teams=2), replace(TALL, dtype_name="f64", op="ttt")),
    (TsmmHeldConfig(128, 16, 8, 4, 64), TALL),
    (
        TsmmMmaConfig(384, 2, 32, 32, 32, 3, 2, splits=132),
        replace(TALL, dtype_name="c64", op="ctt"),
    ),
    (TsmmMmaConfig(256, 2, 64, 64, 16, 3, 2, splits=132), replace(TALL, dtype_name="c128")),
    (TsmmRingConfig(128, 4, 8, 2, 55, splits=528), replace(TALL, n=42, k=5, op="ttt")),
    (TsmmRingConfig(256, 2, 8, 3, 112, splits=264), replace(TALL, n=16, k=36, dtype_name="c64", op="ctt")),
    (TsmmRowsConfig(128, 16, 4, 1, 1, 16, 8, row_tiles=2, min_blocks=4), replace(F32, op="ttt")),
    (TsmmRowsConfig(128, 16, 4, 2, 2, 8, 8, row_tiles=4, min_blocks=3), replace(F64, op="tn")),
    (TsmmRowsConfig(128, 16, 1, 2, 16, 4, 8, row_tiles=2, min_blocks=4), replace(TALL, op="ttt")),
    (
        TsmmRowsConfig(128, 16, 1, 1, 1, 2, 16, row_tiles=8, min_blocks=8, joined=4),
        replace(BF16, op="ttt"),
    ),
    (TsmrRowsConfig(256, 16, 32, 4, 8, 1, 2, splits=8, strips=160, min_blocks=2), replace(F32, op="ttt")),
    (TsmrRowsConfig(192, 16, 8, 2, 16, 2, 2, splits=1, strips=40, min_blocks=2), replace(F64, op="tn")),
    (
        TsmrRowsConfig(256, 16, 256, 4, 2, 2, 2, splits=5, strips=25, min_blocks=2),
        replace(F32, dtype_name="c64", op="ttt"),
    ),
    (TsmrRowsConfig(256, 16, 256, 4, 1, 1, 2, splits=5, strips=100, min_blocks=2), replace(BF16, n=1, op="ttt")),
    (TsmrHalfConfig(128, 8, 16, 32, 2, splits=6, row_tiles=1, min_blocks=4), BF16),
    (
        TsmrHalfConfig(128, 4, 64, 64, 2, splits=1, row_tiles=8, min_blocks=2),
        replace(BF16, dtype_name="f16", op="ttt"),
    ),
    (TsmrHalfRingConfig(256, 8, 64, 128, 4, splits=3, row_tiles=1, min_blocks=1), BF16),
    (
        TsmrHalfRingConfig(128, 8, 64, 128, 2, splits=1, row_tiles=4, min_blocks=1),
        replace(BF16, dtype_name="f16", op="ttt"),
    ),
    (StagedHalfConfig(640, 320, 64, 64, 4, splits=132), replace(BF16, n=64)),
    (StagedHalfConfig(128, 64, 32, 32, 4, splits=396), Problem(10**7, 32, 32, "f16", "ttt")),
    (TsmrTf32RingConfig(256, 8, 64, 64, 4, splits=3, row_tiles=1, min_blocks=1), replace(F32, dtype_name="tf32")),
    (TsmrTf32Config(128, 8, 32, 32, 2, splits=6, row_tiles=1, min_blocks=3), replace(F32, dtype_name="3xtf32")),
    (TsmtConfig(128, 16, 16, 8, 8, 4, 1, splits=264, min_blocks=1), GRAM),
    (TsmtMmaConfig(128, 16, 16, 1, 2, 8, 4, splits=264, min_blocks=1), replace(GRAM, dtype_name="f64")),
    (TsmtMmaConfig(256, 8, 8, 1, 1, 32, 1, splits=264, min_blocks=1), replace(GRAM, dtype_name="f64", op="ntt")),
    (TsmtRingConfig(256, 2, 64, 2, 8, 0, 16, 3, splits=264), replace(GRAM, op="ntt")),
    (TsmtRingConfig(256, 48, 24, 6, 4, 1, 32, 2, splits=1), replace(GRAM, dtype_name="f64")),
    (TsmtRingConfig(256, 12, 3, 4, 3, 1, 8, 4, splits=132), replace(GRAM, dtype_name="c64", op="jtt")),
    (TsmtFewConfig(256, 4, 4, 8, 1, splits=264, min_blocks=1), replace(GRAM, dtype_name="bf16")),
    (TsmtFewConfig(128, 8, 8, 4, 2, splits=396, min_blocks=1), replace(GRAM, dtype_name="f16", op="ntt")),
    (TsmtHalfConfig(256, 16, 16, 1, 2, 256, 2, splits=264), replace(GRAM, dtype_name="bf16")),
    (TsmtHalfConfig(128, 64, 64, 2, 4, 64, 3, splits=1), replace(GRAM, dtype_name="f16", op="ntt")),
    (TsmtTf32Config(128, 64, 64, 4, 8, 32, 2, splits=264), replace(GRAM, dtype_name="3xtf32", op="ntt")),
    (
        StagedZmmaConfig(128, 128, 32, 32, 32, 3, 1, splits=264, min_blocks=1, strips=2, octets=2, ahead=0),
        replace(GRAM, dtype_name="c128", op="cn"),
    ),
    (
        StagedZmmaConfig(256, 256, 64, 64, 16, 4, 1, splits=132, min_blocks=1, strips=4, octets=2, ahead=1),
        replace(F64, n=64, dtype_name="c64"),
    ),
    (TsmtZmmaConfig(128, 16, 16, 2, 2, 8, 2, splits=264, min_blocks=1), replace(GRAM, dtype_name="c128", op="cn")),
    (TsmtConfig(128, 8, 8, 8, 4, 2, 1, splits=16, min_blocks=1), replace(GRAM, dtype_name="c64", op="jtt")),
    (
        TsmtConfig(128, 8, 8, 8, 4, 2, 1, splits=16, min_blocks=1, evict_first=0),
        replace(GRAM, dtype_name="c64", op="jtt"),
    ),
    (StagedConfig(128, 128, 16, 16, 128, 2, 0, splits=396, min_blocks=1, rows=8, columns=8, step=2), GRAM),
    (
        StagedConfig(128, 32, 16, 16, 16, 3, 1, splits=264, min_blocks=1, rows=8, columns=8, step=1),
        replace(GRAM, op="ntt"),
    ),
    (
        StagedMmaConfig(128, 128, 16, 16, 32, 3, 2, splits=264, min_blocks=1, strips=1, octets=2, ahead=1),
        replace(GRAM, dtype_name="f64"),
    ),
    (
        StagedMmaConfig(256, 256, 256, 64, 16, 4, 1, splits=132, min_blocks=1, strips=4, octets=4, ahead=1),
        Problem(20480, 64, 20480, "f64", "ttt"),
    ),
    (
        StagedMmaConfig(256, 256, 256, 48, 16, 4, 1, splits=132, min_blocks=1, strips=4, octets=3, ahead=1),
        Problem(20480, 48, 20480, "f64"),
    ),
    (
        StagedMmaConfig(256, 256, 128, 128, 32, 2, 1, splits=132, min_blocks=1, strips=4, octets=4, ahead=1),
        Problem(4096, 4096, 4096, "f64", "tn"),
    ),
    (
        StagedSmmaConfig(128, 128, 128, 64, 32, 3, 1, splits=264, min_blocks=2, strips=4, octets=4, ahead=0),
        replace(F32, n=64),
    ),
    (
        StagedSmmaConfig(128, 128, 64, 32, 32, 2, 1, splits=528, min_blocks=4, strips=2, octets=2, ahead=0),
        replace(F32, n=32, op="ttt"),
    ),
    (StagedSmmaConfig(128, 128, 64, 64, 32, 3, 1, splits=264, min_blocks=2, strips=4, octets=4, ahead=0), GRAM),
    (TsmtConfig(256, 8, 8, 8, 8, 1, 2, splits=264, min_blocks=1), replace(GRAM, op="nxt")),
    (TsmtConfig(128, 8, 8, 8, 8, 2, 1, splits=264, min_blocks=1), replace(GRAM, dtype_name="c64", op="cx")),
    (GramConfig(128, 128, 64, 32, 2, 0, splits=396, min_blocks=1, lines=8, step=1), replace(GRAM, op="nxt")),
    (GramConfig(128, 128, 32, 64, 3, 1, splits=264, min_blocks=1, lines=8, step=4), replace(GRAM, op="tx")),
    (
        GramMmaConfig(128, 128, 64, 32, 2, 0, splits=264, min_blocks=1, warps=2),
        replace(GRAM, dtype_name="f64", op="nxt"),
    ),
    (
        GramMmaConfig(128, 128, 32, 64, 3, 1, splits=264, min_blocks=1, warps=1),
        replace(GRAM, dtype_name="f64", op="tx"),
    ),
)


def name_of(config: KernelConfig, problem: Problem) -> str:
    return config.text + (f"-{problem.op}" if problem.op != "nn" else "")


def golden_sources() -> list[KernelSource]:
    return [render(problem, config) for config, problem in SOURCES]


def every_source() -> list[KernelSource]:
    """The configurations in every dtype and storage order that their families know."""
    return [
        render(one, config)
        for config, problem in SOURCES
        for dtype in DTYPES
        for op in (
            *OPS,
            *(CONJUGATING if DTYPES[dtype].is_complex else ()),
            *(OF_ITSELF if problem.m == problem.n else ()),
        )
        if family_named(config.family).supports(one := replace(problem, dtype_name=dtype, op=op))
    ]


@pytest.mark.parametrize(("config", "problem"), SOURCES, ids=[name_of(*source) for source in SOURCES])
def test_the_source_is_the_golden_one(config: KernelConfig, problem: Problem, request: pytest.FixtureRequest) -> None:
    text = render(problem, config).text
    path = GOLDEN / f"{name_of(config, problem)}.cu"
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), "the source changed: if that is meant, run pytest --update-golden"


def test_every_family_has_a_golden_source() -> None:
    assert {config.family for config, _ in SOURCES} == set(FAMILIES)


@pytest.mark.parametrize(("config", "problem"), SOURCES, ids=[name_of(*source) for source in SOURCES])
def test_one_text_serves_every_shape_of_a_dtype_and_op(config: KernelConfig, problem: Problem) -> None:
    if problem.is_gram:
        shapes = {"m": 7, "n": 7, "k": 5}, {"m": 64, "n": 64, "k": 10**8}
    else:
        shapes = {"m": 7, "n": 3, "k": 5}, {"m": 10**8, "n": 64, "k": 64}
    small, large = (render(replace(problem, **shape), config) for shape in shapes)
    assert small.text == large.text
    assert (small.defines, large.defines) == (("INDEX_BITS=32",), ("INDEX_BITS=64",))


def test_a_text_is_of_one_dtype_and_op() -> None:
    sources = every_source()
    assert len({source.digest for source in sources}) == len(sources)


def test_no_line_is_longer_than_a_reader_likes() -> None:
    for source in every_source():
        longest = max(source.text.splitlines(), key=len)
        assert len(longest) <= 122, longest


SERIALISED = "staged_half"  # ptxas tells where a warpgroup's products wait for one another, when it optimises


def together(sources: list[KernelSource]) -> str:
    """All texts in one, each in a namespace, where their own overloads of CUDA's functions stand beside these."""
    beside = " ".join(f"using ::{name};" for name in ("__shfl_sync", "__shfl_xor_sync", "__shfl_down_sync"))
    return "".join(
        f"namespace source_{number} {{ {beside}\n"
        f'#line 1 "{source.kernel}_{number}.cu"\n'
        + source.text.replace('extern "C" __global__', "__global__")
        + "\n}\n"
        for number, source in enumerate(sources)
    )


def test_the_golden_sources_compile_with_nvcc_without_a_warning() -> None:
    """With either width of index, of 64 bits to PTX alone; with little optimisation, as tests on a GPU do it all."""
    try:
        found_here = cuda_toolchain((9, 0))
    except ToolMissing as missing:
        pytest.skip(str(missing))
    optimising = replace(found_here, flags=(*found_here.flags, "-Werror", "all-warnings"))
    quick = replace(optimising, flags=(*optimising.flags, "-Xcicc", "-O0", "-Xptxas", "-O0"))
    to_ptx = replace(quick, flags=tuple("-ptx" if flag == "-cubin" else flag for flag in quick.flags))
    sources = golden_sources()

    def compiled(text: str, bits: int, toolchain: Toolchain) -> Binary | CompileFailure:
        defines = (f"INDEX_BITS={bits}",)
        return compile_text(text, kernel="", defines=defines, toolchain=toolchain, limit_seconds=120)

    with ThreadPoolExecutor() as pool:
        works = [pool.submit(compiled, together(sources), *how) for how in ((32, quick), (64, to_ptx))]
        few = [source for source in sources if source.kernel == SERIALISED]
        works += [pool.submit(compiled, text, 32, optimising) for text in (together(few), support_source())]
        for work in works:
            answer = work.result()
            assert isinstance(answer, Binary), answer.detail
