"""The data of an exported module: its winners, their CUDA code and their cubins. Empty here; an export fills it."""

from __future__ import annotations

from tsm2_tune.runtime.choice.winners import Winner

WINNERS: tuple[Winner, ...] = ()
Place = tuple[str, int, int, int]  # SHA-256 of a text or binary, number of its block, its start and end in the block
KERNELS: dict[str, Place] = {}  # `Winner.digest` -> the CUDA code
CUBINS: dict[tuple[str, int, str], Place] = {}  # (`Winner.digest`, index width in bits, architecture) -> the cubin
BLOCKS: tuple[str, ...] = ()  # packed texts and binaries, several side by side
PACK: tuple[str, str] = "", ""  # SHA-256 and packed data of the winners for the core, in their order
CORE: tuple[str, str, str] | None = None  # platform, SHA-256 and packed shared library of the core
CORE_TEXTS: tuple[str, str] = "", ""  # SHA-256 and packed JSON object: file name -> C text of the core
LAUNCHER: tuple[str, str, str] | None = None  # platform, SHA-256 and packed shared library
IDENTITY = ""  # digest of the exported file
