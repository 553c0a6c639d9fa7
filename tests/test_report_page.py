"""The report: its page, and what the command refuses."""

from __future__ import annotations

import base64
import hashlib
import re
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import tsm2_tune
from tests.command import refused, run
from tests.databases import database_of
from tests.fabricated import tuning_run
from tests.reported import DETAIL, DEVICE, LIBRARY, OTHER, Page, data_of, page_of, read, tried
from tsm2_tune.errors import pip_install
from tsm2_tune.html.contents import Contents
from tsm2_tune.html.page import page


@pytest.fixture
def without_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that draws nothing, in the place of the one that takes seconds to make."""
    monkeypatch.setitem(
        sys.modules, "vl_convert", SimpleNamespace(javascript_bundle=lambda snippet: LIBRARY + snippet)
    )


@pytest.fixture
def own(path: Path) -> Contents:
    """Return the report's contents of two searches."""
    return read(tried(path, tuning_run()))


def test_the_page_can_be_read_without_seeing_it_and_is_complete(own: Contents) -> None:
    found = page_of(own)
    assert len(found.ids) == len(set(found.ids))
    assert len(found.root.all("h1")) == len(found.root.all("main")) == len(found.root.all("header")) == 1
    for table in found.root.all("table"):
        assert len(table.all("caption")) == 1
        assert all(one.attributes.get("scope") in ("row", "col") for one in table.all("th"))
    for element in found.elements():
        label = element.attributes.get("aria-labelledby")
        assert label is None or label in found.ids
        assert not {"src", "action", "data"} & element.attributes.keys()  # loads nothing
    for section in found.root.all("section"):
        if any(one.attributes.get("role") == "img" for one in section.all("div")):
            assert section.all("table")  # its numbers
    labelled = {id(one) for label in found.root.all("label") for one in label.inside}
    controls = [one for name in ("select", "input") for one in found.root.all(name)]
    assert len(controls) == 6
    assert all(id(one) in labelled for one in controls)
    assert all(one.attributes["href"].startswith("#") for one in found.root.all("a"))
    (style,) = found.root.all("style")
    assert found.root.all("link") == []
    assert "url(" not in style.text
    assert "@import" not in style.text


def test_the_policy_lets_these_scripts_run_and_no_others(own: Contents) -> None:
    found = page_of(own)
    policy = found.root.all("meta")[1].attributes["content"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    scripts = [one.text for one in found.root.all("script") if "type" not in one.attributes]
    digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts]
    assert re.findall("'sha256-([^']+)'", policy) == digests
    assert (len(digests), "\r" in scripts[0]) == (2, False)


def test_hostile_texts_are_texts(path: Path) -> None:
    found = page_of(read(tried(path)))
    assert found.root.all("b") == found.root.all("img") == found.root.all("i") == found.root.all("u") == []
    assert len(found.root.all("script")) == 3
    text = found.root.whole_text()
    for one in (DEVICE, "<i>driver</i>", "{{ 7 * 7 }} </style>", "<u>0</u>"):
        assert one in text
    rows = data_of(found)["trials"]["rows"]
    assert any(one.startswith(DETAIL[:500]) and one.endswith("more characters)") for one in rows["why"]["texts"])
    assert data_of(found)["charts"]["roofline"]["data"]["points"]["device"]["texts"] == [DEVICE]


def test_hostile_titles_and_notes_are_texts(own: Contents) -> None:
    hostile = "</title><script>alert(1)</script> {{ 7 * 7 }}"
    found = Page(page(own, (), written_at="", version="0", library=LIBRARY, title=hostile, note=hostile + DEVICE))
    assert found.root.all("h1")[0].text == hostile
    assert found.root.all("header")[0].all("p")[0].text == hostile + DEVICE
    assert found.root.all("title")[0].whole_text() == f"{hostile} - tsm2-tune report"
    assert len(found.root.all("script")) == 3


