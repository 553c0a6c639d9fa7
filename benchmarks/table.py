"""A Markdown table of every kernel version beside cuBLAS, from a result file of `beside_cublas`.

python -m benchmarks.table benchmarks/results/h200-beside-cublas.json
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from tsm2_tune.commands.errors import Command
from tsm2_tune.errors import InputError

VERSIONS = ("V0", "V1", "V2", "V3", "ISM2 1", "ISM2 2", "TSMM")


def table(found: dict[str, Any]) -> str:
    """Return a Markdown table with one line per problem.

    Its columns are the microseconds of each version and of cuBLAS, the speedup of the fastest version, and its
    percentage of the floor.
    """
    heads = ("m x n x k", "dtype", *(f"{version} us" for version in VERSIONS), "cuBLAS us", "speed-up", "% of floor")
    lines = ["| " + " | ".join(heads) + " |", "|---|---|" + "---:|" * (len(heads) - 2)]
    problems: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in found["rows"]:
        problems.setdefault((row["m"], row["n"], row["k"], row["dtype"]), {})[row["version"]] = row
    for (m, n, k, dtype), rows in problems.items():
        fastest = min((rows[version] for version in VERSIONS if version in rows), key=lambda row: row["us"])
        times = [f"**{rows[v]['us']:.0f}**" if rows[v] is fastest else f"{rows[v]['us']:.0f}" for v in VERSIONS]
        cublas = rows["cuBLAS"]["us"]
        share = f"{fastest['percent_of_floor']:.0f}"
        cells = [f"{m} x {n} x {k}", dtype, *times, f"{cublas:.0f}", f"{cublas / fastest['us']:.2f}", share]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def provenance(found: Mapping[str, Any]) -> str:
    """Return one sentence about the device, the versions and the measured peak rates.

    A file with only the rates of f32 and f64 is older than the measurement of tensor cores.
    """
    vendor = "no vendor" if found["cublas"] is None else f"cuBLAS {found['cublas']}"
    of_f64 = "by FMA" if found["gflops"].keys() == {"f32", "f64"} else "on the tensor cores"
    return (
        f"{found['device']}, driver {found['driver']}, {found['toolkit']}, {vendor}, {found['date']};"
        f" measured ceilings: read {found['read_gbytes_per_s'] / 1e3:.2f} TB/s, copy"
        f" {found['copy_gbytes_per_s'] / 1e3:.2f} TB/s,"
        f" {found['gflops']['f32'] / 1e3:.1f} TFLOP/s by FMA in f32"
        f" and {found['gflops']['f64'] / 1e3:.1f} {of_f64} in f64."
    )


@click.command(cls=Command)
@click.argument("path", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(path: Path) -> None:
    """Print the table, and the device and versions of the numbers."""
    try:
        found = json.loads(path.read_text())
        text = f"{provenance(found)}\n\n{table(found)}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
        raise InputError(f"{path} is no result file of beside_cublas ({why}): name one") from None
    click.echo(text)


if __name__ == "__main__":
    main()
