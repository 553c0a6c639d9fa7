"""Read and check a result file of `benchmarks.call_cost`, and print it as a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.headline import markdown, number
from benchmarks.result_file import is_number
from tsm2_tune.errors import InputError

OUT, NEW = "gemm(a, b, out=c)", "gemm(a, b)"
SPLIT = "gemm(x, y, out=z), whose kernel splits k"
LEFT = "gemm(a, b, out=c) of another type, left to the library"
PLAN = "plan()"
OWN = {"torch": "torch.mm(a, b, out=c)", "cupy": "cupy.matmul(a, b, out=c)"}
BY_LAUNCHER = "launcher: "
LINES = (  # label of a table row -> name of the call
    ("`gemm(a, b, out=c)`", OUT),
    ("the same, where the kernel splits k", SPLIT),
    ("`gemm(a, b)`", NEW),
    ("`gemm(a, b, out=c)` with the launcher", BY_LAUNCHER + OUT),
    ("the same, where the kernel splits k", BY_LAUNCHER + SPLIT),
    ("`gemm(a, b)` with the launcher", BY_LAUNCHER + NEW),
    ("`plan(a, b, c)()`", PLAN),
    ("`gemm(a, b, out=c)` that the library computes", LEFT),
)


def read_calls(path: Path) -> dict[str, Any]:
    """Return the content of a result file.

    Raise InputError if it is no file of this bench, or lacks the time of the library's own call or of ours.
    """
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        times = [one["median_us"] for library in OWN for one in found[library]["one_thread"].values()]
        times += [
            found[library]["one_thread"][name]["median_us"] for library, own in OWN.items() for name in (own, OUT)
        ]
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is no file of call_cost ({error}): name one that this bench has written") from None
    if not all(map(is_number, times)):
        raise InputError(f"{path} is no file of call_cost (its times): name one that this bench has written")
    return found


def call_us(found: Mapping[str, Any], library: str, name: str) -> float | None:
    """Return the microseconds of a call from one thread, or None if it was not measured."""
    us: float | None = found[library]["one_thread"].get(name, {}).get("median_us")
    return us


def table(found: Mapping[str, Any]) -> str:
    """Return a Markdown table of calls: microseconds, and their ratio to the library's own call."""
    owns = {library: call_us(found, library, own) or 0.0 for library, own in OWN.items()}
    own_words = "the library's own: `torch.mm(a, b, out=c)`, `cupy.matmul(a, b, out=c)`"
    lines = [(own_words, *(number(us, 1) for us in owns.values()))]
    for words, name in LINES:
        times = {library: call_us(found, library, name) for library in OWN}
        if any(times.values()):
            lines.append(
                (words, *("–" if us is None else f"{us:.1f} ({us / owns[at]:.2f})" for at, us in times.items()))
            )
    return markdown(("one call", "PyTorch tensors", "CuPy arrays"), lines, texts=("one call",))
