"""`doctor`: on this machine, with tools that are missing, broken or never answer, and what it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.command import run
from tests.fake_compilers import NVCC, WRITES, is_gone
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.doctor import examination, nvidia_smi, software, toolkit
from tsm2_tune.tuner.doctor.examination import examine
from tsm2_tune.tuner.doctor.finding import Finding, Question, State
from tsm2_tune.tuner.measure.vendor import libraries

TESTS = Path(__file__).parent
GPU = {"name": "Fake GPU", "bus_id": "0000:01:00.0", "compute_capability": [9, 0]}
QUESTION = Question("0", "results.db", {"version": 13000, "gpus": [GPU]})
PYCUDA = """
import os
class Error(Exception): pass
def init(): pass
def get_version(): return {version}
def get_driver_version(): return 13000
def mem_get_info(): return 2**33, 2**34
class Device:
    def __init__(self, ordinal): pass
    def retain_primary_context(self):
        {opening}
        return self
    def push(self): pass
    def pop(self): pass
    def detach(self): pass
"""
Tool = Callable[[str, str], Path]
Nvcc = Callable[[str], Path]
Smi = Callable[..., list[Finding]]


@pytest.fixture(autouse=True)
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of tools that comes first in PATH, and a cache and a working folder of the test's own."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def tool(tools: Path) -> Tool:
    """Makes a shell script of this name."""

    def make(name: str, script: str) -> Path:
        path = tools / name
        path.write_text(script if script.startswith("#!") else f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    return make


@pytest.fixture
def nvcc(tool: Tool, tmp_path: Path) -> Nvcc:
    """Makes an nvcc that compiles so; what it is called with is in the file `called`."""
    return lambda compiles: tool("nvcc", NVCC.format(log=tmp_path / "called", compiles=compiles))


@pytest.fixture
def smi(tool: Tool) -> Smi:
    """Return a function that gives the findings for an nvidia-smi with these answers."""

    def found(
        modes: str = "580.65, Enabled, Default, Disabled",
        clocks: str = "1980, 1980, 1980, 1980",
        reasons: str = "0x1",
        processes: str = "",
        old: bool = False,
    ) -> list[Finding]:
        answers = {"driver_version": modes, "clocks.sm": clocks, "pid": processes}
        answers["clocks_throttle_reasons" if old else "clocks_event_reasons"] = reasons
        cases = "\n".join(f"  *{query}*) echo '{text}';;" for query, text in answers.items())
        tool("nvidia-smi", f"case \"$2\" in\n{cases}\n  *) echo 'not a valid field'; exit 2;;\nesac")
        return nvidia_smi.nvidia_smi(QUESTION)

    return found


def only(findings: list[Finding]) -> Finding:
    (found,) = findings
    return found


def test_a_toolkit_compiles_a_line_for_the_device(nvcc: Nvcc, tmp_path: Path) -> None:
    path = nvcc(WRITES)
    found = only(toolkit.toolkit(QUESTION))
    assert (found.state, found.found) == (State.OK, f"nvcc 13.0 ({path}), compiles for sm_90a")
    assert "compiles for" not in only(toolkit.toolkit(Question("0", "results.db"))).found
    compiled = [line for line in (tmp_path / "called").read_text().splitlines() if "--dryrun" not in line]
    assert ["-arch=sm_90a" in compiled[0], "-arch" in compiled[1]] == [True, False]


@pytest.mark.parametrize(
    ("compiles", "said"),
    [
        ("echo nvcc fatal : Value sm_90a is not defined for option gpu-architecture; exit 1", "CUDA_HOME to it"),
        ("echo '#error -- unsupported GNU version! gcc versions later than 15'; exit 1", "NVCC_PREPEND_FLAGS"),
        ("echo 'nvcc fatal : Failed to preprocess host compiler properties.'; exit 1", "install g++"),
        ("echo 'gcc: No such file or directory'; exit 1", "install g++"),
        ("echo 'line.ii: No space left on device'; exit 1", "free some space"),
        ("echo text > $2", "wrote no binary"),
        ("exit 3", "exited 3, without a message"),
        ("kill -SEGV $$", "signalled 11, without a message"),
        ("kill -KILL $$", "it was killed by SIGKILL; find out what kills it, then run this again"),
        (
            "[ $2 = /dev/null ] || kill -KILL $$",
            "killed by SIGKILL. No kernel is compiled for a GPU. Remedy: find out what kills it",
        ),
        ("", "--version fails"),
    ],
)
def test_a_toolkit_that_does_not_compile_is_a_problem(tool: Tool, nvcc: Nvcc, compiles: str, said: str) -> None:
    if compiles:
        nvcc(compiles)
    else:
        tool("nvcc", "printf '\\377\\001\\002 garbage'")
    found = only(toolkit.toolkit(QUESTION))
    assert (found.state, said in found.text, found.text.isprintable()) == (State.PROBLEM, True, True), found.text


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("told", "variable", "remedy"),
    [
        ("release 13.0", "CUDA_PATH", "fix that toolkit, set CUDA_PATH to another, or unset it"),
        ("", "CUDA_HOME", "fix that toolkit, set CUDA_HOME to another, or unset it"),
        ("", "", "fix that toolkit, or set CUDA_HOME to another"),
    ],
)
def test_an_nvcc_that_hangs_is_named_and_ended(
    tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, variable: str, remedy: str
) -> None:
    answers = f'[ "$1 {told}" = "--version release 13.0" ] && echo {told} && exit'
    path = tool("nvcc", f"{answers}; echo $$ > {tmp_path}/pid; sleep 600")
    if variable:
        path = at_home(path, tmp_path / "home")
        monkeypatch.setenv(variable, str(tmp_path / "home"))
    found = only(toolkit.toolkit(replace(QUESTION, compile_seconds=0.6)))
    assert (found.state, found.remedy, str(path) in found.found) == (State.PROBLEM, remedy, True)
    assert found.found.endswith(": no answer within 1 s")
    assert is_gone(int((tmp_path / "pid").read_text()))


def at_home(nvcc: Path, home: Path) -> Path:
    """Move the tools' folder to the home of a toolkit."""
    home.mkdir()
    return nvcc.parent.rename(home / "bin") / "nvcc"


