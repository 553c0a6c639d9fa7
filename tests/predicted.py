"""Made-up kernels with measured times, and the core that predicts their times."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from tsm2_tune.generator.tiling import Tiling
from tsm2_tune.runtime.choice.choose import core_record
from tsm2_tune.runtime.choice.core import Core, CoreTime
from tsm2_tune.runtime.choice.launch import SHARED, Launch
from tsm2_tune.runtime.choice.winners import Winner
from tsm2_tune.tuner.packs.core_pack import DeviceRates, MeasuredKernel, core_of

SMS, GPU = 132, "a GPU"
RATES = DeviceRates(SMS, 4700.0, 4150.0, {"f32": 65000.0})
Shape = tuple[int, int, int]
Kind = tuple[Tiling, Launch]
PLAIN: Kind = (Tiling(6, 128, 0, 64, 0, 1.0), Launch(128, 128, 4096, 0))
HERE, THERE = (20480, 8, 20480), (20480, 8, 10240)  # half the work, a distance of log 2
US = 390.0


def measured(
    kind: Kind, shape: Shape, us: float, *others: tuple[Shape, float], op: str = "nn", vendor_us: float | None = None,
    vendor_right: int = 1, vendor_times: Sequence[tuple[Shape, float]] = (), batch: int = 1,
) -> MeasuredKernel:  # fmt: skip
    """A kernel with its time at its own shape and at others, by one launch."""
    tiling, launch = kind
    of_vendor = (vendor_us, vendor_right, "cublasSgemm", 130100, None)
    of_trial = (GPU, "9.0", "", "", "", "f32", op, *shape, batch, "tsm2", us, 0.0, 0.0, "clean", *of_vendor, "", "")
    times = [(*at, batch, launch.rows_per_block, launch.splits, its_us) for at, its_us in others]
    vendor = [(*at, batch, its_us) for at, its_us in vendor_times]
    in_smem = (2, 0) if launch.batched == SHARED else (0, 0)
    return MeasuredKernel(Winner(*of_trial, launch), tiling, times, vendor, in_smem)


def pair(us_there: float = US / 2, *, op: str = "nn", there: Shape = THERE) -> list[MeasuredKernel]:
    """Two kernels, both measured at both shapes. At `there` both take `us_there`; cuBLAS takes 2 US, and US there."""
    return [
        measured(PLAIN, HERE, US, (there, us_there), op=op, vendor_us=2 * US),
        measured(PLAIN, there, us_there, (HERE, US), op=op, vendor_us=US),
    ]


def core(*kernels: MeasuredKernel, rates: DeviceRates = RATES) -> Core:
    return core_of(kernels, {GPU: rates})


def product(shape: Shape) -> bytes:
    """A product of column-major matrices without padding."""
    m, _, k = shape
    return core_record("f32", shape, ((m, 0), (k, 0), (m, 0)), (False, False), is_gram=False)


def core_times(*times: tuple[Shape, int, int]) -> ctypes.Array[CoreTime]:
    """Shapes, rows per block and splits, as the core reads them."""
    return (CoreTime * len(times))(*(CoreTime(*shape, 1, 0, rows, splits) for shape, rows, splits in times))
