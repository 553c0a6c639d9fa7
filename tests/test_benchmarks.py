"""The benches as far as they need no GPU: which cells, what the libraries are told, what is written and drawn."""

from __future__ import annotations

import ctypes
import json
import math
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from benchmarks import versus_cublas
from benchmarks.cells import LAYOUTS, REGIMES, SHAPE_SETS, SMALL_EXTENT, Cell, cells, chosen, op_of, shapes_of
from benchmarks.contest import Contest, Opponent, row_of
from benchmarks.cublas import (
    CONJUGATE_TRANSPOSE,
    ELEMENTS,
    NO_TRANSPOSE,
    TRANSPOSE,
    CublasError,
    gemm_of,
    operations,
)
from benchmarks.cublaslt import Algorithm, HeuristicResult, alignment
from benchmarks.headline import geometric_mean, headline, in_set, means, means_by_type, means_text, small_products
from benchmarks.join import joined
from benchmarks.plot import groups_of
from benchmarks.replay import streamed
from benchmarks.result_file import ResultFile, read
from benchmarks.versus_cublas import (
    QUICK,
    Selection,
    line_of,
    measure_cells,
    part_of,
    refuse_less_precision,
    troubles,
)
from benchmarks.winner import CELLS_AHEAD, Skipped, Winner, planned, room_bytes, space_of
from tests.fabricated import configuration, measurement
from tsm2_tune.errors import InputError
from tsm2_tune.generator.problem import DTYPES, Problem
from tsm2_tune.generator.profiles import PROFILES
from tsm2_tune.generator.space import SearchSpace
from tsm2_tune.tuner.operands import Operands
from tsm2_tune.tuner.trial import Verdict
from tsm2_tune.tuner.tune import Tuner

FACTS = {
    "device": "NVIDIA H200",
    "driver": "580",
    "toolkit": "nvcc 13.0",
    "flags": "-arch=sm_90",
    "cublas": 130100,
    "cublaslt": 130100,
    "tsm2_tune": "0.1.0",
    "complete": False,
}
RIGHT = Verdict(True, 0.1, "every element right")
WRONG = Verdict(False, math.inf, "C[0, 0] is wrong")
BIG = Cell("R", "column", Problem(20480, 8, 20480, "f32"))
SMALL = Cell("L", "row", Problem(10_000, 8, 8, "f64", "ttt"))


def row(cell: Cell = BIG, *, ours: float = 400.0, lt: float | None = 480.0, verdict: Verdict = RIGHT) -> Any:
    """A measured cell: cuBLAS takes 500 us, the floor is 380 us."""
    launch = pytest.fail
    winner = Winner(configuration(), kept=100, outcomes={"ok": 20})
    found = {"ours": measurement(ours), "cublas": measurement(500.0)}
    opponents = {"cublas": Opponent(launch, right=True, timed=1)}
    if lt is not None:
        found["cublaslt"] = measurement(lt)
        opponents["cublaslt"] = Opponent(launch, right=True, timed=8)
    return row_of(cell, winner, found, opponents, verdict, 380.0)


# Cells


def test_each_regime_has_its_long_dimension() -> None:
    for m, n, k in shapes_of("R", "full"):
        assert m in (10240, 15360, 20480, 25600, 30720)
        assert m == k or (m == 15360 and k in (1920, 3840, 7680))
        assert n <= 64
    assert all(m >= 10_000 and max(n, k) <= 64 for m, n, k in shapes_of("L", "full"))
    assert all(k >= 10_000 and max(m, n) <= 64 for m, n, k in shapes_of("T", "full"))


@pytest.mark.parametrize("regime", REGIMES)
def test_the_sets_are_nested_and_without_repetition(regime: Any) -> None:
    quick, head, full = (shapes_of(regime, shape_set) for shape_set in SHAPE_SETS)
    for shapes in (quick, head, full):
        assert len(set(shapes)) == len(shapes)
    assert set(head) < set(full)
    assert set(quick) < set(full)


def test_t_is_the_transpose_of_l() -> None:
    swapped = {(k, n, m) for m, n, k in shapes_of("L", "full")}
    assert swapped == set(shapes_of("T", "full"))