@pytest.mark.parametrize(
    ("compiles", "home", "other", "told"),
    [
        (WRITES, "empty", "", ["CUDA_HOME"]),
        ("exit 3", "empty", "empty", ["CUDA_HOME", "CUDA_PATH"]),
        (WRITES, "with a folder", "", ["CUDA_HOME"]),  # bin/nvcc, which is no compiler
        (WRITES, "real", "empty", []),  # is looked at first
        ("exit 3", "real", "empty", []),
        (WRITES, "empty", "real", ["CUDA_HOME"]),
    ],
)
def test_variables_before_the_nvcc_that_name_none_are_told(
    nvcc: Nvcc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiles: str, home: str, other: str, told: list[str]
) -> None:
    path = nvcc(compiles)
    (tmp_path / "empty").mkdir()
    (tmp_path / "with a folder/bin/nvcc").mkdir(parents=True)
    if "real" in (home, other):
        path = at_home(path, tmp_path / "real")
    for name, folder in (("CUDA_HOME", home), ("CUDA_PATH", other)):
        monkeypatch.setenv(name, str(tmp_path / folder) if folder else "")
    of_nvcc, *others = toolkit.toolkit(QUESTION)
    assert of_nvcc.state is (State.OK if compiles == WRITES else State.PROBLEM)
    assert [(one.name, one.state) for one in others] == [(name, State.NOTE) for name in told]
    if told:
        assert others[0].found == f"{tmp_path / home} has no bin/nvcc that can be run; {path} is used instead"


