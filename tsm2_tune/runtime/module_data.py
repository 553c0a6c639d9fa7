"""The data of an exported module: winners, CUDA texts, cubins. Empty here; an export fills it."""

from __future__ import annotations

from tsm2_tune.runtime.choice.winners import Winner
from tsm2_tune.runtime.choice.work import Card

WINNERS: tuple[Winner, ...] = ()
CARDS: dict[str, Card] = {}  # by device name
KERNELS: dict[str, tuple[str, str]] = {}  # digest of the code -> SHA-256 and data of the CUDA text
CUBINS: dict[
    tuple[str, int, str], tuple[str, str]
] = {}  # by a text's digest, index width and architecture: digest, data
LAUNCHER: tuple[str, str, str] | None = None  # platform, digest, data
IDENTITY = ""  # digest of the file
