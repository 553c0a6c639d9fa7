"""PyTorch's table of what computes an operator, as far as overrides ask it: the last one that came is called."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

OWN = "PyTorch's"  # result of its own kernels
KEYS = object()  # the dispatch keys that a call has left


class Kernel:
    """Implementation of an operator, until it is removed."""

    def __init__(self, place: str, compute: Callable[..., Any]) -> None:
        self.place, self.compute, self.is_there = place, compute, True

    def __repr__(self) -> str:
        return f"registered at {self.place}"

    def call_boxed(self, keys: Any, *operands: Any, **named: Any) -> Any:
        assert keys is KEYS
        if not self.is_there:
            raise RuntimeError(f"invalidated: {self}")
        return self.compute(*operands, **named)


class Dispatcher:
    """Its own kernels are of PyTorch; each library is another one's."""

    def __init__(self, names: tuple[str, ...], own: Callable[..., Any]) -> None:
        self.of: dict[str, list[Kernel]] = {f"aten::{name}": [Kernel("RegisterCUDA_0.cpp:1", own)] for name in names}
        self.libraries = 0

    def library(self, namespace: str, kind: str) -> Any:
        assert (namespace, kind) == ("aten", "IMPL")
        self.libraries += 1
        place, mine = f"someone_{self.libraries}.py:1", list[Kernel]()

        def impl(name: str, key: str, compute: Callable[..., Any], with_keyset: bool) -> None:
            assert (key, with_keyset) == ("CUDA", True)
            mine.append(Kernel(place, lambda *operands, **named: compute(KEYS, *operands, **named)))
            self.of[f"aten::{name}"].append(mine[-1])

        def destroy() -> None:
            for kernel in mine:
                kernel.is_there = False
                for kernels in self.of.values():
                    if kernel in kernels:
                        kernels.remove(kernel)

        return SimpleNamespace(m=SimpleNamespace(impl=impl), _destroy=destroy)

    def get_kernel(self, name: str, key: str) -> Kernel:
        if key != "CUDA":
            raise RuntimeError(f"no kernel for {key} for {name}")
        return self.of[name][-1]

    def call(self, name: str, *operands: Any, **named: Any) -> Any:
        return self.of[f"aten::{name}"][-1].compute(*operands, **named)

    def override(self, name: str, compute: Callable[[Kernel], Callable[..., Any]]) -> Any:
        """Somebody else's, who is told what was there before; its library."""
        library, before = self.library("aten", "IMPL"), self.get_kernel(f"aten::{name}", "CUDA")
        library.m.impl(name, "CUDA", compute(before), True)
        return library

    @property
    def state(self) -> dict[str, list[Kernel]]:
        return {name: list(kernels) for name, kernels in self.of.items()}
