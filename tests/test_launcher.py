"""The compiled launcher: what it starts and holds. tests/test_launcher_first.py compares it with Python."""

from __future__ import annotations

import ast
import ctypes
import gc
import hashlib
import itertools
import logging
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.call_log import logged
from tests.command import completed, refused
from tests.databases import database_of
from tests.fabricated import handmade, imported, module_of, trial
from tests.fake_tensors import Parameter, Tensor, exchange
from tests.modules import fresh
from tests.random_calls import TYPES, Driver, growth, tensor
from tests.recording_driver import attach, cubin
from tests.threads_on_gpu import in_threads
from tsm2_tune.errors import ToolMissing
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.export.module import launcher_binary
from tsm2_tune.tuner.export.module import packed as packed_lines

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("toolchain", "session_cache")]


@pytest.fixture(scope="module")
def binary(session_cache: None) -> bytes:
    return launcher_binary()


@pytest.fixture(scope="module")
def of_all(tmp_path_factory: pytest.TempPathFactory, binary: bytes) -> ModuleType:
    """A module with the launcher: kernels of each type, and of f64 one that splits k."""
    problems = [Problem(64, 4, 64, dtype, op) for dtype in TYPES for op in ("nn", "ttt")]
    split = Problem(64, 4, 64, "f64", "tn")
    trials: list[Any] = [*problems, Problem(64, 4, 64, "c64", "cn"), trial(problem=split, source=handmade(split))]
    return module_of(tmp_path_factory.mktemp("module"), *trials, launcher=binary)


@pytest.fixture
def compiled(of_all: ModuleType, torch: Any) -> Iterator[ModuleType]:
    """The module with a driver of its own, as `driver`, and empty caches.

    It logs its choices, so that Python makes them: the launcher starts repeated calls only.
    """
    with fresh(of_all) as module:
        attach(module, Driver(), cubin_of=cubin, log=logging.Logger("tests", logging.DEBUG))
        yield module


@pytest.fixture
def looked(compiled: ModuleType) -> list[Any]:
    """The calls that the launcher left to Python."""
    asked = list[Any]()

    def starter(made: Callable[[Any], Callable[..., Any]], library: Any) -> Callable[..., Any]:
        plain = made(library)
        return lambda *arguments: logged(asked, arguments, plain(*arguments))

    for name in ("torch_starter", "cupy_starter"):
        setattr(compiled, name, partial(starter, getattr(compiled, name)))
    return asked


def triple(dtype: str = "f32") -> list[Any]:
    return [tensor(s, "F", at, dtype) for s, at in (((6, 3), 0x1000), ((3, 2), 0x2000), ((6, 2), 0x3000))]


# What the launcher starts


def test_a_kernel_that_splits_k_gets_the_workspace_of_now(compiled: ModuleType) -> None:
    compiled.driver.current = 0xC0
    by_plan, start = list[int](), compiled.Plan.start
    compiled.Plan.start = lambda *arguments: logged(by_plan, arguments[1][0], start(*arguments))

    def workspace_of(m: int) -> list[int]:
        compiled.gemm(
            tensor((m, 3), "C", 0x1000, "f64"), tensor((3, 2), "F", 0x4000, "f64"), tensor((m, 2), "F", 0x5000, "f64")
        )
        arguments = compiled.driver.launches[-1]["arguments"]
        return [int.from_bytes(one[:8], "little") for one in arguments[-2:]]

    first, larger = workspace_of(6), workspace_of(60)  # a larger one replaces the first
    assert first != larger == workspace_of(6)
    assert by_plan == [0, 0]
    compiled.workspaces[compiled.legacy_key(0xAA)].owners = ()  # memory that is freed by hand
    assert workspace_of(6) == larger
    assert by_plan == [0, 0, 0]
    compiled.workspaces.clear()
    assert workspace_of(6) == first


