"""The rows of the bench, their file, and the tables drawn from it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import tsm2_tune
from benchmarks.cells import Cell, in_set
from benchmarks.headline import (
    geometric_mean,
    gram,
    headline,
    means,
    means_text,
    products,
    runs_together,
    small_products,
)
from benchmarks.join import joined
from benchmarks.plot import DOTS_PER_INCH, POINTS, draw, groups_of, long_text, narrow_text, shown
from benchmarks.result_file import ResultFile, read, sources_digest
from benchmarks.versus_cublas import line_of
from tests.fabricated_rows import BIG, FACTS, SMALL, row
from tsm2_tune.errors import InputError
from tsm2_tune.generator.problem import Problem


def test_a_row_has_what_the_tables_need() -> None:
    found = row()
    assert found["regime"] == "R"
    assert found["percent_of_floor"] == pytest.approx(95.0)
    assert (found["ours_low_us"], found["ours_us"], found["ours_high_us"]) == (399.0, 400.0, 401.0)
    assert found["parameters"] == {"version": "v3", "threads": 128, "columns": 8, "prefetch": 4}
    assert found["verified"] is True
    assert found["sm_clock_mhz"] == 1980.0
    assert json.loads(json.dumps(found)) == found


def test_an_opponent_without_the_product_leaves_a_gap() -> None:
    found = row(lt=None)
    assert (found["cublaslt_us"], found["cublaslt_verified"], found["cublaslt_algorithms"]) == (None, None, 0)
    assert "Lt                 none" in line_of(found)


def test_the_file_is_whole_after_every_row(tmp_path: Path) -> None:
    result = ResultFile(tmp_path / "result.json", FACTS)
    for count, cell in enumerate((BIG, SMALL), 1):
        result.add(row(cell))
        assert len(read(result.path)["rows"]) == count
    result.skip(BIG.record, "too big")
    found = read(result.path)
    assert found["skipped"] == [{**BIG.record, "skipped": "too big"}]
    assert {name: found[name] for name in FACTS} == FACTS
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
    assert sum(line.startswith('  {"regime"') for line in result.path.read_text().splitlines()) == 3


def test_a_run_goes_on_where_another_ended(tmp_path: Path) -> None:
    first = ResultFile(tmp_path / "result.json", FACTS)
    first.add(row(BIG))
    first.skip(SMALL.record, "no time")
    second = ResultFile(first.path, {**FACTS, "complete": True})
    second.go_on()
    assert second.measured(BIG.record)
    assert not second.measured(SMALL.record)
    second.add(row(SMALL))
    found = read(first.path)
    assert [item["run"] for item in found["rows"]] == [0, 1]
    assert found["earlier_runs"] == [FACTS]
    assert found["skipped"] == []


def test_runs_that_are_not_comparable_share_no_file(tmp_path: Path) -> None:
    ResultFile(tmp_path / "result.json", FACTS).add(row())
    other = ResultFile(tmp_path / "result.json", {**FACTS, "driver": "600"})
    with pytest.raises(InputError, match="measured with driver '580', not '600'"):
        other.go_on()


def test_the_later_of_two_files_replaces_rows(tmp_path: Path) -> None:
    paths = (tmp_path / "one.json", tmp_path / "two.json", tmp_path / "three.json")
    for path, measured in zip(paths, ((BIG,), (BIG, SMALL), (SMALL,)), strict=True):
        result = ResultFile(path, {**FACTS, "command": path.name})
        for cell in measured:
            result.add(row(cell))
    result = joined(paths, tmp_path / "all.json")
    assert [(item["m"], item["run"]) for item in result.rows] == [(BIG.problem.m, 0), (SMALL.problem.m, 1)]
    assert ([run["command"] for run in result.earlier_runs], result.facts["command"]) == (["two.json"], "three.json")
    ResultFile(paths[2], {**FACTS, "driver": "600"}).add(row(SMALL))
    with pytest.raises(InputError, match="measured with driver '600', not '580'"):
        joined(paths, tmp_path / "all.json")


def test_the_digest_of_the_sources_says_which_kernels_were_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = sources_digest()
    copy = tmp_path / "tsm2_tune"
    shutil.copytree(Path(tsm2_tune.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(tsm2_tune, "__file__", str(copy / "__init__.py"))
    assert sources_digest() == known
    template = copy / "templates/gemm/kernel.cu.jinja"
    template.write_text(template.read_text() + "\n")
    assert sources_digest() != known


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", '{"rows": 1}', '{"rows": [1]}', '{"rows": [{}]}', '{"rows": [], "earlier_runs": null}'],
)
def test_what_is_no_result_file_is_said(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"is no result file|no usable"):
        read(path)


@pytest.mark.parametrize("run", [-1, 1, "x"])
def test_a_row_is_of_a_run_of_its_file(tmp_path: Path, run: Any) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps({**FACTS, "rows": [{**row(), "run": run}]}))
    with pytest.raises(InputError, match="no usable run in row 1"):
        read(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((name, None) for name in ("regime", "op", "m", "small", "ours_us", "percent_of_floor", "configuration")),
        *(("regime", value) for value in ("Z", [], {})),
        *(("dtype", value) for value in ("f8", [])),
        *(("m", value) for value in (0, -1, 1.5, "8", True, 10**400)),
        *(("ours_us", value) for value in (0, -1.0, "1", float("nan"), float("inf"), [])),
        *(("cublas_us", value) for value in (0.0, "1")),
        ("launch_floor_us", 1.0),  # without the others of a graph
    ],
)
def test_a_row_that_the_tables_cannot_use_is_named(tmp_path: Path, field: str, value: Any) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps({**FACTS, "rows": [{**row(), "run": 0}, {**row(), "run": 0, field: value}]}))
    before = path.read_bytes()
    result = ResultFile(path, dict(FACTS))
    missing = "ours_graph_us" if field == "launch_floor_us" else field
    for use in (lambda: read(path), result.go_on, lambda: joined((path,), tmp_path / "all.json")):
        with pytest.raises(InputError, match=f"no usable {missing} in row 2: name a file of versus_cublas"):
            use()
    assert path.read_bytes() == before
    path.write_text(json.dumps({**FACTS, "rows": [{**row(), "run": 0}]}))
    assert len(read(path)["rows"]) == 1


@pytest.mark.parametrize("name", ["command", "date", "gflops", "device"])
def test_a_run_without_its_facts_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / "other.json"
    without = {key: value for key, value in FACTS.items() if key != name}
    for content in ({**without, "rows": []}, {**FACTS, "rows": [], "earlier_runs": [without]}):
        path.write_text(json.dumps(content))
        with pytest.raises(InputError, match=f"no usable {name} of a run"):
            read(path)


def test_json_that_is_nested_without_end_is_no_result_file(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text('{"rows": ' + "[" * 200_000)
    with pytest.raises(InputError, match="is no result file"):
        read(path)


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = ResultFile(tmp_path / "result.json", FACTS)
    result.add(row())
    before = result.path.read_bytes()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        result.add(row(SMALL))
    assert result.path.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


# The tables


def test_the_headline_has_a_line_a_cell() -> None:
    lines = headline([row()]).splitlines()
    times = "**400** | 500 | 480 | 1.20 | 410 | 1.20 | 95"
    assert lines[2] == (
        f"| R | column | f32 | 20480 x 8 x 20480 | {times} | `tsm2:version=v3,threads=128,columns=8,prefetch=4` |"
    )
    assert {line.count("|") for line in lines} == {13}


def test_a_file_without_dirty_times_has_no_columns_for_them() -> None:
    before = {name: value for name, value in row().items() if "dirty" not in name}
    assert headline([before]).splitlines()[2] == (
        "| R | column | f32 | 20480 x 8 x 20480 | **400** | 500 | 480 | 1.20 | 95 |"
        " `tsm2:version=v3,threads=128,columns=8,prefetch=4` |"
    )
    assert "dirty" not in means_text([before])
    assert "| 410 | 1.20 |" in headline([row(), before])
    assert "| 1.20 | – | – | 95 |" in headline([row(), before])


def test_small_products_are_told_by_their_graphs() -> None:
    graph = {"ours_graph_us": 2.5, "cublas_graph_us": 5.25, "launch_floor_us": 1.5}
    lines = small_products([{**row(SMALL), **graph}, row(BIG)]).splitlines()
    assert lines[2:] == ["| L | row | f64 | 10000 x 8 x 8 | **2.50** | 5.25 | 1.50 | 1.00 |"]
    assert small_products([row(BIG)]) == ""


def test_a_matrix_times_itself_has_a_table_of_its_own() -> None:
    square = row(Cell("G", "row", Problem(16, 16, 10_000_000, "f64", "nxt")))
    assert gram([row()]) == ""
    heads, _, line = gram([row(), square]).splitlines()
    assert " | syrk us | cuBLASLt us | " in heads
    assert line.startswith("| G | row | f64 | 16 x 16 x 10000000 | **400** | 500 | 480 | 1.20 | 410 | 1.20 | 95 | ")
    assert products([row(), row(SMALL), square]) == headline([row()])


def test_means_are_geometric_and_leave_small_cells_apart() -> None:
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert geometric_mean([]) is None
    first, second = means([row(ours=250.0), row(ours=1000.0, lt=None), row(SMALL, lt=300.0)])
    assert (first["regime"], first["cells"], first["behind"]) == ("R", 2, 1)  # cuBLAS, where cuBLASLt has none
    assert first["faster"] == pytest.approx((480 / 250 * 500 / 1000) ** 0.5)
    assert first["cublas"] == pytest.approx(1.0)
    assert first["cublaslt"] == pytest.approx(480 / 250)
    assert (second["regime"], second["behind"]) == ("L small", 1)
    assert "| R | f32 | column | 2 | 0.98 | 1.00 | 1.92 | 1 | 0.98 | 1.00 | 1.88 |" in means_text(
        [row(ours=250.0), row(ours=1000.0, lt=None)]
    )


def test_runs_are_told_together() -> None:
    earlier = {**FACTS, "date": "2026-11-20", "read_gbytes_per_s": 4600.0}
    assert runs_together({**FACTS, "earlier_runs": [earlier], "rows": []}) == (
        "NVIDIA H200, 580, nvcc 13.0, cuBLAS 130100; 2026-11-20 to 2026-11-21, 2 runs. Ceilings: 4.60 to 4.62 TB/s"
        " read, 4.17 TB/s copied, 65.0 TFLOP/s by FMA in f32, 65.0 TFLOP/s on the tensor cores in f64."
    )


def test_the_headline_shows_the_shapes_of_its_set() -> None:
    assert in_set(row(), "headline")
    assert not in_set(row(Cell("R", "column", Problem(20480, 3, 20480, "f32"))), "headline")


def test_the_plot_has_a_panel_for_each_type_layout_and_regime() -> None:
    groups = groups_of([row(Cell("R", "column", Problem(20480, 16, 20480, "f32"))), row(SMALL), row(BIG)])
    assert {place: list(group) for place, group in groups.items()} == {
        ("f32", "column"): ["R"],
        ("f64", "row"): ["L"],
    }
    assert [item["n"] for item in groups["f32", "column"]["R"]] == [8, 16]


def test_the_plot_has_the_headline_shapes() -> None:
    other = row(Cell("R", "column", Problem(20480, 3, 20480, "f32")))
    assert shown([row(), other]) == [row()]
    assert shown([other]) == [other]


def test_the_plot_names_cells_by_few_letters() -> None:
    texts = [
        (narrow_text(found), long_text(found))
        for cell in (
            BIG,
            SMALL,
            Cell("R", "row", Problem(15360, 3, 1920, "f32", "ttt")),
            Cell("L", "column", Problem(10**7, 64, 8, "f32")),
            Cell("T", "column", Problem(4, 16, 10**5, "f32", "tn")),
        )
        for found in (row(cell),)
    ]
    assert texts == [
        ("8", "20480"),
        ("8", "$10^{4}$"),
        ("3", "15360 x 1920"),
        ("8x64", "$10^{7}$"),
        ("4x16", "$10^{5}$"),
    ]


@pytest.mark.slow
def test_letters_of_the_picture_can_be_read(tmp_path: Path) -> None:
    """A code host shows the picture 860 pixels wide."""
    pytest.importorskip("matplotlib")
    draw({**FACTS, "rows": [row(BIG), row(SMALL)]}, tmp_path / "picture.png")
    width = int.from_bytes((tmp_path / "picture.png").read_bytes()[16:20], "big")
    pixels = (POINTS - 1) * DOTS_PER_INCH / 72 * 860 / width
    assert pixels >= 9.5


def test_a_picture_is_png_whatever_its_name(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw({**FACTS, "rows": [row()]}, tmp_path / "picture.foo")
    assert (tmp_path / "picture.foo").read_bytes().startswith(b"\x89PNG")
