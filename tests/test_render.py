"""The rendered CUDA: equal input, equal bytes; golden sources; headers; texts compile with nvcc where it is there."""

from __future__ import annotations

import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import tsm2_tune
from benchmarks.gate import of_binary
from tests.cases import F32, SOURCES, every_source
from tests.goldens import DIGESTS, GOLDEN, Source, difference, golden_digests, path_of, spelling
from tests.standing_in import Spied
from tsm2_tune.errors import InputError, ToolMissing
from tsm2_tune.generator import render as rendering
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.dtypes import DTYPES, Dtype
from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.families.published import Tsm2Config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import (
    OF_KERNELS,
    OF_LITERALS,
    environment,
    filled,
    header,
    render,
    support_source,
    with_headers,
)
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.tuner.compile import compiler
from tsm2_tune.tuner.compile.compiler import Toolchain, compile_text
from tsm2_tune.tuner.compile.nvcc import cuda_toolchain
from tsm2_tune.tuner.results.trial import Binary, CompileFailure


@pytest.mark.parametrize("source", SOURCES, ids=map(spelling, SOURCES))
def test_the_source_is_the_golden_one(source: Source) -> None:
    changes = difference(source, render(source[1], source[0]).text)
    assert not changes, f"if this is meant, run python -m tests.goldens\n{changes}"


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_the_tuners_own_kernels_of_a_type_are_in_its_text(dtype: Dtype) -> None:
    def kernels_of(text: str) -> set[str]:
        return set(re.findall(r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(', text))

    of_component = {f"{what}_{dtype.component.name}" for what in ("fill", "find_changes")}
    of_reference = {f"{what}_{dtype.reference_name}" for what in ("find_parts", "add_parts", "compare")}
    of_all = kernels_of(support_source(()))
    assert {"find_counters", "keep_worst", "flush_read", "rate_f32"} <= of_all
    assert kernels_of(support_source((dtype.name,))) == of_all | of_component | of_reference


def test_every_family_has_a_golden_source_and_every_golden_source_a_kernel() -> None:
    assert {config.family for config, _ in SOURCES} == set(FAMILIES)
    assert {*GOLDEN.iterdir()} == {path_of(source) for source in SOURCES}
    assert [*golden_digests()] == [spelling(source) for source in SOURCES if path_of(source) == DIGESTS]


@pytest.mark.parametrize(("config", "problem"), SOURCES, ids=map(spelling, SOURCES))
def test_one_text_serves_every_shape_and_all_launches(config: KernelConfig, problem: Problem) -> None:
    shapes = ((7, 7, 5), (64, 64, 10**8)) if problem.is_gram else ((7, 3, 5), (10**8, 64, 64))
    small, large = (_rendered_anew(replace(problem, m=m, n=n, k=k), config) for m, n, k in shapes)
    assert small.text == large.text
    assert (small.defines, large.defines) == (("INDEX_BITS=32",), ("INDEX_BITS=64",))
    launches = {name: 3 for name in config.launch_tunables() if name != "splits" or config.has_splits}
    other = replace(config, **launches)
    assert other.kernel_text == config.kernel_text
    assert _rendered_anew(problem, other).text == small.text


def _rendered_anew(problem: Problem, config: KernelConfig) -> KernelSource:
    """Return the kernel, rendered although its text may be cached."""
    rendering._kernel.cache_clear()
    rendering._text.cache_clear()
    return render(problem, config)


@pytest.mark.slow
def test_a_text_is_of_one_dtype_and_op() -> None:
    sources = every_source()
    assert len({source.text for source in sources}) == len(sources)


SERIALISED = "staged_wgmma"  # ptxas tells where a warpgroup's products wait for one another, when it optimises


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


QUICK = ("-Xcicc", "-O0", "-Xptxas", "-O0")


@pytest.fixture
def nvcc() -> Toolchain:
    try:
        return cuda_toolchain((9, 0))
    except ToolMissing as missing:
        pytest.skip(str(missing))


@pytest.mark.slow
def test_the_golden_sources_compile_with_nvcc_without_a_warning(nvcc: Toolchain) -> None:
    """With either width of index, of 64 bits to PTX alone; with little optimisation, as tests on a GPU do it all."""
    optimising = replace(nvcc, flags=(*nvcc.flags, "-Werror", "all-warnings"))
    quick = replace(optimising, flags=(*optimising.flags, *QUICK))
    to_ptx = replace(quick, flags=tuple("-ptx" if flag == "-cubin" else flag for flag in quick.flags))
    sources = [render(problem, config) for config, problem in SOURCES]

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


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["minplus", "staged_dmma", "row_lanes_register_b", "inner_mma16"])
def test_headers_in_place_of_the_toolkits_change_nothing(
    nvcc: Toolchain, kernel: str, monkeypatch: pytest.MonkeyPatch, spied: Spied, tmp_path: Path
) -> None:
    source = next(one for config, of in SOURCES if (one := render(of, config)).kernel == kernel)
    quick = replace(nvcc, flags=(*nvcc.flags, *QUICK))
    calls, found = spied(compiler, "_compiled"), []
    for number, toolchain in enumerate((quick, replace(quick, includes=()))):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / str(number)))
        binary = compile_text(
            source.text, kernel=kernel, defines=source.defines, toolchain=toolchain, limit_seconds=120
        )
        assert isinstance(binary, Binary), binary.detail
        found.append(of_binary(binary, launched_bytes=0))
    assert found[0] == found[1]
    assert len(calls) == 2  # none was compiled again, without these headers