def test_cells_are_the_product_of_the_selection() -> None:
    found = cells(REGIMES, LAYOUTS, ("f32", "f64"), "quick")
    assert len(found) == 2 * 2 * sum(len(shapes_of(regime, "quick")) for regime in REGIMES)
    assert len({cell.text for cell in found}) == len(found)


def test_small_cells_are_those_that_starting_a_kernel_dominates() -> None:
    for cell in cells(REGIMES, LAYOUTS, ("f32",), "full"):
        assert cell.small == (cell.regime != "R" and max(cell.problem.m, cell.problem.k) <= SMALL_EXTENT)


def test_words_are_checked() -> None:
    assert chosen("R, T,R", REGIMES, "regime") == ("R", "T")
    with pytest.raises(InputError, match="unknown regime 'X': expected one of R, L, T"):
        chosen("R,X", REGIMES, "regime")
    with pytest.raises(InputError, match="no layout in ' ,'"):
        chosen(" ,", LAYOUTS, "layout")


# What the libraries are told


def stored(matrix: np.ndarray[Any, Any], letter: str) -> np.ndarray[Any, Any]:
    """The column-major matrix in memory whose letter gives `matrix`."""
    return {"n": matrix, "t": matrix.T, "c": matrix.conj().T, "j": matrix.conj()}[letter]


def applied(operation: int, matrix: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return {NO_TRANSPOSE: matrix, TRANSPOSE: matrix.T, CONJUGATE_TRANSPOSE: matrix.conj().T}[operation]


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("op", ["".join(letters) for letters in product("ntcj", "ntcj", ("", "t"))])
def test_blas_is_told_the_same_product(op: str, is_complex: bool) -> None:
    random = np.random.default_rng(1)
    a, b = random.normal(size=(5, 3)), random.normal(size=(3, 4))
    if is_complex:
        a, b = a + 1j * random.normal(size=a.shape), b + 1j * random.normal(size=b.shape)
    conjugated = "c" if len(op) == 3 else "j"  # without a transpose, as BLAS would meet it
    if is_complex and conjugated in op[:2]:
        with pytest.raises(CublasError, match="conjugates only what it transposes"):
            operations(op, is_complex=True)
        return
    first, second = operations(op, is_complex=is_complex)
    in_memory = [stored(a, op[0]), stored(b, op[1])]
    if len(op) == 3:
        in_memory.reverse()
    c = applied(first, in_memory[0]) @ applied(second, in_memory[1])
    np.testing.assert_allclose(c.T if len(op) == 3 else c, a @ b)


@pytest.mark.parametrize("op", ["nn", "tn", "nt", "ttt", "ntt"])
def test_the_matrices_in_memory_have_the_stored_shapes(op: str) -> None:
    problem = Problem(500, 7, 30, "f64", op)
    operands = {
        name: SimpleNamespace(address=address, filling=SimpleNamespace(leading_dimension=rows + 3))
        for address, (name, (rows, _)) in enumerate(problem.stored.items())
    }
    lying = SimpleNamespace(problem=problem, a=operands["A"], b=operands["B"], c=operands["C"])
    gemm = gemm_of(cast(Operands, lying))
    swapped = problem.row_major_c
    assert gemm.stored_a == problem.stored["B" if swapped else "A"]
    assert gemm.stored_b == problem.stored["A" if swapped else "B"]
    assert (gemm.m, gemm.n) == problem.stored["C"]
    assert (gemm.a, gemm.b, gemm.c) == ((1, 0, 2) if swapped else (0, 1, 2))
    assert (gemm.lda, gemm.ldb) == (gemm.stored_a[0] + 3, gemm.stored_b[0] + 3)
    assert gemm.ldc == gemm.m + 3


def test_cublas_has_every_cell_and_element_type() -> None:
    assert set(DTYPES) <= set(ELEMENTS)
    for regime, layout, (name, element) in product(REGIMES, LAYOUTS, ELEMENTS.items()):
        operations(op_of(regime, layout, name), is_complex=element.is_complex)


def test_structures_have_the_sizes_of_the_header() -> None:
    assert ctypes.sizeof(Algorithm) == 64
    assert ctypes.sizeof(HeuristicResult) == 96
    assert HeuristicResult.workspace_bytes.offset == 64
    assert HeuristicResult.state.offset == 72
    assert HeuristicResult.waves.offset == 76


def test_the_heuristic_is_told_how_the_operands_are_aligned() -> None:
    assert [alignment(address) for address in (0, 4, 24, 4096, 4096 + 16)] == [256, 4, 8, 256, 16]


def test_nothing_is_captured_where_the_stream_cannot_be_chosen() -> None:
    assert streamed(cast(Any, SimpleNamespace())) is None
    assert streamed(cast(Any, SimpleNamespace(stream=None))) is not None


@pytest.mark.parametrize("name", versus_cublas.LESS_PRECISE)
def test_less_than_the_element_type_is_refused(name: str) -> None:
    refuse_less_precision({"PATH": "/bin", name: "0"})
    with pytest.raises(InputError, match=f"{name} = 1"):
        refuse_less_precision({name: "1"})


# What is skipped


def test_what_does_not_fit_is_skipped() -> None:
    limits = PROFILES["h200"]
    assert space_of(Problem(10_000_000, 8, 8, "f32"), limits).kept
    with pytest.raises(Skipped, match=r"needs 95\.4 GiB of device memory, of which 6\.0 GiB can be had"):
        space_of(Problem(100_000_000, 64, 64, "f64"), PROFILES["k40c"])
    assert room_bytes(limits) < limits.memory_bytes


def test_what_no_family_computes_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tsm2_tune.generator.space.FAMILIES", {})
    with pytest.raises(Skipped, match="no kernel family computes this product"):
        space_of(Problem(100, 8, 8, "f32"), PROFILES["h200"])


# Rows and their file


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


def test_parts_are_all_cells_each_once() -> None:
    whole = SELECTION.cells
    parts = [replace(SELECTION, part=part_of(f"{number}/3")) for number in (1, 2, 3)]
    assert sorted(cell.text for part in parts for cell in part.cells) == sorted(cell.text for cell in whole)
    assert parts[1].command.endswith(" --part 2/3")
    for text in ("0/3", "4/3", "1", "1/0", "a/b", ""):
        with pytest.raises(InputError, match="expected such as 1/4"):
            part_of(text)


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", '{"rows": 1}', '{"rows": [1]}', '{"rows": [{}]}', '{"rows": [], "earlier_runs": null}'],
)
def test_what_is_no_result_file_is_said(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"is no result file|a row that is no cell's"):
        read(path)


