"""Draw a page for each kernel, docs/kernels/NAME.md, from its declaration: what it is, its families, their tunables.

python docs/kernels.py
"""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib import resources
from itertools import islice, product
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from tsm2_tune.api.parse import LARGE
from tsm2_tune.generator import families
from tsm2_tune.generator.configuration_text import format_value
from tsm2_tune.generator.families.family import Family
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.grid import Grid
from tsm2_tune.generator.space.space import unfit
from tsm2_tune.generator.space.tunables import Declared, declared

FOLDER = Path(__file__).parent / "kernels"
PACKAGE = Path(families.__file__).parent
DRAWN, END = "<!-- drawn: kernels -->", "\n<!-- end -->\n"
PLACE_OF_FASTEST = 7  # card, type, op, m, n and k are before it
MOST_LOOKED_AT = 200_000  # configurations, for the values of their tunables
OPS = {  # spelling -> what it is
    "nn": "A B",
    "nt": "A B^T",
    "ttt": "A B, row-major",
    "tn": "A^T B",
    "tnt": "A^T B, C row-major",
    "tx": "A^T A",
}
MATHS = {  # type of a problem -> its options
    "tf32": " --math tf32",
    "3xtf32": " --math 3xtf32",
    "minplus_f32": " --math minplus",
    "minplus_f64": " --dtype f64 --math minplus",
}
SHAPES = ((4096, 4096, 4096), (10**6, 8, 8), (8, 8, 10**6), (4096, 8, 4096), (10**6, 1, 64), (16, 16, 64), (8, 8, 8))


def modules() -> Iterator[ModuleType]:
    """Yield the module of each kernel."""
    for one in pkgutil.iter_modules([str(PACKAGE)]):
        if one.name != "family":
            yield importlib.import_module(f"{families.__name__}.{one.name}")


def pages() -> dict[str, str]:
    """Return the text of each page, by file name."""
    every = {module.__name__.rpartition(".")[2]: module for module in modules()}
    found = {f"{name}.md": page(name, module) for name, module in every.items()}
    return {"README.md": index(every), **found}


def index(every: dict[str, ModuleType]) -> str:
    """Return the page that lists all kernels."""
    named = {name: ", ".join(f"`{one.name}`" for one in module.FAMILIES) for name, module in every.items()}
    rows = "\n".join(
        f"| [{name}]({name}.md) | {_first_sentence(module)} | {named[name]} |" for name, module in every.items()
    )
    return (
        f"# Kernels\n\n{DRAWN}\n\nOne page a kernel. A family is a kernel with one way to multiply."
        f" [glossary.md](../glossary.md) has the terms.\n\n| kernel | | families |\n|---|---|---|\n{rows}\n{END}"
    )


def page(name: str, module: ModuleType) -> str:
    """Return the page of a kernel."""
    file = "__init__.py" if hasattr(module, "__path__") else ""
    path = f"tsm2_tune/generator/families/{name}/{file}" if file else f"tsm2_tune/generator/families/{name}.py"
    head = f"# {name}\n\n{DRAWN}\n\n{(module.__doc__ or '').strip()}\n\nDeclared in\n[{path}](../../{path})."
    return "\n\n".join([head, *(said_of(one) for one in module.FAMILIES)]) + f"\n{END}"


