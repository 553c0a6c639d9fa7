"""Databases to report on, with hostile and long texts, and pages as an HTML parser reads them."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from tests.fabricated import PROBLEM as SKINNY
from tests.fabricated import configuration, final, trial, tuning_run, vendor_measurement
from tsm2_tune.generator.families import parse_config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.html.contents import Contents, contents
from tsm2_tune.html.page import page
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache, Outcome, TuningRun, Verdict

DEVICE = "</script><script>document.title='taken'</script><b id=bold>&amp;\"' ünï漢😀"
DETAIL = (
    "<!-- <script> </ScRiPt ><img src=x onerror=\"document.title='taken'\">\u202e\u2028\x00\x1b[31m]]> "
    + 10_000 * "x"
)
LONG_DEVICE = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"
LONG_CONFIGURATION = (
    "staged_complex_dmma:threads=128,ring_threads=128,block=16x16x128,stages=2,copy=registers,splits=108,min_blocks=3,"
    "warp=16x16,fragment_prefetch=1"
)
OTHER = Problem(4096, 8, 512, "f64", "tn")
LIBRARY = "window.vegaEmbed = () => {};  // </script> <!-- \r\n"
OUTLINE = Path(__file__).parent / "printed" / "report.outline"  # of a page
VOID = {"meta", "wbr", "input", "link", "br", "img"}


def hostile_run() -> TuningRun:
    return tuning_run(DEVICE, driver="<i>driver</i>", toolkit="{{ 7 * 7 }} </style>", version="<u>0</u>")


def tried(path: Path, run: TuningRun | None = None, scale: float = 1.0) -> Path:
    """Add two searches to a database. In one of them a trial failed, and the vendor is faster.

    Times are multiplied by `scale`, the vendor's by its square, so that gains differ from device to device.
    """
    if path.exists():
        _try(path, run or hostile_run(), scale)
    else:
        path.write_bytes(_tried_content(run or hostile_run(), scale))
    return path


@cache
def _tried_content(run: TuningRun, scale: float) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tried.db")
        _try(path, run, scale)
        return path.read_bytes()


def _try(path: Path, run: TuningRun, scale: float) -> None:
    with Store.open(path, create=True) as store:
        for number, threads in enumerate((64, 128, 256, 512)):
            for columns in (4, 8):
                config = configuration(threads, columns)
                store.add_trial(run, trial(scale * (500.0 - 20 * number - columns), config, problem=SKINNY))
        store.add_trial(run, trial(scale * 50.0, configuration(128), problem=OTHER, floor_us=40.0))
        wrong = Verdict(False, 9.0, DETAIL)
        failed: dict[str, Any] = {"outcome": Outcome.WRONG_RESULT, "detail": DETAIL, "verdict": wrong}
        failed |= {"measurement": None, "full_verdict": None}
        store.add_trial(run, trial(1.0, configuration(32), problem=OTHER, **failed))
        for problem, config, us, vendor_us in (
            (SKINNY, configuration(512, 8), 430.0, 860.0), (OTHER, configuration(128), 50.0, 40.0),
        ):  # fmt: skip
            times = final((config, scale * us), problem=problem, vendor=(vendor_measurement(scale**2 * vendor_us),))
            store.add_final(run, times, ["tsm2"], trial().basis)


def long_names(path: Path) -> Path:
    """Return a database of two devices, each of whose texts is as long as any that is stored in practice."""
    problem = Problem(100_000_007, 64, 100_000_003, "c128", "cct")
    config = parse_config(LONG_CONFIGURATION)
    assert config is not None
    run = tuning_run(LONG_DEVICE, driver="580.159.04", toolkit="Cuda compilation tools, release 13.0, V13.0.88")
    run = replace(run, ceilings=replace(run.ceilings, gflops=(("c128", 30000.0),)))
    second = replace(run, identity=replace(run.identity, name=f"{LONG_DEVICE} MIG 1g.24gb"))
    with Store.open(path, create=True) as store:
        for one in (run, second):
            of_search: dict[str, Any] = {"strategy": "optuna:nsgaii", "space_configurations": 1_000_000}
            store.add_trial(one, trial(123_456.7, config, problem=problem, **of_search))
            vendor = vendor_measurement(98_765.4, "cublasLtMatmul #128")
            times = final((config, 123_456.7), problem=problem, vendor=(vendor,))
            store.add_final(one, times, [config.family], trial().basis)
    return path


@dataclass
class Element:
    """An element with its attributes, what is in it, and its text."""

    name: str
    attributes: dict[str, str]
    inside: list[Element] = field(default_factory=list)
    text: str = ""  # its own

    def all(self, name: str) -> list[Element]:
        """Return the elements of this name in it, at any depth."""
        return [one for child in self.inside for one in (*([child] if child.name == name else []), *child.all(name))]

    def whole_text(self) -> str:
        return self.text + "".join(one.whole_text() for one in self.inside)


class Page(HTMLParser):
    """The tree of a page; AssertionError if an element is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self._open = [self.root]
        self.ids: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self._open[-1].inside.append(element)
        if "id" in element.attributes:
            self.ids.append(element.attributes["id"])
        if tag not in VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop().name == tag

    def handle_data(self, data: str) -> None:
        self._open[-1].text += data

    def elements(self) -> list[Element]:
        """Return all elements."""
        found = [self.root]
        for one in found:
            found.extend(one.inside)
        return found[1:]


def read(path: Path, cache: Cache | None = None) -> Contents:
    with Store.open(path, create=False) as store:
        return contents(store, None, lambda problem: True, cache)


def page_of(own: Contents, *others: Contents) -> Page:
    return Page(page(own, others, written_at="2026-01-02", version="0", library=LIBRARY))


def data_of(found: Page) -> dict[str, Any]:
    (data,) = (one for one in found.root.all("script") if one.attributes.get("id") == "data")
    content: dict[str, Any] = json.loads(data.text)
    return content


def outline() -> str:
    """Return what a reader sees of a report on two databases in this folder, and the numbers of its charts."""
    own = read(tried(Path("own.db"), tuning_run()))
    sizes, ended = {SKINNY: 1840, OTHER: 2}, {SKINNY: "max-trials", OTHER: None}
    trials = [
        replace(of, space_configurations=sizes[of.problem], search_ended=ended[of.problem]) for of in own.trials
    ]
    trials[0] = replace(trials[0], superseded=True, guideline_broken="min-reuse")
    found = page_of(replace(own, trials=tuple(trials)), read(tried(Path("other.db"), tuning_run("H100"), scale=1.5)))
    data = data_of(found)
    numbers = {name: chart["data"] for name, chart in data["charts"].items()} | {"maps": data["maps"]}
    numbers |= {"trials": {name: data["trials"][name] for name in ("heads", "rows")}}
    lines = [*_seen(found.root), *(f"{name}: {json.dumps(value)}" for name, value in _columns(numbers))]
    return re.sub(r"\d{4}-\d\d-\d\d(?= \| \d,)", "NOW", "\n".join(lines)) + "\n"


def _seen(element: Element) -> Iterator[str]:
    """Yield a line for each text, and for each row of a table."""
    if element.name == "tr":
        yield " | ".join(cell.whole_text() for cell in element.inside)
    elif element.name not in ("script", "style"):
        text = " ".join(element.text.split())
        yield from [f"{element.name}: {text}"] if text else []
        for one in element.inside:
            yield from _seen(one)


def _columns(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each list that is in the value, under its place; long texts are cut."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _columns(inner, f"{name}.{key}".lstrip("."))
    else:
        yield name, [one[:80] if isinstance(one, str) else one for one in value] if isinstance(value, list) else value
