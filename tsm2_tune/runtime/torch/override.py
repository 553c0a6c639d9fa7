"""PyTorch's own products on a GPU, by kernels: its operators are overridden at the dispatch key that calls cuBLAS.

What no kernel takes goes on to what computed it before: PyTorch's own, or another override.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tsm2_tune.runtime.arrays.libraries import asked_of_torch
from tsm2_tune.runtime.module_data import WINNERS
from tsm2_tune.runtime.torch.dispatch import KEY_OF_GPUS, Taker, imported_torch, torch_taker


def install() -> None:
    """Let kernels compute PyTorch's own products on GPUs, where `choice` says that one does, until `uninstall`.

    These are mm, addmm, and bmm of one product, by whatever calls them: `a @ b`, linear layers, einsum, gradients,
    compiled programs. All other products, and whatever is to be refused, are PyTorch's as before: of float32 too
    where the program allows TF32; those to which addmm adds a row or a column, unless the result is small; and while
    a CUDA graph is captured those whose kernel is not loaded, which `load` does.

    It is for the whole process: call it where no other thread multiplies. Overrides that were there are called for
    what is not taken, and later ones may call ours. RuntimeError without PyTorch 2.9 or later, or where no kernel
    here is for a GPU.
    """
    _overrides.change(is_installed=True)


def uninstall() -> None:
    """End what `install` began. Where an override came after it, ours stays below that and passes all products on."""
    _overrides.change(is_installed=False)


@contextmanager
def installed() -> Iterator[None]:
    """Run `install` for the body of `with`.

    It holds for the whole process, until the last of several contexts closes.
    """
    _overrides.change(scopes=1)
    try:
        yield
    finally:
        _overrides.change(scopes=-1)


class Override:
    """One operator's kernel of ours, above what computed it before."""

    __slots__ = ("before", "call", "is_at_work", "library", "name", "place", "taken")

    def __init__(self, name: str, take: Taker) -> None:
        self.name, self.taken, self.is_at_work = name, OPERATORS[name](take), False
        self.register()

    def register(self) -> None:
        """Put it above what computes the operator now."""
        torch = imported_torch()
        self.before = self.on_top()
        self.call = self.before.call_boxed
        self.library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns of overriding a kernel
            # Library.impl writes down that it is, and would refuse whoever overrides it next.
            self.library.m.impl(self.name, KEY_OF_GPUS, self.compute, True)
        self.place = repr(self.on_top())

    def on_top(self) -> Any:
        """Return the kernel that PyTorch calls for the operator. Its repr says where it was registered."""
        return imported_torch().library.get_kernel(f"aten::{self.name}", KEY_OF_GPUS)

    def compute(self, keys: Any, *operands: Any, **named: Any) -> Any:
        """Compute the operator for PyTorch, with the remaining dispatch keys."""
        if self.is_at_work and not asked_of_torch.is_own:
            found = self.taken(*operands, **named)
            if found is not None:
                return found
        try:
            return self.call(keys, *operands, **named)
        except RuntimeError:
            if not self.is_renewed():
                raise
            return self.call(keys, *operands, **named)

    def is_renewed(self) -> bool:
        """Return whether another override, which was there before, is gone.

        What is there instead is called from now on.
        """
        before = repr(self.before)
        if ".py:" not in before:  # PyTorch's own, which stays
            return False
        with _overrides.changing:
            if repr(self.on_top()) != self.place:
                return False
            self.library._destroy()
            self.register()
            return repr(self.before) != before

    def is_removed(self) -> bool:
        """Return whether it could be taken away: no other override came after it, which may call it."""
        self.is_at_work = False
        if repr(self.on_top()) != self.place:
            return False
        self.library._destroy()
        return True


class Overrides:
    """Those of this module that PyTorch knows, by operator, and who wants them."""

    def __init__(self) -> None:
        self.changing = threading.RLock()
        self.known: dict[str, Override] = {}
        self.is_installed, self.scopes = False, 0

    def change(self, *, is_installed: bool | None = None, scopes: int = 0) -> None:
        """Let there be so many scopes more that want them, and bring about what is wanted."""
        with self.changing:
            if is_installed or scopes > 0:
                self.begin()
            self.is_installed = self.is_installed if is_installed is None else is_installed
            self.scopes += scopes
            if not self.is_installed and self.scopes == 0:
                self.known = {name: one for name, one in self.known.items() if not one.is_removed()}

    def begin(self) -> None:
        """Put those that are not there to work."""
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
            self.known[name].is_at_work = True


_overrides: Overrides = globals().get("_overrides") or Overrides()  # those from before, where the module is reloaded


# The operators, as PyTorch calls them: what is None is left to it


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
