"""The rendered CUDA: equal input, equal bytes; golden sources; every text compiles with nvcc where it is there."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tsm2_tune import __version__
from tsm2_tune.errors import ToolMissing
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.families.ism2 import Ism2Config
from tsm2_tune.generator.families.tsm2 import Tsm2Config
from tsm2_tune.generator.families.tsmm import TsmmConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render, support_source
from tsm2_tune.tuner.compiler import compile_text
from tsm2_tune.tuner.cuda import cuda_toolchain
from tsm2_tune.tuner.trial import Binary

GOLDEN = Path(__file__).parent / "golden"

CONFIGS: dict[str, KernelConfig] = {
    config.text: config
    for config in (
        Tsm2Config("v0", 128, 1, 1),
        Tsm2Config("v1", 128, 8, 1),
        Tsm2Config("v2", 128, 8, 4),
        Tsm2Config("v3", 128, 16, 4),
        Ism2Config(1, 128, 8, 8, 4),
        Ism2Config(2, 128, 8, 8, 4),
        TsmmConfig(128, 16, 1, 8, 4, 2),
    )
}
F32 = Problem(4096, 8, 4096, "f32")
F64 = Problem(4096, 8, 4096, "f64")


@pytest.mark.parametrize("name", CONFIGS)
def test_the_source_is_the_golden_one(name: str, request: pytest.FixtureRequest) -> None:
    text = render(F32, CONFIGS[name]).text.replace(f"tsm2-tune {__version__}", "tsm2-tune VERSION")
    path = GOLDEN / f"{name}.cu"
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), "the source changed: if that is meant, run pytest --update-golden"


def test_every_family_has_a_golden_source() -> None:
    assert {config.family for config in CONFIGS.values()} == set(FAMILIES)


def test_one_text_serves_every_shape_of_a_dtype() -> None:
    config = CONFIGS["tsm2-v3-t128-c16-p4"]
    small, large = render(Problem(7, 3, 5, "f32"), config), render(Problem(10**8, 64, 64, "f32"), config)
    assert small.text == large.text
    assert (small.defines, large.defines) == (("INDEX_BITS=32",), ("INDEX_BITS=64",))
    assert small.digest != render(F64, config).digest


def test_no_line_is_longer_than_a_reader_likes() -> None:
    for config in CONFIGS.values():
        assert max(map(len, render(F32, config).text.splitlines())) <= 122


def test_every_source_compiles_with_nvcc() -> None:
    try:
        toolchain = cuda_toolchain((9, 0))
    except ToolMissing as missing:
        pytest.skip(str(missing))
    texts = [render(problem, config) for config in CONFIGS.values() for problem in (F32, F64)]

    def compiled(text: str, kernel: str, bits: int) -> object:
        return compile_text(
            text, kernel=kernel, defines=(f"INDEX_BITS={bits}",), toolchain=toolchain, limit_seconds=120
        )

    with ThreadPoolExecutor() as pool:
        found = [pool.submit(compiled, source.text, source.kernel, bits) for source in texts for bits in (32, 64)]
        found.append(pool.submit(compiled, support_source(), "", 32))
        for one in found:
            assert isinstance(one.result(), Binary), one.result()
