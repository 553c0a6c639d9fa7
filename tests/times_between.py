"""Times of kernels at tuned shapes, and between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.fabricated import final
from tests.simulated import RUN, Simulated, stored_trial
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.families.stream_a import StreamAFmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.measure.cross_timing import CrossTiming
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.search.options import Options

H200 = PROFILES["h200"]


def predict(monkeypatch: pytest.MonkeyPatch, module: str, times: Callable[..., Any]) -> None:
    """Let these be the times that a module of kernel_sets expects of kernels."""
    monkeypatch.setattr(f"tsm2_tune.tuner.export.kernel_sets.{module}.expected", times)


def shape(m: int, n: int, k: int, dtype: str = "f32", op: str = "nn") -> Problem:
    return Problem(m, n, k, dtype, op)


class Slower(dict[Any, float]):
    """Times of kernels: all others take at least as long as WINNER, and all take longer for more columns."""

    def get(self, key: Any, default: Any = None) -> Any:
        return self[key]

    def __missing__(self, key: tuple[str, Problem]) -> float:
        return (1.0 if key[0] == WINNER.text else 1.02) * 380.0 * max(key[1].n // 2, 1)


class Everything(dict[Any, float]):
    """Times of kernels: all others take longer than the winner."""

    def get(self, key: Any, default: Any = None) -> Any:
        return self[key]

    def __missing__(self, key: tuple[str, Problem]) -> float:
        return 100.0 if key[0] == WINNER.text else 150.0


WINNER = StreamAFmaConfig(128, 1, 2, 8, 4, 13, 1, 1)
THIRD = StreamAFmaConfig(128, 1, 4, 8, 4, 13, 1, 1)
OTHER = StreamAFmaConfig(128, 1, 6, 8, 4, 13, 1, 1)  # its tile of 6 columns suits shapes between 4 and 8 columns
SHAPES = [shape(20480, n, 20480) for n in (2, 4, 8, 16, 32)]


def measured(store: Store, us: dict[int, float], config: Any = OTHER, **changes: Any) -> None:
    """Store the times of the kernel by columns."""
    for n, own_us in us.items():
        store.add_trial(RUN, stored_trial(config, shape(20480, n, 20480), own_us, **changes))


def tuned(store: Store) -> tuple[BestRow, ...]:
    """A kernel of 2 columns that won everywhere: the more passes over A, the longer it took."""
    for problem in SHAPES:
        trial = stored_trial(WINNER, problem, 380.0 * max(problem.n // 2, 1), full_verdict="right")
        store.add_trial(RUN, trial)
        store.add_final(
            RUN, final((WINNER, 380.0 * max(problem.n // 2, 1)), problem=problem), ("stream_a_fma",), trial.basis
        )
    return store.best()


# At 8, 16 and 32 columns it has two, three and six passes over A: slower than one kernel of as many columns would be.
SLOWER_AT_TUNED = {2: 400.0, 4: 770.0, 8: 1530.0, 16: 3050.0, 32: 6090.0}


def crossed(
    store: Store, times: dict[Any, float] | None = None, shapes: Sequence[Problem] = SHAPES, **options: Any
) -> Simulated:
    """A device on which a run times the winners' kernels, and what contends, at the shapes and between them."""
    device = Simulated(store, Everything() if times is None else times)
    device.options = Options(**options)
    list(CrossTiming(frozenset(shapes), device, store, families=("stream_a_fma",)).events())
    return device


def measured_between(store: Store) -> Simulated:
    """A run after which there are times between the tuned shapes."""
    tuned(store)
    return crossed(store, vendor=True)
