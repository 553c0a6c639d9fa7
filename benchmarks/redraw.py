"""Regenerate the tables of README and of pages in `docs/`, the pictures and the CSV from the result files.

    python -m benchmarks.redraw

Generated text lies between a line `<!-- drawn: NAME -->` and a line `<!-- end -->`. All other text on the pages is
written by people.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from benchmarks import (
    batch_tables,
    call_tables,
    claims,
    coverage,
    doctor_answers,
    gains,
    gemv,
    general_tables,
    minplus_tables,
    program_tables,
    regret,
    scale,
    scale_simulation,
    unseen_tables,
)  # fmt: skip
from benchmarks.cells_csv import cells_csv
from benchmarks.headline import runs_together
from benchmarks.plot import draw
from benchmarks.result_file import read
from benchmarks.table import provenance, table
from benchmarks.unseen_file import read_unseen
from tsm2_tune.commands.errors import Command
from tsm2_tune.errors import InputError
from tsm2_tune.generator.families import parse_config

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks/results/h200-versus-cublas.json"
CELLS = RESULT.with_suffix(".csv")  # all cells of RESULT
BATCHES = [ROOT / f"benchmarks/results/h200-batches{part}.json" for part in ("", "-searched-again", "-stacks")]
GEMV = ROOT / "benchmarks/results/h200-gemv.json"
GENERAL = ROOT / "benchmarks/results/h200-general.json"
MINPLUS = ROOT / "benchmarks/results/h200-minplus.json"
BESIDE = ROOT / "benchmarks/results/h200-beside-cublas.json"  # the published kernel versions
UNSEEN = ROOT / "benchmarks/results/h100-unseen.json"
UNSEEN_LATER = ROOT / "benchmarks/results/h100-unseen-4.json"  # other random shapes, measured by a later version
UNSEEN_H200 = ROOT / "benchmarks/results/h200-unseen.json.xz"
UNSEEN_H200_LATER = ROOT / "benchmarks/results/h200-unseen-8.json.xz"
TUNED = ROOT / "benchmarks/results/h100-tuned.json"
CALLS = ROOT / "benchmarks/results/h100-call-cost.json"
PROGRAMS = ROOT / "benchmarks/results/h200-programs.json"
PROGRAMS_PICTURE = ROOT / "benchmarks/results/programs.png"
PROGRAMS_CARDS = ("H100", "H200")
PROGRAMS_TUNED = ROOT / "benchmarks/results/h100-programs-tuned.json"
GAINS = ROOT / "benchmarks/results/h100-gains.png"
ALL_GAINS = ROOT / "benchmarks/results/h100-gains-all.png"
DOCTOR, DOCTOR_OF_HOST = (ROOT / f"benchmarks/results/{name}-doctor.json" for name in ("h100", "host"))
REGRET = ROOT / "benchmarks/results/h100-regret.json"
NAMES = (
    "results", "versus_cublas", "gemv", "general", "minplus", "unseen", "kernels-in-python", "programs", "regret",
    "scale", "tuning", "coverage", "batches",
)  # fmt: skip
PAGES = (ROOT / "README.md", *(ROOT / f"docs/{name}.md" for name in NAMES))
CODE = re.compile("`([^`]+)`")
REGION = re.compile(r"(<!-- drawn: ([a-z0-9-]+) -->\n\n).*?(\n\n<!-- end -->)", re.DOTALL)


def drawn(found: dict[str, Any]) -> dict[str, str]:
    """Return {name of a region: Markdown} for the tables beside cuBLAS and cuBLASLt."""
    rows = found["rows"]
    return {"summary": claims.summary(rows), "lost": claims.lost(rows), "runs": runs_together(found)}


def gained(calls: gains.Calls) -> gains.Gains:
    """Return a program's speedups over cuBLAS with these call times."""
    return gains.gains_of(gains.read_tuned(TUNED)[1], read_unseen(UNSEEN_LATER)["rows"], calls)


def all_drawn() -> dict[str, str]:
    """Return the generated regions of all result files, by name."""
    of_vectors, general, minplus = (json.loads(path.read_text(encoding="utf-8")) for path in (GEMV, GENERAL, MINPLUS))
    parts = drawn(read(RESULT)) | gemv.drawn(of_vectors) | general_tables.tables(general)
    gained_at_all, by_kernels = gained(gains.Calls.of(CALLS)), gained(gains.NO_CALLS)
    parts |= {"unseen": unseen_tables.tables(read_unseen(UNSEEN)), "gains": gains.table(gained_at_all, by_kernels)}
    parts |= {"reached": gains.short_table(gained_at_all)}
    later = {"unseen-later": UNSEEN_LATER, "unseen-h200": UNSEEN_H200, "unseen-h200-later": UNSEEN_H200_LATER}
    parts |= {name: unseen_tables.summed_up(read_unseen(path)) for name, path in later.items()}
    beside = json.loads(BESIDE.read_text(encoding="utf-8"))
    parts |= {"published": f"{table(beside)}\n\n{provenance(beside)} Every kernel in the table was verified."}
    parts |= {"calls": call_tables.table(call_tables.read_calls(CALLS))}
    parts |= scale.drawn(scale.Campaign(10_000, 1_000, 5), scale.recorded())
    parts |= {"scale-simulated": scale_simulation.table(scale.recorded())}
    parts |= {"programs": program_tables.table(*of_programs(), PROGRAMS_CARDS)}
    parts |= doctor_answers.drawn(DOCTOR, DOCTOR_OF_HOST)
    parts |= {"coverage": coverage.table(), "batches": batch_tables.table(batch_tables.read(BATCHES))}
    parts |= regret.drawn(json.loads(REGRET.read_text(encoding="utf-8")))
    return {name: CODE.sub(_respelt, text) for name, text in (parts | minplus_tables.tables(minplus)).items()}


def _respelt(code: re.Match[str]) -> str:
    """Return a configuration in this version's notation; return other code unchanged."""
    config = parse_config(code[1])
    return code[0] if config is None else f"`{config.text}`"


def of_programs() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the timed programs, with kernels tuned for them, and with kernels of other shapes."""
    return program_tables.read_programs(PROGRAMS_TUNED), program_tables.read_programs(PROGRAMS)


def redrawn(page: str, parts: Mapping[str, str]) -> str:
    """Return the page with its regions regenerated. Raise InputError for a region without generated text."""

    def region(match: re.Match[str]) -> str:
        if match[2] not in parts:
            raise InputError(f"nothing is drawn for {match[2]!r}: expected one of {', '.join(parts)}")
        return match[1] + parts[match[2]] + match[3]

    return REGION.sub(region, page)


@click.command(cls=Command)
def main() -> None:
    """Write the pages, the pictures and the CSV."""
    parts, found = all_drawn(), read(RESULT)
    pages = {path: redrawn(path.read_text(encoding="utf-8"), parts) for path in PAGES}
    pages[CELLS] = cells_csv(found["rows"])
    draw(found, RESULT.with_suffix(".png"))
    of_calls, heading = gained(gains.Calls.of(CALLS)), gains.title(gains.read_tuned(TUNED)[0])
    gains.draw(of_calls, heading, GAINS, (gains.TUNED,))
    gains.draw(of_calls, heading, ALL_GAINS)
    program_tables.draw(*of_programs(), PROGRAMS_CARDS, PROGRAMS_PICTURE)
    for path, page in pages.items():
        same = path.exists() and page == path.read_text(encoding="utf-8")
        path.write_text(page, encoding="utf-8")
        click.echo(f"{path.relative_to(ROOT)}: {'as before' if same else 'drawn anew'}")


if __name__ == "__main__":
    main()
