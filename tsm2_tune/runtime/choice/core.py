"""The core, which chooses kernels, called through ctypes. `core/core.h` documents its functions and records.

An exported module contains the core as a shared library for one platform, and as C text for other platforms.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import struct
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import cache

from tsm2_tune.runtime.cuda.cubins import sha256, unpacked
from tsm2_tune.runtime.elements import DTYPES, MATHS
from tsm2_tune.runtime.module_data import CORE, CORE_TEXTS, PACK

TYPES_IN_C = (*DTYPES, *MATHS.values())  # in the order of core_type
OTHER_GPU, HOST = -1, -2  # devices that are in no pack
NO_KERNEL, TUNED, PREDICTED, NEAREST = range(4)  # core_reason
# Without fused multiply-adds, processors choose the same kernels, unless predicted times differ by the rounding of
# libm's exp and log. Names are bound inside the library.
CORE_FLAGS = ("-std=c99", "-O2", "-ffp-contract=off", "-shared", "-fPIC", "-Wl,-Bsymbolic")
COMPILERS = ("cc", "gcc", "clang", "c++", "g++", "clang++")
CORE_SECONDS = 60  # time limit of the compiler
MOST_MESSAGE_BYTES = 500  # of the compiler's messages that are shown
TRANSIENT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # errors that may be gone at the next call
EXPLANATION_BYTES = 1024
MOST_CONTENDERS = 20  # most launches to time
# struct core_product: m, n, k; leading dimensions of A, B, C, of each as column-major and as row-major; strides of A,
# B and C; batch_count; type, conjugates of A and B, is_gram, makes_c, leaves_out_shape
PRODUCT = struct.Struct("13q6i")
CHOICE = struct.Struct("10i3I4Q14q5d")  # struct core_choice: the fields of CoreChoice, which takes longer to read


class CoreChoice(ctypes.Structure):
    """struct core_choice."""

    _fields_ = (
        ("reason", ctypes.c_int),
        *((name, ctypes.c_int32) for name in ("kernel", "is_vendors", "is_transposed", "is_of_other_device")),
        *((name, ctypes.c_int32) for name in ("is_too_large", "merged", "index_bits")),
        *((name, ctypes.c_int32) for name in ("rows_per_block", "splits")),
        *((name, ctypes.c_uint32) for name in ("grid_x", "grid_y", "grid_z")),
        *((name, ctypes.c_uint64) for name in ("partials_bytes", "counters_bytes")),
        *((name, ctypes.c_uint64) for name in ("partials_stride", "counters_stride")),
        *((name, ctypes.c_int64) for name in ("m", "n", "k", "lda", "ldb", "ldc")),
        *((name, ctypes.c_int64) for name in ("stride_a", "stride_b", "stride_c", "batch_count")),
        *((f"measured_{name}", ctypes.c_int64) for name in ("m", "n", "k", "batch")),
        *((name, ctypes.c_double) for name in ("measured_us", "distance", "error_factor", "us", "vendor_us")),
    )


class CoreTime(ctypes.Structure):
    """struct core_time: a shape and a launch, with the measured time."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("m", "n", "k", "batch")),
        ("us", ctypes.c_double),
        *((name, ctypes.c_int32) for name in ("rows_per_block", "splits")),
    )


class CoreRates(ctypes.Structure):
    """struct core_rates."""

    _fields_ = tuple((name, ctypes.c_double) for name in ("without_vectors", "arithmetic_rate", "cached_rate"))


class _OpenPack(ctypes.Structure):
    """struct core_pack."""

    _fields_ = tuple((f"pointer_{at}", ctypes.c_void_p) for at in range(9))