def test_other_devices_and_more_shapes_than_are_kept_are_pythons(
    compiled: ModuleType, torch: Any, looked: list[Any]
) -> None:
    compiled.driver.current = 0xC0
    arrays = triple()
    for ordinal in (0, 1):
        for one in arrays:
            one.get_device, one.device = lambda ordinal=ordinal: ordinal, f"cuda:{ordinal}"
        compiled.gemm(*arrays)
        compiled.gemm(*arrays[:2])
    assert len(looked) == 3
    b, shapes = tensor((3, 2), "F", 0x800), [*range(1, 4300), *range(1, 300)]
    del looked[:], compiled.driver.launches[:]
    for m in [*shapes, shapes[-1]]:  # each is new to the launcher, but for 6 and the last
        compiled.gemm(tensor((m, 3), "F", 0x1000), b)
    assert (len(looked), len(compiled.driver.launches)) == (len(shapes) - 1, len(shapes) + 1)


# References that it holds


def test_nothing_is_kept_of_a_call(compiled: ModuleType, torch: Any) -> None:
    compiled.driver.current = 0xC0
    compiled.driver.cuLaunchKernelEx = ctypes.CDLL(None).sched_yield  # returns 0, and records nothing
    a, b, out = triple("c64")
    new, alpha, asked = tensor((6, 2), "F", 0x4000, "c64"), 2.5 + 1j, {"fallback": "error"}
    torch.empty_strided = lambda *_, **__: new
    counted = (a, b, out, new, alpha, a.dtype, torch.empty_strided, compiled.Plan, None, True, False)

    def calls(number: int) -> None:
        for turn in range(number):
            compiled.gemm(a, b, out=out, alpha=alpha, beta=1)
            compiled.gemm(a, b, alpha=alpha)
            compiled.gemm(a, b, out=out, **asked)
            if turn % 10 == 0:
                compiled.gemm(a, b, out=out, alpha=np.float32(1))  # is left to Python
        compiled.driver.calls.clear()
        gc.collect()

    changed, blocks = growth(lambda: calls(2500), counted)
    assert changed < 50
    assert blocks < 50, "blocks of memory, of 7,750 calls"


def test_a_launcher_goes_with_what_it_holds(compiled: ModuleType) -> None:
    argument = type("Argument", (), {})()
    plain = lambda *_, argument=argument: argument  # noqa: E731
    made = compiled.launcher().Launcher(plain, exchange(), (Tensor, Parameter), int, int, int, {}, int)
    plain.made = made  # type: ignore[attr-defined]  # a cycle
    assert made.start(1, 2, 3, 4, 5, 6, 7) is argument
    held = sys.getrefcount(argument)
    del made, plain
    gc.collect()
    assert sys.getrefcount(argument) == held - 1


def test_many_threads_at_once(compiled: ModuleType, torch: Any) -> None:
    compiled.driver.current = 0xC0
    threads, calls = 8, 400

    def work(number: int) -> None:
        for turn in range(calls):
            m, at = 1 + (number + turn) % 5, 0x1000 * (1 + number)
            arrays = [tensor(s, "F", at + 0x200 * i) for i, s in enumerate(((m, 3), (3, 2), (m, 2)))]
            compiled.gemm(*arrays, alpha=float(number + 1), beta=float(turn))
            if turn % 97 == 0:
                compiled.plans.clear()
                compiled.starters.pop(Tensor, None)  # like a launcher that was never taught

    in_threads([partial(work, number) for number in range(threads)])

    def told(launch: Any) -> tuple[Any, ...]:
        values = launch["arguments"]
        integers = [int.from_bytes(values[at][:8], "little") for at in (0, 4, 6, 9)]
        return (*integers, *(np.frombuffer(values[at][:4], "<f4")[0] for at in (3, 8)))

    expected = Counter(
        (1 + (number + turn) % 5, *(0x1000 * (1 + number) + 0x200 * i for i in range(3)), number + 1.0, float(turn))
        for number, turn in itertools.product(range(threads), range(calls))
    )
    assert Counter(map(told, compiled.driver.launches)) == expected


