"""The source distribution and the wheel hold what a user needs: code, types, templates, documentation.

`python -m tests.installed` installs them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path

import pytest

from tests import installed

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tsm2_tune"
UNWANTED = shutil.ignore_patterns(".*", "build", "dist", "tsm2_tune-*", "*.egg-info", "__pycache__")
BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


def _unwanted(folder: str, names: list[str]) -> set[str]:
    """Return the names of the folder that a clone has not, and raw results, which take long to copy."""
    return UNWANTED(folder, names) | ({"results"} if Path(folder) == ROOT / "benchmarks" else set())


def built(kind: str, tree: Path, into: Path) -> Path:
    """What the build backend makes of the tree, as pip calls it."""
    command = [sys.executable, "-c", BUILD, f"build_{kind}", str(into)]
    ended = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return into / ended.stdout.splitlines()[-1]


@dataclass(frozen=True, slots=True)
class Distributions:
    """What is built of the tree, and what of that."""

    sources: frozenset[str]  # files of the source distribution
    wheel: Path  # made of the source distribution
    contents: dict[str, bytes]  # of the wheel, by their names
    of_tree: dict[str, bytes]  # of the wheel that is made of the tree itself

    def metadata(self, name: str) -> bytes:
        """The file of this name in the folder that describes the wheel."""
        (found,) = (text for path, text in self.contents.items() if path.endswith(f".dist-info/{name}"))
        return found


def read(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """The source distribution, the wheel that is made of it, and the wheel of the tree."""
    pytest.importorskip("setuptools", "77")
    folder = tmp_path_factory.mktemp("distributions")
    tree = folder / "tree"
    shutil.copytree(ROOT, tree, ignore=_unwanted)
    with tarfile.open(built("sdist", tree, folder)) as sources:
        names = frozenset(name.partition("/")[2] for name in sources.getnames())
        sources.extractall(folder / "sources", filter="data")
    (unpacked,) = (folder / "sources").iterdir()
    for name in ("of_sources", "of_tree"):
        (folder / name).mkdir()
    wheel = built("wheel", unpacked, folder / "of_sources")
    return Distributions(names, wheel, read(wheel), read(built("wheel", tree, folder / "of_tree")))


def test_the_source_distribution_has_types_documentation_and_examples(distributions: Distributions) -> None:
    names = distributions.sources
    assert {"tsm2_tune/py.typed", "docs/reference.py", "examples/api.py", "README.md", "setup.py"} <= names
    assert {"CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile"} <= names
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert {"docs/tuning.md", "docs/cli.md", "docs/decisions/README.md"} <= pages <= names
    assert {"tsm2_tune/pretuned/h100.jsonl", "tsm2_tune/pretuned/h200.jsonl"} <= names


def test_the_wheel_has_all_of_the_package_and_nothing_else(distributions: Distributions) -> None:
    assert distributions.wheel.name.endswith("-py3-none-any.whl")
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc")
    package = {path.relative_to(ROOT).as_posix() for path in files}
    assert package == {name for name in distributions.contents if ".dist-info/" not in name}
    assert "tsm2_tune/py.typed" in package


def test_the_wheel_of_the_source_distribution_is_that_of_the_tree(distributions: Distributions) -> None:
    assert distributions.contents == distributions.of_tree


def test_the_wheel_says_what_it_is(distributions: Distributions) -> None:
    said = message_from_bytes(distributions.metadata("METADATA"))
    assert (said["Name"], said["License-Expression"], said["License-File"]) == ("tsm2-tune", "MIT", "LICENSE")
    assert distributions.metadata("licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    always = [need for need in said.get_all("Requires-Dist", []) if "extra ==" not in need]
    assert always, "what every installation needs"
    assert not [need for need in always if "cuda" in need or "nvidia" in need]
    assert said["Requires-Python"] == f">={installed.VERSIONS[0]}"
    prefix = "Programming Language :: Python :: 3."
    versions = {one.split(" :: ")[-1] for one in said.get_all("Classifier", []) if one.startswith(prefix)}
    assert versions <= set(installed.VERSIONS), "a Python that is named is one that the wheel is installed into"


def test_the_package_page_has_no_relative_link(distributions: Distributions) -> None:
    head, _, page = distributions.metadata("METADATA").decode().partition("\n\n")
    assert "Description-Content-Type: text/markdown" in head
    assert page.startswith("# tsm2-tune\n")
    assert "make tune" in page
    assert "Contributing (CONTRIBUTING.md)." in " ".join(page.split())
    assert "](" not in page


def test_what_is_in_the_wheel_works(distributions: Distributions, tmp_path: Path) -> None:
    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(distributions.wheel) as archive:
        archive.extractall(unpacked)
    program = (
        f"import sys; sys.path.insert(0, {str(unpacked)!r}); import tsm2_tune; print(tsm2_tune.__file__);"
        "print(len(tsm2_tune.plan_space('64x4x64', device='h200').kept) > 0);"
        "from tsm2_tune.pretuned import pretuned; print(*(one.name for one in pretuned()))"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.stderr == ""
    assert ended.stdout.splitlines() == [str(unpacked / "tsm2_tune/__init__.py"), "True", "h100 h200"]
