"""Describe the fault of an emulated kernel in one sentence, from the structures of block.h and launch.h."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

STACKS = 1024 + 1  # one for each thread of the largest block, and one for the signal handler
SHARED_BYTES = 256 << 10  # TSM2_HOST_SHARED_BYTES of block.h: larger offsets belong to static shared variables
FAR_BYTES = 1 << 30  # largest distance from known memory that a message mentions


class FaultKind(IntEnum):
    """The kind of a kernel's fault: the enum `FaultKind` of block.h."""

    NONE = 0
    SIGNALLED = 1
    STUCK = 2
    WRONG_LANE = 3
    SHARED_OVERRUN = 4
    RACE = 5
    COUNTED_EARLY = 6


class State(IntEnum):
    """The state of an emulated thread: the enum `State` of block.h."""

    FRESH = 0
    READY = 1
    AT_BARRIER = 2
    AT_WARP = 3
    ENDED = 4


class Fault(ctypes.Structure):
    """The fault of a launch: the structure `Fault` of block.h."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("signal", ctypes.c_int),
        ("signal_code", ctypes.c_int),
        ("block", ctypes.c_uint),
        ("split", ctypes.c_uint),
        ("thread", ctypes.c_uint),
        ("other", ctypes.c_uint),
        ("state", ctypes.c_int),
        ("line", ctypes.c_int),
        ("other_state", ctypes.c_int),
        ("other_line", ctypes.c_int),
        ("mask", ctypes.c_uint),
        ("other_mask", ctypes.c_uint),
        ("address", ctypes.c_uint64),
    )


class Launch(ctypes.Structure):
    """Arguments, grid and memory of a launch, with its fault: the structure `Launch` of block.h."""

    _fields_ = (
        ("arguments", ctypes.c_void_p),
        ("blocks", ctypes.c_uint),
        ("splits", ctypes.c_uint),
        ("products", ctypes.c_uint),
        ("threads", ctypes.c_uint),
        ("smem_bytes", ctypes.c_uint),
        ("seed", ctypes.c_uint),
        ("stacks", ctypes.c_void_p),
        ("stack_bytes", ctypes.c_uint64),
        ("stack_guard_bytes", ctypes.c_uint64),
        ("shared_memory", ctypes.c_void_p),
        ("fault", Fault),
    )


class Entry(ctypes.Structure):
    """A compiled kernel and the sizes of its parameters: the structure `Kernel` of launch.h."""

    _fields_ = (
        ("run", ctypes.CFUNCTYPE(None, ctypes.POINTER(Launch))),
        ("most_threads", ctypes.c_uint),
        ("parameters", ctypes.c_uint),
        ("parameter_bytes", ctypes.POINTER(ctypes.c_uint)),
    )


@dataclass(frozen=True, slots=True)
class Stretch:
    """A range of addresses, such as a buffer, and the range's name in messages."""

    name: str
    address: int
    size_bytes: int

    def gap_bytes(self, address: int) -> int:
        """Return the distance in bytes of the address from the range; 0 if the range contains it."""
        return max(self.address - address, address - (self.address + self.size_bytes - 1), 0)


def fault_message(launch: Launch, buffers: Sequence[Stretch]) -> str:
    """Return a sentence that describes the launch's fault: the thread, the error and the place."""
    fault = launch.fault
    block = f"block ({fault.block}, {fault.split})" if launch.splits > 1 else f"block ({fault.block})"
    if fault.kind == FaultKind.SIGNALLED:
        return f"thread ({fault.thread}) of {block} {_signal_text(launch, buffers)}"
    if fault.kind == FaultKind.STUCK:
        return _stuck_text(fault, block)
    if fault.kind == FaultKind.WRONG_LANE:
        return (
            f"thread ({fault.thread}) of {block} calls a warp operation with mask"
            f" {fault.mask:#010x} in line {fault.line} that involves lane {fault.other}, which does not execute it"
        )
    shared = Stretch("shared memory", 0, launch.smem_bytes)
    if fault.kind == FaultKind.RACE:
        first, second = ("wrote" if wrote else "read" for wrote in (fault.other_state, fault.state))
        what = f"byte {fault.address} of {shared.name} of {shared.size_bytes} bytes"
        if fault.address >= SHARED_BYTES:
            what = "a variable in shared memory"
        return (
            f"thread ({fault.other}) of {block} {first} {what}, which thread ({fault.thread}) {second}:"
            " no barrier orders the two"
        )
    if fault.kind == FaultKind.COUNTED_EARLY:
        return (
            f"{block} incremented the counter, and no barrier orders the stores of its thread ({fault.other})"
            " for other blocks before that"
        )
    return f"{block} wrote {_place_text(shared, fault.address)}"


def _signal_text(launch: Launch, buffers: Sequence[Stretch]) -> str:
    """Return the part of the sentence that says what the thread did to raise a signal, such as a segfault."""
    fault = launch.fault
    if fault.signal == signal.SIGFPE:
        return "divided an integer by zero"
    if fault.signal == signal.SIGILL:
        return "indexed a local array out of bounds, made a misaligned access, or reached __trap()"
    in_stacks = fault.address - launch.stacks
    if 0 <= in_stacks < STACKS * launch.stack_bytes and in_stacks % launch.stack_bytes < launch.stack_guard_bytes:
        return f"overflowed its stack of {(launch.stack_bytes - launch.stack_guard_bytes) >> 10} KiB"
    if fault.address == 0:
        # The CPU reports no address for a misaligned vector load or store.
        return "used a null pointer, or accessed a vector that is not aligned as its type requires"
    shared = [Stretch("shared memory", launch.shared_memory, launch.smem_bytes)] if launch.smem_bytes else []
    nearest = min((*buffers, *shared), key=lambda stretch: stretch.gap_bytes(fault.address), default=None)
    if nearest is None or nearest.gap_bytes(fault.address) > FAR_BYTES:
        return f"accessed address {fault.address:#x}, which is not near a buffer"
    return f"accessed {_place_text(nearest, fault.address)}"


def _place_text(stretch: Stretch, address: int) -> str:
    """Return a text that describes the position of an address relative to the range."""
    size = f"{stretch.name} of {stretch.size_bytes} bytes"
    if address < stretch.address:
        return f"memory {stretch.address - address} bytes before the start of {size}"
    byte = address - stretch.address
    if byte < stretch.size_bytes:
        return f"byte {byte} of {size}, which is not accessible"
    past = byte - stretch.size_bytes
    return f"byte {byte} of {size}, {f'{past} bytes' if past else 'right'} past its end"


def _stuck_text(fault: Fault, block: str) -> str:
    other = _state_text(fault.other_state, fault.other_line, fault.other_mask)
    return (
        f"thread ({fault.thread}) of {block} {_state_text(fault.state, fault.line, fault.mask)},"
        f" which thread ({fault.other}) will not reach: it {other}"
    )


def _state_text(state: int, line: int, mask: int) -> str:
    if state == State.AT_BARRIER:
        return f"waits at the barrier in line {line}"
    if state == State.AT_WARP:
        return f"waits at the warp operation with mask {mask:#010x} in line {line}"
    return "has ended"
