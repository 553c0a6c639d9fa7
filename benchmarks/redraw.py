"""Regenerate the tables of README and of pages in `docs/`, the pictures and the CSV from the result files.

    python -m benchmarks.redraw

Generated text lies between a line `<!-- drawn: NAME -->` and a line `<!-- end -->`. All other text on the pages is
written by people.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import click

from benchmarks import (
    batches,
    beside_cublas,
    call_cost,
    claims,
    coverage,
    doctor_answers,
    gains,
    gemv,
    general_tables,
    minplus_tables,
    programs,
    regret,
    scale,
    scale_simulation,
    unseen_tables,
)  # fmt: skip
from benchmarks.plot import draw
from benchmarks.result_file import read
from benchmarks.tables import provenance, runs_together
from tsm2_tune.commands.errors import Command
from tsm2_tune.errors import InputError
from tsm2_tune.generator.families import parse_config

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks/results/h200-versus-cublas.json"
CELLS = RESULT.with_suffix(".csv")  # all cells of RESULT
BATCHES = [
    ROOT / f"benchmarks/results/h200-batches{part}.json"
    for part in ("", "-searched-again", "-larger-tiles", "-padded")
]
GEMV = ROOT / "benchmarks/results/h200-gemv.json"
GENERAL = ROOT / "benchmarks/results/h200-general.json"
MINPLUS = ROOT / "benchmarks/results/h200-minplus.json"
BESIDE = ROOT / "benchmarks/results/h200-beside-cublas.json"  # the published kernel versions
UNSEEN = ROOT / "benchmarks/results/h100-unseen.json"
UNSEEN_LATER = ROOT / "benchmarks/results/h100-unseen-4.json"  # other random shapes, measured by a later version
# By the pretuned kernels; of each element type, the last file that has it counts.
UNSEEN_H200 = [ROOT / f"benchmarks/results/h200-unseen-{seed}.json.xz" for seed in (13, 14)]
TUNED = ROOT / "benchmarks/results/h100-tuned.json"
CALLS = ROOT / "benchmarks/results/h100-call-cost.json"
PROGRAMS = ROOT / "benchmarks/results/h200-programs.json"
PROGRAMS_PICTURE = ROOT / "benchmarks/results/programs.png"
PROGRAMS_GPUS = ("H100", "H200")
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


def json_of(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def of_versus_cublas() -> dict[str, str]:
    """Return the tables beside cuBLAS and cuBLASLt."""
    found = read(RESULT)
    return {
        "summary": claims.summary(found["rows"]),
        "lost": claims.lost(found["rows"]),
        "runs": runs_together(found),
    }


def gained(calls: gains.Calls) -> gains.Gains:
    """Return a program's speedups over cuBLAS with these call times."""
    return gains.gains_of(json_of(TUNED)["best"], read(UNSEEN_LATER)["rows"], calls)


def unseen_rows_of_h200() -> list[dict[str, Any]]:
    """Return the rows of each element type in the last file that has the type."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in UNSEEN_H200:
        rows = read(path)["rows"]
        for name in dict.fromkeys(row["dtype"] for row in rows):
            found[name] = [row for row in rows if row["dtype"] == name]
    return sorted(chain.from_iterable(found.values()), key=lambda row: "RLT".index(row["regime"]))


def of_gains() -> dict[str, str]:
    """Return the table of all speedups of a program's calls, and a short one."""
    of_calls = gained(gains.Calls.of(CALLS))
    return {"gains": gains.table(of_calls, gained(gains.NO_CALLS)), "reached": gains.short_table(of_calls)}


def of_published() -> dict[str, str]:
    """Return the table of the published kernel versions."""
    beside = json_of(BESIDE)
    return {
        "published": f"{beside_cublas.table(beside)}\n\n{provenance(beside)} Every kernel in the table was verified."
    }


# Key: names of regions, separated by spaces. Value: a function that returns {name: Markdown}.
DRAWN: dict[str, Callable[[], dict[str, str]]] = {
    "summary lost runs": of_versus_cublas,
    "gemv-runs gemv-grid gemv-large": lambda: gemv.drawn(read(GEMV)),
    "general-run general-paper general-sizes general-global general-stencil general-forms general-variants":
        lambda: general_tables.tables(read(GENERAL)),
    "minplus-fastest minplus-tried minplus-values": lambda: minplus_tables.tables(json_of(MINPLUS)),
    "unseen": lambda: {"unseen": unseen_tables.tables(read(UNSEEN))},
    "unseen-later": lambda: {"unseen-later": unseen_tables.summed_up(read(UNSEEN_LATER))},
    "unseen-h200": lambda: {"unseen-h200": unseen_tables.as_called(unseen_rows_of_h200())},
    "gains reached": of_gains,
    "published": of_published,
    "calls": lambda: {"calls": call_cost.table(json_of(CALLS))},
    "scale-sizes scale-writes scale-limits": lambda: scale.drawn(scale.Campaign(10_000, 1_000, 5), scale.recorded()),
    "scale-simulated": lambda: {"scale-simulated": scale_simulation.table(scale.recorded())},
    "programs": lambda: {"programs": programs.table(*of_programs(), PROGRAMS_GPUS)},
    "doctor doctor-broken doctor-host": lambda: doctor_answers.drawn(DOCTOR, DOCTOR_OF_HOST),
    "coverage": lambda: {"coverage": coverage.table()},
    "batches": lambda: {"batches": batches.table(batches.best_rows(BATCHES))},
    "regret regret-by-space gain": lambda: regret.drawn(json_of(REGRET)),
}  # fmt: skip


def drawn(names: str) -> dict[str, str]:
    """Return the regions of a key of DRAWN, by name. Configurations are in this version's notation."""
    return {name: CODE.sub(_respelt, text) for name, text in DRAWN[names]().items()}


def _respelt(code: re.Match[str]) -> str:
    """Return a configuration in this version's notation; return other code unchanged."""
    config = parse_config(code[1])
    return code[0] if config is None else f"`{config.text}`"


def of_programs() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return two files of the same programs: with kernels tuned for their shapes, and for other shapes."""
    return json_of(PROGRAMS_TUNED)["programs"], json_of(PROGRAMS)["programs"]


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
    parts, found = dict(chain.from_iterable(drawn(names).items() for names in DRAWN)), read(RESULT)
    pages = {path: redrawn(path.read_text(encoding="utf-8"), parts) for path in PAGES}
    pages[CELLS] = claims.cells_csv(found["rows"])
    draw(found, RESULT.with_suffix(".png"))
    of_calls, heading = gained(gains.Calls.of(CALLS)), gains.title(json_of(TUNED)["best"][0]["device"])
    gains.draw(of_calls, heading, GAINS, (gains.TUNED,))
    gains.draw(of_calls, heading, ALL_GAINS)
    programs.draw(*of_programs(), PROGRAMS_GPUS, PROGRAMS_PICTURE)
    for path, page in pages.items():
        same = path.exists() and page == path.read_text(encoding="utf-8")
        path.write_text(page, encoding="utf-8")
        click.echo(f"{path.relative_to(ROOT)}: {'as before' if same else 'drawn anew'}")


if __name__ == "__main__":
    main()