@pytest.mark.parametrize(
    ("answers", "name", "state", "said"),
    [
        ({}, "modes", State.OK, ""),
        ({"modes": "580.65, Disabled, Default, [N/A]"}, "modes", State.NOTE, "nvidia-smi -pm 1"),
        ({"modes": "580.65, Enabled, Default, Enabled"}, "modes", State.NOTE, "a MIG instance"),
        ({"modes": "580.65, Enabled, Prohibited, Disabled"}, "modes", State.PROBLEM, ""),
        ({"clocks": "1200, 1980, 1200, 1980"}, "clocks", State.NOTE, "a clock setting, 1200 MHz"),
        ({"reasons": "0x0000000000000002"}, "clocks", State.NOTE, "nvidia-smi -rgc"),
        ({"reasons": "0x0000000000000024"}, "clocks", State.NOTE, "the power limit, a thermal limit."),
        ({"reasons": "0x0000000000000024", "old": True}, "clocks", State.NOTE, "the power limit, a thermal limit."),
        ({"processes": "77, python, 1000"}, "processes", State.NOTE, "77 (python)"),
    ],
)
def test_what_disturbs_times_is_told(smi: Smi, answers: dict[str, Any], name: str, state: State, said: str) -> None:
    found = {one.name: one for one in smi(**answers)}
    quiet = dict.fromkeys(("modes", "clocks", "processes"), State.OK)
    assert {one.name: one.state for one in found.values()} == quiet | {name: state}
    assert said in found[name].text


def test_a_field_that_a_driver_lacks_hides_no_other(tool: Tool) -> None:
    answers = (
        *("applications*) exit 2", "clocks.sm,*) exit 2", "event_reasons*) exit 2", "=clocks.sm) echo 1200"),
        *(
            "=clocks.max.sm) echo 1980",
            "throttle_reasons*) echo 0x8",
            "mode*) echo 580.65, Enabled, Default, Disabled",
        ),
    )
    tool("nvidia-smi", "\n".join(['case "$2" in', *(f"*{one};;" for one in answers), "esac"]))
    found = {one.name: one for one in nvidia_smi.nvidia_smi(QUESTION)}
    assert "SM 1200 of at most 1980 MHz, lowered by the hardware" in found["clocks"].text


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "script", ["exit 9", "echo garbage", "kill -KILL $$", "", pytest.param("sleep 600", marks=pytest.mark.slow)]
)
def test_failing_nvidia_smi_is_a_note(tool: Tool, tools: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    if script:
        tool("nvidia-smi", script)
    else:
        monkeypatch.setenv("PATH", str(tools))
    found = only(nvidia_smi.nvidia_smi(QUESTION))
    assert (found.name, found.state, "not found" in found.text) == ("nvidia-smi", State.NOTE, not script)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "opening", "states", "said"),
    [
        ("(13, 0, 0)", "pass", [State.OK, State.OK], ""),
        ("(14, 0, 0)", "pass", [State.NOTE, State.OK], ""),
        ("(13, 0, 0)", "raise Error('exclusive')", [State.OK, State.PROBLEM], "exclusive"),
        ("(13, 0, 0)", "os.kill(os.getpid(), 11)", [State.PROBLEM], "signal SIGSEGV"),
    ],
)
def test_pycuda_opens_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, opening: str, states: list[State], said: str
) -> None:
    package = tmp_path / "packages" / "pycuda"  # a probe's process does not look into the working folder
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "driver.py").write_text(PYCUDA.format(version=version, opening=opening))
    monkeypatch.syspath_prepend(str(package.parent))
    found = examination._examined("PyCUDA", QUESTION)
    assert [one.state for one in found] == states
    assert said in found[-1].text


