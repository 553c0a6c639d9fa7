"""The compilers of a run: several at a time, and the binary of equal texts made once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache

from tsm2_tune.errors import ToolMissing
from tsm2_tune.generator.problem import dtype_named
from tsm2_tune.generator.render import support_source
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.tuner.compile.compiler import Toolchain, compile_text, kill_running, remove_leftovers
from tsm2_tune.tuner.results.trial import Binary, CompileFailure, Outcome
from tsm2_tune.tuner.runs.signals import held

CORES_A_SPARE = 8  # of so many one compiles nothing, so that who measures need not wait for it
KILL_AGAIN_SECONDS = 0.05  # at the end, until no compiler runs: one may have started just before
REMEDIES = {  # where the tuner's own kernels are not compiled
    Outcome.TIMED_OUT: "raise --compile-limit",
    Outcome.INTERRUPTED: "see what ends it, then run this again",
}
Compiled = Future[Binary | CompileFailure]
Text = tuple[KernelSource, Toolchain | None]  # and what compiles it: None stands for the run's toolchain


class Compilers:
    """Compiles a run's kernels, and the tuner's own, with one toolchain unless another is given."""

    def __init__(self, toolchain: Toolchain, limit_seconds: float, sharing: int = 1) -> None:
        """`sharing`: runs that share this machine's processors."""
        self._toolchain, self._limit_seconds = toolchain, limit_seconds
        self._by_text: dict[tuple[str, tuple[str, ...], Toolchain | None], Compiled] = {}
        self._submitted: list[Compiled] = []
        own = cores(sharing)
        compilers = own - own // CORES_A_SPARE
        self._pool = ThreadPoolExecutor(max_workers=compilers, thread_name_prefix="compile")
        self._support_paths: dict[str, str] = {}  # by the types that they verify
        self._begun_support: dict[str, Compiled] = {}
        remove_leftovers()

    def close(self) -> None:
        """End every compiler, and wait until its folder is gone."""
        with held():
            self._pool.shutdown(wait=False, cancel_futures=True)
            while running := [future for future in self._submitted if not future.done()]:
                kill_running()
                wait(running, timeout=KILL_AGAIN_SECONDS)

    def begin_support(self, dtype_name: str) -> None:
        """Start to compile what `support` gives."""
        name = _verified_with(dtype_name)
        if name not in self._support_paths and name not in self._begun_support:
            self._begun_support[name] = self.begin_text(_support_text(name), "", ())

    def support(self, dtype_name: str = "") -> str:
        """Return the path of the tuner's own kernels, compiled again where the cache has lost them: those that open a
        device and measure its ceilings, and those that verify results of a type, where one is named.

        Raise ToolMissing if the compiler does not compile them.
        """
        name = _verified_with(dtype_name)
        if not os.path.exists(self._support_paths.get(name, "")):
            self._support_paths[name] = self._compiled_support(name)
        return self._support_paths[name]

    def begin(self, source: KernelSource, toolchain: Toolchain | None = None) -> Compiled:
        """The binary to come: of equal texts that are asked for twice, one waits for no second compiler."""
        key = (source.digest, source.defines, toolchain)
        future = self._by_text.get(key)
        if future is None or future.cancelled():
            future = self._by_text[key] = self.begin_text(source.text, source.kernel, source.defines, toolchain)
        return future

    def begin_text(
        self, text: str, kernel: str, defines: tuple[str, ...], toolchain: Toolchain | None = None
    ) -> Compiled:
        """The binary to come, from the cache where that has it: a thread is not stopped in the middle by a signal."""
        with held():
            future = self._pool.submit(
                compile_text,
                text,
                kernel=kernel,
                defines=defines,
                toolchain=toolchain or self._toolchain,
                limit_seconds=self._limit_seconds,
            )
            self._submitted.append(future)
        return future

    def finish(
        self, source: KernelSource, toolchain: Toolchain | None = None, begun: Compiled | None = None
    ) -> Binary | CompileFailure:
        """Return the binary, compiled anew where the cache has lost it, or where the machine interrupted it once."""
        binary = (begun or self.begin_text(source.text, source.kernel, source.defines, toolchain)).result()
        if isinstance(binary, CompileFailure) and binary.outcome is Outcome.INTERRUPTED:
            binary = self.begin_text(source.text, source.kernel, source.defines, toolchain).result()
        return binary

    def files(self, dtype_name: str, *paths: str) -> tuple[object, ...]:
        """Return the identities of these files and of the support kernels, which change if the cache was touched."""
        support = (self._support_paths.get(name, "") for name in ("", _verified_with(dtype_name)))
        return tuple(map(_file, (*support, *paths)))

    def are_whole(self, before: tuple[object, ...], texts: Sequence[Text]) -> bool:
        """Return whether the cache holds what was compiled, in the files that were there before: else it does again
        now.

        If not, nothing that was computed with them says anything of the kernels.
        """
        dtype_name = texts[0][0].dtype_name
        for name in ("", _verified_with(dtype_name)):
            self._support_paths[name] = self._compiled_support(name)
        again = [self.finish(*text) for text in texts]
        now = self.files(dtype_name, *(one.path for one in again if isinstance(one, Binary)))
        return None not in before and before == now

    def _compiled_support(self, name: str) -> str:
        begun = self._begun_support.pop(name, None)
        support = (begun or self.begin_text(_support_text(name), "", ())).result()
        if isinstance(support, CompileFailure) and support.outcome is Outcome.INTERRUPTED:
            support = self.begin_text(_support_text(name), "", ()).result()
        if isinstance(support, CompileFailure):
            remedy = REMEDIES.get(support.outcome, "mend it or name another compiler")
            raise ToolMissing(
                f"{self._toolchain.compiler} does not compile the tuner's own kernels: {support.detail}; {remedy}"
            )
        return support.path


def _verified_with(dtype_name: str) -> str:
    """Return the type whose results the same kernels verify; "" for none."""
    return dtype_named(dtype_name).reference_name if dtype_name else ""


@cache
def _support_text(name: str) -> str:
    return support_source((name,) if name else ())


def _file(path: str) -> tuple[int, int, int] | None:
    """Return the identity of the file at the path: device, inode and time of change. None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def cores(sharing: int = 1) -> int:
    """Processors that this process may use, or the share of one of so many processes."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, usable // sharing)
