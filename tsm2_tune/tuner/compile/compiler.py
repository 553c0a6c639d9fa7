"""Compile CUDA source text to a Binary or a CompileFailure, or take the binary from a content-addressed cache."""

from __future__ import annotations

import errno
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tsm2_tune.errors import InputError, ToolMissing
from tsm2_tune.generator.source import code
from tsm2_tune.tuner.compile import cache, failure_cause
from tsm2_tune.tuner.compile.cache import cache_folder, remove_leftovers
from tsm2_tune.tuner.compile.command_limits import Ended, Ending, kill_running, kills, run, workplace
from tsm2_tune.tuner.compile.environment import Variables, compiler_environment
from tsm2_tune.tuner.compile.failure_cause import (
    BELIEVED,
    KILLED,
    PASSING,
    REMOVED,
    Interrupted,
    interruption,
    is_killed,
    refuse_full_disk,
    signal_name,
)
from tsm2_tune.tuner.results.trial import Binary, CompileFailure, Outcome, in_a_line

__all__ = ["Toolchain", "answer", "cache_folder", "compile_text", "kill_running", "remove_leftovers"]

DETAIL_CHARACTERS = 4000  # stored part of a compiler's messages
ANSWER_SECONDS = 30.0  # time limit of a query such as --version


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A compiler with its flags: everything that determines a binary except the source text and its macros (-D)."""

    compiler: str  # absolute path
    version: str  # as the compiler prints it, in one line
    flags: tuple[str, ...]
    source_suffix: str  # ".cu" or ".cpp"
    suffix: str  # of the binary: ".cubin" or ".so"
    extra_digest: str  # digest of other inputs, such as included headers and the CPU's features
    wrap: Callable[[str], str] = str  # adds the text that the compiler needs around the CUDA source
    # Folders with small headers in place of large ones. The binary is the same, if the compiler accepts them.
    includes: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()  # arguments of the linker
    variables: Variables = ()  # environment variables that change the compiler's output
    differs: str = ""  # how the compiler differs from a plain one of its version, such as a script's digest

    @property
    def stated_flags(self) -> str:
        """Text with the flags and everything else that changes the compiler's output, stored with results."""
        named = (f"{name}={value}" for name, value in self.variables)
        text = " ".join(filter(None, (*self.flags, *named, self.differs)))
        if in_a_line(text) == text:
            return text
        return (
            f"{in_a_line(' '.join(self.flags))[:200]} and more, SHA-256 {hashlib.sha256(text.encode()).hexdigest()}"
        )

    @property
    def digest(self) -> str:
        """SHA-256 of everything that determines a binary except the source text and its macros (-D)."""
        facts: list[object] = [self.compiler, self.version, self.flags, self.suffix, self.extra_digest]
        facts += [*self.libraries, self.variables, self.differs]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def script_digest(path: str) -> str:
    """Return a text with the name and the SHA-256 of a compiler that is a script; "" for an ELF binary.

    A script may call any other compiler, so its path and version do not identify it.
    """
    with open(path, "rb") as file:
        if file.read(4) == b"\x7fELF":
            return ""
        file.seek(0)
        return f"[{Path(path).name} is a script, SHA-256 {hashlib.file_digest(file, 'sha256').hexdigest()}]"


def answer(compiler: str, *arguments: str, errors: bool = False) -> Ended:
    """Run a compiler with query arguments such as --version. Return how it ended, with its output.

    With `errors`, the output includes standard error. Raise ToolMissing if the compiler does not start, is killed,
    exceeds the time limit or prints too much.
    """
    ended, why = asked([compiler, *arguments], limit_seconds=ANSWER_SECONDS, errors=errors)
    if why is None:
        return ended
    raise ToolMissing(
        f"compiler {compiler} does not answer {' '.join(arguments)}: {why}; fix it or name another compiler"
    )


def asked(
    command: list[str],
    *,
    limit_seconds: float,
    errors: bool = True,
    environment: Mapping[str, str] | None = None,
) -> tuple[Ended, str | None]:
    """Run a compiler's query. Return how it ended, with its output, and the reason why it gave no answer, else None.

    A query without an answer is repeated. Raise Interrupted if the compiler is killed each time.
    """
    why: str | None = None
    for _ in range(BELIEVED):
        killed_before = failure_cause.out_of_memory_kills()
        try:
            ended = run(command, limit_seconds=limit_seconds, errors=errors, environment=environment)
        except OSError as error:
            ended = Ended(Ending.NOT_STARTED, error.errno or 0)
        if ended.how is Ending.TIMED_OUT:
            why = f"it took more than {limit_seconds:g} s"
        elif ended.how is Ending.PRINTED_TOO_MUCH:
            why = "it prints too much"
        else:
            why = None if ended.is_well else interruption(ended, killed_before=killed_before)
        if why is None:
            return ended, None
    if why is not None and is_killed(why):
        raise Interrupted(f"compiler {command[0]} does not answer {' '.join(command[1:])}: {why}; {KILLED}")
    return ended, why


