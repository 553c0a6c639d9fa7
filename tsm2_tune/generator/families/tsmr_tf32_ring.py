"""TSMR on the tensor cores for f32 through TF32 and 3xTF32, with A through a ring in shared memory.

The design is that for 16-bit floats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tsm2_tune.generator.families.tsmr_half_ring import TsmrHalfRing, TsmrHalfRingConfig


@dataclass(frozen=True, slots=True, order=True)
class TsmrTf32RingConfig(TsmrHalfRingConfig):
    """Every choice that the template needs: those for 16-bit floats."""

    family: ClassVar[str] = "tsmr_tf32_ring"


class TsmrTf32Ring(TsmrHalfRing):
    name = "tsmr_tf32_ring"
    summary = "large or tall A times B of many columns in TF32 or 3xTF32, A through a ring in shared memory"
    dtypes = ("tf32", "3xtf32")
    config_type = TsmrTf32RingConfig


FAMILIES = (TsmrTf32Ring(),)
