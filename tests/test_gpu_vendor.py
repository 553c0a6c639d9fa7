"""On a GPU: the vendor's libraries are found, compute our products, and stand in finals beside our kernels.

python -m pytest -q tests/test_gpu_vendor.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import completed, run
from tests.fabricated import plain_sql
from tests.fake_vendor import PRODUCTS
from tests.on_gpu import ON_GPU
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.device.cuda import CudaDevice
from tsm2_tune.tuner.device.support_kernels import Support
from tsm2_tune.tuner.measure.timing import Effort, measure
from tsm2_tune.tuner.measure.vendor.finalists import VendorLibraries, vendor_finalists, vendor_libraries
from tsm2_tune.tuner.measure.vendor.libraries import CUBLAS, CUBLASLT
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache
from tsm2_tune.tuner.verify.operands import Operands
from tsm2_tune.tuner.worker.client import Worker

pytestmark = ON_GPU

LARGER = tuple(
    map(
        Problem.parse,
        (
            "4096x16x4096:f32",
            "4096x16x4096:f64:ttt",
            "16x16x200000:f64:tx",
            "24x24x100000:c64:cx",
            "20000x1x3000:f32:tn",
            "20000x8x300:c128:cn",
            "5000x32x64:bf16",
            "5000x32x64:f16:tn",
        ),
    )
)
# Tensor cores may cut operands of TF32 off, where our kernels round them: each costs up to twice as much then.
CUT_OFF = {"tf32": 2.1}
# One kernel, so that there is a single finalist.
TUNE = ("--device", "0", "--shapes", "4096x16x4096", "--family", "tsm2", "--max-trials", "1")


@pytest.fixture(scope="module")
def supports(gpu: CudaDevice, gpu_support: bytes) -> Iterator[dict[str, Support]]:
    """The tuner's own kernels of each type, loaded once."""
    found = {one.dtype_name: Support(gpu, gpu_support, one.dtype_name) for one in (*PRODUCTS, *LARGER)}
    yield found
    for support in found.values():
        support.free()


def test_the_libraries_are_there_and_tell_their_versions(gpu: CudaDevice) -> None:
    found = vendor_libraries(gpu)
    assert found.trouble == ""
    assert [name for name, _ in found.versions] == [CUBLAS, CUBLASLT]
    assert all(110000 < version < 1000000 for _, version in found.versions)


@pytest.mark.parametrize("problem", [*PRODUCTS, *LARGER], ids=lambda problem: problem.text)
def test_the_vendor_computes_the_product(gpu: CudaDevice, supports: dict[str, Support], problem: Problem) -> None:
    operands = Operands(gpu, supports[problem.dtype_name], problem, index_bits=problem.index_bits)
    try:
        with vendor_finalists(gpu, operands, seed=5, cache=Cache.CLEAN) as found:
            assert found.routines, found.trouble
            for one in found.routines:
                verdict = one.verdict
                assert verdict.correct or verdict.worst_ratio < CUT_OFF.get(problem.dtype_name, 0), (
                    f"{one.routine.name}: {verdict.detail}"
                )
                times = measure(gpu, one.routine.launch, Effort(min_samples=3, max_samples=3))
                assert 0.5 < times.median_us < 1e5
    finally:
        operands.free()


def test_what_the_vendor_took_is_given_back(gpu: CudaDevice, supports: dict[str, Support]) -> None:
    problem = LARGER[0]
    operands = Operands(gpu, supports[problem.dtype_name], problem, index_bits=problem.index_bits)
    try:
        taken = []
        for _ in range(6):
            before = gpu.drv.mem_get_info()[0]
            with vendor_finalists(gpu, operands, seed=5, cache=Cache.CLEAN):
                pass
            gpu.synchronise()
            taken.append(before - gpu.drv.mem_get_info()[0])
        # the first one also loads the libraries' kernels, and other processes may use the GPU
        assert min(taken[1:]) <= 2**20, taken
    finally:
        operands.free()


def test_a_final_stores_the_vendor_and_best_tells_it(path: Path) -> None:
    """One finalist: the final is for the vendor's sake, and the same command again has nothing to do."""
    told = completed(*TUNE, "--db", str(path))
    assert "x cuBLAS" in told.output
    assert "not measured" not in told.output
    rows = plain_sql(
        path, "SELECT library, verdict_correct, round, cache FROM vendor_measurement ORDER BY round, library"
    )
    assert rows == [
        *((library, 1, 1, "clean") for library in (CUBLAS, CUBLASLT)),
        *((library, 1, 2, "dirty") for library in (CUBLAS, CUBLASLT)),
    ]
    assert plain_sql(path, "SELECT count(*) FROM trial WHERE config LIKE 'cublas%'") == [(0,)]

    (best,) = json.loads(run("best", "--json", "--db", str(path)).output)["best"]
    ((fastest,),) = plain_sql(path, "SELECT min(median_us) FROM vendor_measurement WHERE cache = 'dirty'")
    assert (best["l2_state"], best["round"], best["vendor_us"]) == ("dirty", 2, fastest)
    assert best["clean_x_cublas"] == pytest.approx(best["clean_vendor_us"] / best["clean_us"])
    assert best["x_cublas"] == pytest.approx(best["vendor_us"] / best["median_us"])
    assert "x cuBLAS" in run("best", "--db", str(path)).output
    for form in ("csv", "json", "markdown", "latex", "module"):
        exported = completed("export", "--format", form, "--output", "-", "--db", str(path))
        routine = best["cublas_routine" if form == "module" else "vendor_routine"]  # a module falls back to the gemm
        assert routine.replace("#", "") in exported.output.replace("\\", "").replace("#", "")

    assert run(*TUNE, "--db", str(path)).exit_code == 0
    with Store.open(path, create=False) as store:
        assert [row.round for row in store.best()] == [2]


def test_the_vendor_is_left_out_where_that_is_asked_for(path: Path) -> None:
    told = completed(*TUNE, "--no-vendor", "--db", str(path))
    assert "cuBLAS" not in told.output
    assert plain_sql(path, "SELECT count(*) FROM vendor_measurement") == [(0,)]


def test_missing_libraries_are_told_in_a_sentence(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "vendor", lambda _: VendorLibraries((), "libcublas not found: looked everywhere"))
    told = completed(*TUNE, "--db", str(path))
    assert told.output.count("cuBLAS not measured: libcublas not found") == 1
    assert "--no-vendor" in told.output
