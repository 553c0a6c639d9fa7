"""`install`: override PyTorch's matrix operators on GPUs by kernels.

A product without a kernel goes to the previous implementation, PyTorch's own or another override.
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
    """Let kernels compute PyTorch's own products on GPUs, if `choice` names one, until `uninstall`.

    Overridden are mm, addmm, and bmm of one product, from every caller: `a @ b`, linear layers, einsum, gradients,
    compiled programs. PyTorch still computes all other products: of float32 if the program allows TF32; addmm of a
    row or a column, unless the result is small; and, while a CUDA graph is captured, products whose kernel is not
    loaded (`load` loads all).

    The override holds for the whole process: call this while no other thread multiplies. Products without a kernel
    go to earlier overrides, and later ones may call this one. Raise RuntimeError without PyTorch 2.9 or later, or if
    no kernel here is for a GPU.
    """
    _overrides.change(is_installed=True)


def uninstall() -> None:
    """Undo `install`. If a later override exists, this one stays below it and passes all products on."""
    _overrides.change(is_installed=False)


@contextmanager
def installed() -> Iterator[None]:
    """Install for the body of `with`: in the whole process, until the last open context ends."""
    _overrides.change(scopes=1)
    try:
        yield
    finally:
        _overrides.change(scopes=-1)


class Override:
    """The override of one operator."""

    __slots__ = ("call", "compute_by_kernel", "is_enabled", "library", "name", "own", "previous")

    def __init__(self, name: str, take: Taker) -> None:
        self.name, self.compute_by_kernel, self.is_enabled = name, OPERATORS[name](take), False
        self.register()

    def register(self) -> None:
        """Register it above the present implementation."""
        torch = imported_torch()
        self.previous = self.on_top()
        self.call = self.previous.call_boxed
        self.library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns of overriding a kernel
            # Library.impl would record the override and refuse the next one.
            self.library.m.impl(self.name, KEY_OF_GPUS, self.compute, True)
        self.own = repr(self.on_top())

    def on_top(self) -> Any:
        """Return the implementation that PyTorch calls now. Its repr says where it was registered."""
        return imported_torch().library.get_kernel(f"aten::{self.name}", KEY_OF_GPUS)

    def compute(self, keys: Any, *operands: Any, **named: Any) -> Any:
        """Compute the operator: by a kernel, else by the previous implementation with the remaining dispatch keys."""
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
        """Return whether the previous override was removed; register above its successor then."""
        previous = repr(self.previous)
        if ".py:" not in previous:  # PyTorch's own, which stays
            return False
        with _overrides.changing:
            if repr(self.on_top()) != self.own:
                return False
            self.library._destroy()
            self.register()
            return repr(self.previous) != previous

    def is_removed(self) -> bool:
        """Disable it, and remove it unless a later override may call it. Return whether it was removed."""
        self.is_enabled = False
        if repr(self.on_top()) != self.own:
            return False
        self.library._destroy()
        return True


class Overrides:
    """The overrides of this module by operator, and the number of open `installed` contexts."""

    def __init__(self) -> None:
        self.changing = threading.RLock()
        self.known: dict[str, Override] = {}
        self.is_installed, self.scopes = False, 0

    def change(self, *, is_installed: bool | None = None, scopes: int = 0) -> None:
        """Change `is_installed` and the number of open contexts, then add or remove the overrides."""
        with self.changing:
            if is_installed or scopes > 0:
                self.begin()
            self.is_installed = self.is_installed if is_installed is None else is_installed
            self.scopes += scopes
            if not self.is_installed and self.scopes == 0:
                self.known = {name: one for name, one in self.known.items() if not one.is_removed()}

    def begin(self) -> None:
        """Register missing overrides and enable all. Raise RuntimeError if that is not possible."""
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


# The operators with PyTorch's signatures. None: PyTorch computes it


def _mm(take: Taker) -> Callable[..., Any]:
    return lambda a, b, out=None: take(2, a, b, out, None, None, None)


def _addmm(take: Taker) -> Callable[..., Any]:
    return lambda c, a, b, beta=1, alpha=1, out=None: take(2, a, b, out, c, alpha, beta)


def _addmm_in_place(take: Taker) -> Callable[..., Any]:
    return lambda c, a, b, beta=1, alpha=1: take(2, a, b, c, c, alpha, beta)


def _bmm(take: Taker) -> Callable[..., Any]:
    return lambda a, b, out=None: take(3, a, b, out, None, None, None) if a.shape[:1] == (1,) else None


OPERATORS: dict[str, Callable[[Taker], Callable[..., Any]]] = {
    "mm": _mm,
    "mm.out": _mm,
    "addmm": _addmm,
    "addmm.out": _addmm,
    "addmm_": _addmm_in_place,
    "bmm": _bmm,
    "bmm.out": _bmm,
}
