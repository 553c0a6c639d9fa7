"""The README's numbers are those of the result file that it names."""

import json
from pathlib import Path

from benchmarks.table import provenance, table

ROOT = Path(__file__).parents[1]


def test_the_table_is_drawn_from_the_result_file() -> None:
    readme = (ROOT / "README.md").read_text()
    found = json.loads((ROOT / "benchmarks/results/h200-beside-cublas.json").read_text())
    assert table(found) in readme
    assert provenance(found) in readme
    assert all(row["verified"] in (True, None) for row in found["rows"])
