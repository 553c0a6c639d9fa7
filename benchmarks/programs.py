"""Programs as they are, before and after: recorded, tuned, and run with the stand-in for cuBLAS.

    python -m benchmarks.programs --output benchmarks/results/h100-programs.json

The three commands of the README are run for the programs in `examples/programs`, then each program runs alone and
with tuned kernels in turns. What a program prints of its time and of its result is written down.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from tsm2_tune import __version__
from tsm2_tune.errors import InputError
from tsm2_tune.usage import Command

FOLDER = Path(__file__).parents[1] / "examples/programs"
PROGRAMS = {
    "K-means, 200,000 points of 4,096 dimensions, 16 centres, f32": ("kmeans.py",),
    "K-means, 10,000,000 points of 16 dimensions, 16 centres, f32": ("kmeans.py", "10000000", "16", "16", "100"),
    "checksums of 20,480 x 20,480, f64": ("checksums.py",),
    "torch.svd_lowrank of 20,480 x 20,480, rank 8, f32": ("low_rank.py",),
    "CholeskyQR2 of 10,000,000 x 32, f64": ("tall_qr.py",),
    "Gram-Schmidt of 50 vectors of 2,000,000, f64": ("gram_schmidt.py",),
    "torch.lobpcg, 8 vectors of 2,000,000, f64": ("eigenvectors.py",),
}
TURNS = 3


def run(before: list[str], program: tuple[str, ...]) -> tuple[float, str, str]:
    """The milliseconds that the program says, its result, and its standard error. InputError where it fails."""
    command = [*before, sys.executable, str(FOLDER / program[0]), *program[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    said = re.search(r"([0-9.]+) ms .*?result ([^\s,]+)", done.stdout)
    if done.returncode or said is None:
        raise InputError(f"{program[0]} failed: {done.stderr.strip()[-500:]}")
    return float(said[1]), said[2], done.stderr


@click.command(cls=Command)
@click.option("--output", required=True, metavar="FILE", help="The file to write, JSON.")
@click.option("--budget", default="6", show_default=True, metavar="SECONDS", help="Of tuning a product.")
@click.option(
    "--worth", default=2.0, show_default=True, metavar="PERCENT", help="Tune products of at least this share."
)
def main(output: str, budget: str, worth: float) -> None:
    """Record, tune and run the programs in examples/programs."""
    ours = [sys.executable, "-m", "tsm2_tune"]
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        database, shapes = str(Path(folder, "results.db")), Path(folder, "products.txt")
        recorded = ""
        for name, program in PROGRAMS.items():
            run([*ours, "record", "--output", str(shapes), "--"], program)
            text = shapes.read_text(encoding="utf-8")
            found[name] = {"program": " ".join(program), "recorded": text}
            recorded += "".join(f"{line}\n" for line in text.splitlines() if _is_worth(line, worth))
        shapes.write_text(recorded, encoding="utf-8")
        subprocess.run(
            [*ours, "--device", "0", "--shapes", f"@{shapes}", "--budget", budget, "--db", database],
            check=True,
            stdout=2,
        )
        for name, program in PROGRAMS.items():
            turns = [(run([], program), run([*ours, "run", "--db", database, "--"], program)) for _ in range(TURNS)]
            before, after = ([turn[way][0] for turn in turns] for way in (0, 1))
            report = run([*ours, "run", "--report", "--db", database, "--"], program)[2]
            found[name] |= {
                "before_ms": before, "after_ms": after, "report": report,
                "before_result": turns[0][0][1], "after_result": turns[0][1][1],
            }  # fmt: skip
            faster = statistics.median(before) / statistics.median(after)
            click.echo(f"{name}: {statistics.median(before):.2f} -> {statistics.median(after):.2f} ms, {faster:.2f}")
    device = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True
    ).stdout.strip()
    about = {"device": device, "tsm2_tune": __version__, "date": datetime.now(UTC).isoformat(timespec="seconds")}
    Path(output).write_text(json.dumps({**about, "programs": found}, indent=1) + "\n", encoding="utf-8")


def _is_worth(line: str, percent: float) -> bool:
    share = re.search(r"([0-9.]+) %", line)
    return not line.startswith("#") and share is not None and float(share[1]) >= percent


if __name__ == "__main__":
    main()
