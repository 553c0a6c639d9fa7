"""Conversion of a store to `ExportedKernels`: the winners among which an exported module would choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tsm2_tune.errors import InputError
from tsm2_tune.generator.problem import Problem
from tsm2_tune.runtime.elements import SAME
from tsm2_tune.tuner.export.gathered import gathered
from tsm2_tune.tuner.export.kernel_sets.intermediate_winners import verified_in_full, with_between
from tsm2_tune.tuner.export.measured_times import VendorElsewhere, vendor_elsewhere
from tsm2_tune.tuner.packs.core_pack import MeasuredKernel
from tsm2_tune.tuner.packs.exported_kernels import ExportedKernels
from tsm2_tune.tuner.packs.gains import with_gain_errors
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.storage.addresses import command_on
from tsm2_tune.tuner.results.store import Store


def exported_kernels(
    store: Store,
    device: str,
    problems: Sequence[Problem] = (),
    tell: Callable[[str], None] = lambda sentence: None,
) -> ExportedKernels:
    """Return the kernels for the device among which an exported module would choose.

    With `problems`, only winners with the element type and op of one of the problems or of its transpose are
    included. `tell` is called with a sentence about excluded winners. Raise InputError if the device has no winner.
    """
    transposes = [problem.transposed for problem in problems if SAME not in problem.op]
    kinds = {(problem.dtype_name, problem.op) for problem in (*problems, *transposes)}
    every = store.best(device=device)
    if not every:
        place = str(store.path)
        raise InputError(f"{place} has no kernel for {device}: {command_on('best', place)} shows what it has")
    rows = [row for row in every if not kinds or (row.dtype, row.op) in kinds]
    rows = with_between(store, lambda sentence: None, verified_in_full(store, tell, rows))
    winning = store.winning(rows)
    kernels, rates = gathered(store, rows, winning)
    fastest = vendor_elsewhere(store, winning, of_gemm=False)
    measured = with_gain_errors([one.measured for one in kernels], rates)
    with_fastest_vendor = [
        _with_fastest_vendor(kernel, row, fastest.get(row.trial_id, ()))
        for kernel, row in zip(measured, rows, strict=True)
    ]
    return ExportedKernels(tuple(measured), tuple(with_fastest_vendor), rates)


def _with_fastest_vendor(kernel: MeasuredKernel, row: BestRow, between: VendorElsewhere) -> MeasuredKernel:
    """Return a copy of the kernel whose vendor times are those of the faster library, cuBLAS or cuBLASLt."""
    winner = replace(
        kernel.winner,
        vendor_us=row.vendor_us,
        vendor_right=row.vendor_right,
        vendor_routine=row.vendor_routine,
        vendor_version=row.vendor_version,
        x_cublas=row.x_cublas,
    )
    return replace(kernel, winner=winner, vendor_times=between)
