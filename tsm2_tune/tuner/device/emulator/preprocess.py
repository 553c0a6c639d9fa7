"""Rewrite the CUDA text of a kernel for the host's C++ compiler.

The cache's keys contain this file's digest, so it has no other code.
"""

from __future__ import annotations

import re

# Comments and strings, which are not searched.
_NO_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_BOUNDS = r"(?:__launch_bounds__\s*\((?P<{0}>(?:[^()]|\([^()]*\))*)\)\s*)?"
_KERNEL = re.compile(
    r"__global__\s+" + _BOUNDS.format("before") + r"void\s+" + _BOUNDS.format("after") + r"(?P<name>\w+)\s*\("
)
_STATIC_SHARED = re.compile(
    r"(?<!extern )(?<!static )\b__shared__\b(?P<variable>[^;,=]*?\b(?P<name>\w+)(?:\[[^;,=]*)?;)?"
)


def host_text(text: str) -> str:
    """Return the CUDA text for the host's compiler. Lines keep their numbers, and each kernel is registered.

    A kernel is a `__global__ void` function at global scope outside preprocessor conditions. Static shared variables
    become `static`, as the threads of a block share them, and are registered for race detection.
    """
    code = _NO_CODE.sub(" ", text)
    kernels = [
        f"TSM2_HOST_KERNEL({', '.join(filter(None, (found['name'], found['before'] or found['after'])))})"
        for found in _KERNEL.finditer(code)
    ]

    def made_static(found: re.Match[str]) -> str:
        if found["name"] is None:
            return f"static {found[0]}"
        return f"static {found[0]} tsm2_host::know_shared({found['name']});"

    return "\n".join([_STATIC_SHARED.sub(made_static, text), *kernels, ""])
