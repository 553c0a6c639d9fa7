"""Write the core's data file (pack) in the binary format that `core/core.h` describes.

A pack contains winners, measured times, and the rates of GPUs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources

from tsm2_tune.runtime.choice.predict import Division
from tsm2_tune.runtime.choice.winners import Winner
from tsm2_tune.runtime.choice.work import Card
from tsm2_tune.runtime.launcher import TYPES_IN_C
from tsm2_tune.tuner.compile.shared_objects import c_texts

MAGIC, VERSION = b"TSM2PACK", 1
HEADER = struct.Struct("<8s6I")
DEVICE = struct.Struct(f"<2d{len(TYPES_IN_C)}dI3i")
KERNEL = struct.Struct("<3q5d11i8iIi3i2ii4I5III")
TIME = struct.Struct("<3qd2i")
ORDERS = {"n": 0, "t": 1}
UNKNOWN = Division(resident=0, block_m=1, block_n=0, step=0, deepest=0, odd_lines=1.0)


class Texts:
    """The pack's texts, each once, by their offsets."""

    def __init__(self) -> None:
        self.bytes = bytearray()
        self._offsets: dict[str, int] = {}

    def offset(self, text: str) -> int:
        """Return the offset of the text, after adding it if it is new. Raise ValueError if it has a zero byte."""
        if "\0" in text:
            raise ValueError(f"{text!r} has a zero byte")
        if text not in self._offsets:
            self._offsets[text] = len(self.bytes)
            self.bytes += text.encode() + b"\0"
        return self._offsets[text]


def core_texts() -> dict[str, bytes]:
    """Return the core's C sources and headers: file name -> text."""
    return c_texts(resources.files("tsm2_tune") / "core")


def code_numbers(winners: Sequence[Winner]) -> dict[str, int]:
    """Return digest -> index of each CUDA text of these kernels, as the pack's kernels have it in `code`."""
    return {digest: number for number, digest in enumerate(dict.fromkeys(w.digest for w in winners))}


def core_pack(winners: Sequence[Winner], cards: Mapping[str, Card]) -> bytes:
    """Return the bytes of a pack of these winners. The pack's kernels have the same indices as the winners.

    `cards` maps device names to the rates of the devices.
    """
    texts, times, vendor_times = Texts(), list[bytes](), list[bytes]()
    devices = {w.device: w.on_host for w in winners}
    codes = code_numbers(winners)
    numbers = {name: number for number, name in enumerate(devices)}
    of_devices = [_device(texts, name, cards.get(name), is_host=is_host) for name, is_host in devices.items()]
    kernels = [_kernel(texts, w, numbers[w.device], codes[w.digest], times, vendor_times) for w in winners]
    texts.offset("")
    tables = (*of_devices, *kernels, *times, *vendor_times)
    counts = (len(of_devices), len(kernels), len(times), len(vendor_times), len(texts.bytes))
    return b"".join((HEADER.pack(MAGIC, VERSION, *counts), *tables, texts.bytes))


def _device(texts: Texts, name: str, card: Card | None, *, is_host: bool) -> bytes:
    card = card or Card(1, 0.0, 0.0, {})
    gflops = (card.gflops.get(dtype, 0.0) for dtype in TYPES_IN_C)
    return DEVICE.pack(
        card.read_gbytes_per_s, card.copy_gbytes_per_s, *gflops, texts.offset(name), card.sms, int(is_host), 0
    )


def _kernel(texts: Texts, w: Winner, device: int, code: int, times: list[bytes], vendor_times: list[bytes]) -> bytes:
    first, first_vendor = len(times), len(vendor_times)
    times += (TIME.pack(m, n, k, us, rows, splits) for m, n, k, rows, splits, us in w.elsewhere)
    vendor_times += (TIME.pack(m, n, k, us, 0, 0) for m, n, k, us in w.vendor_elsewhere)
    d, launch, is_right = w.division or UNKNOWN, w.launch, w.vendor_us is not None and bool(w.vendor_right)
    return KERNEL.pack(
        *(w.m, w.n, w.k, w.median_us, w.vendor_us if is_right else 0.0),
        *(d.odd_lines, d.arithmetic_rate, d.cached_rate),
        *(d.resident, d.block_m, d.block_n, d.step, d.deepest, d.longest, d.vector_bytes, d.depth, d.width),
        *(d.flows, d.vectors_of_c),
        *(launch.threads, launch.smem_bytes, launch.rows_per_block, launch.columns_per_block, launch.splits),
        *(launch.flat_splits, launch.persistent, launch.has_workspace),
        *(device, TYPES_IN_C.index(w.dtype), *(ORDERS[order] for order in w.orders), *w.conjugates, w.is_gram),
        *(first, len(times) - first, first_vendor, len(vendor_times) - first_vendor),
        *_offsets(texts, (w.op, w.config, w.cache, w.kernel, w.vendor_routine or "")),
        *(code, 0),
    )


def _offsets(texts: Texts, given: Iterable[str]) -> list[int]:
    return [texts.offset(text) for text in given]