@pytest.mark.parametrize("run", [-1, 1, "x"])
def test_a_row_is_of_a_run_of_its_file(tmp_path: Path, run: Any) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps({"rows": [{**row(), "run": run}]}))
    with pytest.raises(InputError, match="a row that is no cell's"):
        read(path)


# The run


SELECTION = Selection(("R",), ("column",), ("f32",), "quick", seconds=1.0, time_limit=None)


class FakeContest:
    """Measures nothing, and is out of memory for n = 8."""

    def row(self, cell: Cell, winner: Winner) -> dict[str, Any]:
        if cell.problem.n == 8:
            raise Skipped("no room for 1 bytes of device memory")
        return cast(dict[str, Any], row(cell))


@pytest.fixture
def ten_seconds_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run starts at 0, and each cell takes 10 s by the clock that the run looks at."""
    now = [0.0]

    def tuned(tuner: Tuner, space: SearchSpace) -> Winner:
        now[0] += 10.0
        return Winner(configuration(), 1, {"ok": 1})

    monkeypatch.setattr("benchmarks.versus_cublas.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("benchmarks.versus_cublas.planned", lambda tuner, cells: ((cell, None) for cell in cells))
    monkeypatch.setattr("benchmarks.versus_cublas.tuned", tuned)


def run_of(selection: Selection, path: Path) -> tuple[bool, ResultFile]:
    result = ResultFile(path, dict(FACTS))
    contest = cast(Contest, FakeContest())
    return measure_cells(cast(Tuner, None), contest, result, selection, start=0.0), result


def test_compilers_work_for_the_cells_to_come() -> None:
    compiled: list[str] = []
    tuner = SimpleNamespace(
        target=SimpleNamespace(limits=PROFILES["h200"]),
        compile_ahead=lambda space, count: compiled.append(space.problem.text),
    )
    cells = [BIG, Cell("R", "column", Problem(2**31 - 1, 1, 2**31 - 1, "f64")), *[SMALL] * 5]
    found = []
    for number, (cell, space) in enumerate(planned(cast(Tuner, tuner), cells)):
        found.append((cell, isinstance(space, Skipped)))
        assert len(compiled) == min(number + CELLS_AHEAD, len(cells) - 1)  # one is too large
    assert found == [(cell, number == 1) for number, cell in enumerate(cells)]


@pytest.mark.usefixtures("ten_seconds_a_cell")
def test_every_cell_is_measured_or_skipped(tmp_path: Path) -> None:
    complete, result = run_of(SELECTION, tmp_path / "result.json")
    assert complete
    assert [item["n"] for item in result.rows] == [2, 16, 32]
    assert [item["n"] for item in result.skipped] == [8]
    assert read(result.path)["rows"] == result.rows


@pytest.mark.usefixtures("ten_seconds_a_cell")
def test_no_cell_is_begun_that_would_pass_the_time_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limited = Selection(("R",), ("column",), ("f32",), "quick", seconds=1.0, time_limit=25.0)
    complete, result = run_of(limited, tmp_path / "result.json")
    assert not complete
    assert len(result.rows) + len(result.skipped) == 2
    assert "2 cells to go" in capsys.readouterr().out


def test_the_command_names_no_path() -> None:
    assert SELECTION.command == (
        "python -m benchmarks.versus_cublas --regime R --layout column --dtype f32 --shapes-of quick --seconds 1"
    )


def test_quick_takes_about_two_minutes() -> None:
    count = len(cells(REGIMES, tuple(QUICK.layouts.split(",")), ("f32", "f64"), "quick"))  # type: ignore[arg-type]
    assert count * (QUICK.seconds + 1.5) < 130


def test_a_wrong_winner_is_no_success() -> None:
    assert troubles([row()]) == ""
    assert troubles([]) == "no cell was measured"
    assert troubles([row(), row(verdict=WRONG)]) == "wrong results of 1 winners: R 20480x8x20480:f32"
    assert "WRONG: C[0, 0] is wrong" in line_of(row(verdict=WRONG))


# The tables


def test_the_headline_has_a_line_a_cell() -> None:
    lines = headline([row()]).splitlines()
    assert lines[2] == (
        "| R | column | f32 | 20480 x 8 x 20480 | **400** | 500 | 480 | 1.25 | 95 | `tsm2-v3-t128-c8-p4` |"
    )
    assert {line.count("|") for line in lines} == {11}


def test_small_products_are_told_by_their_graphs() -> None:
    graph = {"ours_graph_us": 2.5, "cublas_graph_us": 5.25, "launch_floor_us": 1.5}
    lines = small_products([{**row(SMALL), **graph}, row(BIG)]).splitlines()
    assert lines[2:] == ["| L | row | f64 | 10000 x 8 x 8 | **2.50** | 5.25 | 1.50 | 1.00 |"]
    assert small_products([row(BIG)]) == ""


def test_means_are_geometric_and_leave_small_cells_apart() -> None:
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert geometric_mean([]) is None
    first, second = means([row(ours=250.0), row(ours=1000.0, lt=None), row(SMALL, lt=300.0)])
    assert (first["regime"], first["cells"], first["behind_lt"]) == ("R", 2, 0)
    assert first["cublas"] == pytest.approx(1.0)
    assert first["cublaslt"] == pytest.approx(480 / 250)
    assert (second["regime"], second["behind_lt"]) == ("L small", 1)
    assert "| R | f32 | column | 2 | 1.00 | 1.92 | 0 |" in means_text([row(ours=250.0), row(ours=1000.0, lt=None)])


def test_means_have_a_column_a_type() -> None:
    text = means_by_type([row(), row(SMALL, ours=250.0, lt=200.0)])
    assert text.splitlines()[2:] == ["| R | column | 1.25 | – |", "| L small | row | – | 2.00 (1 of 1) |"]


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
