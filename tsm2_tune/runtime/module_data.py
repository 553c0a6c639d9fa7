"""The kernels and winners of a module: none here. In an exported file they are what was tuned."""

from __future__ import annotations

from tsm2_tune.runtime.choice.winners import Winner
from tsm2_tune.runtime.choice.work import Card

WINNERS: tuple[Winner, ...] = ()
CARDS: dict[str, Card] = {}  # by the name of the device
KERNELS: dict[str, tuple[str, str]] = {}  # SHA-256 and data of CUDA texts, by the digest of their code
CUBINS: dict[
    tuple[str, int, str], tuple[str, str]
] = {}  # by a text's digest, index width and architecture: digest, data
LAUNCHER: tuple[str, str, str] | None = None  # platform, digest, data
IDENTITY = ""  # digest of the file
