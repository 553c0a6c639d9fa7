"""KernelSource: the CUDA text of a kernel, and what is told of a text without the template that made it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from functools import lru_cache

from tsm2_tune.generator.config import Launch

SUPPORT_THREADS = 256  # threads of a block of the tuner's own kernels
SPARSE_TERMS = 32  # nonzeros in a line of a sparse operand, so at most as many products in a sum
TEXTS_AT_HAND = 512  # texts cached: each takes milliseconds to render, and 30 kB
INDEX_BITS = (32, 64)  # bits of a kernel's index
MOST_PLACED = 4  # matrices that they take together: A, B, C and a workspace
REFERENCE_BLOCKS_PER_SM = 2  # of those that compute the reference, which bounds their registers

# Each alternative begins with a character, so that a search passes over all others fast.
_LITERAL_OR_COMMENT = re.compile(
    r""""(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' | //[^\n]*(?:(?<=\\)\n[^\n]*)* | /\*.*?\*/""",
    re.DOTALL | re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class KernelSource:
    """The CUDA text of one configuration. It holds no shape: one text serves every m, n and k of a dtype.

    The shape decides only the width of the index, which is a definition at compile time (`defines`). Nor does it hold
    the tunables of the launch: configurations that differ only in those have one text.
    """

    kernel: str  # name of the extern "C" entry point
    text: str
    defines: tuple[str, ...]
    launch: Launch
    dtype_name: str

    @property
    def digest(self) -> str:
        """SHA-256 of what a compiler reads of the text: two that differ in comments are one kernel."""
        return digest_of(self.text)

    def is_same_kernel(self, other: KernelSource) -> bool:
        """Return whether the other is the same code, started in the same way."""
        return replace(self, text="") == replace(other, text="") and self.digest == other.digest


@lru_cache(maxsize=TEXTS_AT_HAND)
def digest_of(text: str) -> str:
    """SHA-256 of the text's code."""
    return hashlib.sha256(code(text).encode(errors="surrogatepass")).hexdigest()


def code(text: str) -> str:
    """Return the CUDA text without its comments, without empty lines and without spaces at the ends of lines."""
    bare = _LITERAL_OR_COMMENT.sub(lambda found: " " if found[0].startswith("/") else found[0], text)
    return "\n".join(line.rstrip() for line in bare.splitlines() if line.strip())


def index_defines(bits: int) -> tuple[str, ...]:
    """Return the definition that gives a text's index so many bits."""
    return (f"INDEX_BITS={bits}",)
