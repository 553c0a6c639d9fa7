"""Return the kernels that an exported module would choose for given problems, by running the module's own code."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tsm2_tune import __version__
from tsm2_tune.generator.problem import Problem
from tsm2_tune.pretuned import PREFIX, Pretuned, pretuned_named
from tsm2_tune.runtime.choice.choose import Layout
from tsm2_tune.runtime.choice.winners import Match, Vendor
from tsm2_tune.tuner.compile import cache
from tsm2_tune.tuner.packs.exported_kernels import ExportedKernels, no_kernel
from tsm2_tune.tuner.results.storage.addresses import is_pretuned

SUFFIX = ".kernels"
Shape = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Choice:
    """An exported module's choice for a problem: a kernel, and whether the module would call cuBLAS instead."""

    asked: Problem
    match: Match
    reason: str  # the text that the module's choice() returns
    is_vendor_chosen: bool  # whether the module would call cuBLAS
    vendor_us: float | None  # time of cuBLAS or cuBLASLt, whichever is faster, measured or predicted
    measured_at: Shape  # the nearest shape (m, n, k) at which the kernel was measured
    measured_batch: int  # its number of products
    distance: float  # distance to measured_at; 0 if the problem's own shape was measured

    @property
    def problem(self) -> Problem:
        """The problem that the kernel computes: `asked`, its transpose, or for a Gram matrix perhaps the product of
        two matrices.
        """
        m, n, k = self.match.extents
        return Problem(m, n, k, self.asked.dtype_name, self.match.winner.op, self.match.batch)

    @property
    def ratio(self) -> float | None:
        """cuBLAS's time divided by the kernel's time; None if either is unknown."""
        kernel_us = self.match.expected_us
        return None if kernel_us is None or self.vendor_us is None else self.vendor_us / kernel_us


@dataclass(frozen=True, slots=True)
class NoChoice:
    """A problem for which an exported module has no kernel."""

    asked: Problem
    reason: str  # with the next step


def pretuned_kernels(text: Pretuned) -> ExportedKernels:
    """Return the pretuned kernels for a GPU model: from the cache, or else read and cached."""
    package, code = Path(__file__).parents[2], hashlib.sha256(f"{__version__} {SUFFIX}".encode())
    for path in sorted((*package.rglob("*.py"), *package.glob("core/*.[ch]"))):  # they determine the kernels' rates
        code.update(path.read_bytes())
    code.update(text.file.read_bytes())
    key = code.hexdigest()
    found = cache.find(key, SUFFIX)
    if found is not None:
        return ExportedKernels.of_json(found.content)
    from tsm2_tune.tuner.export.store_kernels import exported_kernels
    from tsm2_tune.tuner.results.snapshot import Snapshot

    with Snapshot.open(PREFIX + text.name, create=False) as store:
        kernels = exported_kernels(store, text.device_name)
    cache.keep_content(kernels.json, key, SUFFIX)
    return kernels


def choices(
    source: Pretuned | str,
    problems: Sequence[Problem],
    device_of: Callable[[Sequence[str]], str],
    tell: Callable[[str], None],
) -> tuple[str, list[Choice | NoChoice]]:
    """Return the device's name, and for each problem the choice of a module exported for that device.

    The kernels come from `source`: pretuned trials, or a database. `device_of` returns one of the
    database's device names. `tell` receives notes. Raise InputError if there is no kernel for the device.
    """
    if isinstance(source, str) and is_pretuned(source):
        source = pretuned_named(source)
        device_of([source.device_name])  # raises if another device is named
    if isinstance(source, Pretuned):
        device, place = source.device_name, PREFIX + source.name
        kernels = pretuned_kernels(source)
    else:
        from tsm2_tune.tuner.export.store_kernels import exported_kernels
        from tsm2_tune.tuner.results.snapshot import Snapshot

        with Snapshot.open(source, create=False) as store:
            device, place = device_of(store.devices()), str(store.path)
            kernels = exported_kernels(store, device, problems, tell)
    is_host = all(kernel.winner.on_host for kernel in kernels.kernels)
    found = [choice_of(kernels, None if is_host else device, problem, place) for problem in problems]
    return device, found


def choice_of(kernels: ExportedKernels, device: str | None, asked: Problem, place: str) -> Choice | NoChoice:
    """Return the choice of a module with these kernels on the GPU with this name, or on the CPU if `device` is None.

    `place` is the name of the database from which the kernels come.
    """
    record = Layout.of_op(asked.dtype_name, (asked.m, asked.n, asked.k), asked.op, asked.batch).record
    try:
        match = kernels.chooser.match(record, device)
    except (LookupError, ValueError):
        return NoChoice(asked, no_kernel(place, asked))
    fastest_us = kernels.chooser_with_fastest_vendor.match(record, device).vendor_us
    # Each is predicted from its own times, which may be known at different shapes.
    vendor_us = min((us for us in (match.vendor_us, fastest_us) if us is not None), default=None)
    reason = str(Vendor(str(match)) if match.is_vendor_chosen else match)
    m, n, k = match.measured_at
    measured_at = (n, m, k) if match.is_transposed else (m, n, k)
    return Choice(
        asked, match, reason, match.is_vendor_chosen, vendor_us, measured_at, match.measured_batch, match.distance
    )
