"""Measure one cell: our fastest kernel, cuBLAS and cuBLASLt, timed in turns with a clean and a dirty L2 cache.

Before that, each computes the product of the same small integers, and the result must be exact. Our kernel has also
passed all other checks in its trial.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from benchmarks.cells import Cell
from benchmarks.replay import NOTHING, NOTHING_TEXT, Replayer, ReplayError, least_launch, streamed
from benchmarks.turns import EXACT, TIMED, Launch, Opponent, Turns
from benchmarks.winner import Skipped, Winner
from tsm2_tune.tuner.device.cuda import CudaDevice
from tsm2_tune.tuner.device.interface import LaunchFailed
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.measure.timing import Effort
from tsm2_tune.tuner.measure.vendor import syrk
from tsm2_tune.tuner.measure.vendor.cublas import Cublas
from tsm2_tune.tuner.measure.vendor.cublaslt import CublasLt
from tsm2_tune.tuner.measure.vendor.libraries import CublasError
from tsm2_tune.tuner.measure.vendor.routines import fastest_first, routines_of_cublaslt
from tsm2_tune.tuner.results.trial import Cache, Measurement, Verdict
from tsm2_tune.tuner.search.phase_timer import PhaseTimer
from tsm2_tune.tuner.verify.operands import Operands
from tsm2_tune.tuner.verify.verdict import clear, inspect, prepare, run_once

GRAPH_WORKSPACE_BYTES = 32 * 2**20  # cuBLAS's default on Hopper; graph capture needs a workspace that we allocate
LT_WORKSPACE_BYTES = 64 * 2**20  # twice cuBLAS's default on Hopper
CONTESTANTS = ("ours", "cublas", "cublaslt")


def times(name: str, measured: Measurement | None) -> dict[str, Any]:
    """Return one contestant's fields in microseconds: median, 95 % confidence interval, samples."""
    return {
        f"{name}_us": measured.median_us if measured else None,
        f"{name}_low_us": measured.low_us if measured else None,
        f"{name}_high_us": measured.high_us if measured else None,
        f"{name}_samples_us": [round(us, 3) for us in measured.samples_us] if measured else None,
    }


def times_in_states(name: str, found: Mapping[Cache, Mapping[str, Measurement]]) -> dict[str, Any]:
    """Return one contestant's fields for each measured L2 state. Names of fields for a clean L2 have no suffix."""
    return {
        field: value
        for cache, of_state in found.items()
        for field, value in times(name if cache is Cache.CLEAN else f"{name}_{cache}", of_state.get(name)).items()
    }


def row_of(
    cell: Cell,
    winner: Winner,
    found: dict[Cache, dict[str, Measurement]],
    opponents: dict[str, Opponent],
    verdict: Verdict,
    floor_us: float,
) -> dict[str, Any]:
    """Return the cell's row for the result file, without the times of CUDA graphs."""
    row: dict[str, Any] = dict(cell.record)
    for name in CONTESTANTS:
        row |= times_in_states(name, found)
    for name in CONTESTANTS[1:]:
        row[f"{name}_verified"] = opponents[name].right if name in opponents else None
    ours = found[Cache.CLEAN]["ours"]
    return {
        **row,
        "cublaslt_algorithms": opponents["cublaslt"].timed if "cublaslt" in opponents else 0,
        "floor_us": floor_us,
        "percent_of_floor": 100 * floor_us / ours.median_us,
        "family": winner.config.family,
        "configuration": winner.config.text,
        "parameters": winner.config.tunables,
        "verified": verdict.correct,
        "verdict": winner.verdict.detail if verdict.correct else verdict.detail,
        "sm_clock_mhz": ours.sm_clock_mhz,
        "configurations_kept": winner.kept,
        "trials": winner.outcomes,
    }


