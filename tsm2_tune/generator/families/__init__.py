"""The kernel families. Each module or package in this folder has one kernel, and lists its families in `FAMILIES`.

A kernel has one family for each way to multiply. A family's name begins with the kernel:

- stream_a: a large A times a skinny B; the kernel streams A past a B in shared memory;
- resident_b: a tall A times a small B; the kernel keeps B in shared memory;
- row_lanes: a row-major A; several lanes share a row of A, and B is in shared memory (shared_b) or registers
  (register_b);
- inner: X^T Y of tall matrices X and Y, whose k is huge;
- staged: both operands pass through shared memory; staged_symmetric: X passes through shared memory, and the kernel
  computes half of the Gram matrix X^T X.

The rest of the name states the way to multiply:

- fma: fused multiply-adds; fma_16bit: fused multiply-adds of 16-bit floats, for few columns;
- dmma: f64 tensor cores; f32_dmma and complex_dmma: f32 and complex numbers on f64 tensor cores;
- mma16, tf32: tensor cores for 16-bit floats and for TF32; wgmma: Hopper's instructions that read shared memory;
- ring: A, or both operands, pass through a multistage pipeline in shared memory; held: rows of A stay in registers.

tsm2 and ism2 are published kernels. gemm, minplus (the semiring (min, +)) and ladder are for matrices that are not
skinny, and gemv is for vectors. A search tries ladder only if the user names it.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache
from typing import Any

from tsm2_tune.errors import InputError
from tsm2_tune.generator.config import KernelConfig, family_name_in
from tsm2_tune.generator.families.family import MOST_PRODUCTS, Family
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.source import MOST_CACHED_KERNELS

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
    """Return the family called `name`. Raise InputError if there is none."""
    if name not in FAMILIES:
        raise InputError(f"unknown family {name!r}: expected one of {', '.join(FAMILIES)}")
    return FAMILIES[name]


def families_for(problem: Problem) -> list[str]:
    """Return the names of the families that compute the problem."""
    return [name for name, family in FAMILIES.items() if family.supports(problem)]


def computed_by_none(problem: Problem) -> str:
    """Return the message for a problem that no family computes."""
    limits = [family.lacks(problem) for family in FAMILIES.values()]
    if problem.batch > MOST_PRODUCTS and any(one.has_batches and one.fits(problem) for one in FAMILIES.values()):
        limits.append(f"other kernels compute at most {MOST_PRODUCTS} products")
    why = "; ".join(filter(None, limits))
    return f"no kernel family computes {problem.text}{why and f' ({why})'}: choose another --op, --dtype or shape"


@lru_cache(maxsize=MOST_CACHED_KERNELS)
def parse_config(text: str) -> KernelConfig | None:
    """Return the configuration that `text` describes, of whichever family, such as tsm2:version=v3,threads=128,...

    Return None if `text` describes no configuration of any family.
    """
    family = FAMILIES.get(family_name_in(text))
    found: KernelConfig | None = family.config_type.parse(text) if family else None
    return found
