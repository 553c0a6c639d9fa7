"""A batch of small products: a block computes many products, and one or more threads compute each product.

A *group* is the products whose operands are in shared memory at once. A block computes groups, one after another. If
the matrices are contiguous, it copies them in vectors, so that its reads cover whole sectors although a product has
few elements. A thread computes a tile of one C. If the elements of the tile are vectors of C, the thread may write
them. Otherwise the sums go through shared memory, so that writes cover whole sectors, too.

The bytes of shared memory are a tunable. From them and from m, n and k the kernel computes how many products a group
has. So one kernel computes every shape of which a product fits. For the extents for which it was tuned it has code of
its own, whose loops, offsets and vectors the compiler knows. One configuration takes 104 us for 500,000 products of
8 x 8 x 8 (f32) on an H200 with code for them, and 146 us without (benchmarks/results/h200-small-extents.json).
"""

from __future__ import annotations

from tsm2_tune.generator.families.small.groups import SmallConfig
from tsm2_tune.generator.families.small.kernel import Small

__all__ = ["FAMILIES", "SmallConfig"]

FAMILIES = (Small(),)
