"""Gather what an export needs of each kernel: its row, its source, and the data from which its times are predicted.

The data are measured times of the kernel and of cuBLAS at several shapes, model parameters of the kernel (`Tiling`),
and measured rates of GPUs (`DeviceRates`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from tsm2_tune.generator.device.cards import DRIVER_NAMES, PROFILES
from tsm2_tune.generator.families import FAMILIES, family_named, parse_config
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.generator.tiling import Tiling
from tsm2_tune.runtime.choice.launch import SHARED
from tsm2_tune.runtime.choice.winners import Winner
from tsm2_tune.tuner.export.kernel_sets.rate_fit import fitted
from tsm2_tune.tuner.export.measured_times import Elsewhere, VendorElsewhere, times_elsewhere, vendor_elsewhere
from tsm2_tune.tuner.packs.core_pack import DeviceRates, MeasuredKernel
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.records import TrialRecord
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Trial, TuningRun

COPIED = (  # fields that are copied from BestRow to Winner
    "device", "compute_capability", "driver", "toolkit", "tuned_at", "dtype", "op", "m", "n", "k", "batch", "config",
    "median_us", "gbytes_per_s", "percent_of_floor", "cache",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of an export."""

    row: BestRow
    source: KernelSource
    measured: MeasuredKernel


def gathered(
    store: Store, rows: Sequence[BestRow], trials: Mapping[int, TrialRecord], *, vendor: bool = True
) -> tuple[list[Kernel], dict[str, DeviceRates]]:
    """Return the kernels of these rows, in their order, and the measured rates of their devices by name.

    `trials` are the rows' trials by id, such as `Store.winning` returns. With `vendor`, cuBLAS's times at shapes
    between tuned shapes are included. A trial without a stored occupancy (resident blocks) has no Tiling. A device
    with an unknown number of multiprocessors has no rates.
    """
    rates = rates_of(record.run for record in trials.values())
    between = vendor_elsewhere(store, trials, of_gemm=True) if vendor else {}
    elsewhere = times_elsewhere(store, trials)
    kernels = list[Kernel]()
    for row in rows:
        trial, times = trials[row.trial_id].trial, elsewhere.get(row.trial_id, ())
        kernels.append(
            kernel_of(row, trial.source, _tiling(trial), rates.get(row.device), times, between.get(row.trial_id, ()))
        )
    return kernels, rates


def rates_of(runs: Iterable[TuningRun]) -> dict[str, DeviceRates]:
    """Return the measured rates of the runs' devices by name, each rate the median over the device's runs."""
    found = defaultdict[str, dict[str, DeviceRates]](dict)
    for run in runs:
        if (rates := _rates(run)) is not None:
            found[run.identity.name][run.started_at] = rates
    return {device: _median(list(rates.values())) for device, rates in found.items()}


def _median(rates: Sequence[DeviceRates]) -> DeviceRates:
    gflops = defaultdict[str, list[float]](list)
    for one in rates:
        for dtype, rate in one.gflops.items():
            gflops[dtype].append(rate)
    read, copy = (median(getattr(one, name) for one in rates) for name in ("read_gbytes_per_s", "copy_gbytes_per_s"))
    return DeviceRates(
        rates[0].multiprocessors, read, copy, {dtype: median(every) for dtype, every in gflops.items()}
    )


def _rates(run: TuningRun) -> DeviceRates | None:
    """Return the measured rates of a run's device; None if its number of multiprocessors is unknown."""
    profile = next((name for name, driver_name in DRIVER_NAMES.items() if driver_name == run.identity.name), None)
    sms = run.sms or (PROFILES[profile].sms if profile is not None else None)
    if sms is None:
        return None
    return DeviceRates(sms, run.ceilings.read_gbytes_per_s, run.ceilings.copy_gbytes_per_s, dict(run.ceilings.gflops))


def _tiling(trial: Trial) -> Tiling | None:
    if trial.resources is None or not trial.resources.blocks_per_sm:
        return None
    return FAMILIES[trial.config.family].tiling(trial.config, trial.problem, trial.resources.blocks_per_sm)


def kernel_of(
    row: BestRow,
    source: KernelSource,
    tiling: Tiling | None = None,
    rates: DeviceRates | None = None,
    times: Elsewhere = (),
    vendor_times: VendorElsewhere = (),
) -> Kernel:
    """Return a shape's kernel with the data for predictions. Data that are not known are absent.

    Its vendor times are those of cuBLAS, not of cuBLASLt, because PyTorch, CuPy and most programs would call cuBLAS
    instead of the kernel.
    """
    winner = Winner(
        **{name: getattr(row, name) for name in COPIED},
        vendor_us=row.cublas_us,
        vendor_right=row.cublas_right,
        vendor_routine=row.cublas_routine,
        vendor_version=row.cublas_version,
        x_cublas=row.cublas_us / row.median_us if row.cublas_us is not None and row.cublas_right else None,
        digest=source.digest,
        kernel=source.kernel,
        launch=source.launch,
    )
    config = parse_config(row.config) if source.launch.batched == SHARED else None
    in_smem = (
        (0, 0) if config is None else family_named(config.family).block_plan(config, row.problem).matrices_in_smem
    )
    found = MeasuredKernel(winner, tiling, times, vendor_times, in_smem)
    return Kernel(
        row, source, found if tiling is None or rates is None else replace(found, tiling=fitted(found, rates))
    )
