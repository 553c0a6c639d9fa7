"""Load the compiled launcher: a C extension that an exported module may contain.

The launcher does the same as plan_cache.py for PyTorch's tensors and CuPy's arrays, with less overhead per call. It
calls the Python functions of plan_cache.py for products that it cannot launch.
"""

from __future__ import annotations

import ctypes
import logging
import sys
from functools import cache
from typing import Any

from tsm2_tune.runtime.arrays.libraries import is_torchs, torch_stream
from tsm2_tune.runtime.choice.core import TYPES_IN_C, memory_file, platform_name
from tsm2_tune.runtime.cuda.cubins import unpacked
from tsm2_tune.runtime.cuda.driver import device_of
from tsm2_tune.runtime.cuda.workspace import legacy_key, workspaces
from tsm2_tune.runtime.elements import DTYPES, INDEX_WIDTHS, log
from tsm2_tune.runtime.launch_plan import (
    ADDRESSES_AT,
    ALPHA_AT,
    BETA_AT,
    POINTERS_AT,
    STREAM_AT,
    WORKSPACE_AT,
    Plan,
)
from tsm2_tune.runtime.module_data import LAUNCHER, PACK, WINNERS
from tsm2_tune.runtime.plan_cache import (
    Starter,
    by_vendor,
    cupy_starter,
    torch_current_device,
    torch_kinds,
    torch_starter,
)

LAUNCHER_NAME = "tsm2_launcher"
LAUNCHER_PYTHON = (3, 11)  # the launcher uses the stable ABI of this Python version

launchers: dict[type, Any] = {}  # type of `a` -> Launcher object


@cache
def launcher() -> Any:
    """Return the launcher as a Python module; None if this file has none, or this Python cannot load it."""
    if LAUNCHER is None:
        log.debug("calls start in Python: this module was exported without --launcher")
        return None
    import importlib.util  # here, because most programs never get here and all wait for imports
    import sysconfig

    place, digest, data = LAUNCHER
    is_stable = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
    if place != platform_name() or not is_stable or sys.version_info < LAUNCHER_PYTHON:
        log.debug("calls start in Python: the launcher is for CPython 3.11 or newer on %s", place)
        return None
    binary = unpacked(data, digest, "the compiled launcher")
    try:  # load from memory: exactly the checked bytes are loaded
        loader = importlib.machinery.ExtensionFileLoader(LAUNCHER_NAME, memory_file(LAUNCHER_NAME, binary))
        spec = importlib.util.spec_from_loader(LAUNCHER_NAME, loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        module.open_pack(unpacked(PACK[1], PACK[0], "the kernel table"))
    except (ImportError, OSError, ValueError) as error:  # another C library, or no executable memory files
        log.debug("calls start in Python: the launcher does not load (%s)", error)
        return None
    return module


@cache
def _numbers_in_c() -> dict[int, int]:
    """Return id of a winner -> its index in the pack."""
    return {id(w): at for at, w in enumerate(WINNERS)}


def compiled_torch_starter(torch: Any, kind: type) -> Starter:
    """Return the function that launches cached products of tensors of this type: the launcher's, else Python's."""
    plain, exchange = torch_starter(torch), getattr(kind, "__dlpack_c_exchange_api__", None)
    if exchange is None:
        return plain
    of_torch = torch_kinds(torch), torch_stream(torch), torch.empty_strided, torch_current_device(torch)
    return _compiled_starter(kind, plain, exchange, *of_torch)


def compiled_cupy_starter(cupy: Any, kind: type) -> Starter:
    """Return the function that launches cached products of CuPy's arrays: the launcher's, else Python's."""
    of_cupy = cupy.cuda.get_current_stream, cupy.empty, cupy.cuda.runtime.getDevice
    return _compiled_starter(kind, cupy_starter(cupy), None, (cupy.ndarray, cupy.ndarray), *of_cupy)


def _compiled_starter(kind: type, plain: Starter, *arguments: Any) -> Starter:
    """Return the launcher's start function, which calls `plain` for other products; without a launcher, `plain`."""
    launchers.pop(kind, None)
    if launcher() is None:
        return plain
    try:
        made = launchers[kind] = launcher().Launcher(plain, *arguments, workspaces, by_vendor)
    except (TypeError, ValueError):  # a DLPack exchange table of another version
        return plain
    start: Starter = made.start
    return start


def teach(a: Any, b: Any, out: Any, plan: Plan, asked: Any) -> None:
    """Add the plan to the launcher's cache. Add its kernel, too, which the launcher may use for other shapes."""
    made = launchers.get(type(a))
    if made is None:
        return
    slot = plan.free_slot()
    slot.set_factors(plan, None, None)
    places = (*ADDRESSES_AT, ALPHA_AT, BETA_AT, STREAM_AT)
    if is_torchs(a):
        new_out: Any = ((plan.out_shape, plan.out_strides), {"dtype": a.dtype, "device": a.device})
    else:
        new_out = ((plan.out_shape, a.dtype), {"order": plan.out_order})
    key = legacy_key(plan.context_number)
    workspace = (None if plan.needed_bytes is None else key, *(plan.needed_bytes or (0, 0)), WORKSPACE_AT)
    launch = ctypes.cast(plan.kernel_launch, ctypes.c_void_p).value
    made.add(
        a, b, out, asked, plan.start, (launch, plan.kernel), slot.buffer[:POINTERS_AT], places, bytes(plan.places),
        (*plan.spans, plan.alignment_mask), (plan.scalar_type, plan.largest), workspace,
        new_out,
    )  # fmt: skip
    plan.slots.append(slot)
    found = plan.match.winner
    number = _numbers_in_c().get(id(found))
    if (
        number is not None and found.dtype in DTYPES and not log.isEnabledFor(logging.DEBUG)
    ):  # the launcher does not log its choices
        kernel = (number, INDEX_WIDTHS.index(plan.match.index_bits))
        type_of_out = new_out[1] if is_torchs(a) else a.dtype
        name, of_type = device_of(plan.ordinal)[0], TYPES_IN_C.index(found.dtype)
        made.know(a, name, of_type, type_of_out, kernel, (launch, plan.kernel), key)
