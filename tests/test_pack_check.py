"""Checks of a pack on a GPU: what is sampled, what its products and parts say, and what the command prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import tsm2_tune
from tests.command import refused, run
from tests.fabricated import final, tuning_run, vendor_measurement
from tests.simulated import KERNELS, RUN, SHAPES, TARGET, TODAY, stored_trial
from tsm2_tune.errors import InputError, ToolMissing
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.export.store_kernels import exported_kernels
from tsm2_tune.tuner.packs.check import MOST_UNTUNED, CheckedPart, CheckedProduct, Place, sample
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Final, Outcome, Trial, VendorMeasurement
from tsm2_tune.tuner.runs.events import Noted, VendorLeftOut
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.phase_timer import PhaseTimer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("toolchain", "session_cache")]

PARTS = [(kind, "f32") for kind in ("R", "L", "vector", "wide")]
HERE, OTHER = "NVIDIA H200", "NVIDIA H100 80GB HBM3"
Times = Callable[[Problem], tuple[float, float]]  # of the kernel and of cuBLAS


@dataclass
class World:
    """A GPU whose kernels and cuBLAS take the given times. Each kernel takes `kernel_seconds` of the clock."""

    targets: tuple[Target, ...] = (TARGET,)
    kernel_seconds: float = 1.0
    look_seconds: float = 0.0  # between two looks at the clock
    times: Times = lambda _: (100.0, 200.0)
    outcomes: dict[Problem, Outcome] = field(default_factory=dict)
    routines: tuple[VendorMeasurement, ...] = ()  # of cuBLAS and cuBLASLt, in place of a gemm with that time
    left_out: VendorLeftOut | None = None
    clock: float = 0.0
    compiled: list[Problem] = field(default_factory=list)
    timed: list[Problem] = field(default_factory=list)

    def monotonic(self) -> float:
        self.clock += self.look_seconds
        return self.clock


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> World:
    """The only GPU of this machine."""
    _ = tsm2_tune.check_pack  # imports its module
    found = World()

    class Gpu(Tuner):
        def __init__(self, target: Any, options: Options) -> None:
            self.target, self.options, self.phases, self._ceilings = target, options, PhaseTimer(), RUN.ceilings

        def __enter__(self) -> Gpu:
            return self

        def close(self) -> None: ...

        def expect(self, problem: Problem) -> None: ...

        def compile_ahead(self, candidates: Sequence[Any]) -> list[Any]:
            found.compiled.extend(one.problem for one in candidates)
            return []

        def tune(self, search: Any, *_: Any) -> Iterator[Trial]:
            for one in search:
                found.clock += found.kernel_seconds
                found.timed.append(one.problem)
                trial = stored_trial(one.config, one.problem, found.times(one.problem)[0])
                if (outcome := found.outcomes.get(one.problem)) is not None:
                    trial = replace(trial, outcome=outcome, detail="C[3, 1] = 2", verdict=None, measurement=None)
                yield trial

        def final(self, problem: Problem, prior: Any, *_: Any, **__: Any) -> Final | None:
            kernel_us, vendor_us = found.times(problem)
            vendor = found.routines or (vendor_measurement(vendor_us),)
            (only,) = prior.contenders
            return None if found.left_out else final((only.config, kernel_us), problem=problem, vendor=vendor)

        def left_out(self, problem: Problem) -> VendorLeftOut | None:
            return found.left_out

    doubles = {"api.pack.targets_of": lambda _: found.targets, "api.pack.time": found,
               "tuner.export.comparison.time": found, "tuner.export.comparison.Tuner": Gpu}  # fmt: skip
    for name, double in doubles.items():
        monkeypatch.setattr(f"tsm2_tune.{name}", double)
    return found


def packed(folder: Path, device: str = HERE, vendor_us: float = 200.0) -> Path:
    """Return a file of trials: one kernel won five shapes, in 100 us."""
    database, text = folder / "pack.db", folder / "pack.jsonl"
    config, run_there = KERNELS[0], tuning_run(device)
    with Store.open(database, create=True) as store:
        for problem in SHAPES:
            trial = stored_trial(config, problem, 100.0, full_verdict="right")
            store.add_trial(run_there, trial)
            timed = final((config, 100.0), problem=problem, vendor=(vendor_measurement(vendor_us),))
            store.add_final(run_there, timed, (config.family,), TODAY)
    tsm2_tune.export(database, format="trials", output=text)
    return text


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory, session_cache: None) -> Path:
    return packed(tmp_path_factory.mktemp("pack"))


def test_tuned_near_and_far_products_take_turns_fit_and_differ(pack: Path) -> None:
    with Store.open(pack.with_suffix(".db"), create=False) as store:
        kernels = exported_kernels(store, HERE)
    parts = [(kind, dtype) for dtype in ("f32", "f64") for kind in ("R", "L", "T", "vector", "wide")]
    sampled = sample(kernels, HERE, "pack", parts, 2**28)
    assert list(sampled) == PARTS  # the others have no kernel
    of_r = sampled["R", "f32"]
    assert [one.place for one in of_r[:6]] == [Place.TUNED, Place.NEAR, Place.FAR] * 2
    tuned = {one.choice.asked for one in of_r if one.place is Place.TUNED}
    assert tuned == {one for one in SHAPES if one.least_bytes <= 2**28} != set(SHAPES)
    for one in of_r:
        assert one.choice.match.is_tuned == (one.place is Place.TUNED)
        assert (one.choice.distance > 1.5) == (one.place is Place.FAR)
    assert {one.place for one in sampled["wide", "f32"]} <= {Place.NEAR, Place.FAR}
    for products in sampled.values():
        problems = [one.choice.asked for one in products]
        assert len(set(problems)) == len(problems) >= MOST_UNTUNED
        assert max(one.least_bytes for one in problems) <= 2**28


def test_every_part_of_a_faster_pack_is_trusted(pack: Path, gpu: World) -> None:
    events = list[object]()
    found = tsm2_tune.check_pack(pack, on_event=events.append)
    assert list(found.parts) == PARTS
    assert {part.trust for part in found.parts.values()} == {"yes"}
    assert {one.gain for one in found.products if one.config} == {2.0}
    assert {one.gain for one in found.products if not one.config} == {1.0}
    told = [one for one in events if isinstance(one, CheckedProduct)]
    assert sorted(told, key=lambda one: one.problem) == sorted(found.products, key=lambda one: one.problem)
    assert len(gpu.timed) == sum(bool(one.config) for one in told)
    assert min(len(part.products) for part in found.parts.values()) == MOST_UNTUNED  # of those without a tuned shape
    assert (found.target, found.tuned_on) == (TARGET, HERE)
    gpu.timed.clear()
    said, timed = run("pack", "--check", str(pack), "--only", "L").stdout.splitlines()[-1], len(gpu.timed)
    assert said == f"{timed} kernels timed in {timed} s: no measured part is slower than cuBLAS"


def test_parts_take_turns_until_the_time_ends(pack: Path, gpu: World) -> None:
    gpu.kernel_seconds = 18.0
    found = tsm2_tune.check_pack(pack)
    assert (len(gpu.timed), found.seconds) == (7, 126)
    counts = [len(part.gains) for part in found.parts.values()]
    assert max(counts) - min(counts) <= 1
    assert len(gpu.compiled) < len({one.problem for one in tsm2_tune.check_pack(pack).products})


def test_trust_depends_on_losses_and_failures() -> None:
    trust = {(2.0, 0.98): "yes", (2.0, 0.96): "partly", (1.5, 0.6): "no", (0.98, 0.98): "no", (): None}
    failed = CheckedProduct(SHAPES[0], "far", "a kernel", has_failed=True)
    for gains, expected in trust.items():
        products = [CheckedProduct(SHAPES[0], "tuned", "a kernel", 100.0, 100 * gain) for gain in gains]
        assert CheckedPart(tuple(products)).trust == expected, gains
        assert CheckedPart((*products, failed)).trust == "no", gains


@pytest.mark.parametrize(
    ("outcome", "trust"), [(Outcome.WRONG_RESULT, "no"), (Outcome.COMPILE_FAILED, "no"), (Outcome.INTERRUPTED, "yes")]
)
def test_a_kernel_that_fails_is_named_and_not_trusted(pack: Path, gpu: World, outcome: Outcome, trust: str) -> None:
    gpu.outcomes[SHAPES[0]] = outcome
    said = run("pack", "--check", str(pack), "--only", "R")
    assert said.exit_code == int(outcome is not Outcome.INTERRUPTED)
    assert said.stdout.splitlines()[-1] == f"{SHAPES[0].text}: {outcome}: C[3, 1] = 2"
    found = tsm2_tune.check_pack(pack, only="R,L")
    (failed,) = (one for one in found.products if one.problem == SHAPES[0])
    assert (failed.gain, failed.trouble) == (None, f"{outcome}: C[3, 1] = 2")
    assert [part.trust for part in found.parts.values()] == [trust, "yes"]


GEMM, LT, GEMV = (
    vendor_measurement(us, name)
    for us, name in ((200, "cublasSgemm"), (150, "cublasLtMatmul #3"), (120, "cublasSgemv"))
)


@pytest.mark.parametrize(
    ("routines", "gain"),
    [
        ((GEMM, LT), 2.0),
        ((LT, GEMV), 1.2),
        ((LT,), None),
        ((vendor_measurement(90, right=False),), None),
        ((vendor_measurement(90, right=False), LT), None),
        ((), None),
    ],
)
def test_gains_are_over_cublas_without_cublaslt(
    pack: Path, gpu: World, routines: tuple[VendorMeasurement, ...], gain: float | None
) -> None:
    gpu.routines = routines
    gpu.left_out = None if routines else VendorLeftOut(SHAPES[0], "neither library has it")
    found = tsm2_tune.check_pack(pack, only="R")
    assert {one.gain for one in found.products if one.config} == {gain}
    assert routines or found.parts["R", "f32"].trust == "yes"  # products that the module leaves to cuBLAS


def test_without_cublas_nothing_is_checked(pack: Path, gpu: World) -> None:
    gpu.left_out = VendorLeftOut(None, "libcublas not found")
    with pytest.raises(ToolMissing, match="`pack --check` needs cuBLAS: libcublas not found"):
        tsm2_tune.check_pack(pack)
    assert len(gpu.timed) == 1


def test_kernels_of_another_gpu_are_checked_here(tmp_path: Path, gpu: World) -> None:
    found = tsm2_tune.check_pack(packed(tmp_path, OTHER), only="R")
    assert (found.target.identity.name, found.tuned_on) == (HERE, OTHER)
    assert found.parts["R", "f32"].trust == "yes"


def test_what_a_pack_of_another_gpu_leaves_to_cublas_is_not_timed(tmp_path: Path, gpu: World) -> None:
    found = tsm2_tune.check_pack(packed(tmp_path, OTHER, vendor_us=1.0), only="R")
    assert (found.target.identity.name, found.tuned_on) == (HERE, OTHER)
    assert (gpu.timed, {one.config for one in found.products}) == ([], {""})
    assert len(found.products) > MOST_UNTUNED
    assert (set(found.parts["R", "f32"].gains), found.parts["R", "f32"].trust) == ({1.0}, "yes")


def test_nothing_is_stored(tmp_path: Path, gpu: World, monkeypatch: pytest.MonkeyPatch) -> None:
    text = packed(tmp_path)
    monkeypatch.chdir(tmp_path)
    gpu.kernel_seconds = 50.0
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for name in (text, text.with_suffix(".db"), "pretuned:h100"):
        events = list[object]()
        found = tsm2_tune.check_pack(name, only="R", dtype="f32", on_event=events.append)
        assert tuple(one for one in events if isinstance(one, CheckedProduct)) == found.products
        assert all(isinstance(one, Noted | CheckedProduct) for one in events)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_command_prints_a_line_for_each_part(pack: Path, gpu: World) -> None:
    gpu.times = lambda problem: (100.0, 90.0 if problem == SHAPES[0] else 200.0)
    said = run("pack", "--check", str(pack), "--only", "R,L,T")
    assert (said.exit_code, said.stderr) == (0, f"checking {pack} on {HERE}: about 120 seconds\n")
    head, columns, of_r, of_l, about, closing, slow = said.stdout.splitlines()
    assert head == f"{HERE}, kernels of {pack}, tuned on {HERE}: L2 dirty before each sample"
    assert " ".join(columns.split()) == "kind type products x cuBLAS slower worst left to cuBLAS trust"
    kind, dtype, *_, worst, _, trust = of_r.split()
    assert (kind, dtype, worst, trust) == ("R", "f32", "0.90", "partly")
    assert of_l.split()[-1] == "yes"
    assert about.startswith("x cuBLAS: times as fast as cuBLAS")
    assert closing.endswith("to tune the parts with no or partly: tsm2-tune pack --only R --dtype f32 -o own.jsonl")
    assert slow.startswith(f"{SHAPES[0].text}, tuned: 100.0 us, cuBLAS 90.0 us: 0.90 x, ")


def test_a_check_that_is_stopped_says_so(pack: Path, gpu: World) -> None:
    def interrupted(problem: Problem) -> tuple[float, float]:
        raise KeyboardInterrupt

    gpu.times = interrupted
    said = run("pack", "--check", str(pack))
    assert (said.exit_code, said.stdout) == (130, "stopped; nothing is stored\n")


def test_no_kernel_is_begun_after_the_end_and_its_part_has_dashes(pack: Path, gpu: World) -> None:
    gpu.look_seconds = 121.0
    said = run("pack", "--check", str(pack), "--only", "R").stdout.splitlines()
    assert (gpu.timed, said[2].split()) == ([], ["R", "f32", *"------"])
    assert said[-1] == "nothing was measured: run it again"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--hours", "2"), "leave out --hours"),
        (("--db", "a.db"), "leave out --db"),
        (("-o", "a.jsonl"), "leave out --output"),
        (("--only", "S"), "unknown kind in --only 'S': expected one of R, L"),
        (("--only", "gram", "--dtype", "bf16"), "Gram matrices have only the types"),
        (("--only", "T"), f"has no kernel of {HERE} for these kinds and types"),
    ],
)
def test_contradictions_are_refused(pack: Path, gpu: World, arguments: tuple[str, ...], words: str) -> None:
    assert words in refused("pack", "--check", str(pack), *arguments)
    assert gpu.timed == []


def test_what_is_no_pack_or_several_gpus_are_refused(
    tmp_path: Path, gpu: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("README.md").write_text("text")
    for name in ("none.jsonl", "README.md", "pretuned:none", "h100", ""):
        refused("pack", "--check", name)
    assert list(tmp_path.iterdir()) == [tmp_path / "README.md"]
    tsm2_tune.tune("64x2x64", device="cpu", family="tsm2", max_trials=1, pairs=False, db="of_cpu.db")
    with pytest.raises(InputError, match="has no kernel for a GPU"):
        tsm2_tune.check_pack("of_cpu.db")
    gpu.targets = (TARGET, TARGET)
    with pytest.raises(InputError, match="on one GPU"):
        tsm2_tune.check_pack("of_cpu.db")
