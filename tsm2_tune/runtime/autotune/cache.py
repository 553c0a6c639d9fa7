"""Kernels chosen by timing, in memory and in the file of `remember`, which stores them for later processes.

A choice is for one combination of shapes, layouts and types, here called a kind of product. Each line of the file is
JSON for one kind. A line also names the exported module (by its digest), the GPU and the driver. Lines that name
another module, GPU or driver are ignored. Lines are only appended, each with a single write, so concurrent processes
lose nothing. A stored choice is used only if gemm would time the same kernel and launch now.
"""

from __future__ import annotations

import json
import math
import os
import stat
import sys
import threading
import warnings
from dataclasses import dataclass, field
from typing import Any

from tsm2_tune.runtime.arrays.libraries import is_cupys, is_torchs
from tsm2_tune.runtime.arrays.matrices import Product
from tsm2_tune.runtime.autotune.timing import fastest_way, vendors_of
from tsm2_tune.runtime.choice.choose import contenders
from tsm2_tune.runtime.choice.winners import Match, Vendor
from tsm2_tune.runtime.cuda.driver import context_id, device_of, driver_version, home
from tsm2_tune.runtime.elements import log
from tsm2_tune.runtime.module_data import IDENTITY, WINNERS
from tsm2_tune.runtime.prepare import effective_factors

MOST_DECIDED = 1 << 16  # most entries of the cache
decided: dict[Any, Match | Vendor] = {}
_deciding = threading.RLock()  # one thread times at a time; the other threads wait


def has_factors(product: Product, alpha: Any, beta: Any) -> bool:
    """Return whether alpha or beta differs from its neutral value, so that it changes the result."""
    return effective_factors(product, alpha, beta) != effective_factors(product, None, None)


def by_timing(
    product: Product, expected: Match | Vendor, kernel: Match, fallback: str, alpha: Any, beta: Any, stream: Any
) -> Match | Vendor:
    """Return the choice that is fastest on these arrays; it is cached for all addresses, alphas and betas.

    Return `expected` in three cases: it is a Vendor that cannot be timed here; memory is short; `out` must be
    restored after timing, and an array is neither PyTorch's nor CuPy's.
    """
    keeps = beta is not None and beta != effective_factors(product, None, None)[1]
    multiply = vendors_of(product, alpha, beta) if fallback == "vendor" else None
    others = keeps and not all(is_torchs(x.array) or is_cupys(x.array) for x in product.given)
    if others or (multiply is None and isinstance(expected, Vendor)):
        return expected
    kind = _kind(product, fallback, is_vendor_timed=multiply is not None)
    found = decided.get(kind)
    if found is not None:
        return found
    with _deciding:
        found = decided.get(kind)  # another thread may have timed it while this one waited
        if found is None:
            device = device_of(home(product.a)[1])[0]
            found = recalled(product, kind, device, may_be_vendor=multiply is not None)
            if found is None:
                try:
                    found = fastest_way(product, kernel, alpha, beta, stream, multiply)
                except MemoryError:
                    return expected
                keep_choice(product, kind, device, found)
            if len(decided) >= MOST_DECIDED:
                decided.clear()
            decided[kind] = found
            log.debug("%s %s: %s", "x".join(map(str, product.shape)), product.name, found)
    return found


def _kind(product: Product, fallback: str, *, is_vendor_timed: bool) -> Any:
    """Return the key in the cache: CUDA context, types, shapes and strides, but no addresses."""
    layouts = tuple((x.rows, x.columns, x.ld) for x in product.given), product.products, product.strides
    where = context_id(home(product.a)[0])
    return where, product.name, layouts, product.conjugates, product.is_gram, fallback, is_vendor_timed


# The file

MOST_FILE_BYTES = 1 << 26
KEPT_VENDOR = Vendor("timed in an earlier process, where it took less than every kernel here")


@dataclass(slots=True)
class ChoiceFile:
    """The file given to `remember`, and its choices. An owner is a combination of exported module, GPU and driver."""

    path: str
    choices: dict[str, Any]  # owner + kind of product -> choice
    owners: set[str]  # owners that have choices in the file
    begins: str  # prefix of the next line: a line feed if the file does not end with one
    warned: set[str] = field(default_factory=set)  # owners without choices that a warning has named


_chosen_file: list[ChoiceFile] = []  # empty, or the file given to `remember`


