"""The source distribution and the wheel made of it hold what a user needs: code, types, templates, documentation."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tsm2_tune"
UNWANTED = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "results")
BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


def built(kind: str, tree: Path, into: Path) -> Path:
    """What the build backend makes of the tree, as pip calls it."""
    command = [sys.executable, "-c", BUILD, f"build_{kind}", str(into)]
    ended = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return into / ended.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[set[str], Path]:
    """The files of the source distribution, and the wheel that is made of it."""
    pytest.importorskip("setuptools", "77")
    folder = tmp_path_factory.mktemp("distributions")
    shutil.copytree(ROOT, folder / "tree", ignore=UNWANTED)
    archive = built("sdist", folder / "tree", folder)
    with tarfile.open(archive) as sources:
        names = {name.partition("/")[2] for name in sources.getnames()}
        sources.extractall(folder / "sources", filter="data")
    (unpacked,) = (folder / "sources").iterdir()
    return names, built("wheel", unpacked, folder)


def test_the_source_distribution_has_types_documentation_and_examples(distributions: tuple[set[str], Path]) -> None:
    names, _ = distributions
    assert {"tsm2_tune/py.typed", "docs/reference.py", "examples/api.py", "README.md", "setup.py"} <= names
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert {"docs/tuning.md", "docs/cli.md", "docs/decisions/README.md"} <= pages <= names
    assert {"tsm2_tune/pretuned/h100.jsonl", "tsm2_tune/pretuned/h200.jsonl"} <= names


def test_the_wheel_has_all_of_the_package(distributions: tuple[set[str], Path]) -> None:
    _, wheel = distributions
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert wheel.name.endswith("-py3-none-any.whl")
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc")
    assert {path.relative_to(ROOT).as_posix() for path in files} == {
        name for name in names if name.startswith("tsm2_tune/")
    }
    assert "tsm2_tune/py.typed" in names


def test_the_package_page_has_no_relative_link(distributions: tuple[set[str], Path]) -> None:
    _, wheel = distributions
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        head, _, page = archive.read(name).decode().partition("\n\n")
    assert "Description-Content-Type: text/markdown" in head
    assert page.startswith("# tsm2-tune\n")
    assert "make tune" in page
    assert "Tuning (docs/tuning.md) explains" in " ".join(page.split())
    assert "](" not in page


def test_what_is_in_the_wheel_works(distributions: tuple[set[str], Path], tmp_path: Path) -> None:
    _, wheel = distributions
    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    program = (
        f"import sys; sys.path.insert(0, {str(unpacked)!r}); import tsm2_tune; print(tsm2_tune.__file__);"
        "print(len(tsm2_tune.plan_space('64x4x64', device='h200').kept) > 0);"
        "from tsm2_tune.pretuned import pretuned; print(*(one.name for one in pretuned()))"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.stderr == ""
    assert ended.stdout.splitlines() == [str(unpacked / "tsm2_tune/__init__.py"), "True", "h100 h200"]
