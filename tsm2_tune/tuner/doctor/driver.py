"""Check the CUDA driver and list its GPUs, without PyCUDA and without a CUDA context."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from tsm2_tune.tuner.doctor.finding import Finding, Question, ok, problem
from tsm2_tune.tuner.results.trial import in_a_line

NAME = "CUDA driver"
MAJOR, MINOR = 75, 76  # CUdevice_attribute values of the compute capability
NO_DEVICE = 100  # a CUresult
# CUresult of cuInit -> the error, and the remedy
FAILURES = {
    NO_DEVICE: ("it finds no GPU", "check nvidia-smi; in a container pass the GPU on, such as with --gpus all"),
    3: ("it does not start", "load the kernel module: nvidia-smi as root, or restart"),
    801: ("it does not support this machine", "install the driver for it"),
    802: ("the system is not ready", "start the fabric manager: systemctl start nvidia-fabricmanager"),
    803: ("libcuda and the kernel module are of different versions", "restart, or install both of one version"),
    804: ("its compatibility package does not support this GPU", "remove cuda-compat from the library path"),
    999: ("it does not start", "load the kernel module nvidia_uvm: nvidia-modprobe -u, or restart"),
}


def driver(question: Question) -> list[Finding]:
    """Return findings about the CUDA driver: its version and GPUs, or why it does not work."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        remedy = "install the NVIDIA driver; in a container pass the GPU on, such as with --gpus all"
        return [problem(NAME, f"none ({in_a_line(str(error))})", means=NO_GPU, remedy=remedy)]
    version = ctypes.c_int(0)
    library.cuDriverGetVersion(ctypes.byref(version))
    name = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"
    status = library.cuInit(0)
    if status != 0:
        what, remedy = FAILURES.get(status, ("it does not start", "check nvidia-smi and the system's log"))
        return [problem(NAME, f"{name}, {what} (cuInit answers {status})", means=NO_GPU, remedy=remedy)]
    gpus = _gpus(library)
    if not gpus:
        return [problem(NAME, f"{name}, no GPU{_hidden()}", means=NO_GPU, remedy=FAILURES[NO_DEVICE][1])]
    listed = ", ".join(f"{ordinal} {gpu['name']}" for ordinal, gpu in enumerate(gpus))
    findings = [ok(NAME, f"{name}; GPUs {listed}{_hidden()}", version=version.value, gpus=gpus)]
    if question.spec.isdecimal() and int(question.spec) >= len(gpus):
        found = f"no GPU {question.spec}: the driver has {len(gpus)}, numbered from 0"
        findings.append(problem("device", found, remedy="name another with --device"))
    return findings


NO_GPU = "kernels are emulated on the CPU"


def _gpus(library: ctypes.CDLL) -> list[dict[str, Any]]:
    """Return a dictionary with the name, the compute capability and the PCI bus id for each GPU."""
    count = ctypes.c_int(0)
    if library.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    found = []
    for ordinal in range(count.value):
        device = ctypes.c_int(0)
        name, bus = ctypes.create_string_buffer(256), ctypes.create_string_buffer(32)
        library.cuDeviceGet(ctypes.byref(device), ordinal)
        library.cuDeviceGetName(name, len(name), device)
        library.cuDeviceGetPCIBusId(bus, len(bus), device)
        capability = []
        for attribute in (MAJOR, MINOR):
            value = ctypes.c_int(0)
            library.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
            capability.append(value.value)
        texts = (in_a_line(text.value.decode(errors="replace")) for text in (name, bus))
        found.append({**dict(zip(("name", "bus_id"), texts, strict=True)), "compute_capability": capability})
    return found


def _hidden() -> str:
    """Return a text with the value of CUDA_VISIBLE_DEVICES; "" if it is not set."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "" if visible is None else f" (CUDA_VISIBLE_DEVICES is {in_a_line(visible)!r})"