@pytest.mark.parametrize(("capability", "is_told"), [("9.0", False), ("", True)])
def test_emulation_is_told_first(own: Contents, capability: str, is_told: bool) -> None:
    runs = tuple(replace(run, identity=replace(run.identity, compute_capability=capability)) for run in own.runs)
    sections = page_of(replace(own, runs=runs)).root.all("section")
    first = next(one for one in sections if one.attributes["id"] == "summary").all("p")[0].text
    assert (first == "Kernels are emulated on the CPU: times mean nothing.") is is_told


def test_a_page_without_a_winner_says_so(path: Path) -> None:
    tried(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        for table in ("sample", "measurement"):
            connection.execute(f"DELETE FROM {table}")
        connection.execute("UPDATE trial SET outcome = 'wrong-result', verdict_correct = 0, full_verdict = NULL")
    found = page_of(read(path))
    assert "there is no winner" in found.root.whole_text()
    assert [one.whole_text() for one in found.root.all("h2")] == ["Summary", "Each trial"]


@pytest.mark.usefixtures("without_charts")
def test_the_command_writes_a_page(path: Path, tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    output.write_text("what was there")
    result = run("report", "--db", str(tried(path)), "--output", str(output))
    assert (result.exit_code, result.output) == (0, f"wrote {output}\n")
    Page(output.read_text(encoding="utf-8"))
    printed = run("report", str(path), "--title", "Node 7", "--note", "<b>", "--output", "-").output
    assert printed.startswith("<!DOCTYPE html>")
    assert "<h1>Node 7</h1>" in printed
    assert "&lt;b&gt;" in printed
    exported = tsm2_tune.report(path, products="20480x16x20480", compare=path)
    assert exported.files == ()
    assert OTHER.text not in str(exported.text)


def test_without_the_package_one_sentence_says_what_to_install(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    said = refused("report", "--db", str(tried(path)), "--output", str(tmp_path / "report.html"))
    assert said == f"Error: a report needs the package vl-convert-python: {pip_install('vl-convert-python')}\n"
    assert not (tmp_path / "report.html").exists()


@pytest.mark.usefixtures("without_charts")
@pytest.mark.parametrize("text", [7, "\0", "\ud800"])
def test_a_title_that_a_page_cannot_hold_is_refused(path: Path, text: object) -> None:
    with pytest.raises(tsm2_tune.InputError, match="title = "):
        tsm2_tune.report(tried(path), title=text)  # type: ignore[arg-type]


@pytest.mark.usefixtures("without_charts")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--db", "none.db"), "no database none.db: tune first"),
        (("--db", "empty.db"), "empty.db holds no results yet"),
        (("--db", "untried.db"), "untried.db has no trial yet: tune first"),
        (("--db", "good.db", "--compare", "none.db"), "no database none.db"),
        (("--db", "good.db", "--compare", "foreign.db"), "foreign.db is "),
        (("--db", "good.db", "--shapes", "8x8x8"), "no trial of 10 matches: good.db has"),
        (("--db", "good.db", "--device", "K80"), "no trial of the device 'K80' in good.db"),
        (("--db", "good.db", "--output", "good.db"), "cannot write good.db: it is part of the database good.db"),
        (
            ("--db", "good.db", "--compare", "newer.db", "--output", "newer.db"),
            "cannot write newer.db: it is part of the database newer.db",
        ),
        (("--db", "text.db", "--output", "none/report.html"), "cannot write none/report.html: its folder does not"),
        (("--db", "good.db", "--output", ""), "the name of the file to write is empty"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, tuple) else "",
)
def test_what_cannot_be_reported_is_one_sentence(
    arguments: tuple[str, ...], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.db").touch()
    Path("text.db").write_text("no database, but long enough to be taken for the head of one" * 20)
    database_of("untried.db")
    tried(Path("good.db"))
    tried(Path("newer.db"))
    for name, statement in (("foreign.db", "CREATE TABLE trial (id)"), ("newer.db", "PRAGMA user_version = 9999")):
        with closing(sqlite3.connect(name)) as connection, connection:
            connection.execute(statement)
    before = {one: one.read_bytes() for one in tmp_path.iterdir() if one.is_file()}
    assert sentence in refused("report", *arguments)
    assert {one: one.read_bytes() for one in tmp_path.iterdir() if one.is_file()} == before
