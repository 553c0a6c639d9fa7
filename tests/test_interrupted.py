"""A failure of the machine is never a verdict on a kernel: it is tried again, else told and left untried."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.command import TUNE, run
from tests.conftest import ONCE, TryKernel
from tests.fabricated import plain_sql
from tests.on_host import ON_HOST
from tests.workers import Disturbed
from tsm2_tune.errors import DeviceError, ToolMissing
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.families.published import Tsm2Config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.tuner.compile import cache, compiler, pool
from tsm2_tune.tuner.compile.compiler import Toolchain, compile_text
from tsm2_tune.tuner.device.cuda_kernel import FAULTS, fault_of, refusal_of
from tsm2_tune.tuner.device.interface import DeviceLost, KernelFault, LaunchFailed
from tsm2_tune.tuner.device.target import find_target
from tsm2_tune.tuner.results.trial import Binary, CompileFailure, Final, Outcome
from tsm2_tune.tuner.runs.events import FinalFailure
from tsm2_tune.tuner.search import finals as tuning
from tsm2_tune.tuner.search.candidates import Search
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.resume import FinalCandidate, PriorTrials
from tsm2_tune.tuner.search.strategies.strategy import InOrder
from tsm2_tune.tuner.verify.winner_calls import EMULATED
from tsm2_tune.tuner.worker import client as workers
from tsm2_tune.tuner.worker.client import Attempt, AttemptResult, FinalRound, Worker, WorkerError

pytestmark = [*ON_HOST, pytest.mark.usefixtures("own_cache")]

PROBLEM = Problem(64, 2, 64, "f32")
CONFIGS = [Tsm2Config("v2", 32, columns, 4) for columns in (1, 2)]
STOPPED = CompileFailure(Outcome.INTERRUPTED, "the compiler was killed (SIGKILL)")
REFUSED = CompileFailure(Outcome.COMPILE_FAILED, "no such flag")
BODY = "scalar *staged ="
BOTH_RIGHT = [Outcome.OK, Outcome.OK]
Request = Attempt | FinalRound


@pytest.fixture
def tuner(known_ceilings: None, quick: Toolchain) -> Iterator[Tuner]:
    target = replace(find_target("cpu"), toolchain=quick)
    with Tuner(target, Options(effort=ONCE, final_effort=ONCE)) as tuner:
        yield tuner


@contextmanager
def disturbed(quick: Toolchain, disturb: Callable[[Any], AttemptResult | None]) -> Iterator[Tuner]:
    """A tuner before each of whose requests its worker calls `disturb`."""
    target = replace(find_target("cpu"), toolchain=quick)
    worker = Disturbed(lambda name: made._compilers.support(name), disturb)
    with Tuner(target, Options(effort=ONCE, final_effort=ONCE), worker) as made:
        yield made


def search_of(tuner: Tuner) -> Search:
    limits, family = tuner.target.limits, family_named("tsm2")
    return Search(InOrder([Candidate(family, config, PROBLEM, limits, Guidelines()) for config in CONFIGS]))


def outcomes(tuner: Tuner) -> list[Outcome]:
    return [trial.outcome for trial in tuner.tune(search_of(tuner))]


def failing(monkeypatch: pytest.MonkeyPatch, failures: int, kernels_only: bool = True) -> list[str]:
    """Compilers are stopped from outside so many times; the texts that they were given."""
    given = list[str]()

    def stopped(key: str, text: str, kernel: str, *others: Any) -> Binary | CompileFailure:
        if kernels_only and not kernel:
            return compiled(key, text, kernel, *others)
        given.append(text)
        return STOPPED if len(given) <= failures else compiled(key, text, kernel, *others)

    compiled = compiler._compiled
    monkeypatch.setattr(compiler, "_compiled", stopped)
    return given


def test_a_compiler_that_is_stopped_once_starts_again(tuner: Tuner, monkeypatch: pytest.MonkeyPatch) -> None:
    given = failing(monkeypatch, 1)
    assert (outcomes(tuner), len(given)) == (BOTH_RIGHT, 3)


def test_the_tuners_own_kernels_are_compiled_again_too(quick: Toolchain, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that is stopped twice at them ends the run."""
    target = replace(find_target("cpu"), toolchain=quick)
    monkeypatch.setattr(cache, "find", lambda *_: None)
    given = failing(monkeypatch, 1, kernels_only=False)
    with Tuner(target, Options()):
        assert len(given) == 2
    failing(monkeypatch, 2, kernels_only=False)
    refusal = r"killed \(SIGKILL\); find out what kills it, then run this again$"
    with pytest.raises(ToolMissing, match=refusal), Tuner(target, Options()):
        pass


