"""TSMR on the tensor cores, for f32 through TF32 and 3xTF32: large A times skinny B, and tall A times small B.

The design is that for 16-bit floats. A register holds one element, so that columns of A need no byte permutations:
four rows of a column, as they lie in memory, are rows of products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tsm2_tune.generator.families.tsmr_half import TsmrHalf, TsmrHalfConfig


@dataclass(frozen=True, slots=True, order=True)
class TsmrTf32Config(TsmrHalfConfig):
    """Every choice that the template needs: those for 16-bit floats."""

    family: ClassVar[str] = "tsmr_tf32"


class TsmrTf32(TsmrHalf):
    name = "tsmr_tf32"
    summary = "large or tall A times skinny B in TF32 or 3xTF32, A streaming into the tensor cores' fragments"
    dtypes = ("tf32", "3xtf32")
    config_type = TsmrTf32Config


FAMILIES = (TsmrTf32(),)
