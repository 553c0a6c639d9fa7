"""`KernelSource`: the CUDA text of a kernel with its launch, and the digest of its code."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from functools import lru_cache

from tsm2_tune.generator.config import Launch

SUPPORT_THREADS = 256  # threads of a block of the tuner's own kernels
SPARSE_TERMS = 32  # nonzeros in a row or column of a sparse operand, so the most nonzero products in a sum
MOST_CACHED_TEXTS = 2048  # each has 30 kB and takes milliseconds to render; a pack has over a thousand
MOST_CACHED_KERNELS = 4096  # most differ in their launch only; the pretuned kernels of a card are 2,000
MOST_CACHED_PARAGRAPHS = 4096  # the kernels of a pack have 3,000, of 700 bytes
INDEX_BITS = (32, 64)  # possible widths of a kernel's index type
MOST_PLACED = 4  # the most matrices that one of the tuner's kernels takes: A, B, C and a workspace
REFERENCE_BLOCKS_PER_SM = 2  # launch bound of the kernels that compute reference results; it limits their registers

# Each alternative begins with a literal character, which makes the search fast.
_LITERAL_OR_COMMENT = re.compile(
    r""""(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' | //[^\n]*(?:(?<=\\)\n[^\n]*)* | /\*.*?\*/""",
    re.DOTALL | re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class KernelSource:
    """The CUDA text of one configuration. One text serves every m, n and k of an element type.

    The shape determines only the width of the index type, which is a preprocessor definition (`defines`).
    Configurations that differ only in launch tunables have the same text.
    """

    kernel: str  # name of the extern "C" entry point
    text: str
    defines: tuple[str, ...]
    launch: Launch
    dtype_name: str

    @property
    def digest(self) -> str:
        """The SHA-256 of the text without its comments and blank lines."""
        return digest_of(self.text)

    def is_same_kernel(self, other: KernelSource) -> bool:
        """Return whether both sources have the same code, definitions and launch. Their comments may differ."""
        return replace(self, text="") == replace(other, text="") and self.digest == other.digest


@lru_cache(maxsize=MOST_CACHED_TEXTS)
def digest_of(text: str) -> str:
    """Return the SHA-256 of a CUDA text without its comments and blank lines."""
    return hashlib.sha256(code(text).encode(errors="surrogatepass")).hexdigest()


def code(text: str) -> str:
    """Return the CUDA text without comments, blank lines and trailing spaces."""
    if "/*" in text:
        return _code(text)
    # Without such a comment, no literal and no comment has an empty line in it.
    return "\n".join(filter(None, map(_code, text.split("\n\n"))))


@lru_cache(maxsize=MOST_CACHED_PARAGRAPHS)
def _code(text: str) -> str:
    bare = _LITERAL_OR_COMMENT.sub(lambda found: " " if found[0].startswith("/") else found[0], text)
    return "\n".join(line.rstrip() for line in bare.splitlines() if line.strip())


def index_defines(bits: int) -> tuple[str, ...]:
    """Return the preprocessor definition that sets the width of the index type to this number of bits."""
    return (f"INDEX_BITS={bits}",)
