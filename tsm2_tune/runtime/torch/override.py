"""`install`: replace PyTorch's matrix operators on GPUs by functions that use tuned kernels.

Products without a kernel are computed by the previous implementation, PyTorch's own or another override.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tsm2_tune.runtime.arrays.libraries import torchs_own_product
from tsm2_tune.runtime.module_data import WINNERS
from tsm2_tune.runtime.torch.dispatch import KEY_OF_GPUS, Taker, imported_torch, torch_taker


def install() -> None:
    """Override PyTorch's mm, addmm, bmm and baddbmm on GPUs in the whole process, until `uninstall` is called.

    A kernel computes a product or a batch if `choice` would return a kernel for it. The override affects every
    caller: `a @ b`, linear layers, einsum, gradients, compiled programs. PyTorch still computes products and batches
    without a kernel; float32 products if the program allows TF32; addmm that adds a row or a column, unless the
    result is small; and, while a CUDA graph is captured, products whose kernel is not loaded (`load` loads all
    kernels).

    Call this function while no other thread multiplies. If another package has overridden an operator, products
    without a kernel go to that override. Raise RuntimeError if PyTorch is missing or older than 2.9, or if this
    module has no kernel for a GPU.
    """
    _overrides.change(is_installed=True)


def uninstall() -> None:
    """Undo `install`.

    If another package has overridden an operator after `install`, this module's override of the operator stays
    registered, but uses no kernel.
    """
    _overrides.change(is_installed=False)


@contextmanager
def installed() -> Iterator[None]:
    """Override PyTorch's operators, as `install` does, for the body of `with`.

    The override affects the whole process, and ends when the last of several such contexts ends.
    """
    _overrides.change(scopes=1)
    try:
        yield
    finally:
        _overrides.change(scopes=-1)


OPERATORS = (
    "mm", "mm.out", "addmm", "addmm.out", "addmm_", "bmm", "bmm.out", "baddbmm", "baddbmm.out", "baddbmm_",
)  # fmt: skip


def _overriding(name: str, take: Taker) -> Callable[..., Any]:
    """Return a function with the operator's signature that returns None if PyTorch must compute the product."""
    dimensions, is_in_place = 3 if name.startswith("b") else 2, name.endswith("_")
    if "add" not in name:
        return lambda a, b, out=None: take(dimensions, a, b, out, None, None, None)
    return lambda c, a, b, beta=1, alpha=1, out=None: take(
        dimensions, a, b, c if is_in_place else out, c, alpha, beta
    )


class Override:
    """The override of one PyTorch operator, such as addmm.out."""

    __slots__ = ("call", "compute_by_kernel", "is_enabled", "library", "name", "own", "previous")

    def __init__(self, name: str, take: Taker) -> None:
        self.name, self.compute_by_kernel, self.is_enabled = name, _overriding(name, take), False
        self.register()

    def register(self) -> None:
        """Register the override with PyTorch, and keep the previous implementation for products without a kernel."""
        self.previous = self.on_top()
        self.call = self.previous.call_boxed
        self.library = imported_torch().library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns that an implementation is replaced
            # Not Library.impl, which records the override and then refuses a second one.
            self.library.m.impl(self.name, KEY_OF_GPUS, self.compute, True)
        self.own = repr(self.on_top())

    def on_top(self) -> Any:
        """Return the implementation that PyTorch calls now. Its repr has the file and line that registered it."""
        return imported_torch().library.get_kernel(f"aten::{self.name}", KEY_OF_GPUS)

    def compute(self, keys: Any, *operands: Any, **named: Any) -> Any:
        """Compute the operator with a kernel, or else with the previous implementation for the keys that remain."""
        if self.is_enabled and not torchs_own_product.is_wanted:
            found = self.compute_by_kernel(*operands, **named)
            if found is not None:
                return found
        try:
            return self.call(keys, *operands, **named)
        except RuntimeError:
            if not self.is_renewed():
                raise
            return self.call(keys, *operands, **named)

    def is_renewed(self) -> bool:
        """Return whether the previous implementation was removed; if so, register this one again on top."""
        previous = repr(self.previous)
        if ".py:" not in previous:  # PyTorch's own implementation is never removed
            return False
        with _overrides.changing:
            if repr(self.on_top()) != self.own:
                return False
            self.library._destroy()
            self.register()
            return repr(self.previous) != previous

    def is_removed(self) -> bool:
        """Disable the override, and remove it unless a later override may call it. Return whether it was removed."""
        self.is_enabled = False
        if repr(self.on_top()) != self.own:
            return False
        self.library._destroy()
        return True


class Overrides:
    """All overrides of this module (`known`, by operator), and the number of open `installed` contexts (`scopes`)."""

    def __init__(self) -> None:
        self.changing = threading.RLock()
        self.known: dict[str, Override] = {}
        self.is_installed, self.scopes = False, 0

    def change(self, *, is_installed: bool | None = None, scopes: int = 0) -> None:
        """Set `is_installed` unless it is None, add `scopes` open contexts, then add or remove the overrides."""
        with self.changing:
            if is_installed or scopes > 0:
                self.begin()
            self.is_installed = self.is_installed if is_installed is None else is_installed
            self.scopes += scopes
            if not self.is_installed and self.scopes == 0:
                self.known = {name: one for name, one in self.known.items() if not one.is_removed()}

    def begin(self) -> None:
        """Register the overrides that are missing, and enable all. Raise RuntimeError if that is not possible."""
        if all(winner.on_host for winner in WINNERS):
            raise RuntimeError("install: this module has no kernel for a GPU: tune on one, and export again")
        torch = imported_torch()
        if not hasattr(torch.library, "get_kernel"):
            raise RuntimeError(f"install: PyTorch {torch.__version__} is too old: 2.9 or later is needed")
        try:
            for name in OPERATORS:
                torch.library.get_kernel(f"aten::{name}", KEY_OF_GPUS)
        except RuntimeError as error:
            raise RuntimeError(f"install: this PyTorch is built for no GPU: {error}") from error
        take = torch_taker(torch)
        for name in OPERATORS:
            if name not in self.known:
                self.known[name] = Override(name, take)
            self.known[name].is_enabled = True


_overrides: Overrides = globals().get("_overrides") or Overrides()  # kept if the module is reloaded
