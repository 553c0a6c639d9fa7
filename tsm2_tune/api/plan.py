"""`problems` and `plan_space`: problems and their search spaces, without running a kernel or needing a GPU."""

from __future__ import annotations

from tsm2_tune.api.parse import ElementTypes, Texts, computable, device_name, family_names, thresholds_of
from tsm2_tune.api.products import Products, problems_of
from tsm2_tune.errors import InputError
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.guidelines import Thresholds
from tsm2_tune.generator.space.space import SearchSpace, search_space
from tsm2_tune.tuner.device.target import default_spec, limits_of


def problems(
    products: Products, *, dtype: ElementTypes = "f32", op: Texts = "nn", layout: str = "column", math: str = "full"
) -> tuple[Problem, ...]:
    """Return the named problems, each once: every combination of a shape, an element type and an op.

    - `products`: a text, a Problem, or several of them. A text contains shapes MxNxK, with commas, ranges and files
      as in `--shapes`, or problems such as `100000x8x16:f32:tnt`, which have their own element type and op.
    - `dtype`: f32, f64, c64, c128, bf16, f16, or a NumPy type. Give several types as a list, or as a text with
      commas.
    - `op`: the letters of A and of B as in `--op`, or "gram". Give several ops as a list, or as a text with commas.
    - `layout`: "column", or "row" if every matrix is row-major.
    - `math`: the arithmetic: "full", "tf32", "3xtf32" or "minplus".

    Raise InputError for an invalid argument.
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
    """Return the search space of one problem: the configurations to try, and how many each rule dropped.

    - `product`, `dtype`, `op`, `layout`, `math`: the problem, as for `problems`.
    - `device`: a CUDA ordinal, "cpu" for this host, a known GPU such as "h200", or any DeviceLimits. None means GPU
      0, or this host if there is no GPU.
    - `family`: only these kernel families, as a list or a text with commas.
    - `guidelines`: thresholds that replace the defaults, as a text such as "none,min-reuse=2" or as a mapping from
      names to numbers.

    Raise InputError if the arguments do not name exactly one problem, for a problem that no family computes, and for
    an unknown device. Raise DeviceError if the device does not respond.
    """
    found = problems(product, dtype=dtype, op=op, layout=layout, math=math)
    if len(found) != 1:
        raise InputError(f"{product!r} names {len(found)} problems: plan the space of one at a time")
    names, thresholds = family_names(family), thresholds_of(guidelines)
    computable(found, names)
    limits = device if isinstance(device, DeviceLimits) else limits_of(spec_of(device))
    return search_space(found[0], limits, guidelines=thresholds, families=names)


def spec_of(device: int | str | None) -> str:
    """Return the device as a text, as in the option --device. None is the default device."""
    return default_spec() if device is None else device_name(device)
