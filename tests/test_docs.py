"""The README and the pages in docs: links and anchors resolve, examples parse, names exist, kernels are as drawn."""

from __future__ import annotations

import ast
import json
import pydoc
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import tsm2_tune
from benchmarks.redraw import BESIDE, GEMV, GENERAL, MINPLUS, RESULT
from tests.command import said
from tests.modules import loaded
from tests.planting import GPU, bugs
from tsm2_tune.cli import main
from tsm2_tune.generator.families import FAMILIES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md")))
NOTEBOOK = DOCS / "notebook"  # dated notes, with the names of their day
SHOWN = tuple(path for path in PAGES if path.parent != NOTEBOOK)
GUIDE = (*PAGES[:2], *sorted(DOCS.glob("*.md")))
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
DRAWN = re.compile(r"<!-- drawn: [a-z-]+ -->.*?<!-- end -->", re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def anchors(page: str) -> set[str]:
    """Return the anchors that a code host gives to the page's headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.+)$", FENCE.sub("", page), re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        copies = (slug if not number else f"{slug}-{number}" for number in range(1000))
        found.add(next(one for one in copies if one not in found))
    return found


def links(path: Path) -> list[str]:
    """Return the targets of the page's links."""
    return LINK.findall(re.sub(r"`[^`\n]*`", "code", FENCE.sub("", path.read_text(encoding="utf-8"))))


def broken_links(path: Path) -> Iterator[str]:
    """Relative links of the page that lead nowhere, or out of the root."""
    for link in links(path):
        if link.startswith(("http:", "https:", "mailto:")):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        if not target.is_relative_to(ROOT) or not target.exists():
            yield f"{link}: no such file"
        elif anchor and (target.suffix != ".md" or anchor not in anchors(target.read_text(encoding="utf-8"))):
            yield f"{link}: no such heading"


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_resolve(path: Path) -> None:
    assert list(broken_links(path)) == []


def defines(file: Path, name: str) -> bool:
    """Return whether the file defines the function, macro or table, or the method with its class."""
    text = file.read_text(encoding="utf-8")
    before = r"\b(?:def|class) " if file.suffix == ".py" else r"(?:^#define |^[a-zA-Z][\w *()]*[ *])"
    after = r"\b" if file.suffix == ".py" else r"\("
    of_table = re.search(rf"^{re.escape(name)} = ", text, re.MULTILINE) is not None
    return of_table or all(re.search(f"{before}{part}{after}", text, re.MULTILINE) for part in name.split("."))


def test_functions_in_tables_of_the_architecture_are_in_their_files() -> None:
    checked, missing = 0, list[str]()
    for line in (DOCS / "architecture.md").read_text(encoding="utf-8").splitlines():
        cells = line.split(" | ")
        files = [DOCS / link for link in LINK.findall(cells[0])] if line.startswith("| [") else []
        names = re.findall(r"`([^`]+)`", cells[1]) if files else []
        missing += [name for name in names if not any(defines(file, name) for file in files)]
        checked += len(names)
    assert (missing, checked > 60) == ([], True)


def written(path: Path) -> str:
    """The page without what is no example: signatures and usage lines."""
    page = path.read_text(encoding="utf-8")
    if path.name == "api.md":
        return DRAWN.sub("", page)
    return re.sub(r"^.*\[OPTIONS\].*$", "", page, flags=re.MULTILINE)


def test_python_parses() -> None:
    blocks = [
        (path, body) for path in GUIDE for language, body in FENCE.findall(written(path)) if language == "python"
    ]
    assert len(blocks) > 5
    for path, body in blocks:
        ast.parse(body, str(path))


def command_lines() -> Iterator[tuple[str, str]]:
    """Yield the tsm2-tune command lines in code blocks, and the complete ones in the prose."""
    for path in GUIDE:
        page = written(path)
        blocks = [body for language, body in FENCE.findall(page) if language != "python"]
        typed = [line.strip().removeprefix("$ ") for body in blocks for line in body.splitlines()]
        inline = re.findall(r"(?<!`)`(tsm2-tune [^`]+)`(?!`)", FENCE.sub("", page))
        quoted = [" ".join(line.split()) for line in inline if "..." not in line]
        yield from ((name_of(path), line) for line in (*typed, *quoted) if line.startswith("tsm2-tune "))


def check_command(line: str) -> None:
    """Parse it as the command does, and execute nothing. UsageError for what it refuses."""
    program, *words = shlex.split(line, comments=True)
    assert program == "tsm2-tune"
    command: click.Command = main
    ctx: click.Context | None = None
    while True:
        try:
            ctx = command.make_context(program, words, parent=ctx)
        except click.exceptions.Exit:  # --help exits
            return
        names = {"shapes": "products", "dtypes": "dtype", "ops": "op", "layout": "layout", "math": "math"}
        texts = {names.get(key, key): found for key, found in ctx.params.items() if isinstance(found, str)}
        if not texts.get("products", "@").startswith("@"):
            tsm2_tune.problems(**{name: texts[name] for name in names.values() if name in texts})
        if not isinstance(command, click.Group) or not ctx._protected_args:
            return
        name, below, words = command.resolve_command(ctx, [*ctx._protected_args, *ctx.args])
        assert below is not None, name
        if not words:  # it is mentioned
            return
        command = below


def test_command_lines_parse() -> None:
    lines = list(command_lines())
    assert len(lines) > 40
    for page, line in lines:
        try:
            check_command(line.replace("--family NAME", "--family tsm2"))
        except (click.UsageError, tsm2_tune.TuneError) as error:
            pytest.fail(f"{page}: {line}: {error}")


def test_every_extra_is_named_with_what_it_brings() -> None:
    page = (DOCS / "tuning.md").read_text(encoding="utf-8")
    section = page.partition("\n## Extras\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `([a-z]+)` \| ([^|]+) \|", section, re.MULTILINE))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = {name: {one.lower().replace(" ", "_") for one in packages.split(", ")} for name, packages in rows.items()}
    assert named == {name: {re.split(r"[\[>=]", one)[0] for one in needs} for name, needs in extras.items()}


