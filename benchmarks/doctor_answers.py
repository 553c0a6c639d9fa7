"""Record the output of `tsm2-tune doctor` on this machine, with a complete and with an incomplete CUDA toolkit.

    python -m benchmarks.doctor_answers --output benchmarks/results/host-doctor.json

docs/tuning.md shows the output on a machine with a GPU and on one without.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from benchmarks.result_file import write_json
from tsm2_tune.commands.errors import Command
from tsm2_tune.errors import InputError
from tsm2_tune.tuner.compile.nvcc import nvcc_path

HOME = "/home/me"  # replaces the name of the home folder in the docs
LIMIT_SECONDS = 300.0
WHOLE, BROKEN = "as it is", "with a toolkit of which nvcc alone was copied"


def answer(home: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """Run doctor, and return its exit status and the printed lines."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TSM2_TUNE_")}
    own = {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"), "COLUMNS": "100", "NO_COLOR": "1"}
    source = {"PYTHONPATH": os.pathsep.join(filter(None, (str(Path.cwd()), os.environ.get("PYTHONPATH", ""))))}
    ended = subprocess.run(
        [sys.executable, "-m", "tsm2_tune", "doctor"], cwd=home, env=kept | own | source | dict(variables),
        capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False,
    )  # fmt: skip
    if ended.stderr:
        raise InputError(f"doctor says on standard error: {ended.stderr}")
    return {"exit_status": ended.returncode, "lines": ended.stdout.replace(str(home), HOME).splitlines()}


def answers(nvcc: str) -> dict[str, dict[str, Any]]:
    """Return doctor's output by state of the machine. The incomplete toolkit is a copy of nvcc alone."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder).resolve()
        whole = answer(home, {})
        copied = home / "cuda" / "bin" / "nvcc"
        copied.parent.mkdir(parents=True)
        shutil.copy(nvcc, copied)
        return {WHOLE: whole, BROKEN: answer(home, {"CUDA_HOME": str(home / "cuda")})}


def drawn(gpu: Path, host: Path) -> dict[str, str]:
    """Return {name of a region in docs: Markdown} for a machine with a GPU and for one without."""
    with_gpu, without = (json.loads(path.read_text(encoding="utf-8"))["answers"] for path in (gpu, host))
    whole, broken = with_gpu[WHOLE]["lines"], with_gpu[BROKEN]["lines"]
    others = [line for line in broken if not line.startswith("ok ")]
    found = {"doctor": whole, "doctor-broken": others, "doctor-host": without[WHOLE]["lines"]}
    return {region: _block(lines) for region, lines in found.items()}


def _block(lines: Sequence[str]) -> str:
    """Return the lines as a code block, folded to the pages' width."""
    return "\n".join(["```", "$ tsm2-tune doctor", *(part for line in lines for part in _folded(line)), "```"])


def _folded(line: str, width: int = 118, indent: str = " " * 9) -> list[str]:
    """Fold a line into lines of at most `width` characters. Continuation lines begin with `indent`."""
    folded = [""]
    for word in re.findall(r"\S+\s*", line):
        if folded[-1].strip() and len(folded[-1]) + len(word.rstrip()) > width:
            folded.append(indent)
        folded[-1] += word
    return [one.rstrip() for one in folded]


@click.command(cls=Command)
@click.option("--output", required=True, type=click.Path(dir_okay=False, path_type=Path))
def main(output: Path) -> None:
    """Write the output of doctor to a file."""
    found = answers(os.path.realpath(nvcc_path()))
    facts = {"command": "python -m benchmarks.doctor_answers", "date": datetime.now(UTC).date().isoformat()}
    write_json(output, {**facts, "answers": found})
    for name, one in found.items():
        click.echo("\n".join([f"{name}: exit status {one['exit_status']}", *one["lines"], ""]))


if __name__ == "__main__":
    main()
