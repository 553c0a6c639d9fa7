"""Tests of the compilers that an exported module uses for a GPU of which it has no binary."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from tests.call_log import logged
from tests.cases import SOURCES
from tests.fabricated import module_of, trial
from tests.modules import loaded
from tsm2_tune.generator.render import render
from tsm2_tune.runtime.cuda import compilers as package_compilers

PATH = os.environ.get("PATH", os.defpath)  # before a test takes it away
HOPPER = "sm_90a"
TEXT = 'extern "C" __global__ void kernel() { const auto act = [](auto) {}; act(INDEX_BITS); }\n'
ELF = b"\x7fELF"
# Makes a binary of the options that it is given; a function that it is told to fails.
NVRTC = """
#include <stdlib.h>
#include <string.h>
static char given[1000];
static int fails(const char *name) { const char *at = getenv("FAKE_NVRTC"); return at && strcmp(at, name) == 0; }
int nvrtcCreateProgram(void **program, void *text, void *name, int n, void *headers, void *names)
{ *program = given; return fails("create"); }
int nvrtcCompileProgram(void *program, int n, const char **options)
{ for (int i = 0; i < n; ++i) strcat(strcat(given, options[i]), " "); return fails("compile"); }
int nvrtcGetProgramLogSize(void *program, size_t *size) { *size = 5; return 0; }
int nvrtcGetProgramLog(void *program, char *log) { memcpy(log, "\\377 no\\0", 5); return 0; }
int nvrtcGetCUBINSize(void *program, size_t *size)
{ *size = fails("empty") ? 0 : fails("huge") ? (size_t)1 << 50 : fails("negative") ? -1 : strlen(given);
  return fails("size"); }
int nvrtcGetCUBIN(void *program, char *binary) { memcpy(binary, given, strlen(given)); return fails("get"); }
int nvrtcDestroyProgram(void **program) { given[0] = 0; return 0; }
"""


@pytest.fixture
def module(tmp_path: Path) -> ModuleType:
    """An exported module without a binary."""
    return module_of(tmp_path, trial())


@pytest.fixture
def compilers() -> Any:
    """The compilers' module, which the test has alone."""
    return loaded(Path(package_compilers.__file__))


@pytest.fixture
def no_nvcc(compilers: Any, module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compilers.TOOLKIT = module.TOOLKIT = str(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))


@pytest.fixture
def no_wheels(compilers: Any) -> None:
    """NVRTC is in toolkits alone."""
    compilers.NVRTC, compilers._wheel_folders = (), list


@pytest.fixture
def nvrtc() -> None:
    if not list(package_compilers._nvrtcs()):
        pytest.skip("NVRTC is not installed")


def fake_nvrtc(folder: Path, source: str) -> None:
    """The NVRTC of a toolkit, which is found before a wheel's."""
    (folder / "lib64").mkdir(exist_ok=True)
    (folder / "nvrtc.c").write_text(source)
    command = ["cc", "-shared", "-fPIC", str(folder / "nvrtc.c"), "-o", str(folder / "lib64/libnvrtc.so")]
    subprocess.run(command, check=True, env=os.environ | {"PATH": PATH})