class Contest(Turns[CudaDevice]):
    """A device with cuBLAS and cuBLASLt. `cache` is the L2 state in which cuBLASLt's fastest algorithm is chosen."""

    def __init__(
        self,
        device: CudaDevice,
        target: Target,
        support_path: str,
        effort: Effort,
        phases: PhaseTimer,
        cache: Cache = Cache.CLEAN,
        libraries: tuple[Cublas, CublasLt] | None = None,
    ) -> None:
        super().__init__(device, target, support_path, effort, phases)
        self._cache = cache
        self.cublas, self.cublaslt = libraries or (Cublas(), CublasLt(device, LT_WORKSPACE_BYTES))
        self._graph_workspace = device.allocate(GRAPH_WORKSPACE_BYTES)
        self._nothing = device.load(self.compiled(NOTHING_TEXT, NOTHING, ()), NOTHING)
        self._replayer = Replayer(device) if streamed(device) else None

    @property
    def versions(self) -> dict[str, int | None]:
        return {"cublas": self.cublas.version, "cublaslt": self.cublaslt.version}

    def row(self, cell: Cell, winner: Winner) -> dict[str, Any]:
        """Measure a cell and return its row. Raise Skipped if the device lacks memory or cannot run the kernel."""
        with ExitStack() as stack:
            try:
                return self._row(cell, winner, stack)
            except MemoryError as error:
                raise Skipped(f"no room for {error}") from None
            except LaunchFailed as error:
                raise Skipped(str(error)) from None

    def _row(self, cell: Cell, winner: Winner, stack: ExitStack) -> dict[str, Any]:
        problem = cell.problem
        self.phases.enter("contest: operands")
        operands = self.operands(problem, stack)
        loaded = self.loaded(operands, winner.config, stack)
        self.phases.enter("contest: checks")
        prepare(operands, EXACT, seed=1)
        verdict = run_once(operands, loaded, EXACT)
        opponents = self.opponents(operands, stack)
        prepare(operands, TIMED, seed=2)
        launches: dict[str, Launch] = {"ours": partial(loaded.start, operands.arguments(1.0, 0.0))}
        launches |= {name: opponent.launch for name, opponent in opponents.items()}
        self.phases.enter("contest: turns")
        found = self.in_turns(launches)
        row = row_of(cell, winner, found, opponents, verdict, self.ceilings.floor_us(problem))
        if cell.small:
            self.phases.enter("contest: graphs")
            row |= self._graph_times(launches)
        self.phases.enter("contest: operands")
        return row

    def opponents(self, operands: Operands, stack: ExitStack) -> dict[str, Opponent]:
        """Return the product's cuBLAS routine and cuBLASLt's fastest algorithm, verified on the operands."""
        opponents = {}
        is_gram = operands.problem.is_gram
        try:
            launch = syrk.launch(self.cublas, operands) if is_gram else self.cublas.launch(operands)
            opponents["cublas"] = Opponent(launch, self.right(operands, launch, half=is_gram), timed=1)
            plan = self.cublaslt.plan(operands)
        except CublasError:
            return opponents
        stack.callback(plan.free)
        self.phases.enter("contest: cuBLASLt's algorithms")
        with suppress(CublasError):
            found = fastest_first(self.device, routines_of_cublaslt(plan), self._cache)
            self.phases.enter("contest: checks")
            for one in found[:1]:
                right = self.right(operands, one.routine.launch)
                opponents["cublaslt"] = Opponent(one.routine.launch, right, len(found))
        return opponents

    def right(self, operands: Operands, launch: Launch, *, half: bool = False) -> bool:
        """Return whether a library computes the product correctly. C contains NaNs before.

        `prepare` must have filled the operands for the exact check. If `half`, the routine computes one triangle of
        C.
        """
        clear(operands)
        launch()
        self.device.synchronise()
        if half:
            syrk.complete(self.device, operands.c, operands.problem.dtype_name)
        return inspect(operands, EXACT).correct

    def _graph_times(self, launches: dict[str, Launch]) -> dict[str, Any]:
        """Return the times of a small cell, cuBLAS and an empty kernel, replayed from a CUDA graph with a warm L2."""
        nothing: dict[str, Any] = {"ours_graph_us": None, "cublas_graph_us": None, "launch_floor_us": None}
        if self._replayer is None:
            return nothing
        replayed = {"ours_graph_us": launches["ours"], "launch_floor_us": least_launch(self._nothing)}
        if "cublas" in launches:
            replayed["cublas_graph_us"] = launches["cublas"]
        workspace = self._graph_workspace
        self.cublas.use_stream(self._replayer.handle, workspace.address, workspace.size_bytes)
        try:
            medians_us = self._replayer.medians_us(tuple(replayed.values()))
        except (ReplayError, LaunchFailed, CublasError) as error:
            return {**nothing, "graph_trouble": str(error)}
        finally:
            self.cublas.use_stream(0)
        return {**nothing, **dict(zip(replayed, medians_us, strict=True))}