@pytest.mark.usefixtures("known_ceilings")
def test_what_is_interrupted_twice_is_told_and_stays_untried(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = (*TUNE, "--db", str(path))
    with monkeypatch.context() as patch:
        failing(patch, 2)
        result = run(*command)
    assert result.exit_code == 1
    assert ": interrupted: the compiler was killed (SIGKILL)" in result.output
    assert "(0 new trials, 1 interrupted" in result.output
    assert "1 interrupted by the machine, not by their kernels: run the same command" in result.output
    assert plain_sql(path, "SELECT count(*) FROM trial") == [(0,)]
    assert run(*command).exit_code == 0
    assert plain_sql(path, "SELECT outcome FROM trial") == [("ok",)]


@pytest.mark.parametrize(
    ("is_sample", "failure", "outcome"),
    [
        (False, STOPPED, Outcome.INTERRUPTED),
        (False, REFUSED, Outcome.COMPILE_FAILED),
        (True, STOPPED, Outcome.INTERRUPTED),
        (True, REFUSED, Outcome.OK),  # the compiler inserts no calls before each access
    ],
)
def test_a_winner_is_watched_for_races_where_the_compiler_can(
    is_sample: bool, failure: CompileFailure, outcome: Outcome, tuner: Tuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "EMULATED", replace(EMULATED, watched_products=1e6))

    def compiled(text: str, *, kernel: str, toolchain: Toolchain, **named: Any) -> Binary | CompileFailure:
        if toolchain is tuner.target.watching and (kernel == "sample") == is_sample:
            return failure
        return compile_text(text, kernel=kernel, toolchain=toolchain, **named)

    monkeypatch.setattr(pool, "compile_text", compiled)
    result = tuner.verify_in_full(PROBLEM, CONFIGS[0])
    said = "" if outcome is Outcome.OK else f"with a race check: {failure.detail}"
    assert (result.outcome, result.detail) == (outcome, said)


@pytest.mark.parametrize("content", [None, b"", b"no library"])
def test_a_cache_that_is_damaged_fails_no_kernel(quick: Toolchain, content: bytes | None) -> None:
    """Before each request its files are removed, or have other content."""
    seen = list[Request]()

    def damage(request: Request) -> None:
        for file in cache.cache_folder().glob(f"??/*{quick.suffix}"):
            file.unlink()
            if content is not None:
                file.write_bytes(content)
        seen.append(request)
        damaged.worker.close()  # which has kernels in memory

    with disturbed(quick, damage) as damaged:
        past = prior_trials(damaged)
        assert len(past.contenders) == len(seen) == len(CONFIGS)
        assert isinstance(damaged.final(PROBLEM, past), Final)


def test_a_run_compiles_what_verifies_its_own_types(tuner: Tuner) -> None:
    tuner.expect(PROBLEM)
    ended = [name for name, one in tuner._compilers._supports.items() if one.done()]
    assert ended == ["f32"], "a host's compilers disturb no measurement"
    tuner.expect(replace(PROBLEM, dtype_name="tf32"))
    assert outcomes(tuner) == BOTH_RIGHT
    assert sorted(tuner._compilers._supports) == ["", "f32"]


def test_old_binaries_are_forgotten_and_failures_are_not(tuner: Tuner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MOST_RECENT", 1)
    right, other = (render(PROBLEM, config) for config in CONFIGS)
    wrong, begin = replace(other, text="no CUDA"), tuner._compilers.begin
    refused = begin(wrong)
    assert isinstance(refused.result(), CompileFailure)
    compiled = begin(right)
    assert isinstance(compiled.result(), Binary)
    begin(other)
    assert begin(wrong) is refused
    assert begin(right) is not compiled


def test_two_threads_may_begin_compilations(tuner: Tuner, monkeypatch: pytest.MonkeyPatch) -> None:
    ended, forget = Future[Binary | CompileFailure](), tuner._compilers._forget
    ended.set_result(CompileFailure(Outcome.COMPILE_FAILED, "no CUDA"))

    def forget_slowly(key: tuple[str, tuple[str, ...], Toolchain | None]) -> None:
        time.sleep(0.001)
        forget(key)

    monkeypatch.setattr(pool, "MOST_RECENT", 1)
    monkeypatch.setattr(tuner._compilers, "begin_text", lambda *_: ended)
    monkeypatch.setattr(tuner._compilers, "_forget", forget_slowly)
    sources = [replace(render(PROBLEM, CONFIGS[0]), text=str(number)) for number in range(20)]
    with ThreadPoolExecutor(2) as threads:
        for found in [threads.map(tuner._compilers.begin, sources) for _ in range(2)]:
            assert list(found) == [ended] * len(sources)


def test_a_kernel_that_does_not_load_has_a_verdict(quick: Toolchain) -> None:
    """If the binary is whole, the failure is the kernel's."""
    refused = AttemptResult(Outcome.LAUNCH_FAILED, "the driver refuses it")
    with disturbed(quick, lambda _: refused) as tuner:
        assert outcomes(tuner) == [Outcome.LAUNCH_FAILED] * 2


def prior_trials(tuner: Tuner) -> PriorTrials:
    trials = list(tuner.tune(search_of(tuner)))
    contenders = (FinalCandidate(trial.config, trial.measurement.median_us) for trial in trials if trial.measurement)
    return PriorTrials(frozenset(), 0.0, tuple(contenders), frozenset())


@pytest.mark.usefixtures("known_ceilings")
def test_a_final_that_the_machine_ends_is_told_and_stays_due(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = (*TUNE[:-1], "2", "--db", str(path))
    with monkeypatch.context() as patch:
        killed = AttemptResult(Outcome.INTERRUPTED, "the worker died during the final round (SIGKILL)")
        patch.setattr(Worker, "time_finalists", lambda *_: killed)
        result = run(*command)
    assert result.exit_code == 1
    assert "finalists not measured again: the worker died during the final round (SIGKILL)" in result.output
    assert "1 interrupted by the machine" in result.output
    assert run(*command).exit_code == 0
    assert plain_sql(path, "SELECT max(round) FROM measurement") == [(1,)]


def test_finalists_whose_compiler_is_killed_are_due(tuner: Tuner, monkeypatch: pytest.MonkeyPatch) -> None:
    past = prior_trials(tuner)
    with monkeypatch.context() as patch:
        patch.setattr(cache, "find", lambda *_: None)
        tuner._compilers._recent.clear()
        failing(patch, 2 * len(CONFIGS))
        failure = tuner.final(PROBLEM, past)
        assert isinstance(failure, FinalFailure)
        assert failure.interrupted
    assert isinstance(tuner.final(PROBLEM, past), Final)


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_worker_that_dies_of_opening_its_device_is_followed_by_one_other(deaths: int, support_code: bytes) -> None:
    started = list[int]()

    class Doomed(Worker):
        def _started(self, support_code: bytes) -> tuple[Any, Connection]:
            if len(started) < deaths:
                process, (connection, others) = subprocess.Popen(["sleep", "60"]), Pipe()
                process.kill()
                others.close()
            else:
                process, connection = super()._started(support_code)
            started.append(process.pid)
            return process, connection

    worker = Doomed("cpu", lambda _: support_code, limit_seconds=30.0)
    if deaths == 1:
        assert worker.ceilings().read_gbytes_per_s > 0
    else:
        with pytest.raises(WorkerError, match=r"^the worker died while it opened device cpu \(SIGKILL\), twice: "):
            worker.ceilings()
    assert len(started) == 2
    worker.close()


def test_crash_if_device_still_opens(worker: Worker, try_kernel: TryKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_: str) -> Any:
        raise DeviceError("no CUDA device 0")

    assert try_kernel(CONFIGS[1], PROBLEM, str).outcome is Outcome.OK
    with monkeypatch.context() as patch:
        patch.setattr(worker, "_started", gone)
        with pytest.raises(DeviceError, match="no CUDA device 0"):
            try_kernel(CONFIGS[1], PROBLEM, lambda text: text.replace(BODY, f"*(volatile int *)8 = 1;\n    {BODY}"))
    assert try_kernel(CONFIGS[1], PROBLEM, str).outcome is Outcome.OK


@pytest.mark.parametrize(
    ("status", "kind"),
    [(0, LaunchFailed), (700, KernelFault), (719, KernelFault), (214, DeviceLost), (999, DeviceLost)],
)
def test_the_driver_says_whose_an_error_is(status: int, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = SimpleNamespace(cuCtxSynchronize=lambda: status)
    monkeypatch.setattr("tsm2_tune.tuner.device.cuda_kernel.ctypes.CDLL", lambda _: driver)
    assert type(refusal_of(RuntimeError("error"), "the driver refuses to start k")) is kind
    assert type(fault_of(RuntimeError("error"))) is (KernelFault if status in FAULTS else DeviceLost)


def test_few_signals_are_of_kernels() -> None:
    of_kernels = ["SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS"]
    assert {one.name for one in signal.Signals if not workers._is_from_outside(-one)} == {*of_kernels}
    assert not workers._is_from_outside(1)
