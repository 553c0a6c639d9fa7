"""Compile CUDA code to a cubin at run time: with NVRTC, which needs no CUDA toolkit, else with nvcc."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from tsm2_tune.runtime.elements import log

COMPILE_SECONDS = 300.0
TOOLKIT = "/usr/local/cuda"  # used if neither CUDA_HOME nor CUDA_PATH names a toolkit with the compiler
NVRTC = (
    "libnvrtc.so",
    "libnvrtc.so.13",
    "libnvrtc.so.12",
    "libnvrtc.so.11.2",
    "nvrtc64_130_0.dll",
    "nvrtc64_120_0.dll",
)
BUILTINS = "libnvrtc-builtins.so*"  # NVRTC opens this library without a path, so it is loaded before NVRTC
NVRTC_IN_WHEELS = ("cu13/lib", "cuda_nvrtc/lib")  # folders of NVIDIA's Python wheels, below `nvidia`: CUDA 13, 12


class _Refused(Exception):
    """A compiler is missing, or does not compile the code. The message says why."""


def compiled_here(text: str, bits: int, arch: str) -> bytes:
    """Return a cubin of the CUDA code. Raise RuntimeError, with each compiler's reason, if no compiler succeeds."""
    whys = []
    for compiler in (_by_nvrtc, _by_nvcc):
        try:
            return compiler(text, bits, arch)
        except _Refused as why:
            log.debug("no binary for %s: %s", arch, why)
            whys.append(str(why))
    raise RuntimeError(
        f"{'; '.join(whys)}: install NVRTC or nvcc of a CUDA version that compiles it for {arch}, such as by"
        " pip install nvidia-cuda-nvrtc, or export it where it was tuned on such a GPU"
    )


def _options(bits: int) -> list[str]:
    return ["-std=c++17", f"-DINDEX_BITS={bits}"]


def _nvrtcs() -> Iterator[ctypes.CDLL]:
    """Yield the NVRTC libraries found on the loader's path, in CUDA toolkits and in Python wheels, in this order."""
    for name in NVRTC:
        try:
            yield ctypes.CDLL(name)
        except OSError:
            continue
    toolkits = [os.path.join(home, "lib64") for home in (*_named_toolkits(), TOOLKIT)]
    for folder in (*toolkits, *_wheel_folders()):
        for library in _files(folder, "libnvrtc.so*"):
            for builtins in _files(folder, BUILTINS):
                with suppress(OSError):
                    ctypes.CDLL(builtins)
            with suppress(OSError):
                yield ctypes.CDLL(library)


def _files(folder: str, pattern: str) -> list[str]:
    """Return the folder's files that match the pattern, newest version first; [] if it cannot be read."""
    import glob  # here, because few programs get here and all wait for imports

    return [os.path.join(folder, name) for name in sorted(glob.glob(pattern, root_dir=folder), reverse=True)]


def _named_toolkits() -> list[str]:
    return [home for home in map(os.environ.get, ("CUDA_HOME", "CUDA_PATH")) if home]


def _wheel_folders() -> list[str]:
    import importlib.util  # here, as glob

    try:
        spec = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):  # a module of this name that is not a package
        return []
    roots = list(spec.submodule_search_locations or ()) if spec is not None else []
    return [os.path.join(root, beside) for beside in NVRTC_IN_WHEELS for root in roots]


def _by_nvrtc(text: str, bits: int, arch: str) -> bytes:
    """Return a cubin by the first NVRTC that succeeds: an older or newer one may not support the architecture."""
    whys, asked = dict[str, None](), set[int]()
    for library in _nvrtcs():
        if library._handle in asked:  # tried under another file name
            continue
        asked.add(library._handle)
        try:
            return _by_this_nvrtc(library, text, bits, arch)
        except (AttributeError, MemoryError, OverflowError) as error:  # not an NVRTC, or an old one
            whys[f"{library._name} is not a usable NVRTC ({error})"] = None
        except _Refused as why:
            whys[str(why)] = None
    raise _Refused("; ".join(whys) or "NVRTC was not found")


def _by_this_nvrtc(library: ctypes.CDLL, text: str, bits: int, arch: str) -> bytes:
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    # Unlike nvcc, NVRTC compiles a lambda in a kernel as device code only with this option.
    options = [*_options(bits), f"--gpu-architecture={arch}", "--device-as-default-execution-space"]
    listed = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    if library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None):
        raise _Refused("NVRTC does not start")
    try:
        if library.nvrtcCompileProgram(program, len(options), listed):
            raise _Refused(f"NVRTC does not compile it ({_error_in(_log(library, program))})")
        if library.nvrtcGetCUBINSize(program, ctypes.byref(size)) or size.value == 0:
            raise _Refused("NVRTC compiles no binary")
        binary = ctypes.create_string_buffer(size.value)
        if library.nvrtcGetCUBIN(program, binary):
            raise _Refused("NVRTC returns no binary")
        return binary.raw
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _log(library: Any, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    if library.nvrtcGetProgramLogSize(program, ctypes.byref(size)):
        return ""
    log = ctypes.create_string_buffer(size.value + 1)
    library.nvrtcGetProgramLog(program, log)
    return log.value.decode(errors="replace")


def _by_nvcc(text: str, bits: int, arch: str) -> bytes:
    import shutil  # here, because few programs get here and all wait for imports
    import subprocess
    import tempfile

    places = [os.path.join(home, "bin") for home in _named_toolkits()]
    places += [os.environ.get("PATH") or os.defpath, os.path.join(TOOLKIT, "bin")]
    nvcc = shutil.which("nvcc", path=os.pathsep.join(filter(None, places)))
    if nvcc is None:
        raise _Refused("nvcc was not found")
    try:
        with tempfile.TemporaryDirectory(prefix="tsm2-") as folder:
            source, binary = os.path.join(folder, "kernel.cu"), os.path.join(folder, "kernel.cubin")
            with open(source, "w", encoding="utf-8") as file:
                file.write(text)
            command = [nvcc, "-cubin", f"-arch={arch}", *_options(bits), "-o", binary, source]
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", check=False, timeout=COMPILE_SECONDS
            )
            made = b""
            if done.returncode == 0 and os.path.isfile(binary):
                with open(binary, "rb") as compiled:
                    made = compiled.read()
    except subprocess.TimeoutExpired:
        raise _Refused(f"{nvcc} takes more than {COMPILE_SECONDS:g} s for it") from None
    except OSError as error:
        raise _Refused(f"{nvcc} does not compile it ({error})") from None
    if not made:
        raise _Refused(f"{nvcc} does not compile it ({_error_in(done.stderr)})")
    return made


def _error_in(messages: str) -> str:
    """Return the first line of a compiler's messages that contains "error", else the last line."""
    lines = [line.strip() for line in messages.splitlines() if line.strip()] or ["no message"]
    return next((line for line in lines if "error" in line), lines[-1])[:300]