def compile_text(
    text: str,
    *,
    kernel: str,
    defines: tuple[str, ...],
    toolchain: Toolchain,
    limit_seconds: float,
    is_over: Callable[[], bool] | None = None,
) -> Binary | CompileFailure:
    """Compile the text, or return its binary from the cache. Several processes may call this at the same time.

    `kernel` is the name of the entry point, or "" for a text with several entry points. `defines` are macros. A
    failed compilation is repeated, since the machine may have caused the failure. The repetition does not use the
    folders `toolchain.includes`, since their headers may have caused the failure. A failure that occurs twice is
    returned. Nothing is repeated after `is_over` returns True; by default, after a call of `kill_running`.
    """
    key = hashlib.sha256(json.dumps([code(text), defines, toolchain.digest]).encode()).hexdigest()
    found = cache.find(key, toolchain.suffix)
    if found is not None:
        return Binary(found.content, kernel, found.spill_bytes, compile_seconds=0.0)

    kills_before = kills()
    is_over = is_over or (lambda: kills() != kills_before)
    seen: Counter[Outcome] = Counter()
    of_headers: str | None = None  # messages of the failed compilation with toolchain.includes
    includes = toolchain.includes if kernel else ()
    while True:
        answer = _compiled(key, text, kernel, defines, toolchain, includes, limit_seconds)
        if isinstance(answer, Binary) or answer.outcome is Outcome.TIMED_OUT or is_over():
            return answer
        if of_headers not in (None, answer.detail):  # those headers caused the first failure
            seen.clear()
        of_headers, includes = answer.detail if includes else None, ()
        seen[answer.outcome] += 1
        if seen[answer.outcome] == BELIEVED:
            return answer


def _compiled(
    key: str,
    text: str,
    kernel: str,
    defines: tuple[str, ...],
    toolchain: Toolchain,
    includes: tuple[str, ...],
    limit_seconds: float,
) -> Binary | CompileFailure:
    """Compile the text once, and store the binary in the cache."""
    folder = cache_folder()
    try:
        with workplace(cache.working_parent()) as work:
            source = work.folder / f"kernel{toolchain.source_suffix}"
            output = work.folder / f"kernel{toolchain.suffix}"
            source.write_text(toolchain.wrap(text))
            definitions = [*(f"-D{define}" for define in defines), *(f"-I{folder}" for folder in includes)]
            command = [toolchain.compiler, *toolchain.flags, *definitions, "-o", str(output), str(source)]
            command += toolchain.libraries
            killed_before = failure_cause.out_of_memory_kills()
            # The compiler's temporary files are removed with the working folder.
            environment = compiler_environment(toolchain.variables) | {"TMPDIR": str(work.folder)}
            ended = work.run(command, limit_seconds=limit_seconds, environment=environment)
            why = None if ended.is_well else _failure(ended, toolchain, limit_seconds, killed_before)
            if why is None and not output.is_file():
                why = CompileFailure(
                    Outcome.COMPILE_FAILED, f"{toolchain.compiler} exited with status 0, but wrote no output"
                )
            if why is not None and not source.is_file():
                why = CompileFailure(Outcome.INTERRUPTED, REMOVED)
            if why is not None:
                refuse_full_disk(folder)
                return CompileFailure(
                    why.outcome, why.detail.replace(str(work.folder), "").strip()[:DETAIL_CHARACTERS]
                )
            spill_bytes = _spill_bytes(ended.messages)
            binary = output.read_bytes()
            cache.keep(output, key, toolchain.suffix, spill_bytes)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return CompileFailure(Outcome.INTERRUPTED, REMOVED)
        if error.errno in PASSING:
            return CompileFailure(Outcome.INTERRUPTED, f"compiling in {folder}: {error.strerror}")
        raise InputError(
            f"cache folder {folder} cannot be used ({error.strerror}):"
            " make it writable, with space left, or set XDG_CACHE_HOME to another"
        ) from error
    return Binary(binary, kernel, spill_bytes, compile_seconds=ended.seconds)


def _failure(ended: Ended, toolchain: Toolchain, limit_seconds: float, killed_before: int) -> CompileFailure:
    """Return a CompileFailure with the reason why the compiler failed: the source, a limit, or the machine."""
    why = interruption(ended, killed_before=killed_before)
    if why is None and not Path(toolchain.compiler).exists():
        why = "it is no longer there"
    if why is not None:
        detail = f"{toolchain.compiler}: {why}" + (f"\n{ended.messages}" if ended.messages.strip() else "")
        if ended.how is Ending.NOT_STARTED:
            detail = f"{toolchain.compiler} {why.removeprefix('it ')}"
        return CompileFailure(Outcome.INTERRUPTED, detail)
    if ended.how is Ending.TIMED_OUT:
        return CompileFailure(Outcome.TIMED_OUT, f"compiling took more than {limit_seconds:g} s")
    if ended.how is Ending.PRINTED_TOO_MUCH:
        return CompileFailure(Outcome.COMPILE_FAILED, f"the compiler prints too much: {ended.messages}")
    by = f"killed by {signal_name(ended.status)}" if ended.how is Ending.SIGNALLED else f"exit status {ended.status}"
    return CompileFailure(Outcome.COMPILE_FAILED, ended.messages.strip() or f"{by}, without a message")


def _spill_bytes(messages: str) -> int:
    """Return the total bytes of spill stores and spill loads in ptxas's messages; 0 if there are none."""
    return sum(
        int(stores) + int(loads)
        for stores, loads in re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", messages)
    )