class Core:
    """The core with an open pack of kernels. Several threads may use it at the same time."""

    def __init__(self, library: ctypes.CDLL, pack: bytes) -> None:
        """Open the pack. Raise ValueError, with the reason, if it is not valid."""
        self.pack = pack
        memory_bytes, opened = library.core_memory_bytes, library.core_open
        memory_bytes.restype, opened.restype = ctypes.c_size_t, ctypes.c_char_p
        # The pack and its memory must be aligned to 8 bytes, and stay allocated.
        self._bytes = (ctypes.c_uint64 * (len(pack) // 8 + 1)).from_buffer_copy(pack.ljust(len(pack) // 8 * 8 + 8))
        size = ctypes.c_size_t(len(pack))
        self._memory = (ctypes.c_uint64 * (memory_bytes(self._bytes, size) // 8 + 1))()
        self._opened = _OpenPack()
        fault = opened(self._bytes, size, self._memory, ctypes.byref(self._opened))
        if fault is not None:
            raise ValueError(fault.decode())
        self._pack = ctypes.byref(self._opened)
        self._devices: dict[str | None, int] = {None: HOST}
        self._choose, self._contenders = library.core_choose, library.core_contenders
        self._choose.restype, self._contenders.restype = CoreChoice, ctypes.c_int
        self._explain, self._device_index = library.core_explain, library.core_device_index
        self._explain.restype, self._device_index.restype = None, ctypes.c_int
        self._predict, self._rates_us = library.core_predict, library.core_rates_us
        self._predict.restype, self._rates_us.restype = ctypes.c_double, None
        self._us_by_rates, self._largest_gain_error = library.core_us_by_rates, library.core_largest_gain_error
        self._us_by_rates.restype, self._largest_gain_error.restype = None, ctypes.c_double

    def device_index(self, name: str | None) -> int:
        """Return the index of the device with this name, OTHER_GPU for another GPU, HOST for None."""
        found = self._devices.get(name)
        if found is None:
            encoded = (name or "").encode(errors="replace")
            found = OTHER_GPU if b"\0" in encoded else self._device_index(self._pack, encoded)
            self._devices[name] = found
        return found

    def choose(self, record: bytes, device: str | None) -> CoreChoice:
        """Return the kernel and its launch for a record of PRODUCT on this GPU, or on the host for None."""
        found: CoreChoice = self._choose(self._pack, record, self.device_index(device))
        return found

    def largest_gain_error(self, choice: CoreChoice) -> float:
        """Return the largest `gain_error` with which a kernel computes a product with this choice of `choose`."""
        error: float = self._largest_gain_error(ctypes.byref(choice))
        return error

    def contenders(self, record: bytes, device: str | None) -> list[CoreChoice]:
        """Return the launches that are worth timing, first the one that `choose` returns."""
        found = (CoreChoice * MOST_CONTENDERS)()
        count = self._contenders(self._pack, record, self.device_index(device), found, MOST_CONTENDERS)
        return list(found[:count])

    def explanation(self, choice: CoreChoice, device: str | None) -> str:
        """Return a sentence that says which kernel was chosen for the device, and why."""
        text, name = ctypes.create_string_buffer(EXPLANATION_BYTES), (device or "").encode(errors="replace")
        self._explain(self._pack, ctypes.byref(choice), name, text, ctypes.c_size_t(EXPLANATION_BYTES))
        return text.value.decode(errors="replace")

    def predict(self, kernel: int, record: bytes) -> tuple[float, int, int]:
        """Return a kernel's predicted time in us, 0 if unknown, and rows per block and splits of its best launch."""
        rows, splits, penalized_us = ctypes.c_int32(), ctypes.c_int32(), ctypes.c_double()
        outputs = ctypes.byref(rows), ctypes.byref(splits), ctypes.byref(penalized_us)
        us: float = self._predict(self._pack, kernel, record, *outputs)
        return us, rows.value, splits.value

    def rates_us(self, kernel: int, times: ctypes.Array[CoreTime]) -> list[float]:
        """Return a kernel's times at these shapes, predicted from the device's rates and its fitted rates."""
        found = (ctypes.c_double * len(times))()
        self._rates_us(self._pack, kernel, times, len(times), found)
        return found[:]

    def us_by_rates(
        self, kernel: int, times: ctypes.Array[CoreTime], rates: ctypes.Array[CoreRates]
    ) -> ctypes.Array[ctypes.c_double]:
        """Return the times that `rates_us` would return if the kernel had the first, second, ... of these rates."""
        found = (ctypes.c_double * (len(times) * len(rates)))()
        self._us_by_rates(self._pack, kernel, times, len(times), rates, len(rates), found)
        return found


def platform_name() -> str:
    """Return the name of this platform, such as linux-x86_64. Compiled code works on one platform."""
    return f"{sys.platform}-{os.uname().machine}" if hasattr(os, "uname") else sys.platform


def memory_file(name: str, binary: bytes) -> str:
    """Return the path of a file in memory, which nobody else can change. Raise OSError if there are none here."""
    if not hasattr(os, "memfd_create"):
        raise OSError("this system has no files in memory")
    file = os.memfd_create(name)
    with os.fdopen(file, "wb", closefd=False) as opened:
        opened.write(binary)
    # The loader knows a library by its path, and a program may close all files: so the content is part of the path.
    digest = int.from_bytes(sha256(binary)[:8], "big")
    return "/proc/self/fd/" + "".join(".//" if digest >> bit & 1 else "./" for bit in range(64)) + str(file)


def loaded_core(binary: bytes) -> ctypes.CDLL:
    """Load the core's shared library. Raise OSError if it does not load here."""
    return ctypes.CDLL(memory_file("tsm2_core", binary))


def core_command(sources: Sequence[str], output: str) -> list[str]:
    """Return the command that compiles the core's C files. Raise OSError if there is no compiler.

    The compiler is the first of COMPILERS in PATH, without the user's options: the library may run elsewhere.
    """
    import shutil  # here, because few programs get here and all wait for imports

    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise OSError(f"there is no C compiler: none of {', '.join(COMPILERS)}")
    return [compiler, "-x", "c", *sources, *CORE_FLAGS, "-o", output, "-lm"]


def built_core(texts: Mapping[str, str]) -> bytes:
    """Compile the core's C texts in the temporary folder. Raise OSError if that fails."""
    import signal  # here, because few programs get here and all wait for imports
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory() as folder, open(os.path.join(folder, "messages"), "w+b") as messages:
        paths = {name: os.path.join(folder, name) for name in (*texts, "core.so")}
        for name, text in texts.items():
            with open(paths[name], "w", encoding="utf-8") as file:
                file.write(text)
        command = core_command([paths[name] for name in texts if name.endswith(".c")], paths["core.so"])
        compiler = command[0]
        environment = {**os.environ, "TMPDIR": folder}  # Python, but no compiler, passes over a full $TMPDIR
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=messages, stderr=messages, start_new_session=True,
            env=environment,
        )  # fmt: skip
        try:
            status: int | None = process.wait(CORE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise OSError(f"{compiler} takes longer than {CORE_SECONDS} s") from None
        if status or not os.path.exists(paths["core.so"]):
            messages.seek(0)
            said = messages.read(MOST_MESSAGE_BYTES).decode(errors="replace").replace(folder, "").strip()
            raise OSError(f"{compiler} does not compile it (status {status}){': ' + said if said else ''}")
        with open(paths["core.so"], "rb") as file:
            return file.read()


def module_core() -> Core | None:
    """Return the core with this module's kernels.

    Return None, after a warning in the first call, if neither the contained library nor a compiled one loads here.
    Raise RuntimeError if the data of this module does not match its digest, OSError if the system has no file
    descriptor or memory left.
    """
    core, reasons = _opened_core()
    if core is None and reasons:
        reason = "; ".join(reasons)
        reasons.clear()  # before the warning, which a filter may turn into an exception: later calls do not warn
        warnings.warn(
            f"kernels run for tuned shapes only, because the code that predicts times does not load ({reason}):"
            " install a C compiler or export on this machine; PyTorch and CuPy compute other products of their"
            " arrays, and gemm raises LookupError for those of other arrays",
            RuntimeWarning, stacklevel=2,
        )  # fmt: skip
    return core


@cache
def _opened_core() -> tuple[Core | None, list[str]]:
    """Return the core, or None and why neither library loads. Two threads may do so at once in the first call."""
    pack = unpacked(PACK[1], PACK[0], "the kernel table")
    reasons = list[str]()
    for library in (_contained_core, _compiled_core):
        try:
            return Core(loaded_core(library()), pack), reasons
        except OSError as error:
            if error.errno in TRANSIENT:
                raise
            reasons.append(str(error))
    return None, reasons


def _contained_core() -> bytes:
    if CORE is None or CORE[0] != platform_name():
        raise OSError(f"this module contains no library for {platform_name()}")
    return unpacked(CORE[2], CORE[1], "the compiled core")


def _compiled_core() -> bytes:
    return built_core(json.loads(unpacked(CORE_TEXTS[1], CORE_TEXTS[0], "the core's text")))