@pytest.fixture
def fake_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A CUDA driver whose GPU is as it is told to be."""
    folder = tmp_path / "driver"
    folder.mkdir()
    command = ["cc", "-shared", "-fPIC", str(TESTS / "fake_gpu.c"), "-o", str(folder / "libcuda.so.1")]
    subprocess.run(command, check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    return lambda what: monkeypatch.setenv("FAKE_GPU", what)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "spec", "states", "said"),
    [
        ("there", "0", [State.OK], "CUDA 13.0; GPUs 0 Fake GPU 0"),
        ("there", "3", [State.OK, State.PROBLEM], "no GPU 3: the driver has 1"),
        ("none", "0", [State.PROBLEM], "no GPU"),
        ("mismatched", "0", [State.PROBLEM], "of different versions (cuInit answers 803)"),
        ("crashes", "0", [State.PROBLEM], "signal SIGABRT"),
        ("hangs", "0", [State.PROBLEM], "no answer within 2 s"),
    ],
)
def test_a_driver_is_asked_for_its_gpus(
    fake_driver: Callable[[str], None], what: str, spec: str, states: list[State], said: str
) -> None:
    fake_driver(what)
    limit_seconds = 2.0 if what == "hangs" else 30.0
    found = examination._examined("CUDA driver", Question(spec, "results.db", limit_seconds=limit_seconds))
    assert [one.state for one in found] == states
    assert said in found[-1].text


@pytest.mark.slow
def test_an_nvcc_that_is_newer_than_the_driver_is_a_problem(
    fake_driver: Callable[[str], None], nvcc: Nvcc, tool: Tool
) -> None:
    fake_driver("old")
    nvcc(WRITES)
    tool("nvidia-smi", "exit 9")
    found = examine(None, "results.db")
    by_name = {one.name: one for one in found.findings}
    assert "newer than the driver" in by_name["CUDA toolkit"].text
    assert (found.spec, found.can_tune, by_name["nvidia-smi"].state) == ("0", False, State.NOTE)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'error: no'; exit 1", "does not build a C++ library (error: no)"),
        ("kill -KILL $$", "killed by SIGKILL; find out what kills it, then run this again"),
        ("exit 7", "does not build a C++ library (it exited 7, without a message)"),
        ("exit 0", "wrote no output"),
        ("", "c++ --version: no answer within 1 s. --device cpu cannot run. Remedy: fix it, or name another"),
    ],
)
def test_failing_compiler_is_a_problem(tool: Tool, script: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = "" if script else "exec sleep 600; "
    monkeypatch.setenv("CXX", str(tool("c++", f'{hanging}[ "$1" = --version ] && exit; {script}')))
    found = only(software.host_compiler(Question("cpu", "results.db", compile_seconds=30.0 if script else 0.6)))
    assert (found.state, said in found.text) == (State.PROBLEM, True), found.text


def test_extras_and_vendors_libraries_that_are_missing_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "folders", lambda: iter(()))
    assert only(toolkit.vendor(QUESTION)).state is State.NOTE
    monkeypatch.setattr(software, "_version", lambda name: "1.0" if name in ("torch", "cupy-cuda12x") else None)
    assert only(software.extras(QUESTION)).state is State.NOTE
    found = only(software.extras(Question("cpu", "results.db")))
    missing = "jax, pynvml, optuna, distributed, psycopg, vl_convert"
    assert (found.state, found.found) == (State.OK, f"torch 1.0, cupy 1.0, no {missing}")
    # All that a user's extras need is looked for, by the name of its distribution; PyCUDA has a line of its own.
    extras = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    needed = [one for packages in extras.values() for one in packages]
    looked_for = {name for names in software.EXTRAS.values() for name in names}
    assert {re.split(r"[\[>=]", one)[0] for one in needed} - looked_for == {"pycuda"}


def test_a_module_that_is_named_as_nvidias_wheels_is_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "IN_WHEELS", "*")
    monkeypatch.setitem(sys.modules, "nvidia", ModuleType("nvidia"))
    assert list(libraries.folders())[-1].startswith("/usr/local/cuda")


@pytest.mark.slow
def test_this_host_can_tune(tmp_path: Path) -> None:
    found = run("doctor", "--device", "cpu", "--db", str(tmp_path / "results.db"))
    assert (found.exit_code, found.output.splitlines()[-1]) == (0, "tuning can run on this host")
    assert os.listdir(tmp_path) == ["tools"]
    assert only(software.host_compiler(Question("cpu", "results.db"))).state is State.OK


@pytest.mark.gpu
def test_a_gpu_that_tunes_has_no_problem(target: Target) -> None:
    found = examine(target.spec, "results.db")
    assert [one.text for one in found.findings if one.state is State.PROBLEM] == []
    by_name = {one.name: one for one in found.findings}
    assert target.identity.name in by_name["CUDA driver"].text
    assert {"device", "clocks", "processes"} <= set(by_name)
