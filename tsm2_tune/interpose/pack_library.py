"""Build the C library with the tuned kernels that the stand-in launches, from a database or the pretuned kernels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tsm2_tune import __version__
from tsm2_tune.errors import InputError, ToolMissing
from tsm2_tune.interpose.build import LEFT, cached_file, digest, gpu_here
from tsm2_tune.pretuned import PREFIX, Pretuned, for_card
from tsm2_tune.tuner.compile.shared_objects import compiler_command
from tsm2_tune.tuner.export.cubins import Unverified
from tsm2_tune.tuner.export.kernel_sets.intermediate_winners import exportable
from tsm2_tune.tuner.export.library import exported_library, usable
from tsm2_tune.tuner.results.snapshot import Snapshot
from tsm2_tune.tuner.results.store import Store

REMEDY = ": tune there, or name --pretuned or --library"


def pack_path(database: str, tell: Callable[[str], None]) -> Path | None:
    """Return the path of a C library with the database's best kernels, built if it is not in the cache.

    It also has kernels for shapes between the tuned ones. Only kernels that were verified in full are included; a
    message to `tell` says which are not, such as imported ones. Without a GPU, tell so and return None.
    """
    with Snapshot.open(database, create=False) as store:
        if gpu_here(tell) is None:
            return None
        return cached_file(digest(__version__, store.database.digest()), lambda: _built(store, tell, REMEDY))


def pretuned_path(tell: Callable[[str], None]) -> Path | None:
    """Return the path of a C library with the pretuned kernels for GPU 0, built if it is not in the cache.

    The kernels may be those of another GPU with the same compute capability; a message to `tell` says so. If there is
    no GPU, no kernel for it that was verified in full, or no compiler, tell so and return None.
    """
    gpu = gpu_here(tell)
    if gpu is None:
        return None
    device_name, compute_capability = gpu
    found = for_card(device_name, compute_capability)
    if found is None:
        tell(f"no kernels are pretuned for {device_name}, nor for another GPU of compute capability"
             f" {compute_capability}: {LEFT}")  # fmt: skip
        return None
    if found.device_name != device_name:
        tell(f"{device_name} borrows kernels that were measured on {found.device_name}: tune on this GPU for its own")
    key = digest(__version__, PREFIX, found.file.read_text(encoding="utf-8"))
    try:
        return cached_file(key, lambda: _of_text(found, tell))
    except (InputError, ToolMissing) as error:
        tell(f"{error}: {LEFT}")
        return None


def _of_text(text: Pretuned, tell: Callable[[str], None]) -> bytes:
    """Return the bytes of a C library with the pretuned kernels in `text`. Raise the errors of `_built`."""
    compiler_command()  # raises ToolMissing before the slow reading
    with Snapshot.open(f"{PREFIX}{text.name}", create=False) as store:
        return _built(store, tell)


def _built(store: Store, tell: Callable[[str], None], remedy: str = "") -> bytes:
    """Return the bytes of a C library with the store's best GPU kernels that were verified in full.

    Kernels whose cubins cannot be verified now are left out; cuBLAS computes their products. Raise InputError, which
    ends with `remedy`, if there is none.
    """
    rows = store.best()
    if not any(row.compute_capability and row.verified_in_full for row in rows):
        raise InputError(f"{store.path} has no winner of a GPU that was verified in full{remedy}")
    tell(f"building a library of the kernels in {store.path}, the first time only")
    found = exportable(store, usable(store, rows, tell), tell)
    return exported_library(store, found, "libtsm2.so", Unverified.LEFT_OUT, tell)[0]