def test_the_example_of_a_prediction_is_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    drawing = loaded(DOCS / "prediction.py")
    page = drawing.PAGE.read_text(encoding="utf-8")
    assert drawing.drawn(page) == page, "docs/prediction.md is not what the core says: python docs/prediction.py"
    monkeypatch.setitem(drawing.FUNCTIONS, "sqrt", abs)
    with pytest.raises(AssertionError, match="the formulas give"):
        drawing.Example()


def test_the_constants_of_a_prediction_are_explained() -> None:
    explanation = (DOCS / "prediction.md").read_text(encoding="utf-8").partition("\n## Example\n")[0]
    model = (ROOT / "tsm2_tune/core/model.h").read_text(encoding="utf-8")
    names = re.findall(r"^#define ([A-Z_]+) [0-9.]+ ", model, re.MULTILINE)
    assert len(names) > 20
    assert [name for name in names if name not in explanation] == []


def test_no_constant_of_a_prediction_is_defined_twice() -> None:
    sources = [path for end in ("py", "[ch]") for path in (ROOT / "tsm2_tune").rglob(f"*.{end}")]
    names = re.findall(r"^#define ([A-Z_]+) [0-9.]+ ", (ROOT / "tsm2_tune/core/model.h").read_text(), re.MULTILINE)
    defined = re.compile(rf"^ *(?:#define )?_?({'|'.join(names)})(?:: [^=]+)? (?:= )?([0-9.]+)", re.MULTILINE)
    found = [pair for path in sources for pair in defined.findall(path.read_text(encoding="utf-8"))]
    values = Counter((name, float(value)) for name, value in found)
    assert len(values) >= len(names)
    assert [pair for pair, count in values.items() if count > 1] == []


FOLDERS = tuple(path.name for path in (ROOT / "tsm2_tune").iterdir() if path.is_dir())
SHORT_PATH = re.compile(rf"`(?:\.\.\./)?((?:{'|'.join(FOLDERS)})/[\w./*-]*)`")  # below tsm2_tune


@pytest.mark.parametrize("path", SHOWN, ids=name_of)
def test_families_files_and_modules_that_are_named_exist(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    assert set(re.findall(r"`([a-z]\w*):\w+=", page)) <= {*FAMILIES, "family"}
    paths = re.findall(r"(?<![\w./-])tsm2_tune/[\w./*-]*[\w*/]", page)
    paths += [f"tsm2_tune/{short}" for short in SHORT_PATH.findall(page)]
    paths += re.findall(r"benchmarks/results/[\w-]+(?:\.\w+)+", page)
    assert [one for one in paths if not any(ROOT.glob(one.rstrip("/")))] == []
    modules = set(re.findall(r"\btsm2_tune(?:\.[a-zA-Z_]\w*)+", page))
    assert [name for name in modules if pydoc.locate(name) is None] == []
    for module in re.findall(r"python -m ((?:benchmarks|tests)\.\w+)", page):
        place = ROOT / module.replace(".", "/")
        assert place.with_suffix(".py").exists() or (place / "__main__.py").exists(), module


def test_the_tests_that_trust_names_are_there() -> None:
    page = (DOCS / "trust.md").read_text(encoding="utf-8")
    named = re.findall(r"`(?:tests/)?(test_\w+\.py)(?:::(\w+))?`", page)
    assert sum(bool(name) for _, name in named) > 20
    for file, name in named:
        text = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert not name or f"\ndef {name}(" in text, f"{file} has no {name}"


def test_what_the_pages_show_was_verified() -> None:
    found = {path: json.loads(path.read_text()) for path in (RESULT, GENERAL, MINPLUS, BESIDE, GEMV)}
    of_vectors = [one for row in found.pop(GEMV)["rows"] for one in row["decompositions"].values()]
    of_published = [row for row in found.pop(BESIDE)["rows"] if row["verified"] is not None]
    assert all(row["verified"] for row in (*of_vectors, *of_published))
    assert all(row["verified"] for of in found.values() for row in of["rows"])


def test_trust_names_the_number_of_planted_bugs() -> None:
    text = " ".join((DOCS / "trust.md").read_text().split())
    on_host = [bug for bug in bugs() if bug.way != GPU]
    classes = [bug for bug in bugs() if bug.kind]
    assert f"lists {len(bugs())} bugs; a CPU can detect {len(on_host)} of these" in text
    assert f"{len(classes)} of the bugs belong to a class." in text
    assert f"can detect {len(set(classes) & set(on_host))} of the {len(classes)} bugs" in text


@pytest.mark.slow
def test_the_pages_of_kernels_are_as_they_would_be_drawn_now() -> None:
    drawn = loaded(DOCS / "kernels.py").pages()
    assert {path.name for path in (DOCS / "kernels").iterdir()} == set(drawn)
    for name, text in drawn.items():
        assert (DOCS / "kernels" / name).read_text(encoding="utf-8") == text, "run python docs/kernels.py"


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((DOCS / "kernels").glob("[!R]*.md")), ids=name_of)
def test_the_commands_of_a_kernels_page_print_kernels(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    commands = re.findall(r"^tsm2-tune (source .*)$", text, re.MULTILINE)
    assert len(commands) == text.count("\n## ")
    for command in commands:
        assert "__global__" in said(*shlex.split(command))
