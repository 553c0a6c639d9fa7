"""The report in Chromium: what is drawn, what a reader can do, and that nothing of a database is obeyed."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tsm2_tune
from tests.fabricated import tuning_run
from tests.reported import DETAIL, DEVICE, OTHER, hostile_run, long_names, tried

pytestmark = pytest.mark.slow

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
READY_MS = 120_000  # on a busy machine
INNER_PIXELS = 680  # the page's width without its margins
MOST_TABS = 100
FOCUSABLE = "a[href], button, select, input, summary, [tabindex='0']"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The system's Chromium; skips where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    pytest.importorskip("vl_convert", reason="vl-convert-python is not installed: pip install 'tsm2-tune[report]'")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        yield driver.chromium.launch(executable_path=path, args=["--no-sandbox"])


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of two devices, the name of one of which is hostile, beside another database."""
    folder = tmp_path_factory.mktemp("report")
    path = tried(folder / "results.db", hostile_run())
    tried(path, tuning_run("NVIDIA H100"), scale=1.5)
    output = folder / "report.html"
    tsm2_tune.report(path, output=output, compare=tried(folder / "other.db", tuning_run(), scale=2.0))
    return output


@pytest.fixture(scope="module")
def long_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a database with long names, beside another one."""
    folder = tmp_path_factory.mktemp("long")
    output = folder / "report.html"
    path = long_names(folder / "results.db")
    tsm2_tune.report(path, output=output, compare=path)
    return output


@pytest.fixture
def opened(browser: Any, report: Path) -> Iterator[Callable[..., Any]]:
    """Open a page and wait until it is ready. It must send no request and write nothing to the console."""
    said: list[str] = []

    def open_(path: Path = report, **options: Any) -> Any:
        page = browser.new_page(**options)
        page.on("console", lambda one: said.append(one.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda one: said.append(one.message))
        page.on("request", lambda one: said.append(one.url) if one.url != path.as_uri() else None)
        page.goto(path.as_uri())
        page.wait_for_selector("body[data-ready]", timeout=READY_MS)
        return page

    yield open_
    assert said == []


def colour(page: Any, selector: str, name: str) -> tuple[int, ...]:
    text = page.eval_on_selector(selector, f"one => getComputedStyle(one).{name}")
    return tuple(int(one) for one in text.strip("rgb()").split(","))


def test_every_chart_is_drawn_and_hostile_texts_are_texts(opened: Callable[..., Any]) -> None:
    page = opened()
    assert page.locator(".chart").count() == 5
    for place in page.locator(".chart").all():
        assert place.locator("svg").count() == 1
        assert place.locator("svg path").count() > 5
    assert page.title().endswith("results.db - tsm2-tune report")
    assert page.locator("img, iframe, object, #bold, main i, main u").count() == 0
    assert page.locator("script").count() == 3
    assert page.get_by_text(DEVICE, exact=False).count() > 0
    page.select_option("#trial-outcome", "wrong-result")
    cell = page.locator("#trial-table tbody tr:first-child td:last-child")
    assert cell.evaluate("one => one.textContent").startswith(DETAIL[:500])
    assert cell.evaluate("one => one.querySelectorAll(':not(wbr)').length") == 0
    names = page.locator("#choices-roofline select").first.locator("option").all_text_contents()
    assert set(names) == {DEVICE, "NVIDIA H100"}
    page.locator("#chart-gains .mark-symbol.role-mark path").first.hover(force=True)
    page.wait_for_selector("#vg-tooltip-element.visible")
    assert page.locator("#vg-tooltip-element td.value", has_text="</script>").count() == 1
    assert page.locator("#vg-tooltip-element :not(table, tbody, tr, td)").count() == 0


def test_a_reader_sorts_filters_and_chooses(opened: Callable[..., Any]) -> None:
    page = opened()
    head = page.locator("#best th", has_text="median us")
    place = head.evaluate("one => one.cellIndex")
    head.locator("button").focus()
    for order, medians in (("ascending", [50.0, 75.0, 430.0, 645.0]), ("descending", [645.0, 430.0, 75.0, 50.0])):
        page.keyboard.press("Enter")
        assert head.get_attribute("aria-sort") == order
        numbers = "(rows, place) => rows.map((row) => Number(row.cells[place].dataset.value))"
        assert page.locator("#best tbody tr").evaluate_all(numbers, place) == medians

    def matching(choose: Callable[[str, str], object], selector: str, value: str) -> str:
        choose(selector, value)
        return str(page.locator("#trial-count").text_content()).partition(" match")[0]

    assert matching(page.select_option, "#trial-problem", OTHER.text) == "4 of 20 trials"
    assert matching(page.select_option, "#trial-outcome", "ok") == "2 of 20 trials"
    assert matching(page.fill, "#trial-text", "THREADS=128 h100") == "1 of 20 trials"
    assert matching(page.fill, "#trial-text", "nothing of this") == "0 of 20 trials"
    assert page.locator("#trial-table tbody tr").count() == 0

    def cells(part: str) -> list[list[str]]:
        rows = page.locator(f"#numbers-heat-map {part} tr").all()
        return [row.locator("th, td").all_text_contents() for row in rows]

    assert page.locator("#map-of option").count() == 2
    page.locator("#maps summary").click()
    page.wait_for_selector("#numbers-heat-map table")
    assert cells("thead") == [["threads", "columns", "least us", "trials"]]
    page.select_option("#map-x", "columns")
    page.select_option("#map-y", "threads")
    assert cells("thead") == [["columns", "threads", "least us", "trials"]]
    assert sorted(cells("tbody")) == sorted(
        [columns, threads, str(500 - 20 * number - int(columns)), "1"]
        for number, threads in enumerate(("64", "128", "256", "512"))
        for columns in ("4", "8")
    )
    page.locator("#roofline summary").click()
    page.wait_for_selector("#numbers-roofline table")
    kinds = page.locator("#numbers-roofline tbody td:nth-child(2)").all_text_contents()
    assert {kind: kinds.count(kind) for kind in kinds} == {"trial": 18, "winner": 4, "cuBLAS": 4}

    search, against = page.locator("#choices-convergence select").all()
    choose: Callable[[], object]
    for choose in (lambda: search.select_option(index=2), lambda: against.select_option("seconds")):
        before = page.locator("#chart-convergence svg").inner_html()
        choose()
        chart = "document.querySelector('#chart-convergence svg')"
        page.wait_for_function(f"before => {chart} && {chart}.innerHTML !== before", arg=before)


@pytest.mark.parametrize("width", [320, 1280])
def test_the_page_fits_its_window(opened: Callable[..., Any], width: int) -> None:
    page = opened(viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("name", ["report", "long_report"])
def test_no_table_scrolls_sideways(opened: Callable[..., Any], name: str, request: pytest.FixtureRequest) -> None:
    page = opened(request.getfixturevalue(name), viewport={"width": 1280, "height": 800})
    page.locator("details").evaluate_all("all => all.forEach((one) => { one.open = true; })")
    page.wait_for_function("[...document.querySelectorAll('details')].every((one) => one.querySelector('table'))")
    tables = page.locator(".scroll").evaluate_all(
        "all => all.map((one) => [one.ariaLabel, one.scrollWidth - one.clientWidth, one.clientWidth])"
    )
    assert len(tables) > 7
    assert [one for one in tables if one[1] > 0 or one[2] < 1000] == []


def downloaded(page: Any, button: str) -> list[dict[str, str]]:
    with page.expect_download() as waiting:
        page.click(button)
    content = Path(waiting.value.path()).read_bytes()
    assert content.endswith(b"\r\n")
    return list(csv.DictReader(io.StringIO(content.decode(), newline="")))


def test_a_csv_file_has_plain_numbers_and_no_formula(opened: Callable[..., Any]) -> None:
    cells = {
        "=1+1": '"\'=1+1"', "+1": '"\'+1"', "-1,5": '"\'-1,5"', "@x": '"\'@x"', "\t=": '"\'\t="',
        'a "b", c': '"a ""b"", c"', "spread %": '"spread %"', "": '""',
        0.1 + 0.2: "0.3", -1234567.25: "-1234570", 12345678: "12345678", None: "",
    }  # fmt: skip
    page = opened()
    rows = page.evaluate("values => csvOf(values.map((value) => [value]))", list(cells))
    assert rows.split("\r\n") == [*cells.values(), ""]
    winners = downloaded(page, "#winners-csv")
    assert len(winners) == 4
    first = next(row for row in winners if row["problem"] == OTHER.text and row["device"] == DEVICE)
    assert (first["median us"], first["spread %"], first["x cuBLAS"]) == ("50", "2", "0.8")
    page.select_option("#trial-outcome", "wrong-result")
    trials = downloaded(page, "#trials-csv")
    assert [row["device"] for row in trials] == [DEVICE, "NVIDIA H100"]
    assert {(row["us"], row["spread %"]) for row in trials} == {("", "")}
    assert all(row["reason"].startswith(DETAIL[:100]) for row in trials)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_dark_where_readers_are_and_printed_on_white(opened: Callable[..., Any], scheme: str) -> None:
    page = opened(color_scheme=scheme)
    ground, ink = colour(page, "body", "backgroundColor"), colour(page, "body", "color")
    assert (sum(ground) < sum(ink)) is (scheme == "dark")
    assert colour(page, "#chart-gains .role-axis-label text", "fill") == ink
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python")
    found = axe.Axe().run(page).response
    assert (found["violations"], len(found["passes"]) > 30) == ([], True)
    page.emulate_media(media="print")
    assert colour(page, "body", "backgroundColor") == (255, 255, 255)
    assert colour(page, "#chart-gains .role-axis-label text", "fill") == (0, 0, 0)
    assert not page.locator("#trial-text").is_visible()
    page.set_viewport_size({"width": INNER_PIXELS, "height": 1000})
    assert page.evaluate("document.documentElement.scrollWidth") <= INNER_PIXELS  # nothing is cut off


def test_every_control_is_reached_by_the_tabulator(opened: Callable[..., Any]) -> None:
    page = opened()
    focusable = page.locator(FOCUSABLE).evaluate_all(
        "all => { const seen = all.filter((one) => one.checkVisibility() && !one.disabled);"
        " seen.forEach((one, number) => { one.dataset.number = number; }); return seen.length; }"
    )
    reached = []
    for _ in range(MOST_TABS):
        page.keyboard.press("Tab")
        number = page.evaluate("document.activeElement.dataset.number")
        if number is None:
            break
        reached.append(int(number))
    assert reached == list(range(focusable))  # in the order of the page
    assert focusable > 20
