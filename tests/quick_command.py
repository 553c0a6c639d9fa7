"""The command for tests of what is around its trials: few samples, kernels that are compiled quickly, and winners
verified in full by few calls; and databases that do not wait for the disk, by which a process that is killed loses
nothing.

python -m tests.quick_command --device cpu --shapes 64x2x64
python -m tests.quick_command examples/api.py --device cpu --shapes 64x2x64
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from sqlite3 import Connection, DatabaseError

from tests.quick import keep_answers, quick_host_toolchain
from tests.quick_worker import serve
from tsm2_tune.__main__ import main
from tsm2_tune.api import export, tune
from tsm2_tune.tuner.device.emulator import entry_point, toolchain
from tsm2_tune.tuner.measure.timing import Effort
from tsm2_tune.tuner.results.storage import sqlite
from tsm2_tune.tuner.search import finals, options
from tsm2_tune.tuner.verify.winner_calls import EMULATED
from tsm2_tune.tuner.worker import client

LONG_TRIALS = "TSM2_TUNE_TEST_LONG_TRIALS"  # if set, only the compilers are quick
SAMPLES = Effort(min_samples=3, max_samples=3, warm_up_seconds=0.0)
CALLS = replace(
    EMULATED, products=2e4, long_products=0, repeated_products=0, launches=2, deep_products=0, watched_products=0
)


def compile_quickly(setattr: Callable[[object, str, object], None]) -> None:
    """Have the command compile kernels for the host so from now on."""
    for module in (toolchain, entry_point):
        setattr(module, "host_toolchain", quick_host_toolchain)


def make_quick(setattr: Callable[[object, str, object], None]) -> None:
    """Have the command tune so from now on."""
    connected = sqlite.connected

    def connected_quickly(path: Path, mode: str) -> Connection:
        connection = connected(path, mode)
        try:
            connection.execute("PRAGMA synchronous = OFF")
        except DatabaseError:  # the file is locked, or no database
            connection.close()
            raise
        return connection

    setattr(sqlite, "connected", connected_quickly)
    setattr(finals, "EMULATED", CALLS)
    setattr(client, "serve", serve)
    compile_quickly(setattr)
    for module in (tune, export):
        setattr(module, "Options", partial(options.Options, effort=SAMPLES, final_effort=SAMPLES))


if __name__ == "__main__":
    keep_answers(setattr)
    (compile_quickly if os.environ.get(LONG_TRIALS) else make_quick)(setattr)
    if sys.argv[1:] and sys.argv[1].endswith(".py"):
        del sys.argv[0]
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        main()
