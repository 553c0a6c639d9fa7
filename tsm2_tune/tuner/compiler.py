"""KernelSource -> Binary or CompileFailure, through a content-addressed cache."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A compiler with its flags: everything besides the text and its definitions that decides the binary."""

    compiler: str  # absolute path
    version: str  # as the compiler states it, one line
    flags: tuple[str, ...]
    suffix: str  # of the binary: ".cubin" or ".so"
    extra_digest: str  # of whatever else decides the binary, such as included headers and the CPU's features
