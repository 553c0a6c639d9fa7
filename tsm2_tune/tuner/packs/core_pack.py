"""Write the core's data file (pack) in the binary format that `core/core.h` describes.

A pack contains kernels, their measured times, and the rates of devices.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tsm2_tune.errors import InputError
from tsm2_tune.generator.tiling import Tiling
from tsm2_tune.runtime.choice.core import TYPES_IN_C, Core
from tsm2_tune.runtime.choice.winners import Winner
from tsm2_tune.tuner.compile.core_library import core_library

Times = Sequence[Sequence[float]]

MAGIC, VERSION = b"TSM2PACK", 1
HEADER = struct.Struct("<8s6I")
DEVICE = struct.Struct(f"<2d{len(TYPES_IN_C)}dI3i")
KERNEL = struct.Struct("<3q5d11i8iIi3i2ii4I5III")
TIME = struct.Struct("<3qd2i")
RATES, RATES_AT = struct.Struct("<3d"), struct.calcsize("<3q2d")  # odd_lines and two rates, within KERNEL
ORDERS = {"n": 0, "t": 1}
UNKNOWN = Tiling(resident=0, tile_m=1, tile_n=0, k_step=0, k_per_pass=0, odd_lines=1.0)


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """The measured rates of a GPU, or of the emulation on the CPU."""

    multiprocessors: int
    read_gbytes_per_s: float
    copy_gbytes_per_s: float  # bytes read plus bytes written
    gflops: dict[str, float]  # element type -> rate; a fused multiply-add counts as two operations


@dataclass(frozen=True)
class MeasuredKernel:
    """A winner with the data from which its times are predicted at other shapes."""

    winner: Winner
    tiling: Tiling | None  # None if the occupancy is not known
    times: Times = ()  # at other shapes: m, n, k, rows per block, splits, microseconds
    vendor_times: Times = ()  # of cuBLAS, right results only: m, n, k, microseconds


class Texts:
    """The pack's texts, each once, by their offsets."""

    def __init__(self) -> None:
        self.bytes = bytearray()
        self._offsets: dict[str, int] = {}

    def offset(self, text: str) -> int:
        """Return the offset of the text, after adding it if it is new. A zero byte in it becomes a space."""
        text = text.replace("\0", " ")
        if text not in self._offsets:
            self._offsets[text] = len(self.bytes)
            self.bytes += text.encode(errors="replace") + b"\0"
        return self._offsets[text]


def code_numbers(winners: Sequence[Winner]) -> dict[str, int]:
    """Return digest -> index of each CUDA text of these kernels, as the pack's kernels have it in `code`."""
    return {digest: number for number, digest in enumerate(dict.fromkeys(w.digest for w in winners))}


def core_of(kernels: Sequence[MeasuredKernel], rates: Mapping[str, DeviceRates]) -> Core:
    """Return the core with a pack of these kernels, in their order. `rates` maps device names to their rates.

    Raise InputError if a number is out of range, ToolMissing if there is no C compiler to build the core.
    """
    library = core_library()
    try:
        return Core(library, _pack_bytes(kernels, rates))
    except (struct.error, ValueError) as error:
        raise InputError(
            f"times of these kernels cannot be predicted, because the database is damaged: {error}"
        ) from None


def core_pack(kernels: Sequence[MeasuredKernel], rates: Mapping[str, DeviceRates]) -> bytes:
    """Return the bytes of a pack of these kernels, which the core has checked. Raise the errors of `core_of`."""
    return core_of(kernels, rates).pack


def _pack_bytes(kernels: Sequence[MeasuredKernel], rates: Mapping[str, DeviceRates]) -> bytes:
    texts, times, vendor_times = Texts(), list[bytes](), list[bytes]()
    devices = {one.winner.device: one.winner.on_host for one in kernels}
    codes = code_numbers([one.winner for one in kernels])
    numbers = {name: number for number, name in enumerate(devices)}
    of_devices = [_device(texts, name, rates.get(name), is_host=is_host) for name, is_host in devices.items()]
    of_kernels = [
        _kernel(texts, one, numbers[one.winner.device], codes[one.winner.digest], times, vendor_times)
        for one in kernels
    ]
    texts.offset("")
    tables = (*of_devices, *of_kernels, *times, *vendor_times)
    counts = (len(of_devices), len(of_kernels), len(times), len(vendor_times), len(texts.bytes))
    return b"".join((HEADER.pack(MAGIC, VERSION, *counts), *tables, texts.bytes))


def with_rates(pack: bytes, rates: Iterable[tuple[float, float, float]]) -> bytes:
    """Return the pack of one kernel without times, with a copy of the kernel for each triple of rates.

    The rates are those of Tiling: arithmetic_rate, cached_rate and odd_lines.
    """
    magic, version, devices, _, *counts = HEADER.unpack_from(pack)
    start = HEADER.size + devices * DEVICE.size
    before, after = start + RATES_AT, start + RATES_AT + RATES.size
    end = start + KERNEL.size
    copies = [pack[start:before] + RATES.pack(odd, *of) + pack[after:end] for *of, odd in rates]
    header = HEADER.pack(magic, version, devices, len(copies), *counts)
    return b"".join((header, pack[HEADER.size : start], *copies, pack[end:]))


def _device(texts: Texts, name: str, rates: DeviceRates | None, *, is_host: bool) -> bytes:
    rates = rates or DeviceRates(1, 0.0, 0.0, {})
    gflops = (rates.gflops.get(dtype, 0.0) for dtype in TYPES_IN_C)
    return DEVICE.pack(
        rates.read_gbytes_per_s, rates.copy_gbytes_per_s, *gflops, texts.offset(name), rates.multiprocessors,
        int(is_host), 0,
    )  # fmt: skip


def _kernel(
    texts: Texts, kernel: MeasuredKernel, device: int, code: int, times: list[bytes], vendor_times: list[bytes]
) -> bytes:
    first, first_vendor, w = len(times), len(vendor_times), kernel.winner
    times += (TIME.pack(m, n, k, us, rows, splits) for m, n, k, rows, splits, us in kernel.times)
    vendor_times += (TIME.pack(m, n, k, us, 0, 0) for m, n, k, us in kernel.vendor_times)
    tiling, launch = kernel.tiling or UNKNOWN, w.launch
    is_right = w.vendor_us is not None and bool(w.vendor_right)
    return KERNEL.pack(
        *(w.m, w.n, w.k, w.median_us, w.vendor_us if is_right else 0.0),
        *(tiling.odd_lines, tiling.arithmetic_rate, tiling.cached_rate),
        *(tiling.resident, tiling.tile_m, tiling.tile_n, tiling.k_step, tiling.k_per_pass, tiling.k_of_resident_b),
        *(tiling.vector_bytes, tiling.k_padding, tiling.n_padding, tiling.is_pipelined, tiling.has_vectors_of_c),
        *(launch.threads, launch.smem_bytes, launch.rows_per_block, launch.columns_per_block, launch.splits),
        *(launch.flat_splits, launch.persistent, launch.has_workspace),
        *(device, TYPES_IN_C.index(w.dtype), *(ORDERS[order] for order in w.orders), *w.conjugates, w.is_gram),
        *(first, len(times) - first, first_vendor, len(vendor_times) - first_vendor),
        *_offsets(texts, (w.op, w.config, w.cache, w.kernel, w.vendor_routine or "")),
        *(code, 0),
    )


def _offsets(texts: Texts, given: Iterable[str]) -> list[int]:
    return [texts.offset(text) for text in given]
