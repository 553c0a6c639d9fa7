"""The numbers on the pages are those of the result files that they name."""

import csv
import json
from pathlib import Path

import pytest

from benchmarks.cells_csv import HEADS
from benchmarks.redraw import BESIDE, CELLS, GEMV, GENERAL, MINPLUS, RESULT, redrawn
from benchmarks.result_file import read
from tests.planting import GPU, bugs
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


def test_trust_names_the_number_of_planted_bugs() -> None:
    text = " ".join((ROOT / "docs/trust.md").read_text().split())
    on_host = [bug for bug in bugs() if bug.way != GPU]
    classes = [bug for bug in bugs() if bug.kind]
    assert f"lists {len(bugs())} bugs; a CPU can detect {len(on_host)} of these" in text
    assert f"{len(classes)} of the bugs belong to a class." in text
    assert f"can detect {len(set(classes) & set(on_host))} of the {len(classes)} bugs" in text


def test_a_region_that_nothing_is_drawn_for_is_said() -> None:
    with pytest.raises(InputError, match="nothing is drawn for 'other'"):
        redrawn("<!-- drawn: other -->\n\nx\n\n<!-- end -->", {})
