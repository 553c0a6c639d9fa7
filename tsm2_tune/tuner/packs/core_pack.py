"""Write the core's data file (pack) in the binary format that `core/core.h` describes.

A pack contains kernels, their measured times, and the rates of devices.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from tsm2_tune.errors import InputError
from tsm2_tune.generator.tiling import Tiling
from tsm2_tune.runtime.choice.core import TYPES_IN_C, Core, CoreRates, CoreTime
from tsm2_tune.runtime.choice.winners import Winner
from tsm2_tune.tuner.compile.core_library import core_library

Times = Sequence[Sequence[float]]

MAGIC, VERSION = b"TSM2PACK", 5
ORDERS = {"n": 0, "t": 1}
PRIOR_GAIN_ERROR = 0.3  # without measurements
UNKNOWN = Tiling(resident=0, tile_m=1, tile_n=0, k_step=0, k_per_pass=0, without_vectors=1.0)


class HeaderRecord(ctypes.LittleEndianStructure):
    """struct core_header."""

    _fields_ = (
        ("magic", ctypes.c_char * 8),
        *((name, ctypes.c_uint32) for name in ("version", "device_count", "kernel_count", "time_count")),
        *((name, ctypes.c_uint32) for name in ("vendor_time_count", "text_bytes")),
    )


class DeviceRecord(ctypes.LittleEndianStructure):
    """struct core_device."""

    _fields_ = (
        *((name, ctypes.c_double) for name in ("read_gbytes_per_s", "copy_gbytes_per_s")),
        ("gflops", ctypes.c_double * len(TYPES_IN_C)),
        ("name", ctypes.c_uint32),
        *((name, ctypes.c_int32) for name in ("multiprocessors", "is_host", "unused")),
    )


class KernelRecord(ctypes.LittleEndianStructure):
    """struct core_kernel."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("m", "n", "k", "batch")),
        *((name, ctypes.c_double) for name in ("us", "vendor_us")),
        *CoreRates._fields_,
        ("gain_error", ctypes.c_double),
        *((name, ctypes.c_int32) for name in ("resident", "tile_m", "tile_n", "k_step", "k_per_pass")),
        *((name, ctypes.c_int32) for name in ("k_of_resident_b", "vector_bytes", "k_padding", "n_padding")),
        *((name, ctypes.c_int32) for name in ("is_pipelined", "c_vector_bytes", "k_of_vectors")),
        *((name, ctypes.c_int32) for name in ("threads", "smem_bytes")),
        *((name, ctypes.c_int32) for name in ("rows_per_block", "columns_per_block", "splits", "flat_splits")),
        *((name, ctypes.c_int32) for name in ("is_persistent", "has_workspace")),
        *((name, ctypes.c_int32) for name in ("batched", "stages", "is_padded")),
        ("device", ctypes.c_uint32),
        ("type", ctypes.c_int32),
        ("orders", ctypes.c_int32 * 3),
        ("conjugates", ctypes.c_int32 * 2),
        ("is_gram", ctypes.c_int32),
        *((name, ctypes.c_uint32) for name in ("first_time", "time_count", "first_vendor_time", "vendor_time_count")),
        *((name, ctypes.c_uint32) for name in ("op", "configuration", "l2_state", "entry", "vendor_routine")),
        *((name, ctypes.c_uint32) for name in ("code",)),
    )


class TimeRecord(ctypes.LittleEndianStructure):
    """struct core_time, as a pack stores it."""

    _fields_ = CoreTime._fields_


RecordType = TypeVar("RecordType", bound=ctypes.LittleEndianStructure)


def _record(kind: type[RecordType], **members: Any) -> RecordType:
    """Return a record with these members. Raise ValueError if an integer is out of range: ctypes truncates it."""
    record = kind(**members)
    for name, value in members.items():
        if isinstance(value, int) and getattr(record, name) != value:
            raise ValueError(f"{name}: {value} is out of range")
    return record


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
    times: Times = ()  # at other shapes: m, n, k, products, rows per block, splits, microseconds
    vendor_times: Times = ()  # of cuBLAS, right results only: m, n, k, products, microseconds
    # If the kernel's blocks share a batch: copies of A and B in shared memory, and whether they are padded.
    matrices_in_smem: tuple[int, int] = (0, 0)
    # Standard deviation of the error of log(cuBLAS's time / the kernel's), both predicted. `left_out` estimates it.
    gain_error: float = PRIOR_GAIN_ERROR


class Texts:
    """The texts of a pack. A text that several records use is stored once."""

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


def core_of(kernels: Sequence[MeasuredKernel], device_rates: Mapping[str, DeviceRates]) -> Core:
    """Return the core with a pack of these kernels, in their order. The keys of `device_rates` are device names.

    Raise InputError if a number is out of range, ToolMissing if there is no C compiler to build the core.
    """
    library = core_library()
    try:
        return Core(library, _pack(kernels, device_rates))
    except (TypeError, ValueError) as error:
        for kernel in kernels if len(kernels) > 1 else ():
            core_of([kernel], device_rates)  # raises an error that names the kernel
        raise _damage(kernels[0].winner, error) from None


