"""Measure the seconds from the first `tsm2-tune` command to each output: first kernel, winner, exported module.

    python -m benchmarks.first_kernel --device 0 --shapes 1000000x16x16 --output first-kernel.json

The command runs twice with an empty database: first with an empty cache of kernels, then with the cache of the first
run. On a machine without a GPU, use --device cpu --shapes 2048x8x2048. The package's bytecode is compiled before, as
in an installed package.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from compileall import compile_dir
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

import tsm2_tune
from benchmarks.result_file import program_facts, require_new
from tsm2_tune.commands.errors import Command

PROGRAM = (sys.executable, "-m", "tsm2_tune")
# Event of `--json` -> name of the stage. The first event of each kind counts.
STAGES = {
    "stream": "first_line",
    "run_started": "run_started",
    "problem_started": "problem_started",
    "trial": "first_trial",
    "winner_verified": "winner_verified",
    "result": "run_ended",
}
EXPORTED = "exported"
FACTS = ("device", "driver", "toolkit", "flags")  # fields of the event run_started
ERROR_CHARACTERS = 2000


def measured(options: tuple[str, ...], folder: Path, cache: Path) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the seconds to each stage and facts about the device. Raise ClickException if a command fails."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    database, module, errors = folder / "results.db", folder / "best_kernels.py", folder / "errors"
    command = [*PROGRAM, *options, "--no-vendor", "--no-pairs", "--json", "--db", str(database)]
    seconds: dict[str, float] = {}
    facts: dict[str, Any] = {}
    start = time.monotonic()
    with errors.open("w") as written:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=written, text=True, env=environment)
        with process:
            for line in process.stdout or ():
                now, event = time.monotonic(), json.loads(line)
                if event["event"] in STAGES:
                    seconds.setdefault(STAGES[event["event"]], round(now - start, 3))
                if event["event"] == "run_started":
                    facts = {name: event.get(name) for name in FACTS}
        _refuse_failure(process.returncode, errors)
        export = [*PROGRAM, "export", "--format", "module", "--db", str(database), "--output", str(module)]
        status = subprocess.run(export, stdout=subprocess.DEVNULL, stderr=written, env=environment).returncode
    _refuse_failure(status, errors)
    seconds[EXPORTED] = round(time.monotonic() - start, 3)
    return seconds, facts


def _refuse_failure(status: int, errors: Path) -> None:
    if status != 0:
        said = errors.read_text(errors="replace")[-ERROR_CHARACTERS:].strip()
        raise click.ClickException(f"the command ends with status {status}: {said}")


@click.command(cls=Command)
@click.option("--device", default="0", show_default=True)
@click.option("--shapes", default="1000000x16x16", show_default=True)
@click.option("--dtype", default="f32", show_default=True)
@click.option("--budget", default=1.0, show_default=True, help="Seconds for each problem.")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="Where to write; by default, printed."
)
def main(device: str, shapes: str, dtype: str, budget: float, output: Path | None) -> None:
    """Time a first run, with an empty and with a filled cache."""
    if output is not None:
        require_new(output, "name another file with --output")
    compile_dir(Path(tsm2_tune.__file__).parent, quiet=1)
    options = ("--device", device, "--shapes", shapes, "--dtype", dtype, "--budget", f"{budget:g}")
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as cache:
        for state in ("empty_cache", "filled_cache"):
            with tempfile.TemporaryDirectory() as folder:
                found[state], facts = measured(options, Path(folder), Path(cache))
    result = {
        "command": " ".join(("tsm2-tune", *options)),
        "date": datetime.now(UTC).date().isoformat(),
        **facts,
        **program_facts(),
        "seconds": found,
    }
    text = json.dumps(result, indent=2)
    if output is None:
        click.echo(text)
    else:
        output.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
