"""The source distribution and the wheel hold what a user needs: code, types, templates, documentation.

`python -m tests.installed` installs them.
"""

from __future__ import annotations

import re
import shutil
import tarfile
import zipfile
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path

import pytest

import tsm2_tune
from tests import installed
from tests.processes import python

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tsm2_tune"
BINARIES = "tsm2_tune/pretuned/cubins.tar.xz"  # only in the wheel
UNWANTED = shutil.ignore_patterns(".*", "build", "dist", "tsm2_tune-*", "*.egg-info", "__pycache__")
BUILD = "import sys; from hatchling import build; print(getattr(build, sys.argv[1])(sys.argv[2]))"


def built(kind: str, tree: Path, into: Path) -> Path:
    """Return the distribution that the build backend makes of the tree, called as pip calls it."""
    ended = python("-c", BUILD, f"build_{kind}", into, cwd=tree)
    assert ended.returncode == 0, ended.stderr
    return into / ended.stdout.splitlines()[-1]


@dataclass(frozen=True, slots=True)
class Distributions:
    """The distributions built from the tree, and the wheel built from the source distribution."""

    source: Path
    sources: frozenset[str]  # names of the files in it
    wheel: Path
    contents: dict[str, bytes]  # the wheel's files by name
    of_source: dict[str, bytes]  # the files of the wheel built from the source distribution

    def metadata(self, name: str) -> bytes:
        """The file of this name in the folder that describes the wheel."""
        (found,) = (text for path, text in self.contents.items() if path.endswith(f".dist-info/{name}"))
        return found


def read(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    pytest.importorskip("hatch_fancy_pypi_readme")
    folder = tmp_path_factory.mktemp("distributions")
    tree = folder / "tree"
    shutil.copytree(ROOT, tree, ignore=UNWANTED)
    source = built("sdist", tree, folder)
    with tarfile.open(source) as sources:
        names = frozenset(name.partition("/")[2] for name in sources.getnames())
        sources.extractall(folder / "sources", filter="data")
    (unpacked,) = (folder / "sources").iterdir()
    wheel = built("wheel", tree, folder)
    return Distributions(source, names, wheel, read(wheel), read(built("wheel", unpacked, folder / "sources")))


def test_changelog_bare_checkout_and_distribution_have_the_same_version(
    distributions: Distributions, tmp_path: Path
) -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.findall(r"^## (\S+) - \d{4}-\d\d-\d\d$", changelog, re.MULTILINE)[0]
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import tsm2_tune; print(tsm2_tune.__version__)"
    said = python("-I", "-S", "-c", program, cwd=tmp_path, check=True).stdout.strip()
    assert {said, newest, message_from_bytes(distributions.metadata("METADATA"))["Version"]} == {
        tsm2_tune.__version__
    }


def test_the_source_distribution_is_small_and_documented(distributions: Distributions) -> None:
    assert distributions.source.stat().st_size <= installed.MOST_BYTES
    names = distributions.sources
    assert BINARIES not in names
    assert not {name.partition("/")[0] for name in names} & {"benchmarks", "tests"}
    assert {"docs/reference.py", "examples/api.py", "README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml"} <= names
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")} <= names


def test_the_wheel_has_all_of_the_package(distributions: Distributions) -> None:
    assert distributions.wheel.name.endswith("-py3-none-any.whl")
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc")
    package = {path.relative_to(ROOT).as_posix() for path in files}
    assert package == {name for name in distributions.contents if ".dist-info/" not in name}
    assert "tsm2_tune/py.typed" in package
    of_wheel, of_source = (
        {name: content for name, content in of.items() if not name.endswith("RECORD") and name != BINARIES}
        for of in (distributions.contents, distributions.of_source)
    )
    assert of_source == of_wheel
    assert BINARIES not in distributions.of_source


def test_the_wheel_says_what_it_is(distributions: Distributions) -> None:
    said = message_from_bytes(distributions.metadata("METADATA"))
    assert distributions.metadata("licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    always = [need for need in said.get_all("Requires-Dist", []) if "extra ==" not in need]
    assert always
    assert not [need for need in always if "cuda" in need or "nvidia" in need]
    assert said["Requires-Python"] == f">={installed.VERSIONS[0]}"
    prefix = "Programming Language :: Python :: 3."
    versions = {one.split(" :: ")[-1] for one in said.get_all("Classifier", []) if one.startswith(prefix)}
    assert versions <= set(installed.VERSIONS), "a Python that is named is one that the wheel is installed into"
    assert said.get_payload().startswith("# tsm2-tune\n")  # type: ignore[union-attr]
    assert "](" not in said.get_payload(), "a relative link leads nowhere from the page of the package"


def test_what_is_in_the_wheel_works(distributions: Distributions, tmp_path: Path) -> None:
    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(distributions.wheel) as archive:
        archive.extractall(unpacked)
    program = (
        f"import sys; sys.path.insert(0, {str(unpacked)!r}); import tsm2_tune; print(tsm2_tune.__file__);"
        "print(len(tsm2_tune.plan_space('64x4x64', device='h200').kept) > 0);"
        "from tsm2_tune.pretuned import pretuned; print(*(one.name for one in pretuned()))"
    )
    ended = python("-c", program, cwd=tmp_path)
    assert ended.stderr == ""
    assert ended.stdout.splitlines() == [str(unpacked / "tsm2_tune/__init__.py"), "True", "h100 h200"]