def said_of(family: Family[Any]) -> str:
    """Return the section of a family: its products, wins, tunables and an example."""
    configs, grids = list(islice(family.configurations(), MOST_LOOKED_AT)), list(family.grids())
    is_cut_off = not grids and len(configs) == MOST_LOOKED_AT
    count = sum(int(grid.every.sum()) for grid in grids) if grids else len(configs)
    wins = " and ".join(won(family.name)) or "none"
    template = f"tsm2_tune/templates/{family.template}"
    facts = [
        f"- Element types: {', '.join(family.dtypes)}.",
        f"- Products: {'; '.join(f'{what} (`{op}`)' for op, what in computed(family))}.",
        *(["- It computes only batches."] if family.is_batched else []),
        f"- Configurations before any rule: {'over ' if is_cut_off else ''}{count:,}.",
        f"- Template: [{family.template}](../../{template}).",
        *([] if family.is_batched else [f"- Of the pretuned problems it is the fastest for {wins}."]),
        *(["- A search takes it only where `--family` names it."] if family.only_by_name else []),
    ]
    tunables = "\n".join(row_of(one, configs, grids) for one in declared(family.config_type))
    table = f"| in a configuration | tunable | of the paper | values | meaning |\n|---|---|---|---|---|\n{tunables}"
    shown = f"```\ntsm2-tune source {shown_of(family, configs)}\n```"
    summary = family.summary[0].upper() + family.summary[1:]
    return "\n\n".join([f"## {family.name}", f"{summary}.", "\n".join(facts), table, shown])


def shown_of(family: Family[Any], configs: list[Any]) -> str:
    """Return arguments of `source`: a configuration from the middle of the space, with a supported type and op."""
    tried = [
        (Problem(size, size, size, dtype, op, 2 if family.is_batched else 1), dtype, op)
        for op, _ in computed(family)
        for dtype in family.dtypes
        for size in (LARGE, 1)
    ]
    known = [one for one in tried if family.supports(one[0])]
    middle = len(configs) // 2
    for config in (*configs[middle:], *configs[:middle]):
        for problem, dtype, op in known:
            if unfit(family, config, problem) is None:
                options = MATHS.get(dtype, f" --dtype {dtype}" if dtype != "f32" else "")
                return f"{config.text}{options}{f' --op {op}' if op != 'nn' else ''}"
    raise ValueError(f"{family.name} has no kernel")


def row_of(one: Declared, configs: list[Any], grids: list[Grid[Any]]) -> str:
    """Return a tunable's row of the table, with its values in the grids, or else in these configurations."""
    in_configs = set(map(attrgetter(one.name), configs))
    in_grids = (grid.values().get(one.name, in_configs) for grid in grids)
    values = sorted({*one.tunable.late}.union(*in_grids) if grids else {*one.tunable.late, *in_configs})
    spelt = ", ".join(str(format_value(one, value)) for value in values)
    about = one.tunable.about + ("; launch data" if one.tunable.is_launch else "")
    if one.tunable.unit > 1:
        about += f"; {one.tunable.unit} stands for one"
    return f"| `{one.word}` | `{one.name}` | {one.tunable.symbol} | {spelt} | {about} |"


def computed(family: Family[Any]) -> list[tuple[str, str]]:
    """Return the products that the family supports, in any of its types and for some shape."""
    return [
        (op, what)
        for op, what in OPS.items()
        if any(
            family.supports(Problem(*_shape(op, shape), dtype, op, batch))
            for dtype, shape, batch in product(family.dtypes, SHAPES, (1, 2))
        )
    ]


def won(name: str) -> list[str]:
    """Return the number of measured problems that the family won, on each card."""
    return [
        f"{wins[name]:,} of {wins.total():,} on an {card.upper()}" for card, wins in winners().items() if wins[name]
    ]


@cache
def winners() -> dict[str, Counter[str]]:
    """Return the number of measured problems that each family won, by card."""
    found: dict[str, Counter[str]] = {}
    text = (resources.files("tsm2_tune.pretuned") / "first_choices.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        if not line.startswith("#"):
            card, *_, fastest = line.split()[:PLACE_OF_FASTEST]
            found.setdefault(card, Counter())[fastest.partition(":")[0]] += 1
    return dict(sorted(found.items()))


def _shape(op: str, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    m, n, k = shape
    return (m, m, k) if "x" in op else (m, n, k)


def _first_sentence(module: ModuleType) -> str:
    text = " ".join((module.__doc__ or "").partition("\n\n")[0].split())
    text = text.partition(": ")[2] or text
    return text[0].upper() + text[1:]


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
