"""The workspace of an exported module's kernels that split k: here in 3, with tiles of 32 x 4."""

from __future__ import annotations

import threading
from collections import defaultdict
from random import Random
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.calls import few
from tests.fabricated import device_array
from tests.fake_tensors import Tensor

pytestmark = pytest.mark.slow


def multiply(module: ModuleType, m: int, n: int, stream: int | None = None, typestr: str = "<f4") -> list[str]:
    """Return the driver's calls for a product with a column-major C of m x n."""
    before, size = len(module.driver.calls), int(typestr[-1])
    a, b, c = (
        device_array((rows, columns), (size, size * rows), at=at, typestr=typestr)
        for rows, columns, at in ((m, 2, 0x1000), (2, n, 0x4000), (m, n, 0x8000))
    )
    module.gemm(a, b, out=c, stream=stream)
    return [call for call in module.driver.calls[before:] if call not in ("load", "pop") and "push" not in call]


SHAPES = ((33, 5, "<f4"), (20, 1, "<f4"), (33, 5, "<f8"), (65, 5, "<f4"), (1000, 1, "<f4"))


@few
@given(st.randoms(use_true_random=True))
def test_whatever_runs_a_workspace_is_of_one_stream_and_large_enough(splitting: ModuleType, rng: Random) -> None:
    """A stream keeps what it has, waits before it frees that, and a graph's workspace stays."""
    for kept in (splitting.plans, splitting.workspaces, splitting._of_graphs, splitting._functions):
        kept.clear()
    driver = splitting.driver
    driver.__init__()
    driver.workspaces, context, number, stream, is_graphs = True, 0xC0, 100, None, False
    owners, served = dict[int, Any](), defaultdict[Any, set[Any]](set)
    for _ in range(rng.randrange(1, 30)):
        context = rng.choice((context, context, 0xC0, 0xC1))
        driver.owner = lambda address, owner=context: owner
        driver.current = rng.choice((None, context, 0xC0))
        if rng.random() < 0.5:
            stream = rng.choice((None, None, 1, 77, 78))
            is_graphs = stream in (77, 78) and rng.random() < 0.5
            driver.captures += 1
        driver.capturing = {stream} if is_graphs else set()
        if rng.random() < 0.2:
            driver.stream_ids[stream], number = number, number + 1  # a new stream with the handle
        identity = (driver.captures,) if is_graphs else driver.stream_ids.get(stream) if stream in (77, 78) else 0
        key, (m, n, typestr) = (context, stream or 1, identity), rng.choice(SHAPES)
        calls = multiply(splitting, m, n, stream, typestr)
        assert calls == ["launch"] or is_graphs or (m, n, typestr) not in served[key]
        served[key].add((m, n, typestr))
        assert not any(call.startswith("free") for call in calls) or calls[0].startswith("wait for")
        assert multiply(splitting, m, n, stream, typestr) == ["launch"]
        partials, counters = driver.launches[-1]["values"][-2:]
        tiles = -(-m // 32) * -(-n // 4)
        assert driver.memory[partials] >= 3 * tiles * 32 * 4 * int(typestr[-1])
        assert driver.memory[counters] >= 4 * tiles
        zeroed = [(at, words, one or 1) for at, words, one in driver.zeroed]
        assert (counters, driver.memory[counters] // 4, stream or 1) in zeroed
        for address in (partials, counters):
            assert owners.setdefault(address, key) == key
    of_graphs = {address for address, (_, _, identity) in owners.items() if isinstance(identity, tuple)}
    assert of_graphs <= driver.memory.keys()


def test_the_legacy_streams_workspace_is_taken_without_a_question(splitting: ModuleType) -> None:
    driver = splitting.driver
    assert multiply(splitting, 33, 5) == ["allocate 6144", "allocate 16", "zero", "launch"]
    assert (driver.launches[-1]["grid"], driver.launches[-1]["values"][-2:]) == ([4, 3, 1], list(driver.memory))
    driver.current = driver.owner(0x1000)
    driver.calls.clear()
    assert multiply(splitting, 33, 5) == ["launch"]
    assert driver.calls == ["launch"]  # in the context that is current
    multiply(splitting, 1000, 1)  # another workspace, which the earlier plan must use
    for current in (driver.current, None):  # without a context the launch is refused, and made in the plan's
        driver.current = current
        assert multiply(splitting, 33, 5) == ["launch"]
        assert driver.launches[-1]["values"][-2:] == list(driver.memory)
    assert driver.calls[-3:] == [f"push {driver.owner(0x1000):x}", "launch", "pop"]


def test_every_thread_has_one_for_its_own_default_stream(splitting: ModuleType) -> None:
    """A thread waits for an ended one that had its identifier, and so another stream."""
    first = ["allocate 6144", "allocate 16", "zero", "launch"]
    for thread, number, calls in ((1, 500, first), (2, 501, first), (1, 500, ["launch"]), (1, 502, ["wait for all"])):
        splitting.threading = Mock(wraps=threading, get_ident=Mock(return_value=thread))  # type: ignore[attr-defined]
        splitting.driver.stream_ids[2] = number
        assert multiply(splitting, 33, 5, stream=2)[: len(calls)] == calls


@pytest.mark.parametrize("free_bytes", [100, 6150])  # no room for the partials; none for the counters
def test_without_memory_it_says_so_and_goes_on(splitting: ModuleType, free_bytes: int) -> None:
    driver = splitting.driver
    driver.free_bytes = free_bytes
    with pytest.raises(MemoryError, match="no room for the 6160 bytes in which a kernel splits k"):
        multiply(splitting, 33, 5)
    assert (driver.memory, driver.launches) == ({}, [])
    driver.free_bytes = 6160
    multiply(splitting, 33, 5)
    with pytest.raises(MemoryError, match="49280 bytes"):
        multiply(splitting, 1000, 1)
    assert multiply(splitting, 33, 5) == ["allocate 6144", "allocate 16", "zero", "launch"]


def test_pytorch_is_asked_for_it_by_another_thread(splitting: ModuleType, torch: Any) -> None:
    """This thread may allocate from a temporary pool, but a workspace stays."""
    asked, allocate = list[int](), torch.empty

    def empty(*arguments: Any, **named: Any) -> Any:
        asked.append(threading.get_ident())
        return allocate(*arguments, **named)

    torch.empty = empty
    arrays = [device_array((4, 4), at=at) for at in (0x1000, 0x2000, 0x3000)]
    splitting.gemm(*(Tensor(one, dtype="torch.float32") for one in arrays))
    assert len(asked) == 2
    assert threading.get_ident() not in asked
