"""CUDA text -> Binary or CompileFailure, through a content-addressed cache."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from tsm2_tune.errors import InputError
from tsm2_tune.tuner.trial import Binary, CompileFailure, Outcome

WORK_PREFIX = "compiling-"
LEFTOVER_SECONDS = 3600.0  # far past any compile limit
LEAST_FREE_BYTES = 16 * 2**20  # that a compiler's files fit in
DETAIL_CHARACTERS = 4000  # of a compiler's message that are kept


def _identity(text: str) -> str:
    return text


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A compiler with its flags: everything besides the text and its definitions that decides the binary."""

    compiler: str  # absolute path
    version: str  # as the compiler states it, one line
    flags: tuple[str, ...]
    source_suffix: str  # ".cu" or ".cpp"
    suffix: str  # of the binary: ".cubin" or ".so"
    extra_digest: str  # of whatever else decides the binary, such as included headers and the CPU's features
    wrap: Callable[[str], str] = _identity  # what the compiler must see around the CUDA text

    @property
    def digest(self) -> str:
        """SHA-256 of everything that decides the binary besides the text and its definitions."""
        facts = [self.compiler, self.version, self.flags, self.suffix, self.extra_digest]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def cache_folder() -> Path:
    """Where binaries are kept between runs; InputError where it cannot be written."""
    folder = platformdirs.user_cache_path("tsm2-tune") / "binaries"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cache folder {folder} cannot be made ({error.strerror}): set XDG_CACHE_HOME to one that can"
        ) from None
    if not os.access(folder, os.W_OK):
        raise InputError(f"cache folder {folder} is not writable: set XDG_CACHE_HOME to one that is")
    return folder


def remove_leftovers() -> None:
    """Remove the working folders of compilations that were killed long ago."""
    for folder in cache_folder().glob(f"*/{WORK_PREFIX}*"):
        try:
            if time.time() - folder.stat().st_mtime > LEFTOVER_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # another process was quicker
            continue


def compile_text(
    text: str, *, kernel: str, defines: tuple[str, ...], toolchain: Toolchain, limit_seconds: float
) -> Binary | CompileFailure:
    """Compile, or take the binary from the cache. Safe beside other processes that do the same.

    `kernel` names the entry point; "" for a text with several.
    """
    key = hashlib.sha256(json.dumps([text, defines, toolchain.digest]).encode()).hexdigest()
    folder = cache_folder() / key[:2]
    binary, report = folder / f"{key}{toolchain.suffix}", folder / f"{key}.json"
    cached_spill_bytes = _reported(binary, report)
    if cached_spill_bytes is not None:
        return Binary(str(binary), kernel, cached_spill_bytes, compile_seconds=0.0)

    try:
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=WORK_PREFIX) as work:
            source, output = Path(work, f"kernel{toolchain.source_suffix}"), Path(work, f"kernel{toolchain.suffix}")
            source.write_text(toolchain.wrap(text))
            definitions = [f"-D{define}" for define in defines]
            command = [toolchain.compiler, *toolchain.flags, *definitions, "-o", str(output), str(source)]
            start = time.perf_counter()
            ended = _ended(command, limit_seconds)
            seconds = time.perf_counter() - start
            if isinstance(ended, CompileFailure):
                _refuse_full_disk(folder, Path(tempfile.gettempdir()))
                return CompileFailure(ended.outcome, _shortened(ended.detail, work))
            if not output.is_file():
                detail = f"{toolchain.compiler} ended well, but wrote no output"
                return CompileFailure(Outcome.COMPILE_FAILED, detail)
            spill_bytes = _spill_bytes(ended)
            Path(work, "report.json").write_text(json.dumps({"spill_bytes": spill_bytes, "sha256": _digest(output)}))
            # The report first: a binary is only found beside its report, and each appears whole.
            Path(work, "report.json").replace(report)
            output.replace(binary)
    except OSError as error:
        raise InputError(
            f"cache folder {folder} cannot be used ({error.strerror}):"
            " make it writable, with space left, or set XDG_CACHE_HOME to another"
        ) from error
    return Binary(str(binary), kernel, spill_bytes, compile_seconds=seconds)


def _refuse_full_disk(*folders: Path) -> None:
    """InputError where a compiler that failed may have done so for want of space: no fault of what it compiled."""
    for folder in folders:
        free = shutil.disk_usage(folder).free
        if free < LEAST_FREE_BYTES:
            raise InputError(
                f"a compiler failed with {free / 2**20:.1f} MiB left on the disk of {folder}: free some space,"
                " then run this again"
            )


def _reported(binary: Path, report: Path) -> int | None:
    """Bytes of spills in the report of a cached binary; None where either is missing or broken: compile again."""
    try:
        if not binary.is_file():
            return None
        told = json.loads(report.read_text())
        spill_bytes = told["spill_bytes"]
        if told["sha256"] != _digest(binary):  # a disk that was full, a machine that went down
            return None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return spill_bytes if type(spill_bytes) is int and spill_bytes >= 0 else None


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _shortened(messages: str, work: str) -> str:
    """A compiler's messages as they are kept: without the working folder, and not endless."""
    return messages.replace(work, "").strip()[:DETAIL_CHARACTERS]


def _ended(command: list[str], limit_seconds: float) -> str | CompileFailure:
    """The messages of a compiler that ended well, or why it did not."""
    try:
        returncode, messages = _run(command, limit_seconds)
    except OSError as error:
        detail = f"{command[0]} cannot be started: {error.strerror}"
        return CompileFailure(Outcome.COMPILE_FAILED, detail)
    if returncode is None:
        return CompileFailure(Outcome.TIMED_OUT, f"compiling took more than {limit_seconds:g} s")
    if returncode != 0:
        detail = messages.strip() or f"exit status {returncode}, and no message"
        return CompileFailure(Outcome.COMPILE_FAILED, detail)
    return messages


_running: set[subprocess.Popen[str]] = set()


def kill_running() -> None:
    """Kill every compiler of this process, with its children: the compilations under way fail at once."""
    for process in list(_running):
        _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill the process and its children, unless it was waited for: its number may then be another's."""
    if process.returncode is None:
        with suppress(ProcessLookupError):  # it ended just now
            os.killpg(process.pid, signal.SIGKILL)


def _run(command: list[str], limit_seconds: float) -> tuple[int | None, str]:
    """(exit status, messages); None as status where the limit passed. Ends the compiler's children too."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        _running.add(process)
        try:
            messages, _ = process.communicate(timeout=limit_seconds)
            return process.returncode, messages
        except subprocess.TimeoutExpired:
            _kill(process)
            process.communicate()
            return None, ""
        except BaseException:
            _kill(process)
            raise
        finally:
            _running.discard(process)


def _spill_bytes(messages: str) -> int:
    """Bytes of spill stores and loads that ptxas reports, 0 where it reports none."""
    return sum(
        int(stores) + int(loads)
        for stores, loads in re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", messages)
    )