PACKAGE = Path(tsm2_tune.__file__).parent
HEADERS = sorted(str(path.relative_to(PACKAGE / "kernels")) for path in (PACKAGE / "kernels").rglob("*.cuh"))


def test_every_header_is_in_a_kernel() -> None:
    texts = "".join(render(problem, config).text for config, problem in SOURCES)
    assert [name for name in HEADERS if header(name) not in texts] == ["fma_chains.cuh"]  # of the tuner's own kernels


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADERS)
def test_a_header_stands_alone(name: str, toolchain: Toolchain, tmp_path: Path) -> None:
    """With what it includes, as an editor opens it: here before the host's compiler."""
    text = tmp_path / "alone.cpp"
    text.write_text(toolchain.wrap(with_headers(f'#include "{name}"\n')))
    command = [toolchain.compiler, "-std=c++17", "-fsyntax-only", "-Wno-unknown-pragmas", str(text)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


# No name, number or word that a template prints leaves a comment or ends a line.

V3 = Tsm2Config("v3", 128, 8, 4)
LINE_ENDS = ("a\nb", "a\rb", "a\x0bb", "a\x0cb", "a\x1cb", "a\x85b", "a\u2028b", "b\n")
CONTROLS = ("\x00", "\x1b[2J", "\x7f", "\x9b2J", "\u202e", "\ud800", "é")
MARKS = ("\\", "??/", "*/", "/*", "//", '"', "#", "{", "}", "`", "$", "@", "!")


def test_a_template_knows_nothing_but_what_it_is_given() -> None:
    assert environment().globals.keys() == {"range", "dict", "lipsum", "cycler", "joiner", "namespace"}


@pytest.mark.parametrize("text", [*LINE_ENDS, *CONTROLS, *MARKS])
def test_a_hostile_value_is_refused_wherever_it_stands(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="cannot be inserted into"):
        render(F32, replace(V3, version=text))
    with pytest.raises(InputError, match="cannot be inserted into"):
        render(F32, replace(V3, threads=text))  # type: ignore[arg-type]
    monkeypatch.setitem(DTYPES, "f32", replace(DTYPES["f32"], c_type=text))
    with pytest.raises(InputError, match="cannot be inserted into"):
        _rendered_anew(F32, V3)
    with pytest.raises(InputError, match="cannot be inserted into"):
        support_source()


@pytest.mark.parametrize("text", [*LINE_ENDS, *CONTROLS])
@pytest.mark.parametrize("template", ["library_pack.c.jinja", "module.py.jinja"])
def test_literals_are_one_line_of_ascii(template: str, text: str) -> None:
    for value in (text, [("a", [text])], {"a": {"b": text}}):
        with pytest.raises(InputError, match="cannot be inserted into"):
            filled(template, {"rows": value}, OF_LITERALS)


def test_another_object_is_not_printed() -> None:
    with pytest.raises(TypeError, match="accepts no value of type object"):
        filled("support.cu.jinja", {"dtypes": object()}, OF_KERNELS)
