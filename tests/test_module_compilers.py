"""What an exported module compiles kernels with, for a GPU that it has no binary of."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.cases import SOURCES
from tests.fabricated import imported, trial, tuning_run, winners
from tsm2_tune.generator.render import render
from tsm2_tune.runtime import compilers
from tsm2_tune.tuner.export import export_text
from tsm2_tune.tuner.export.known import NOTHING_KNOWN

HOPPER = "sm_90a"
TEXT = 'extern "C" __global__ void kernel() { const auto act = [](auto) {}; act(INDEX_BITS); }\n'
ELF = b"\x7fELF"


def quickly(bits: int) -> list[str]:
    return ["-std=c++17", f"-DINDEX_BITS={bits}", "--Ofast-compile=max"]


@pytest.fixture
def module(tmp_path: Path) -> ModuleType:
    """An exported module without a binary."""
    rows, sources = winners(tmp_path, (tuning_run(), trial()))
    text = export_text(rows, "module", sources=sources, database="results.db", known=NOTHING_KNOWN)
    return imported(text, tmp_path)


@pytest.fixture
def no_nvcc(module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for one in (compilers, module):
        monkeypatch.setattr(one, "TOOLKIT", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))


@pytest.fixture
def nvrtc() -> None:
    if not list(compilers._nvrtcs()):
        pytest.skip("NVRTC is not installed")


def fake_nvrtc(folder: Path, source: str) -> None:
    """The NVRTC of a toolkit, which is found before a wheel's."""
    (folder / "lib64").mkdir(exist_ok=True)
    (folder / "nvrtc.c").write_text(source)
    command = ["cc", "-shared", "-fPIC", str(folder / "nvrtc.c"), "-o", str(folder / "lib64/libnvrtc.so")]
    subprocess.run(command, check=True)


def nvcc_that(prints: str, status: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only nvcc that is found."""
    nvcc = folder / "nvcc"
    nvcc.write_text(f"#!{sys.executable}\nimport sys\nsys.stderr.write({prints!r})\nsys.exit({status})\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted({config.family for config, _ in SOURCES}))
@pytest.mark.usefixtures("nvrtc")
def test_nvrtc_compiles_kernels_of_each_family(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "_options", quickly)
    config, problem = next(one for one in SOURCES if one[0].family == family)
    assert compilers._by_nvrtc(render(problem, config).text, 32, HOPPER).startswith(ELF)


@pytest.mark.usefixtures("nvrtc")
def test_a_module_without_a_binary_is_compiled_by_nvrtc_alone(module: ModuleType, no_nvcc: None) -> None:
    assert module.cubin_of(module.WINNERS[0], 32, "sm_80").startswith(ELF)
    assert module.is_compiled(module.WINNERS[0], 32, "sm_80")


def test_nvrtc_is_found_in_nvidias_wheels(tmp_path: Path, no_nvcc: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it opens by its name alone is opened before it."""
    opened = list[str]()

    def opening(name: str) -> object:
        if "/" not in name:
            raise OSError(name)
        opened.append(str(Path(name).relative_to(tmp_path)))
        if name.endswith("libnvrtc.so.13"):
            raise OSError("it needs a newer libc")
        return SimpleNamespace(name=name)

    for name in (
        "cu13/lib/libnvrtc.so.13",
        "cuda_nvrtc/lib/libnvrtc.so.12",
        "cuda_nvrtc/lib/libnvrtc-builtins.so.12.8",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setattr(
        compilers.importlib.util, "find_spec", lambda _: SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    )
    monkeypatch.setattr(ctypes, "CDLL", opening)
    (tmp_path / "lib64").mkdir()  # of a toolkit without NVRTC
    (found,) = compilers._nvrtcs()
    assert found.name == str(tmp_path / "cuda_nvrtc/lib/libnvrtc.so.12")  # type: ignore[attr-defined]
    assert opened == [
        "cu13/lib/libnvrtc.so.13",
        "cuda_nvrtc/lib/libnvrtc-builtins.so.12.8",
        "cuda_nvrtc/lib/libnvrtc.so.12",
    ]


@pytest.mark.parametrize("found", [None, SimpleNamespace(submodule_search_locations=None), ValueError("no spec")])
def test_without_a_compiler_it_says_so(
    module: ModuleType, no_nvcc: None, monkeypatch: pytest.MonkeyPatch, found: object
) -> None:
    def find_spec(_: str) -> object:
        if isinstance(found, Exception):
            raise found
        return found

    def closed(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(compilers.importlib.util, "find_spec", find_spec)
    monkeypatch.setattr(ctypes, "CDLL", closed)
    said = r"no binary for sm_80, and NVRTC is not here; nvcc is not here: install NVRTC or nvcc of a CUDA version"
    with pytest.raises(RuntimeError, match=said):
        module.cubin_of(module.WINNERS[0], 32, "sm_80")


@pytest.mark.usefixtures("nvrtc")
def test_what_either_compiler_says_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvcc_that("a warning\nnvcc fatal: error of some kind\n", 1, tmp_path, monkeypatch)
    with pytest.raises(RuntimeError) as told:
        compilers.compiled_here(TEXT.replace("act(", "unknown("), 32, HOPPER)
    by_nvrtc, by_nvcc = str(told.value).split("; ", 1)
    assert by_nvrtc.startswith("NVRTC does not compile it (")
    assert 'identifier "unknown" is undefined' in by_nvrtc
    assert by_nvcc.startswith(f"{tmp_path}/nvcc does not compile it (nvcc fatal: error of some kind): install")
    with pytest.raises(RuntimeError, match=r"NVRTC does not compile it \(.*architecture"):
        compilers.compiled_here(TEXT, 32, "sm_11")


@pytest.mark.host
@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize("source", ["int nothing;\n", "int nvrtcCreateProgram() { return 1; }\n"])
def test_an_nvrtc_that_does_not_compile_it_is_not_the_last(source: str, no_nvcc: None, tmp_path: Path) -> None:
    fake_nvrtc(tmp_path, source)
    assert compilers.compiled_here(TEXT, 32, "sm_80").startswith(ELF)


@pytest.mark.host
def test_what_is_no_nvrtc_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_nvcc: None) -> None:
    fake_nvrtc(tmp_path, "int nothing;\n")
    monkeypatch.setattr(compilers, "NVRTC", ())
    monkeypatch.setattr(compilers, "_wheel_folders", list)
    with pytest.raises(RuntimeError, match=r"NVRTC lacks a function \(.*nvrtcCreateProgram\); nvcc is not here"):
        compilers.compiled_here(TEXT, 32, "sm_80")


def test_what_does_not_compile_is_asked_once(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def compiled_here(text: str, bits: int, arch: str) -> bytes:
        asked.append(arch)
        raise RuntimeError("NVRTC does not compile it")

    monkeypatch.setattr(module, "compiled_here", compiled_here)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no binary for sm_80, and NVRTC does not compile it"):
            module.cubin_of(module.WINNERS[0], 32, "sm_80")
    assert module.why_not_compiled(module.WINNERS[0], 32, "sm_80").endswith("NVRTC does not compile it")
    assert not module.is_compiled(module.WINNERS[0], 32, "sm_80")
    assert asked == ["sm_80"]


def test_an_nvcc_that_writes_nothing_made_no_binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "_nvrtcs", list)
    nvcc_that("", 0, tmp_path, monkeypatch)
    with pytest.raises(RuntimeError, match=r"NVRTC is not here; .*nvcc does not compile it \(no message\)"):
        compilers.compiled_here(TEXT, 32, HOPPER)