@pytest.mark.parametrize("capsule", [None, "no capsule", exchange(major=2)])
def test_tensors_that_describe_themselves_in_another_way_go_through_python(
    compiled: ModuleType, monkeypatch: pytest.MonkeyPatch, capsule: Any
) -> None:
    monkeypatch.setattr(Tensor, "__dlpack_c_exchange_api__", capsule)
    for _ in range(2):
        compiled.gemm(tensor((6, 3), "F", 0x1000), tensor((3, 2), "F", 0x2000))
    assert (compiled.launchers, len(compiled.driver.launches)) == ({}, 2)


def test_no_launch_that_does_not_fit_its_slot_is_taken(compiled: ModuleType, torch: Any) -> None:
    made = compiled.launcher().Launcher(int, exchange(), (Tensor, Parameter), int, int, int, {}, int)
    a, b, out = triple()

    sound = (56, 64, 72, 128, 176, 32)

    def add(slot=240, places=sound, parameters=b"\x00", scalar="f", launch=1, kernel=1, workspace=208) -> bool:  # type: ignore[no-untyped-def]
        rest: Any = ((0, 0, 0, 0), (scalar, 1.0), (None, 0, 0, workspace), ((), {}))
        return bool(made.add(a, b, out, None, int, (launch, kernel), bytes(slot), places, parameters, *rest))

    assert add()
    unsound: list[dict[str, Any]] = [
        *({"places": (*sound[:at], wrong, *sound[at + 1 :])} for at in range(6) for wrong in (-1, 233)),
        {"parameters": bytes([233])}, {"parameters": bytes(33)}, {"slot": 257}, {"slot": 190}, {"scalar": "g"},
        {"scalar": "\0"}, {"launch": 0}, {"kernel": 0}, {"workspace": 209},
    ]  # fmt: skip
    for wrong in unsound:
        with pytest.raises(ValueError, match="this is no launch"):
            add(**wrong)
    a.requires_grad = True
    assert not add()


# Which one a module loads, and how the module carries it


def loaded(module: Any, kept: tuple[str, str, str] | None) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LAUNCHER", kept)
        module.launcher.cache_clear()
        try:
            return module.launcher()
        finally:
            module.launcher.cache_clear()


def packed(binary: bytes) -> tuple[str, str]:
    return hashlib.sha256(binary).hexdigest(), ast.literal_eval("\n".join(packed_lines(binary)))


def test_only_a_launcher_of_the_export_for_this_python_is_loaded(
    of_all: Any, binary: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, digest, data = of_all.LAUNCHER
    assert loaded(of_all, (place, digest, data)) is not None
    changed = packed(binary[:-1] + bytes([binary[-1] ^ 1]))[1]
    for wrong in ((digest, changed), ("0" * 64, data), (digest, data[:100]), (digest, "~")):
        with pytest.raises(RuntimeError, match="the compiled launcher does not match its digest: export this module"):
            loaded(of_all, (place, *wrong))
    for kept in (None, ("linux-other", digest, data), (place, *packed(b"no shared object"))):
        assert loaded(of_all, kept) is None
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: int(name == "Py_GIL_DISABLED"))
    assert loaded(of_all, (place, digest, data)) is None


def test_export_puts_it_into_a_module_only(tmp_path: Path) -> None:
    asked = ["export", "--db", database_of(tmp_path / "results.db", trial()), "--launcher", "--output"]
    path = tmp_path / "best_kernels.py"
    completed(*asked, str(path), "--format", "module", "--no-binaries")
    assert {file.name for file in tmp_path.iterdir()} == {"results.db", "best_kernels.py"}
    assert imported(path.read_text(), tmp_path).launcher().__name__ == "tsm2_launcher"
    for form in ("csv", "library"):
        said = refused(*asked, "-", "--format", form)
        assert f"--launcher is only for a module: leave it out with --format {form}" in said


def test_what_builds_it_may_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tsm2_tune.tuner.export.module.sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(ToolMissing, match=r"^no Python\.h in .*: install Python's development files"):
        launcher_binary()
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ToolMissing, match="C\\+\\+ compiler 'no-such-compiler' not found"):
        launcher_binary()
