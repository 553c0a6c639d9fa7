"""A thread pool that compiles the kernels of a run, several at a time and each source once."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache

from tsm2_tune.errors import ToolMissing
from tsm2_tune.generator.dtypes import dtype_named
from tsm2_tune.generator.render import support_source
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.tuner.compile.compiler import Toolchain, compile_text, kill_running, remove_leftovers
from tsm2_tune.tuner.compile.failure_cause import KILLED
from tsm2_tune.tuner.results.trial import Binary, CompileFailure, Outcome
from tsm2_tune.tuner.runs.signals import held

CORES_A_SPARE = 8  # of this many cores one runs no compiler, but is left to the process that measures
KILL_AGAIN_SECONDS = 0.05  # pause between attempts to kill compilers: one may start during an attempt
REMEDIES = {  # advice if the support kernels do not compile
    Outcome.TIMED_OUT: "raise --compile-limit",
    Outcome.INTERRUPTED: KILLED,
}
MOST_RECENT = 1000  # binaries in memory; most have less than 100 KB
Compiled = Future[Binary | CompileFailure]
Key = tuple[str, tuple[str, ...], Toolchain | None]  # digest and macros of a source, and the toolchain


class Compilers:
    """Thread pool that compiles a run's kernels and the support kernels, the tuner's own kernels that verify them."""

    def __init__(self, toolchain: Toolchain, limit_seconds: float, sharing: int = 1) -> None:
        """Start the threads. `sharing` is the number of processes that share this machine's cores."""
        self._toolchain, self._limit_seconds = toolchain, limit_seconds
        self._recent: dict[Key, Compiled] = {}  # in the order of their last use
        self._failed: dict[Key, Compiled] = {}
        self._begins = threading.Lock()  # a thread may begin kernels of the next problem
        self._running = set[Compiled]()
        self._is_closed = False
        own = cores(sharing)
        compilers = own - own // CORES_A_SPARE
        self._pool = ThreadPoolExecutor(max_workers=compilers, thread_name_prefix="compile")
        self._supports: dict[str, Compiled] = {}  # by the type of the reference result
        remove_leftovers()

    def close(self) -> None:
        """Kill all running compilers, and wait until their working folders are removed."""
        with held():
            self._is_closed = True
            self._pool.shutdown(wait=False, cancel_futures=True)
            while running := [future for future in list(self._running) if not future.done()]:
                kill_running()
                wait(running, timeout=KILL_AGAIN_SECONDS)

    def begin_support(self, dtype_name: str) -> None:
        """Start to compile the support kernels that verify results of this type."""
        name = _verified_with(dtype_name)
        if name not in self._supports:
            self._supports[name] = self.begin_text(_support_text(name), "", ())

    def support(self, dtype_name: str = "") -> bytes:
        """Return the compiled support kernels that verify results of this type.

        Support kernels are the tuner's own kernels. For the type "" return the kernels that measure a device's peak
        rates. Compile the kernels if the cache does not contain them. Raise ToolMissing if they do not compile.
        """
        self.begin_support(dtype_name)
        compiling = self._supports.pop(_verified_with(dtype_name))
        support = compiling.result()
        if isinstance(support, CompileFailure):
            remedy = REMEDIES.get(support.outcome, "fix it or name another compiler")
            raise ToolMissing(
                f"{self._toolchain.compiler} does not compile the tuner's own kernels: {support.detail}; {remedy}"
            )
        self._supports[_verified_with(dtype_name)] = compiling
        return support.code

    def begin(self, source: KernelSource, toolchain: Toolchain | None = None) -> Compiled:
        """Start to compile the source and return the future. Equal sources share one future, unless the machine
        interrupted it.
        """
        key = (source.digest, source.defines, toolchain)
        with self._begins:
            future = self._recent.pop(key, None) or self._failed.pop(key, None)
            if future is None or _is_interrupted(future):
                future = self.begin_text(source.text, source.kernel, source.defines, toolchain)
            self._recent[key] = future
            while len(self._recent) > MOST_RECENT:
                self._forget(next(iter(self._recent)))
        return future

    def _forget(self, key: Key) -> None:
        """Free the memory of the source's binary, which is in the cache. Keep the source's failure."""
        future = self._recent.pop(key)
        if _failure(future) is not None:
            self._failed[key] = future

    def begin_text(
        self, text: str, kernel: str, defines: tuple[str, ...], toolchain: Toolchain | None = None
    ) -> Compiled:
        """Start to compile the text, or to find its binary in the cache. Return the future."""
        with held():
            future = self._pool.submit(
                compile_text,
                text,
                kernel=kernel,
                defines=defines,
                toolchain=toolchain or self._toolchain,
                limit_seconds=self._limit_seconds,
                is_over=lambda: self._is_closed,
            )
            self._running.add(future)
            future.add_done_callback(self._running.discard)
        return future


def _failure(future: Compiled) -> CompileFailure | None:
    if not future.done() or future.cancelled() or future.exception() is not None:
        return None
    result = future.result()
    return result if isinstance(result, CompileFailure) else None


def _is_interrupted(future: Compiled) -> bool:
    """Return whether the compilation was cancelled, or the machine ended it without a verdict on the source."""
    failure = _failure(future)
    return future.cancelled() or (failure is not None and failure.outcome is Outcome.INTERRUPTED)


def _verified_with(dtype_name: str) -> str:
    """Return the type whose support kernels verify results of the type `dtype_name`; "" if `dtype_name` is ""."""
    return dtype_named(dtype_name).reference_name if dtype_name else ""


@cache
def _support_text(name: str) -> str:
    return support_source((name,) if name else ())


def cores(sharing: int = 1) -> int:
    """Return the number of cores for this process if `sharing` processes share the usable cores; at least 1."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, usable // sharing)
