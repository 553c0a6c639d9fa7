"""The environment variables that compilers receive: a fixed list, and no other variable of the caller.

A compiler finds its own programs through the variables in PASSED_ON. The variables in DECIDING change its output.
Therefore their values are stored with each result, and are part of the cache's keys.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable

Variables = tuple[tuple[str, str], ...]  # names and values

PASSED_ON = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "CCACHE_DIR")
OF_NVCC = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN")
OF_TEXTS = (  # GCC and Clang find headers and subprograms through these variables
    "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX", "CCC_OVERRIDE_OPTIONS",
)  # fmt: skip
OF_LINKERS = ("LIBRARY_PATH", "LD_RUN_PATH")  # a cubin does not depend on these
DECIDING = (*OF_NVCC, *OF_TEXTS, *OF_LINKERS)


def program_path(name: str) -> str | None:
    """Return the path of the program in PATH, or in the system's default path if PATH is empty; None if not found."""
    return shutil.which(name, path=os.environ.get("PATH") or os.defpath)


def deciding(names: Iterable[str]) -> Variables:
    """Return the name and the value of each variable in `names` that is set and not empty."""
    return tuple((name, os.environ[name]) for name in names if os.environ.get(name))


def compiler_environment(variables: Variables | None = None) -> dict[str, str]:
    """Return a compiler's environment, for English messages. `variables` replace the caller's values of DECIDING."""
    chosen = deciding(DECIDING) if variables is None else variables
    return dict((*deciding(PASSED_ON), *chosen, ("LC_ALL", "C")))
