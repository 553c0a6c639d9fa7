"""The README's numbers are those of the result file that it names."""

import json
from pathlib import Path

from benchmarks.headline import headline, means_text, of_the_readme, runs_of, small_products
from benchmarks.table import provenance, table

ROOT = Path(__file__).parents[1]


def test_the_table_is_drawn_from_the_result_file() -> None:
    readme = (ROOT / "README.md").read_text()
    found = json.loads((ROOT / "benchmarks/results/h200-beside-cublas.json").read_text())
    assert table(found) in readme
    assert provenance(found) in readme
    assert all(row["verified"] in (True, None) for row in found["rows"])


def test_the_headline_is_drawn_from_the_bench() -> None:
    readme, page = (ROOT / "README.md").read_text(), (ROOT / "docs/versus_cublas.md").read_text()
    found = json.loads((ROOT / "benchmarks/results/h200-versus-cublas.json").read_text())
    rows = found["rows"]
    assert headline(of_the_readme(rows)) in readme
    assert means_text(rows) in readme
    assert headline([row for row in rows if not row["small"]]) in page
    assert small_products([row for row in rows if row["small"]]) in page
    assert runs_of(found) in page
    assert all(row["verified"] for row in rows)
