"""The kernel families, found by their files: each module or package beside this one has one kernel, and defines its
`FAMILIES`, one for each way to multiply.

A name says the kernel, and then how it multiplies:

- stream_a: a large A streams past a skinny B;
- resident_b: a small B stays on the multiprocessor, and a tall A goes by;
- row_lanes: lanes lie along the rows of a row-major A, with B in shared memory (shared_b) or registers (register_b);
- inner: the transpose of a tall matrix times another, whose inner dimension is huge;
- staged: both operands go through shared memory; staged_symmetric: X^T X, each product once;
- fma: fused multiply-adds; dmma: the f64 tensor cores, f32_dmma and complex_dmma: other types on these; mma16, tf32
  and wgmma: the tensor cores for 16-bit floats, for TF32, and Hopper's that read shared memory;
- ring: A, or both operands, through a ring in shared memory; held: whole rows of A in registers; fma_16bit: 16-bit
  floats in few columns.

tsm2 and ism2 are the published kernels; gemm, minplus (its semiring (min, +)) and ladder are for matrices that are
not skinny, gemv for vectors. A search takes ladder only where it is named.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from tsm2_tune.errors import InputError
from tsm2_tune.generator.config import KernelConfig, family_name_in
from tsm2_tune.generator.families.family import Family

FAMILIES: dict[str, Family[Any]] = {
    family.name: family
    for family in sorted(
        (
            family
            for module in pkgutil.iter_modules(__path__)
            if module.name != "family"
            for family in importlib.import_module(f"{__name__}.{module.name}").FAMILIES
        ),
        key=lambda family: family.name,
    )
}


def family_named(name: str) -> Family[Any]:
    """Return the family called `name`. Raise InputError for an unknown one."""
    if name not in FAMILIES:
        raise InputError(f"unknown family {name!r}: expected one of {', '.join(FAMILIES)}")
    return FAMILIES[name]


def parse_config(text: str) -> KernelConfig | None:
    """Return the configuration with this text, of any family. Return None if no family has it."""
    family = FAMILIES.get(family_name_in(text))
    found: KernelConfig | None = family.config_type.parse(text) if family else None
    return found
