"""The compiled launcher does what the short way in Python does, to the byte, and no more."""

from __future__ import annotations

import base64
import ctypes
import gc
import hashlib
import itertools
import math
import random
import sys
import threading
import tracemalloc
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.fabricated import device_array, exported, handmade, imported, trial, tuning_run, winners
from tests.fake_tensors import Masked, Parameter, Tensor, exchange, fake_torch
from tests.recording_driver import RecordingDriver
from tsm2_tune.cli import main
from tsm2_tune.errors import ToolMissing
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.export.compiled import launcher_binary
from tsm2_tune.tuner.store import Store

pytestmark = [pytest.mark.host, pytest.mark.usefixtures("toolchain", "session_cache")]

TYPES = {"f32": "<f4", "f64": "<f8", "c64": "<c8", "c128": "<c16", "bf16": "<i2", "f16": "<f2"}
WORDS = {"f32": "float32", "f64": "float64", "c64": "complex64", "c128": "complex128", "bf16": "bfloat16"}
WORDS["f16"] = "float16"


class Driver(RecordingDriver):
    """One that records each launch as the bytes that a kernel gets."""

    def launch(self, config: int, function: int, parameters: int, extra: None) -> int:
        if self._in_force() is None:
            return 201  # CUDA_ERROR_INVALID_CONTEXT
        pointers = (ctypes.c_void_p * 13).from_address(parameters)
        started = ctypes.string_at(config, 56)
        arguments = [ctypes.string_at(pointer, 16) for pointer in pointers]
        self.launches.append({"config": started, "function": function, "arguments": arguments})
        return 0


@pytest.fixture(scope="module")
def binary(session_cache: None) -> bytes:
    return launcher_binary()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, binary: bytes) -> tuple[ModuleType, ModuleType]:
    """A module without the launcher and one with it: kernels of each type, and of f64 one that splits k."""
    folder = tmp_path_factory.mktemp("modules")
    problems = [Problem(64, 4, 64, dtype, op) for dtype in TYPES for op in ("nn", "ttt")]
    problems += [Problem(64, 4, 64, "c64", "cn")]
    trials = [(tuning_run(), trial(problem=p)) for p in problems]
    split = Problem(64, 4, 64, "f64", "tn")
    found = winners(folder, *trials, (tuning_run(), trial(problem=split, source=handmade(split))))
    modules = [imported(exported("module", found, launcher=one), folder) for one in (None, binary)]
    return modules[0], modules[1]


def ready(module: ModuleType, patch: pytest.MonkeyPatch) -> ModuleType:
    """The module before a driver of its own, as `driver`; it has started nothing yet."""
    driver = Driver()
    for name in ("plans", "starters", "launchers", "_workspaces"):
        getattr(module, name).clear()
    patch.setattr(module, "cuda", lambda: driver)
    patch.setattr(module, "cubin_of", lambda *_: b"cubin")
    patch.setattr(module, "driver", driver, raising=False)
    return module


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    fake = fake_torch()
    fake.addmm = lambda c, a, b, *, beta, alpha, out: out
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


