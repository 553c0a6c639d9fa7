"""Bundling of `tsm2_tune.runtime` into one Python text: the code of all its modules, with merged imports."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from importlib import resources

PACKAGE = "tsm2_tune.runtime"
# A module is after the modules that it imports. `module_data` is not included: an export writes its contents.
MODULES = (
    "elements",
    "choice/launch",
    "choice/winners",
    "arrays/dlpack",
    "arrays/batches",
    "arrays/libraries",
    "arrays/matrices",
    "cuda/driver",
    "arrays/pycuda_arrays",
    "cuda/compilers",
    "cuda/cubins",
    "choice/core",
    "cuda/workspace",
    "launch_plan",
    "plan_cache",
    "launcher",
    "choice/choose",
    "zero_alpha",
    "host",
    "prepare",
    "autotune/timing",
    "autotune/cache",
    "gemm",
    "cupy/matmul",
    "jax/xla_ffi",
    "jax/lowering",
    "jax/primitive",
    "torch/dispatch",
    "torch/operators",
    "torch/override",
    "namespaces",
)


# Matches a module's docstring and imports. Only this part is parsed, because parsing all takes long.
_HEAD = re.compile(r'"""[^"]*"""\n(?:(?:import |from |[ )#]).*\n|\n)*')


@cache
def runtime_parts() -> tuple[str, str]:
    """Return two texts: the merged imports of all modules, and their code with docstrings as comments."""
    imports, bodies = defaultdict[str, set[str]](set, json=set()), []  # the exported data uses json
    for name in MODULES:
        text = resources.files(PACKAGE).joinpath(f"{name}.py").read_text(encoding="utf-8")
        docstring, body = _without_imports(text, imports)
        bodies.append("\n".join(f"# {line}".rstrip() for line in docstring.splitlines()) + "\n\n" + body)
    plain = sorted(f"import {name}" for name, names in imports.items() if not names)
    of_modules = sorted(f"from {name} import {', '.join(sorted(names))}" for name, names in imports.items() if names)
    numpy = "import numpy as np"
    first = [line for line in plain if not line.startswith("import numpy")] + of_modules
    return "\n".join([*first, "", numpy]), "\n\n\n".join(bodies)


def _without_imports(text: str, imports: dict[str, set[str]]) -> tuple[str, str]:
    """Return a module's docstring and its code after the imports. Add its imports to `imports`."""
    head = _HEAD.match(text)
    tree, end = ast.parse(head[0] if head else text), 0
    for node in tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                imports[alias.name] |= set()
        elif isinstance(node, ast.ImportFrom):
            if node.module != "__future__" and not (node.module or "").startswith(PACKAGE):
                imports[node.module or ""] |= {alias.name for alias in node.names}
        elif end:
            break
        end = node.end_lineno or end
    body = "\n".join(text.splitlines()[end:]).strip("\n")
    return (ast.get_docstring(tree) or "").strip(), body