def remember(path: str | os.PathLike[str] | None) -> None:
    """Store the kernels that `gemm(..., measure=True)` chooses in this file, and reuse the choices in it.

    A stored choice is used without timing if the exported module, the GPU, the driver and the version of the arrays'
    library are the same. If the file has choices, but no choice for this module, GPU and driver, a warning says so.
    New choices are appended. Products that this process has timed before keep their choices. A missing file is
    created. If `path` is None, no file is used from then on. Raise OSError if the file cannot be read and written.
    Raise ValueError if it is not a regular file or has more than 64 MiB.
    """
    _chosen_file[:] = [] if path is None else [_choice_file_at(os.path.abspath(os.fsdecode(path)))]


def recalled(product: Product, kind: Any, device: str, *, may_be_vendor: bool) -> Match | Vendor | None:
    """Return the stored choice, with its times; None if there is none, or if gemm would not time its launch now."""
    if not _chosen_file:
        return None
    file, owner = _chosen_file[0], _owner_of_choices(device)
    if file.owners and owner not in file.owners and owner not in file.warned:
        file.warned.add(owner)
        warnings.warn(
            f"{file.path}: its choices are for another module, GPU or driver and are not used; new choices are added",
            RuntimeWarning, stacklevel=2,
        )  # fmt: skip
    choice = file.choices.get(owner + _kind_named(product, kind))
    if choice is None:
        return None
    way, us, vendor_us = choice
    if way is None:
        return KEPT_VENDOR if may_be_vendor else None
    for one in contenders(product, device):
        if _way_of(one) == way:
            return one.timed(us, vendor_us)
    return None


def keep_choice(product: Product, kind: Any, device: str, found: Match | Vendor) -> None:
    """Append the choice to the file of `remember`, if there is a file. Warn if it cannot be written."""
    if not _chosen_file:
        return
    file, owner, named = _chosen_file[0], _owner_of_choices(device), _kind_named(product, kind)
    choice = [None, None, None] if isinstance(found, Vendor) else [_way_of(found), found.expected_us, found.vendor_us]
    file.choices[owner + named] = choice
    line = f"{file.begins}{json.dumps([owner, named, choice])}\n".encode()
    try:
        descriptor = os.open(file.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)
        file.begins = ""
    except OSError as error:
        warnings.warn(f"{file.path}: a choice cannot be saved: {error}", RuntimeWarning, stacklevel=2)


def _way_of(match: Match) -> list[Any]:
    """Return a JSON list that identifies kernel and launch. It begins with the kernel's index in WINNERS."""
    place = next(at for at, winner in enumerate(WINNERS) if winner is match.winner)
    return [place, match.launch.rows_per_block, match.launch.splits, match.is_transposed]


def _owner_of_choices(device: str) -> str:
    return json.dumps([IDENTITY, device, driver_version()])


def _kind_named(product: Product, kind: Any) -> str:
    """Return the kind of product as JSON text without the CUDA context, but with the library and its version."""
    library = type(product.a.array).__module__.partition(".")[0]
    return json.dumps([*kind[1:], library, str(getattr(sys.modules.get(library), "__version__", ""))])


def _choice_file_at(path: str) -> ChoiceFile:
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0), 0o666)
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode) or state.st_size > MOST_FILE_BYTES:
            raise ValueError(f"{path}: expected a regular file of at most {MOST_FILE_BYTES >> 20} MiB")
        text = file.read(MOST_FILE_BYTES).decode(errors="replace")
    lines = [line for line in text.split("\n") if line]
    read = [one for one in map(_choice_in, lines) if one is not None]
    if len(read) < len(lines):
        warnings.warn(f"{path}: {len(lines) - len(read)} lines are not choices", RuntimeWarning, stacklevel=3)
    choices = {owner + named: choice for owner, named, choice in read}
    begins = "\n" if text and not text.endswith("\n") else ""
    return ChoiceFile(path, choices, {owner for owner, _, _ in read}, begins)


def _choice_in(line: str) -> tuple[str, str, Any] | None:
    """Parse a line of the file. Return its owner, its kind of product and its choice; None for an invalid line."""
    try:
        owner, named, (way, *times) = json.loads(line)
    except (ValueError, TypeError, RecursionError):
        return None
    is_number = [one is None or (isinstance(one, float) and math.isfinite(one) and one > 0) for one in times]
    is_way = way is None or (isinstance(way, list) and len(way) == 4)
    if not (isinstance(owner, str) and isinstance(named, str) and is_way and len(times) == 2 and all(is_number)):
        return None
    return owner, named, (way, *times)
