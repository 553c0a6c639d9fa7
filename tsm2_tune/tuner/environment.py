"""The environment that compilers run in: a stated list of variables, and nothing else of the caller's.

One rule for all. A variable of PASSED_ON says where a compiler finds its own parts. One of DECIDING changes what a
compiler makes: it is passed on too, and its value is stored with the flags of each trial, and so is a part of the
basis and of the cache's keys. A compiler never sees any other variable.
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
    """Return the program's file by PATH, by the system's if that is empty. None if none can be run."""
    return shutil.which(name, path=os.environ.get("PATH") or os.defpath)


def deciding(names: Iterable[str]) -> Variables:
    """Return those of these variables that are set."""
    return tuple((name, os.environ[name]) for name in names if os.environ.get(name))


def compiler_environment(variables: Variables | None = None) -> dict[str, str]:
    """Return what a compiler gets: of DECIDING these variables, by default all that are set. It speaks English."""
    chosen = deciding(DECIDING) if variables is None else variables
    return dict((*deciding(PASSED_ON), *chosen, ("LC_ALL", "C")))
