"""The kernel of inner products, C = X^T Y with a k that is far larger than m and n, in its ways to multiply.

`kernel` has what these share. `fma`, `fma_16bit` and `f64_mma` stream the operands through registers; `staged_fma`
and `staged_mma` copy them through shared memory.
"""

from __future__ import annotations

from tsm2_tune.generator.families.inner.f64_mma import TsmtMma, TsmtMmaConfig, TsmtZmma, TsmtZmmaConfig
from tsm2_tune.generator.families.inner.fma import Tsmt, TsmtConfig
from tsm2_tune.generator.families.inner.fma_16bit import TsmtFew, TsmtFewConfig
from tsm2_tune.generator.families.inner.staged_fma import TsmtRing, TsmtRingConfig
from tsm2_tune.generator.families.inner.staged_mma import TsmtHalf, TsmtHalfConfig, TsmtTf32, TsmtTf32Config

__all__ = ["TsmtConfig", "TsmtFewConfig", "TsmtHalfConfig", "TsmtMmaConfig", "TsmtRingConfig", "TsmtTf32Config",
           "TsmtZmmaConfig"]  # fmt: skip

FAMILIES = (Tsmt(), TsmtMma(), TsmtZmma(), TsmtFew(), TsmtHalf(), TsmtTf32(), TsmtRing())
