"""Problems, and the search space of one on any device. Nothing here runs a kernel, or needs a GPU."""

from __future__ import annotations

from tsm2_tune.errors import InputError
from tsm2_tune.generator.guidelines import Thresholds
from tsm2_tune.generator.limits import DeviceLimits
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space import SearchSpace, search_space
from tsm2_tune.options import (
    ElementTypes,
    Products,
    Texts,
    computable,
    device_name,
    family_names,
    problems_of,
    thresholds_of,
)
from tsm2_tune.tuner.target import default_spec, limits_of


def problems(
    products: Products, *, dtype: ElementTypes = "f32", op: Texts = "nn", layout: str = "column", math: str = "full"
) -> tuple[Problem, ...]:
    """Return the problems that texts spell, each once: every shape in every element type and op.

    - `products`: a text or several, or Problems, which stand for themselves. A text is MxNxK, with commas, ranges and
      files as `--shapes` has them, or a problem as it is printed, `100000x8x16:f32:tnt`, with its own type and op.
    - `dtype`: f32, f64, c64, c128, bf16, f16, or NumPy's types; several are a list, or a text with commas.
    - `op`: the letters of A and of B as `--op` has them, or "gram"; several as of `dtype`.
    - `layout`: "column", or "row" where every matrix lies row-major.
    - `math`: how elements are multiplied: "full", "tf32", "3xtf32", "minplus".

    Raise InputError for a text that spells none.
    """
    return problems_of(products, dtype, op, layout, math)


def plan_space(
    product: str | Problem,
    *,
    dtype: ElementTypes = "f32",
    op: str = "nn",
    layout: str = "column",
    math: str = "full",
    device: int | str | DeviceLimits | None = None,
    family: Texts | None = None,
    guidelines: str | Thresholds | None = None,
) -> SearchSpace:
    """Return the search space of one product: which configurations a search would try, and which rule dropped how
    many.

    - `product`, `dtype`, `op`, `layout`, `math`: one problem, as `problems` takes it.
    - `device`: a CUDA ordinal, "cpu" for this host, a bundled card such as "h200", or limits of your own; None is GPU
      0, or this host where there is none.
    - `family`: only these kernel families, a text with commas or a list.
    - `guidelines`: thresholds of guidelines that are moved, by a text such as "none,min-reuse=2" or by name.

    Raise InputError for a text that spells no problem or several, for one that no family computes, and for an unknown
    device. Raise DeviceError if the device does not answer.
    """
    found = problems(product, dtype=dtype, op=op, layout=layout, math=math)
    if len(found) != 1:
        raise InputError(f"{product!r} spells {len(found)} problems: plan the space of one at a time")
    names, thresholds = family_names(family), thresholds_of(guidelines)
    computable(found, names)
    limits = device if isinstance(device, DeviceLimits) else limits_of(spec_of(device))
    return search_space(found[0], limits, guidelines=thresholds, families=names)


def spec_of(device: int | str | None) -> str:
    """How the command spells the device."""
    return default_spec() if device is None else device_name(device)
