"""Join result files of several runs on the same kind of device into one file.

    python -m benchmarks.join part1.json part2.json --output benchmarks/results/h200-versus-cublas.json

If two files contain the same cell, the row of the later file is kept. The field `run` of a row is the number of the
run that measured it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from benchmarks.cells import cell_key, place
from benchmarks.result_file import LISTS, ResultFile, comparable, read
from tsm2_tune.commands.errors import Command
from tsm2_tune.errors import InputError


def joined(paths: tuple[Path, ...], output: Path) -> ResultFile:
    """Return one file of all runs. The facts at its top are those of the last run.

    Runs without a remaining row are dropped. Raise InputError if a file is no result file, or if two files are not
    comparable.
    """
    runs: list[dict[str, Any]] = []
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    skipped: dict[tuple[Any, ...], dict[str, Any]] = {}
    for path in paths:
        found = read(path)
        facts = {name: value for name, value in found.items() if name not in LISTS}
        before = len(runs)
        runs += [*found.get("earlier_runs", []), facts]
        for run in runs[before:]:
            comparable(path, run, runs[0])
        rows |= {cell_key(row): {**row, "run": before + row.get("run", 0)} for row in found["rows"]}
        skipped |= {cell_key(cell): cell for cell in found.get("skipped", [])}
    if not rows:
        raise InputError("no row in any of these files: measure a cell first")
    used = sorted({row["run"] for row in rows.values()})
    result = ResultFile(output, runs[used[-1]])
    result.earlier_runs = [runs[run] for run in used[:-1]]
    result.rows = [{**row, "run": used.index(row["run"])} for row in sorted(rows.values(), key=place)]
    result.skipped = [cell for key, cell in skipped.items() if key not in rows]
    return result


@click.command(cls=Command)
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--output", required=True, type=click.Path(dir_okay=False, path_type=Path))
def main(paths: tuple[Path, ...], output: Path) -> None:
    """Write the rows of all files to one file."""
    result = joined(paths, output)
    try:
        result.write()
    except OSError as error:
        raise InputError(f"{output} cannot be written ({error.strerror}): name another --output") from None
    click.echo(f"{output}: {len(result.rows)} rows of {len(result.earlier_runs) + 1} runs")


if __name__ == "__main__":
    main()