@pytest.fixture
def plain(pair: tuple[ModuleType, ModuleType], torch: Any, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return ready(pair[0], monkeypatch)


@pytest.fixture
def compiled(pair: tuple[ModuleType, ModuleType], torch: Any, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return ready(pair[1], monkeypatch)


@pytest.fixture
def looked(compiled: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls that the launcher left to Python."""
    asked, made = list[Any](), compiled.torch_starter

    def starter(torch: Any) -> Callable[..., Any]:
        plain = made(torch)

        def start(*arguments: Any) -> Any:
            asked.append(arguments)
            return plain(*arguments)

        return start

    monkeypatch.setattr(compiled, "torch_starter", starter)
    return asked


def tensor(shape: tuple[int, ...], order: str, at: int, dtype: str = "f32", pad: int = 0, **changes: Any) -> Tensor:
    """A tensor at this address, its lines `pad` elements apart."""
    size, kind = int(TYPES[dtype][2:]), changes.pop("kind", Tensor)
    along = (size,) if len(shape) == 1 else (size, size * (shape[0] + pad)) if order == "F" else ()
    strides = along or (size * (shape[1] + pad), size)
    described = device_array(shape, strides, at=at, typestr=TYPES[dtype])
    return kind(described, dtype=f"torch.{WORDS[dtype]}", **changes)  # type: ignore[no-any-return]


# The same, launch for launch

FACTORS = (None, None, None, 2, 0.5, -1.0, 1e-310, 2**70, -(2**24) - 1, 0, -0.0)
ODD_FACTORS = (True, np.float32(3), 1j, 2 - 3j, math.nan, math.inf, complex(math.nan), 1e300, "1", 2**128, 10**400)
ODD_TENSORS: tuple[dict[str, Any], ...] = (
    {"requires_grad": True},
    {"is_neg": lambda: True},
    {"kind": Masked},
    {"kind": Parameter},
    {"is_conj": lambda: True},
)


def random_call(rng: random.Random) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of gemm: mostly as programs have them, on one of few shapes."""
    dtype = rng.choice([*TYPES])
    m, n, k = (rng.choice(extents) for extents in ((1, 6), (2, 4), (3, 64)))
    a_order, b_order, out_order = rng.choice(["FFF", "CCC", "CFF", "FCC"])
    shapes = [(m, k), (k, n), (m, n)]
    if rng.random() < 0.1:
        shapes = rng.choice([[(k,), (k, n), (n,)], [(m, k), (k,), (m,)]])
    ats = [0x1000, 0x3000 if rng.random() < 0.95 else 0x1000, 0x5000 if rng.random() < 0.95 else 0x1008]
    odd = [rng.choice(ODD_TENSORS) if rng.random() < 0.03 else {} for _ in shapes]
    pads = [3 if rng.random() < 0.1 else 0 for _ in shapes]
    arrays = [
        tensor(shape, order, at, dtype if rng.random() < 0.99 else "f32", pad, **changes)
        for shape, order, at, pad, changes in zip(shapes, (a_order, b_order, out_order), ats, pads, odd, strict=True)
    ]
    factor = lambda: rng.choice(ODD_FACTORS if rng.random() < 0.1 else FACTORS)  # noqa: E731
    named: dict[str, Any] = {"alpha": factor(), "beta": factor(), "out": arrays[2]}
    if rng.random() < 0.25:
        named |= {"out": None, "beta": factor() if rng.random() < 0.1 else None}
    if rng.random() < 0.1:
        named |= rng.choice([{"fallback": "error"}, {"conj_a": True}, {"conj_b": 1}, {"math": "x"}, {"stream": 78}])
    return arrays[:2], named


def outcome(module: ModuleType, torch: Any, arrays: list[Any], named: dict[str, Any]) -> tuple[Any, ...]:
    """What a call did: what it returned or raised, what it made and what it started."""
    driver, made = module.driver, len(torch.made)
    del driver.launches[:], driver.calls[:]
    try:
        result: Any = module.gemm(*arrays, **named)
        returned = "out" if result is named["out"] else ("made", result.shape, result.stride(), result.dtype)
    except Exception as error:
        returned = (type(error).__name__, str(error))
    return returned, len(torch.made) - made, list(driver.launches), list(driver.calls)


@pytest.mark.parametrize("seed", range(6))
def test_each_call_does_what_it_does_without(
    plain: ModuleType, compiled: ModuleType, looked: list[Any], torch: Any, seed: int
) -> None:
    rng, by_launcher = random.Random(seed), 0
    for turn in range(1500):
        torch.stream = rng.choice((0, 77, 2**63 + 5))
        for module in (plain, compiled):  # now and then in a thread that has another context
            module.driver.current = 0xC0 if turn % 7 else None
        arrays, named = random_call(rng)
        expected, left = outcome(plain, torch, arrays, named), len(looked)
        assert outcome(compiled, torch, arrays, named) == expected, (arrays, named)
        by_launcher += len(expected[2]) if len(looked) == left else 0
    assert by_launcher > 200


def test_it_is_the_launcher_that_starts_them(compiled: ModuleType, looked: list[Any]) -> None:
    compiled.driver.current = 0xC0
    a, b, out = tensor((6, 3), "F", 0x1000), tensor((3, 2), "F", 0x2000), tensor((6, 2), "F", 0x3000)
    for made in (out, None):
        compiled.gemm(a, b, out=made)
        for named in ({}, {"alpha": 2}, {"alpha": 2.5, "beta": 1} if made is out else {}):
            compiled.gemm(a, b, out=made, **named)
    compiled.gemm(a, b, out=out, fallback="error")
    compiled.gemm(a, b, out=out, fallback="error")
    assert len(compiled.driver.launches) == 10
    assert len(looked) == 2  # the first of the second kind and the first of the third


def test_a_refused_launch_is_made_in_the_plans_context(compiled: ModuleType) -> None:
    a, b, out = tensor((6, 3), "F", 0x1000), tensor((3, 2), "F", 0x2000), tensor((6, 2), "F", 0x3000)
    for _ in range(2):
        compiled.gemm(a, b, out=out)  # no context is current
    assert compiled.driver.calls[-2:] == ["push aa", "pop"]
    assert len(compiled.driver.launches) == 2


def test_a_tensor_of_another_device_is_another_product(compiled: ModuleType, torch: Any, looked: list[Any]) -> None:
    compiled.driver.current = 0xC0
    arrays = [tensor(s, "F", at) for s, at in (((6, 3), 0x1000), ((3, 2), 0x2000), ((6, 2), 0x3000))]
    compiled.gemm(*arrays)
    compiled.gemm(*arrays[:2])
    for one in arrays:
        one.get_device = lambda: 1
    compiled.gemm(*arrays)
    compiled.gemm(*arrays[:2])
    assert len(looked) == 3


def test_more_shapes_than_are_kept(compiled: ModuleType, looked: list[Any]) -> None:
    compiled.driver.current = 0xC0
    b = tensor((3, 2), "F", 0x800)
    for turn in range(2):
        for m in range(1, 4300):
            compiled.gemm(tensor((m, 3), "F", 0x1000), b)
        assert len(looked) == (turn + 1) * 4299 - 1
    compiled.gemm(tensor((m, 3), "F", 0x1000), b)
    assert len(looked) == 2 * 4299 - 1
    assert len(compiled.driver.launches) == 2 * 4299 + 1


# What it holds


def test_nothing_is_kept_of_a_call(compiled: ModuleType, torch: Any) -> None:
    compiled.driver.current = 0xC0
    compiled.driver.cuLaunchKernelEx = ctypes.CDLL(None).sched_yield  # returns 0, and records nothing
    a, b, out = (tensor(s, "F", at, "c64") for s, at in (((6, 3), 0x1000), ((3, 2), 0x2000), ((6, 2), 0x3000)))
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

    calls(50)
    before = [sys.getrefcount(one) for one in counted]
    tracemalloc.start()
    calls(9000)  # until the interpreter's own stores of freed objects are full
    allocated = tracemalloc.get_traced_memory()[0]
    calls(32_000)
    grown = tracemalloc.get_traced_memory()[0] - allocated
    tracemalloc.stop()
    after = [sys.getrefcount(one) for one in counted]
    changed = [now - then for then, now in zip(before, after, strict=True)]
    assert max(map(abs, changed)) < 50, changed
    assert grown < 10_000  # bytes


def test_a_launcher_goes_with_what_it_holds(compiled: ModuleType) -> None:
    class Argument:
        pass

    argument = Argument()
    plain = lambda *_, argument=argument: argument  # noqa: E731
    made = compiled.launcher().Launcher(plain, exchange(), (Tensor, Parameter), int, int, int)
    plain.made = made  # type: ignore[attr-defined]  # a cycle
    assert made.start(1, 2, 3, 4, 5, 6, 7) is argument
    held = sys.getrefcount(argument)
    del made, plain
    gc.collect()
    assert sys.getrefcount(argument) == held - 1


def test_many_threads_at_once(compiled: ModuleType, torch: Any) -> None:
    compiled.driver.current = 0xC0
    threads, calls = 8, 400
    problems: Any = itertools.count()

    def work(number: int) -> None:
        for turn in range(calls):
            m, at = 1 + (number + turn) % 5, 0x1000 * (1 + number)
            arrays = [tensor(s, "F", at + 0x200 * i) for i, s in enumerate(((m, 3), (3, 2), (m, 2)))]
            compiled.gemm(*arrays, alpha=float(number + 1), beta=float(turn))
            if turn % 97 == 0:
                compiled.plans.clear()
                compiled.starters.pop(Tensor, None)  # as one that was never taught
            next(problems)

    running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for one in running:
        one.start()
    for one in running:
        one.join()
    assert next(problems) == threads * calls

    def told(launch: Any) -> tuple[Any, ...]:
        values = launch["arguments"]
        integers = [int.from_bytes(values[at][:8], "little") for at in (0, 4, 6, 9)]
        return (*integers, *(np.frombuffer(values[at][:4], "<f4")[0] for at in (3, 8)))

    expected = Counter(
        (1 + (number + turn) % 5, *(0x1000 * (1 + number) + 0x200 * i for i in range(3)), number + 1.0, float(turn))
        for number in range(threads)
        for turn in range(calls)
    )
    assert Counter(map(told, compiled.driver.launches)) == expected


# Which one is loaded


def loaded(module: ModuleType, patch: pytest.MonkeyPatch, kept: tuple[str, str, str] | None) -> Any:
    patch.setattr(module, "LAUNCHER", kept)
    module.launcher.cache_clear()
    try:
        return module.launcher()
    finally:
        module.launcher.cache_clear()


def packed(binary: bytes) -> tuple[str, str]:
    return hashlib.sha256(binary).hexdigest(), base64.b85encode(zlib.compress(binary)).decode()


def test_one_that_does_not_match_its_digest_is_not_loaded(
    compiled: ModuleType, binary: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, digest, data = compiled.LAUNCHER
    assert loaded(compiled, monkeypatch, (place, digest, data)) is not None
    changed = packed(binary[:-1] + bytes([binary[-1] ^ 1]))[1]
    for wrong in ((place, digest, changed), (place, "0" * 64, data)):
        with pytest.raises(RuntimeError, match="the compiled launcher does not match its digest: export this module"):
            loaded(compiled, monkeypatch, wrong)


def test_one_that_is_not_for_this_python_is_left_alone(compiled: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    place, *rest = compiled.LAUNCHER
    assert loaded(compiled, monkeypatch, None) is None
    assert loaded(compiled, monkeypatch, ("linux-other", *rest)) is None
    assert loaded(compiled, monkeypatch, (place, *packed(b"no shared object"))) is None
    monkeypatch.setattr(compiled.sysconfig, "get_config_var", lambda name: int(name == "Py_GIL_DISABLED"))
    assert loaded(compiled, monkeypatch, (place, *rest)) is None


@pytest.mark.parametrize("capsule", [None, "no capsule", exchange(major=2)])
def test_tensors_that_describe_themselves_in_another_way_go_through_python(
    compiled: ModuleType, monkeypatch: pytest.MonkeyPatch, capsule: Any
) -> None:
    monkeypatch.setattr(Tensor, "__dlpack_c_exchange_api__", capsule)
    a, b = tensor((6, 3), "F", 0x1000), tensor((3, 2), "F", 0x2000)
    for _ in range(2):
        compiled.gemm(a, b)
    assert compiled.launchers == {}
    assert len(compiled.driver.launches) == 2


def test_no_launch_that_does_not_fit_its_slot_is_taken(compiled: ModuleType, torch: Any) -> None:
    made = compiled.launcher().Launcher(int, exchange(), (Tensor, Parameter), int, int, int)
    a, b, out = tensor((6, 3), "F", 0x1000), tensor((3, 2), "F", 0x2000), tensor((6, 2), "F", 0x3000)

    sound = (56, 64, 72, 128, 176, 32)

    def add(
        slot: int = 240,
        places: tuple[int, ...] = sound,
        parameters: bytes = b"\x00",
        scalar: str = "f",
        launch: int = 1,
    ) -> bool:
        rest = ((0, 0, 0), (scalar, 1.0), False, ((), {}))
        return bool(made.add(a, b, out, None, int, (launch, 1), bytes(slot), places, parameters, *rest))

    assert add()
    misplaced = [(*sound[:at], wrong, *sound[at + 1 :]) for at in range(6) for wrong in (-1, 233)]
    unsound: list[Any] = [{"places": places} for places in misplaced]
    unsound += [{"parameters": bytes([233])}, {"parameters": bytes(33)}]
    for wrong in ({"slot": 257}, {"slot": 190}, {"scalar": "g"}, {"scalar": "\0"}, {"launch": 0}, *unsound):
        with pytest.raises(ValueError, match="this is no launch"):
            add(**wrong)
    a.requires_grad = True
    assert not add()


# What makes it


def database(folder: Path) -> str:
    with Store.open(folder / "results.db", create=True) as store:
        store.add_trial(tuning_run(), trial())
    return str(folder / "results.db")


def export(folder: Path, *arguments: str) -> Any:
    output = str(folder / "best_kernels.py")
    command = ["export", "--db", database(folder), "--no-binaries", "--output", output, *arguments]
    return CliRunner().invoke(main, command)


def test_export_puts_it_into_the_module(tmp_path: Path) -> None:
    done = export(tmp_path, "--format", "module", "--launcher")
    assert done.exit_code == 0, done.output
    assert {file.name for file in tmp_path.iterdir()} == {"results.db", "best_kernels.py"}
    module = imported((tmp_path / "best_kernels.py").read_text(), tmp_path)
    assert module.launcher().__name__ == "tsm2_launcher"


def test_without_it_the_module_has_none(tmp_path: Path) -> None:
    assert export(tmp_path, "--format", "module").exit_code == 0
    module = imported((tmp_path / "best_kernels.py").read_text(), tmp_path)
    assert (module.LAUNCHER, module.launcher()) == (None, None)


@pytest.mark.parametrize("form", ["csv", "library"])
def test_it_is_of_a_module(tmp_path: Path, form: str) -> None:
    command = ["export", "--db", database(tmp_path), "--output", "-", "--format", form, "--launcher"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 2
    assert f"--launcher is of a module: leave it out with --format {form}" in done.output


def test_what_builds_it_may_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tsm2_tune.tuner.export.compiled.sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(ToolMissing, match=r"^no Python\.h in .*: install Python's development files"):
        launcher_binary()
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ToolMissing, match="C\\+\\+ compiler 'no-such-compiler' not found"):
        launcher_binary()
