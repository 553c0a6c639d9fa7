"""The kernel families, found by their files: each module or package beside this one has one kernel, and defines its
`FAMILIES`, one for each way to multiply.

tsm2, ism2, gemm, gemv and ladder are the published ones, gemm and ladder for matrices that are not skinny and gemv
for vectors; ladder is to learn from, and a search takes it only where it is named; minplus is gemm's kernel in the
semiring (min, +). Of the others the first part says for what: tsmr a large A times a skinny B, tsmm a tall A times
a small B, tsmt the transpose of a tall matrix times another, gram such a matrix's times itself, staged all but the
last, both operands through shared memory (without a second part, transposed products alone). The second says how:
nothing, by fused multiply-adds; mma, smma and zmma, on the f64 tensor cores for f64, f32 and complex numbers
(tsmm_mma for all of these, gram_mma for f32 and f64); half and tf32, on those for 16-bit floats and for f32 with
fewer bits; rows, by lanes along the rows of a row-major A; ring, A through a ring in shared memory, of tsmm_ring C
too, of tsmt_ring both operands, as they lie; few, 16-bit floats in few columns, by fused multiply-adds; held, rows of
up to 16 elements of A whole in registers.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from tsm2_tune.errors import InputError
from tsm2_tune.generator.config import KernelConfig, family_spelt
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
    """The family called `name`; InputError for an unknown one."""
    if name not in FAMILIES:
        raise InputError(f"unknown family {name!r}: expected one of {', '.join(FAMILIES)}")
    return FAMILIES[name]


def config_spelt(text: str) -> KernelConfig | None:
    """The configuration that is spelt so, of whatever family; None where there is none."""
    family = FAMILIES.get(family_spelt(text))
    found: KernelConfig | None = family.config_type.parse(text) if family else None
    return found
