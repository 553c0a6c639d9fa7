"""A thread pool that compiles the kernels of a run, several at a time and each source once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache

from tsm2_tune.errors import ToolMissing
from tsm2_tune.generator.dtypes import dtype_named
from tsm2_tune.generator.render import support_source
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.tuner.compile.compiler import Toolchain, compile_text, kill_running, remove_leftovers
from tsm2_tune.tuner.results.trial import Binary, CompileFailure, Outcome
from tsm2_tune.tuner.runs.signals import held

CORES_A_SPARE = 8  # of this many cores one runs no compiler, but is left to the process that measures
KILL_AGAIN_SECONDS = 0.05  # pause between attempts to kill compilers: one may start during an attempt
REMEDIES = {  # advice if the support kernels do not compile
    Outcome.TIMED_OUT: "raise --compile-limit",
    Outcome.INTERRUPTED: "find out what kills it, then run this again",
}
Compiled = Future[Binary | CompileFailure]
Text = tuple[KernelSource, Toolchain | None]  # a source and its toolchain; None: the run's toolchain


class Compilers:
    """Thread pool that compiles a run's kernels and the support kernels, the tuner's own kernels that verify them."""

    def __init__(self, toolchain: Toolchain, limit_seconds: float, sharing: int = 1) -> None:
        """Start the threads. `sharing` is the number of processes that share this machine's cores."""
        self._toolchain, self._limit_seconds = toolchain, limit_seconds
        self._by_text: dict[tuple[str, tuple[str, ...], Toolchain | None], Compiled] = {}
        self._submitted: list[Compiled] = []
        self._is_closed = False
        own = cores(sharing)
        compilers = own - own // CORES_A_SPARE
        self._pool = ThreadPoolExecutor(max_workers=compilers, thread_name_prefix="compile")
        self._support_paths: dict[str, str] = {}  # by the type of the reference result
        self._begun_support: dict[str, Compiled] = {}
        remove_leftovers()

    def close(self) -> None:
        """Kill all running compilers, and wait until their working folders are removed."""
        with held():
            self._is_closed = True
            self._pool.shutdown(wait=False, cancel_futures=True)
            while running := [future for future in self._submitted if not future.done()]:
                kill_running()
                wait(running, timeout=KILL_AGAIN_SECONDS)

    def begin_support(self, dtype_name: str) -> None:
        """Start to compile the support kernels that verify results of this type."""
        name = _verified_with(dtype_name)
        if name not in self._support_paths and name not in self._begun_support:
            self._begun_support[name] = self.begin_text(_support_text(name), "", ())

    def support(self, dtype_name: str = "") -> str:
        """Return the path of the compiled support kernels that verify results of this type.

        Support kernels are the tuner's own kernels. For the type "" return the path of the kernels that measure a
        device's peak rates. Compile the kernels if the cache does not contain them. Raise ToolMissing if they do not
        compile.
        """
        name = _verified_with(dtype_name)
        if not os.path.exists(self._support_paths.get(name, "")):
            self._support_paths[name] = self._compiled_support(name)
        return self._support_paths[name]

    def begin(self, source: KernelSource, toolchain: Toolchain | None = None) -> Compiled:
        """Start to compile the source and return the future. Equal sources share one future, unless the machine
        interrupted it.
        """
        key = (source.digest, source.defines, toolchain)
        future = self._by_text.get(key)
        if future is None or _is_interrupted(future):
            future = self._by_text[key] = self.begin_text(source.text, source.kernel, source.defines, toolchain)
        return future

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
            self._submitted.append(future)
        return future

    def files(self, dtype_name: str, *paths: str) -> tuple[object, ...]:
        """Return an identity of each file at `paths` and of the support kernels' files; None for a missing file."""
        support = (self._support_paths.get(name, "") for name in ("", _verified_with(dtype_name)))
        return tuple(map(_file, (*support, *paths)))

    def are_whole(self, before: tuple[object, ...], texts: Sequence[Text]) -> bool:
        """Compile missing binaries again. Return whether all binaries are still the files that `before` identifies.

        `before` is an earlier result of `files`. If a file is not the same any more, a failure that was seen with
        these files is not the kernels' fault.
        """
        dtype_name = texts[0][0].dtype_name
        for name in ("", _verified_with(dtype_name)):
            self._support_paths[name] = self._compiled_support(name)
        again = [
            self.begin_text(source.text, source.kernel, source.defines, toolchain).result()
            for source, toolchain in texts
        ]
        now = self.files(dtype_name, *(one.path for one in again if isinstance(one, Binary)))
        return None not in before and before == now

    def _compiled_support(self, name: str) -> str:
        begun = self._begun_support.pop(name, None)
        support = (begun or self.begin_text(_support_text(name), "", ())).result()
        if isinstance(support, CompileFailure):
            remedy = REMEDIES.get(support.outcome, "fix it or name another compiler")
            raise ToolMissing(
                f"{self._toolchain.compiler} does not compile the tuner's own kernels: {support.detail}; {remedy}"
            )
        return support.path


def _is_interrupted(future: Compiled) -> bool:
    """Return whether the compilation was cancelled, or the machine ended it without a verdict on the source."""
    if future.cancelled():
        return True
    result = future.result() if future.done() and future.exception() is None else None
    return isinstance(result, CompileFailure) and result.outcome is Outcome.INTERRUPTED


def _verified_with(dtype_name: str) -> str:
    """Return the type whose support kernels verify results of the type `dtype_name`; "" if `dtype_name` is ""."""
    return dtype_named(dtype_name).reference_name if dtype_name else ""


@cache
def _support_text(name: str) -> str:
    return support_source((name,) if name else ())


def _file(path: str) -> tuple[int, int, int] | None:
    """Return the device, inode and modification time of the file; None if it does not exist."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def cores(sharing: int = 1) -> int:
    """Return the number of cores for this process if `sharing` processes share the usable cores; at least 1."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, usable // sharing)
