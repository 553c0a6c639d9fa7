"""The environment of compilers: a fixed list of variables, and no other variable of the caller.

PASSED_ON are variables by which a compiler finds its own parts. DECIDING are variables that change a compiler's
output. These are passed on too, and their values are stored with the flags of each trial, so they are part of the
basis and of the cache's keys.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable

Variables = tuple[tuple[str, str], ...]  # names and values

PASSED_ON = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "CCACHE_DIR")
OF_NVCC = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN")
OF_TEXTS = (  # GCC and Clang find headers and subprograms by these
    "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX", "CCC_OVERRIDE_OPTIONS",
)  # fmt: skip
OF_LINKERS = ("LIBRARY_PATH", "LD_RUN_PATH")  # a cubin does not depend on these
DECIDING = (*OF_NVCC, *OF_TEXTS, *OF_LINKERS)


def program_path(name: str) -> str | None:
    """Return the program's file in PATH, or in the system's default if that is empty; None if there is none."""
    return shutil.which(name, path=os.environ.get("PATH") or os.defpath)


def deciding(names: Iterable[str]) -> Variables:
    """Return those of the variables that are set."""
    return tuple((name, os.environ[name]) for name in names if os.environ.get(name))


def compiler_environment(variables: Variables | None = None) -> dict[str, str]:
    """Return a compiler's environment, with English messages. `variables` replace those of DECIDING that are set."""
    chosen = deciding(DECIDING) if variables is None else variables
    return dict((*deciding(PASSED_ON), *chosen, ("LC_ALL", "C")))
