"""Programs before and after: record their products, tune, and run them with the library that replaces cuBLAS.

    python -m benchmarks.programs --output benchmarks/results/h100-programs-tuned.json

The three commands of the README are run for the programs in `examples/programs`. Then each program runs alone and
with tuned kernels, in turns. The file contains the time and the result that each program prints.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.plot import DOTS_PER_INCH, INCHES_WIDE, POINTS, matplotlib
from benchmarks.result_file import device_facts, write_json
from benchmarks.tables import markdown, number
from tsm2_tune.commands.errors import Command
from tsm2_tune.errors import InputError
from tsm2_tune.tuner.device.target import find_target

FOLDER = Path(__file__).parents[1] / "examples/programs"
PROGRAMS = {
    "K-means, 200,000 points of 4,096 dimensions, 16 centres, f32": ("kmeans.py",),
    "K-means, 10,000,000 points of 16 dimensions, 16 centres, f32": ("kmeans.py", "10000000", "16", "16", "100"),
    "checksums of 20,480 x 20,480, f64": ("checksums.py",),
    "torch.svd_lowrank of 20,480 x 20,480, rank 8, f32": ("low_rank.py",),
    "CholeskyQR2 of 10,000,000 x 32, f64": ("tall_qr.py",),
    "CholeskyQR2 of 8,192 matrices of 100 x 10, f64": ("batched_qr.py",),
    "a mesh of 2,000,000 points, each moved by a matrix of 3 x 3, f32": ("deformed_mesh.py",),
    "Gram-Schmidt of 50 vectors of 2,000,000, f64": ("gram_schmidt.py",),
    "torch.lobpcg, 8 vectors of 2,000,000, f64": ("eigenvectors.py",),
    "torch.pca_lowrank of 20,480 x 20,480, rank 8, f32": ("low_rank.py", "20480", "8", "10", "pca"),
    "CuPy's lobpcg, 8 vectors of 2,000,000, f64": ("sparse_eigenvectors.py",),
    "CuPy's gmres, 50 vectors of 2,000,000, f64": ("gmres.py",),
    "subspace iteration in C, 8 vectors of 16,384, f32": ("subspace.c",),
    "subspace iteration in Fortran, 8 vectors of 8,192, f64": ("subspace.f90",),
}
OURS = (sys.executable, "-m", "tsm2_tune")
TURNS = ("before_ms", "after_ms")


def started(program: tuple[str, ...], binaries: str | None) -> list[str]:
    """Return the command that starts the program.

    Raise InputError if a program in C or Fortran is not compiled.
    """
    name = program[0]
    if name.endswith(".py"):
        return [sys.executable, str(FOLDER / name), *program[1:]]
    path = Path(binaries or FOLDER).absolute() / name.replace(".", "_")
    if not path.is_file():
        raise InputError(f"{path} is missing: compile {FOLDER / name} to that, or name its folder with --binaries")
    return [str(path), *program[1:]]


def run(command: Sequence[str]) -> tuple[float, str, str]:
    """Run a command. Return the milliseconds and the result that it prints, and its standard error.

    Raise InputError if the command fails.
    """
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    said = re.search(r"([0-9.]+) ms .*?result ([^\s,]+)", done.stdout)
    if done.returncode or said is None:
        raise InputError(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")
    return float(said[1]), said[2], done.stderr


def times_as_fast(program: Mapping[str, Any]) -> float:
    before, after = (statistics.median(program[turn]) for turn in TURNS)
    return float(before / after)


def draw(tuned: Mapping[str, Any], others: Mapping[str, Any], cards: tuple[str, str], path: Path) -> None:
    """Write the picture: a bar for each program and pack, with the speedup."""
    plt = matplotlib()
    names = [*{**tuned, **others}]
    figure, axes = plt.subplots(figsize=(INCHES_WIDE, 0.5 * len(names) + 1), dpi=DOTS_PER_INCH, layout="constrained")
    packs = ((tuned, f"tuned for it, {cards[0]}", -0.2), (others, f"kernels of other shapes, {cards[1]}", 0.2))
    for found, label, offset in packs:
        bars = [(at + offset, times_as_fast(found[name])) for at, name in enumerate(names) if name in found]
        drawn = axes.barh(*zip(*bars, strict=True), height=0.38, label=label)
        axes.bar_label(drawn, fmt=" %.2f", fontsize=POINTS)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(names)), names, fontsize=POINTS)
    axes.invert_yaxis()
    axes.set_xlabel("times as fast as by cuBLAS alone", fontsize=POINTS)
    axes.legend(fontsize=POINTS)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Software": None})
    plt.close(figure)


def table(tuned: Mapping[str, Any], others: Mapping[str, Any], cards: tuple[str, str]) -> str:
    """Return a Markdown table of milliseconds per program.

    On one GPU, the program alone and with kernels tuned for its products; on another GPU, alone and with kernels of
    other shapes.
    """
    lines = []
    for name in {**tuned, **others}:
        cells = [name]
        for found in (tuned, others):
            if name not in found:
                cells += ["-"] * 3
                continue
            before, after = (statistics.median(found[name][turn]) for turn in TURNS)
            cells += [number(before, 2), number(after, 2), number(times_as_fast(found[name]), 2)]
        lines.append(tuple(cells))
    heads = [(f"{cards[0]} by itself", "tuned for it", "times as fast")]
    heads += [(f"{cards[1]} by itself", "kernels of other shapes", "times as fast")]
    return markdown(("program", *heads[0], *heads[1]), lines, texts=("program",))


@click.command(cls=Command)
@click.option("--output", required=True, metavar="FILE", help="The file to write, JSON.")
@click.option("--library", metavar="PATH", help="Take kernels from this exported C library: tune nothing.")
@click.option("--only", metavar="FILE,...", help="Only of these programs.")
@click.option(
    "--binaries", metavar="FOLDER", help="Where subspace.c is compiled as subspace_c, subspace.f90 as subspace_f90."
)
@click.option("--budget", default="6", show_default=True, metavar="SECONDS", help="Of tuning a product.")
@click.option("--worth", default="2%", show_default=True, metavar="PERCENT", help="Tune products of this share.")
@click.option("--turns", type=click.IntRange(min=1), default=2, show_default=True, help="Of each program.")
def main(
    output: str, library: str | None, only: str | None, binaries: str | None, budget: str, worth: str, turns: int
) -> None:
    """Record, tune and run the programs in examples/programs."""
    all_of_them = sorted({program[0] for program in PROGRAMS.values()})
    files = all_of_them if only is None else only.split(",")
    if unknown := [file for file in files if file not in all_of_them]:
        raise InputError(f"no program {unknown[0]}: one of {', '.join(all_of_them)}")
    programs = {name: program for name, program in PROGRAMS.items() if program[0] in files}
    commands = {name: started(program, binaries) for name, program in programs.items()}
    found: dict[str, Any] = {name: {"program": " ".join(program)} for name, program in programs.items()}
    with tempfile.TemporaryDirectory() as folder:
        if library is None:
            kernels = ["--db", _tuned(commands, found, Path(folder), budget, worth)]
        else:
            kernels = ["--library", library]
        for name, command in commands.items():
            found[name] |= compared(command, [*OURS, "run", *kernels], turns)
            before, after = (statistics.median(found[name][when]) for when in ("before_ms", "after_ms"))
            click.echo(f"{name}: {before:.2f} -> {after:.2f} ms, {before / after:.2f}")
    facts = device_facts("python -m benchmarks.programs", find_target("0"))
    facts["kernels"] = "tuned for the programs" if library is None else Path(library).name
    write_json(Path(output), {**facts, "programs": found})


def _tuned(commands: dict[str, list[str]], found: dict[str, Any], folder: Path, budget: str, worth: str) -> str:
    """Record the programs' products, tune them, and return the path of the database."""
    database, shapes = str(folder / "results.db"), folder / "products.txt"
    recorded = ""
    for name, command in commands.items():
        run([*OURS, "record", "--worth", worth, "--output", str(shapes), "--", *command])
        text = shapes.read_text(encoding="utf-8")
        found[name]["recorded"] = text[text.index("\n") + 1 :]  # without the line of the program's path
        recorded += text
    shapes.write_text(recorded, encoding="utf-8")
    tune = [*OURS, "--device", "0", "--shapes", f"@{shapes}", "--budget", budget, "--db", database]
    subprocess.run(tune, check=True, stdout=2)
    return database


def report_in(errors: str) -> str:
    """Return the report of `tsm2-tune run` from a program's standard error."""
    found = re.search(r"^(?:[0-9]+ products? seen|no product was seen).*", errors, re.MULTILINE | re.DOTALL)
    return "" if found is None else found[0]


def compared(command: Sequence[str], before: Sequence[str], turns: int) -> dict[str, Any]:
    """Return the times of the program alone and with kernels, in turns, and the report of `tsm2-tune run`."""
    ran = [(run(command), run([*before, "--", *command])) for _ in range(turns)]
    return {
        "before_ms": [turn[0][0] for turn in ran],
        "after_ms": [turn[1][0] for turn in ran],
        "before_result": ran[0][0][1],
        "after_result": ran[0][1][1],
        "report": report_in(run([*before, "--report", "--", *command])[2]),
    }


if __name__ == "__main__":
    main()
