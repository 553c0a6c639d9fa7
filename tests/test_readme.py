"""The numbers on the pages are those of the result files that they name."""

import csv
import importlib
import json
import re
from pathlib import Path

import pytest

from benchmarks.cells_csv import HEADS
from benchmarks.redraw import BESIDE, CELLS, GEMV, GENERAL, MINPLUS, RESULT, redrawn
from benchmarks.result_file import read
from tests.planting import Bug
from tsm2_tune.errors import InputError

ROOT = Path(__file__).parents[1]


def test_what_the_pages_show_was_verified() -> None:
    assert all(row["verified"] for path in (RESULT, GENERAL, MINPLUS) for row in json.loads(path.read_text())["rows"])
    assert all(row["verified"] in (True, None) for row in json.loads(BESIDE.read_text())["rows"])
    of_vectors = json.loads(GEMV.read_text())["rows"]
    assert all(found["verified"] for row in of_vectors for found in row["decompositions"].values())


@pytest.mark.slow
def test_the_csv_has_every_cell_of_the_result_file() -> None:
    text = CELLS.read_text(encoding="utf-8")
    assert len(text.splitlines()) == 1 + len(read(RESULT)["rows"])
    wrong = [
        line
        for line in csv.DictReader(text.splitlines())
        if "false" in (line["cublas_verified"], line["cublaslt_verified"])
    ]
    assert len(wrong) == 6
    assert set(wrong[0]) == set(HEADS)


def test_so_many_bugs_are_planted() -> None:
    said = re.search(r"plant (\d+) bugs,\s+each\s+of\s+which is rejected", (ROOT / "docs/trust.md").read_text())
    assert said is not None
    files = [path for path in (ROOT / "tests").glob("test_*.py") if "tests.planting" in path.read_text()]
    modules = [importlib.import_module(f"tests.{path.stem}") for path in files if path != Path(__file__)]
    tables = (found for module in modules for found in vars(module).values() if isinstance(found, tuple))
    assert int(said[1]) == len({bug for found in tables for bug in found if isinstance(bug, Bug)})


def test_a_region_that_nothing_is_drawn_for_is_said() -> None:
    with pytest.raises(InputError, match="nothing is drawn for 'other'"):
        redrawn("<!-- drawn: other -->\n\nx\n\n<!-- end -->", {})