def _damage(winner: Winner, error: Exception) -> InputError:
    """Return the error for a kernel of which a record or the core refuses a number."""
    shape = f"{winner.m}x{winner.n}x{winner.k}"
    return InputError(
        f"times of {winner.config} for {shape} on {winner.device} cannot be predicted, because the database is"
        f" damaged: {error}"
    )


def core_pack(kernels: Sequence[MeasuredKernel], device_rates: Mapping[str, DeviceRates]) -> bytes:
    """Return the bytes of a pack of these kernels, which the core has checked. Raise the errors of `core_of`."""
    return core_of(kernels, device_rates).pack


def _pack(kernels: Sequence[MeasuredKernel], device_rates: Mapping[str, DeviceRates]) -> bytes:
    """Return the pack's header, its tables and its texts."""
    texts, times, vendor_times = Texts(), list[TimeRecord](), list[TimeRecord]()
    on_host = {kernel.winner.device: kernel.winner.on_host for kernel in kernels}
    codes = code_numbers([kernel.winner for kernel in kernels])
    numbers = {name: number for number, name in enumerate(on_host)}
    device_records = [
        _device(texts, name, device_rates.get(name), is_host=is_host) for name, is_host in on_host.items()
    ]
    kernel_records = [
        _kernel(texts, kernel, numbers[kernel.winner.device], codes[kernel.winner.digest], times, vendor_times)
        for kernel in kernels
    ]
    texts.offset("")
    tables: list[Any] = [
        (DeviceRecord * len(device_records))(*device_records),
        (KernelRecord * len(kernel_records))(*kernel_records),
        (TimeRecord * len(times))(*times),
        (TimeRecord * len(vendor_times))(*vendor_times),
        bytes(texts.bytes),
    ]
    names = ("device_count", "kernel_count", "time_count", "vendor_time_count", "text_bytes")
    counts = dict(zip(names, map(len, tables), strict=True))
    return b"".join((_record(HeaderRecord, magic=MAGIC, version=VERSION, **counts), *tables))


def _device(texts: Texts, name: str, rates: DeviceRates | None, *, is_host: bool) -> DeviceRecord:
    rates = rates or DeviceRates(1, 0.0, 0.0, {})
    return _record(
        DeviceRecord,
        read_gbytes_per_s=rates.read_gbytes_per_s,
        copy_gbytes_per_s=rates.copy_gbytes_per_s,
        gflops=tuple(rates.gflops.get(dtype, 0.0) for dtype in TYPES_IN_C),
        name=texts.offset(name),
        multiprocessors=rates.multiprocessors,
        is_host=is_host,
    )


def _kernel(
    texts: Texts,
    kernel: MeasuredKernel,
    device: int,
    code: int,
    times: list[TimeRecord],
    vendor_times: list[TimeRecord],
) -> KernelRecord:
    """Return the kernel's record, after adding its times to the tables."""
    first_time, first_vendor_time, w, launch = len(times), len(vendor_times), kernel.winner, kernel.winner.launch
    times += (
        _record(TimeRecord, m=m, n=n, k=k, batch=batch, us=us, rows_per_block=rows, splits=splits)
        for m, n, k, batch, rows, splits, us in kernel.times
    )
    vendor_times += (
        _record(TimeRecord, m=m, n=n, k=k, batch=batch, us=us) for m, n, k, batch, us in kernel.vendor_times
    )
    return _record(
        KernelRecord,
        m=w.m,
        n=w.n,
        k=w.k,
        batch=w.batch,
        us=w.median_us,
        vendor_us=w.vendor_us if w.vendor_us is not None and w.vendor_right else 0.0,
        **asdict(kernel.tiling or UNKNOWN),  # has the record's names
        gain_error=kernel.gain_error,
        threads=launch.threads,
        smem_bytes=launch.smem_bytes,
        rows_per_block=launch.rows_per_block,
        columns_per_block=launch.columns_per_block,
        splits=launch.splits,
        flat_splits=launch.flat_splits,
        is_persistent=launch.persistent,
        has_workspace=launch.has_workspace,
        batched=launch.batched,
        stages=kernel.matrices_in_smem[0],
        is_padded=kernel.matrices_in_smem[1],
        device=device,
        type=TYPES_IN_C.index(w.dtype),
        orders=tuple(ORDERS[order] for order in w.orders),
        conjugates=w.conjugates,
        is_gram=w.is_gram,
        first_time=first_time,
        time_count=len(times) - first_time,
        first_vendor_time=first_vendor_time,
        vendor_time_count=len(vendor_times) - first_vendor_time,
        op=texts.offset(w.op),
        configuration=texts.offset(w.config),
        l2_state=texts.offset(w.cache),
        entry=texts.offset(w.kernel),
        vendor_routine=texts.offset(w.vendor_routine or ""),
        code=code,
    )