def only_nvcc(does: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the only nvcc that is found, and return the file in which it writes down what it is called with."""
    nvcc, log = folder / "nvcc", folder / "called"
    head = f'import os, sys\nopen({str(log)!r}, "w").write(" ".join(sys.argv[1:]))\n'
    nvcc.write_text(f"#!{sys.executable}\n{head}{does}\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    return log


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted({config.family for config, _ in SOURCES}))
@pytest.mark.usefixtures("nvrtc")
def test_nvrtc_compiles_kernels_of_each_family(family: str, compilers: Any) -> None:
    compilers._options = lambda bits: ["-std=c++17", f"-DINDEX_BITS={bits}", "--Ofast-compile=max"]
    config, problem = next(one for one in SOURCES if one[0].family == family)
    assert compilers._by_nvrtc(render(problem, config).text, 32, HOPPER).startswith(ELF)


@pytest.mark.usefixtures("nvrtc")
def test_a_module_without_a_binary_is_compiled_by_nvrtc_alone(module: ModuleType, no_nvcc: None) -> None:
    assert module.cubin_of(module.WINNERS[0], 32, "sm_80").startswith(ELF)
    assert module.is_compiled(module.WINNERS[0], 32, "sm_80")


def test_nvrtc_is_found_in_nvidias_wheels(
    compilers: Any, tmp_path: Path, no_nvcc: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, wheels = list[str](), tmp_path / "nvidia"

    def opening(name: str) -> object:
        if "/" not in name:
            raise OSError(name)
        opened.append(str(Path(name).relative_to(wheels)))
        if name.endswith("libnvrtc.so.13"):
            raise OSError("it needs a newer libc")
        return SimpleNamespace(name=name)

    for place, names in (("cu13", [".so.13"]), ("cuda_nvrtc", [".so.12", "-builtins.so.12.8"])):
        (wheels / place / "lib").mkdir(parents=True)
        for name in names:
            (wheels / place / f"lib/libnvrtc{name}").touch()
    (wheels / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    compilers.ctypes = SimpleNamespace(CDLL=opening)
    (tmp_path / "lib64").mkdir()  # a toolkit without NVRTC
    (found,) = map(vars, compilers._nvrtcs())
    assert found["name"] == str(wheels / "cuda_nvrtc/lib/libnvrtc.so.12")
    libraries = "cu13/lib/libnvrtc.so.13", "cuda_nvrtc/lib/libnvrtc-builtins.so.12.8", "cuda_nvrtc/lib/libnvrtc.so.12"
    assert opened == [*libraries]  # one that NVRTC opens by its bare name is opened first


@pytest.mark.parametrize("found", [None, SimpleNamespace(submodule_search_locations=None), ValueError("no spec")])
def test_without_a_compiler_it_says_so(
    module: Any, no_nvcc: None, monkeypatch: pytest.MonkeyPatch, found: object
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", Mock(side_effect=[found]))
    module.ctypes = SimpleNamespace(**vars(ctypes) | {"CDLL": Mock(side_effect=OSError)})
    said = "no binary for sm_80, and NVRTC was not found; nvcc was not found: install NVRTC or nvcc of a CUDA version"
    with pytest.raises(RuntimeError, match=said):
        module.cubin_of(module.WINNERS[0], 32, "sm_80")


@pytest.mark.usefixtures("nvrtc")
def test_what_either_compiler_says_is_told(compilers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only_nvcc('sys.exit("a warning\\nnvcc fatal: error of some kind")', tmp_path, monkeypatch)
    with pytest.raises(RuntimeError) as told:
        compilers.compiled_here(TEXT.replace("act(", "unknown("), 32, HOPPER)
    by_nvrtc, by_nvcc = str(told.value).split("; ", 1)
    assert by_nvrtc.startswith("NVRTC does not compile it (")
    assert 'identifier "unknown" is undefined' in by_nvrtc
    assert by_nvcc.startswith(f"{tmp_path}/nvcc does not compile it (nvcc fatal: error of some kind): install")
    with pytest.raises(RuntimeError, match=r"NVRTC does not compile it \(.*architecture"):
        compilers.compiled_here(TEXT, 32, "sm_11")


@pytest.mark.slow
@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize("source", ["int nothing;\n", "int nvrtcCreateProgram() { return 1; }\n"])
def test_an_nvrtc_that_does_not_compile_it_is_not_the_last(
    compilers: Any, source: str, no_nvcc: None, tmp_path: Path
) -> None:
    fake_nvrtc(tmp_path, source)
    assert compilers.compiled_here(TEXT, 32, "sm_80").startswith(ELF)


FAILURES = {
    "create": "NVRTC does not start",
    "compile": "NVRTC does not compile it (\N{REPLACEMENT CHARACTER} no)",
    "size": "NVRTC compiles no binary",
    "empty": "NVRTC compiles no binary",
    "get": "NVRTC returns no binary",
    "huge": "is not a usable NVRTC",
    "negative": "is not a usable NVRTC",
}


@pytest.mark.slow
@pytest.mark.usefixtures("no_nvcc", "no_wheels")
def test_nvrtc_gets_width_and_architecture_and_tells_its_failures(
    compilers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvrtc(tmp_path, NVRTC)
    for bits, arch in product((32, 64), ("sm_80", HOPPER)):
        options = f"-std=c++17 -DINDEX_BITS={bits} --gpu-architecture={arch} --device-as-default-execution-space "
        assert compilers.compiled_here(TEXT, bits, arch).decode() == options
    for fails, said in FAILURES.items():
        monkeypatch.setenv("FAKE_NVRTC", fails)
        with pytest.raises(RuntimeError) as told:
            compilers.compiled_here(TEXT, 32, "sm_80")
        assert said in str(told.value)
        assert "; nvcc was not found: install" in str(told.value)
    (tmp_path / "another").mkdir()  # as the first one is loaded
    fake_nvrtc(tmp_path / "another", "int nothing;\n")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "another"))
    compilers.TOOLKIT = "/nowhere"
    with pytest.raises(RuntimeError, match=r"is not a usable NVRTC \(.*nvrtcCreateProgram\); nvcc was"):
        compilers.compiled_here(TEXT, 32, "sm_80")


def test_what_does_not_compile_is_asked_once(module: Any) -> None:
    asked = Mock(side_effect=RuntimeError("NVRTC does not compile it"))
    module.compiled_here = asked
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no binary for sm_80, and NVRTC does not compile it"):
            module.cubin_of(module.WINNERS[0], 32, "sm_80")
    assert module.why_not_compiled(module.WINNERS[0], 32, "sm_80").endswith("NVRTC does not compile it")
    assert not module.is_compiled(module.WINNERS[0], 32, "sm_80")
    assert asked.call_count == 1


OUTPUT = 'sys.argv[sys.argv.index("-o") + 1]'


@pytest.mark.usefixtures("no_nvcc", "no_wheels")
def test_nvcc_is_asked_for_a_width_and_an_architecture(
    compilers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    does = f'open({OUTPUT}, "wb").write(b"a binary"); sys.stderr.buffer.write(bytes([255]))'
    called = only_nvcc(does, tmp_path, monkeypatch)
    for bits, arch in ((32, "sm_80"), (64, HOPPER)):
        assert compilers.compiled_here(TEXT, bits, arch) == b"a binary"
        assert called.read_text().startswith(f"-cubin -arch={arch} -std=c++17 -DINDEX_BITS={bits} -o ")


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("", "nvcc does not compile it (no message)"),
        (f'open({OUTPUT}, "wb")', "nvcc does not compile it (no message)"),
        (f"os.mkdir({OUTPUT})", "nvcc does not compile it (no message)"),
        (f'open({OUTPUT}, "wb").write(b"half"); sys.exit("out of disk")', "nvcc does not compile it (out of disk)"),
        ("import time; time.sleep(60)", "nvcc takes more than 1 s for it"),
        (None, "No such file"),  # of the interpreter that its first line names
    ],
)
@pytest.mark.usefixtures("no_nvcc", "no_wheels")
def test_an_nvcc_that_makes_no_binary_is_told(
    compilers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str | None, said: str
) -> None:
    only_nvcc(does or "", tmp_path, monkeypatch)
    if does is None:
        (tmp_path / "nvcc").write_text("#!/nowhere/python\n")
    compilers.COMPILE_SECONDS = 1.0 if said.startswith("nvcc takes") else 60.0
    with pytest.raises(RuntimeError) as told:
        compilers.compiled_here(TEXT, 32, HOPPER)
    assert str(told.value).startswith("NVRTC was not found; /")
    assert said in str(told.value)


def test_compilers_are_looked_for_in_a_named_toolkit_first(
    compilers: Any, no_wheels: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_in = list[str]()
    compilers._files = lambda folder, _: logged(looked_in, folder, ())
    compilers._wheel_folders, compilers.TOOLKIT = lambda: ["/wheel"], str(tmp_path / "usual")
    monkeypatch.setenv("CUDA_PATH", str(tmp_path / "path"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "of_path/bin"))
    assert list(compilers._nvrtcs()) == []
    assert looked_in == [*(str(tmp_path / name / "lib64") for name in ("home", "path", "usual")), "/wheel"]
    places = ("home", "path", "of_path", "usual")
    for name in places:
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin/nvcc").touch(mode=0o755)
    for name in places:
        with pytest.raises(RuntimeError, match=f"{tmp_path}/{name}/bin/nvcc does not compile it"):
            compilers.compiled_here(TEXT, 32, HOPPER)
        (tmp_path / name / "bin/nvcc").unlink()
