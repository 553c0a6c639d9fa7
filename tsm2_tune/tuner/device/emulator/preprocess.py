"""The CUDA text of a kernel as the host's C++ compiler gets it."""

from __future__ import annotations

import re

# What a text must not be searched in: comments and strings.
_NO_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_BOUNDS = r"(?:__launch_bounds__\s*\((?P<{0}>(?:[^()]|\([^()]*\))*)\)\s*)?"
_KERNEL = re.compile(
    r"__global__\s+" + _BOUNDS.format("before") + r"void\s+" + _BOUNDS.format("after") + r"(?P<name>\w+)\s*\("
)
_STATIC_SHARED = re.compile(
    r"(?<!extern )(?<!static )\b__shared__\b(?P<variable>[^;,=]*?\b(?P<name>\w+)(?:\[[^;,=]*)?;)?"
)


def host_text(text: str) -> str:
    """Return the CUDA text as the host's compiler gets it: line for line the same, and each kernel made known.

    A kernel is a `__global__ void` function at global scope that no preprocessor condition leaves out. Static shared
    variables become `static`, as the threads of a block share them, and are made known to what tells races.
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
