"""The vendor's libraries: how they are found, what they are told, and which of their routines stand in a final."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.call_log import logged
from tests.conftest import ONCE, compiled
from tests.fake_vendor import PRODUCTS, VERSION, FakeLibrary, opened
from tsm2_tune.errors import ToolMissing
from tsm2_tune.generator.families.published import Tsm2Config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.emulator.device import HostDevice
from tsm2_tune.tuner.device.interface import KernelFault
from tsm2_tune.tuner.device.support_kernels import Support
from tsm2_tune.tuner.measure.vendor import libraries
from tsm2_tune.tuner.measure.vendor.finalists import Vendor, vendor_finalists, vendor_libraries
from tsm2_tune.tuner.measure.vendor.libraries import CUBLAS, CUBLASLT, CublasError, check, library, version_text
from tsm2_tune.tuner.measure.vendor.routines import Routine, fastest_first, routines_of_cublas, verdict_on
from tsm2_tune.tuner.results.trial import Cache, Outcome
from tsm2_tune.tuner.verify.bound_kernel import Entry
from tsm2_tune.tuner.verify.checks import checks_of
from tsm2_tune.tuner.verify.operands import Operands
from tsm2_tune.tuner.verify.verdict import prepare
from tsm2_tune.tuner.worker.protocol import AttemptResult, FinalRound
from tsm2_tune.tuner.worker.server import _RequestHandler

SMALL = Problem(64, 2, 70, "f32")
CONFIG = Tsm2Config("v0", 32, 1, 1)
SEED = 3


def test_libraries_are_looked_for_in_this_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for folder in ("cublas/lib", "cu13/lib", "cuda_runtime/bin"):
        (tmp_path / "nvidia" / folder).mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", "/home/of/cuda")
    monkeypatch.delenv("CUDA_PATH", raising=False)
    found = list(libraries.folders())
    assert found[0] == "/home/of/cuda/lib64"
    assert found.index(libraries.OF_LINKER) < found.index("/usr/local/cuda/lib64")
    wheels = [folder for folder in found if folder.startswith(str(tmp_path))]
    assert wheels == [str(tmp_path / "nvidia" / name / "lib") for name in ("cublas", "cu13")]
    assert "nvidia" not in sys.modules


def test_a_library_that_is_nowhere_and_its_answers_are_sentences(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "libcublas.so.13").write_text("no library")
    monkeypatch.setattr(libraries, "folders", lambda: iter([str(tmp_path)]))
    with pytest.raises(ToolMissing, match=r"libcublas not found: looked in .*; install the CUDA toolkit"):
        library(CUBLAS)
    check(0, "cublasSgemm")
    for status, said in ((15, r"15 \(not supported\)"), (99, "99")):
        with pytest.raises(CublasError, match=f"^cublasSgemm answers {said}$"):
            check(status, "cublasSgemm")
    assert [version_text(version) for version in (130100, 120304)] == ["13.1.0", "12.3.4"]


@pytest.fixture
def host(support_code: bytes) -> HostDevice:
    return HostDevice(support_code=support_code)


def operands_of(host: HostDevice, support_code: bytes, problem: Problem) -> Operands:
    return Operands(host, Support(host, support_code, problem.dtype_name), problem, index_bits=problem.index_bits)


@pytest.mark.slow
@pytest.mark.parametrize("problem", PRODUCTS, ids=lambda problem: problem.text)
def test_both_compute_the_product_of_the_operands(
    monkeypatch: pytest.MonkeyPatch, host: HostDevice, support_code: bytes, problem: Problem
) -> None:
    fakes = FakeLibrary(), FakeLibrary()
    opened(monkeypatch, *fakes)
    operands = operands_of(host, support_code, problem)
    with vendor_finalists(host, operands, seed=SEED, cache=Cache.CLEAN) as found:
        assert [one.library for one in found.routines] == [CUBLAS, CUBLASLT], found.trouble
        assert [one.version for one in found.routines] == [VERSION, VERSION]
        for one in found.routines:
            assert one.verdict.correct, one.verdict.detail
            assert 0 <= one.verdict.worst_ratio < 1
    assert [fake.open_objects() for fake in fakes] == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("text", ["5x5x70:f32:nxt", "5x5x70:c128:cx"])
@pytest.mark.parametrize("missing", [0, 1])
def test_half_of_a_symmetric_product_is_compared_as_all_of_it(
    monkeypatch: pytest.MonkeyPatch, host: HostDevice, support_code: bytes, text: str, missing: int
) -> None:
    opened(monkeypatch, FakeLibrary(missing), FakeLibrary())
    operands = operands_of(host, support_code, Problem.parse(text))
    prepare(operands, checks_of(operands.problem)[-1], seed=SEED)
    vendor = Vendor(host)
    _, half = routines_of_cublas(vendor.cublas, operands)
    assert (half.name[7:], half.is_half) in (("syrk", True), ("herk", True))
    assert verdict_on(host, operands, half, seed=SEED).correct is (missing == 0)
    vendor.close()


@pytest.mark.slow
def test_cublas_has_routines_for_vectors_and_for_a_matrix_times_itself(
    monkeypatch: pytest.MonkeyPatch, host: HostDevice, support_code: bytes
) -> None:
    for text, expected in (
        ("50x1x30:f32", {"cublasSgemm_v2", "cublasSgemv_v2"}),
        ("4x4x30:c64:cx", {"cublasCgemm_v2", "cublasCherk_v2"}),
        ("6x4x30:tf32", {"cublasGemmEx"}),
        ("6x4x30:3xtf32", {"cublasSgemm_v2"}),
    ):
        cublas = FakeLibrary()
        opened(monkeypatch, cublas, FakeLibrary())
        operands = operands_of(host, support_code, Problem.parse(text))
        with vendor_finalists(host, operands, seed=SEED, cache=Cache.CLEAN):
            assert set(cublas.calls) >= expected
        assert not {name for name in cublas.calls if "ge" in name[7:9] or "rk_" in name or "Gemm" in name} - expected


def test_the_fastest_routine_comes_first_and_what_declines_is_left_out() -> None:
    def declines() -> None:
        raise CublasError("cublasLtMatmul answers 15 (not supported)")

    def taking(name: str, us: float) -> Routine:
        return Routine(name, cast(Any, lambda: logged(started, name, us)))

    # A launch takes as long as it says.
    device: Any = SimpleNamespace(time_us=lambda launch, cache: launch(), synchronise=lambda: None)
    started: list[str] = []
    routines = [taking("slow", 9.0), taking("fast", 3.0), Routine("none", declines), taking("hopeless", 7.0)]
    found = fastest_first(device, routines)
    assert [one.routine.name for one in found] == ["fast", "hopeless", "slow"]
    assert (started.count("fast"), started.count("hopeless")) == (4, 2)
    with pytest.raises(CublasError, match="answers 15"):
        fastest_first(device, routines[2:3])
    assert fastest_first(device, []) == []


@pytest.fixture
def time_finalists(host: HostDevice, support_code: bytes, quick: Toolchain) -> Callable[..., Any]:
    """A final of one kernel on the host, with the vendor."""
    source = render(SMALL, CONFIG)
    binary = compiled(source.text, source.kernel, quick, source.defines)
    entry, silent = Entry(binary.code, source.kernel, source.launch), SimpleNamespace(send=lambda _: None)

    def asked(vendor: bool = True) -> Any:
        bench = _RequestHandler(host, cast(Any, silent))
        bench._support_codes[SMALL.dtype_name] = support_code
        return bench.answer(FinalRound(SMALL, (entry,), 1, ONCE, vendor=vendor))

    return asked


@pytest.mark.slow
def test_a_final_has_the_vendor_beside_the_finalists(
    monkeypatch: pytest.MonkeyPatch, time_finalists: Callable[..., Any]
) -> None:
    opened(monkeypatch, FakeLibrary(), FakeLibrary(missing=1))
    found = time_finalists()
    assert (len(found.measurements[0]), found.vendor_trouble) == (1, "")
    cublas, cublaslt = found.vendor
    assert (cublas.library, cublas.version, cublas.routine) == (CUBLAS, VERSION, "cublasSgemm")
    assert (cublas.verdict.correct, cublas.measurement.median_us > 0) == (True, True)
    assert cublas.verdict.worst_ratio <= 1
    assert (cublaslt.library, cublaslt.verdict.correct) == (CUBLASLT, False)
    assert cublaslt.routine.startswith("cublasLtMatmul #")
    assert "timed call: C[" in cublaslt.verdict.detail
    assert time_finalists(vendor=False).vendor == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cublas", "cublaslt", "measured", "trouble"),
    [
        ({"declined": ("cublasSgemm_v2",)}, {}, [CUBLASLT], ""),
        ({}, {"declined": ("cublasLtMatmul",)}, [CUBLAS], ""),
        ({}, {"declined": ("cublasLtMatmulAlgoGetHeuristic",)}, [CUBLAS], ""),
        ({"declined": ("cublasSgemm_v2",)}, {"algorithms": 0}, [], "cublasSgemm"),
        ({"declined": ("cublasCreate_v2",)}, {}, [], "cublasCreate"),
        ({}, {"declined": ("cublasLtCreate",)}, [], "cublasLtCreate"),
        ({}, {"declined": ("cublasLtMatrixLayoutCreate",)}, [CUBLAS], ""),
    ],
)
def test_what_the_vendor_declines_never_fails_the_final(
    monkeypatch: pytest.MonkeyPatch, time_finalists: Any, cublas: Any, cublaslt: Any, measured: Any, trouble: str
) -> None:
    opened(monkeypatch, FakeLibrary(**cublas), FakeLibrary(**cublaslt))
    found = time_finalists()
    assert len(found.measurements[0]) == 1
    assert [one.library for one in found.vendor] == measured
    assert found.vendor_trouble == (f"{trouble} answers 15 (not supported)" if trouble else "")


@pytest.mark.slow
def test_a_routine_that_declines_in_the_rounds_leaves_them_to_ours(
    monkeypatch: pytest.MonkeyPatch, time_finalists: Callable[..., Any]
) -> None:
    opened(monkeypatch, FakeLibrary(), FakeLibrary())
    launched: list[int] = []

    def start() -> None:
        launched.append(1)
        check(13 if len(launched) > 6 else 0, "cublasSgemm")

    def faulting(*_: Any, **__: Any) -> Any:
        raise KernelFault("an illegal memory access was encountered")

    monkeypatch.setattr("tsm2_tune.tuner.measure.vendor.cublas.Cublas.launch", lambda *_: start)
    found = time_finalists()
    assert (len(found.measurements[0]), found.vendor) == (1, ())
    assert found.vendor_trouble == "cublasSgemm answers 13 (execution failed)"
    monkeypatch.setattr(Vendor, "finalists", faulting)
    assert time_finalists() == AttemptResult(Outcome.CRASHED, "an illegal memory access was encountered")


def test_the_device_is_asked_for_its_libraries_and_what_they_lack_is_told(
    monkeypatch: pytest.MonkeyPatch, host: HostDevice
) -> None:
    def raising(error: Exception) -> Any:
        def fail(*_: Any) -> Any:
            raise error

        return fail

    fakes = FakeLibrary(), FakeLibrary()
    opened(monkeypatch, *fakes)
    assert vendor_libraries(host).versions == ((CUBLAS, VERSION), (CUBLASLT, VERSION))
    with monkeypatch.context() as patch:
        patch.setattr(host, "allocate", raising(MemoryError("7 bytes of device memory")))
        assert vendor_libraries(host).trouble == "no room for 7 bytes of device memory"
    assert [fake.open_objects() for fake in fakes] == [0, 0]
    old = type("Old", (), {"__getattr__": lambda _, name: raising(AttributeError(f"undefined symbol: {name}"))()})
    opened(monkeypatch, cast(Any, old()), FakeLibrary())
    assert vendor_libraries(host).trouble == "undefined symbol: cublasCreate_v2"
    missing = ToolMissing("libcublas not found: looked everywhere")
    monkeypatch.setattr("tsm2_tune.tuner.measure.vendor.cublas.library", raising(missing))
    found = vendor_libraries(host)
    assert (found.versions, found.trouble) == ((), str(missing))
