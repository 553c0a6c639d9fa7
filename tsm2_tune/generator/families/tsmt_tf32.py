"""TSMT on the tensor cores, for f32 through TF32 and 3xTF32: the transpose of a tall and skinny matrix times another.

The design is that for 16-bit floats. 16 bytes of a line hold half as many elements, and the tensor core takes half as
many products at a time, so that fragments along k lie alike; across k a lane reads them element by element.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tsm2_tune.generator.families.tsmt_half import TsmtHalf, TsmtHalfConfig


@dataclass(frozen=True, slots=True, order=True)
class TsmtTf32Config(TsmtHalfConfig):
    """Every choice that the template needs: those for 16-bit floats."""

    family: ClassVar[str] = "tsmt_tf32"


class TsmtTf32(TsmtHalf):
    name = "tsmt_tf32"
    summary = "transposed tall and skinny times tall and skinny in TF32 or 3xTF32: both staged"
    dtypes = ("tf32", "3xtf32")
    element_bytes = 4
    config_type = TsmtTf32Config


FAMILIES = (TsmtTf32(),)
