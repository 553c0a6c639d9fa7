"""Claims of two runs on one database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fabricated import BASIS, GPU, PROBLEM, configuration
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import TimeLimits
from tsm2_tune.tuner.runs.leases.configurations import Claims
from tsm2_tune.tuner.search.resume import ClaimResult, Retries

LIMITS = TimeLimits(120.0, 60.0)
C128, C256, C512 = configuration(128).text, configuration(256).text, configuration(512).text


@pytest.fixture
def ours(store: Store) -> Iterator[Claims]:
    with store.claims(GPU) as ours:
        yield ours


@pytest.fixture
def theirs(path: Path, ours: Claims) -> Iterator[Claims]:
    """Another run's, which has opened the database itself."""
    with Store.open(path, create=True) as store, store.claims(GPU) as theirs:
        yield theirs


def take(taking: Claims, config: str = C128, **changes: Any) -> ClaimResult:
    return taking.take(
        **{"problem": PROBLEM, "config": config, "basis": BASIS, "retries": Retries(LIMITS), **changes}
    )


def dead(owner: str) -> str:
    """The owner, had it been a process that is no more."""
    system, process, started, token = owner.split()
    return f"{system} {process} {int(started) + 1} {token}"


def elsewhere(owner: str) -> str:
    """The owner on another machine, of which only the beats are seen."""
    return dead(f"other{owner}")
